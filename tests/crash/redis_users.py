"""What uses a server while it fails, or is killed itself: threads of a test, and processes."""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from segue.errors import QueueEmpty, TransactionAborted
from segue.stores.contract import Queue, Ring
from segue.stores.opening import open_redis
from segue.stores.redis.store import RedisStore
from tests.crash.channel import Channel
from tests.redis_server import set_options
from tests.waiting import LIMIT_SECONDS, wait_until

RING: Final = "bus"
LOCK: Final = "leader"
CAPACITY: Final = 1_000_000
CALLS_MAX: Final = 100_000
"""A child that nobody kills ends all the same."""
TTL_SECONDS: Final = 3_600.0
"""Longer than any test: what is delivered twice was not lost by its consumer."""
TRY_SECONDS: Final = 1.0
"""How soon a call that is not answered is tried again under load."""
ADDERS: Final = 3
TAKERS: Final = 2


class Load:
    """Threads that add to a ring and a queue and take from the queue, with two stores between them.

    What a call returned is written down; `check` looks whether it is so.
    """

    def __init__(
        self, url: str, *, queue: str, options: str = "", try_seconds: float = TRY_SECONDS
    ) -> None:
        self.url = f"{url}?timeout={LIMIT_SECONDS:g}&retry={LIMIT_SECONDS:g}{options}"
        self.queue = queue
        self._try_seconds = try_seconds
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._offsets: dict[bytes, int] = {}
        self._pushed: list[bytes] = []
        self._taken: list[bytes] = []
        self._errors: list[Exception] = []
        with open_redis(self.url) as store:
            store.ring(RING, capacity=CAPACITY, entries_per_segment=50)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have all threads work for the length of the block."""
        works = [self._add] * ADDERS + [self._take] * TAKERS
        with self._opened() as one, self._opened() as other:
            threads = [
                threading.Thread(target=self._run, args=(work, (one, other)[number % 2], number))
                for number, work in enumerate(works)
            ]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()

    def _opened(self) -> RedisStore:
        """Return a store whose tries are short from now on, to notice soon what hangs."""
        store = open_redis(self.url)
        set_options(store, timeout=self._try_seconds)
        for node in store.calls.servers.nodes():
            node.pool.forget_idle()  # Its connections have the long timeout.
        return store

    def _run(
        self, work: Callable[[Ring, Queue, int], None], store: RedisStore, number: int
    ) -> None:
        try:
            work(store.ring(RING), store.queue(self.queue), number)
        except Exception as error:  # noqa: BLE001 - none is expected; the test shows all.
            self._errors.append(error)

    def _add(self, ring: Ring, queue: Queue, number: int) -> None:
        for call in range(CALLS_MAX):
            if self._stop.is_set():
                return
            body = b"%d %d" % (number, call)
            offset = ring.enqueue(body, wait=None)
            with self._lock:
                self._offsets[body] = offset
            queue.push(body)
            with self._lock:
                self._pushed.append(body)

    def _take(self, ring: Ring, queue: Queue, number: int) -> None:
        while not self._stop.is_set():
            try:
                job = queue.lease(ttl=TTL_SECONDS, wait=0.1)
            except QueueEmpty:
                continue
            queue.ack(job)
            with self._lock:
                self._taken.append(job.body)

    def wait_for_progress(self, calls: int = 60) -> None:
        """Return once so many more calls of each kind were acknowledged."""
        wanted = [count + calls for count in self._counts()]

        def is_done() -> bool:
            assert not self._errors, self._errors
            return all(count >= least for count, least in zip(self._counts(), wanted, strict=True))

        wait_until(is_done, f"{wanted} calls are answered")

    def _counts(self) -> tuple[int, int, int]:
        with self._lock:
            return len(self._offsets), len(self._pushed), len(self._taken)

    def check(self) -> None:
        """Nothing that was acknowledged is lost, and nothing happened twice."""
        assert self._errors == []
        with open_redis(self.url) as store:
            _check_ring(store.ring(RING), self._offsets)
            queue = store.queue(self.queue)
            assert queue.count().leased == 0
            while jobs := queue.lease_many(1_000, ttl=TTL_SECONDS):
                queue.ack_many(jobs)
                self._taken += [job.body for job in jobs]
        assert sorted(self._taken) == sorted(self._pushed)


def _check_ring(ring: Ring, offsets: dict[bytes, int]) -> None:
    found = {}
    for offset in range(ring.info().tail_offset):
        entry = ring.get(offset)
        assert entry is not None, offset
        found[offset] = entry.body
    assert {body: offset for offset, body in found.items()} == offsets
    assert max(Counter(found.values()).values(), default=1) == 1


# In processes of their own -------------------------------------------------------------------


def add_until_killed(channel: Channel, url: str, queue: str, worker: int) -> None:
    """Add to the ring and to the queue by turns; report the call and the offset in the ring."""
    with open_redis(url) as store:
        ring, pushing = store.ring(RING, mode="open"), store.queue(queue)
        for call in range(CALLS_MAX):
            body = b"%d %d" % (worker, call)
            if call % 3:
                offset = ring.enqueue(body, wait=None)
            else:
                try:
                    # Short: a transaction whose process is killed blocks the others until then.
                    with ring.transaction(ttl=0.1, wait=None) as transaction:
                        offset = transaction.enqueue(body)
                except TransactionAborted:
                    continue  # On a busy machine a living process may be too late, too.
            pushing.push(body)
            channel.report([call, offset])


def hold_lock(channel: Channel, url: str, ttl: float) -> None:
    """Acquire the lock, waiting for it; report its token, and keep it."""
    with open_redis(url) as store:
        held = store.lock(LOCK, ttl=ttl).acquire()
        channel.report(held.token)
        channel.wait_for_order()


def wait_for_lock(channel: Channel, url: str) -> None:
    """Report that it is about to wait for the lock, and the token once it has it."""
    with open_redis(url) as store:
        lock = store.lock(LOCK, ttl=TTL_SECONDS)
        channel.report(0)
        channel.report(lock.acquire().token)


def fork_and_add(channel: Channel, url: str, count: int) -> None:
    """Fork with a store that was used before; parent and child both add to the ring."""
    with open_redis(url) as store:
        ring = store.ring(RING, capacity=CAPACITY)
        ring.enqueue(b"before")
        child = os.fork()
        for _ in range(count):
            ring.enqueue(b"parent" if child else b"child")
        if child == 0:
            os._exit(0)
        _, status = os.waitpid(child, 0)
        channel.report(status)
