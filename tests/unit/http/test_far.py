"""A server that is far away, or a line that loses a request: what takes its time is no refusal."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from segue import QueueRules, aio, errors
from segue.errors import (
    CorruptRecord,
    CorruptSegment,
    InvalidArgument,
    LockBusy,
    NotReplicated,
    QueueFull,
    QueueLocked,
    SegueError,
    StoreUnavailable,
)
from segue.stores.http import answer as http_answer
from segue.stores.http import calls as http_calls
from segue.stores.http import store as http_store
from segue.stores.http.answer import Answer
from segue.stores.http.line import Line
from segue.stores.http.problems import KINDS, error_of, problem_of
from segue.stores.http.queue import HttpQueue
from segue.stores.http.store import CLOSING_SECONDS, CLOSING_SECONDS_MIN
from segue.stores.http.wire.queues import Removed
from segue.stores.opening import open_http
from tests.contract.worlds import HttpWorld
from tests.http_proxy import HttpProxy, Impostor, answer_of
from tests.unit.http.support import Opener, count_heard, let_pass, timeouts
from tests.waiting import LIMIT_SECONDS, wait_until, wait_until_async

FAR_SECONDS: Final = 0.06
"""How long an answer is under way: longer than half of what a call of asyncio blocks."""
NOT_TOLD: Final = {
    *(errors.UnsupportedFileSystem, errors.QueueEmpty, errors.JavaNotFound, errors.AppNotFound),
    *(errors.BadResult, errors.TaskTimeout, errors.TaskCancelled, errors.TaskFailed),
    *(errors.ResultTimeout, errors.MissingExtra),
}
"""What a client says itself, or a worker, and no server."""


# Requests that get lost ----------------------------------------------------------------------


def test_a_renewal_that_gets_lost_is_made_again_before_its_lease_is_over(
    opened: Opener, proxy: HttpProxy
) -> None:
    """However long other answers may take: two tries fit into what is left of a lease.

    Only the client goes by real time. The clock of the server stands still, so a slow machine does
    not lose the lease.
    """
    queue = opened(timeout=10 * LIMIT_SECONDS, retry=300).queue("jobs")
    queue.push(b"x")
    proxy.swallow(request=b"/extend")
    with queue.lease(ttl=3), timeouts(b"/extend") as allowed:
        wait_until(lambda: count_heard(proxy, b"/extend") >= 2)

    assert queue.count().total == 0
    assert max(allowed) <= 1.0


def test_a_lock_whose_renewal_gets_lost_is_renewed_again(
    world: HttpWorld, disturbed_url: str, proxy: HttpProxy
) -> None:
    url = f"{disturbed_url}?timeout={10 * LIMIT_SECONDS}&retry=300"
    with open_http(url, ticks=world.clock.ticks) as store:
        lock = store.lock("leader", ttl=3)
        proxy.swallow(request=b"/renew")
        with lock, timeouts(b"/renew") as allowed:
            wait_until(lambda: count_heard(proxy, b"/renew") >= 2)

        assert lock.holder() is None
    assert max(allowed) <= 1.0


def test_closing_waits_for_all_that_is_open_no_longer_than_for_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request may take what the ones before it left of CLOSING_SECONDS."""
    store = opened()
    topic = store.topic("orders", partitions=1)
    producers = [topic.producer(f"till-{number}") for number in range(8)]
    taken: list[float] = []

    def unanswered(_path: str, *_: object, within: float, **_more: object) -> None:
        taken.append(within)
        raise StoreUnavailable("the server does not answer")

    monkeypatch.setattr(http_store, "time", SimpleNamespace(monotonic=lambda: sum(taken)))
    monkeypatch.setattr(store.calls, "tell", unanswered)
    store.close()

    assert len(taken) == len(producers)
    assert sum(taken) <= CLOSING_SECONDS + (len(producers) - 1) * CLOSING_SECONDS_MIN


def test_a_removal_that_failed_leaves_handles_as_they_were(
    opened: Opener, proxy: HttpProxy
) -> None:
    """The queue is still there, as far as anybody knows."""
    store = opened(retry=0)
    queue = store.queue("jobs")
    queue.push(b"x")
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        store.remove_queue("jobs")
    proxy.restore()

    assert [message.body for message in queue.pop_many(9)] == [b"x"]


def test_a_queue_that_is_opened_while_it_is_removed_is_the_new_one(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it after the server has removed it has a handle that stays."""
    store = opened()
    store.queue("jobs").push(b"old")
    delete = store.calls.delete
    anew: list[HttpQueue] = []

    def deleting(path: str, answer: type[Removed], *, takes: float) -> Removed:
        removed = delete(path, answer, takes=takes)
        anew.append(store.queue("jobs"))
        return removed

    monkeypatch.setattr(store.calls, "delete", deleting)
    store.remove_queue("jobs")
    anew[0].push(b"new")

    assert [message.body for message in anew[0].pop_many(9)] == [b"new"]


def test_a_server_that_had_enough_of_a_silent_line_is_asked_again() -> None:
    """408 says that the request did not come: nothing was done."""
    about = b'{"server":"segue","version":"1","api":1,"store":"directory","durable":"os"}'
    answers = [
        answer_of(200, about),
        answer_of(408, b'{"code":"too_slow","detail":"the request did not come"}'),
        answer_of(200, b'{"queues":["jobs"]}'),
    ]
    with Impostor(*answers) as server, open_http(server.url) as store:
        assert store.queues() == ["jobs"]


def test_a_line_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is no answer: a line has its time as a whole.

    Each byte arrives before the next one is sent. By the clock of the client that takes a tenth of
    a timeout.
    """
    now = itertools.count(step=LIMIT_SECONDS / 10)
    fill = Answer._fill
    taken = threading.Semaphore(0)

    def filling(answer: Answer) -> None:
        taken.release()
        fill(answer)

    def trickle() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        for _ in range(100):
            taken.acquire(timeout=LIMIT_SECONDS)
            yield b"1\r\nx\r\n"
        yield b"0\r\n\r\n"

    about = b'{"server":"segue","version":"1","api":1,"store":"directory","durable":"os"}'
    with (
        Impostor(answer_of(200, about), trickle) as server,
        open_http(f"{server.url}?retry=0") as store,
    ):
        history = store.queue("jobs").history()
        monkeypatch.setattr(http_answer, "time", SimpleNamespace(monotonic=lambda: next(now)))
        monkeypatch.setattr(Answer, "_fill", filling)
        with pytest.raises(StoreUnavailable, match="broke off"):
            list(history)


# Servers that are far away -------------------------------------------------------------------


def test_a_full_queue_refuses_also_if_that_takes_a_while(
    disturbed_url: str, proxy: HttpProxy
) -> None:
    """Whoever awaits a push to a queue that refuses waits for nothing, however far it is."""

    async def main() -> None:
        async with await aio.open(disturbed_url) as store:
            queue = store.queue("jobs", QueueRules(capacity=1))
            await queue.push(b"a")
            proxy.delay_seconds = FAR_SECONDS
            with pytest.raises(QueueFull) as refusal:
                await asyncio.wait_for(queue.push(b"b"), LIMIT_SECONDS)
            assert refusal.value.is_final

    asyncio.run(main())


def test_a_full_queue_that_blocks_is_waited_for(disturbed_url: str, proxy: HttpProxy) -> None:
    """The same answer as one that refuses gives, and another meaning."""

    async def main() -> None:
        async with await aio.open(disturbed_url) as store:
            queue = store.queue("jobs", QueueRules(capacity=1, on_full="block"))
            await queue.push(b"a")
            proxy.delay_seconds = FAR_SECONDS
            asked = count_heard(proxy, b"/messages")
            pushing = asyncio.create_task(queue.push(b"b"))
            # The third request proves that the answers to the first two did not end it.
            await wait_until_async(lambda: count_heard(proxy, b"/messages") >= asked + 3)
            assert not pushing.done()
            assert (await queue.pop()) is not None
            await asyncio.wait_for(pushing, LIMIT_SECONDS)
            with pytest.raises(QueueFull) as refusal:
                await queue.push(b"c", wait=0.2)
            assert not refusal.value.is_final

    asyncio.run(main())


def test_who_awaits_a_locked_queue_asks_now_and_then(disturbed_url: str, proxy: HttpProxy) -> None:
    """The server waits for the lock to end, and we for the server."""

    async def main() -> None:
        async with await aio.open(disturbed_url) as store:
            queue = store.queue("jobs", QueueRules(max_leases=1))
            await queue.push_many([b"a", b"b"])
            job = await queue.lease()
            with pytest.raises(QueueLocked):
                await queue.pop(wait=0.5)
            asked = count_heard(proxy, b"/pop")
            popping = asyncio.create_task(queue.pop(wait=LIMIT_SECONDS))
            await wait_until_async(lambda: count_heard(proxy, b"/pop") >= asked + 3)
            await job.ack()
            message = await popping
            assert message is not None
            assert message.body == b"b"

    asyncio.run(main())

    assert count_heard(proxy, b"/pop") < 100


def test_who_finds_no_connection_to_wait_on_asks_now_and_then(
    opened: Opener, proxy: HttpProxy
) -> None:
    """Also if the address says that nobody waits for connections."""
    store = opened(connections=1, pool_wait=0)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(store.queue("jobs").pop, wait=LIMIT_SECONDS)
        wait_until(lambda: count_heard(proxy, b"/queues/jobs/pop"))
        assert store.queue("mail").pop(wait=1) is None
        store.queue("jobs").push(b"x")
        assert first.result(LIMIT_SECONDS) is not None

    assert count_heard(proxy, b"/queues/mail/pop") < 30


def test_more_who_await_locks_than_there_are_connections_all_wait(disturbed_url: str) -> None:
    """Each for as long as it said, and none is told that the connections are busy."""

    async def main() -> list[BaseException | object]:
        async with await aio.open(f"{disturbed_url}?connections=2") as store:
            names = [f"lock-{number}" for number in range(9)]
            for name in names:
                await store.lock(name, ttl=600).acquire()
            calls = [store.lock(name).acquire(wait=0.5) for name in names]
            return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(each) for each in asyncio.run(main())] == [LockBusy] * 9


def test_more_readers_than_there_are_connections_all_wait(disturbed_url: str) -> None:
    async def main() -> list[object]:
        async with await aio.open(f"{disturbed_url}?connections=2") as store:
            topic = await store.topic("orders", partitions=1)
            readers = [await topic.reader(f"reader-{number}") for number in range(9)]
            return list(await asyncio.gather(*(reader.poll(timeout=0.5) for reader in readers)))

    assert asyncio.run(main()) == [[]] * 9


def test_threads_beyond_the_connections_wait_as_the_others_do(
    opened: Opener, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for rings, locks and queues that are full: all of it takes a connection."""
    monkeypatch.setattr(http_calls, "CONNECTING_SHARE", 200)  # Those without one ask soon.
    store = opened(connections=1)
    names = [f"lock-{number}" for number in range(4)]
    held = [store.lock(name, ttl=600).acquire() for name in names]
    asked = len(held)

    def wait(name: str) -> int:
        return store.lock(name).acquire(wait=None).token

    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(wait, name) for name in names]
        # One waits with the connection there is for waiting, and the other three ask in turn.
        wait_until(lambda: count_heard(proxy, b"/acquire") >= asked + 1 + 2 * 3)
        for each in held:
            each.release()
        tokens = [each.result(LIMIT_SECONDS) for each in waiting]

    assert tokens == [each.token + 1 for each in held]


def test_connecting_is_no_waiting_for_a_connection(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is free is had, though the server is so far that connecting takes a while."""
    connect = Line.connect_within

    def connecting(line: Line, timeout: float) -> None:
        let_pass(0.15)
        connect(line, timeout)

    monkeypatch.setattr(Line, "connect_within", connecting)

    assert opened().lock("leader").acquire(wait=0.1).is_held


def test_connecting_for_a_renewal_takes_no_longer_than_the_renewal_may(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server that takes no connections would cost the lease before the next try."""
    store = opened(timeout=600, retry=300)
    queue = store.queue("jobs")
    queue.push(b"x")
    job = queue.lease(ttl=3)
    seen: list[float] = []

    def connecting(line: Line, timeout: float) -> None:
        del line
        seen.append(timeout)
        raise StoreUnavailable("it takes no connections")

    store.calls._work.forget_idle()
    monkeypatch.setattr(Line, "connect_within", connecting)
    with pytest.raises(StoreUnavailable):
        job.extend()

    assert max(seen) <= 1.0


# What is told ---------------------------------------------------------------------------------


def test_errors_have_all_their_fields_on_the_other_side() -> None:
    """Whoever catches one reads them as if the store were here; of paths the last word is told."""
    path = Path("somewhere", "000000001.q")
    record = CorruptRecord(path=path, first_offset=3, last_offset=5, position=4096)
    segment = CorruptSegment(path=path, reason="no header")
    found = error_of(problem_of(record).to_json())
    broken = error_of(problem_of(segment).to_json())
    unconfirmed = error_of(problem_of(NotReplicated("by nobody")).to_json())

    assert isinstance(found, CorruptRecord)
    assert (found.path, found.first_offset, found.last_offset) == (Path(path.name), 3, 5)
    assert found.position == 4096
    assert isinstance(broken, CorruptSegment)
    assert (broken.path, broken.reason) == (Path(path.name), "no header")
    assert isinstance(unconfirmed, NotReplicated)
    assert unconfirmed.answer is None


def test_every_error_of_a_store_is_told_as_what_it_is() -> None:
    """One that is not in the table would be somebody else's."""
    told = {kind.error for kind in KINDS}
    ours = {each for each in SegueError.__subclasses__() if each.__module__ == errors.__name__}

    assert ours - told == NOT_TOLD


def test_half_a_character_is_refused_before_anything_is_sent(opened: Opener) -> None:
    ring = opened().ring("bus", capacity=4)
    with pytest.raises(InvalidArgument):
        ring.outcome("\ud800")
