"""Keeps the leases of a worker's runs, and keeps its runs to their time. A thread of its own.

It shares nothing with those who run tasks but the interpreter: a busy event loop, or a handler that
computes for minutes, loses no lease. (A C extension that holds the interpreter's lock for longer
than a lease does; such tasks belong in processes.)

What takes a round trip is done beside it, as the heartbeat of the store does its own: one answer
that does not come holds up nothing else.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from segue.clock import Clock
from segue.errors import LeaseLost, SegueError, StoreClosed
from segue.tasks.cancelling import Cancellations
from segue.tasks.events import TaskEvent
from segue.tasks.worker.runs import Outcome, Run

if TYPE_CHECKING:
    from segue.tasks.worker.settler import Settler

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
BEATS_PER_TTL: Final = 3
ANNOUNCE_SECONDS: Final = 0.1
"""A run that takes longer is said to be processing; a shorter one is said to have been."""
PROGRESS_SECONDS: Final = 0.5
"""How often progress is told at most."""
CANCEL_SECONDS: Final = 0.25


class Stopper(Protocol):
    """Those who run tasks."""

    def stop_run(self, run: Run) -> None:
        """Have a run stop that came to its end by other means."""

    def check(self, now: float) -> None:
        """Replace what makes no progress."""


class Keeper:
    """Watches over the runs of one worker. Safe from any thread."""

    def __init__(
        self,
        cancellations: Cancellations,
        clock: Clock,
        *,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._cancellations = cancellations
        self._clock = clock
        self._on_error = on_error
        self._runs: dict[int, Run] = {}
        self._progress: dict[int, tuple[float, bytes]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="segue-keeper", daemon=True)
        self._settler: Settler | None = None
        self._stopper: Stopper | None = None
        self._cancels_looked = 0.0
        self._is_looking = False

    def start(self, settler: "Settler", stopper: Stopper) -> None:
        """Begin."""
        self._settler, self._stopper = settler, stopper
        self._thread.start()

    def add(self, run: Run) -> None:
        """Watch over a run, until it is forgotten."""
        self._runs[id(run)] = run

    def forget(self, run: Run) -> None:
        """Watch over it no more."""
        self._runs.pop(id(run), None)
        self._progress.pop(id(run), None)

    @property
    def count(self) -> int:
        """How many runs are not settled."""
        return len(self._runs)

    @property
    def runs(self) -> list[Run]:
        """The runs that are not settled."""
        return list(self._runs.values())

    def close(self) -> None:
        """Keep nothing any more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    # The thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._stopping.wait(TICK_SECONDS):
                self._tick()
        except BaseException as error:  # noqa: BLE001 - without a keeper the worker must not go on.
            self._on_error(error)

    def _tick(self) -> None:
        now = time.monotonic()
        runs = self.runs
        for run in runs:
            is_due = now - run.renewed >= run.job.ttl_seconds / BEATS_PER_TTL
            if is_due and not run.is_renewing and not run.job.is_settled:
                run.is_renewing = True
                self._do_beside(run, partial(self._renew, run))
            if run.deadline is not None and now >= run.deadline and not run.is_over:
                self._end(
                    run,
                    Outcome(
                        verdict="failed",
                        error=f"TaskTimeout: it took longer than {run.timeout:g} s",
                        is_timeout=True,
                    ),
                )
        if runs and now - self._cancels_looked >= CANCEL_SECONDS and not self._is_looking:
            self._cancels_looked = now
            self._is_looking = True
            self._do_beside(runs[0], self._cancel)
        self._tell(runs, now)
        if self._stopper is not None:
            self._stopper.check(now)

    def _do_beside(self, run: Run, step: Callable[[], None]) -> None:
        """Do a step where the store of a run has it renewed: in files, that is here and now."""

        def guarded() -> None:
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - as above, if it is not over already.
                if not self._stopping.is_set():
                    self._on_error(error)

        run.job.holder.heartbeat.run_beside(guarded)

    def _renew(self, run: Run) -> None:
        # As of before it is asked for: the lease lasts from a moment after that.
        now = time.monotonic()
        try:
            if self._is_held(run):  # It may have waited for its turn.
                run.job.extend()
                run.renewed = now
                run.leased_until = now + run.job.ttl_seconds
        except (LeaseLost, StoreClosed) as error:
            if self._is_held(run):
                logger.warning("lost while at work task=%s reason=%s", run.id, error)
                self._end(run, Outcome(verdict="lost", error=str(error)))
        except SegueError as error:
            if self._is_held(run):
                logger.warning("not renewed, will be tried again task=%s reason=%s", run.id, error)
        finally:
            run.is_renewing = False

    def _is_held(self, run: Run) -> bool:
        """Tell whether a run is still to be kept."""
        return id(run) in self._runs and not run.job.is_settled

    def _cancel(self) -> None:
        try:
            requested = self._cancellations.last_requested()
        finally:
            self._is_looking = False
        if requested:
            for run in self.runs:
                if requested.get(run.id) == run.job.pushed_us and not run.is_over:
                    self._end(run, Outcome(verdict="cancelled", error="cancelled while it ran"))

    def _end(self, run: Run, outcome: Outcome) -> None:
        if (
            run.conclude(outcome, self._clock())
            and self._settler is not None
            and self._stopper is not None
        ):
            self._settler.put(run)
            self._stopper.stop_run(run)

    def _tell(self, runs: list[Run], now: float) -> None:
        """Say which runs are under way, and how far they are."""
        events: list[TaskEvent] = []
        if self._settler is None:
            return
        now_us = self._clock()
        for run in runs:
            if not run.started_us or run.is_over:
                continue
            if not run.is_announced and now_us - run.started_us >= ANNOUNCE_SECONDS * 1_000_000:
                run.is_announced = True
                events.append(self._settler.event(run, "processing", now_us))
            progress = run.progress
            told_at, told = self._progress.get(id(run), (0.0, b""))
            if progress is not None and progress != told and now - told_at >= PROGRESS_SECONDS:
                self._progress[id(run)] = (now, progress)
                events.append(
                    TaskEvent(
                        id=run.id,
                        happened="progress",
                        at_us=now_us,
                        attempt=run.job.attempt,
                        progress=msgspec.Raw(progress),
                    )
                )
        if events:
            self._settler.note(events)
