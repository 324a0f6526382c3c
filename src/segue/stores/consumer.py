"""The loop that leases, yields and settles. The same for every store."""

import contextlib
from collections import deque
from threading import Event
from types import TracebackType
from typing import Protocol, Self

from segue.errors import InvalidArgument, QueueLocked, SegueError
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.job import Job

STOP_SECONDS = 0.25
"""How long a wait goes on at most after `stop` was set."""


class _Leases(Protocol):
    def lease_many(
        self,
        count: int,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = 0,
        owner: str | None = None,
    ) -> list[Job]: ...


class Consumer:
    """Yields jobs as they come, kept alive while they are worked on. For one thread.

    Asking for the next job acks the one before, unless it was settled. Leaving the loop, or
    closing the consumer, gives back what is not settled. `stop()` ends the loop from any thread or
    signal handler, after the job at hand.
    """

    def __init__(
        self,
        queue: _Leases,
        *,
        ttl: Duration | None,
        wait: Duration | None,
        prefetch: int,
        owner: str | None,
        stop: Event | None,
    ) -> None:
        self._closed = True  # Until there is something to close.
        if type(prefetch) is not int or prefetch < 1:
            raise InvalidArgument(f"prefetch must be a whole number of at least 1: {prefetch!r}")
        self._queue = queue
        self._ttl = ttl
        self._wait_us = duration_us(wait, name="wait")
        self._prefetch = prefetch
        self._owner = owner
        self._stopping = stop or Event()
        self._waiting: deque[Job] = deque()
        self._job: Job | None = None
        self._closed = False

    def stop(self) -> None:
        """End the loop once the job at hand is done."""
        self._stopping.set()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job:
        self._finish()
        if not self._waiting:
            self._waiting.extend(self._fetch())
        if not self._waiting or self._stopping.is_set():
            self.close()
            raise StopIteration
        self._job = self._waiting.popleft()
        return self._job

    def _finish(self) -> None:
        job, self._job = self._job, None
        if job is not None and not job.is_settled:
            try:
                job.ack()
            except BaseException:
                job.let_go()  # Or it would be kept alive for ever, and never be delivered again.
                raise

    def _fetch(self) -> list[Job]:
        waited_us = 0
        while not self._stopping.is_set() and not self._closed:
            step_us = round(STOP_SECONDS * 1_000_000)
            if self._wait_us is not None:
                step_us = min(step_us, self._wait_us - waited_us)
            try:
                jobs = self._queue.lease_many(
                    self._prefetch, ttl=self._ttl, wait=step_us / 1_000_000, owner=self._owner
                )
            except QueueLocked:
                jobs = []  # Somebody else's turn: ours comes.
            for job in jobs:
                job.keep_alive()
            waited_us += step_us
            if jobs or (self._wait_us is not None and waited_us >= self._wait_us):
                return jobs
        return []

    def close(self) -> None:
        """Give back what is not settled."""
        self._closed = True
        jobs = [*self._waiting, *([self._job] if self._job is not None else [])]
        self._waiting.clear()
        self._job = None
        for job in jobs:
            if not job.is_settled:
                with contextlib.suppress(SegueError):  # Lost, or closed: then it comes back anyway.
                    job.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop left by break or an exception drops its consumer. Whoever collects it may hold any
        # lock just now, so another thread gives the jobs back.
        if not self._closed:
            for job in (*self._waiting, self._job):
                if job is not None:
                    job.drop()
