"""A line to a server that can be cut, frozen, slowed down, or lose an answer, and come back."""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.redis_server import LOOPBACK

CHUNK_BYTES: Final = 1 << 16


class Proxy:
    """Forwards to the server on `port`. Close it, or use it in a `with` statement."""

    def __init__(self, port: int) -> None:
        self._target = (LOOPBACK, port)
        self._lock = threading.Lock()
        self._open: set[_Link] = set()
        self._thawed = threading.Event()
        self._thawed.set()
        self._is_cut = False
        self._is_closed = False
        self._losing: bytes | None = None
        self.delay_seconds = 0.0
        """How long each piece of an answer is held back."""
        self.accepted = 0
        """How many connections there ever were."""
        self.refused = 0
        """How many were closed at once, because the line was cut."""
        self.most_open = 0
        """How many there were at once."""
        self.lost = threading.Event()
        """Set once an answer was lost."""
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def open(self) -> int:
        """How many connections there are."""
        with self._lock:
            return len(self._open)

    # What can happen ---------------------------------------------------------------------------

    def cut(self) -> None:
        """Close every connection, and every new one, until `restore`."""
        self._is_cut = True
        self.cut_once()

    def cut_once(self) -> None:
        """Close every connection there is."""
        with self._lock:
            links = list(self._open)
        for link in links:
            link.close()

    def freeze(self) -> None:
        """Accept connections and forward nothing, either way, until `restore`."""
        self._thawed.clear()

    def lose_answer(self, *, to: bytes = b"FCALL") -> None:
        """Let the next request that holds `to` reach the server; cut before its answer arrives."""
        self.lost.clear()
        self._losing = to

    def restore(self) -> None:
        """Be an ordinary line again; what was frozen goes on."""
        self._is_cut = False
        self.delay_seconds = 0.0
        self._losing = None
        self._thawed.set()

    def close(self) -> None:
        """End it."""
        self._is_closed = True
        self._listener.close()
        self.restore()
        self.cut_once()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                client.close()
                self.refused += 1
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            link = _Link(client, server)
            with self._lock:
                self._open.add(link)
                self.accepted += 1
                self.most_open = max(self.most_open, len(self._open))
            for work in (self._forward_requests, self._forward_answers):
                threading.Thread(target=self._run, args=(work, link), daemon=True).start()

    def _run(self, work: "Callable[[_Link], None]", link: "_Link") -> None:
        with contextlib.suppress(OSError):
            work(link)
        link.close()
        with self._lock:
            self._open.discard(link)

    def _forward_requests(self, link: "_Link") -> None:
        while data := link.client.recv(CHUNK_BYTES):
            self._thawed.wait()
            if self._losing is not None and self._losing in data:
                self._losing = None
                link.loses_answer = True
            link.server.sendall(data)

    def _forward_answers(self, link: "_Link") -> None:
        while data := link.server.recv(CHUNK_BYTES):
            self._thawed.wait()
            if self.delay_seconds:
                time.sleep(self.delay_seconds)  # noqa: TID251 - a slow network
            if link.loses_answer:
                link.close()
                self.lost.set()
                return
            link.client.sendall(data)


class _Link:
    """One connection, and ours behind it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.loses_answer = False
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        for each in (self.client, self.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class EncryptedProxy:
    """Ends TLS in front of the server on `port`, which need not know of it."""

    def __init__(self, port: int, *, certificate: Path, key: Path) -> None:
        self._target = (LOOPBACK, port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            client = closing.enter_context(self._context.wrap_socket(plain, server_side=True))
            server = closing.enter_context(socket.create_connection(self._target))
            while True:
                # One thread for both ways: an encrypted socket is not for two.
                ready, _, _ = select.select([client, server], [], [])
                for source, target in ((client, server), (server, client)):
                    if source not in ready:
                        continue
                    data = source.recv(CHUNK_BYTES)
                    while isinstance(source, ssl.SSLSocket) and source.pending():
                        data += source.recv(source.pending())
                    if not data:
                        return
                    target.sendall(data)

    def __enter__(self) -> "EncryptedProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
