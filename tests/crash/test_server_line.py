"""A line to a server that breaks again and again, in every way: each call happens, and once."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from segue.errors import QueueEmpty
from segue.server.building import build_app
from segue.server.serving import ServerThread
from segue.stores.contract import Store
from segue.stores.opening import open_directory, open_http
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.server_users import QUEUE
from tests.http_proxy import HttpProxy
from tests.waiting import LIMIT_SECONDS, random_pause, wait_until

BREAKS: Final = 400 if TORTURE else 25
BREAK_SECONDS_MAX: Final = 0.2
ANSWER_BYTES_MAX: Final = 400
"""Longer than most answers: some are cut in the head, some in the body."""
TTL_SECONDS: Final = 3_600.0
"""Longer than the test: what is delivered twice was not lost by its consumer."""
PUSHERS: Final = 3
WORKERS: Final = 3
RINGERS: Final = 2


class Load:
    """Threads that push, lease and ack, and that use a ring. What they were told is kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self.pushed: list[tuple[str, bytes]] = []
        self.acked: list[tuple[str, bytes]] = []
        self.enqueued: dict[int, bytes] = {}
        self.errors: list[Exception] = []
        store.ring("bus", capacity=1_000_000)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have all threads work for the length of the block."""
        works = [self._push] * PUSHERS + [self._work] * WORKERS + [self._ring] * RINGERS
        threads = [
            threading.Thread(target=self._run, args=(work, number))
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

    def _run(self, work: Callable[[int, int], None], number: int) -> None:
        try:
            calls = 0
            while not self._stop.is_set():
                work(number, calls)
                calls += 1
        except Exception as error:  # noqa: BLE001 - none is expected; the test shows all.
            self.errors.append(error)

    def _push(self, number: int, call: int) -> None:
        body = b"%d %d" % (number, call)
        self.pushed.append((self._store.queue(QUEUE).push(body), body))

    def _work(self, number: int, call: int) -> None:
        queue = self._store.queue(QUEUE)
        try:
            job = queue.lease(ttl=TTL_SECONDS, wait=0.2)
        except QueueEmpty:
            return
        queue.ack(job)
        self.acked.append((job.id, job.body))

    def _ring(self, number: int, call: int) -> None:
        body = b"%d %d" % (number, call)
        offset = self._store.ring("bus").enqueue(body, wait=None)
        assert offset not in self.enqueued
        self.enqueued[offset] = body

    def wait_for_progress(self, calls: int) -> None:
        """Return once so many more calls of each kind were answered."""
        wanted = [count + calls for count in self._counts()]

        def is_done() -> bool:
            assert not self.errors, self.errors
            return all(count >= least for count, least in zip(self._counts(), wanted, strict=True))

        wait_until(is_done, f"{wanted} calls are answered")

    def _counts(self) -> tuple[int, int, int]:
        return len(self.pushed), len(self.acked), len(self.enqueued)


def test_a_line_that_breaks_again_and_again_loses_and_doubles_nothing(scratch: Path) -> None:
    """While the server lives each call is made once, however often it is sent."""
    seed = new_seed()
    chance = random.Random(seed)
    with (
        naming_seed(seed),
        open_directory(scratch / "store", sync="os") as direct,
        ServerThread(build_app(direct)) as server,
        HttpProxy(server.port) as proxy,
        open_http(f"{proxy.url}?retry={LIMIT_SECONDS:g}&timeout=0.5") as store,
    ):
        load = Load(store)
        with load.running():
            for _ in range(BREAKS):
                break_line(proxy, chance)
                random_pause(chance, BREAK_SECONDS_MAX)
                proxy.restore()
                load.wait_for_progress(chance.randrange(1, 4))
        check(direct, load)


def break_line(proxy: HttpProxy, chance: random.Random) -> None:
    """Let something happen to the line."""
    after_bytes = chance.randrange(ANSWER_BYTES_MAX)
    cut_answer = partial(proxy.cut_answer, after_bytes=after_bytes)
    ways: list[Callable[[], None]] = [proxy.cut_once, proxy.cut, proxy.freeze]
    ways += [proxy.lose_answer, cut_answer] * 3
    chance.choice(ways)()


def check(direct: Store, load: Load) -> None:
    """Look at what is there without a line, and hold it to what was answered."""
    assert load.errors == []
    queue, ring = direct.queue(QUEUE), direct.ring("bus")
    assert queue.count().leased == 0
    left: list[tuple[str, bytes]] = []
    while messages := queue.pop_many(10_000):
        left += [(message.id, message.body) for message in messages]
    entries = {
        entry.offset: entry.body for entry in map(ring.get, range(ring.info().tail_offset)) if entry
    }

    assert sorted(load.acked + left) == sorted(load.pushed)
    assert entries == load.enqueued
