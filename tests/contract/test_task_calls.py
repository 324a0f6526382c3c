"""Queuing calls, and asking what came of them."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from segue.errors import (
    BadArguments,
    InvalidArgument,
    QueueFull,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
)
from segue.stores.contract import Counts
from segue.tasks import App, Result, State, Worker, current
from segue.testing import ManualClock
from tests.contract.task_support import (
    AT_ONCE,
    TASK_WORLDS,
    BurstWorker,
    TaskWorld,
    happenings,
    manual_app,
    url_of,
    work,
    working,
)
from tests.waiting import LIMIT_SECONDS, run_other_tasks, wait_until


@dataclass
class Point:
    x: int
    y: int


@pytest.fixture(params=list(TASK_WORLDS.values()), ids=list(TASK_WORLDS))
def world(request: pytest.FixtureRequest, scratch: Path) -> Iterator[TaskWorld]:
    """Where the store is; intact when the test is over."""
    world: TaskWorld = request.param(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def app(world: TaskWorld) -> Iterator[App]:
    """An App, on the clock of its world."""
    with manual_app(url_of(world), world.clock) as app:
        yield app


def waiting(app: App, queue: str = "default") -> Counts:
    return app.store.queue(queue).count()


# Calling -----------------------------------------------------------------------------------


def test_a_task_called_is_its_function(app: App) -> None:
    """Here and now, with its signature, name and docstring; nothing is queued."""

    @app.task
    def add(left: int, right: int = 2) -> int:
        """Add."""
        return left + right

    assert add(1, right=5) == 6
    assert (add.__doc__, add.name) == ("Add.", "add")
    assert list(inspect.signature(add).parameters) == ["left", "right"]
    assert app.store.queues() == []


def test_an_async_task_called_is_its_coroutine(app: App) -> None:
    """To be awaited, as its function would be."""

    @app.task
    async def add(left: int, right: int) -> int:
        await run_other_tasks()
        return left + right

    assert asyncio.run(add(1, 2)) == 3
    assert add.is_async


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_queued_call_gets_what_it_was_given_and_gives_back_what_it_returns(
    app: App, kind: str
) -> None:
    """With the types of the annotations on both sides, sync and async alike."""

    @app.task
    def move(point: Point, *by: Point, **scale: int) -> list[Point]:
        factor = scale.get("factor", 1)
        return [Point(point.x + each.x * factor, point.y + each.y * factor) for each in by]

    @app.task
    async def later(moment: datetime) -> datetime:
        await run_other_tasks()
        return moment + timedelta(days=1)

    moved = move.enqueue(Point(1, 2), Point(3, 4), Point(5, 6), factor=2)
    moment = datetime(2024, 2, 28, 12, tzinfo=UTC)
    tomorrow = later.enqueue(moment)
    work(app, kind="async" if kind == "async" else "thread")

    assert moved.get(0) == [Point(7, 10), Point(11, 14)]
    assert tomorrow.get(0) == moment + timedelta(days=1)


def test_a_bad_call_is_refused_before_anything_is_queued(app: App) -> None:
    """The caller hears of it, and nobody else."""

    @app.task
    def add(left: int, right: int) -> int:
        return left + right

    for args in ((), (1,), (1, 2, 3), (1, "2"), (1, None)):
        with pytest.raises(BadArguments):
            add.enqueue(*args)

    assert app.store.queues() == []


def test_many_calls_are_queued_in_one_step_and_in_order(app: App) -> None:
    """`map` has one argument each, `starmap` as many as there are."""
    ran: list[int] = []

    @app.task
    def note(first: int, second: int = 0) -> int:
        ran.append(first)
        return first + second

    results = note.map([5, 3, 9]) + note.starmap([(1, 2), (2, 2)])
    work(app)

    assert ran == [5, 3, 9, 1, 2]
    assert [result.get(0) for result in results] == [5, 3, 9, 3, 4]
    assert note.map([]) == note.starmap(iter(())) == []


def test_many_calls_are_queued_all_or_none(app: App) -> None:
    """One bad one, or no room for the last, and none is."""

    @app.task
    def note(number: int) -> None: ...

    note.enqueue(0)
    queue = app.store.queue("default")
    queue.configure(replace(queue.rules, capacity=3))

    with pytest.raises(BadArguments):
        note.map([1, 2, "three"])
    with pytest.raises(QueueFull):
        note.map([1, 2, 3])
    assert waiting(app).ready == 1


def test_a_task_is_queued_by_its_name_with_json(app: App) -> None:
    """What a command line has: by name or by position, checked as any call is."""

    @app.task
    def area(point: Point, scale: int = 1) -> int:
        return point.x * point.y * scale

    results = [
        app.enqueue("area", b'{"point": {"x": 2, "y": 3}, "scale": 2}'),
        app.enqueue("area", b'[{"x": 2, "y": 3}]', queue="default"),
    ]
    work(app)

    assert [result.get(0) for result in results] == [12, 6]
    with pytest.raises(BadArguments):
        app.enqueue("area", b'{"point": 5}')
    with pytest.raises(TaskNotFound, match="area"):
        app.enqueue("volume")


def test_a_task_may_queue_others(app: App) -> None:
    """From within a worker, with the same App."""

    @app.task
    def child(number: int) -> int:
        return number * 2

    @app.task
    def parent() -> list[str]:
        return [result.id for result in child.map([1, 2])]

    result = parent.enqueue()
    work(app)

    assert [app.result(each).get(0) for each in result.get(0)] == [2, 4]


# How ---------------------------------------------------------------------------------------


def test_a_call_may_wait_for_a_time_of_day(app: App, clock: ManualClock) -> None:
    """`at` is a moment with a zone; one that is past is now."""

    @app.task
    def job() -> int:
        return 1

    now = datetime.fromtimestamp(clock() / 1_000_000, UTC)
    later = job.using(at=now + timedelta(hours=1)).enqueue()
    at_once = job.using(at=now - timedelta(hours=1)).enqueue()

    assert (later.state, at_once.state) == (State.SCHEDULED, State.PENDING)
    assert later.record().due_us == clock() + 3_600_000_000


def test_options_that_make_no_sense_are_refused(app: App) -> None:
    """By whoever is given them, before anything is queued."""

    @app.task
    def job() -> None: ...

    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - that is what is wrong with it
    for options in (
        {"at": naive},
        {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5},
        {"delay": -1},
        {"ttl": -1},
        {"retries": -1},
        {"retries": 10**6},
        {"priority": "urgent"},
        {"priority": -1},
    ):
        with pytest.raises(InvalidArgument):
            job.using(**options)
    with pytest.raises(InvalidArgument):
        job.using(queue="no/queue").enqueue()
    with pytest.raises(InvalidArgument, match="no worker would look"):
        job.using(queue="elsewhere")
    with pytest.raises(InvalidArgument):
        job.using(tenant="no/tenant").enqueue()
    assert app.store.queues() == []


def test_a_timeout_of_nothing_is_refused(app: App) -> None:
    """As any other option is."""

    @app.task
    def job() -> None: ...

    with pytest.raises(InvalidArgument):
        job.using(timeout=0).enqueue()


def test_options_are_of_the_calls_queued_by_them_and_of_no_others(app: App) -> None:
    """`using` changes nothing about the task."""
    app.queue("other")

    @app.task
    def job() -> None: ...

    urgent = job.using(priority="critical", queue="other", retries=9, headers={"a": "b"})
    first, second = urgent.enqueue(), job.enqueue()
    (message,) = app.store.queue("other").peek()

    assert (first.record().queue, second.record().queue) == ("other", "default")
    assert (message.priority, message.headers["a"]) == (0, "b")
    assert message.body == b'{"task":"job","args":{},"retries":9}'
    assert job.rules.retries == 3


def test_the_same_call_is_queued_once_if_it_is_unique(app: App) -> None:
    """Whoever queues it again gets the same id; other arguments are another call."""
    ran: list[int] = []

    @app.task(unique=True)
    def job(number: int) -> int:
        ran.append(number)
        return number

    first, again, other = job.enqueue(1), job.enqueue(1), job.enqueue(2)
    batch = job.map([2, 3, 3])
    work(app)

    assert first.id == again.id
    assert first == again
    assert len({first.id, other.id}) == 2
    assert [result.id for result in batch] == [other.id, batch[1].id, batch[1].id]
    assert ran == [1, 2, 3]


def test_unique_ends_with_its_time(app: App, clock: ManualClock) -> None:
    """A task that says how long has a queue of its own that remembers for so long."""

    @app.task(unique=10)
    def job() -> None: ...

    first = job.enqueue()
    clock.advance(seconds=9)
    second = job.enqueue()
    clock.advance(seconds=2)
    third = job.enqueue()

    assert first.id == second.id != third.id
    assert job.rules.queue == "job"


def test_a_call_may_be_unique_by_a_name_of_its_own(app: App) -> None:
    """Whatever its arguments; of another task it is another name."""

    @app.task
    def one(number: int) -> None: ...

    @app.task
    def two(number: int) -> None: ...

    first = one.using(unique="today").enqueue(1)
    second = one.using(unique="today").enqueue(2)
    third = two.using(unique="today").enqueue(1)

    assert first.id == second.id != third.id


def test_calls_with_the_same_key_run_one_after_another(app: App) -> None:
    """In the order they were queued, while others overtake them."""
    lock = threading.Lock()
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    ran: list[tuple[str, int]] = []
    together = threading.Barrier(2, timeout=LIMIT_SECONDS)

    @app.task(key="user")
    def job(user: str, number: int) -> None:
        with lock:
            running[user] = running.get(user, 0) + 1
            most[user] = max(most.get(user, 0), running[user])
            ran.append((user, number))
        together.wait()
        with lock:
            running[user] -= 1

    for number in range(3):
        job.enqueue("ann", number)
        job.enqueue("bob", number)
    work(app, size=4)

    assert most == {"ann": 1, "bob": 1}
    assert [number for user, number in ran if user == "ann"] == [0, 1, 2]


def test_a_key_that_cannot_be_had_makes_a_bad_call(app: App) -> None:
    """A function of the arguments may fail; a parameter that is not there is refused at once."""

    @app.task(key=lambda user: user["id"])
    def job(user: dict[str, str]) -> None: ...

    with pytest.raises(BadArguments, match="key"):
        job.enqueue({})
    with pytest.raises(InvalidArgument, match="nobody"):

        @app.task(key="nobody")
        def other(user: str) -> None: ...


def test_no_more_run_at_once_than_a_task_says(app: App) -> None:
    """However many could."""
    lock = threading.Lock()
    running = most = 0
    together = threading.Barrier(2, timeout=LIMIT_SECONDS)

    @app.task(concurrency=2)
    def job() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    for _ in range(6):
        job.enqueue()
    work(app, size=5)

    assert most == 2


def test_tenants_have_queues_of_their_own(app: App) -> None:
    """A worker on the queue works on them, too, also those that come later."""
    ran: list[str] = []

    @app.task
    def job(name: str) -> None:
        ran.append(current().queue)

    results = [job.using(tenant=tenant).enqueue(tenant) for tenant in ("ann", "bob")]
    results.append(job.enqueue("nobody"))
    work(app)

    assert sorted(ran) == ["default", "default.tenant.ann", "default.tenant.bob"]
    assert all(result.state is State.COMPLETED for result in results)


def test_queues_have_their_share_of_the_workers(app: App) -> None:
    """By weight, in the small: while both have work, three of one for each of the other."""
    ran: list[str] = []
    app.queue("large", weight=3)
    app.queue("small", weight=1)

    @app.task(queue="large")
    def large(number: int) -> None:
        ran.append("large")

    @app.task(queue="small")
    def small(number: int) -> None:
        ran.append("small")

    large.map(range(40))
    small.map(range(40))
    work(app)

    assert ran[:20].count("large") in range(14, 17)
    assert ran.count("small") == ran.count("large") == 40


# Asking ------------------------------------------------------------------------------------


def test_who_waits_is_told_when_the_result_is_there(app: App) -> None:
    """In any thread, and in an event loop without holding it up."""

    @app.task
    def job(number: int) -> int:
        return number + 1

    async def both() -> list[int]:
        first = await job.enqueue_async(1)
        second = await job.enqueue_async(2)
        return list(await asyncio.gather(first.get_async(20), second.get_async(20)))

    with working(Worker(app)):
        there = asyncio.run(both())
        third = job.enqueue(3).get(LIMIT_SECONDS)

    assert (there, third) == ([2, 3], 4)


def test_a_result_that_is_not_there_in_time_is_said_so(app: App) -> None:
    """ResultTimeout is a TimeoutError; the task goes on."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()

    with pytest.raises(ResultTimeout, match="pending"):
        result.get(0)
    with pytest.raises(TimeoutError):
        result.get(timedelta(milliseconds=20))
    with pytest.raises(InvalidArgument):
        result.get(-1)
    assert result.state is State.PENDING


def test_a_failure_is_raised_where_the_result_is_asked_for(app: App) -> None:
    """With the error and the traceback of where it ran."""

    @app.task(retries=1, backoff=AT_ONCE)
    def job() -> None:
        raise ZeroDivisionError("by nothing")

    result = job.enqueue()
    work(app)

    with pytest.raises(TaskFailed) as caught:
        result.get(0)
    assert caught.value.task_id == result.id
    assert caught.value.error == "ZeroDivisionError: by nothing"
    assert caught.value.attempts == 2
    assert 'raise ZeroDivisionError("by nothing")' in caught.value.traceback
    assert "test_task_calls.py" in caught.value.traceback


def test_nothing_is_known_of_a_task_that_was_purged(app: App) -> None:
    """Whoever waits for it hears so, too, and does not wait for ever."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()
    app.store.queue("default").purge()

    for ask in (result.record, lambda: result.get(5), result.cancel, lambda: result.state):
        with pytest.raises(TaskNotFound):
            ask()


def test_nothing_is_known_of_a_task_that_never_was(app: App) -> None:
    """And what is no id is refused."""

    @app.task
    def job() -> None: ...

    job.enqueue()
    for task_id in ("default/2-99", "nowhere/2-0"):
        with pytest.raises(TaskNotFound):
            app.result(task_id).record()
    for nonsense in ("", "default", "/2-0", "default/"):
        with pytest.raises(InvalidArgument):
            app.result(nonsense)
    with pytest.raises(InvalidArgument):
        app.record("default/nonsense")


def test_a_result_is_had_by_its_id_alone(app: App) -> None:
    """Then as plain JSON, since nothing says what type it is."""

    @app.task
    def job() -> Point:
        return Point(1, 2)

    result = job.enqueue()
    work(app)
    found = app.result(result.id)

    assert found.get(0) == {"x": 1, "y": 2}
    assert result.get(0) == Point(1, 2)
    assert found == result
    assert hash(found) == hash(result)


def test_another_app_on_the_same_store_knows_the_same(app: App, clock: ManualClock) -> None:
    """Everything is in the store: whoever opens it can ask."""

    @app.task
    def job() -> int:
        return 7

    done = job.enqueue()
    work(app)
    left = job.enqueue()
    with manual_app(app.url, clock) as other:
        assert other.result(done.id).get(0) == 7
        assert other.result(left.id).state is State.PENDING


def test_a_task_needs_a_worker_to_know_itself(app: App) -> None:
    """`current` outside of one is an error and not None."""
    seen: list[tuple[str, str]] = []

    @app.task
    def job() -> None:
        seen.append((current().id, current().task))

    result = job.enqueue()
    work(app)

    assert seen == [(result.id, "job")]
    with pytest.raises(InvalidArgument, match="no task runs here"):
        current()


def test_an_async_task_knows_itself_among_others(app: App) -> None:
    """Many run in one thread, each with its own context."""
    together: list[asyncio.Event] = []

    @app.task
    async def job(number: int) -> str:
        if not together:
            together.append(asyncio.Event())
        if number == 2:
            together[0].set()
        await asyncio.wait_for(together[0].wait(), LIMIT_SECONDS)
        return current().id

    results = job.map([0, 1, 2])
    BurstWorker(app, kind="async", min_size=3, burst=True).run()

    assert [result.get(0) for result in results] == [result.id for result in results]


# Cancelling --------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [None, 60])
def test_a_task_that_is_cancelled_before_it_begins_never_runs(
    app: App, clock: ManualClock, delay: int | None
) -> None:
    """Whether it waits for a worker or for its time; twice is as good as once."""
    ran: list[int] = []

    @app.task
    def job() -> None:
        ran.append(1)

    result: Result[None] = job.using(delay=delay).enqueue()
    first = result.cancel()
    at_once = result.state
    second = result.cancel()
    clock.advance(seconds=61)
    work(app)

    assert (first, second) == (True, False)
    assert (at_once, result.state) == (State.CANCELLED, State.CANCELLED)
    assert ran == []
    assert waiting(app).total == 0
    with pytest.raises(TaskCancelled):
        result.get(0)


def test_who_waits_hears_that_a_task_was_cancelled(app: App) -> None:
    """It is nothing that a longer wait could help."""

    @app.task
    def job() -> None: ...

    result = job.enqueue()
    result.cancel()

    with pytest.raises(TaskCancelled, match=result.id):
        result.get()


def test_a_finished_task_cannot_be_cancelled(app: App) -> None:
    """Its result stays."""

    @app.task
    def job() -> int:
        return 1

    result = job.enqueue()
    work(app)

    assert not result.cancel()
    assert result.get(0) == 1


def test_a_dead_letter_cannot_be_cancelled(app: App) -> None:
    """It is finished, and kept: only a purge takes it away."""

    @app.task(retries=0)
    def job() -> None:
        raise ValueError("no")

    result = job.enqueue()
    work(app)

    assert not result.cancel()
    assert waiting(app).dead == 1
    assert result.state is State.DEAD_LETTER


def test_a_request_that_comes_too_late_is_not_kept(app: App) -> None:
    """A task that was done by then leaves nothing behind for workers to look through."""
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def job() -> int:
        begun.set()
        go_on.wait(LIMIT_SECONDS)
        return 1

    result = job.enqueue()
    with working(Worker(app)) as worker:
        assert begun.wait(LIMIT_SECONDS)
        worker._keeper._cancels_looked = float("inf")  # It looks away while the request comes.
        result.cancel()
        go_on.set()
        value = result.get(LIMIT_SECONDS)
    work(app)

    assert value == 1
    assert not app.desk.cancellations.requested()


def test_a_task_that_waits_for_its_next_try_can_be_cancelled(app: App, clock: ManualClock) -> None:
    """It is not tried again."""
    ran: list[int] = []

    @app.task(retries=5)
    def job() -> None:
        ran.append(1)
        raise ValueError("no")

    result = job.enqueue()
    work(app)
    is_cancelled = result.cancel()
    clock.advance(seconds=600)
    work(app)

    assert is_cancelled
    assert ran == [1]
    assert result.state is State.CANCELLED
    assert happenings(app, result.id) == ["retrying", "cancelled"]


def test_a_running_task_can_be_cancelled(app: App) -> None:
    """A thread is told, and hears it when it asks."""
    begun = threading.Event()

    @app.task
    def job() -> None:
        begun.set()
        wait_until(lambda: current().check())  # Raises once it is cancelled.

    result = job.enqueue()
    with working(Worker(app)):
        assert begun.wait(LIMIT_SECONDS)
        is_cancelled = result.cancel()
        with pytest.raises(TaskCancelled):
            result.get(LIMIT_SECONDS)

    assert is_cancelled
    assert result.state is State.CANCELLED
    assert waiting(app) == Counts(ready=0, delayed=0, leased=0, dead=0)
