"""Which queue a worker takes from next: shares by weight, none left out, none asked in vain.

Each queue has a pass that grows by 1/weight with every message taken from it; the lowest is next
(stride scheduling). With more than one queue a thread each watches for work, so that queues with
none cost nothing when there is some elsewhere.
"""

import logging
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from segue.errors import InvalidArgument, QueueLocked, StorageFull, StoreClosed, StoreUnavailable
from segue.stores.contract import Queue
from segue.stores.job import Job
from segue.tasks.rules import TENANT_MARK

if TYPE_CHECKING:
    from segue.tasks.app import App

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 0.5
FILES_PER_QUEUE: Final = 16
FILES_KEPT: Final = 250
"""For topics, the index, processes, and what tasks themselves open."""
FULL_PAUSE_SECONDS: Final = 1.0
DISCOVER_SECONDS: Final = 1.0
"""How soon a tenant's first message is noticed."""


class _Source:
    def __init__(self, queue: Queue, weight: int) -> None:
        self.queue = queue
        self.weight = weight
        self.passed = 0.0
        self.is_ready = True
        self.is_gone = False
        self.is_watched = False
        self.wanted = threading.Event()
        """Whether to be told when there is work."""


class Sources:
    """The queues of a worker. `lease` is for one thread at a time."""

    def __init__(
        self,
        app: "App",
        names: Sequence[str],
        *,
        owner: str,
        lease_ttl: float | None,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._app = app
        self._names = list(names)
        self._owner = owner
        self._ttl = lease_ttl
        self._on_error = on_error
        self._sources: dict[str, _Source] = {}
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._looked = 0.0
        self._passed = 0.0
        """How far those who always had work have come."""
        self._left_alone: set[str] = set()
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._queues_max = max(len(self._names), (files_max - FILES_KEPT) // FILES_PER_QUEUE)
        for name in self._names:
            self._add(name)
        self._discover()

    # Taking --------------------------------------------------------------------------------

    def lease(self, count: int, wait: float) -> list[Job]:
        """Return up to `count` jobs; wait for one so long at most."""
        if time.monotonic() - self._looked >= DISCOVER_SECONDS and not self._looks_around():
            return []
        jobs = self._lease_ready(count)
        if jobs or wait <= 0 or self._stopping.is_set():
            return jobs
        if len(self._sources) == 1:
            (source,) = self._sources.values()
            return self._lease_from(source, count, wait)
        if not self._sources:
            self._stopping.wait(wait)
            return []
        with self._news:
            if not any(source.is_ready for source in self._sources.values()):
                self._news.wait(wait)
        return self._lease_ready(count)

    def _looks_around(self) -> bool:
        """Look for new queues; tell whether the server could be reached."""
        try:
            self._discover()
        except StoreUnavailable as error:
            self._wait_for_server(error)
            return False
        return True

    def _wait_for_server(self, error: StoreUnavailable) -> None:
        logger.warning("nothing taken, will be tried again reason=%s", error)
        self._stopping.wait(FULL_PAUSE_SECONDS)

    def _lease_ready(self, count: int) -> list[Job]:
        jobs: list[Job] = []
        is_alone = len(self._sources) == 1
        while len(jobs) < count:
            ready = [source for source in self._sources.values() if source.is_ready or is_alone]
            if not ready:
                break
            source = min(ready, key=lambda each: max(each.passed, self._passed))
            # One by one where others wait, too: shares are kept in the small.
            wanted = count - len(jobs) if len(ready) == 1 else 1
            found = self._lease_from(source, wanted, 0)
            jobs += found
            if not found:
                if is_alone:
                    break
                source.is_ready = False
                source.wanted.set()
            elif len(found) < wanted and is_alone:
                break
        return jobs

    def _lease_from(self, source: _Source, count: int, wait: float) -> list[Job]:
        try:
            found = source.queue.lease_many(count, ttl=self._ttl, wait=wait, owner=self._owner)
        except QueueLocked:
            return []
        except StoreClosed:
            self._drop(source)
            return []
        except StorageFull as error:  # A lease is an event, too.
            logger.warning("nothing taken, will be tried again reason=%s", error)
            time.sleep(FULL_PAUSE_SECONDS)
            return []
        except StoreUnavailable as error:  # What it leased all the same comes back by itself.
            self._wait_for_server(error)
            return []
        if found:
            # Who had nothing for long does not make up for it now.
            self._passed = max(source.passed, self._passed)
            source.passed = self._passed + len(found) / source.weight
        return found

    # Queues --------------------------------------------------------------------------------

    def _add(self, name: str) -> None:
        base, _, tenant = name.partition(TENANT_MARK)
        queue = self._app.queue_for(base, tenant or None, sets_rules=True)
        if self._ttl is not None:
            try:
                queue.rules.lease_us(self._ttl)
            except InvalidArgument as error:
                raise InvalidArgument(f"queue {name}: {error}") from error
        source = _Source(queue, self._app.weight_of(name))
        self._sources[name] = source
        if len(self._sources) > 1:
            for each in self._sources.values():
                self._watch(each)

    def _drop(self, source: _Source) -> None:
        """Let go of a queue that was removed; made anew, it is taken up again."""
        _ = self._app.store.queues()  # Raises StoreClosed if it is the store that is gone.
        name = source.queue.name
        source.is_gone = True
        self._sources.pop(name, None)
        self._app.forget_queue(name)
        self._looked = 0.0

    def _discover(self) -> None:
        """Take up the queues of tenants that are new, and what was removed and made anew."""
        self._looked = time.monotonic()
        marks = tuple(name + TENANT_MARK for name in self._names)
        found = self._app.store.queues()
        for name in [*self._names, *(each for each in found if each.startswith(marks))]:
            if name not in self._sources and name not in self._left_alone:
                if len(self._sources) >= self._queues_max:
                    self._left_alone.add(name)
                    logger.warning(
                        "left alone queue=%s reason=no more than %d can be open with so few files",
                        name,
                        self._queues_max,
                    )
                    continue
                self._add(name)

    def _watch(self, source: _Source) -> None:
        if source.is_watched:
            return
        source.is_watched = True
        threading.Thread(
            target=self._run_watch, args=(source,), name="segue-watch", daemon=True
        ).start()

    def _run_watch(self, source: _Source) -> None:
        try:
            while not self._stopping.is_set() and not source.is_gone:
                if not source.wanted.wait(WATCH_SECONDS):
                    continue
                if self._has_come(source):
                    source.wanted.clear()
                    source.is_ready = True
                    with self._news:
                        self._news.notify_all()
        except StoreClosed:
            source.is_ready = True  # Whoever leases next finds out which is closed.
            with self._news:
                self._news.notify_all()
        except BaseException as error:  # noqa: BLE001 - its queue would never be served again.
            self._on_error(error)

    def _has_come(self, source: _Source) -> bool:
        try:
            return source.queue.wait(WATCH_SECONDS)
        except StoreUnavailable:  # Whoever leases says so.
            self._stopping.wait(FULL_PAUSE_SECONDS)
            return False

    def depth(self) -> int:
        """Return how many messages are ready in all queues that are not paused."""
        ready = 0
        for source in list(self._sources.values()):
            try:
                count = source.queue.count().ready
                ready += count if count and not source.queue.stats().paused else 0
            except StoreClosed:
                continue  # Removed; whoever leases next finds out.
        return ready

    @property
    def names(self) -> list[str]:
        return sorted(self._sources)

    def look_at_all(self) -> None:
        """Ask every queue next time, whether it is known to have something or not."""
        for source in self._sources.values():
            source.is_ready = True

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._stopping.set()
        with self._news:
            self._news.notify_all()
