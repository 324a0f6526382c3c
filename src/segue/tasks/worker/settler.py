"""Says what came of runs: events first, then acks. One thread, everything that waits in one step.

An event is durable, as the store's sync says, before its message is settled: a crash in between
has the task run once more, and never lose its result.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from segue.clock import Clock
from segue.delivery.rules import SECONDS_MAX
from segue.errors import LeaseLost, StorageFull, StoreClosed, StoreUnavailable
from segue.stores.job import Holder
from segue.tasks.cancelling import Cancellations
from segue.tasks.events import (
    ARGUMENTS_BYTES_MAX,
    NOTHING,
    EventLog,
    Happening,
    TaskEvent,
)
from segue.tasks.metrics import Metrics
from segue.tasks.worker.runs import Outcome, Run

if TYPE_CHECKING:
    from segue.stores.contract import MessageState, Queue
    from segue.tasks.index import TaskIndex
    from segue.tasks.metrics import Outcome as Counted
    from segue.tasks.worker.keeper import Keeper

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_MAX: Final = 500
GATHER_SECONDS: Final = 0.003
FULL_PAUSE_SECONDS: Final = 1.0
MARGIN_SECONDS: Final = 1.0
"""A lease that ends sooner is renewed before anything is said of its run."""


class Settler:
    """Settles the runs of one worker."""

    def __init__(
        self,
        log: EventLog,
        index: "TaskIndex",
        cancellations: Cancellations,
        keeper: "Keeper",
        metrics: Metrics,
        clock: Clock,
        *,
        worker: str,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._index = index
        self._cancellations = cancellations
        self._keeper = keeper
        self._metrics = metrics
        self._clock = clock
        self._worker = worker
        self._on_error = on_error
        self._waiting: SimpleQueue[Run | list[TaskEvent] | None] = SimpleQueue()
        self._chance = random.Random()
        self._is_busy = False
        self._thread = threading.Thread(target=self._work, name="segue-settler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, run: Run) -> None:
        """Have a run settled that has its outcome."""
        self._waiting.put(run)

    def note(self, events: list[TaskEvent]) -> None:
        """Have events appended that settle nothing."""
        self._waiting.put(events)

    @property
    def backlog(self) -> int:
        """How many runs wait to be settled, about."""
        return self._waiting.qsize()

    def close(self, timeout: float) -> bool:
        """Settle what waits, then end; tell whether that was done in time."""
        self._waiting.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def settle_waiting(self) -> None:
        """Settle what waits, in the caller's thread: for tests, which have no other."""
        if not self._waiting.empty():
            self._settle_some()

    # The thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._settle_some():
                pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker must not go on.
            self._on_error(error)

    def _settle_some(self) -> bool:
        runs: list[Run] = []
        events: list[TaskEvent] = []
        goes_on = True
        item = self._waiting.get()
        if self._is_busy or self._keeper.count > 1 + self._waiting.qsize():
            # Others are at work: what they finish in a moment is settled in the same step.
            time.sleep(GATHER_SECONDS)
        while True:
            if item is None:
                goes_on = False
                break
            if isinstance(item, list):
                events += item
            else:
                runs.append(item)
            if len(runs) >= BATCH_MAX:
                break
            try:
                item = self._waiting.get_nowait()
            except Empty:
                break
        self._is_busy = len(runs) > 1
        self._settle(runs, events)
        return goes_on

    def _settle(self, runs: list[Run], events: list[TaskEvent]) -> None:
        now_us, now = self._clock(), time.monotonic()
        settled: list[tuple[Run, Outcome, float | None]] = []
        for run in runs:
            outcome = run.outcome
            if outcome is None or outcome.verdict == "lost" or not self._is_ours(run, now):
                self._keeper.forget(run)
                continue
            outcome, delay = self._decided(run, outcome)
            settled.append((run, outcome, delay))
            event = self._event(run, outcome, delay, run.ended_us)
            if event is not None:
                events.append(event)
        self._append(events)
        lost = self._say(settled)
        for run, outcome, _ in settled:
            self._keeper.forget(run)
            if run.job.receipt not in lost:
                self._count(run, outcome)
        self._correct(settled, lost, now_us)
        requested = self._cancellations.last_requested()
        done = [
            run.id
            for run, outcome, _ in settled
            if run.id in requested
            and outcome.verdict in ("completed", "dead", "cancelled")
            and run.job.receipt not in lost
        ]
        if done:
            _when_it_can_be(lambda: self._cancellations.forget(done))

    def _is_ours(self, run: Run, now: float) -> bool:
        """Tell whether the lease is still held; asks if it is about to end."""
        if now < run.leased_until - min(MARGIN_SECONDS, run.job.ttl_seconds / 3):
            return True
        try:
            _when_it_can_be(run.job.extend)
        except (LeaseLost, StoreClosed) as error:
            logger.warning("dropped a result task=%s reason=%s", run.id, error)
            return False
        return True

    def _decided(self, run: Run, outcome: Outcome) -> tuple[Outcome, float | None]:
        """Return what is to be said of a run: a failure is the last one, or has a next try."""
        if outcome.verdict != "failed":
            return outcome, None
        tries = run.call.attempt
        if tries > run.call.retries:
            return msgspec.structs.replace(outcome, verdict="dead"), None
        if outcome.delay is not None:
            return outcome, outcome.delay
        delay_us = run.task.rules.backoff.delay_us(tries - 1, self._chance)
        return outcome, min(delay_us / 1_000_000, SECONDS_MAX)  # Chance may have made it longer.

    def _append(self, events: list[TaskEvent]) -> None:
        if events:
            _when_it_can_be(lambda: self._log.append(events))

    def _say(self, settled: list[tuple[Run, Outcome, float | None]]) -> set[str]:
        """Tell the queues; return the receipts of runs whose outcome does not count.

        A lost lease does not always mean a lost run. If a server is killed between an ack and its
        answer, the client repeats the ack, and the repeated ack finds no lease.
        """
        lost: set[str] = set()
        acks: dict[int, tuple[Holder, list[Run]]] = {}
        for run, outcome, delay in settled:
            if outcome.verdict in ("completed", "cancelled"):
                holder = run.job.holder
                acks.setdefault(id(holder), (holder, []))[1].append(run)
                continue
            try:
                _when_it_can_be(partial(self._nack, run, outcome, delay), is_settling=True)
            except LeaseLost as error:
                lost.update(error.lost)
            except StoreClosed:  # The queue was removed, and its messages with it.
                lost.add(run.job.receipt)
        for holder, runs in acks.values():
            jobs = [run.job for run in runs]
            try:
                _when_it_can_be(partial(holder.ack_many, jobs), is_settling=True)
            except LeaseLost as error:
                lost.update(error.lost)
            except StoreClosed:
                lost.update(job.receipt for job in jobs)
        return {
            run.job.receipt
            for run, outcome, _ in settled
            if run.job.receipt in lost and not self._is_settled(run, outcome)
        }

    def _is_settled(self, run: Run, outcome: Outcome) -> bool:
        """Return whether the message was settled, and no later attempt has recorded an outcome."""
        queue = cast("Queue", run.job.holder)
        try:
            status = _when_it_can_be(partial(queue.look_up, run.job.id))
        except StoreClosed:  # The queue was removed, and its messages with it.
            return False
        state = None if status is None else status.state
        if outcome.verdict not in _LEFT or state != _LEFT[outcome.verdict]:
            return False
        record = _when_it_can_be(partial(self._index.get, run.call.id))
        return record is not None and (record.attempt, record.worker) == (
            run.job.attempt,
            self._worker,
        )

    def _nack(self, run: Run, outcome: Outcome, delay: float | None) -> None:
        if outcome.verdict == "released":
            run.job.release()
        elif outcome.verdict == "dead":
            run.job.bury(outcome.error)
        else:
            run.job.fail(outcome.error, delay=delay)

    # Events --------------------------------------------------------------------------------

    def _event(
        self, run: Run, outcome: Outcome, delay: float | None, now_us: int
    ) -> TaskEvent | None:
        happened = _HAPPENED.get(outcome.verdict)
        if happened is None:
            return None
        return self.event(
            run,
            happened,
            now_us,
            error=outcome.error,
            traceback=outcome.traceback,
            result=msgspec.Raw(outcome.result) if outcome.result else NOTHING,
            due_us=0 if delay is None else now_us + round(delay * 1_000_000),
        )

    def event(
        self,
        run: Run,
        happened: Happening,
        now_us: int,
        *,
        error: str = "",
        traceback: str = "",
        result: msgspec.Raw = NOTHING,
        due_us: int = 0,
    ) -> TaskEvent:
        """Return what there is to say of a run."""
        args = run.call.args
        return TaskEvent(
            id=run.call.id,
            happened=happened,
            at_us=now_us,
            task=run.call.task,
            attempt=run.job.attempt,
            pushed_us=run.job.pushed_us,
            started_us=run.started_us,
            worker=self._worker,
            error=error,
            traceback=traceback,
            result=result,
            progress=NOTHING if run.progress is None else msgspec.Raw(run.progress),
            due_us=due_us,
            expires_us=now_us + round(run.task.rules.result_ttl * 1_000_000),
            args=msgspec.Raw(args) if len(args) <= ARGUMENTS_BYTES_MAX else NOTHING,
            schedule=run.envelope.schedule or "",
        )

    def _correct(
        self, settled: list[tuple[Run, Outcome, float | None]], lost: set[str], now_us: int
    ) -> None:
        """Take back what was said of runs whose leases turned out to be lost."""
        if not lost:
            return
        events = []
        for run, _, _ in settled:
            if run.job.receipt in lost:
                logger.warning("took back a result task=%s reason=its lease was lost", run.id)
                events.append(self.event(run, "lost", now_us))
        self._append(events)

    def _count(self, run: Run, outcome: Outcome) -> None:
        counted = _COUNTED.get(outcome.verdict)
        if counted is None:
            return
        pushed_us = run.job.pushed_us
        # What was delayed on purpose, or tried before, has not been waiting all the time.
        is_first = run.job.attempt == 1 and not run.job.id.startswith("later")
        self._metrics.record(
            run.call.task,
            run.job.holder.name,
            counted,
            wait_us=max(0, run.started_us - pushed_us) if is_first else None,
            run_us=max(0, run.ended_us - run.started_us) if run.started_us else None,
            is_timeout=outcome.is_timeout,
        )


def _when_it_can_be(step: Callable[[], T], *, is_settling: bool = False) -> T | None:
    """Do a step, again and again while the disk is full or the server away.

    Leases are kept alive meanwhile, where there is somebody to keep them with: nothing is lost, and
    nothing runs twice but for leases that end before the server is back.
    """
    is_known = True
    while True:
        try:
            return step()
        except LeaseLost:
            # Settled, it may be, by a try whose answer never came. If it is somebody else's by now,
            # what they say of it counts.
            if is_settling and not is_known:
                return None
            raise
        except (StorageFull, StoreUnavailable) as error:
            is_known = is_known and isinstance(error, StorageFull)
            logger.warning("not settled yet, will be tried again reason=%s", error)
            time.sleep(FULL_PAUSE_SECONDS)


_LEFT: "Final[dict[str, MessageState | None]]" = {
    "completed": None,
    "cancelled": None,
    "dead": "dead",
}
"""The state of a message after each outcome that is final; None if it is settled."""
_HAPPENED: Final[dict[str, Happening]] = {
    "completed": "completed",
    "failed": "retrying",
    "dead": "dead_letter",
    "cancelled": "cancelled",
    "released": "pending",
}
_COUNTED: "Final[dict[str, Counted]]" = {
    "completed": "completed",
    "failed": "retried",
    "dead": "dead",
    "cancelled": "cancelled",
}
