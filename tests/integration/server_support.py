"""Asking a server as any program would, without Segue's own client."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from urllib.parse import urlsplit

import segue
from segue.server.app import App
from segue.server.routes import ALL
from segue.server.routing import Router
from segue.server.serving import ServerThread
from tests.waiting import LIMIT_SECONDS


@dataclass(slots=True)
class Failures:
    """Failures of many small cases within one test, raised together."""

    errors: list[Exception] = field(default_factory=list)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Run one case. Its failure does not stop the next."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - all are raised by `check`.
            error.add_note(f"in the case {name}")
            self.errors.append(error)

    def check(self) -> None:
        """Raise an ExceptionGroup with a note for each case that failed."""
        if self.errors:
            raise ExceptionGroup("cases that failed", self.errors)


@contextmanager
def served(path: Path) -> Iterator[ServerThread]:
    """A server of its own, on a directory, where every path is as it is written."""
    with segue.open(path, sync="os") as store, ServerThread(App(store, Router(ALL))) as server:
        yield server


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """An answer; equals the tuple of its status and what it says."""

    status: int
    body: object

    def __getitem__(self, name: str) -> object:
        assert isinstance(self.body, dict), self
        return self.body[name]

    def __eq__(self, other: object) -> bool:
        mine = (self.status, self.body)
        return mine == ((other.status, other.body) if isinstance(other, Told) else other)

    def __hash__(self) -> int:
        return hash(self.status)


class Client:
    """Asks one server, over one connection."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self.base = where.path
        self._line = http.client.HTTPConnection(
            where.hostname or "", where.port, timeout=LIMIT_SECONDS
        )

    def raw(self, method: str, path: str, body: bytes | None = None) -> tuple[Message, bytes]:
        """Return the headers and the body of an answer that is 200, as they are."""
        self._line.request(method, self.base + path, body=body)
        answer = self._line.getresponse()
        text = answer.read()
        assert answer.status == 200
        return answer.headers, text

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Told:
        """Return the answer to one request; bytes are sent as they are."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._line.request(method, self.base + path, body=data, headers=headers or {})
        answer = self._line.getresponse()
        text = answer.read()
        return Told(answer.status, json.loads(text) if text else None)

    def post(self, path: str, body: object = None, **headers: str) -> Told:
        return self.ask("POST", path, body, headers)

    def get(self, path: str) -> Told:
        return self.ask("GET", path)

    def close(self) -> None:
        self._line.close()
