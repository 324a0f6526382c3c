"""Fast `segue` and `python` commands for the pages: forks of a warm process.

`fast_environment()` puts them first on PATH. Shells, pipes and exit codes are real. Without a C
compiler it changes nothing, and the same commands run as plain processes.
"""

import atexit
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.integration.docs_server import ENVIRONMENT
from tests.waiting import LIMIT_SECONDS

HERE: Final = Path(__file__).parent
COMMANDS: Final = ("segue", "python")


class ForkServer:
    """A directory with the fast commands, and the process that serves them."""

    def __init__(self, client: Path) -> None:
        self.directory = client.parent
        for name in COMMANDS:
            (self.directory / name).hardlink_to(client)
        self._process = subprocess.Popen(
            [sys.executable, HERE / "docs_fork_server.py", self.directory],
            # A process group of its own: signals reach its children through their clients only.
            process_group=0,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    @property
    def is_alive(self) -> bool:
        """False after the server has crashed."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the server alone, as a crash would."""
        self._process.kill()
        self._process.wait(LIMIT_SECONDS)

    def end(self) -> None:
        """End the server and every command that still runs, and delete the directory."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
        shutil.rmtree(self.directory, ignore_errors=True)  # May be called twice.


def fast_environment() -> dict[str, str]:
    """Return the environment for the commands of a page. Start the server again if it has died."""
    server = _fork_server()
    if server is not None and not server.is_alive:
        _end(server, os.getpid())
        _fork_server.cache_clear()
        server = _fork_server()
    if server is None:
        return ENVIRONMENT
    return {**ENVIRONMENT, "PATH": f"{server.directory}:{ENVIRONMENT['PATH']}"}


@cache
def _fork_server() -> ForkServer | None:
    client = _compiled_client()
    if client is None:
        return None
    server = ForkServer(client)
    atexit.register(_end, server, os.getpid())
    return server


def _compiled_client() -> Path | None:
    """Compile the client with the compiler of the extension module. None if there is none."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return None
    client = Path(tempfile.mkdtemp(prefix="segue-docs-")) / "client"
    done = subprocess.run(
        [*compiler, "-O1", "-o", client, HERE / "docs_client.c"],
        # A laptop may have a compiler without headers. In CI the fast commands must work.
        check=bool(os.environ.get("CI")),
    )
    if done.returncode != 0:
        shutil.rmtree(client.parent)
        return None
    return client


def _end(server: ForkServer, pid: int) -> None:
    if os.getpid() == pid:  # A forked child leaves it to its parent.
        server.end()
