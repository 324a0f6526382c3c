"""Running tasks in tests: in the test's own thread, on a store of its own, by a clock that stands.

    def test_a_welcome_is_sent(tmp_path):
        with TaskBench(app, tmp_path) as bench:
            signup.enqueue("ada@example.org")
            assert bench.drain() == 2
            bench.advance(seconds=3600)
            assert bench.drain() == 1

Everything is as with a worker: arguments become JSON and back, failures wait for their backoff,
limits hold. Nothing runs unless the test says so; nothing waits.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from segue.errors import InvalidArgument
from segue.tasks.app import App
from segue.tasks.metrics import Metrics
from segue.tasks.scheduling import Scheduler
from segue.tasks.worker.keeper import Keeper
from segue.tasks.worker.runs import execute
from segue.tasks.worker.settler import Settler
from segue.tasks.worker.sources import Sources
from segue.tasks.worker.supply import Supply
from segue.testing.clock import ManualClock

TASKS_MAX: Final = 100_000
"""So many tasks in one drain mean that they queue each other for ever."""


class TaskBench:
    """An App on a store of the test's, with time and work in the test's hands. One thread.

    As long as it is open the App uses the store at `path`, and `clock`.
    """

    is_leaving = False

    def __init__(
        self, app: App, path: str | os.PathLike[str], *, clock: ManualClock | None = None
    ) -> None:
        self.app = app
        self.clock = clock or ManualClock()
        self.metrics = Metrics()
        self._before = (app.url, app.sync, app.clock, app.ticks)
        self._is_draining = False
        app.use(path, sync="os", clock=self.clock, ticks=self.clock.ticks)
        app.desk.prepare()
        self._keeper = Keeper(app.desk.cancellations, self.clock, on_error=_raise)
        self._settler = Settler(
            app.desk.log,
            app.desk.index,
            app.desk.cancellations,
            self._keeper,
            self.metrics,
            self.clock,
            worker="test",
            on_error=_raise,
        )
        self._scheduler = Scheduler(app)
        self._scheduler.tick()  # From now on they are known, and fire when their time has come.

    def drain(self, *, limit: int = TASKS_MAX) -> int:
        """Run all that is due, also what that queues; return how many runs that were.

        Raises InvalidArgument if there is no end to it within `limit`.
        """
        if self._is_draining:
            return 0  # A task queued another: it is run in its turn.
        self._is_draining = True
        try:
            self._scheduler.tick()
            return self._drain(limit)
        finally:
            self._is_draining = False

    def _drain(self, limit: int) -> int:
        sources = Sources(
            self.app, self.app.queue_names(), owner="test", lease_ttl=None, on_error=_raise
        )
        supply = Supply(self.app, sources, self._keeper, self._settler)
        supply.wait_seconds = 0
        count = 0
        try:
            while True:
                before = supply.taken
                sources.look_at_all()  # No time passes for threads that watch to notice.
                runs = supply.take(1, self)
                for run in runs:
                    run.begin(self.clock(), 0)
                    run.conclude(
                        execute(
                            run.task,
                            run.call,
                            report=run.report,
                            is_cancelled=lambda run=run: run.is_over,  # type: ignore[misc]
                        ),
                        self.clock(),
                    )
                    self._settler.put(run)
                self._settler.settle_waiting()
                if supply.taken == before:
                    return count
                count += len(runs)
                if count >= limit:
                    raise InvalidArgument(f"{limit} tasks were run, and there is no end to it")
        finally:
            sources.stop()

    def advance(self, *, seconds: float) -> None:
        """Let time pass. What becomes due meanwhile runs with the next `drain`."""
        self.clock.advance(seconds=seconds)

    def run_all(self, *, limit: int = TASKS_MAX) -> int:
        """Run everything, letting time pass to whatever is due next, retries too."""
        count = self.drain(limit=limit)
        while (due_us := self._next_due_us()) is not None:
            self.clock.advance(seconds=max(0, due_us - self.clock()) / 1_000_000)
            count += self.drain(limit=limit - count)
        return count

    def _next_due_us(self) -> int | None:
        dues = [
            status.due_us
            for name in self.app.store.queues()
            for status in self.app.store.queue(name).browse(state="delayed", limit=10_000)
            if status.due_us is not None
        ]
        return min(dues, default=None)

    @contextmanager
    def eagerly(self) -> Iterator[Self]:
        """Have whatever is queued run at once, before `enqueue` returns."""
        before = self.app.on_queued
        thread = threading.get_ident()

        def run() -> None:
            if threading.get_ident() == thread:
                self.drain()

        self.app.on_queued = run
        try:
            yield self
        finally:
            self.app.on_queued = before

    def close(self) -> None:
        """Give the App back its own store and clock."""
        self._scheduler.close()
        url, sync, clock, ticks = self._before
        self.app.use(url, sync=sync, clock=clock, ticks=ticks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _raise(error: BaseException) -> None:
    raise error
