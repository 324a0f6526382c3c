"""What the tests of the server share: an application on a directory, and ways to ask and stop it.

The application answers under a path of its own on the one server of this process; its limits are
changed by whoever tests them.
"""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from segue.clock import Clock, Ticks, system_clock, system_ticks
from segue.log.options import SyncName
from segue.server.app import App
from segue.server.building import build_app
from segue.server.tokens import RoleName, Token, add_token, make_token
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from tests.http_server import shared_http_server
from tests.waiting import LIMIT_SECONDS, wait_until


@dataclass(frozen=True, slots=True)
class Told:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> dict[str, object]:
        """What it says."""
        said = json.loads(self.data)
        assert isinstance(said, dict), said
        return said

    @property
    def code(self) -> object:
        """The code of the problem that it tells."""
        return self.json["code"]


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and the application before it."""

    store: FileStore
    app: App
    url: str

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """Return a request without its body, as it goes over the line."""
        first = f"{method} {urlsplit(self.url).path}{path} HTTP/1.1"
        return "\r\n".join([first, "Host: localhost", *lines, "", ""]).encode()

    def connected(self) -> socket.socket:
        """Return a connection on which nothing was said yet."""
        where = urlsplit(self.url)
        return socket.create_connection(
            (where.hostname or "", where.port or 0), timeout=LIMIT_SECONDS
        )

    @contextmanager
    def asked(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield an answer whose body is still to be read; bytes are sent as they are."""
        where = urlsplit(self.url)
        line = http.client.HTTPConnection(where.hostname or "", where.port, timeout=LIMIT_SECONDS)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            line.request(method, where.path + path, data, said)
            answer = line.getresponse()
            try:
                yield answer
            finally:
                answer.close()
        finally:
            line.close()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Told:
        """Return the answer to one request, on a connection of its own."""
        with self.asked(method, path, body, **headers) as answer:
            said = {name.lower(): value for name, value in answer.getheaders()}
            return Told(answer.status, said, answer.read())

    def push(self, queue: str, body: str = "x", **headers: str) -> Told:
        """Push one message."""
        return self.ask("POST", messages(queue), {"messages": [{"body": body}]}, **headers)

    def count(self, queue: str) -> dict[str, object]:
        """Return how many messages there are."""
        return self.ask("GET", f"/api/v1/queues/{queue}/count").json

    @contextmanager
    def busy_threads(self, count: int) -> Iterator[None]:
        """Keep so many threads of the application busy: all, if it has no more."""
        is_over = threading.Event()
        begun = [threading.Event() for _ in range(count)]

        def wait(has_begun: threading.Event) -> None:
            has_begun.set()
            is_over.wait(LIMIT_SECONDS)

        for each in begun:
            self.app.threads._pool.submit(wait, each)
        try:
            for each in begun:
                assert each.wait(LIMIT_SECONDS)
            yield
        finally:
            is_over.set()


def messages(queue: str) -> str:
    """Return the path of a queue's messages."""
    return f"/api/v1/queues/{queue}/messages"


@contextmanager
def placed(
    root: Path,
    *,
    sync: SyncName = "os",
    tokens: Path | None = None,
    clock: Clock = system_clock,
    ticks: Ticks = system_ticks,
    is_read_only: bool = False,
) -> Iterator[Place]:
    """Serve a directory for a while."""
    server = shared_http_server()
    with open_directory(root, sync=sync) as store:
        app = build_app(
            store,
            tokens=tokens,
            has_audit=False,
            is_read_only=is_read_only,
            clock=clock,
            ticks=ticks,
        )
        url = server.add(app)
        try:
            yield Place(store, app, url)
        finally:
            server.remove(url)


def new_token(
    path: Path,
    *roles: RoleName,
    names: tuple[str, ...] = ("*",),
    expires_us: int | None = None,
) -> tuple[Token, str]:
    """Return a token that is in the file at `path`, and what to say to be let in by it."""
    token, text = make_token(
        name="tester", roles=roles, names=names, now_us=0, expires_us=expires_us
    )
    add_token(path, token)
    return token, f"Bearer {text}"


def until(is_so: Callable[[], bool]) -> None:
    """Wait until `is_so()`."""
    wait_until(is_so)


def cut(connection: socket.socket) -> None:
    """End a connection as if its client had died, and wait until the server knows."""
    connections = shared_http_server()._server.server_state.connections
    mine = connection.getsockname()
    (there,) = (each for each in connections if getattr(each, "client", None) == mine)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    until(lambda: there not in connections)


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the connection ends."""
    data = b""
    while piece := connection.recv(65_536):
        data += piece
    return data
