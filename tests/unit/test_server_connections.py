"""Connections that end: those that nobody uses, and those that mean two servers at once."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.server import serving
from segue.server.building import build_app
from segue.server.protocol import Connection
from segue.server.serving import ServerThread
from segue.stores.opening import open_directory
from tests.unit.server_support import Place, all_of, new_token, placed, until
from tests.waiting import LIMIT_SECONDS

LOOKED = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"POST /queue/jobs/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
KEEP_ALIVE_SECONDS = 0.3
PAUSE_SECONDS = 0.05


@pytest.fixture
def server(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """A server that asks for a token, and keeps nothing open for long that nobody uses."""
    monkeypatch.setattr(serving, "KEEP_ALIVE_SECONDS", KEEP_ALIVE_SECONDS)
    tokens = scratch / "tokens.json"
    new_token(tokens, "admin")
    with open_directory(scratch / "data", sync="os") as store:
        app = build_app(store, tokens=tokens, has_audit=False)
        with ServerThread(app) as server:
            yield server


def connected(server: ServerThread) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_SECONDS)


# Nobody uses it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        pytest.param(LOOKED, b"\r\n", id="a blank line"),
        pytest.param(LOOKED, b"\r", id="half of one"),
        pytest.param(HEAD + b"{", b" ", id="some of a body that was refused"),
        pytest.param(HEAD, b"", id="nothing of it"),
        pytest.param(LOOKED, b"", id="nothing"),
    ],
)
def test_a_connection_on_which_nothing_is_asked_ends(
    server: ServerThread, asked: bytes, more: bytes
) -> None:
    """Whatever came since the last answer, if it was no request."""
    with connected(server) as line:
        line.sendall(asked)
        answer = line.recv(65_536)
        line.sendall(more)
        rest = all_of(line)

    assert answer.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 " not in rest


@pytest.mark.parametrize(
    ("asked", "piece"),
    [
        pytest.param(LOOKED, b"\r\n", id="blank lines"),
        pytest.param(HEAD + b"{", b" ", id="a body that was refused"),
    ],
)
def test_who_sends_a_little_now_and_then_keeps_no_connection(
    server: ServerThread, asked: bytes, piece: bytes
) -> None:
    """Else a byte a minute would hold one for a month."""
    is_over = threading.Event()

    def trickle() -> None:
        try:
            while not is_over.wait(PAUSE_SECONDS):
                line.sendall(piece)
        except OSError:
            pass  # The connection is closed.

    with connected(server) as line:
        line.sendall(asked)
        line.recv(65_536)
        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            until(lambda: not server._server.server_state.connections)
        finally:
            is_over.set()
            sender.join()


@pytest.mark.parametrize("is_split", [False, True])
def test_a_request_ends_the_idle_time_of_its_connection(scratch: Path, is_split: bool) -> None:
    """Also if its head had begun before the last request was answered."""
    with open_directory(scratch, sync="os") as store:
        app = build_app(store, has_audit=False)
        with ServerThread(app) as server, connected(server) as line:
            place = Place(store, app, server.url)
            first = 20 if is_split else 0
            line.sendall(place.head("GET", "/live") + waited_for(place)[:first])
            line.recv(65_536)
            (connection,) = server._server.server_state.connections
            assert isinstance(connection, Connection)
            until(lambda: connection.timeout_keep_alive_task is not None)
            line.sendall(waited_for(place)[first:])
            until(lambda: connection.timeout_keep_alive_task is None)
            store.queue("jobs").push(b"x")
            answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"id"' in answer


def waited_for(place: Place) -> bytes:
    """Return a request that is answered when a message is pushed, the last on its connection."""
    body = b'{"wait": %f}' % LIMIT_SECONDS
    said = (f"Content-Length: {len(body)}", "Connection: close")
    return place.head("POST", "/api/v1/queues/jobs/pop", *said) + body


# Two hosts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["localhost", "evil.example", ""])
def test_a_request_to_two_hosts_is_refused(scratch: Path, other: str) -> None:
    """Who stands between may have gone by the one, and we would go by the other."""
    with placed(scratch) as place, place.connected() as line:
        line.sendall(place.head("GET", "/api/v1", f"hOST: {other}"))
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code": "invalid_request"' in answer


def test_each_request_on_a_connection_has_a_host_of_its_own(scratch: Path) -> None:
    """One after another is not two at once."""
    with placed(scratch) as place, place.connected() as line:
        line.sendall(place.head("GET", "/api/v1") * 2)
        line.sendall(place.head("GET", "/api/v1", "Connection: close"))
        answers = all_of(line)

    assert answers.count(b"HTTP/1.1 200") == 3
