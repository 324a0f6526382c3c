"""Leases: kept while a task runs; once lost, whatever comes of the run does not count."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from segue.stores.contract import Outcome, Receipt
from segue.stores.file.queue import FileQueue
from segue.stores.job import Job
from segue.tasks import App, State, Worker, current
from segue.tasks.worker import keeper
from segue.testing import ManualClock
from tests.contract.task_support import (
    check_intact,
    events_of,
    happenings,
    manual_app,
    work,
    working,
)
from tests.waiting import LIMIT_SECONDS, wait_until

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
def thief(app: App, clock: ManualClock) -> Iterator[App]:
    """Somebody else on the same store, as another process would be."""
    with manual_app(Path(app.url), clock) as thief:
        yield thief


@pytest.fixture
def idle_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the keeper from renewing, between the end of a lease and the moment it is stolen."""
    monkeypatch.setattr(keeper, "TICK_SECONDS", FOREVER)


class Held:
    """A task that runs until it is told to return."""

    def __init__(self, app: App) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.ended = threading.Event()
        self.attempts: list[int] = []
        self.was_told = False

        @app.task(retries=3, name="held", timeout=FOREVER)
        def held() -> str:
            attempt = current().attempt
            self.attempts.append(attempt)
            self.begun.set()
            self.go_on.wait(FOREVER)
            self.was_told = current().is_cancelled
            self.ended.set()
            return f"attempt {attempt}"

        self.task = held


@pytest.fixture
def held(app: App) -> Iterator[Held]:
    """One of them; it ends with the test at the latest."""
    held = Held(app)
    yield held
    held.go_on.set()


def steal(thief: App, clock: ManualClock, seconds: float) -> Job:
    """Let a lease end, and take what it was on."""
    clock.advance(seconds=seconds)
    return thief.store.queue("default").lease(ttl=60)


@pytest.mark.usefixtures("idle_keeper")
def test_a_result_that_comes_after_the_lease_was_lost_is_taken_back(
    app: App, thief: App, held: Held, clock: ManualClock
) -> None:
    """Somebody else is at it by then: theirs counts, and that it was lost is recorded."""
    result = held.task.enqueue()
    with working(Worker(app, lease_ttl=30, name="slow")) as worker:
        assert held.begun.wait(LIMIT_SECONDS)
        job = steal(thief, clock, 31)
        held.go_on.set()
        wait_until(lambda: "lost" in happenings(app, result.id))
        counted = worker.metrics.snapshot().total.counts
    seen = result.record()

    assert happenings(app, result.id) == ["completed", "lost"]
    assert events_of(app, result.id)[-1].worker == "slow"
    assert seen.state is State.PROCESSING
    assert (seen.result, job.attempt) == (None, 2)
    assert not any(counted.values())
    job.ack()


@pytest.mark.usefixtures("idle_keeper")
def test_a_lease_that_is_lost_while_a_task_runs_has_it_stop(
    app: App, thief: App, clock: ManualClock
) -> None:
    """The keeper finds it when it renews: the task is told, and nothing is said of it."""
    begun, told = threading.Event(), threading.Event()

    @app.task(retries=3, timeout=FOREVER)
    def job() -> str:
        begun.set()
        try:
            wait_until(lambda: current().is_cancelled)
        finally:
            told.set()
        return "of no use"

    result = job.enqueue()
    with working(Worker(app, lease_ttl=1)) as worker:
        assert begun.wait(LIMIT_SECONDS)
        stolen = steal(thief, clock, 2)

        def is_told() -> bool:
            worker._keeper._tick()  # Renews as soon as a third of the lease has passed.
            return told.is_set()

        wait_until(is_told)
        wait_until(lambda: not worker._keeper.runs)

    assert stolen.attempt == 2
    assert set(happenings(app, result.id)) <= {"processing", "lost"}
    assert result.state is State.PROCESSING
    stolen.ack()


@pytest.mark.usefixtures("idle_keeper")
def test_the_work_of_the_second_counts_and_that_of_the_first_does_not(
    app: App, thief: App, held: Held, clock: ManualClock
) -> None:
    """Also if the first comes later: an earlier attempt takes nothing back."""
    second_app = thief

    @second_app.task(name="held", retries=3)
    def quick() -> str:
        return "second"

    result = held.task.enqueue()
    with working(Worker(app, lease_ttl=30)):
        assert held.begun.wait(LIMIT_SECONDS)
        clock.advance(seconds=31)
        work(second_app)
        before = result.get(LIMIT_SECONDS)
        held.go_on.set()
        wait_until(lambda: "lost" in happenings(app, result.id))

    assert before == "second"
    assert result.get(0) == "second"
    assert (result.state, result.record().attempt) == (State.COMPLETED, 2)


def test_a_long_task_keeps_its_lease(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed well before it ends, by the clock of the machine."""
    monkeypatch.setattr(keeper, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(keeper, "BEATS_PER_TTL", 10_000)
    begun, go_on = threading.Event(), threading.Event()
    with App(scratch / "live", sync="os") as app:

        @app.task
        def job() -> int:
            begun.set()
            go_on.wait(FOREVER)
            return current().attempt

        result = job.enqueue()
        with working(Worker(app, lease_ttl=60)):
            assert begun.wait(LIMIT_SECONDS)
            queue = app.store.queue("default")
            left = [queue.stats().leases[0].seconds_left]
            renewals = 0

            def is_renewed() -> bool:
                nonlocal renewals
                left.append(queue.stats().leases[0].seconds_left)
                renewals += left[-1] > left[-2]
                return renewals >= 4

            wait_until(is_renewed)
            go_on.set()
            value = result.get(LIMIT_SECONDS)

        assert value == 1


def test_a_worker_that_dies_leaves_its_task_to_the_next(app: App, clock: ManualClock) -> None:
    """When its lease is over; that counts as a try."""

    @app.task(retries=3)
    def job() -> int:
        return current().attempt

    result = job.enqueue()
    app.store.queue("default").lease(ttl=30, owner="somebody who died")
    waiting = result.record()
    clock.advance(seconds=31)
    retrying = result.state
    work(app)

    assert (waiting.state, waiting.worker) == (State.PROCESSING, "somebody who died")
    assert retrying is State.RETRYING
    assert result.get(0) == 2


@pytest.mark.usefixtures("idle_keeper")
def test_a_task_that_was_settled_by_hand_while_it_ran_is_completed(app: App, held: Held) -> None:
    """It ran to its end, and no worker will run it again."""
    result = held.task.enqueue()
    with working(Worker(app, lease_ttl=30)):
        assert held.begun.wait(LIMIT_SECONDS)
        queue = app.store.queue("default")
        queue.ack(queue.stats().leases[0].receipt)
        held.go_on.set()
        assert held.ended.wait(LIMIT_SECONDS)

    assert result.state is State.COMPLETED
    assert held.attempts == [1]
    assert queue.count().total == 0


# An answer that was lost -------------------------------------------------------------------------


def test_task_stays_completed_if_the_answer_to_its_ack_was_lost(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ack is repeated, and the repeated one finds no lease."""
    ack_many = FileQueue.ack_many

    def ack_twice(queue: FileQueue, jobs: Iterable[Job | Receipt]) -> None:
        acked = list(jobs)
        ack_many(queue, acked)
        ack_many(queue, acked)

    @app.task
    def job() -> int:
        return 1

    monkeypatch.setattr(FileQueue, "ack_many", ack_twice)
    result = job.enqueue()
    work(app)

    assert result.get(LIMIT_SECONDS) == 1
    assert happenings(app, result.id)[-1] == "completed"


def test_task_stays_dead_if_the_answer_to_its_burial_was_lost(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    nack = FileQueue.nack

    def nack_twice(queue: FileQueue, job: Job | Receipt, *, outcome: Outcome, reason: str) -> None:
        for _ in range(2):
            nack(queue, job, outcome=outcome, reason=reason)

    @app.task(retries=0)
    def job() -> None:
        raise ValueError("never")

    monkeypatch.setattr(FileQueue, "nack", nack_twice)
    result = job.enqueue()
    work(app)

    assert result.state is State.DEAD_LETTER
    assert happenings(app, result.id)[-1] == "dead_letter"
