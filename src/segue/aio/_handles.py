"""What the generated nouns stand on: how each kind of call is made, and what cannot be generated.

    _call     a call that does not wait
    _search   one that asks a function of the caller's about many things
    _wait     one that may wait, and gives nothing away if its answer is lost
    _take     one that takes something for good, which must not be lost
    _grant    one that takes something that can be given back
    _obtain   one that opens something, to be closed if nobody is there to have it
    _iterate  one whose answer is read bit by bit
    _finally  one at the end of a block, made whatever comes

Topics have two more (`_topics.py`).

Nothing here knows one store from another.
"""

import asyncio
import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from segue.aio._items import FETCH_ITEMS_MAX, Items
from segue.aio._threads import Threads
from segue.aio._waiting import patiently
from segue.delivery.message import DeadLetter
from segue.errors import SegueError
from segue.log.options import Duration, microseconds_from
from segue.stores import contract
from segue.stores.arguments import duration_us
from segue.stores.contract import Receipt
from segue.stores.heartbeat import Pulse
from segue.stores.job import Job as BareJob

if TYPE_CHECKING:
    from segue.aio._generated import HeldLock

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")


class Handle(ABC, Generic[S]):
    """Something of a store, `S` being what it is without asyncio."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    @abstractmethod
    def _bare(self) -> S:
        """Return the thing itself. In a thread, where that may take its time."""

    def _do(self, step: Callable[[S], T]) -> T:
        """Make a step. In a thread."""
        return step(self._bare())

    async def _call(self, step: Callable[[S], T]) -> T:
        return await self._threads.call(lambda: self._do(step))

    async def _finally(self, step: Callable[[S], T]) -> T:
        return await self._threads.call_whatever_comes(lambda: self._do(step))


class OpenHandle(Handle[S]):
    """Something that is there already: a store, a job, a lock that is held, a transaction."""

    def __init__(self, threads: Threads, it: S) -> None:
        super().__init__(threads)
        self._it = it

    def _bare(self) -> S:
        return self._it


class NamedHandle(Handle[S]):
    """Something with a name, opened by its first call, or by `await`ing it."""

    def __init__(self, threads: Threads, name: str, opening: Callable[[], S]) -> None:
        super().__init__(threads)
        self.name = name
        self._opening = opening
        self._opened: S | None = None
        self._lock = threading.Lock()

    def _bare(self) -> S:
        with self._lock:
            if self._opened is None:
                self._opened = self._opening()
            return self._opened

    def __await__(self) -> Generator[object, None, Self]:
        """Open it now, so that what speaks against that is said here."""
        return self._open().__await__()

    async def _open(self) -> Self:
        await self._call(lambda _: None)
        return self

    async def _obtain(self, step: Callable[[S], T], undo: Callable[[T], None]) -> T:
        self._threads.collect_debt()
        return await self._threads.grant(lambda: self._do(step), undo)

    def _iterate(
        self, start: Callable[[S], Iterator[T]], *, fetch_max: int = FETCH_ITEMS_MAX
    ) -> Items[T]:
        return Items(self._threads, lambda: self._do(start), fetch_max=fetch_max)

    # Calls that may wait -------------------------------------------------------------------

    async def _wait(self, what: str, step: Callable[[S, float], T], wait: Duration | None) -> T:
        async def attempt(seconds: float) -> T:
            return await self._threads.call(
                lambda: step(self._bare(), seconds), is_wait=seconds != 0
            )

        return await patiently(self._line(what), attempt, wait, lambda _: False)

    async def _take(self, what: str, step: Callable[[S, float], T], wait: Duration | None) -> T:
        async def attempt(seconds: float) -> T:
            return await self._threads.take(
                lambda: step(self._bare(), seconds),
                _is_empty,
                is_wait=seconds != 0,
            )

        self._threads.collect_debt()
        return await patiently(self._line(what), attempt, wait, self._is_nothing)

    async def _grant(
        self,
        what: str,
        step: Callable[[S, float], T],
        wait: Duration | None,
        undo: Callable[[T], None],
    ) -> T:
        async def attempt(seconds: float) -> T:
            return await self._threads.grant(
                lambda: step(self._bare(), seconds),
                undo,
                is_wait=seconds != 0,
            )

        self._threads.collect_debt()
        return await patiently(self._line(what), attempt, wait, self._is_nothing)

    def _line(self, what: str) -> asyncio.Lock:
        return self._threads.line(type(self).__name__, self.name, what)

    def _is_nothing(self, found: object) -> bool:
        """Tell whether to wait for more than that."""
        return False


class QueueHandle(NamedHandle[contract.Queue]):
    """What a queue does besides."""

    def _is_nothing(self, found: object) -> bool:
        return _is_empty(found)

    async def _poll(
        self, step: Callable[[contract.Queue, float], T], timeout: Duration | None
    ) -> T:
        """Ask until the answer is yes."""

        async def attempt(seconds: float) -> T:
            return await self._threads.call(
                lambda: step(self._bare(), seconds), is_wait=seconds != 0
            )

        duration_us(timeout, name="timeout")
        return await patiently(self._line("ready"), attempt, timeout, lambda found: not found)

    async def _search(
        self,
        step: Callable[[contract.Queue, Callable[[DeadLetter], bool]], T],
        where: Callable[[DeadLetter], bool] | None,
    ) -> T:
        """Make a call that ends at the next letter when its task is cancelled."""
        is_cancelled = threading.Event()

        def is_meant(letter: DeadLetter) -> bool:
            if is_cancelled.is_set():
                raise _NotWanted
            return where is None or where(letter)

        return await self._threads.call(
            lambda: step(self._bare(), is_meant), on_cancel=is_cancelled.set
        )

    async def _release(self, jobs: Sequence["JobHandle"]) -> None:
        """Give back what a consumer leaves; what is lost, or closed, comes back anyway."""
        if jobs:
            with contextlib.suppress(SegueError):
                await self._finally(lambda _: release_all(job._it for job in jobs))


class JobHandle(OpenHandle[BareJob]):
    """What a job does besides."""

    async def __aenter__(self) -> Self:
        self._it.keep_alive()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ack, or nack if an exception ends the block, or release if the task is cancelled."""
        if not self._it.is_settled:
            await self._finally(lambda job: job.__exit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._it)


class LockHandle(NamedHandle[contract.Lock]):
    """What a lock does besides."""

    def __init__(
        self,
        threads: Threads,
        name: str,
        opening: Callable[[], contract.Lock],
        *,
        ttl: Duration,
    ) -> None:
        super().__init__(threads, name, opening)
        self._ttl = ttl
        self._holds: list[_Hold] = []

    @abstractmethod
    async def acquire(
        self, *, wait: Duration | None = None, owner: str | None = None
    ) -> "HeldLock": ...

    async def __aenter__(self) -> "HeldLock":
        held = await self.acquire()
        ttl_us = microseconds_from(self._ttl, name="ttl") or 0
        pulse = self._threads.heartbeat.start(held._it.renew, ttl_us / 1_000_000)
        self._holds.append(_Hold(asyncio.current_task(), held._it, pulse))
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. Raises LockLost if it was lost meanwhile, unless another error is under way."""
        hold = self._own_hold()
        hold.pulse.stop()
        try:
            await self._threads.call_whatever_comes(hold.held.release)
        except SegueError as lost:
            if error is None:
                raise
            logger.warning("lock %s: not released reason=%s", self.name, lost)

    def _own_hold(self) -> "_Hold":
        """Return what this block holds, and forget it.

        There are two only where one was lost. A block that ends in another task than it began in,
        as some test frameworks have it, is the one that began first.
        """
        task = asyncio.current_task()
        own = [place for place, hold in enumerate(self._holds) if hold.task is task]
        return self._holds.pop(own[-1] if own else 0)


class _Hold(NamedTuple):
    """What a block holds."""

    task: asyncio.Task[object] | None
    held: contract.HeldLock
    pulse: Pulse


def bare(it: JobHandle | Receipt) -> BareJob | Receipt:
    """Return a job as the store knows it. What is no job goes through, to be refused there."""
    return it._it if isinstance(it, JobHandle) else it


def gathered(items: Iterable[T]) -> Iterable[T]:
    """Return all items, taken in the task that has them and only once.

    Bytes and text go through, to be refused: nobody means their single letters.
    """
    return items if isinstance(items, bytes | bytearray | memoryview | str) else list(items)


def release_all(jobs: Iterable[BareJob]) -> None:
    """Give back what is not settled. Raises the last error after trying them all."""
    failure: SegueError | None = None
    for each in jobs:
        try:
            if not each.is_settled:
                each.release()
        except SegueError as error:
            failure = error
    if failure is not None:
        raise failure


class _NotWanted(Exception):
    """Ends a search whose task was cancelled."""


def _is_empty(found: object) -> bool:
    return found is None or found == []
