"""How a worker comes to its end: what runs is finished or given back, never lost or hoarded."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from segue.stores.job import Job
from segue.tasks import App, State, Worker, current
from segue.tasks.autoscaler import ScalingRules
from segue.tasks.worker import Kind
from segue.tasks.worker.keeper import Keeper
from segue.tasks.worker.reports import read_reports
from segue.tasks.worker.runs import Run
from segue.tasks.worker.sources import Sources
from segue.tasks.worker.supply import Supply
from segue.testing import ManualClock
from tests.contract.task_support import (
    BurstWorker,
    check_intact,
    happenings,
    manual_app,
    work,
    working,
)
from tests.waiting import LIMIT_SECONDS, wait_until, wait_until_async

FOREVER = 10 * LIMIT_SECONDS


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
    """What tasks wait for; set when the test is over."""
    release = threading.Event()
    yield release
    release.set()


@pytest.fixture(params=["thread", "async"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Who runs the tasks; processes have tests of their own."""
    kind: Kind = request.param
    return kind


def start(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread


# Ends --------------------------------------------------------------------------------------


def test_a_burst_ends_when_nothing_is_left(app: App, kind: Kind) -> None:
    """Not before what the tasks themselves queued is done, too."""

    @app.task
    def countdown(number: int) -> None:
        if number:
            countdown.enqueue(number - 1)

    countdown.enqueue(5)
    Worker(app, burst=True, kind=kind).run()

    assert app.store.queue("default").count().total == 0
    assert len(app.desk.find(states=[State.COMPLETED])) == 6


def test_a_burst_with_nothing_to_do_ends_at_once(app: App, kind: Kind) -> None:
    """Also in a store that has never seen a task."""

    @app.task
    def job() -> None: ...

    Worker(app, burst=True, kind=kind).run()

    assert app.desk.find() == []


def test_a_limit_is_how_many_are_taken(app: App, kind: Kind) -> None:
    """The rest is left for others, untouched."""
    ran: list[int] = []

    @app.task
    def job(number: int) -> None:
        ran.append(number)

    job.map(range(10))
    Worker(app, limit=4, kind=kind, min_size=3).run()

    assert sorted(ran) == [0, 1, 2, 3]
    assert app.store.queue("default").count().ready == 6
    assert app.store.queue("default").count().leased == 0


def test_a_worker_that_is_stopped_finishes_what_runs_and_takes_nothing_more(
    app: App, kind: Kind, release: threading.Event
) -> None:
    """What it has begun is done within the time it has for that."""
    begun = threading.Event()

    @app.task
    async def job(number: int) -> int:
        begun.set()
        await wait_until_async(release.is_set)
        return number

    first = job.enqueue(1)
    worker = Worker(app, kind=kind, drain=FOREVER)
    thread = start(worker)
    assert begun.wait(LIMIT_SECONDS)
    second = job.enqueue(2)
    worker.stop()
    wait_until(lambda: worker._supply.is_stopping)
    release.set()
    thread.join(LIMIT_SECONDS)

    assert not thread.is_alive()
    assert first.get(0) == 1
    assert second.state is State.PENDING


@pytest.mark.parametrize("now", [True, False])
def test_what_is_not_finished_in_time_is_given_back_without_counting_a_try(
    app: App, kind: Kind, now: bool
) -> None:
    """At once if it is to stop now, after `drain` otherwise; the next worker has it whole."""
    begun = threading.Event()
    attempts: list[int] = []

    @app.task(retries=0)
    async def job() -> str:
        attempts.append(current().attempt)
        begun.set()
        await wait_until_async(lambda: len(attempts) > 1)
        return "done"

    result = job.enqueue()
    worker = Worker(app, kind=kind, drain=FOREVER if now else 0.3)
    thread = start(worker)
    assert begun.wait(LIMIT_SECONDS)
    worker.stop(now=now)
    thread.join(LIMIT_SECONDS)
    state = result.state
    attempts.append(0)
    work(app, kind=kind)

    assert not thread.is_alive()
    assert state is State.PENDING
    assert happenings(app, result.id) == ["pending", "completed"]
    assert attempts == [1, 0, 1]
    assert result.get(0) == "done"


def test_a_worker_leaves_no_leases_behind(app: App, kind: Kind, release: threading.Event) -> None:
    """What it took and had not begun goes back at once."""

    @app.task
    async def job(number: int) -> None:
        if number:
            await wait_until_async(release.is_set)

    job.map(range(50))
    worker = Worker(app, kind=kind, min_size=4)
    thread = start(worker)
    wait_until(lambda: app.store.queue("default").count().total < 50)
    worker.stop()
    release.set()
    thread.join(LIMIT_SECONDS)
    counts = app.store.queue("default").count()
    work(app, kind=kind, size=8)

    assert counts.leased == 0
    assert len(app.desk.find(states=[State.COMPLETED], limit=100)) == 50


def test_a_worker_may_be_stopped_twice_and_before_it_works(app: App) -> None:
    """The second time it is in a hurry."""

    @app.task
    def job() -> None: ...

    job.enqueue()
    worker = Worker(app)
    worker.stop()
    worker.stop(now=True)
    thread = start(worker)
    thread.join(LIMIT_SECONDS)

    assert not thread.is_alive()
    assert app.store.queue("default").count().leased == 0


def test_a_store_that_is_closed_ends_the_worker(app: App) -> None:
    """It cannot go on, and says so."""

    @app.task
    def job() -> None: ...

    worker = Worker(app)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: hasattr(worker, "_crew") and worker._crew.size == 1)
    app.store.close()
    thread.join(LIMIT_SECONDS)

    assert not thread.is_alive()
    assert len(errors) == 1
    app.close()


def test_two_workers_share_the_work(app: App) -> None:
    """Each task is run once, by one of them."""
    lock = threading.Lock()
    ran: list[int] = []

    @app.task
    def job(number: int) -> None:
        with lock:
            ran.append(number)

    job.map(range(200))
    with working(Worker(app, min_size=2)), working(Worker(app, min_size=2)):
        wait_until(lambda: app.store.queue("default").count().total == 0)

    assert sorted(ran) == list(range(200))


# Reports -----------------------------------------------------------------------------------


def test_a_worker_reports_until_it_stops(app: App, clock: ManualClock) -> None:
    """With its numbers; one that stopped, or fell silent, is not shown."""

    @app.task(retries=0)
    def job(number: int) -> None:
        if number == 0:
            raise ValueError("no")

    with working(Worker(app, name="w-1", min_size=2)) as worker:
        wait_until(lambda: bool(read_reports(app.store, clock())))
        (report,) = read_reports(app.store, clock())
        job.map(range(5))
        wait_until(lambda: worker.metrics.snapshot().total.counts["completed"] == 4)
        wait_until(lambda: worker.metrics.snapshot().total.counts["dead"] == 1)
        wait_until(lambda: not worker._keeper.runs)
        now = worker.report()
        clock.advance(seconds=11)
        silent = [each.worker for each in read_reports(app.store, clock())]
    stopped = read_reports(app.store, clock())

    assert (report.worker, report.state, report.kind, report.size) == (
        "w-1",
        "running",
        "thread",
        2,
    )
    assert list(report.queues) == ["default"]
    assert now.is_safe_to_stop
    assert silent in ([], ["w-1"])  # It may have reported since.
    assert stopped == []


@pytest.mark.parametrize("moment", ["leased", "running", "settled"])
def test_a_burst_waits_for_a_message_that_it_has_just_leased(
    app: App, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The worker looks whether anything is left while one thread takes the last message."""
    ran: list[str] = []

    @app.task
    def job() -> None:
        if moment == "running":
            wait_for_a_look()
        ran.append("here")

    looked = threading.Event()
    worker = BurstWorker(app, burst=True)
    is_nothing_left = worker._is_nothing_left
    run_of = Supply._run_of
    forget = Keeper.forget

    def look() -> bool:
        looked.set()
        return is_nothing_left()

    def wait_for_a_look() -> None:
        looked.clear()
        assert looked.wait(LIMIT_SECONDS)

    def run_of_late(
        supply: Supply, job: Job, cancelled: Mapping[str, int], at: float
    ) -> Run | None:
        if moment == "leased":
            wait_for_a_look()
        return run_of(supply, job, cancelled, at)

    def forget_late(keeper: Keeper, run: Run) -> None:
        if moment == "settled":
            wait_for_a_look()
        forget(keeper, run)

    monkeypatch.setattr(worker, "_is_nothing_left", look)
    monkeypatch.setattr(Supply, "_run_of", run_of_late)
    monkeypatch.setattr(Keeper, "forget", forget_late)
    job.enqueue()
    worker.run()

    assert ran == ["here"]
    assert app.store.queue("default").count().total == 0


def test_a_burst_can_be_stopped_while_its_store_does_not_answer(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks whether anything is left again and again, and notices between two looks."""
    asked = threading.Event()
    looked = threading.Event()
    stopped = threading.Event()
    pause = Supply.pause

    @app.task
    def job() -> None: ...

    def look(supply: Supply, seconds_max: float) -> bool:
        if asked.is_set():
            looked.set()
        return pause(supply, seconds_max)

    def hang(*_: object) -> list[Job]:
        asked.set()
        assert stopped.wait(LIMIT_SECONDS)
        return []

    monkeypatch.setattr(Supply, "pause", look)
    monkeypatch.setattr(Sources, "lease", hang)
    worker = BurstWorker(app, burst=True)
    with working(worker):
        assert looked.wait(LIMIT_SECONDS)
        worker.stop()
        wait_until(lambda: worker._supply.is_stopping)
        stopped.set()


def test_what_workers_count_is_what_happened(app: App) -> None:
    """Completed, failed with each try, retried, dead, cancelled."""
    attempts: list[int] = []

    @app.task(retries=1, backoff=0.0)
    def job(number: int) -> None:
        attempts.append(number)
        if number == 0:
            raise ValueError("no")

    results = job.map([0, 1, 2, 3])
    results[3].cancel()
    worker = BurstWorker(app, burst=True)
    worker.run()
    (series,) = worker.metrics.snapshot().series

    assert sorted(attempts) == [0, 0, 1, 2]
    assert (series.task, series.queue) == ("job", "default")
    assert {name: count for name, count in series.counts.items() if count} == {
        "completed": 2,
        "failed": 2,
        "retried": 1,
        "dead": 1,
        "cancelled": 1,
    }
    assert series.run.percentiles().count >= 4


def test_percentiles_say_how_long_tasks_waited_and_ran(app: App, clock: ManualClock) -> None:
    """By the clock that everybody goes by."""

    @app.task
    def job(seconds: int) -> None:
        clock.advance(seconds=seconds)

    job.map([1, 1, 1, 5])
    worker = BurstWorker(app, burst=True)
    worker.run()
    (series,) = worker.metrics.snapshot().series

    assert series.run.percentiles().count == series.wait.percentiles().count == 4
    assert (series.run.sum_us, series.run.max_us) == (8_000_000, 5_000_000)
    assert series.run.percentiles().p50_ms == pytest.approx(1_000, rel=0.01)
    assert series.run.percentiles().p99_ms == pytest.approx(5_000, rel=0.01)
    assert series.wait.sum_us == 0 + 1_000_000 + 2_000_000 + 3_000_000


# Scaling -----------------------------------------------------------------------------------


def test_a_worker_grows_with_what_waits_and_shrinks_when_it_is_idle(
    scratch: Path, release: threading.Event, kind: Kind
) -> None:
    """Between its least and its most, a step at a time, and says why."""
    rules = ScalingRules(
        min_workers=1,
        max_workers=4,
        depth_up=3,
        depth_per_worker_up=2,
        step_depth=1,
        idle_seconds=0.2,
        cooldown_up_seconds=0,
        cooldown_down_seconds=0,
        check_seconds=0.05,
    )
    with App(scratch / "live", sync="os") as app:

        @app.task(timeout=FOREVER)
        async def job(number: int) -> None:
            await wait_until_async(release.is_set)

        results = job.map(range(30))
        with working(Worker(app, kind=kind, scaling=rules)) as worker:
            wait_until(lambda: hasattr(worker, "_crew") and worker._crew.busy == 4)
            release.set()
            for result in results:
                result.get(LIMIT_SECONDS)
            wait_until(lambda: worker._crew.size == 1)
            report = worker.report()

    assert max(decision.after for decision in report.decisions) == 4
    assert report.decisions[-1].after == 1
    assert all(decision.reason for decision in report.decisions)
