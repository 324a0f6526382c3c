"""Tasks in threads and in an event loop: timeouts, cancelling, and what will not stop."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest

from segue.clock import Clock
from segue.errors import InvalidArgument, TaskCancelled
from segue.tasks import App, State, Worker, current
from segue.tasks.worker import loop as loops
from segue.tasks.worker import slots
from segue.tasks.worker import worker as workers
from segue.tasks.worker.loop import LoopCrew, _Loop
from segue.tasks.worker.settler import Settler
from segue.tasks.worker.slots import SlotCrew
from segue.tasks.worker.supply import Supply
from segue.testing import ManualClock
from tests.conftest import TORTURE
from tests.contract.task_support import (
    BurstWorker,
    check_intact,
    happenings,
    letters,
    manual_app,
    work,
    working,
)
from tests.waiting import LIMIT_SECONDS, wait_until, wait_until_async

FOREVER = 10 * LIMIT_SECONDS
"""Longer than any test waits."""
VARIABLE: ContextVar[int] = ContextVar("VARIABLE", default=0)


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock()


@pytest.fixture
def app(scratch: Path, clock: ManualClock) -> Iterator[App]:
    """An App whose store must be intact when the test is over."""
    with manual_app(scratch / "data", clock) as app:
        yield app
    check_intact(scratch / "data")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What tasks that would not stop wait for; set when the test is over, so that they end."""
    release = threading.Event()
    yield release
    release.set()


def loop_of(worker: Worker) -> _Loop:
    """Return the event loop that is at work."""
    crew = worker._crew
    assert isinstance(crew, LoopCrew)
    return crew._loop


class Patient(LoopCrew):
    """A crew that gives up a loop only if `give_up_loop` tells it that much time has passed."""

    def __init__(
        self,
        supply: Supply,
        settler: Settler,
        clock: Clock,
        *,
        on_error: Callable[[BaseException], None],
    ) -> None:
        super().__init__(supply, settler, clock, stall_seconds=FOREVER, on_error=on_error)


def give_up_loop(worker: Worker) -> None:
    """Have a worker find that its event loop has been blocked for long."""
    worker._crew.check(loop_of(worker).beat + 2 * FOREVER)  # Rounding must not leave too little.


def end_time_of(worker: Worker) -> None:
    """Have the keeper find that the time of every task that runs is over."""
    for run in worker._keeper.runs:
        run.deadline = 0.0


# Timeouts ----------------------------------------------------------------------------------


def test_a_thread_that_computes_is_stopped_when_its_time_is_over(app: App) -> None:
    """It is told to stop, between two steps of Python; it may clean up."""
    begun = threading.Event()
    cleaned: list[str] = []

    @app.task(retries=0, timeout=FOREVER)
    def job() -> None:
        try:
            begun.set()
            while True:
                pass
        finally:
            cleaned.append(current().task)

    result = job.enqueue()
    with working(Worker(app)) as worker:
        assert begun.wait(LIMIT_SECONDS)
        end_time_of(worker)
        wait_until(lambda: cleaned)

    assert result.record().error == f"TaskTimeout: it took longer than {FOREVER:g} s"
    assert cleaned == ["job"]


def test_a_thread_that_would_not_stop_is_given_up_and_replaced(
    app: App, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can wake a thread that waits: others go on in its place, at once."""
    monkeypatch.setattr(slots, "ABANDON_SECONDS", 0.1)

    @app.task(retries=0, timeout=0.2)
    def stuck() -> None:
        release.wait(FOREVER)

    @app.task
    def next_one() -> int:
        return 1

    first, second = stuck.enqueue(), next_one.enqueue()
    with working(Worker(app)) as worker:
        value = second.get(LIMIT_SECONDS)
        crew = worker._crew
        assert isinstance(crew, SlotCrew)
        wait_until(lambda: crew.given_up == 1)
        wait_until(lambda: [slot.state for slot in crew.slots] == ["idle"])

    assert value == 1
    assert first.record().error_type == "TaskTimeout"


def test_what_a_stopped_thread_still_returns_counts_no_more(
    app: App, release: threading.Event
) -> None:
    """What came of it was said already."""
    begun, returned = threading.Event(), threading.Event()

    @app.task(retries=0, timeout=FOREVER)
    def job() -> int:
        try:
            begun.set()
            release.wait(FOREVER)
        except BaseException:  # noqa: BLE001 - it will not listen
            release.wait(FOREVER)
        returned.set()
        return 1

    result = job.enqueue()
    with working(Worker(app)) as worker:
        assert begun.wait(LIMIT_SECONDS)
        end_time_of(worker)
        wait_until(lambda: result.state is State.DEAD_LETTER)
        release.set()
        wait_until(returned.is_set)

    assert result.state is State.DEAD_LETTER
    assert happenings(app, result.id) == ["dead_letter"]


def test_an_async_task_is_cancelled_when_its_time_is_over(app: App) -> None:
    """Where it waits; it may clean up."""
    begun = threading.Event()
    cleaned: list[str] = []

    @app.task(retries=0, timeout=FOREVER)
    async def job() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaned.append("cleaned")

    result = job.enqueue()
    with working(Worker(app, kind="async")) as worker:
        assert begun.wait(LIMIT_SECONDS)
        end_time_of(worker)
        wait_until(lambda: cleaned)

    assert result.record().error == f"TaskTimeout: it took longer than {FOREVER:g} s"
    assert cleaned == ["cleaned"]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_call_may_have_another_timeout(app: App, kind: str) -> None:
    """Shorter than its task's, which has none to speak of."""

    @app.task(retries=0, timeout=FOREVER)
    async def job() -> None:
        await wait_until_async(lambda: False)

    result = job.using(timeout=0.2).enqueue()
    work(app, kind="async" if kind == "async" else "thread")

    assert result.record().error == "TaskTimeout: it took longer than 0.2 s"


def test_a_task_that_was_too_slow_is_tried_again(app: App, clock: ManualClock) -> None:
    """As any that failed; it may be faster then."""
    attempts: list[int] = []

    @app.task(retries=1, timeout=FOREVER)
    def job() -> str:
        attempts.append(current().attempt)
        while current().attempt == 1:
            pass
        return "done"

    result = job.enqueue()
    with working(Worker(app)) as worker:
        wait_until(lambda: attempts)
        end_time_of(worker)
        wait_until(lambda: result.state is State.RETRYING)
    clock.advance(seconds=2)
    work(app)

    assert attempts == [1, 2]
    assert result.get(0) == "done"


# Cancelling --------------------------------------------------------------------------------


def test_a_thread_that_computes_is_stopped_when_it_is_cancelled(app: App) -> None:
    """It need not ask."""
    begun = threading.Event()

    @app.task(retries=5)
    def job() -> None:
        begun.set()
        while True:
            pass

    result = job.enqueue()
    with working(Worker(app)):
        assert begun.wait(LIMIT_SECONDS)
        result.cancel()
        with pytest.raises(TaskCancelled):
            result.get(LIMIT_SECONDS)

    assert happenings(app, result.id) == ["cancelled"]
    assert letters(app) == []


def test_an_async_task_is_cancelled_where_it_waits(app: App) -> None:
    """And others in the same loop go on."""
    begun = threading.Event()
    ended: list[BaseException] = []

    @app.task
    async def job() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    @app.task
    async def other() -> int:
        await wait_until_async(lambda: ended)
        return 1

    first, second = job.enqueue(), other.enqueue()
    with working(Worker(app, kind="async", min_size=2)):
        assert begun.wait(LIMIT_SECONDS)
        first.cancel()
        with pytest.raises(TaskCancelled):
            first.get(LIMIT_SECONDS)
        value = second.get(LIMIT_SECONDS)

    assert len(ended) == 1
    assert value == 1


def test_a_task_that_cancels_itself_has_failed(app: App) -> None:
    """Nobody asked for it: a CancelledError of its own is an error as any other."""

    @app.task(retries=0)
    async def job() -> None:
        raise asyncio.CancelledError

    threaded = job.enqueue()
    work(app)
    looped = job.enqueue()
    work(app, kind="async")

    for result in (threaded, looped):
        assert result.state is State.DEAD_LETTER
        assert result.record().error_type == "CancelledError"


# Event loops -------------------------------------------------------------------------------


def test_an_event_loop_runs_many_at_once_and_plain_functions_beside(app: App) -> None:
    """A plain one does not hold up the loop."""
    met = threading.Event()

    @app.task
    async def one() -> bool:
        await wait_until_async(met.is_set)
        return True

    @app.task
    def plain() -> bool:
        met.set()
        return threading.current_thread() is threading.main_thread()

    first, second = one.enqueue(), plain.enqueue()
    BurstWorker(app, kind="async", min_size=2, burst=True).run()

    assert first.get(0) is True
    assert second.get(0) is False


def test_an_event_loop_that_a_task_blocks_is_replaced_and_others_go_on(
    app: App, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran in it has failed, and may clean up; what comes runs in another."""

    monkeypatch.setattr(workers, "LoopCrew", Patient)
    begun = threading.Event()
    cleaned: list[str] = []

    @app.task(retries=0, timeout=FOREVER)
    async def blocker() -> None:
        begun.set()
        release.wait(FOREVER)

    @app.task(retries=0, timeout=FOREVER)
    async def victim() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    @app.task
    async def other() -> int:
        return 1

    innocent = victim.enqueue()
    with working(Worker(app, kind="async", min_size=4)) as worker:
        wait_until(lambda: innocent.state is State.PROCESSING)
        blocked_loop = loop_of(worker)
        blocked = blocker.enqueue()
        assert begun.wait(LIMIT_SECONDS)
        give_up_loop(worker)
        given_up = worker._crew.given_up
        value = other.enqueue().get(LIMIT_SECONDS)
        release.set()
        blocked_loop.thread.join(LIMIT_SECONDS)

    gc.collect()
    assert given_up == 1
    assert value == 1
    assert cleaned == ["up"]
    assert blocked.record().error_type == "LoopBlocked"
    assert innocent.record().error_type == "LoopBlocked"


def test_a_task_that_a_blocked_event_loop_never_began_has_lost_no_try(
    app: App, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not at fault, and never ran: another loop runs it."""

    monkeypatch.setattr(workers, "LoopCrew", Patient)
    begun = threading.Event()

    @app.task(retries=0, timeout=FOREVER)
    async def blocker() -> None:
        begun.set()
        release.wait(FOREVER)

    @app.task(retries=0)
    async def other() -> int:
        return current().attempt

    blocker.enqueue()
    with working(Worker(app, kind="async", min_size=4)) as worker:
        assert begun.wait(LIMIT_SECONDS)
        blocked_loop = loop_of(worker)
        result = other.enqueue()
        wait_until(lambda: len(blocked_loop.runs) == 2)
        give_up_loop(worker)
        value = result.get(LIMIT_SECONDS)
        release.set()
        blocked_loop.thread.join(LIMIT_SECONDS)
    gc.collect()

    assert value == 1


def test_an_event_loop_without_tasks_is_not_given_up(app: App) -> None:
    """However long it has had nothing to do; its beat goes on by itself."""

    @app.task
    async def job() -> int:
        return 1

    with working(Worker(app, kind="async")) as worker:
        assert job.enqueue().get(LIMIT_SECONDS) == 1
        beat = worker._crew._loop.beat if isinstance(worker._crew, LoopCrew) else 0.0
        crew = worker._crew
        assert isinstance(crew, LoopCrew)
        wait_until(lambda: crew._loop.beat > beat)
        crew.check(crew._loop.beat + loops.STALL_SECONDS_DEFAULT + 1)

        assert crew.given_up == 0
        assert job.enqueue().get(LIMIT_SECONDS) == 1


# Threads -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_end_as_they_are_told_to_stop_are_none_the_worse(app: App) -> None:
    """The keeper's word may come a moment too late: nobody else hears it."""

    @app.task(retries=0, timeout=0.15)
    def late() -> None:
        while not current().is_cancelled:
            pass

    @app.task
    def after() -> int:
        return 1

    results = [late.enqueue() for _ in range(12 if TORTURE else 6)]
    with working(Worker(app, min_size=3)):
        wait_until(lambda: len(letters(app)) == len(results))
        value = after.enqueue().get(LIMIT_SECONDS)

    assert {result.record().error_type for result in results} == {"TaskTimeout"}
    assert value == 1


def test_async_tasks_in_a_thread_share_one_event_loop(app: App) -> None:
    """What they keep between runs, such as a connection, stays good."""
    loops_seen: list[asyncio.AbstractEventLoop] = []

    @app.task
    async def job() -> None:
        loops_seen.append(asyncio.get_running_loop())

    for _ in range(3):
        job.enqueue()
    work(app)

    assert len(loops_seen) == 3
    assert len(set(map(id, loops_seen))) == 1


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_what_a_task_sets_in_its_context_is_not_seen_by_the_next(app: App, kind: str) -> None:
    """Each begins anew, whatever thread or loop it has."""
    seen: list[int] = []

    @app.task
    def plain() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(VARIABLE.get() + 1)

    @app.task
    async def looped() -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(VARIABLE.get() + 1)

    for _ in range(2):
        plain.enqueue()
        looped.enqueue()
    work(app, kind="async" if kind == "async" else "thread")

    assert seen == [0, 0, 0, 0]


def test_a_thread_that_a_task_starts_is_not_the_task(app: App) -> None:
    """But one that it waits for by `asyncio.to_thread` is."""
    seen: list[str] = []

    def look() -> None:
        try:
            seen.append(current().task)
        except InvalidArgument:
            seen.append("none")

    @app.task
    def plain() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    @app.task
    async def looped() -> None:
        await asyncio.to_thread(look)

    plain.enqueue()
    looped.enqueue()
    work(app)

    assert seen == ["none", "looped"]


def test_a_slot_is_idle_busy_or_shutting_down(app: App, release: threading.Event) -> None:
    """As the report of a worker says it, with what it runs. An idle slot would leave at once."""
    begun = threading.Semaphore(0)

    @app.task
    def job() -> None:
        begun.release()
        release.wait(FOREVER)

    with working(Worker(app, min_size=2, name="w")) as worker:
        wait_until(lambda: hasattr(worker, "_crew") and len(worker._crew.idle_us()) == 2)
        idle = worker.report()
        result = job.enqueue()
        assert begun.acquire(timeout=LIMIT_SECONDS)
        busy = worker.report()
        other = job.enqueue()
        assert begun.acquire(timeout=LIMIT_SECONDS)
        worker._crew.resize(1)
        smaller = worker.report()
        release.set()
        result.get(LIMIT_SECONDS)
        other.get(LIMIT_SECONDS)

    assert [slot.state for slot in idle.slots] == ["idle", "idle"]
    assert idle.is_safe_to_stop
    assert sorted((slot.state, slot.task, slot.id) for slot in busy.slots) == [
        ("busy", "job", result.id),
        ("idle", "", ""),
    ]
    assert (busy.busy, busy.size, busy.is_safe_to_stop) == (1, 2, False)
    assert "shutting_down" in [slot.state for slot in smaller.slots]
    assert smaller.size == 1
