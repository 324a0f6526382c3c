"""The keeper: leases are renewed side by side over a network, and nothing waits for one that hangs.

Its runs are real, their queue is not: it answers when the test says so.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from segue.errors import LeaseLost, StoreUnavailable
from segue.log.options import Duration
from segue.stores.contract import Outcome as Settled
from segue.stores.contract import Receipt
from segue.stores.heartbeat import Heartbeat
from segue.stores.job import Job
from segue.tasks import App
from segue.tasks.cancelling import Cancellations
from segue.tasks.envelope import Envelope
from segue.tasks.events import Happening, TaskEvent
from segue.tasks.worker import keeper
from segue.tasks.worker.keeper import Keeper
from segue.tasks.worker.runs import Run
from segue.tasks.worker.settler import Settler
from tests.waiting import LIMIT_SECONDS, wait_until

TTL_SECONDS = 30.0
PUSHED_US = 1_000


class FakeQueue:
    """A queue whose renewals are noted, and hang or fail where they are told to."""

    name = "default"

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        self.go_on = threading.Event()
        self.hangs: set[int] = set()
        self.errors: dict[int, Exception] = {}
        self.begun: list[int] = []
        self.threads: set[str] = set()

    def extend(self, job: Job | Receipt, *, ttl: Duration | None = None) -> None:
        assert isinstance(job, Job)
        self.begun.append(job.offset)
        self.threads.add(threading.current_thread().name)
        if job.offset in self.hangs:
            self.go_on.wait(2 * LIMIT_SECONDS)
        if job.offset in self.errors:
            raise self.errors[job.offset]

    def ack(self, job: Job | Receipt) -> None: ...

    def ack_many(self, jobs: Iterable[Job | Receipt]) -> None: ...

    def nack(
        self,
        job: Job | Receipt,
        *,
        outcome: Settled = "fail",
        delay: Duration | None = None,
        reason: str = "",
    ) -> None: ...


class FakeCancellations:
    """Says who is to be cancelled; hangs if told to."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.look: Callable[[], None] = lambda: None

    def last_requested(self) -> dict[str, int]:
        self.look()
        return self.requests


class FakeSettler:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.settled: list[Run] = []

    def put(self, run: Run) -> None:
        self.settled.append(run)

    def note(self, events: list[TaskEvent]) -> None: ...

    def event(self, run: Run, happened: Happening, now_us: int) -> TaskEvent:
        return TaskEvent(id=run.id, happened=happened, at_us=now_us)


class FakeCrew:
    """Counts how often it is asked for what makes no progress."""

    def __init__(self) -> None:
        self.checks = 0
        self.stopped: list[Run] = []

    def stop_run(self, run: Run) -> None:
        self.stopped.append(run)

    def check(self, now: float) -> None:
        self.checks += 1


class Scene:
    """A keeper at work, and all that it has to do with."""

    def __init__(self, app: App, heartbeat: Heartbeat) -> None:
        self._task = app.task(name="nothing")(_nothing)
        self.queue = FakeQueue(heartbeat)
        self.cancellations = FakeCancellations()
        self.settler = FakeSettler()
        self.crew = FakeCrew()
        self.errors: list[BaseException] = []
        self.keeper = Keeper(
            cast("Cancellations", self.cancellations), app.clock, on_error=self.errors.append
        )

    def start(self) -> None:
        self.keeper.start(cast("Settler", self.settler), self.crew)

    def run(self, number: int, *, age: float = TTL_SECONDS / 2) -> Run:
        """Return a run under way that was leased so long ago."""
        now = time.monotonic()
        job = Job(self.queue, 0, number, 1, TTL_SECONDS, 0, 1, b"", 0, PUSHED_US)
        run = Run(job, Envelope("nothing"), self._task, f"default/{number}", now - age)
        run.begin(0, now)
        self.keeper.add(run)
        return run

    def ticks(self, count: int = 3) -> None:
        """Wait until the keeper has gone on for `count` rounds."""
        aim = self.crew.checks + count
        wait_until(lambda: self.crew.checks >= aim)


def _nothing() -> None: ...


@pytest.fixture
def app(scratch: Path) -> Iterator[App]:
    """Whose task it is."""
    with App(scratch / "data", sync="os") as app:
        yield app


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keepers look more often."""
    monkeypatch.setattr(keeper, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(keeper, "CANCEL_SECONDS", 0.02)


@pytest.fixture
def far(app: App, quick_ticks: None) -> Iterator[Scene]:
    """A keeper of leases that take a round trip."""
    yield from scene(app, Heartbeat(side_by_side=4))


@pytest.fixture
def near(app: App, quick_ticks: None) -> Iterator[Scene]:
    """A keeper of leases in a store of files."""
    yield from scene(app, Heartbeat())


def scene(app: App, heartbeat: Heartbeat) -> Iterator[Scene]:
    scene = Scene(app, heartbeat)
    yield scene
    scene.queue.go_on.set()
    scene.keeper.close()
    heartbeat.close()


def test_a_renewal_that_hangs_holds_up_no_other(far: Scene) -> None:
    """Else one lost answer costs all leases of a worker, and its tasks run twice."""
    far.queue.hangs = {0}
    hanging, *others = [far.run(number) for number in range(4)]
    far.start()

    wait_until(lambda: all(run.leased_until > time.monotonic() + 20 for run in others))
    assert hanging.leased_until < time.monotonic() + 20


def test_renewals_are_under_way_side_by_side(far: Scene) -> None:
    """One after another, many runs and a long way would take longer than a lease lasts."""
    far.queue.hangs = {0, 1, 2}
    for number in range(3):
        far.run(number)
    far.start()

    wait_until(lambda: sorted(far.queue.begun) == [0, 1, 2])


def test_a_renewal_that_is_under_way_is_not_asked_for_again(far: Scene) -> None:
    """It would take the place of another's; once it has failed, it is."""
    far.queue.hangs = {0}
    far.queue.errors[0] = StoreUnavailable("it does not answer")
    run = far.run(0)
    far.start()
    far.ticks(5)
    begun = list(far.queue.begun)
    del far.queue.errors[0]
    far.queue.go_on.set()

    assert begun == [0]
    wait_until(lambda: run.leased_until > time.monotonic() + 20)
    assert not run.is_over


def test_a_failed_renewal_is_tried_again_soon(far: Scene) -> None:
    """There is not much left of the lease."""
    far.queue.errors[0] = StoreUnavailable("it does not answer")
    run = far.run(0)
    far.start()

    wait_until(lambda: len(far.queue.begun) >= 3)
    assert not run.is_over


def test_timeouts_and_checks_go_on_while_renewals_hang(far: Scene) -> None:
    """All of them: what runs is still kept to its time."""
    far.queue.hangs = set(range(9))
    runs = [far.run(number) for number in range(9)]
    late = runs[5]
    late.timeout, late.deadline = 1.0, time.monotonic()
    far.start()

    wait_until(lambda: far.crew.stopped == [late])
    assert late.outcome is not None
    assert late.outcome.is_timeout
    far.ticks()


def test_cancellations_go_on_while_a_renewal_hangs(far: Scene) -> None:
    far.queue.hangs = {0}
    run = far.run(0)
    far.cancellations.requests[run.id] = PUSHED_US
    far.start()

    wait_until(lambda: far.crew.stopped == [run])
    assert run.outcome is not None
    assert run.outcome.verdict == "cancelled"


def test_a_look_at_cancellations_that_hangs_holds_up_nothing(far: Scene) -> None:
    """It takes a round trip, too; one is under way at a time."""
    looks = threading.Semaphore(0)

    def hang() -> None:
        looks.release()
        far.queue.go_on.wait(2 * LIMIT_SECONDS)

    far.cancellations.look = hang
    run = far.run(0, age=0)
    far.start()
    assert looks.acquire(timeout=LIMIT_SECONDS)
    run.timeout, run.deadline = 1.0, time.monotonic()

    wait_until(lambda: far.crew.stopped == [run])
    far.ticks(5)
    assert not looks.acquire(blocking=False)


def test_a_run_whose_lease_is_lost_is_stopped(far: Scene) -> None:
    """Somebody else is at it: what comes of it here does not count."""
    far.queue.errors[0] = LeaseLost(receipt="0-0/1", reason="somebody else has it")
    run, other = far.run(0), far.run(1)
    far.start()

    wait_until(lambda: far.crew.stopped == [run])
    assert far.settler.settled == [run]
    assert run.outcome is not None
    assert run.outcome.verdict == "lost"
    assert not other.is_over


def test_a_run_that_is_settled_while_its_renewal_waits_is_not_renewed(far: Scene) -> None:
    """Nothing is said of it, either: it has come to its end in order."""
    far.queue.hangs = {0, 1, 2, 3}
    runs = [far.run(number) for number in range(5)]
    far.start()
    wait_until(lambda: len(far.queue.begun) == 4)
    waiting = next(run for run in runs if run.job.offset not in far.queue.begun)
    far.ticks()  # It waits for its turn by now.
    waiting.job.settle()
    far.keeper.forget(waiting)
    far.queue.go_on.set()
    wait_until(lambda: all(run.leased_until > time.monotonic() + 20 for run in runs[:4]))

    assert waiting.job.offset not in far.queue.begun
    assert not waiting.is_over


def test_what_nobody_expected_ends_the_worker_wherever_it_happens(far: Scene) -> None:
    """Without renewals a worker must not go on."""
    bug = RuntimeError("bug")
    far.queue.errors[0] = bug
    far.run(0)
    far.start()

    wait_until(lambda: bug in far.errors)


def test_a_keeper_is_closed_though_a_renewal_hangs(far: Scene) -> None:
    """What it finds out later is of no use to anybody."""
    far.queue.hangs = {0}
    far.queue.errors[0] = RuntimeError("of no use")
    far.run(0)
    far.start()
    wait_until(lambda: far.queue.begun == [0])
    far.keeper.close()
    far.queue.go_on.set()
    far.queue.heartbeat.close()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "segue-beat"])

    assert far.errors == []


def test_leases_in_files_are_renewed_by_the_keeper_itself(near: Scene) -> None:
    """That takes microseconds: another thread would cost more than it saves."""
    runs = [near.run(number) for number in range(5)]
    near.start()

    wait_until(lambda: all(run.leased_until > time.monotonic() + 20 for run in runs))
    assert near.queue.threads == {"segue-keeper"}


def test_a_short_run_is_not_renewed(far: Scene) -> None:
    """Nor does anything come of it but a look: most tasks take less than a part of their lease."""
    far.run(0, age=-LIMIT_SECONDS)
    far.start()

    far.ticks(5)
    assert far.queue.begun == []
