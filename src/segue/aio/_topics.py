"""What the nouns of topics stand on: how records are waited for, and whose turn it is.

    _poll    a call that may wait for records, which are given again if nobody is there to have them
    _follow  an iterator that may wait for records

A reader, member or producer is for one thread at a time: calls of several tasks come one after the
other, and those that wait do so in small steps, so that a commit finds its turn while another task
polls. Nothing here knows one store from another.
"""

import contextlib
import inspect
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from segue.aio._handles import NamedHandle, OpenHandle
from segue.aio._items import FETCH_GROWTH, FETCH_ITEMS_MAX, Following
from segue.aio._threads import Threads
from segue.aio._waiting import patiently
from segue.delivery.topic_record import TopicRecord
from segue.errors import InvalidArgument, OffsetTrimmed, StoreClosed
from segue.log.options import Duration
from segue.stores import topic_contract
from segue.stores.arguments import duration_us
from segue.stores.topic_contract import OnRebalance, Start

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S")
T = TypeVar("T")
Fetched = TypeVar("Fetched", bound=Sized)
"""Records in a list, or in an Arrow table."""

_this_thread: Final = threading.local()


class TopicHandle(NamedHandle[topic_contract.Topic]):
    """What a topic does besides."""

    def _follow(
        self,
        step: Callable[[topic_contract.Topic, Start, float], Iterator[TopicRecord]],
        start: Start,
        timeout: Duration | None,
    ) -> Following:
        return Following(
            self._threads,
            lambda start, seconds: step(self._bare(), start, seconds),
            lambda: self._bare().offsets("latest"),
            start,
            timeout,
        )


class GroupHandle(NamedHandle[topic_contract.Group]):
    """What a group does besides."""

    async def _obtain(
        self, step: Callable[[topic_contract.Group], T], undo: Callable[[T], None]
    ) -> T:
        # Among those who wait: what is called back may need a thread for a call of its own.
        self._threads.collect_debt()
        return await self._threads.grant(lambda: self._do(step), undo, is_wait=True)


class TurnHandle(OpenHandle[S]):
    """Something for one thread at a time."""

    def __init__(self, threads: Threads, it: S) -> None:
        super().__init__(threads, it)
        self._turn = threading.Lock()

    def _do(self, step: Callable[[S], T]) -> T:
        with self._turn:
            _this_thread.turn = self._turn
            try:
                return step(self._bare())
            finally:
                _this_thread.turn = None


def lending(callback: OnRebalance | None) -> OnRebalance | None:
    """Return `callback` so that it may wait for calls on the member that calls it.

    Raises InvalidArgument for a coroutine function, which nobody would await.
    """
    if inspect.iscoroutinefunction(callback):
        raise InvalidArgument(f"what is called back in a thread is no coroutine: {callback!r}")
    return None if callback is None else partial(_lend, callback)


def _lend(callback: OnRebalance, partitions: list[int]) -> None:
    turn: threading.Lock | None = getattr(_this_thread, "turn", None)
    if turn is None:  # Called by `join`: there is no member yet.
        callback(partitions)
        return
    turn.release()
    try:
        callback(partitions)
    finally:
        turn.acquire()


class PollHandle(TurnHandle[S]):
    """Something that is polled for records, and can go back."""

    calls_back = False
    """Whether a poll may call the user's functions."""

    def __init__(self, threads: Threads, it: S) -> None:
        super().__init__(threads, it)
        self._polling = threading.Lock()
        self._gap: OffsetTrimmed | None = None

    async def _poll(self, step: Callable[[S, float], Fetched], timeout: Duration | None) -> Fetched:
        async def attempt(seconds: float) -> Fetched:
            return await self._threads.grant(
                lambda: self._polled(step, seconds),
                lambda fetched: self._do(lambda it: self._go_back(it, _places(fetched))),
                is_wait=seconds != 0 or self.calls_back,
            )

        duration_us(timeout, name="timeout")
        self._threads.collect_debt()
        line = self._threads.line(type(self).__name__, hex(id(self)))
        return await patiently(line, attempt, timeout, lambda fetched: len(fetched) == 0)

    def _polled(self, step: Callable[[S, float], Fetched], seconds: float) -> Fetched:
        def fetch(it: S) -> Fetched:
            self._tell_gap()
            return step(it, seconds)

        # One poll at a time, also while it has lent its turn.
        with self._polling:
            return self._do(fetch)

    def _tell_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is not None:
            raise gap

    def _go_back(self, it: S, places: dict[int, int]) -> None:
        """Go on from `places`. What was deleted there meanwhile is told by the next poll."""
        while True:
            try:
                self._seek(it, places)
                return
            except OffsetTrimmed as gap:
                if gap.partition is None:
                    raise
                self._gap = gap
                places[gap.partition] = gap.earliest

    @abstractmethod
    def _seek(self, it: S, places: dict[int, int]) -> None:
        """Go on from `places`, and elsewhere from where it is."""


class MemberHandle(PollHandle[topic_contract.Member]):
    """What a member does besides."""

    calls_back = True

    def _seek(self, it: topic_contract.Member, places: dict[int, int]) -> None:
        ours = it.assignment
        it.seek({partition: place for partition, place in places.items() if partition in ours})


class ReaderHandle(PollHandle[topic_contract.TopicReader]):
    """What a reader does besides.

    As an iterator it looks ahead, more and more the longer nothing comes in between. Any other call
    goes back first, so that it finds the reader at the record the loop would yield next.
    """

    def __init__(self, threads: Threads, it: topic_contract.TopicReader) -> None:
        super().__init__(threads, it)
        self._ahead: deque[TopicRecord] = deque()
        self._ahead_count = 1

    def __aiter__(self) -> Self:
        """Yield what is there, and stop at the end."""
        return self

    async def __anext__(self) -> TopicRecord:
        if not self._ahead:
            await self._call(self._look_ahead)
        if not self._ahead:
            raise StopAsyncIteration
        return self._ahead.popleft()

    def _look_ahead(self, reader: topic_contract.TopicReader) -> None:
        self._tell_gap()
        self._ahead.extend(reader.poll(self._ahead_count))
        self._ahead_count = min(self._ahead_count * FETCH_GROWTH, FETCH_ITEMS_MAX)

    def _bare(self) -> topic_contract.TopicReader:
        if self._ahead:
            places = _places(list(self._ahead))
            self._ahead.clear()
            self._ahead_count = 1
            with contextlib.suppress(StoreClosed):  # The call itself says so, or is a close.
                self._go_back(self._it, places)
        return self._it

    def _seek(self, it: topic_contract.TopicReader, places: dict[int, int]) -> None:
        it.seek(places)


def _places(fetched: Sized) -> dict[int, int]:
    """Return the offset of the first record of each partition."""
    pairs: Iterable[tuple[int, int]]
    if isinstance(fetched, list):
        pairs = ((record.partition, record.offset) for record in fetched)
    else:
        table = cast("pa.Table", fetched)
        columns = (table[name].to_pylist() for name in ("partition", "offset"))
        pairs = zip(*columns, strict=True)
    places: dict[int, int] = {}
    for partition, offset in pairs:
        places.setdefault(partition, offset)
    return places
