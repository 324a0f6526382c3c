"""Requests whose answer is lost, late or told to come again: they happen once, and are answered."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from segue import Item
from segue.errors import (
    AccessDenied,
    ConnectionsBusy,
    LeaseLost,
    StoreUnavailable,
    TransactionAborted,
    UnsupportedServer,
)
from segue.server import protocol
from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.stores.http import calls as http_calls
from segue.stores.http.address import RETRY_SECONDS_MAX
from segue.stores.http.line import Line
from segue.stores.http.queue import HttpQueue
from segue.stores.http.store import HttpStore
from segue.stores.job import Job
from segue.stores.opening import open_directory, open_http
from tests.contract.forks import push_around_forks
from tests.contract.worlds import HttpWorld
from tests.http_proxy import HttpProxy, Impostor, answer_of
from tests.unit.http.support import Opener, count_heard, in_time, long_polls_seen
from tests.waiting import LIMIT_SECONDS, wait_until

ABOUT: Final = answer_of(
    200, b'{"server":"segue","version":"1","api":1,"store":"file","durable":"os"}'
)
COUNTS: Final = answer_of(200, b'{"ready":1,"delayed":0,"leased":0,"dead":0,"total":1}')
IDS: Final = answer_of(200, b'{"ids":["0-0"]}')


@pytest.fixture
def queue(opened: Opener) -> HttpQueue:
    """A queue behind the proxy, by somebody patient."""
    return opened().queue("jobs")


@pytest.fixture
def direct(world: HttpWorld) -> HttpQueue:
    """The same queue, for somebody on an undisturbed line."""
    return world.open().queue("jobs")


def drain(queue: HttpQueue) -> list[bytes]:
    """Take all there is."""
    return [message.body for message in queue.pop_many(1_000)]


# Lost answers --------------------------------------------------------------------------------


def test_a_push_whose_answer_is_lost_happens_once(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    proxy.lose_answer()
    name = queue.push(b"once")

    assert proxy.lost.is_set()
    assert [(each.id, each.body) for each in direct.pop_many(9)] == [(name, b"once")]


def test_a_pop_whose_answer_is_lost_gives_the_same_message(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    """Else nobody would ever see it."""
    direct.push_many([b"1", b"2"])
    proxy.lose_answer()
    message = queue.pop()

    assert proxy.lost.is_set()
    assert message is not None
    assert message.body == b"1"
    assert drain(direct) == [b"2"]


def test_a_lease_whose_answer_is_lost_is_had_at_its_first_attempt(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    direct.push_many([b"1", b"2"])
    proxy.lose_answer()
    job = queue.lease()

    assert (job.body, job.attempt, direct.count().leased) == (b"1", 1, 1)
    job.ack()
    assert drain(direct) == [b"2"]


@pytest.mark.parametrize("settle", ["ack", "nack", "extend"])
def test_a_lease_settled_without_an_answer_is_not_lost(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy, settle: str
) -> None:
    """The second try would find it settled by the first."""
    direct.push(b"1")
    job = queue.lease(ttl=30)
    proxy.lose_answer()
    getattr(queue, settle)(job.receipt)

    assert proxy.lost.is_set()
    counts = direct.count()
    assert (counts.leased, counts.total) == {
        "ack": (0, 0),
        "nack": (0, 1),
        "extend": (1, 1),
    }[settle]


def test_a_transaction_with_a_step_that_got_no_answer_is_not_committed(
    opened: Opener, world: HttpWorld, proxy: HttpProxy
) -> None:
    """The entry that it took would be gone, and nobody would have seen it."""
    ring = opened(retry=0).ring("bus", capacity=12)
    ring.enqueue(b"first")

    def go_on_regardless() -> None:
        with ring.transaction("t", ttl=60) as transaction:
            proxy.lose_answer()
            with pytest.raises(StoreUnavailable):
                transaction.dequeue()
            with pytest.raises(TransactionAborted, match="no answer"):
                transaction.enqueue(b"second")

    with pytest.raises(TransactionAborted, match="no answer"):
        go_on_regardless()
    entry = world.open().ring("bus").dequeue(wait=0)

    assert proxy.lost.is_set()
    assert entry is not None
    assert entry.body == b"first"


def test_a_refusal_whose_answer_is_lost_is_the_same_refusal(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    direct.push(b"1")
    job = queue.lease()
    direct.ack(job.receipt)
    proxy.lose_answer()
    with pytest.raises(LeaseLost) as refusal:
        queue.ack(job.receipt)

    assert refusal.value.lost == (job.receipt,)


@pytest.mark.parametrize("after_bytes", [0, 1, 20, 150, 220])
def test_a_push_whose_answer_breaks_off_happens_once(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy, after_bytes: int
) -> None:
    """Wherever it breaks: in the first line, between head and body, or in the body."""
    body = b"once " * 10
    proxy.cut_answer(after_bytes=after_bytes)
    names = queue.push_many([body] * 30)

    assert [each.id for each in direct.pop_many(100)] == names


@pytest.mark.parametrize("after_bytes", [100, 250, 300, 1_000, 40_000])
def test_a_pop_whose_answer_breaks_off_gives_the_same_message(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy, after_bytes: int
) -> None:
    direct.push_many([b"x" * 50_000, b"2"])
    proxy.cut_answer(after_bytes=after_bytes)
    message = queue.pop()

    assert message is not None
    assert message.body == b"x" * 50_000
    assert drain(direct) == [b"2"]


@pytest.mark.parametrize("after_bytes", [100, 250, 1_000, 20_000, 60_000, 100_000])
def test_a_list_that_breaks_off_is_not_taken_for_whole(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy, after_bytes: int
) -> None:
    """It goes on behind the last one that came; if none came, whoever asked is told."""
    direct.push_many([b"%d" % number * 10 for number in range(2_000)])
    direct.push_many([Item(body=b"later", delay=60, priority=2)] * 200)
    direct.push_many([Item(body=b"urgent", priority=1)] * 200)
    whole = [message.id for message in direct.history()]
    proxy.cut_answer(after_bytes=after_bytes)
    found: list[str] = []
    try:
        found.extend(message.id for message in queue.history())
    except StoreUnavailable:
        assert not found
        assert after_bytes < 1_000
    else:
        assert found == whole


def test_a_list_that_breaks_off_among_what_waits_for_later_goes_on_there(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    """They come last, whatever their priority."""
    direct.push_many([Item(body=b"x", priority=5)] * 3)
    direct.push_many([Item(body=b"later" * 20, delay=60, priority=2)] * 500)
    whole = [message.id for message in direct.history()]
    proxy.cut_answer(after_bytes=50_000)

    assert [message.id for message in queue.history()] == whole
    assert [message.id for message in queue.history(priority=2)] == whole[3:]


def _bury(queue: HttpQueue, count: int) -> list[str]:
    """Have so many dead letters; return the names of their messages, oldest first."""
    queue.push_many([b"%d" % number * 10 for number in range(count)])
    return [job.id for job in _dead(queue, count)]


def _dead(queue: HttpQueue, count: int) -> list[Job]:
    """Have so many messages die; return them in that order."""
    jobs = queue.lease_many(count)
    for job in jobs:
        job.bury("no such address")
    return jobs


@pytest.mark.parametrize("after_bytes", [1_000, 20_000, 60_000])
def test_dead_letters_that_break_off_go_on_behind_the_last_one(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy, after_bytes: int
) -> None:
    """Whoever looks at each of them for a while is cut off, and has every one once all the same."""
    names = _bury(direct, 300)
    proxy.cut_answer(after_bytes=after_bytes)

    assert [letter.message.id for letter in queue.dead_letters()] == names


def test_dead_letters_that_break_off_before_the_first_one_are_an_error(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    """A server that sends nothing is not asked for ever."""
    _bury(direct, 300)
    proxy.cut_answer(after_bytes=300)

    with pytest.raises(StoreUnavailable, match="broke off"):
        list(queue.dead_letters())


def test_who_looks_at_dead_letters_slowly_outlives_the_patience_of_the_server(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that nobody takes is cut off; redriving a few each second has that happen."""
    is_cut = threading.Event()
    sweep = protocol.Connection._sweep_unread

    def sweeping(connection: protocol.Connection, now: float) -> None:
        sweep(connection, now)
        if connection.transport.is_closing():
            is_cut.set()

    monkeypatch.setattr(protocol.Connection, "_sweep_unread", sweeping)
    with (
        open_directory(scratch / "data", sync="os") as behind,
        ServerThread(build_app(behind)) as server,
        open_http(server.url) as store,
    ):
        queue = store.queue("jobs")
        for _ in range(30):  # Much more than fits between the two.
            queue.push(b"x" * 1_000_000)
        names = [job.id for job in _dead(queue, 30)]
        letters = queue.dead_letters()
        found = [next(letters).message.id]
        with monkeypatch.context() as patch:
            patch.setattr(protocol, "UNREAD_SECONDS_MAX", 0.1)
            assert is_cut.wait(LIMIT_SECONDS)
        found += [letter.message.id for letter in letters]

    assert found == names


def test_keys_of_many_calls_are_never_the_same(
    queue: HttpQueue, direct: HttpQueue, proxy: HttpProxy
) -> None:
    """A key that two calls share would give one of them the other's answer."""
    for number in range(20):
        if number % 3 == 0:
            proxy.lose_answer()
        queue.push(b"%d" % number)

    assert drain(direct) == [b"%d" % number for number in range(20)]


def test_threads_on_a_line_that_breaks_again_and_again_double_and_lose_nothing(
    opened: Opener, direct: HttpQueue, proxy: HttpProxy
) -> None:
    queue = opened(connections=4).queue("jobs")
    is_over = threading.Event()

    def disturb() -> None:
        # Not for ever: on a machine that is busy enough no push would come to its end.
        for _ in range(100):
            if is_over.wait(0.05):
                return
            proxy.lose_answer()
            proxy.cut_once()

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with ThreadPoolExecutor(8) as threads:
            names = list(threads.map(lambda number: queue.push(b"%d" % number), range(160)))
    finally:
        is_over.set()
        disturber.join()
    proxy.restore()

    assert len(set(names)) == 160
    assert sorted(drain(direct)) == sorted(b"%d" % number for number in range(160))


# Long polls ----------------------------------------------------------------------------------


def test_a_long_poll_that_is_cut_goes_on_though_it_waited_longer_than_it_may_retry(
    opened: Opener, direct: HttpQueue, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retry` counts from when the line broke: until then the server was as it should be."""
    queue = opened(retry=RETRY_SECONDS_MAX).queue("jobs")
    waited_seconds = 0.0

    def monotonic() -> float:
        return time.monotonic() + waited_seconds

    monkeypatch.setattr(http_calls, "time", SimpleNamespace(monotonic=monotonic))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.pop, wait=None)
        wait_until(lambda: count_heard(proxy, b"/pop") == 1)
        waited_seconds = 2 * RETRY_SECONDS_MAX
        proxy.cut_once()
        wait_until(lambda: count_heard(proxy, b"/pop") > 1)
        direct.push(b"late")
        message = waiting.result(LIMIT_SECONDS)

    assert message is not None
    assert message.body == b"late"


@pytest.mark.usefixtures("long_polls")
def test_nothing_is_taken_for_a_long_poll_that_was_cut_off(
    opened: Opener, direct: HttpQueue, proxy: HttpProxy
) -> None:
    """Its client is gone: the message is for others."""
    queue = opened(retry=0).queue("jobs")
    with long_polls_seen("until") as polls, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.pop, wait=None)
        wait_until(lambda: polls == ["begun"])
        proxy.cut_once()
        with pytest.raises(StoreUnavailable):
            waiting.result(LIMIT_SECONDS)
        wait_until(lambda: polls == ["begun", "ended"])
    direct.push(b"1")

    assert drain(direct) == [b"1"]


# Connections that are short ------------------------------------------------------------------


@contextmanager
def connection_lost_to_another(
    store: HttpStore, monkeypatch: pytest.MonkeyPatch, *, refusals_max: int
) -> Iterator[list[float]]:
    """Have somebody else take the only connection in the moment in which it breaks.

    Yields what they waited for who then found none; after so many of them it is free again.
    """
    pool = store.calls._work
    take, drop = pool.take, pool.drop
    taken: list[Line] = []
    refused: list[float] = []

    def dropping(line: Line) -> None:
        drop(line)
        taken.append(take())

    def taking(*, wait_seconds: float | None = None) -> Line:
        try:
            return take(wait_seconds=wait_seconds)
        except ConnectionsBusy as error:
            refused.append(error.seconds)
            if len(refused) == refusals_max:
                pool.give_back(taken.pop())
            raise

    with monkeypatch.context() as patching:
        patching.setattr(pool, "drop", dropping)
        patching.setattr(pool, "take", taking)
        yield refused
    while taken:
        pool.give_back(taken.pop())


def test_a_call_that_was_sent_is_tried_again_though_connections_are_short(
    opened: Opener, direct: HttpQueue, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(connections=1, pool_wait=0.02)
    with connection_lost_to_another(store, monkeypatch, refusals_max=3) as refused:
        proxy.lose_answer()
        name = store.queue("jobs").push(b"once")

    assert len(refused) == 3
    assert [(each.id, each.body) for each in direct.pop_many(9)] == [(name, b"once")]


def test_a_call_that_was_sent_never_ends_as_one_that_was_not(
    opened: Opener, direct: HttpQueue, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ConnectionsBusy says that nothing was sent: whoever pushes again then makes it two."""
    store = opened(connections=1, pool_wait=0.02, retry=0.4)
    with connection_lost_to_another(store, monkeypatch, refusals_max=1_000) as refused:
        proxy.lose_answer()
        with pytest.raises(StoreUnavailable) as failure:
            store.queue("jobs").push(b"once")

    assert refused
    assert not isinstance(failure.value, ConnectionsBusy)
    assert drain(direct) == [b"once"]


# Told to come again --------------------------------------------------------------------------


def busy(status: int, **headers: str) -> bytes:
    """Return an answer that sends away for now."""
    return answer_of(status, b'{"code":"overloaded","detail":"too much"}', **headers)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_who_is_told_to_come_again_does(status: int) -> None:
    """Also by what stands before a server that is being started anew."""
    with (
        Impostor(
            ABOUT, busy(status, retry_after="0"), busy(status, retry_after="0"), IDS
        ) as server,
        open_http(f"{server.url}?retry={LIMIT_SECONDS:g}") as store,
    ):
        assert store.queue("jobs").push(b"1") == "0-0"
        keys = [_header(request, b"idempotency-key") for request in server.requests[1:]]

    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_who_is_told_when_to_come_again_comes_no_sooner() -> None:
    with (
        Impostor(ABOUT, busy(503, retry_after="1"), COUNTS) as server,
        open_http(server.url) as store,
    ):
        begun = time.monotonic()
        assert store.queue("jobs").count().ready == 1

    assert time.monotonic() - begun >= 1


def test_who_is_told_to_come_again_too_late_gives_up_at_once() -> None:
    with (
        Impostor(ABOUT, busy(503, retry_after="400"), COUNTS) as server,
        open_http(f"{server.url}?retry={RETRY_SECONDS_MAX}") as store,
        pytest.raises(StoreUnavailable, match="too much"),
    ):
        in_time(store.queue("jobs").count)


def test_who_is_never_let_in_gives_up_in_time() -> None:
    with (
        Impostor(ABOUT, busy(503, retry_after="0")) as server,
        open_http(f"{server.url}?retry=0.5") as store,
        pytest.raises(StoreUnavailable, match="too much"),
    ):
        in_time(lambda: store.queue("jobs").push(b"1"))

    assert len(server.requests) < 100


@pytest.mark.parametrize("after", ["", "soon", "-1", "9" * 400, "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_a_time_to_come_again_that_makes_no_sense_does_no_harm(after: str) -> None:
    with (
        Impostor(ABOUT, busy(503, retry_after=after), COUNTS) as server,
        open_http(f"{server.url}?retry={RETRY_SECONDS_MAX}") as store,
    ):
        try:
            assert in_time(store.queue("jobs").count).ready == 1
        except StoreUnavailable:
            assert after == "9" * 400


@pytest.mark.parametrize("status", [301, 302, 307, 308, 304])
def test_a_redirection_is_nothing_that_was_done(status: int) -> None:
    """Whoever follows none must not take it for a yes."""
    moved = answer_of(status, location="http://127.0.0.1:9/")
    with (
        Impostor(ABOUT, moved) as server,
        open_http(f"{server.url}?retry=0") as store,
        pytest.raises((StoreUnavailable, UnsupportedServer)),
    ):
        store.queue("jobs").pause()


@pytest.mark.parametrize("status", [401, 403])
def test_who_is_not_let_in_does_not_try_again(status: int) -> None:
    with (
        Impostor(ABOUT, answer_of(status, b'{"detail":"no"}')) as server,
        open_http(f"{server.url}?retry=5") as store,
    ):
        with pytest.raises(AccessDenied, match="no"):
            store.queue("jobs").push(b"1")

        assert len(server.requests) == 2


def _header(request: bytes, name: bytes) -> bytes:
    for line in request.split(b"\r\n"):
        if line.lower().startswith(name + b":"):
            return line.partition(b":")[2].strip()
    raise AssertionError(f"{request!r} has no {name!r}")


# Forks ---------------------------------------------------------------------------------------

FORKS: Final = 10


# That it forks while threads run is what is tested; newer Pythons warn of it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_loses_and_doubles_nothing_of_its_parent(
    world: HttpWorld, direct: HttpQueue
) -> None:
    """Its threads have keys and connections of their own from their first request on."""
    with open_http(world.url) as store:
        pushed = push_around_forks(store.queue("jobs"), FORKS)

    assert sorted(message.body for message in direct.pop_many(10_000)) == sorted(pushed)
