"""Where those who run tasks get them from: leased when somebody is free, and never before.

Of those who are free one at a time asks the queues, for as many as are free, and hands the rest to
the others. So no message lies leased and idle, and one that comes wakes one thread.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from segue.errors import InvalidArgument, StoreUnavailable, TaskNotFound
from segue.stores.job import Job
from segue.tasks.envelope import EMPTY, Envelope, read_envelope
from segue.tasks.records import task_id_of
from segue.tasks.rules import TaskRules
from segue.tasks.states import State
from segue.tasks.task import TaskBase
from segue.tasks.worker.runs import Outcome, Run, given_up

if TYPE_CHECKING:
    from segue.tasks.app import App
    from segue.tasks.worker.keeper import Keeper
    from segue.tasks.worker.settler import Settler
    from segue.tasks.worker.sources import Sources

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 0.25
UNSETTLED_MAX: Final = 2_000
"""No more is taken while so many runs wait to be settled."""


class Taker(Protocol):
    """Somebody who runs tasks."""

    @property
    def is_leaving(self) -> bool:
        """Whether it wants no more."""


class Supply:
    """Hands out runs. Safe from any thread."""

    def __init__(
        self, app: "App", sources: "Sources", keeper: "Keeper", settler: "Settler"
    ) -> None:
        self._app = app
        self._sources = sources
        self._keeper = keeper
        self._settler = settler
        self._changed = threading.Condition()
        self._requests = threading.Condition()
        self._is_requesting = False
        self._is_paused = False
        self._ready: deque[Run] = deque()
        self._is_led = False
        self._free = 0
        self._stopping = False
        self.taken = 0
        self.limit: int | None = None
        """How many to hand out in all."""
        self.wait_seconds = WAIT_SECONDS

    def next(self, taker: Taker) -> Run | None:
        """Return the next run; None if the taker is to leave, or nothing is to be taken."""
        with self._changed:
            self._free += 1
        try:
            while True:
                with self._changed:
                    run = self._wait_for_turn(taker)
                    if run is not None or self._stopping or taker.is_leaving:
                        return run
                    count = max(1, self._free - len(self._ready))
                self._lead(count)
        finally:
            with self._changed:
                self._free -= 1
                # Who leaves may have asked for more than those who stay have use for.
                surplus = [self._ready.pop() for _ in range(len(self._ready) - self._free)]
            self._give_back(surplus)

    def _wait_for_turn(self, taker: Taker) -> Run | None:
        """Return a run that is there; None if it is our turn to ask, or if there is no more."""
        while not self._stopping and not taker.is_leaving:
            if self._ready:
                return self._ready.popleft()
            if not self._is_led:
                self._is_led = True
                return None
            self._changed.wait(WAIT_SECONDS)
        return None

    def _lead(self, count: int) -> None:
        runs: list[Run] = []
        try:
            runs = self._fetch(count)
        finally:
            with self._changed:
                self._is_led = False
                if self._stopping:
                    leftover, runs = runs, []
                else:
                    leftover = []
                    self._ready.extend(runs)
                self._changed.notify(max(1, len(runs)))
            self._give_back(leftover)

    def take(self, count: int, taker: Taker) -> list[Run]:
        """Return up to `count` runs, waiting a little for one. For a taker that is alone."""
        if self._stopping or taker.is_leaving:
            return []
        runs = self._fetch(count)
        if self._stopping:
            self._give_back(runs)
            return []
        return runs

    # Making runs ---------------------------------------------------------------------------

    def pause(self, seconds_max: float) -> bool:
        """Begin no request until `resume` or `stop`. Return true once none is under way.

        Then what was leased is a run or is settled.
        """
        with self._requests:
            self._is_paused = True
            return self._requests.wait_for(lambda: not self._is_requesting, seconds_max)

    def resume(self) -> None:
        """Let requests begin again."""
        with self._requests:
            self._is_paused = False
            self._requests.notify_all()

    def _fetch(self, count: int) -> list[Run]:
        with self._requests:
            self._requests.wait_for(lambda: not self._is_paused or self._stopping)
            if self._stopping:
                return []
            self._is_requesting = True
        try:
            return self._request(count)
        finally:
            with self._requests:
                self._is_requesting = False
                self._requests.notify_all()

    def _request(self, count: int) -> list[Run]:
        if self.limit is not None:
            count = min(count, self.limit - self.taken)
            if count <= 0:
                self.stop()
                return []
        if self._settler.backlog > UNSETTLED_MAX:
            time.sleep(WAIT_SECONDS / 10)
            return []
        jobs = self._sources.lease(count, self.wait_seconds)
        leased = time.monotonic()  # What follows may take a round trip.
        self.taken += len(jobs)
        cancelled = self._app.desk.cancellations.last_requested() if jobs else {}
        runs = []
        for job in jobs:
            run = self._run_of(job, cancelled, leased)
            if run is not None:
                runs.append(run)
        return runs

    def _run_of(self, job: Job, cancelled: Mapping[str, int], leased: float) -> Run | None:
        """Return a job as a run; None if it is settled without one."""
        task_id = task_id_of(job.holder.name, job.id)
        task: TaskBase[Any, Any]
        outcome: Outcome | None = None
        try:
            envelope = read_envelope(job.body)
        except InvalidArgument as error:
            envelope, task = Envelope("", EMPTY), self._unknown("")
            outcome = given_up(error)
        else:
            try:
                task = self._app.find_task(envelope.task)
            except TaskNotFound as error:
                task = self._unknown(envelope.task)
                outcome = given_up(error)
        run = Run(job, envelope, task, task_id, leased)
        if outcome is None and cancelled and cancelled.get(task_id) == job.pushed_us:
            outcome = Outcome(verdict="cancelled", error="cancelled before it began")
        elif outcome is None and job.tries > run.call.retries + 1:
            outcome = self._finished_before(task_id, job) or Outcome(
                verdict="dead",
                error=f"WorkerDied: delivered {job.tries - 1} times, and never finished: its "
                "workers died, lost their leases or were killed",
            )
        self._keeper.add(run)
        if outcome is None:
            return run
        run.begin(self._app.clock(), leased)
        run.conclude(outcome, run.started_us)
        self._settler.put(run)
        return None

    def _finished_before(self, task_id: str, job: Job) -> Outcome | None:
        """Return what came of its last try, if only the ack is missing: its worker died then."""
        try:
            record = self._app.desk.index.get(task_id)
        except StoreUnavailable as error:
            logger.warning("given back task=%s reason=%s", task_id, error)
            return Outcome(verdict="released")  # Whoever has it next finds out.
        if record is None or record.pushed_us != job.pushed_us or record.attempt < job.attempt - 1:
            return None
        if record.state is State.COMPLETED:
            return Outcome(verdict="completed", result=record.result or b"null")
        if record.state is State.DEAD_LETTER:
            return Outcome(verdict="dead", error=record.error, traceback=record.traceback)
        return None

    def _unknown(self, name: str) -> TaskBase[Any, Any]:
        def nothing() -> None:
            """Stand for a task that this App does not have."""

        return TaskBase(self._app, nothing, TaskRules(name=name or "(no task)"))

    # Stopping ------------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        """Hand out nothing more, and give back what nobody has begun."""
        with self._changed:
            self._stopping = True
            leftover = list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
        with self._requests:
            self._requests.notify_all()
        self._sources.stop()
        self._give_back(leftover)

    def _give_back(self, runs: list[Run]) -> None:
        for run in runs:
            if run.conclude(Outcome(verdict="released"), self._app.clock()):
                self._settler.put(run)
