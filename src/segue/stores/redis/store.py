"""A Redis or Valkey server, or a cluster of them, as a store."""

import logging
import threading
import time
import weakref
from types import TracebackType
from typing import Final, Self, cast

from segue.clock import Clock, Ticks
from segue.delivery.rules import QueueRules
from segue.delivery.topic_rules import TopicRules
from segue.errors import (
    LogNotFound,
    SegueError,
    StoreClosed,
    UnsupportedFormat,
    UnsupportedServer,
)
from segue.log.layout import checked_name, is_name
from segue.log.options import Duration
from segue.stores.contract import RingMode
from segue.stores.forking import in_every_child
from segue.stores.heartbeat import Heartbeat
from segue.stores.redis.address import Address
from segue.stores.redis.calls import Calls
from segue.stores.redis.keys import FORMAT, Kind, base_key, format_key, names_key
from segue.stores.redis.lock import RedisLock, lock_exists
from segue.stores.redis.queue import RedisQueue, queue_exists, remove_queue
from segue.stores.redis.ring import RedisRing, open_ring, ring_exists
from segue.stores.redis.servers import ask, servers_of
from segue.stores.redis.topics.core import User
from segue.stores.redis.topics.topic import RedisTopic, open_topic, topic_exists

logger = logging.getLogger(__name__)

MAJOR_VERSION_MIN: Final = 7
"""The first version with functions."""
NAMED_SECONDS: Final = 300.0
"""How often a name is noted again: a failover may lose it."""
BEATS_MAX: Final = 64
"""How many leases are kept alive at once: a node that hangs must not cost those on others."""
CLOSING_SECONDS: Final = 2.0
"""How long letting go is tried: what is not let go of is when its time is over."""
OPENING_SECONDS: Final = 2.0
"""How long opening tries to reach the server: a wrong address should be told soon."""


class RedisStore:
    """Queues, rings, locks and topics on a server. Safe from any thread."""

    def __init__(
        self,
        address: Address,
        *,
        create: bool = True,
        clock: Clock | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        self.url = address.url
        self.address = address
        self.namespace = address.options.namespace
        self.heartbeat = Heartbeat(side_by_side=BEATS_MAX)
        self.calls = Calls(address, servers_of(address), clock=clock, ticks=ticks)
        self.removals: dict[str, int] = {}
        """How often we removed a queue: handles from before say so."""
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        """Members and producers that are open here: they let go before the store does."""
        self._named: dict[tuple[Kind, str], float] = {}
        self._closed = False
        self._lock = threading.Lock()
        in_every_child(self)
        try:
            _check_servers(self.calls, format_key(self.namespace), is_synced=address.options.fsync)
            _check_store(self.calls, format_key(self.namespace), self.url, create=create)
        except BaseException:
            self.calls.servers.close()
            raise

    def begin(self) -> None:
        """Have locks and threads of our own, after a fork."""
        self._lock = threading.Lock()
        self.heartbeat.begin()

    # Names ---------------------------------------------------------------------------------

    def base(self, kind: Kind, name: str) -> str:
        """Return what the keys of a thing begin with. Raises InvalidName, StoreClosed."""
        self.require_open()
        return base_key(self.namespace, kind, checked_name(name))

    def register(self, kind: Kind, name: str, *, is_new: bool = False) -> None:
        """Note a name before it is used first: whoever lists finds it, and looks if it is there.

        Also after that, if it `is_new`: somebody may have taken it off the list meanwhile.
        """
        now = time.monotonic()
        if is_new:
            self._named.pop((kind, name), None)
        if now - self._named.get((kind, name), -NAMED_SECONDS) >= NAMED_SECONDS:
            self.calls.command(*self._naming("SADD", kind), name)
            self._named[kind, name] = now

    def unregister_queue(self, name: str) -> None:
        """Take the name of a queue that was removed off the list: each there costs who lists."""
        self.calls.command(*self._naming("SREM", "queue"), name)
        if queue_exists(self, name):  # Made anew by somebody who may have noted it just before.
            self.register("queue", name, is_new=True)

    def _naming(self, command: str, kind: Kind) -> tuple[str, str, str]:
        key = names_key(self.namespace, kind)
        return key, command, key

    def _names(self, kind: Kind) -> list[str]:
        self.require_open()
        found = cast("list[bytes]", self.calls.command(*self._naming("SMEMBERS", kind)))
        names = (name.decode(errors="replace") for name in found)
        return sorted(name for name in names if is_name(name))

    # Queues --------------------------------------------------------------------------------

    def queue(self, name: str, rules: QueueRules | None = None) -> RedisQueue:
        """Return the queue called `name`."""
        queue = RedisQueue(self, name)
        if rules is not None:
            queue.configure(rules)
        return queue

    def queues(self) -> list[str]:
        """Return the names of the queues there are."""
        return [name for name in self._names("queue") if queue_exists(self, name)]

    def has_queue(self, name: str) -> bool:
        """Tell whether there is a queue of that name. Raises InvalidName."""
        return queue_exists(self, name)

    def remove_queue(self, name: str) -> bool:
        """Delete a queue with all it holds; tell whether it was there."""
        return remove_queue(self, name)

    # Rings ---------------------------------------------------------------------------------

    def ring(
        self,
        name: str,
        *,
        capacity: int | None = None,
        entries_per_segment: int | None = None,
        mode: RingMode = "open_or_create",
    ) -> RedisRing:
        """Return the ring called `name`."""
        return open_ring(
            self, name, capacity=capacity, entries_per_segment=entries_per_segment, mode=mode
        )

    def rings(self) -> list[str]:
        """Return the names of the rings there are."""
        return [name for name in self._names("ring") if ring_exists(self, name)]

    # Locks ---------------------------------------------------------------------------------

    def lock(self, name: str, *, ttl: Duration = 30) -> RedisLock:
        """Return the lock called `name`."""
        return RedisLock(self, name, ttl)

    def locks(self) -> list[str]:
        """Return the names of the locks that were ever taken."""
        return [name for name in self._names("lock") if lock_exists(self, name)]

    # Topics --------------------------------------------------------------------------------

    def topic(
        self, name: str, *, partitions: int | None = None, rules: TopicRules | None = None
    ) -> RedisTopic:
        """Return the topic called `name`."""
        return open_topic(self, name, partitions=partitions, rules=rules)

    def topics(self) -> list[str]:
        """Return the names of the topics there are."""
        return [name for name in self._names("topic") if topic_exists(self, name)]

    # Closing -------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Raise StoreClosed if the store is closed."""
        if self._closed:
            raise StoreClosed(f"{self.url} is closed")

    def close(self) -> None:
        """Let go of everything. Closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self.calls.hurry(CLOSING_SECONDS)
            for user in list(self.users):
                try:
                    user.close()
                except SegueError as error:
                    logger.warning("not closed in order store=%s reason=%s", self.url, error)
            self._closed = True
        self.heartbeat.close()
        self.calls.leave()
        self.calls.servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_servers(calls: Calls, key: str, *, is_synced: bool) -> None:
    """Raise UnsupportedServer if one is too old, or would lose what it is given."""
    calls.command(key, "PING", retry=OPENING_SECONDS)
    for node in calls.servers.nodes():
        with node.pool.connection() as connection:
            text = cast("bytes", ask(connection, "INFO", "everything"))
        _check_server(text.decode(errors="replace"), is_synced=is_synced)


def _check_server(text: str, *, is_synced: bool) -> None:
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    # Valkey says under this name which version of Redis it is compatible with.
    version = facts.get("redis_version", "unknown")
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < MAJOR_VERSION_MIN:
        raise UnsupportedServer(f"version {version}; functions came with {MAJOR_VERSION_MIN}.0")
    if is_synced and facts.get("aof_enabled") != "1":
        raise UnsupportedServer("fsync=yes needs a server with appendonly yes")
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
        raise UnsupportedServer(
            f"maxmemory-policy {policy} drops messages, or what makes repeating safe, when memory "
            "runs out; set it to noeviction, which refuses pushes instead"
        )


def _check_store(calls: Calls, key: str, url: str, *, create: bool) -> None:
    found = cast("bytes | None", calls.command(key, "GET", key))
    if found is None:
        if not create:
            raise LogNotFound(f"there is no store at {url}")
        calls.command(key, "SET", key, FORMAT, "NX")
    elif found != str(FORMAT).encode():
        raise UnsupportedFormat(
            f"{url} says format {found.decode(errors='replace')!r}; this Segue knows {FORMAT}"
        )
