"""The loop that leases, yields and settles, for asyncio: `stores/consumer.py` and its promises."""

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from segue.errors import InvalidArgument, QueueLocked, SegueError
from segue.log.options import Duration
from segue.stores.arguments import duration_us

if TYPE_CHECKING:
    from segue.aio._generated import Job

STOP_SECONDS: Final = 0.25
"""How long a wait goes on at most after the caller's own event was set."""


class Stop(Protocol):
    """An event of `asyncio` or of `threading`."""

    def is_set(self) -> bool: ...


class _Leases(Protocol):
    async def lease_many(
        self,
        count: int,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = 0,
        owner: str | None = None,
    ) -> list["Job"]: ...

    async def _release(self, jobs: list["Job"]) -> None: ...


class Consumer:
    """Yields jobs as they come, kept alive while they are worked on. For one task.

    Asking for the next job acks the one before, unless it was settled. Leaving the loop gives back
    what is not settled: within a second, or at once with `async with queue.consume() as jobs:` or
    `aclose()`. `stop()` ends the loop from any task, thread or signal handler, after the job at
    hand.
    """

    def __init__(
        self,
        queue: _Leases,
        *,
        ttl: Duration | None,
        wait: Duration | None,
        prefetch: int,
        owner: str | None,
        stop: Stop | None,
    ) -> None:
        # First, so that a consumer that is refused can be collected.
        self._waiting: deque[Job] = deque()
        self._job: Job | None = None
        if type(prefetch) is not int or prefetch < 1:
            raise InvalidArgument(f"prefetch must be a whole number of at least 1: {prefetch!r}")
        duration_us(wait, name="wait")
        self._queue = queue
        self._ttl = ttl
        self._wait = wait
        self._prefetch = prefetch
        self._owner = owner
        self._stop = stop
        self._is_stopped = False
        self._fetching: asyncio.Task[list[Job]] | None = None

    def stop(self) -> None:
        """End the loop once the job at hand is done."""
        self._is_stopped = True
        fetching = self._fetching
        if fetching is not None:
            with contextlib.suppress(RuntimeError):  # Its loop is closed: then nobody waits.
                fetching.get_loop().call_soon_threadsafe(fetching.cancel)

    @property
    def _is_stopping(self) -> bool:
        return self._is_stopped or (self._stop is not None and self._stop.is_set())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "Job":
        await self._finish()
        if not self._waiting and not self._is_stopping:
            self._waiting.extend(await self._fetch())
        if not self._waiting or self._is_stopping:
            await self.aclose()
            raise StopAsyncIteration
        self._job = self._waiting.popleft()
        return self._job

    async def _finish(self) -> None:
        job = self._job
        if job is not None and not job.is_settled:
            try:
                await job.ack()
            except SegueError:
                job.let_go()  # Nobody is at work on it any more: let it come back in time.
                self._job = None
                raise
        self._job = None

    async def _fetch(self) -> list["Job"]:
        jobs = await self._lease(wait=0)
        if not jobs and self._wait != 0:
            # In a task of its own, which `stop` can cancel without a harm to ours.
            fetching = self._fetching = asyncio.create_task(self._lease(wait=self._wait))
            try:
                jobs = await self._fetched(fetching)
            finally:
                self._fetching = None
        for job in jobs:
            job.keep_alive()
        return jobs

    async def _lease(self, *, wait: Duration | None) -> list["Job"]:
        try:
            return await self._queue.lease_many(
                self._prefetch, ttl=self._ttl, wait=wait, owner=self._owner
            )
        except QueueLocked:
            return []  # Somebody else's turn: ours comes.

    async def _fetched(self, fetching: "asyncio.Task[list[Job]]") -> list["Job"]:
        """Return what is fetched, or nothing if we are stopped; leave nothing behind."""
        cancelled: asyncio.CancelledError | None = None
        look = None if self._stop is None else STOP_SECONDS
        while not fetching.done():
            if self._is_stopping:
                fetching.cancel()
            try:
                await asyncio.wait({fetching}, timeout=look)
            except asyncio.CancelledError as error:
                cancelled = error
                fetching.cancel()
        if cancelled is None:
            return [] if fetching.cancelled() else fetching.result()
        if not fetching.cancelled() and fetching.exception() is None:
            await self._queue._release(fetching.result())
        raise cancelled

    async def aclose(self) -> None:
        """Give back what is not settled, and yield nothing more."""
        self.stop()
        jobs = self._left()
        # Only forgotten once that is done: it may not come to it, and then `__del__` tries.
        await self._queue._release(jobs)
        self._waiting.clear()
        self._job = None

    def _left(self) -> list["Job"]:
        jobs = [*self._waiting, *([self._job] if self._job is not None else [])]
        return [job for job in jobs if not job.is_settled]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A loop left by break or an exception drops its consumer. No task is at hand, and whoever
        # collects it may hold any lock just now: the thread of the heartbeat gives the jobs back.
        for job in self._left():
            job.drop()
