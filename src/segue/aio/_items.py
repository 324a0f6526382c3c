"""Iterators for asyncio: a thread fetches some at a time, a task gets them one by one."""

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import Final, Self, TypeVar

from segue.aio._threads import Threads
from segue.aio._waiting import patiently
from segue.delivery.topic_record import TopicRecord
from segue.errors import SegueError
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.topic_contract import Start

FETCH_ITEMS_MAX: Final = 100
"""How many items an iterator fetches at once, in the end."""
FETCH_GROWTH: Final = 4
"""How many times more each time, from one on: who wants the first does not wait for others."""

S = TypeVar("S")
T = TypeVar("T")


class Items(AsyncIterator[T]):
    """Yields what is there to be read. For one task at a time.

    It begins when its first item is asked for, or by `await`ing it. Whoever is cancelled on the
    way to the next item can ask again: what was fetched meanwhile comes then. `aclose()` lets go
    of the files at once; who drops the iterator lets go of them, too.
    """

    def __init__(
        self,
        threads: Threads,
        start: Callable[[], Iterator[T]],
        *,
        fetch_max: int = FETCH_ITEMS_MAX,
    ) -> None:
        self._threads = threads
        self._start = start
        self._fetch_max = fetch_max
        self._fetch_count = 1
        self._turn = threading.Lock()
        self._items: Iterator[T] | None = None
        self._fetched: deque[T] = deque()
        self._failure: SegueError | None = None
        self._is_over = False

    def __await__(self) -> Generator[object, None, Self]:
        """Begin now, so that what speaks against it is said here."""
        return self._begin().__await__()

    async def _begin(self) -> Self:
        await self._threads.call(lambda: self._in_turn(self._begun))
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._fetched:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._is_over:
                raise StopAsyncIteration
            await self._fetch()
        return self._fetched.popleft()

    async def _fetch(self) -> None:
        """Fetch some, or find that it is over."""
        await self._threads.call(lambda: self._in_turn(self._read))

    async def aclose(self) -> None:
        """Let go of what is read; nothing more comes."""
        self._is_over = True
        self._failure = None
        self._fetched.clear()
        await self._threads.call_whatever_comes(lambda: self._in_turn(self._drop))

    # In a thread ---------------------------------------------------------------------------

    def _in_turn(self, step: Callable[[], S]) -> S:
        with self._turn:
            return step()

    def _begun(self) -> Iterator[T]:
        if self._items is None:
            self._items = self._start()
        return self._items

    def _drop(self) -> None:
        self._items = None

    def _read(self) -> None:
        """Fetch some. What goes wrong is told after all that came before it, and is the end."""
        if self._is_over:
            return
        count = 0
        try:
            for item in islice(self._begun(), self._fetch_count):
                self._take(item)
                count += 1
        except SegueError as error:
            self._is_over = True
            if count == 0:
                raise
            self._failure = error
        else:
            if count < self._fetch_count:
                self._end()
            self._fetch_count = min(self._fetch_count * FETCH_GROWTH, self._fetch_max)

    def _take(self, item: T) -> None:
        self._fetched.append(item)

    def _end(self) -> None:
        """Nothing is left."""
        self._is_over = True


class Following(Items[TopicRecord]):
    """Yields records as they come, until none comes within `timeout`.

    The iterator of the store would wait in a thread for as long as it takes. So it is asked for
    what is there only, and begun anew from its end as soon as there is more.
    """

    def __init__(
        self,
        threads: Threads,
        follow: Callable[[Start, float], Iterator[TopicRecord]],
        ends: Callable[[], Mapping[int, int]],
        start: Start,
        timeout: Duration | None,
    ) -> None:
        duration_us(timeout, name="timeout")
        super().__init__(threads, lambda: follow(start, 0))
        self._follow = follow
        self._ends = ends
        self._timeout = timeout
        self._places: dict[int, int] | None = None
        """Where to go on once all is read."""

    async def _fetch(self) -> None:
        line = self._threads.line(type(self).__name__, hex(id(self)))
        if not await patiently(line, self._attempt, self._timeout, lambda is_done: not is_done):
            self._is_over = True

    async def _attempt(self, seconds: float) -> bool:
        return await self._threads.call(
            lambda: self._in_turn(lambda: self._look(seconds)), is_wait=seconds != 0
        )

    # In a thread ---------------------------------------------------------------------------

    def _look(self, seconds: float) -> bool:
        """Read what comes within `seconds`; tell whether nothing more is to be waited for."""
        if seconds == 0 or self._items is not None or self._is_there(seconds):
            self._read()
        return bool(self._fetched) or self._is_over

    def _is_there(self, seconds: float) -> bool:
        """Tell whether a record comes. It is only read later, with all that came with it."""
        if self._is_over or self._places is None:
            return True
        return next(self._follow(self._places, seconds), None) is not None

    def _begun(self) -> Iterator[TopicRecord]:
        if self._items is None and self._places is not None:
            self._items = self._follow(self._places, 0)
        items = super()._begun()
        if self._places is None:
            # Asked for once the iterator has its place, which is no later, and before it moves:
            # its end is at these offsets or further on.
            self._places = dict(self._ends())
        return items

    def _take(self, item: TopicRecord) -> None:
        super()._take(item)
        assert self._places is not None
        self._places[item.partition] = max(self._places.get(item.partition, 0), item.offset + 1)

    def _end(self) -> None:
        self._items = None
