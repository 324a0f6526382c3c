"""A store's calls in threads of its own, and what a cancelled task leaves behind: nothing.

A call that has begun is never left alone. Who is cancelled meanwhile waits for its end, which is
near, and only then is cancelled, so that whatever it took can be given back first. Nothing here
knows what the calls do.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from segue.errors import SegueError, StoreClosed
from segue.stores.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

CALL_THREADS_MAX: Final = 16
"""How many calls of a store run at once. None of them blocks for long."""
WAIT_THREADS_MAX: Final = 32
"""How many different things a store's tasks wait for at once without taking turns at it."""
BEATS_MAX: Final = 16
"""How many locks are renewed at once: one whose server hangs must not cost the others."""

T = TypeVar("T")


class Threads:
    """Runs the calls of one store. For tasks of any event loop, one after the other or at once."""

    def __init__(self) -> None:
        # Two pools: however many wait, who has something to push or settle finds a thread.
        self._calls = ThreadPoolExecutor(CALL_THREADS_MAX, thread_name_prefix="segue-call")
        self._waits = ThreadPoolExecutor(WAIT_THREADS_MAX, thread_name_prefix="segue-wait")
        self.heartbeat = Heartbeat(side_by_side=BEATS_MAX)
        """Keeps alive what the store itself does not."""
        self._lock = threading.Lock()
        self._lines: WeakKeyDictionary[
            asyncio.AbstractEventLoop, WeakValueDictionary[tuple[str, ...], asyncio.Lock]
        ] = WeakKeyDictionary()
        self._owed: WeakKeyDictionary[asyncio.Task[object], int] = WeakKeyDictionary()
        self._closed = False

    # Calls ---------------------------------------------------------------------------------

    async def call(
        self,
        step: Callable[[], T],
        *,
        is_wait: bool = False,
        on_cancel: Callable[[], None] | None = None,
    ) -> T:
        """Return what `step` returns. Who is cancelled does not learn it."""
        work = self._submit(step, is_wait=is_wait)
        cancelled = await _end_of(work, on_cancel or work.cancel)
        if cancelled is not None:
            raise cancelled
        return self._result(work)

    async def call_whatever_comes(self, step: Callable[[], T]) -> T:
        """Return what `step` returns; a cancelled task does it all the same, to tidy up."""
        work, cancelled = await self._at_last(step)
        if cancelled is not None:
            raise cancelled
        return self._result(work)

    async def grant(
        self, step: Callable[[], T], undo: Callable[[T], None], *, is_wait: bool = False
    ) -> T:
        """Return what `step` returns, or have it undone if the task is cancelled meanwhile."""
        work = self._submit(step, is_wait=is_wait)
        cancelled = await _end_of(work, work.cancel)
        if cancelled is None:
            return self._result(work)
        if not work.cancelled() and work.exception() is None:
            await self._undo(undo, work.result())
        raise cancelled

    async def _undo(self, undo: Callable[[T], None], granted: T) -> None:
        try:
            work, _ = await self._at_last(lambda: undo(granted))
            work.result()
        except SegueError as error:  # Lost, or closed: then it ends when its time is over.
            logger.warning("not given back by a cancelled task reason=%s", error)

    async def _at_last(
        self, step: Callable[[], T]
    ) -> tuple[Future[T], asyncio.CancelledError | None]:
        """Return `step` when it has ended, with the cancellation that came meanwhile, if any.

        Also if the store is closed: what `step` lets go of may outlive that.
        """
        try:
            work = self._submit(step)
        except StoreClosed:
            with ThreadPoolExecutor(1, thread_name_prefix="segue-close") as closer:
                work = closer.submit(step)
                return work, await _end_of(work)
        return work, await _end_of(work)

    async def take(
        self, step: Callable[[], T], is_nothing: Callable[[T], bool], *, is_wait: bool = False
    ) -> T:
        """Return what `step` returns; if that is something, even to a task that was cancelled.

        What was taken for good cannot be given back, and must not be lost. The cancellation comes
        with the task's next wish for something (`collect_debt`).
        """
        work = self._submit(step, is_wait=is_wait)
        cancelled = await _end_of(work, work.cancel)
        if cancelled is None:
            return self._result(work)
        if work.cancelled() or work.exception() is not None or is_nothing(work.result()):
            raise cancelled
        task = asyncio.current_task()
        if task is not None:
            self._owed[task] = task.cancelling()
        return work.result()

    def collect_debt(self) -> None:
        """Raise CancelledError if the task was cancelled and got something instead."""
        task = asyncio.current_task()
        owed = None if task is None else self._owed.pop(task, None)
        # A timeout that is over has taken its cancellation back.
        if task is not None and owed is not None and task.cancelling() >= owed:
            raise asyncio.CancelledError

    def _submit(self, step: Callable[[], T], *, is_wait: bool = False) -> Future[T]:
        pool = self._waits if is_wait else self._calls
        context = contextvars.copy_context()
        try:
            if not self._closed:
                return pool.submit(context.run, step)
        except RuntimeError:
            if not self._closed:
                raise
        raise StoreClosed("the store is closed")

    def _result(self, work: Future[T]) -> T:
        if work.cancelled():  # By `close`, while it waited for a thread.
            raise StoreClosed("the store is closed")
        return work.result()

    # Lines ---------------------------------------------------------------------------------

    def line(self, *names: str) -> asyncio.Lock:
        """Return the line where the tasks of this event loop wait for the same thing."""
        with self._lock:
            lines = self._lines.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
            line = lines.get(names)
            if line is None:
                line = lines[names] = asyncio.Lock()
            return line

    # Closing -------------------------------------------------------------------------------

    async def close(self, close_store: Callable[[], None]) -> None:
        """Close the store and join all threads, also if the task is cancelled."""
        if self._closed:
            return
        self._closed = True
        work, cancelled = await self._at_last(lambda: self._close(close_store))
        work.result()
        if cancelled is not None:
            raise cancelled

    def _close(self, close_store: Callable[[], None]) -> None:
        try:
            self.heartbeat.close()
            close_store()
        finally:
            self._calls.shutdown()
            self._waits.shutdown(cancel_futures=True)


async def _end_of(
    work: Future[T], on_cancel: Callable[[], object] | None = None
) -> asyncio.CancelledError | None:
    """Return when `work` has ended, with the cancellation that came meanwhile, if any."""
    cancelled: asyncio.CancelledError | None = None
    done = asyncio.wrap_future(work)
    while not done.done():
        try:
            await asyncio.wait({done})
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if not done.cancelled():
        done.exception()  # Looked at, or asyncio complains that nobody did.
    return cancelled
