"""What one client can make a server hold: names, bodies, sessions, segments, connections."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest

from segue.log.options import SyncName
from segue.server import app, asgi, bodies, open_queues, sessions, threads
from segue.server.refusal import Refused
from segue.server.routes import queues, segments
from segue.server.sessions import Sessions
from segue.stores.arguments import COUNT_MAX
from segue.stores.contract import Queue
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory, open_http
from tests.unit.server_support import (
    Place,
    all_of,
    messages,
    new_token,
    placed,
    until,
)
from tests.waiting import LIMIT_SECONDS

T = TypeVar("T")

TOO_LARGE = "Content-Length: 99999999999"
SEGMENT = "/api/v1/topics/orders/segments/0/0"


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


# Names that are not there --------------------------------------------------------------------


REFUSED = {"messages": [{"body": "x", "priority": -1}]}
"""What is wrong with it only the queue can tell."""


def test_names_that_are_not_there_are_let_go_of(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is refused at many names keeps few of them open, and is told nothing else."""
    monkeypatch.setattr(open_queues, "PHANTOMS_MAX", 5)
    asked = [place.ask("POST", messages(f"none{number}"), REFUSED) for number in range(20)]

    assert {answer.status for answer in asked} == {400}
    assert len(place.app.queues.phantoms) <= 5
    assert len(place.app.queues.opened) <= 5
    assert len(place.store._queues) <= 5


def test_one_token_that_makes_many_names_shuts_out_no_other(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to come again, when as many of its requests are under way; others are served."""
    monkeypatch.setattr(open_queues, "PHANTOMS_MAX", 3)
    token, greedy = new_token(scratch / "tokens.json", "produce")
    _, other = new_token(scratch / "tokens.json", "produce")
    with placed(scratch / "data", tokens=scratch / "tokens.json") as place:
        for number in range(3):
            place.app.queues.begin_use(f"none{number}")
            place.app.queues.make(f"none{number}", token.id)
        refused = place.push("more", Authorization=greedy)
        served = [place.push(f"other{number}", Authorization=other) for number in range(5)]
        place.app.queues.end_use("none0")
        again = place.push("more", Authorization=greedy)

    assert (refused.status, refused.code) == (429, "too_many_names")
    assert refused.headers["retry-after"] == "1"
    assert {answer.status for answer in served} == {200}
    assert again.status == 200


def test_names_that_were_looked_at_keep_nobody_from_making_a_queue(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may only read must not be able to shut out who may push."""
    monkeypatch.setattr(open_queues, "PHANTOMS_MAX", 3)
    asked = [place.ask("GET", f"/api/v1/queues/none{number}/count") for number in range(10)]
    pushed = place.push("orders")

    assert {answer.status for answer in asked} == {200}
    assert pushed.status == 200
    assert [path.name for path in (place.store.place.root / "queues").iterdir()] == ["orders"]


@pytest.mark.parametrize("body", [b"x", b'{"messages": [{"bdy": 1}]}'])
def test_a_push_that_makes_no_sense_opens_no_queue(place: Place, body: bytes) -> None:
    """Whoever sends nonsense to a thousand names would have a thousand queues open."""
    answer = place.ask("POST", messages("orders"), body)

    assert answer.status == 400
    assert place.app.queues.opened == {}
    assert not list((place.store.place.root / "queues").glob("*"))


def test_an_ack_takes_so_many_receipts_and_no_more(place: Place) -> None:
    """As many as one lease gives: the queue is held up meanwhile."""
    place.push("jobs")
    path = "/api/v1/queues/jobs/ack"
    most = place.ask("POST", path, {"receipts": ["0-9/9"] * COUNT_MAX})
    more = place.ask("POST", path, {"receipts": ["0-9/9"] * (COUNT_MAX + 1)})

    assert (most.status, most.code) == (410, "lease_lost")
    assert (more.status, more.code) == (400, "invalid_body")


def test_queues_that_came_to_be_are_no_names_that_are_not_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are made, each was asked for before it was there."""
    monkeypatch.setattr(open_queues, "PHANTOMS_MAX", 3)
    pushed = [place.push(f"orders{number}") for number in range(10)]

    assert {answer.status for answer in pushed} == {200}
    assert len(place.store.queues()) == 10


# Opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "messages", {"messages": [{"body": "x"}]}),
        ("POST", "pop", {}),
        ("POST", "lease", {}),
        ("POST", "wait", {"timeout": 0}),
        ("GET", "count", None),
    ],
)
def test_a_queue_is_opened_in_a_thread(
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    sync: SyncName,
    method: str,
    path: str,
    body: object,
) -> None:
    """To open one is to read what became of its messages: everybody would wait for that."""
    openers: list[str] = []
    real = FileStore.queue

    def queue(store: FileStore, name: str) -> Queue:
        openers.append(threading.current_thread().name)
        return real(store, name)

    with open_directory(scratch, sync="os") as store:
        store.queue("jobs").push(b"x")
    monkeypatch.setattr(FileStore, "queue", queue)
    with placed(scratch, sync=sync) as place:
        answer = place.ask(method, f"/api/v1/queues/jobs/{path}", body)

    assert answer.status in (200, 204)
    assert [name.rpartition("_")[0] for name in openers] == ["segue-serve"]


# Bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/live", "/api/v1/queues", "/api/v1/queues/q/count"])
def test_a_request_that_takes_no_body_takes_no_large_one(place: Place, path: str) -> None:
    """Whoever needs no token to ask must not fill the room that others need."""
    answer = place.ask("GET", path, b"x" * 100_000)

    assert (answer.status, answer.code) == (413, "body_too_large")
    assert place.app.bodies._bytes == 0
    assert place.ask("GET", path, b"x").status in (200, 503)


@pytest.mark.parametrize("count", [9, 128])
def test_a_body_in_chunks_is_no_larger_than_it_may_be(
    place: Place, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Who does not say beforehand how much it is has the same limit, however it arrives."""
    monkeypatch.setattr(asgi, "DISCARDING_SECONDS", 0.5)
    chunk = b"2000\r\n" + b"x" * 0x2000 + b"\r\n"
    with place.connected() as line:
        said = ("Transfer-Encoding: chunked", "Connection: close")
        line.sendall(place.head("GET", "/live", *said))
        line.sendall(chunk * count + b"0\r\n\r\n")
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 413")
    assert place.app.bodies._bytes == 0


def test_bodies_that_wait_for_a_thread_are_in_the_books(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is held until it was dealt with, and counted for so long."""
    monkeypatch.setattr(threads, "THREADS_MAX", 1)
    monkeypatch.setattr(bodies, "BODIES_BYTES_MAX", 3 << 19)
    large = "x" * (1 << 20)
    with placed(scratch, sync="always") as place, ThreadPoolExecutor(1) as callers:
        place.push("jobs")
        with place.busy_threads(1):
            first = callers.submit(place.push, "jobs", large)
            until(lambda: place.app.threads.pending == 1)
            held_bytes = place.app.bodies._bytes
            refused = place.push("jobs", large)
        answered = first.result(LIMIT_SECONDS)
        until(lambda: place.app.bodies._bytes == 0)
        again = place.push("jobs", large)

    assert held_bytes > len(large)
    assert (refused.status, refused.code) == (503, "overloaded")
    assert (answered.status, again.status) == (200, 200)


# Refusals ------------------------------------------------------------------------------------


def test_a_refusal_of_a_body_that_was_read_is_told_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing more to come, so nothing is waited for, and the connection goes on."""
    monkeypatch.setattr(asgi, "DISCARDING_SECONDS", 10 * LIMIT_SECONDS)
    body = b"[" + b"1," * 50_000
    asked = place.head("POST", messages("jobs"), f"Content-Length: {len(body)}") + body
    with place.connected() as line:
        line.sendall(asked)
        line.sendall(place.head("GET", "/live", "Connection: close"))
        first, _, second = all_of(line).partition(b"HTTP/1.1 ")[2].partition(b"HTTP/1.1 ")

    assert first.startswith(b"400 ")
    assert b"connection: close" not in first.lower()
    assert second[:3] in (b"200", b"503")


def test_an_overloaded_server_says_so_at_once(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was sent: it was read to its end."""
    monkeypatch.setattr(asgi, "DISCARDING_SECONDS", 10 * LIMIT_SECONDS)
    with placed(scratch, sync="always") as place:
        place.push("jobs")
        monkeypatch.setattr(threads, "PENDING_MAX", 0)
        answer = place.push("jobs", "x" * 100_000)

    assert (answer.status, answer.code) == (503, "overloaded")
    assert "connection" not in answer.headers


def test_who_is_refused_is_not_asked_to_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To "100 Continue" a client answers with all of a body that nobody wants."""
    monkeypatch.setattr(asgi, "DISCARDING_SECONDS", 0.02)
    with place.connected() as line:
        line.sendall(place.head("POST", messages("jobs"), "Expect: 100-continue", TOO_LARGE))
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


def test_who_is_not_let_in_is_not_asked_to_go_on(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before nor after it is known who asks."""
    monkeypatch.setattr(asgi, "DISCARDING_SECONDS", 0.02)
    new_token(scratch / "tokens.json", "admin")
    with (
        placed(scratch / "data", tokens=scratch / "tokens.json") as place,
        place.connected() as line,
    ):
        head = place.head("POST", messages("jobs"), "Expect: 100-continue", "Content-Length: 99999")
        line.sendall(head)
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 401")


def test_a_connection_whose_request_was_not_read_to_its_end_is_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its client may send the rest a byte at a time, for ever."""
    monkeypatch.setattr(asgi, "DISCARDING_SECONDS", 0.02)
    with place.connected() as line:
        line.sendall(place.head("POST", messages("jobs"), TOO_LARGE) + b"x")
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


def test_a_short_request_that_is_refused_costs_no_connection(place: Place) -> None:
    """What is left of it is little."""
    with place.connected() as line:
        line.sendall(place.head("POST", "/nothing", "Content-Length: 5") + b"hello")
        line.sendall(place.head("GET", "/live", "Connection: close"))
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.count(b"HTTP/1.1 ") == 2


# Sessions ------------------------------------------------------------------------------------


def test_too_many_sessions_are_a_reason_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with what was asked: there will be room."""
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    held = Sessions(lambda: 0)
    for _ in range(2):
        held.open("reader", "orders", None, lambda: None, 30)
    with pytest.raises(Refused) as refused:
        held.open("reader", "orders", None, lambda: None, 30)

    assert refused.value.problem.status == 503
    assert refused.value.problem.retry_after_seconds


def test_the_reading_called_longest_ago_makes_room_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client that begins many shuts nobody out."""
    monkeypatch.setitem(sessions.KIND_MAX, "reading", 2)
    now_us = 0
    closed: list[str] = []
    held = Sessions(lambda: now_us)
    names = []
    for name in "ab":
        now_us += 1
        names.append(held.open("reading", "orders", None, lambda n=name: closed.append(n), 30).id)  # type: ignore[misc]
    now_us += 1
    held.get("reading", "orders", names[0])
    held.open("reading", "orders", None, lambda: closed.append("c"), 30)

    assert closed == ["b"]
    assert held.get("reading", "orders", names[0]).id == names[0]


def test_who_made_room_for_others_reads_on_where_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings that were let go of begin anew, and nobody sees a difference."""
    monkeypatch.setitem(sessions.KIND_MAX, "reading", 1)
    whole = [b"%d" % number for number in range(20)]
    place.store.topic("orders", partitions=1).append_many(whole)
    with open_http(place.url) as store:
        readings = [store.topic("orders").records() for _ in range(3)]
        begun = [[record.value for record in islice(each, 1)] for each in readings]
        rest = [[record.value for record in each] for each in readings]

    assert [first + more for first, more in zip(begun, rest, strict=True)] == [whole] * 3


# Segments ------------------------------------------------------------------------------------


@pytest.fixture
def one_segment(place: Place, monkeypatch: pytest.MonkeyPatch) -> threading.BoundedSemaphore:
    """A segment, and room for one that is being sent."""
    topic = place.store.topic("orders", partitions=1)
    topic.append(b"x")
    topic.roll()
    room = threading.BoundedSemaphore(1)
    monkeypatch.setattr(segments, "_SENDING", room)
    return room


def test_as_many_segments_are_sent_at_once_as_may_be(
    place: Place, one_segment: threading.BoundedSemaphore
) -> None:
    """Each lies in a file while its reader is slow; who comes later is told to come again."""
    one_segment.acquire()
    refused = place.ask("GET", SEGMENT)
    one_segment.release()
    answers = [place.ask("GET", SEGMENT) for _ in range(3)]

    assert (refused.status, refused.code) == (503, "overloaded")
    assert "retry-after" in refused.headers
    assert {answer.status for answer in answers} == {200}


@pytest.mark.parametrize(
    ("method", "path"), [("HEAD", SEGMENT), ("GET", SEGMENT.removesuffix("0") + "99")]
)
def test_a_segment_of_which_nothing_is_sent_leaves_its_place(
    place: Place, one_segment: threading.BoundedSemaphore, method: str, path: str
) -> None:
    """Also one that is not there, or of which only the head is asked for."""
    place.ask(method, path)

    assert place.ask("GET", SEGMENT).status == 200


def test_a_segment_whose_first_piece_gets_no_thread_leaves_its_place(
    place: Place, one_segment: threading.BoundedSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else after some of them no segment is sent until the server is started anew."""
    real = place.app.in_thread
    steps = 0

    def in_thread(step: Callable[[], T], *names: str) -> Awaitable[T]:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise Refused(503, "overloaded", "too many requests are under way", retry=1)
        return real(step, *names)

    monkeypatch.setattr(place.app, "in_thread", in_thread)
    refused = place.ask("GET", SEGMENT)

    assert (refused.status, steps) == (503, 2)
    assert place.ask("GET", SEGMENT).status == 200


@pytest.mark.parametrize(("limit", "value"), [("STATE_MESSAGES_MAX", 3), ("STATE_BYTES_MAX", 9)])
def test_the_state_of_a_queue_with_very_much_in_it_is_shown_key_by_key(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """All of it would be in memory at once, and whoever may look could ask for it."""
    monkeypatch.setattr(queues, limit, value)
    with placed(scratch) as place:
        place.store.queue("jobs").push_many([b"%d" % number for number in range(4)])
        refused = place.ask("GET", "/api/v1/queues/jobs/state")
        metadata = place.ask("GET", "/api/v1/queues/jobs/state?key=metadata").json
        segment = place.ask("GET", "/api/v1/queues/jobs/state?key=queue_0_seg_0").json
        none = place.ask("GET", "/api/v1/queues/jobs/state?key=queue_0_seg_1").json
        actor = place.ask("GET", "/v1.0/actors/PushPopActor/jobs/state/queue_0_seg_0")

    assert (refused.status, refused.code) == (413, "batch_too_large")
    assert "metadata" in str(metadata["state"])
    assert segment == {"state": {"queue_0_seg_0": [0, 1, 2, 3]}}
    assert none == {"state": {}}
    assert actor.data == b"[0, 1, 2, 3]"


def test_so_many_lists_are_sent_at_once_and_no_more(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds some of what it reads, for as long as its client takes; others come again."""
    monkeypatch.setattr(app, "STREAMS_MAX", 1)
    path = "/api/v1/queues/jobs/history"
    place.store.queue("jobs").push_many([b"x" * 100_000] * 300)
    with place.asked("GET", path) as slow:
        slow.read(1)
        refused = place.ask("GET", path)
    until(lambda: place.app._streams == 0)
    again = place.ask("GET", path)

    assert (refused.status, refused.code) == (503, "overloaded")
    assert "retry-after" in refused.headers
    assert again.status == 200
