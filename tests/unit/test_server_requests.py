"""Answers that are remembered: what is in their books, and which of them a line takes up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.server import requests
from segue.server.requests import Remembered, Requests
from segue.stores.opening import open_directory, open_http
from tests.http_proxy import Impostor, answer_of
from tests.unit.server_support import Place, placed
from tests.waiting import LIMIT_SECONDS

LINE = b"segue-line:a/"


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    """A directory behind a server."""
    with placed(scratch) as place:
        yield place


def answered(books: Requests, key: bytes, body: bytes = b"") -> Remembered:
    """Ask under a key, and answer."""
    known = books.begin(key, 1)
    books.end(key, known, 200, (), body)
    return known


# The books -------------------------------------------------------------------------------


def test_an_answer_is_remembered_from_when_it_was_given() -> None:
    """A request may take longer than answers are remembered: its repetition comes after that."""
    books = Requests()
    known = books.begin(b"slow", 1)
    known.since -= 2 * requests.REMEMBERED_SECONDS
    books.end(b"slow", known, 200, (), b"done")

    assert books.find(b"slow") is known


@pytest.mark.parametrize("line", [LINE, b"evil/"])
def test_answers_that_came_after_the_next_of_their_line_leave_the_books_right(
    monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Whoever asks ahead of its answers takes nobody's room, however often it does."""
    monkeypatch.setattr(requests, "REMEMBERED_BYTES_MAX", 20_000)
    books = Requests()
    for number in range(1, 100, 2):
        slow = books.begin(line + b"%d" % number, 1)
        answered(books, line + b"%d" % (number + 1))
        books.end(line + b"%d" % number, slow, 200, (), b"x" * 1_000)
    victim = answered(books, b"victim", b"y" * 1_000)

    assert books.find(b"victim") is victim


def test_what_is_forgotten_leaves_nothing_in_the_books() -> None:
    """What is counted is what is remembered: nothing is left over when all is forgotten."""
    books = Requests()
    first, second = books.begin(LINE + b"1", 1), books.begin(LINE + b"2", 1)
    books.end(LINE + b"1", first, 200, (), b"x" * 1_000)
    books.give_up(LINE + b"2", second)
    books.give_up(LINE + b"2", second)

    assert (books.count, books._bytes, books._last) == (0, 0, {})


def test_giving_up_a_request_forgets_no_later_one_under_its_key() -> None:
    """Who gave up once does not take back what another try did."""
    books = Requests()
    first = books.begin(b"key", 1)
    books.give_up(b"key", first)
    second = answered(books, b"key", b"done")
    books.give_up(b"key", first)

    assert books.find(b"key") is second


def test_an_answer_to_a_request_that_was_given_up_is_not_remembered() -> None:
    """The books know one request under a key, and it is the last that began."""
    books = Requests()
    first = books.begin(b"key", 1)
    books.give_up(b"key", first)
    second = books.begin(b"key", 1)
    books.end(b"key", first, 200, (), b"x" * 1_000)

    assert books.find(b"key") is second
    books.give_up(b"key", second)
    assert (books.count, books._bytes) == (0, 0)


# Lines -----------------------------------------------------------------------------------


def test_a_line_takes_up_one_answer() -> None:
    """A new number says that the last answer arrived."""
    books = Requests()
    for number in range(1, 50):
        answered(books, LINE + b"%d" % number, b"x")

    assert books.count == 1
    assert books.find(LINE + b"49") is not None


def test_a_request_under_way_is_known_though_the_next_of_its_line_has_begun() -> None:
    """Who asked may still repeat it, and must not do it twice by that."""
    books = Requests()
    first = books.begin(LINE + b"1", 1)
    books.begin(LINE + b"2", 1)

    assert books.find(LINE + b"1") is first


def test_a_lower_number_of_a_line_forgets_no_higher_one() -> None:
    """Only what comes later says that an answer arrived."""
    books = Requests()
    third = answered(books, LINE + b"3")
    answered(books, LINE + b"2")
    books.begin(LINE + b"1", 1)

    assert books.find(LINE + b"3") is third


@pytest.mark.parametrize(
    "keys",
    [
        ("order/1002", "order/1001"),
        ("order/1001", "order/1002"),
        ("segue-line", "segue-line/1"),
        ("segue-line:x/02", "segue-line:x/01"),
        ("a/b/2", "a/b/1"),
    ],
)
def test_keys_of_others_are_remembered_each_on_its_own(place: Place, keys: tuple[str, str]) -> None:
    """Any text is a key, in whichever order they come: what has one is done once."""
    first = [place.push("jobs", key, idempotency_key=key).json for key in keys]
    again = [place.push("jobs", key, idempotency_key=key).json for key in keys]

    assert again == first
    assert place.count("jobs")["ready"] == 2


def test_a_line_whose_request_was_told_to_come_again_is_asked_nothing_else() -> None:
    """Its key is asked again: a later number on its line would say that it was answered."""
    about = b'{"server":"segue","version":"1","api":1,"store":"file","durable":"os"}'
    busy = answer_of(503, b'{"code":"overloaded","detail":"too much"}', retry_after="0")
    done = answer_of(200, b'{"ids":["0-0"]}')
    with (
        Impostor(answer_of(200, about), busy, done, done) as server,
        open_http(f"{server.url}?retry={LIMIT_SECONDS:g}") as store,
    ):
        store.queue("jobs").push(b"1")
        store.queue("jobs").push(b"2")
        keys = [_key(request) for request in server.requests[1:]]

    refused, repeated, later = keys
    assert repeated == refused
    assert later.rpartition(b"/")[0] != refused.rpartition(b"/")[0]


# What was not done -----------------------------------------------------------------------


def removed_elsewhere(place: Place, queue: str, *bodies: bytes) -> None:
    """Remove a queue as another process does, and make it anew with these messages."""
    with open_directory(place.store.place.root, sync="os") as other:
        other.remove_queue(queue)
        for body in bodies:
            other.queue(queue).push(body)


def test_what_dapr_was_told_was_not_done_is_tried_anew_under_its_key(place: Place) -> None:
    """As everywhere: "nothing was done" is no answer to remember, and it is told as Dapr does."""
    path = "/v1.0/actors/PushPopActor/jobs/method/Push"
    place.ask("POST", path, {"item": {}})
    removed_elsewhere(place, "jobs")
    first, again = (place.ask("POST", path, {"item": {}}, idempotency_key="once") for _ in range(2))

    assert (first.status, first.json["errorCode"]) == (503, "ERR_STORE_CLOSED")
    assert "message" in first.json
    assert "retry-after" in first.headers
    assert (again.status, again.data) == (200, b"true")
    assert place.count("jobs")["ready"] == 1


def test_metrics_find_a_queue_that_was_removed_and_made_anew(place: Place) -> None:
    """Who only looks at them would else see nothing of it until somebody asks for the queue."""
    place.push("jobs")
    removed_elsewhere(place, "jobs", b"1", b"2")
    place.ask("GET", "/metrics")
    lines = place.ask("GET", "/metrics").data.decode().splitlines()

    assert 'segue_queue_messages{queue="jobs",state="ready"} 2.0' in lines


def _key(request: bytes) -> bytes:
    (line,) = (each for each in request.split(b"\r\n") if each.startswith(b"Idempotency-Key:"))
    return line.partition(b":")[2].strip()
