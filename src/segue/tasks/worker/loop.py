"""A crew that runs async tasks in one event loop, many at once, and plain ones in threads beside.

The loop must stay free: one that a task blocks for too long is given up with all that ran in it,
and another takes its place.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from segue.clock import Clock
from segue.tasks.worker.reports import SlotReport
from segue.tasks.worker.runs import (
    Outcome,
    Run,
    Stopped,
    execute,
    execute_async,
    failed_by,
)
from segue.tasks.worker.settler import Settler
from segue.tasks.worker.slots import ABANDON_SECONDS
from segue.tasks.worker.supply import Supply

logger = logging.getLogger(__name__)

STALL_SECONDS_DEFAULT: Final = 10.0
BEAT_SECONDS: Final = 0.2
PAUSE_SECONDS: Final = 0.05


class _Loop:
    """An event loop in a thread, and what runs in it."""

    def __init__(self, crew: "LoopCrew") -> None:
        self.crew = crew
        self.loop = asyncio.new_event_loop()
        self.runs: dict[int, tuple[Run, asyncio.Task[None] | None]] = {}
        self.told: dict[Run, float] = {}
        """When runs were told to stop that have not."""
        self.beat = time.monotonic()
        self.thread = threading.Thread(target=self._work, name="segue-loop", daemon=True)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._show)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._leave())
            self.loop.close()

    async def _leave(self) -> None:
        """Let what is still there clean up after itself."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=ABANDON_SECONDS)
        await self.loop.shutdown_asyncgens()

    def _show(self) -> None:
        self.beat = time.monotonic()
        self.loop.call_later(BEAT_SECONDS, self._show)

    def begin(self, run: Run) -> None:
        """Have a run begin; from any thread."""
        self.runs[id(run)] = (run, None)
        self.loop.call_soon_threadsafe(self._begin, run)

    def _begin(self, run: Run) -> None:
        run.begin(self.crew.clock(), time.monotonic())
        self.runs[id(run)] = (run, self.loop.create_task(self._perform(run)))

    async def _perform(self, run: Run) -> None:
        try:
            if run.is_over:
                return
            if run.task.is_async:
                outcome = await execute_async(
                    run.task, run.call, report=run.report, is_cancelled=lambda: run.is_over
                )
            else:
                outcome = await self._plain(run)
            if run.conclude(outcome, self.crew.clock()):
                self.crew.settler.put(run)
        except asyncio.CancelledError:
            return  # What came of it is said already.
        except BaseException as error:  # noqa: BLE001 - no thread to be had, say.
            outcome = failed_by(error, run.call.task, is_cancelled=run.is_over)
            if run.conclude(outcome, self.crew.clock()):
                self.crew.settler.put(run)
        finally:
            self.runs.pop(id(run), None)
            self.told.pop(run, None)
            self.crew.freed()

    async def _plain(self, run: Run) -> Outcome:
        """Run a plain function in a thread of its own: nobody waits for one that never returns."""
        ended: asyncio.Future[Outcome] = self.loop.create_future()

        def tell(outcome: Outcome) -> None:
            if not ended.done():
                ended.set_result(outcome)

        def work() -> None:
            run.enter(threading.get_ident())
            try:
                outcome = execute(
                    run.task, run.call, report=run.report, is_cancelled=lambda: run.is_over
                )
            finally:
                run.enter(0)
            with suppress(RuntimeError):  # The loop is closed: what came of it is said already.
                self.loop.call_soon_threadsafe(tell, outcome)

        threading.Thread(target=_unless_stopped(work), name="segue-plain", daemon=True).start()
        try:
            return await ended
        except asyncio.CancelledError:
            run.raise_in_thread()
            raise

    def stop_run(self, run: Run) -> None:
        found = self.runs.get(id(run))
        if found is not None and found[1] is not None:
            self.told[run] = time.monotonic()
            self.loop.call_soon_threadsafe(found[1].cancel)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


def _unless_stopped(work: Callable[[], None]) -> Callable[[], None]:
    """Return `work` that ends quietly if it hears too late that it should stop."""

    def run() -> None:
        with suppress(Stopped):
            work()

    return run


class LoopCrew:
    """Runs up to `size` tasks at once in an event loop. Safe from any thread."""

    def __init__(
        self,
        supply: Supply,
        settler: Settler,
        clock: Clock,
        *,
        stall_seconds: float = STALL_SECONDS_DEFAULT,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.supply = supply
        self.settler = settler
        self.clock = clock
        self._on_error = on_error
        self._stall_seconds = stall_seconds
        self._size = 0
        self._changed = threading.Condition()
        self._idle_since = time.monotonic()
        self._loop = _Loop(self)
        self._feeder = threading.Thread(target=self._feed, name="segue-feeder", daemon=True)
        self.is_leaving = False
        self.given_up = 0
        """How many event loops were given up because a task blocked them."""

    def resize(self, size: int) -> None:
        """Have so many tasks run at once."""
        with self._changed:
            self._size = size
            self._changed.notify_all()
        if not self._feeder.is_alive() and not self.supply.is_stopping:
            self._loop.thread.start()
            self._feeder.start()

    def freed(self) -> None:
        """Take note that a run has ended."""
        with self._changed:
            if not self._loop.runs:
                self._idle_since = time.monotonic()
            self._changed.notify_all()

    def _feed(self) -> None:
        try:
            while not self.supply.is_stopping:
                with self._changed:
                    free = self._size - len(self._loop.runs)
                    if free <= 0:
                        self._changed.wait(PAUSE_SECONDS)
                        continue
                for run in self.supply.take(free, self):
                    with self._changed:  # Not while the loop is given up for another.
                        self._loop.begin(run)
        except BaseException as error:  # noqa: BLE001 - without a feeder nothing would run.
            self._on_error(error)
        finally:
            with self._changed:
                self._changed.notify_all()

    def stop_run(self, run: Run) -> None:
        """Have a run stop that is over."""
        self._loop.stop_run(run)

    def check(self, now: float) -> None:
        """Give up what was told to stop and did not, and an event loop that a task blocks."""
        loop = self._loop
        for run, told_at in list(loop.told.items()):
            if now - told_at <= ABANDON_SECONDS:
                continue
            loop.told.pop(run, None)
            if loop.runs.pop(id(run), None) is not None:
                self.given_up += 1
                logger.warning("gave up a task that would not stop task=%s", run.id)
                self.freed()
        blocked = now - loop.beat
        if blocked < self._stall_seconds or not loop.runs or not loop.thread.is_alive():
            return
        self.given_up += 1
        logger.warning("gave up an event loop blocked_seconds=%.1f", blocked)
        with self._changed:
            self._loop = _Loop(self)
            self._loop.thread.start()
        for run, _ in list(loop.runs.values()):
            error = f"LoopBlocked: a task blocked the event loop for {blocked:.0f} s"
            outcome = Outcome(verdict="failed", error=error, is_timeout=True)
            if not run.started_us:
                outcome = Outcome(verdict="released")
            if run.conclude(outcome, self.clock()):
                self.settler.put(run)
        loop.stop()
        self.freed()

    # Looking -------------------------------------------------------------------------------

    @property
    def runs(self) -> list[Run]:
        return [run for run, _ in list(self._loop.runs.values())]

    @property
    def size(self) -> int:
        return self._size

    @property
    def busy(self) -> int:
        return len(self._loop.runs)

    def idle_us(self) -> list[int]:
        """Return for how long each free place has been free, as far as that is known."""
        idle_us = 0 if self._loop.runs else time.monotonic() - self._idle_since
        return [round(idle_us * 1_000_000)] * max(0, self._size - self.busy)

    def reports(self) -> list[SlotReport]:
        """Return what runs, as if each run had a slot."""
        now_us = self.clock()
        return [
            SlotReport(
                number,
                "busy",
                max(0, now_us - run.started_us) / 1_000_000 if run.started_us else 0.0,
                run.call.task,
                run.id,
            )
            for number, run in enumerate(self.runs, 1)
        ]

    # Ending --------------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Return whether nothing runs any more, after so long at most."""
        deadline = time.monotonic() + seconds
        with self._changed:
            done = self._changed.wait_for(
                lambda: not self._loop.runs and not self._feeder.is_alive(), seconds
            )
        self._feeder.join(max(0.0, deadline - time.monotonic()))
        if done and self._loop.thread.is_alive():
            self._loop.stop()
            self._loop.thread.join(max(0.1, deadline - time.monotonic()))
        return done

    def abort(self) -> None:
        """Have every run given back, as if it had never been taken, and stopped."""
        for run in self.runs:
            if run.conclude(Outcome(verdict="released"), self.clock()):
                self.settler.put(run)
                self._loop.stop_run(run)
