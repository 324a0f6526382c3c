"""A store behind a Segue server."""

import logging
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from segue.clock import Ticks
from segue.delivery.rules import QueueRules
from segue.delivery.topic_rules import TopicRules
from segue.errors import AccessDenied, SegueError, StoreClosed, UnsupportedServer
from segue.log.layout import checked_name
from segue.log.options import Duration
from segue.stores.contract import RingMode
from segue.stores.forking import in_every_child
from segue.stores.heartbeat import Heartbeat
from segue.stores.http.address import Address
from segue.stores.http.calls import LONG_SECONDS, Calls, path_of
from segue.stores.http.queue import HttpQueue
from segue.stores.http.wire.about import API, About, Names
from segue.stores.http.wire.queues import Queues, Removed

if TYPE_CHECKING:
    from segue.stores.http.lock import HttpLock
    from segue.stores.http.ring import HttpRing
    from segue.stores.http.topics.topic import HttpTopic

logger = logging.getLogger(__name__)

CLOSING_SECONDS: Final = 2.0
"""How long letting go is tried: what is not let go of is when its time is over."""
CLOSING_SECONDS_MIN: Final = 0.05
BEATS_MAX: Final = 16
"""How many leases are kept alive at once: a request that hangs must not cost others."""


class User(Protocol):
    """Something open that lets go before the store does."""

    def close(self) -> None: ...


class HttpStore:
    """Queues, rings, locks and topics behind a server. Safe from any thread."""

    def __init__(self, address: Address, *, ticks: Ticks | None = None) -> None:
        self.url = address.url
        self.address = address
        self.heartbeat = Heartbeat(side_by_side=BEATS_MAX)
        self.calls = Calls(address, ticks=ticks)
        self.removals: dict[str, int] = {}
        """How often we removed a queue: handles from before say so."""
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        """Members and producers that are open here: they let go before the store does."""
        self._closed = False
        self._closed_by: float | None = None
        self._lock = threading.Lock()
        in_every_child(self)
        try:
            self.about = self.calls.introduce(About)
            if self.about.server != "segue":
                raise UnsupportedServer(f"{self.url} is no Segue server")
            if self.about.api < API:
                raise UnsupportedServer(
                    f"{self.url} speaks version {self.about.api}; this Segue needs {API}"
                )
        except BaseException:
            self.calls.close()
            raise

    def begin(self) -> None:
        """Have locks and threads of our own, after a fork."""
        self._lock = threading.Lock()
        self.heartbeat.begin()

    # Queues --------------------------------------------------------------------------------

    def queue(self, name: str, rules: QueueRules | None = None) -> HttpQueue:
        """Return the queue called `name`."""
        self.require_open()
        queue = HttpQueue(self, checked_name(name))
        # Changing rules takes more than using a queue does: only where they are not so already.
        if rules is not None and not _has_rules(queue, rules):
            queue.configure(rules)
        return queue

    def queues(self) -> list[str]:
        """Return the names of the queues there are."""
        self.require_open()
        return self.calls.get("/queues", Queues).queues

    def has_queue(self, name: str) -> bool:
        """Tell whether there is a queue of that name. Raises InvalidName."""
        return checked_name(name) in self.queues()

    def remove_queue(self, name: str) -> bool:
        """Delete a queue with all it holds; tell whether it was there."""
        self.require_open()
        path = path_of("queues", checked_name(name))
        before = self.removals.get(name, 0)
        self.removals[name] = before + 1  # First: who opens it meanwhile opens the new one.
        try:
            return self.calls.delete(path, Removed, takes=LONG_SECONDS).removed
        except BaseException:
            self.removals[name] = before
            raise

    # Rings ---------------------------------------------------------------------------------

    def ring(
        self,
        name: str,
        *,
        capacity: int | None = None,
        entries_per_segment: int | None = None,
        mode: RingMode = "open_or_create",
    ) -> "HttpRing":
        """Return the ring called `name`."""
        from segue.stores.http.ring import open_ring

        self.require_open()
        return open_ring(
            self, name, capacity=capacity, entries_per_segment=entries_per_segment, mode=mode
        )

    def rings(self) -> list[str]:
        """Return the names of the rings there are."""
        return self._names("/rings")

    # Locks ---------------------------------------------------------------------------------

    def lock(self, name: str, *, ttl: Duration = 30) -> "HttpLock":
        """Return the lock called `name`."""
        from segue.stores.http.lock import HttpLock

        self.require_open()
        return HttpLock(self, checked_name(name), ttl)

    def locks(self) -> list[str]:
        """Return the names of the locks that were ever taken."""
        return self._names("/locks")

    # Topics --------------------------------------------------------------------------------

    def topic(
        self, name: str, *, partitions: int | None = None, rules: TopicRules | None = None
    ) -> "HttpTopic":
        """Return the topic called `name`."""
        from segue.stores.http.topics.topic import open_topic

        self.require_open()
        return open_topic(self, name, partitions=partitions, rules=rules)

    def topics(self) -> list[str]:
        """Return the names of the topics there are."""
        return self._names("/topics")

    def _names(self, path: str) -> list[str]:
        self.require_open()
        return self.calls.get(path, Names).names

    # Closing -------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Raise StoreClosed if the store is closed."""
        if self._closed:
            raise StoreClosed(f"{self.url} is closed")

    @property
    def closing_seconds(self) -> float:
        """How long letting go of something may take: all together where the store is closed."""
        if self._closed_by is None:
            return CLOSING_SECONDS
        return max(CLOSING_SECONDS_MIN, self._closed_by - time.monotonic())

    def close(self) -> None:
        """Let go of everything. Closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed_by = time.monotonic() + CLOSING_SECONDS
            for user in list(self.users):
                try:
                    user.close()
                except SegueError as error:
                    logger.warning("not closed in order store=%s reason=%s", self.url, error)
            self._closed = True
        self.heartbeat.close()
        self.calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _has_rules(queue: HttpQueue, rules: QueueRules) -> bool:
    try:
        return queue.rules == rules
    except AccessDenied:
        return False
