"""Clients that leave, half or whole, and those that are let in no more while they read."""

import http.client
import socket
from pathlib import Path
from typing import Final

import pytest

from segue.log.options import SyncName
from segue.server import threads
from segue.server.protocol import Connection
from segue.server.tokens import remove_token
from tests.http_server import shared_http_server
from tests.unit.server_support import Place, all_of, cut, new_token, placed, until

WAIT: Final = b'{"wait": 30}'
"""Longer than anybody here has patience: what is not seen at once is not seen."""
MESSAGE_BYTES: Final = 1_000_000
MESSAGES: Final = 40
"""Many more bytes than what lies between a server and a client that does not read."""


def pop(place: Place, body: bytes = WAIT) -> bytes:
    """Return a request that takes a message, and waits for it."""
    return place.head("POST", "/api/v1/queues/jobs/pop", f"Content-Length: {len(body)}") + body


def there(connection: socket.socket) -> Connection:
    """Return the server's side of a connection."""
    mine = connection.getsockname()
    connections = shared_http_server()._server.server_state.connections
    (found,) = (each for each in connections if getattr(each, "client", None) == mine)
    assert isinstance(found, Connection)
    return found


def leave(connection: socket.socket, place: Place, how: str) -> None:
    """Close a connection, and return once the server can know."""
    if how == "cut":
        cut(connection)
    else:
        connection.close()
    for _ in range(3):
        place.ask("GET", "/live")  # The loop has come round since.


# Requests sent ahead ---------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("how", ["closed", "cut"])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_nothing_is_taken_for_who_left_after_asking_for_more(
    scratch: Path, how: str, sync: SyncName, is_at_once: bool
) -> None:
    """It is the request under way that must know, not the one that came last."""
    with placed(scratch, sync=sync) as place:
        line = place.connected()
        more = place.head("GET", "/api/v1") * 2
        line.sendall(pop(place) + more if is_at_once else pop(place))
        until(lambda: place.app.waiting.count == 1)
        if not is_at_once:
            line.sendall(more)
        until(lambda: len(there(line).pipeline) == 2)
        leave(line, place, how)
        place.push("jobs")
        until(lambda: place.app.waiting.count == 0)
        ready = place.count("jobs")["ready"]

    assert ready == 1


def test_nothing_is_taken_for_who_left_after_sending_garbage(scratch: Path) -> None:
    """What cannot be understood is no reason not to see that nobody listens any more."""
    with placed(scratch) as place:
        line = place.connected()
        line.sendall(pop(place))
        until(lambda: place.app.waiting.count == 1)
        line.sendall(b"\x00\x01garbage\r\n\r\n")
        leave(line, place, "cut")
        place.push("jobs")
        until(lambda: place.app.waiting.count == 0)
        ready = place.count("jobs")["ready"]

    assert ready == 1


def test_headers_behind_a_request_under_way_take_no_more_memory_than_they_may(
    scratch: Path,
) -> None:
    """What comes behind the limit is read, to see whether the client leaves, and not kept."""
    with placed(scratch) as place:
        line = place.connected()
        line.sendall(pop(place) + b"GET /live HTTP/1.1\r\n")
        until(lambda: place.app.waiting.count == 1)
        connection = there(line)
        line.sendall(b"x-more: %b\r\n" % (b"x" * 1_000) * 10_000)
        leave(line, place, "cut")
        place.push("jobs")
        until(lambda: place.app.waiting.count == 0)
        ready = place.count("jobs")["ready"]

    assert len(connection.headers) < 1_000
    assert ready == 1


def test_who_closes_its_half_is_answered_all_that_was_asked(scratch: Path) -> None:
    """In order, though nothing is taken for somebody who may as well be gone."""
    with placed(scratch) as place, place.connected() as line:
        line.sendall(pop(place) + place.head("GET", "/live") * 2)
        until(lambda: place.app.waiting.count == 1)
        line.shutdown(socket.SHUT_WR)
        place.ask("GET", "/live")
        place.push("jobs")
        answers = all_of(line)
        ready = place.count("jobs")["ready"]

    assert answers.count(b"HTTP/1.1 200") == 3
    assert answers.count(b'{"messages":[]}') == 1
    assert ready == 1


@pytest.mark.parametrize("is_in_body", [False, True])
def test_requests_before_garbage_are_answered(scratch: Path, is_in_body: bool) -> None:
    """All of them, and then the connection ends."""
    with placed(scratch) as place, place.connected() as line:
        chunked = place.head("POST", "/api/v1/queues/jobs/pop", "Transfer-Encoding: chunked")
        line.sendall(pop(place, b'{"wait":0.1}') + place.head("GET", "/live"))
        line.sendall((chunked if is_in_body else b"") + b"\x00garbage\r\n\r\n")
        answers = all_of(line)

    assert answers.count(b"HTTP/1.1 200") == 2
    assert b"HTTP/1.1 400" not in answers


def test_no_more_is_read_from_who_asks_for_much_ahead(scratch: Path) -> None:
    """What waits for its turn takes memory; all of it is answered in the end."""
    with placed(scratch) as place, place.connected() as line:
        line.sendall(pop(place))
        until(lambda: place.app.waiting.count == 1)
        line.sendall(place.head("GET", "/live") * 100)
        until(lambda: there(line).flow.read_paused)
        line.sendall(place.head("GET", "/live", "Connection: close"))
        place.push("jobs", "for the first")
        answers = all_of(line)

    assert answers.count(b"HTTP/1.1 200") == 102
    assert b"for the first" in answers


# Half of a connection --------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/v1/queues/jobs/pop", "/api/v1/queues/jobs/lease"])
def test_who_closed_its_half_while_it_waited_for_a_thread_is_told_that_nothing_was_done(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """As a problem that a client can act upon, and none for the server's log."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    with placed(scratch, sync="always") as place:
        place.push("jobs")
        with place.connected() as line:
            with place.busy_threads(1):
                line.sendall(place.head("POST", path, "Content-Length: 2") + b"{}")
                until(lambda: place.app.threads.pending == 1)
                line.shutdown(socket.SHUT_WR)
                for _ in range(2):
                    place.ask("GET", "/live")  # The loop has come round since.
            answer = all_of(line)
        counts = place.count("jobs")

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code": "overloaded"' in answer
    assert b"retry-after: " in answer
    assert (counts["ready"], counts["leased"]) == (1, 0)
    assert caplog.text == ""


def test_who_closed_the_connection_while_it_waited_for_a_thread_leaves_no_trace(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients come and go: that is nothing for a log of errors."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    with placed(scratch, sync="always") as place:
        place.push("jobs")
        with place.busy_threads(1):
            line = place.connected()
            line.sendall(pop(place) + place.head("GET", "/live"))
            until(lambda: place.app.threads.pending == 1)
            leave(line, place, "closed")
        until(lambda: place.app.threads.pending == 0)
        ready = place.count("jobs")["ready"]

    assert ready == 1
    assert caplog.text == ""


# Tokens that are good no more ------------------------------------------------------------------


def test_a_long_answer_is_cut_off_when_its_token_is_taken_back(scratch: Path) -> None:
    """Whoever is let in no more is told nothing more, and does not take what came for all."""
    tokens = scratch / "tokens.json"
    new_token(tokens, "admin")
    token, said = new_token(tokens, "read")
    with placed(scratch / "data", tokens=tokens) as place:
        for _ in range(MESSAGES):
            place.store.queue("jobs").push(b"x" * MESSAGE_BYTES)
        with place.asked("GET", "/api/v1/queues/jobs/history", authorization=said) as stream:
            stream.readline()
            remove_token(tokens, token.id)
            known = place.app.guard.tokens
            assert known is not None
            known._look_at = 0
            with pytest.raises(http.client.IncompleteRead) as cut_off:
                stream.read()

    assert len(cut_off.value.partial) < (MESSAGES - 5) * MESSAGE_BYTES
