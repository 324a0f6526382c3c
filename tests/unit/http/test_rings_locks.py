"""Rings and locks over HTTP: what goes over the line, and what becomes of answers that are lost."""

import http.client
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from segue.errors import (
    InvalidArgument,
    LockBusy,
    RingNotFound,
    StoreUnavailable,
    TransactionAborted,
)
from segue.server.app import App
from segue.server.routes import ALL
from segue.server.routing import Router
from segue.server.serving import ServerThread
from segue.stores.http.lock import HttpHeldLock
from segue.stores.http.store import HttpStore
from segue.stores.opening import open_directory, open_http
from segue.testing import ManualClock
from tests.http_proxy import HttpProxy
from tests.unit.http.support import count_heard, long_polls_seen, timeouts
from tests.waiting import LIMIT_SECONDS, wait_until

Json = dict[str, object]


@dataclass
class Place:
    """A directory behind a server of its own, and the clock that both go by."""

    server: ServerThread
    clock: ManualClock


@pytest.fixture
def place(scratch: Path) -> Iterator[Place]:
    clock = ManualClock()
    with (
        open_directory(scratch / "data", sync="os", clock=clock, ticks=clock.ticks) as behind,
        ServerThread(App(behind, Router(ALL), ticks=clock.ticks)) as server,
    ):
        yield Place(server, clock)


@pytest.fixture
def store(place: Place) -> Iterator[HttpStore]:
    with open_http(place.server.url, ticks=place.clock.ticks) as store:
        yield store


def ask(
    place: Place,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    key: str | None = None,
) -> tuple[int, Json]:
    """Return the status and what was answered, as any client would get them."""
    connection = http.client.HTTPConnection("127.0.0.1", place.server.port)
    headers = {} if key is None else {"Idempotency-Key": key}
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, f"/api/v1{path}", data, headers)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    return response.status, cast("Json", json.loads(text)) if text else {}


# Locks -----------------------------------------------------------------------------------------


def test_a_lock_is_taken_kept_and_let_go_by_its_token(place: Place) -> None:
    """Nothing has to be held open in between: any client can do it, one call after the other."""
    status, taken = ask(place, "POST", "/locks/leader/acquire", {"ttl": 10, "owner": "ann"})
    place.clock.advance(seconds=9)
    renewed = ask(place, "POST", "/locks/leader/renew", {"token": taken["token"], "ttl": 10})
    place.clock.advance(seconds=9)
    holder = ask(place, "GET", "/locks/leader")
    released = ask(place, "POST", "/locks/leader/release", {"token": taken["token"]})

    assert (status, renewed, released) == (200, (204, {}), (204, {}))
    assert holder == (200, {"owner": "ann", "token": taken["token"], "seconds_left": 1.0})
    assert ask(place, "GET", "/locks/leader") == (204, {})
    assert ask(place, "GET", "/locks") == (200, {"names": ["leader"]})


def test_a_lock_that_is_held_is_423_and_one_that_is_lost_410(place: Place) -> None:
    _, taken = ask(place, "POST", "/locks/leader/acquire", {"ttl": 10, "owner": "ann"})
    busy = ask(place, "POST", "/locks/leader/acquire", {})
    place.clock.advance(seconds=10)
    lost = ask(place, "POST", "/locks/leader/renew", {"token": taken["token"]})

    assert busy[0] == 423
    assert (busy[1]["code"], busy[1]["owner"], busy[1]["seconds_left"]) == ("lock_busy", "ann", 10)
    assert lost[0] == 410
    assert (lost[1]["code"], lost[1]["token"]) == ("lock_lost", taken["token"])


def test_a_lock_without_an_owner_is_its_tokens(place: Place) -> None:
    """The server's own name would tell nobody who holds it."""
    ask(place, "POST", "/locks/leader/acquire", {})

    assert ask(place, "GET", "/locks/leader")[1]["owner"] == "anonymous"


def test_an_acquisition_that_is_repeated_is_made_once(place: Place) -> None:
    """Its first answer was lost on the way: else who asked would wait for themselves."""
    first = ask(place, "POST", "/locks/leader/acquire", {}, key="line/1")
    again = ask(place, "POST", "/locks/leader/acquire", {}, key="line/1")

    assert first == again
    assert first[0] == 200


def test_who_waits_at_the_server_gets_the_lock_once_it_is_free(
    place: Place, store: HttpStore
) -> None:
    held = store.lock("leader").acquire()
    with ThreadPoolExecutor(1) as threads:
        body = {"wait": LIMIT_SECONDS}
        waiting = threads.submit(ask, place, "POST", "/locks/leader/acquire", body)
        held.release()
        status, taken = waiting.result(LIMIT_SECONDS)

    assert status == 200
    assert cast("int", taken["token"]) > held.token


@pytest.mark.usefixtures("long_polls")
def test_nobody_who_has_left_gets_the_lock(place: Place, store: HttpStore) -> None:
    """Else it would be held by nobody for as long as it lasts."""
    held = store.lock("leader").acquire()
    connection = http.client.HTTPConnection("127.0.0.1", place.server.port)
    body = json.dumps({"wait": 3 * LIMIT_SECONDS})
    with long_polls_seen("ask_again") as polls:
        connection.request("POST", "/api/v1/locks/leader/acquire", body)
        wait_until(lambda: polls == ["begun"])
        connection.close()
        wait_until(lambda: polls == ["begun", "ended"])
    held.release()

    assert store.lock("leader").holder() is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("acquire", {"ttl": 0}),
        ("acquire", {"owner": ""}),
        ("acquire", {"owner": 7}),
        ("acquire", {"ttI": 7}),
        ("renew", {"token": 0}),
        ("renew", {}),
        ("release", {"token": "1"}),
    ],
)
def test_what_makes_no_sense_is_400(place: Place, path: str, body: Json) -> None:
    assert ask(place, "POST", f"/locks/leader/{path}", body)[0] == 400
    assert ask(place, "GET", "/locks")[1] == {"names": []}


# Rings -----------------------------------------------------------------------------------------


def test_a_ring_is_made_once_and_opened_often(place: Place) -> None:
    shape = {"capacity": 12, "entries_per_segment": 3}
    missing = ask(place, "GET", "/rings/bus")
    made = ask(place, "PUT", "/rings/bus", shape)

    assert (missing[0], missing[1]["code"]) == (404, "ring_not_found")
    assert (made[0], made[1]["capacity"], made[1]["groups"]) == (200, 12, {"default": 0})
    assert ask(place, "PUT", "/rings/bus", shape) == made
    assert ask(place, "PUT", "/rings/bus", {}) == made
    assert ask(place, "PUT", "/rings/bus", {"capacity": 99})[0] == 400
    assert ask(place, "POST", "/rings/bus", shape)[1]["code"] == "ring_exists"
    assert ask(place, "POST", "/rings/other", shape)[0] == 200
    assert ask(place, "GET", "/rings") == (200, {"names": ["bus", "other"]})


def test_entries_are_text_or_base64(place: Place, store: HttpStore) -> None:
    ring = store.ring("bus", capacity=12)
    ask(place, "POST", "/rings/bus/enqueue", {"body": "grün"})
    ask(place, "POST", "/rings/bus/enqueue", {"body_base64": "/wA="})
    shown = ask(place, "GET", "/rings/bus/entries/1")
    taken = ask(place, "POST", "/rings/bus/dequeue", {})

    assert shown[1]["body_base64"] == "/wA="
    assert (taken[1]["offset"], taken[1]["body"]) == (0, "grün")
    entry = ring.dequeue()
    assert entry is not None
    assert entry.body == b"\xff\x00"
    assert ask(place, "POST", "/rings/bus/dequeue", {}) == (204, {})
    assert ask(place, "GET", "/rings/bus/entries/0") == (204, {})
    assert ask(place, "GET", "/rings/bus/entries/-1") == (204, {})
    assert ask(place, "GET", "/rings/bus/entries/first")[0] == 400


@pytest.mark.parametrize(
    "body", [{}, {"body": "a", "body_base64": "YQ=="}, {"body_base64": "ä"}, {"body": None}]
)
def test_an_entry_needs_one_body(place: Place, store: HttpStore, body: Json) -> None:
    ring = store.ring("bus", capacity=12)

    assert ask(place, "POST", "/rings/bus/enqueue", body)[0] == 400
    assert ring.info().tail_offset == 0


def test_an_entry_whose_request_is_repeated_is_added_once(place: Place, store: HttpStore) -> None:
    ring = store.ring("bus", capacity=12)
    first = ask(place, "POST", "/rings/bus/enqueue", {"body": "once"}, key="line/1")
    again = ask(place, "POST", "/rings/bus/enqueue", {"body": "once"}, key="line/1")

    assert first == again == (200, {"offset": 0})
    assert ring.info().tail_offset == 1


@pytest.mark.parametrize("txn_id", ["a/b", "..", "50%", "grün", "a b?c#d"])
def test_a_transaction_may_be_called_anything(store: HttpStore, txn_id: str) -> None:
    ring = store.ring("bus", capacity=12)
    ring.enqueue(b"a", txn_id)
    outcome = ring.outcome(txn_id)

    assert outcome is not None
    assert (outcome.txn_id, outcome.enqueued) == (txn_id, range(1))


def test_whoever_waits_for_a_ring_longer_than_a_request_asks_again(
    store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.stores.http.patience.STEP_SECONDS", 0.01)
    ring = store.ring("bus", capacity=12)
    transaction = ring.transaction("first", ttl=60)
    with timeouts(b"/enqueue") as asked, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ring.enqueue, b"second", wait=None)
        wait_until(lambda: len(asked) >= 3)
        assert not waiting.done()
        transaction.commit()

        assert waiting.result(LIMIT_SECONDS) == 0


def test_a_ring_that_is_not_there_needs_a_capacity(store: HttpStore) -> None:
    with pytest.raises(RingNotFound):
        store.ring("bus", mode="open")
    with pytest.raises(InvalidArgument, match="needs a capacity"):
        store.ring("bus")

    assert store.rings() == []


# Transactions ----------------------------------------------------------------------------------


def test_a_transaction_is_steps_of_any_client(place: Place, store: HttpStore) -> None:
    ring = store.ring("bus", capacity=12)
    ring.enqueue(b"old")
    _, begun = ask(place, "POST", "/rings/bus/transactions", {"txn_id": "t", "ttl": 5})
    path = f"/rings/bus/transactions/{begun['session']}"
    added = ask(place, "POST", f"{path}/enqueue", {"body": "new"})
    taken = ask(place, "POST", f"{path}/dequeue", {})
    busy = ask(place, "POST", "/rings/bus/enqueue", {"body": "no"})
    before = ring.info()
    committed = ask(place, "POST", f"{path}/commit")

    assert (begun["txn_id"], added, taken[1]["body"]) == ("t", (200, {"offset": 1}), "old")
    assert (busy[0], busy[1]["code"], busy[1]["owner"]) == (423, "lock_busy", "t")
    assert (before.head_offset, before.tail_offset) == (0, 1)
    assert committed == (204, {})
    assert ask(place, "GET", "/rings/bus/outcomes/t")[1] == {
        "txn_id": "t",
        "token": begun["token"],
        "enqueued": {"start": 1, "stop": 2},
        "dequeued": {"default": {"start": 0, "stop": 1}},
    }
    assert ask(place, "POST", f"{path}/enqueue", {"body": "late"})[1]["code"] == "session_gone"


def test_a_commit_whose_answer_was_lost_is_known_to_have_been_made(
    place: Place, store: HttpStore
) -> None:
    """By the token, since others may use the same id."""
    ring = store.ring("bus", capacity=12)
    transaction = ring.transaction("t", ttl=60)
    transaction.enqueue(b"once")
    assert ask(place, "POST", f"{transaction._path}/commit") == (204, {})
    transaction.commit()

    assert ring.info().tail_offset == 1
    with pytest.raises(InvalidArgument, match="committed already"):
        transaction.commit()


def test_a_transaction_that_the_server_forgot_is_aborted(place: Place, store: HttpStore) -> None:
    """The server was restarted: nothing has happened, and the ring is free."""
    ring = store.ring("bus", capacity=12)
    ring.enqueue(b"by another", "t")
    transaction = ring.transaction("t", ttl=60)
    transaction.enqueue(b"lost")
    place.server.app.sessions.close()
    for step in (lambda: transaction.enqueue(b"x"), transaction.dequeue, transaction.commit):
        with pytest.raises(TransactionAborted) as abortion:
            step()
        assert (abortion.value.ring, abortion.value.txn_id) == ("bus", "t")
    transaction.abort()

    assert ring.info().tail_offset == 1
    assert ring.enqueue(b"goes through", wait=0) == 1


def test_a_block_that_the_server_forgot_says_so(place: Place, store: HttpStore) -> None:
    ring = store.ring("bus", capacity=12)

    def forgotten() -> None:
        with ring.transaction(ttl=60) as transaction:
            transaction.enqueue(b"lost")
            place.server.app.sessions.close()

    with pytest.raises(TransactionAborted):
        forgotten()
    assert ring.info().tail_offset == 0


def test_a_block_whose_commit_got_no_answer_asks_for_nothing_more(
    place: Place, store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it was made, so it is not taken back; its lock ends by itself."""
    ring = store.ring("bus", capacity=12)
    asked: list[str] = []

    def tell(path: str, *_: object) -> None:
        asked.append(path.rpartition("/")[2])
        raise StoreUnavailable("the server does not answer")

    def unanswered() -> None:
        with ring.transaction("t", ttl=60):
            monkeypatch.setattr(store.calls, "tell", tell)

    with pytest.raises(StoreUnavailable):
        unanswered()
    monkeypatch.undo()

    assert asked == ["commit"]
    assert ring.info().locked_by == "t"


def test_a_server_holds_one_transaction_of_a_ring(place: Place, store: HttpStore) -> None:
    """Those before it can commit nothing, and would only take up room."""
    rings = [store.ring(name, capacity=12) for name in ("bus", "tram")]
    for ring in rings:
        for number in range(5):
            ring.transaction(f"t{number}", ttl=0.2)
            place.clock.advance(ms=200)
    sessions = place.server.app.sessions

    assert len(sessions.of("transaction", "bus")) == len(sessions.of("transaction", "tram")) == 1
    assert rings[0].transaction("last").token > 5


def test_a_transaction_of_another_ring_is_unknown(place: Place, store: HttpStore) -> None:
    """Roles go by the ring's name, so that no session may be had under another one's."""
    store.ring("bus", capacity=12)
    store.ring("tram", capacity=12)
    _, begun = ask(place, "POST", "/rings/bus/transactions", {})
    path = f"/rings/tram/transactions/{begun['session']}"

    assert ask(place, "POST", f"{path}/enqueue", {"body": "x"})[1]["code"] == "session_gone"


def test_a_transaction_ends_with_its_server(place: Place, store: HttpStore) -> None:
    """Its lock does not outlive it."""
    ring = store.ring("bus", capacity=12)
    ring.transaction("first", ttl=3_600)
    with pytest.raises(LockBusy):
        ring.enqueue(b"no", wait=0)
    place.server.app.sessions.close()

    assert ring.info().locked_by is None


def test_a_lock_that_was_waited_for_is_held_for_all_of_its_time(place: Place) -> None:
    """It counts from when it was had, not from when it was asked for."""
    with (
        HttpProxy(place.server.port) as proxy,
        open_http(proxy.url, ticks=place.clock.ticks) as store,
        ThreadPoolExecutor(1) as threads,
    ):
        store.lock("leader", ttl=10).acquire(wait=0)
        waiting = threads.submit(store.lock("leader", ttl=10).acquire, wait=LIMIT_SECONDS)
        wait_until(lambda: count_heard(proxy, b"/acquire") == 2)
        place.clock.advance(seconds=11)
        held = waiting.result(LIMIT_SECONDS)

        assert held.is_held
        place.clock.advance(seconds=11)
        assert not held.is_held


# Answers that come late ------------------------------------------------------------------------


def test_a_lock_that_ended_before_its_answer_came_is_not_handed_out(place: Place) -> None:
    """The answer was lost and is asked for again; by then somebody else is inside."""
    with (
        HttpProxy(place.server.port) as proxy,
        open_http(place.server.url, ticks=place.clock.ticks) as other,
    ):
        taken: list[HttpHeldLock] = []

        def ticks() -> int:
            if proxy.lost.is_set() and not taken:
                place.clock.advance(seconds=60)
                taken.append(other.lock("leader", ttl=600).acquire(wait=0))
            return place.clock.ticks()

        with open_http(proxy.url, ticks=ticks) as late:
            proxy.lose_answer(to=b"/acquire")
            with pytest.raises(LockBusy):
                late.lock("leader", ttl=30).acquire(wait=0)

        assert [held.is_held for held in taken] == [True]


def test_a_lock_that_ended_before_its_answer_came_is_asked_for_again(place: Place) -> None:
    """Where nobody else took it, whoever waits for it has it after all, and for its full time."""
    with HttpProxy(place.server.port) as proxy:
        is_late = False

        def ticks() -> int:
            nonlocal is_late
            if proxy.lost.is_set() and not is_late:
                is_late = True
                place.clock.advance(seconds=60)
            return place.clock.ticks()

        with open_http(proxy.url, ticks=ticks) as late:
            proxy.lose_answer(to=b"/acquire")
            with late.lock("leader", ttl=30) as held:
                assert (held.token, held.is_held) == (2, True)
                assert held.seconds_left == pytest.approx(30)
