"""Slots: threads that take a task, run it or have it run, and take the next.

A slot is idle, busy or shutting down. One whose task would not stop is given up: another takes its
place, and whatever its task still does counts no more.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, Literal

from segue.clock import Clock
from segue.tasks.worker.reports import SlotReport
from segue.tasks.worker.runs import Outcome, Run, Stopped, execute
from segue.tasks.worker.settler import Settler
from segue.tasks.worker.supply import Supply

logger = logging.getLogger(__name__)

SlotState = Literal["idle", "busy", "shutting_down"]
ABANDON_SECONDS: Final = 2.0
"""How long a run that was told to stop has for it before its slot is given up."""


class Slot:
    """One thread that runs tasks one after another."""

    def __init__(self, crew: "SlotCrew", number: int) -> None:
        self.number = number
        self.run: Run | None = None
        self.since = time.monotonic()
        self.is_leaving = False
        self.is_given_up = False
        self.stopped_at: float | None = None
        self.changing = threading.Lock()
        """Held while what it runs changes, or is looked at to be stopped."""
        self._crew = crew
        self.thread = threading.Thread(target=self._work, name=f"segue-slot-{number}", daemon=True)

    @property
    def state(self) -> SlotState:
        if self.is_leaving:
            return "shutting_down"
        return "busy" if self.run is not None else "idle"

    @property
    def pid(self) -> int:
        """Of the process it has its tasks run in; 0 for this one."""
        return 0

    def report(self, now: float) -> SlotReport:
        """Return how it stands."""
        run = self.run
        task, task_id = (run.call.task, run.id) if run is not None else ("", "")
        return SlotReport(self.number, self.state, now - self.since, task, task_id, self.pid)

    def _work(self) -> None:
        crew = self._crew
        try:
            while not self.is_leaving:
                run = crew.supply.next(self)
                if run is None:
                    break
                self._take(run)
        except BaseException as error:  # noqa: BLE001 - a slot that ends must be missed.
            if not (self.is_given_up or self._was_told(error)):
                self._give_back()
                crew.on_error(error)
        finally:
            self._leave()

    def _was_told(self, error: BaseException) -> bool:
        """Tell whether an error is what the task before was told, and had no time to hear."""
        return self.is_leaving and isinstance(error, Stopped)

    def _give_back(self) -> None:
        """Let somebody else have what this slot cannot run."""
        run = self.run
        if run is not None and run.conclude(Outcome(verdict="released"), self._crew.clock()):
            self._crew.settler.put(run)

    def _leave(self) -> None:
        try:
            self.close()
            self._crew.gone(self)
        except Stopped:  # As late as can be; it comes once.
            self.close()
            self._crew.gone(self)

    def _take(self, run: Run) -> None:
        crew = self._crew
        now = time.monotonic()
        self.since = now
        with self.changing:
            self.run = run
        self.prepare(run)
        run.begin(crew.clock(), time.monotonic())
        if not run.is_over and run.conclude(self.perform(run), crew.clock()):
            crew.settler.put(run)
        else:
            self.leave_behind()
        with self.changing:
            self.run = None
        self.stopped_at = None
        self.since = time.monotonic()

    def leave_behind(self) -> None:
        """Keep nothing of a run that was ended from elsewhere: what is meant for it may be late."""

    def prepare(self, run: Run) -> None:
        """Have what it takes to run a task. The time for this is not the task's."""

    def perform(self, run: Run) -> Outcome:
        """Run a task and return what came of it."""
        raise NotImplementedError

    def stop_run(self, run: Run) -> None:
        """Have a run stop that is over, if it can be."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the slot has."""


class ThreadSlot(Slot):
    """Runs tasks in its own thread. A thread cannot be killed: it is told to stop, and given up."""

    def __init__(self, crew: "SlotCrew", number: int) -> None:
        super().__init__(crew, number)
        self._runner: asyncio.Runner | None = None
        self._awaiting: asyncio.Task[object] | None = None

    def perform(self, run: Run) -> Outcome:
        run.enter(threading.get_ident())
        try:
            return execute(
                run.task,
                run.call,
                report=run.report,
                is_cancelled=lambda: run.is_over,
                await_=self._await,
            )
        except Stopped:
            return Outcome(verdict="lost")  # What came of it is said already.
        finally:
            run.enter(0)

    def _await(self, coroutine: Coroutine[Any, Any, object]) -> object:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def run() -> object:
            self._awaiting = asyncio.current_task()
            return await coroutine

        try:
            # In the context of this run: a Runner's own is that of the first.
            return self._runner.run(run(), context=copy_context())
        finally:
            self._awaiting = None

    def stop_run(self, run: Run) -> None:
        self.stopped_at = time.monotonic()
        self.is_leaving = True  # What it was told may reach it late: it takes no other task.
        awaiting = self._awaiting
        if awaiting is not None:
            # A loop that waits hears of nothing else.
            with suppress(RuntimeError):
                awaiting.get_loop().call_soon_threadsafe(awaiting.cancel)
            return
        run.raise_in_thread()

    def close(self) -> None:
        if self._runner is not None and not self.is_given_up:
            self._runner.close()


class SlotCrew:
    """As many slots as there should be. Safe from any thread."""

    def __init__(
        self,
        supply: Supply,
        settler: Settler,
        clock: Clock,
        *,
        make: "Callable[[SlotCrew, int], Slot]",
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.supply = supply
        self.settler = settler
        self.clock = clock
        self.on_error = on_error
        self._make = make
        self._lock = threading.RLock()
        self._slots: list[Slot] = []
        self._size = 0
        self._numbers = itertools.count(1)
        self._emptied = threading.Condition(self._lock)
        self.given_up = 0
        """How many slots were given up because their task would not stop."""

    def resize(self, size: int) -> None:
        """Have so many slots; those too many finish what they are at."""
        with self._lock:
            self._size = size
            staying = [slot for slot in self._slots if not slot.is_leaving]
            for slot in sorted(staying, key=lambda each: each.run is not None)[: -size or None]:
                if len(staying) - size <= 0:
                    break
                slot.is_leaving = True
                staying.remove(slot)
            for _ in range(size - len(staying)):
                self._add()

    def _add(self) -> None:
        slot = self._make(self, next(self._numbers))
        self._slots.append(slot)
        slot.thread.start()

    def gone(self, slot: Slot) -> None:
        """Take note that a slot has ended; have another in its place if it is missed."""
        with self._lock:
            if slot in self._slots:
                self._slots.remove(slot)
            self._fill()
            self._emptied.notify_all()

    def _fill(self) -> None:
        if not self.supply.is_stopping:
            staying = sum(not slot.is_leaving for slot in self._slots)
            for _ in range(self._size - staying):
                self._add()

    def stop_run(self, run: Run) -> None:
        """Have a run stop that is over."""
        with self._lock:
            slot = next((each for each in self._slots if each.run is run), None)
            if slot is not None:
                slot.stop_run(run)
                self._fill()

    def check(self, now: float) -> None:
        """Give up the slots whose task was told to stop and did not."""
        with self._lock:
            for slot in list(self._slots):
                stopped_at = slot.stopped_at
                if stopped_at is not None and now - stopped_at > ABANDON_SECONDS:
                    slot.is_given_up = slot.is_leaving = True
                    if slot.run is not None:
                        slot.run.raise_in_thread()
                    self.given_up += 1
                    self._slots.remove(slot)
                    logger.warning(
                        "gave up a thread whose task would not stop task=%s",
                        slot.run.id if slot.run is not None else "-",
                    )
                    self._fill()
                    self._emptied.notify_all()

    # Looking -------------------------------------------------------------------------------

    @property
    def slots(self) -> list[Slot]:
        with self._lock:
            return list(self._slots)

    @property
    def size(self) -> int:
        return self._size

    @property
    def busy(self) -> int:
        return sum(slot.run is not None for slot in self.slots)

    def idle_us(self) -> list[int]:
        """Return for how long each idle slot has been idle."""
        now = time.monotonic()
        return [round((now - slot.since) * 1_000_000) for slot in self.slots if slot.run is None]

    def reports(self) -> list[SlotReport]:
        """Return how each slot stands."""
        now = time.monotonic()
        return [slot.report(now) for slot in self.slots]

    # Ending --------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Return whether all slots have ended, after so long at most."""
        with self._emptied:
            return self._emptied.wait_for(lambda: not self._slots, seconds)

    def abort(self) -> None:
        """Have every run given back, as if it had never been taken, and stopped."""
        for slot in self.slots:
            run = slot.run
            if run is not None and run.conclude(Outcome(verdict="released"), self.clock()):
                self.settler.put(run)
                slot.stop_run(run)
