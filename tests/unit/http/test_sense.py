"""Answers that have the right fields and make no sense: an error of ours, and nobody else's."""

from typing import Final

import pytest
from msgspec.json import encode

from segue.errors import Damage, SegueError, StoreUnavailable, UnsupportedServer
from segue.stores.http.store import HttpStore
from segue.stores.opening import open_http
from tests.http_proxy import Impostor, answer_of
from tests.unit.http.support import ABOUT, Act, asked

TOO_LATE_US: Final = 10**18
"""A time that no calendar has."""

Json = dict[str, object]


# Queues ----------------------------------------------------------------------------------------


def message(**fields: object) -> Json:
    return {"id": "0-0", "body": "x", **fields}


def job(**fields: object) -> Json:
    return {**message(), "receipt": "0-0/1", "tries": 1, **fields}


def letter(**fields: object) -> Json:
    return {
        "message": message(),
        "cause": "dead",
        "reason": "",
        "died_us": 1,
        "number": 0,
        "deliveries": 1,
        "tries": 1,
        **fields,
    }


QUEUE_CASES: Final[dict[str, tuple[Act, object]]] = {
    "a push without an id": (lambda store: store.queue("q").push(b"x"), {"ids": []}),
    "more ids than messages": (
        lambda store: store.queue("q").push_many([b"x"]),
        {"ids": ["0-0", "0-1"]},
    ),
    "a receipt that is none": (
        lambda store: store.queue("q").lease(),
        {"jobs": [job(receipt="nonsense")], "ttl": 1},
    ),
    "a lease that is over": (lambda store: store.queue("q").lease(), {"jobs": [job()], "ttl": 0}),
    "a lease of less than nothing": (
        lambda store: store.queue("q").lease(),
        {"jobs": [job()], "ttl": -5},
    ),
    "a lease for ever": (
        lambda store: store.queue("q").lease(),
        {"jobs": [job()], "ttl": 1e300},
    ),
    "more jobs than asked for": (
        lambda store: store.queue("q").lease(),
        {"jobs": [job(), job(receipt="0-1/2")], "ttl": 1},
    ),
    "more messages than asked for": (
        lambda store: store.queue("q").pop(),
        {"messages": [message(), message(id="0-1")]},
    ),
    "more to see than asked for": (
        lambda store: store.queue("q").peek(),
        {"messages": [message(), message(id="0-1")]},
    ),
    "a message of no time": (
        lambda store: store.queue("q").pop(),
        {"messages": [message(pushed_us=TOO_LATE_US)]},
    ),
    "a letter of no time": (
        lambda store: list(store.queue("q").dead_letters()),
        letter(died_us=TOO_LATE_US),
    ),
    "rules that cannot be": (lambda store: store.queue("q").rules, {"max_leases": -4}),
    "a state that is a list": (lambda store: store.queue("q").state(), {"state": [1]}),
    "a state that is nothing": (lambda store: store.queue("q").state(), [1]),
    "fewer than none": (
        lambda store: store.queue("q").count(),
        {"ready": -1, "delayed": 0, "leased": 0, "dead": 0},
    ),
    "fewer than none purged": (lambda store: store.queue("q").purge(), {"count": -1}),
}


@pytest.mark.parametrize("case", QUEUE_CASES)
def test_what_a_queue_cannot_answer_is_a_server_that_we_do_not_know(case: str) -> None:
    """Neither the caller's mistake nor an error of Python's."""
    act, answer = QUEUE_CASES[case]
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(act, encode(answer))


def test_what_is_told_of_nonsense_is_short() -> None:
    """However much was answered: it ends up in logs."""
    answer = {"jobs": [job(receipt="x" * 100_000)], "ttl": 1}
    with pytest.raises(UnsupportedServer) as refusal:
        asked(lambda store: store.queue("q").lease(), encode(answer))

    assert len(str(refusal.value)) < 500


# Locks and rings -------------------------------------------------------------------------------

LOCK_CASES: Final[dict[str, tuple[Act, object]]] = {
    "a token below all": (lambda store: store.lock("l").acquire(wait=0), {"token": 0}),
    "a negative token": (lambda store: store.lock("l").acquire(wait=0), {"token": -1}),
    "a wait without end": (
        lambda store: store.lock("l").acquire(wait=0),
        {"token": 1, "waited": 1e308},
    ),
    "a wait of less than nothing": (
        lambda store: store.lock("l").acquire(wait=0),
        {"token": 1, "waited": -1},
    ),
    "a holder without a token": (
        lambda store: store.lock("l").holder(),
        {"owner": "ada", "token": 0, "seconds_left": 1},
    ),
    "an entry of no time": (
        lambda store: store.ring("r", capacity=4).get(0),
        {"offset": 0, "time_us": TOO_LATE_US, "body": "x"},
    ),
    "an entry at no place": (
        lambda store: store.ring("r", capacity=4).enqueue(b"x"),
        {"offset": -1},
    ),
}


@pytest.mark.parametrize("case", LOCK_CASES)
def test_what_a_lock_or_ring_cannot_answer_is_a_server_that_we_do_not_know(case: str) -> None:
    """A token that is not above all before it guards nothing."""
    act, answer = LOCK_CASES[case]
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(act, encode(answer))


# Topics ----------------------------------------------------------------------------------------


def partition(**fields: object) -> Json:
    return {
        "partition": 0,
        "first_offset": 0,
        "next_offset": 0,
        "size_bytes": 0,
        "segments": 0,
        "oldest_us": None,
        **fields,
    }


def topic(**fields: object) -> Json:
    return {
        "name": "t",
        "rules": {},
        "version": 1,
        "partitions": [partition()],
        "readers": [],
        "groups": [],
        **fields,
    }


def record(offset: int) -> Json:
    return {"partition": 0, "offset": offset, "timestamp_us": 1, "value": "x"}


def place(offset: int = 0) -> Json:
    return {"partition": 0, "offset": offset}


TOPIC_CASES: Final[dict[str, tuple[Act, object]]] = {
    "an append without a place": (
        lambda store: store.topic("t").append(b"x"),
        {"places": []},
    ),
    "more places than records": (
        lambda store: store.topic("t").append_many([b"x"]),
        {"places": [place(0), place(1)]},
    ),
    "a place before the first": (
        lambda store: store.topic("t").append(b"x"),
        {"places": [place(-1)]},
    ),
    "rules that cannot be": (lambda store: store.topic("t").rules, {"segment_bytes": -3}),
    "fewer partitions than none": (lambda store: store.topic("t").partitions, {"partitions": -3}),
    "a time that no calendar has": (
        lambda store: store.topic("t").info(),
        topic(partitions=[partition(oldest_us=TOO_LATE_US)]),
    ),
    "a topic with rules that cannot be": (
        lambda store: store.topic("t").info(),
        topic(rules={"keep_seconds": -1}),
    ),
}


@pytest.mark.parametrize("case", TOPIC_CASES)
def test_what_a_topic_cannot_answer_is_a_server_that_we_do_not_know(case: str) -> None:
    act, answer = TOPIC_CASES[case]
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(act, encode(answer))


@pytest.mark.parametrize("places", [[], [place(0), place(1)]])
def test_a_producer_takes_a_place_for_each_record_and_no_other(places: list[Json]) -> None:
    def append(store: HttpStore) -> object:
        return store.topic("t").producer("p").append_many([b"x"], first_sequence=0)

    session = encode({"session": "s", "last_sequence": -1})
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(append, session, encode({"places": places, "last_sequence": 0}))


def test_a_member_that_went_nowhere_has_not_moved() -> None:
    """A server that leaves out the partition that was sought does not say where it is."""

    def seek(store: HttpStore) -> None:
        member = store.topic("t").group("g").join()
        with pytest.raises(UnsupportedServer, match="makes no sense"):
            member.seek({0: 3})
        assert member.position == {0: 1}

    session = {"session": "s", "state": {"position": {"0": 1}, "assignment": {"0": 1}}}
    asked(seek, encode(session), encode({"position": {}}))


def test_a_session_may_be_called_anything() -> None:
    """What a server calls it goes into a path: it must not become another one, or none."""
    session = {"session": "a/b €\r\n?", "position": {"0": 0}}
    answers = [answer_of(200, encode(each)) for each in (session, {"position": {"0": 0}})]
    with (
        Impostor(answer_of(200, ABOUT), *answers) as server,
        open_http(f"{server.url}?retry=0") as store,
        store.topic("t").reader("r") as reader,
    ):
        assert reader.poll() == []

    assert b"/sessions/a%2Fb%20%E2%82%AC%0D%0A%3F/poll HTTP/1.1\r\n" in server.requests[2]


def test_more_records_than_asked_for_are_refused() -> None:
    def poll(store: HttpStore) -> object:
        return store.topic("t").reader("r").poll(1)

    session = encode({"session": "s", "position": {"0": 0}})
    polled = {"position": {"0": 2}, "records": [record(0), record(1)]}
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(poll, session, encode(polled))


# The last line of a list -----------------------------------------------------------------------

PROBLEMS: Final[dict[bytes, type[SegueError]]] = {
    b'{"code":"damaged","detail":"a page is torn"}': Damage,
    b'{"code":"internal","detail":"a mistake"}': StoreUnavailable,
    b'{"code":"of a later version"}': StoreUnavailable,
    b'{"detail":"no code"}': UnsupportedServer,
    b'"words"': UnsupportedServer,
    b'{"code":"\xff"}': UnsupportedServer,
    b'{"code":': UnsupportedServer,
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_problem_at_the_end_of_a_list_is_raised_as_the_table_of_problems_says(
    problem: bytes,
) -> None:
    """A code that nobody knows says that something went wrong there, and not that we are wrong."""
    with pytest.raises(PROBLEMS[problem]) as failure:
        asked(lambda store: list(store.queue("q").history()), b'{"problem":%b}\n' % problem)

    assert type(failure.value) is PROBLEMS[problem]


def test_a_length_of_too_many_digits_is_no_length() -> None:
    """Whoever sends it keeps nobody busy, and Python refuses to read so long a number."""
    endless = b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5_000 + b"\r\n\r\n"
    with (
        Impostor(answer_of(200, ABOUT), endless) as server,
        open_http(f"{server.url}?retry=0") as store,
        pytest.raises(StoreUnavailable, match="where it ends"),
    ):
        store.queue("q").count()
