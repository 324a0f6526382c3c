"""Connections to one server: a few, kept and handed round. The same for every kind of server."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from segue.errors import ConnectionsBusy, StoreUnavailable
from segue.stores.forking import in_every_child

IDLE_SECONDS_MAX: Final = 60.0
"""How long a connection beyond those that are kept may be idle before it is closed."""


class Connection(Protocol):
    """What is asked of a connection."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Pool(Generic[C]):
    """At most `size` connections; half of them stay open when nobody uses them.

    Whoever asks gets the one used last, else a new one, else waits for `wait_seconds`. Safe from
    any thread; after a fork the child opens its own.
    """

    def __init__(self, connect: Callable[[], C], *, size: int, wait_seconds: float) -> None:
        self._connect = connect
        self._size = size
        self._kept = max(1, size // 2)
        self._wait_seconds = wait_seconds
        self._is_closed = False
        self.begin()
        in_every_child(self)

    def begin(self) -> None:
        """Have no connections. After a fork those that were open are the parent's."""
        self._changed = threading.Condition()
        self._idle: deque[tuple[float, C]] = deque()
        # Weak: whoever is interrupted between two steps may drop one on the floor.
        self._used: WeakSet[C] = WeakSet()

    @property
    def open(self) -> int:
        """How many connections there are, in use or not."""
        return len(self._idle) + len(self._used)

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Yield a connection; one that an error went through is closed. Raises ConnectionsBusy."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)

    def take(self, *, wait_seconds: float | None = None) -> C:
        """Return a connection, to be given back or dropped.

        Raises ConnectionsBusy, and StoreUnavailable once the pool is closed.
        """
        patience = self._wait_seconds if wait_seconds is None else wait_seconds
        deadline = time.monotonic() + patience
        with self._changed:
            while True:
                if self._is_closed:
                    raise StoreUnavailable("another server has taken over")
                if self._idle:
                    connection = self._idle.pop()[1]
                    self._used.add(connection)
                    return connection
                if self.open < self._size:
                    connection = self._connect()
                    self._used.add(connection)
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ConnectionsBusy(size=self._size, seconds=patience)
                self._changed.wait(left)
        try:
            connection.connect()
        except BaseException:
            self._forget(connection)
            raise
        return connection

    def give_back(self, connection: C) -> None:
        """Let others use a connection that is in order."""
        now = time.monotonic()
        spare: list[C] = []
        with self._changed:
            self._used.discard(connection)
            if self._is_closed:
                spare.append(connection)
            else:
                self._idle.append((now, connection))
                while len(self._idle) > self._kept and now - self._idle[0][0] > IDLE_SECONDS_MAX:
                    spare.append(self._idle.popleft()[1])
            self._changed.notify()
        for each in spare:
            each.disconnect()

    def drop(self, connection: C) -> None:
        """Close a connection of which nobody knows how it stands."""
        connection.disconnect()
        self._forget(connection)

    def _forget(self, connection: C) -> None:
        with self._changed:
            self._used.discard(connection)
            self._changed.notify()

    def forget_idle(self) -> None:
        """Close what is idle: the server behind it may have changed."""
        with self._changed:
            idle = [connection for _, connection in self._idle]
            self._idle.clear()
            self._changed.notify_all()
        for connection in idle:
            connection.disconnect()

    def in_use(self) -> list[C]:
        """Return the connections that somebody uses now."""
        with self._changed:
            return list(self._used)

    def close(self) -> None:
        """Close what is idle; what is in use closes when it is given back."""
        with self._changed:
            self._is_closed = True
        self.forget_idle()
