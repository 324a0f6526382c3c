"""The worker: takes tasks from queues, has them run, and never loses or hoards one.

Sources → Supply → a crew of slots (threads, processes) or an event loop → Settler
                       Keeper: leases, timeouts, cancellations, what makes no progress
"""

import logging
import math
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Final, Literal, TypeVar, get_args

from segue.delivery.rules import check_count, check_seconds
from segue.errors import InvalidArgument, SegueError, StoreUnavailable
from segue.stores.contract import Queue
from segue.stores.opening import open
from segue.tasks.app import App
from segue.tasks.autoscaler import (
    Autoscaler,
    Decision,
    Sample,
    ScalingRules,
    is_safe_to_stop,
)
from segue.tasks.envelope import read_envelope
from segue.tasks.loading import target_of
from segue.tasks.metrics import Metrics
from segue.tasks.rules import TENANT_MARK
from segue.tasks.scheduling import Scheduler
from segue.tasks.worker.keeper import Keeper
from segue.tasks.worker.loop import LoopCrew
from segue.tasks.worker.processes import ProcessSlot
from segue.tasks.worker.reports import (
    METRICS_SECONDS,
    REPORT_SECONDS,
    DecisionReport,
    WorkerReport,
    prepare_reports,
    send_report,
)
from segue.tasks.worker.settler import Settler
from segue.tasks.worker.slots import SlotCrew, ThreadSlot
from segue.tasks.worker.sources import Sources
from segue.tasks.worker.supply import Supply

logger = logging.getLogger(__name__)

Kind = Literal["thread", "process", "async"]
T = TypeVar("T")

WORKERS_MAX: Final = 1_000
DRAIN_SECONDS_DEFAULT: Final = 30.0
ABORT_SECONDS: Final = 5.0
"""How long what was told to stop has for it at the end."""
SETTLE_SECONDS: Final = 60.0
"""How long what was done may take to be settled at the end: the disk may be full."""
TICK_SECONDS: Final = 0.1
SERIES_EACH_TIME: Final = 20
"""So many tasks and queues are in every report; with more, reports would become too long."""
STRANDED_LOOKED_MAX: Final = 100
"""How many of the queues it does not work on a worker looks into when it begins."""
STRANDED_OPEN_MAX: Final = 10
"""How many of them at once: each may be a dozen open files."""


class Worker:
    """Runs the tasks of an App. `run` blocks; `stop` ends it from any thread.

    `kind` says what runs a task: a thread, a process that can be killed, or an event loop. There
    are `min_size` to `max_size` of them, as the depth of the queues asks for.
    """

    def __init__(
        self,
        app: App,
        *,
        queues: Sequence[str] | None = None,
        kind: Kind = "thread",
        min_size: int = 1,
        max_size: int | None = None,
        scaling: ScalingRules | None = None,
        lease_ttl: float | None = None,
        drain: float = DRAIN_SECONDS_DEFAULT,
        burst: bool = False,
        limit: int | None = None,
        memory_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        """Work on `queues`, or on all that the App's tasks go to.

        `burst` ends when nothing is left to do, `limit` after so many tasks. Raises
        InvalidArgument, AppNotFound if processes could not find the App.
        """
        if kind not in get_args(Kind):
            raise InvalidArgument(f"kind must be one of {', '.join(get_args(Kind))}: {kind!r}")
        check_count("min", min_size, most=WORKERS_MAX)
        check_count("limit", limit)
        check_count("memory", memory_bytes)
        check_seconds("drain", drain, 0)
        if lease_ttl is not None:
            check_seconds("lease", lease_ttl, 0.1)
        max_size = max_size if max_size is not None else max(min_size, 1)
        check_count("max", max_size, least=min_size, most=WORKERS_MAX)
        if memory_bytes is not None and kind != "process":
            raise InvalidArgument("a limit of memory needs --kind process: threads share theirs")
        self.app = app
        self.kind: Kind = kind
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.metrics = Metrics()
        self._queues = list(queues) if queues else app.queue_names()
        if not self._queues:
            raise InvalidArgument("the App has no tasks, so there is no queue to work on")
        self._rules = scaling or ScalingRules(min_workers=min_size, max_workers=max_size)
        self._scaler = Autoscaler(self._rules)
        self._drain = drain
        self._burst = burst
        self._limit = limit
        self._lease_ttl = lease_ttl
        self._target = target_of(app) if kind == "process" else ""
        self._memory_bytes = memory_bytes
        self._stopping = threading.Event()
        self._stop_now = threading.Event()
        self._error: BaseException | None = None
        self._signals = 0
        self._metrics_due = 0.0

    # Running -------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or until a burst or limit is over. Raises what it cannot survive."""
        previous = self._catch_signals()
        try:
            self._open()
            try:
                self._loop()
            finally:
                self._close()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error

    def stop(self, *, now: bool = False) -> None:
        """Take nothing more, finish what runs, end; `now` gives back what runs instead."""
        if now:
            self._stop_now.set()
        self._stopping.set()

    def _open(self) -> None:
        app = self.app
        app.desk.prepare()
        prepare_reports(app.store)
        self._started_us = app.clock()
        fail = self._fail
        desk = app.desk
        self._sources = Sources(
            app, self._queues, owner=self.name, lease_ttl=self._lease_ttl, on_error=fail
        )
        self._keeper = Keeper(desk.cancellations, app.clock, on_error=fail)
        self._settler = Settler(
            desk.log,
            desk.index,
            desk.cancellations,
            self._keeper,
            self.metrics,
            app.clock,
            worker=self.name,
            on_error=fail,
        )
        self._supply = Supply(app, self._sources, self._keeper, self._settler)
        self._supply.limit = self._limit
        if self._burst:
            self._supply.wait_seconds = TICK_SECONDS  # Each look waits until a request has ended.
        self._crew = self._make_crew(fail)
        self._guarded(desk.cancellations.tidy, default=None)
        self._scheduler = Scheduler(app)
        self._settler.start()
        self._keeper.start(self._settler, self._crew)
        self._crew.resize(self._rules.min_workers)
        self._guarded(self._look_for_stranded, default=None)
        logger.info("working worker=%s queues=%s", self.name, ",".join(self._queues))

    def _look_for_stranded(self) -> None:
        """Warn of tasks that lie where this worker does not look, as after a changed queue=."""
        served = {name.partition(TENANT_MARK)[0] for name in self._queues}
        others = [
            name for name in self.app.store.queues() if name.partition(TENANT_MARK)[0] not in served
        ][:STRANDED_LOOKED_MAX]
        app = self.app
        for first in range(0, len(others), STRANDED_OPEN_MAX):
            # Apart: a queue in a directory has its files open for as long as its store is.
            with open(app.url, sync=app.sync, clock=app.clock, ticks=app.ticks) as store:
                for name in others[first : first + STRANDED_OPEN_MAX]:
                    self._look_into(store.queue(name))

    def _look_into(self, queue: Queue) -> None:
        for message in queue.peek(1):
            try:
                task = read_envelope(message.body).task
            except InvalidArgument:
                continue
            if task in self.app.tasks:
                logger.warning(
                    "tasks lie in a queue not worked on queue=%s task=%s", queue.name, task
                )

    def _make_crew(self, fail: Callable[[BaseException], None]) -> SlotCrew | LoopCrew:
        if self.kind == "async":
            return LoopCrew(self._supply, self._settler, self.app.clock, on_error=fail)
        make = (
            ThreadSlot
            if self.kind == "thread"
            else partial(
                ProcessSlot,
                target=self._target,
                store=(os.fspath(self.app.url), self.app.sync),
                memory_bytes=self._memory_bytes,
            )
        )
        return SlotCrew(self._supply, self._settler, self.app.clock, make=make, on_error=fail)

    def _loop(self) -> None:
        due = {"schedules": 0.0, "scaling": 0.0, "report": 0.0}
        while not self._stopping.wait(TICK_SECONDS) and not self._signals:
            now = time.monotonic()
            if now >= due["schedules"]:
                due["schedules"] = now + self._guarded(self._scheduler.tick, default=1.0)
            if now >= due["scaling"]:
                due["scaling"] = now + self._rules.check_seconds
                self._guarded(self._scale, default=None)
            if now >= due["report"]:
                due["report"] = now + REPORT_SECONDS
                self._guarded(partial(self._report, "running"), default=None)
            if self._supply.is_stopping:
                break  # The limit is reached.
            if self._burst and self._is_nothing_left():
                break

    def _guarded(self, step: Callable[[], T], *, default: T) -> T:
        """Do what a worker can go on without for a while."""
        try:
            return step()
        except SegueError as error:
            logger.warning("will be tried again reason=%s", error)
            return default

    def _is_nothing_left(self) -> bool:
        """Return true if nothing runs and no message is ready. Lets nothing be leased meanwhile."""
        if not self._supply.pause(TICK_SECONDS):
            return False  # A request is under way. None begins after it until the next look.
        try:
            # In this order: what runs can still push messages.
            return not self._keeper.runs and not self._sources.depth()
        except StoreUnavailable:
            return False
        finally:
            self._supply.resume()

    def _scale(self) -> None:
        self.metrics.sample(self.app.ticks())
        decision = self._scaler.decide(self._sample())
        if decision.is_change:
            logger.info("%s", decision.reason)
            self._crew.resize(decision.workers_after)

    def _sample(self) -> Sample:
        return Sample(
            ticks_us=self.app.ticks(),
            time_us=self.app.clock(),
            depth=self._sources.depth(),
            workers=self._crew.size,
            busy=min(self._crew.busy, self._crew.size),
            idle_us=tuple(self._crew.idle_us()[: self._crew.size]),
        )

    # Ending --------------------------------------------------------------------------------

    def _close(self) -> None:
        """Let what runs finish, within the limit; give back what does not."""
        self._supply.stop()
        # A burst or limit that is over is no reason to hurry what still runs.
        is_hurried = self._stopping.is_set() or self._signals > 0
        is_done = self._wait_for_crew(self._drain if is_hurried else math.inf)
        if not is_done:
            logger.warning("giving back what still runs worker=%s", self.name)
            self._crew.abort()
            self._crew.wait(ABORT_SECONDS)
        self._settler.close(ABORT_SECONDS if self._error is not None else SETTLE_SECONDS)
        self._keeper.close()
        self._guarded(self._scheduler.close, default=None)
        self._guarded(partial(self._report, "stopped"), default=None)
        logger.info("stopped worker=%s", self.name)

    def _wait_for_crew(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        due = 0.0
        while not self._stop_now.is_set() and self._signals <= 1 and self._error is None:
            now = time.monotonic()
            if now >= due:
                due = now + REPORT_SECONDS
                self._guarded(partial(self._report, "draining"), default=None)
            if self._crew.wait(max(0.0, min(TICK_SECONDS, deadline - now))):
                return True
            if (self._signals or self._stopping.is_set()) and math.isinf(deadline):
                deadline = now + self._drain
            if now >= deadline:
                return False
        return self._crew.wait(0)

    def _fail(self, error: BaseException) -> None:
        """Stop for an error in one of the threads."""
        if self._error is None:
            logger.error("a worker cannot go on worker=%s reason=%r", self.name, error)
            self._error = error
        self.stop(now=True)

    def _catch_signals(self) -> "dict[int, _Handler]":
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Nothing else: an Event that this very thread waits for just now must not be set here.
        self._signals += 1

    # Reporting -----------------------------------------------------------------------------

    def _report(self, state: str) -> None:
        now = time.monotonic()
        has_metrics = now >= self._metrics_due or self.metrics.count <= SERIES_EACH_TIME
        if has_metrics:
            self._metrics_due = now + METRICS_SECONDS
        send_report(self.app.store, self.report(state, has_metrics=has_metrics))

    def report(self, state: str = "running", *, has_metrics: bool = True) -> WorkerReport:
        """Return how the worker stands."""
        sample = self._sample()
        throughputs = self.metrics.throughputs
        return WorkerReport(
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            kind=self.kind,
            state=state,
            at_us=self.app.clock(),
            started_us=self._started_us,
            queues=self._sources.names,
            size=self._crew.size,
            busy=self._crew.busy,
            min=self._rules.min_workers,
            max=self._rules.max_workers,
            slots=self._crew.reports(),
            decisions=[_decision_report(decision) for decision in self._scaler.decisions],
            standing=self._scaler.standing,
            is_safe_to_stop=is_safe_to_stop(sample) and not self._keeper.runs,
            given_up=self._crew.given_up,
            metrics=self.metrics.snapshot().to_dict() if has_metrics else {},
            per_second=throughputs[-1].per_second if throughputs else 0.0,
        )


_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


def _decision_report(decision: Decision) -> DecisionReport:
    return DecisionReport(
        decision.time_us, decision.workers_before, decision.workers_after, decision.reason
    )
