"""A line to a server that can be disturbed, and things on a port that are no server of ours."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from tests.redis_proxy import CHUNK_BYTES, Proxy, _Link

LOOPBACK: Final = "127.0.0.1"
HEAD_END: Final = b"\r\n\r\n"

Answer = bytes | Callable[[], Iterator[bytes]]
"""What is sent back: as it is, or piece by piece for as long as somebody reads."""


class HttpProxy(Proxy):
    """Forwards to the server on `port`. Close it, or use it in a `with` statement."""

    def __init__(self, port: int) -> None:
        self._answer_bytes: int | None = None
        self._swallowed: bytes | None = None
        self.heard: list[bytes] = []
        """The first line of each request."""
        super().__init__(port)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> "HttpProxy":
        return self

    def lose_answer(self, *, to: bytes = b"POST") -> None:
        """Let the next request that holds `to` reach the server; cut before its answer arrives."""
        super().lose_answer(to=to)

    def cut_answer(self, *, after_bytes: int) -> None:
        """Let so much of the next answer through, then cut that connection."""
        self._answer_bytes = after_bytes

    def swallow(self, *, request: bytes) -> None:
        """Let the next request that holds this go nowhere; its connection stays open."""
        self._swallowed = request

    def _forward_requests(self, link: _Link) -> None:
        while data := link.client.recv(CHUNK_BYTES):
            self._thawed.wait()
            self.heard.append(data.partition(b"\r\n")[0])
            if self._swallowed is not None and self._swallowed in data:
                self._swallowed = None
                continue
            if self._losing is not None and self._losing in data:
                self._losing = None
                link.loses_answer = True
            link.server.sendall(data)

    def _forward_answers(self, link: _Link) -> None:
        while data := link.server.recv(CHUNK_BYTES):
            self._thawed.wait()
            if self.delay_seconds:
                time.sleep(self.delay_seconds)  # noqa: TID251 - a slow network
            if link.loses_answer:
                link.close()
                self.lost.set()
                return
            if self._answer_bytes is not None:
                piece, self._answer_bytes = self._answer_bytes, None
                _send_part(link, data, piece)
                return
            link.client.sendall(data)


def _send_part(link: _Link, data: bytes, size_bytes: int) -> None:
    while size_bytes > len(data):
        link.client.sendall(data)
        size_bytes -= len(data)
        data = link.server.recv(CHUNK_BYTES)
    link.client.sendall(data[:size_bytes])
    # Sent in order, so that it is the end of the answer and not an error before it.
    link.client.shutdown(socket.SHUT_WR)


class Impostor:
    """Sends answers that were written beforehand, one for each request; the last one for ever.

    Connections stay open after an answer, unless `keeps_open` is False. Whoever connects is sent
    `greeting` before anything is asked.
    """

    def __init__(self, *answers: Answer, keeps_open: bool = True, greeting: bytes = b"") -> None:
        self._answers = list(answers)
        self._greeting = greeting
        self._keeps_open = keeps_open
        self._lock = threading.Lock()
        self.requests: list[bytes] = []
        """All that were asked, whole."""
        self.accepted = 0
        """How many connections there ever were."""
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> "Impostor":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.sendall(self._greeting)
            while request := _request_on(client):
                with self._lock:
                    self.requests.append(request)
                    answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
                if isinstance(answer, bytes):
                    client.sendall(answer)
                else:
                    for piece in answer():
                        client.sendall(piece)
                if not self._keeps_open:
                    client.shutdown(socket.SHUT_WR)
                    return


def _request_on(client: socket.socket) -> bytes:
    """Return the next request, nothing once there is none."""
    data = b""
    while HEAD_END not in data:
        piece = client.recv(CHUNK_BYTES)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(HEAD_END)
    size_bytes = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            size_bytes = int(line.partition(b":")[2])
    while len(body) < size_bytes:
        body += client.recv(CHUNK_BYTES)
    return head + HEAD_END + body


def answer_of(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Return an answer as it goes over the line."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-length: {len(body)}",
        *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + HEAD_END + body
