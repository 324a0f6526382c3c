"""The server as something that runs: sockets, beginning, ending."""

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

import uvicorn

from segue.errors import InvalidArgument, SegueError
from segue.server.app import App
from segue.server.protocol import (
    CONNECTIONS_MAX,
    HEAD_SECONDS_MAX,
    SECURITY_HEADERS,
    Config,
    Connection,
    sweep,
)

logger = logging.getLogger(__name__)

BACKLOG: Final = 2048
KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection stays open: longer than clients keep one without using it."""
GRACE_SECONDS: Final = 10
"""How long requests under way may take when the server ends."""
GOODBYE_SECONDS: Final = 1.0
"""How long the last words may take: of requests that are cut off, of encrypted connections."""
SWEEP_SECONDS: Final = 1.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class PortInUse(SegueError):
    """Somebody else listens there already."""


def config_of(
    app: App,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    connections_max: int = CONNECTIONS_MAX,
) -> Config:
    """Return how uvicorn is to run the application."""
    config = Config(
        app,
        http=Connection,
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        headers=list(SECURITY_HEADERS),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        backlog=BACKLOG,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    config.connections_max = connections_max
    return config


class Server(uvicorn.Server):
    """Uvicorn, which first has those who wait come back when it ends."""

    def __init__(
        self,
        app: App,
        config: Config | None = None,
        *,
        on_begin: Callable[[], None] = lambda: None,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config or config_of(app))
        self.app = app
        self._on_begin = on_begin
        self._on_signal = on_signal
        self._upkeep: asyncio.Task[None] | None = None
        self._is_over = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Uvicorn would as well, but gives those who encrypt all the time they like."""
        assert sockets is not None
        config, state = self.config, self.server_state
        state.default_headers = config.encoded_headers
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                lambda: Connection(config, state, {}, loop),
                sock=each,
                ssl=config.ssl,
                backlog=BACKLOG,
                ssl_handshake_timeout=HEAD_SECONDS_MAX if config.ssl else None,
                ssl_shutdown_timeout=GOODBYE_SECONDS if config.ssl else None,
            )
            for each in sockets
        ]
        self.started = True
        connections = state.connections
        self.app.operations.begin(lambda: len(connections))
        self.app.historian.begin()
        self._upkeep = asyncio.create_task(self._look_after())
        self._on_begin()
        threading.Thread(target=self._tidy, name="segue-serve-upkeep", daemon=True).start()

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        operations = self.app.operations
        while True:
            due = loop.time() + SWEEP_SECONDS
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            operations.watchdog.loop_lag_seconds = now - due
            try:
                await sweep(self.server_state.connections, now)
            except Exception:  # What fails once must not end the looking after.
                logger.exception("not looked after")

    def _tidy(self) -> None:
        """Do what may hang, in a thread that nobody waits for, neither here nor at the end."""
        while not self._is_over.wait(SWEEP_SECONDS):
            try:
                self.app.operations.flush()
                self.app.sessions.sweep()
            except Exception:  # The next time it may go well.
                logger.exception("not tidied up")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.app.let_go()
        await super().shutdown(sockets)
        if self.server_state.tasks:  # They were told to end, and say so to whoever waits.
            await asyncio.wait(self.server_state.tasks, timeout=GOODBYE_SECONDS)
        if self._upkeep is not None:
            self._upkeep.cancel()
        self._is_over.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """End in order at the first signal, and at once at a second SIGINT.

        Uvicorn raises the signal again at the end; to us an ordered end is no failure.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal. Also while the event loop is stuck: then `on_signal` is all there is."""
        self._on_signal()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


# Sockets ---------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches `host`. Raises InvalidArgument if nobody does."""
    return all(ipaddress.ip_address(address[0]).is_loopback for _, address in _addresses(host, 0))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises PortInUse, InvalidArgument, OSError."""
    family, address = _addresses(host, port)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Else "::" would be every address of IPv4, too, whatever was thought to be bound.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} of {host} is in use; --port gives another") from error
        raise
    return listener


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"there is no address {host!r} here: {error}") from error
    # IPv4 first, which is what "localhost" means to most.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise InvalidArgument unless the two files belong together."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:  # ssl.SSLError is among them.
        raise InvalidArgument(f"{certificate} and {key} cannot be used: {error}") from error


# In a thread -----------------------------------------------------------------------------------


class ServerThread:
    """A server in a thread of this process, on loopback: for tests, notebooks and `segue dash`."""

    def __init__(self, app: App, *, port: int = 0, config: Config | None = None) -> None:
        self.app = app
        self._server = Server(app, config)
        self._socket = listen("127.0.0.1", port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http{'s' * self._server.config.is_ssl}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, name="segue-server", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._server.serve([self._socket]))

    def stop(self) -> None:
        """End in order: who is being answered gets the answer."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
