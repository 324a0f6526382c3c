"""What becomes of a task: its order, its states, its tries, and its end."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from segue.delivery.priority import PriorityName
from segue.errors import TaskFailed, TaskNotFound
from segue.tasks import App, GiveUp, Retry, State, Worker, current
from segue.tasks.states import TERMINAL, TRANSITIONS, may_follow
from segue.testing import ManualClock
from tests.contract.task_support import (
    AT_ONCE,
    TASK_WORLDS,
    TIMED,
    BurstWorker,
    TaskWorld,
    events_of,
    happenings,
    letters,
    manual_app,
    url_of,
    work,
    working,
)
from tests.waiting import LIMIT_SECONDS, wait_until

MINUTE = 60


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


# Order -------------------------------------------------------------------------------------


def test_the_most_urgent_goes_first_and_equals_in_the_order_they_came(app: App) -> None:
    """Critical, high, normal, low; within each, first come first served."""
    ran: list[str] = []

    @app.task
    def note(name: str) -> None:
        ran.append(name)

    order: list[PriorityName] = ["low", "normal", "critical", "high"]
    for number in range(3):
        for priority in order:
            note.using(priority=priority).enqueue(f"{priority}{number}")
    work(app)

    assert ran == [
        f"{priority}{number}"
        for priority in ("critical", "high", "normal", "low")
        for number in range(3)
    ]


def test_a_clock_that_is_set_back_does_not_change_the_order(app: App, clock: ManualClock) -> None:
    """The order is that of the pushes, and of no time: ties and steps cannot reorder it."""
    ran: list[int] = []

    @app.task
    def note(number: int) -> None:
        ran.append(number)

    for number in range(6):
        note.enqueue(number)
        clock.step(seconds=-3_600 if number % 2 else 0)
    work(app)

    assert ran == list(range(6))


# States ------------------------------------------------------------------------------------


def test_the_table_has_every_state_and_no_way_out_of_the_end() -> None:
    """Only a dead letter can come back."""
    assert set(TRANSITIONS) == set(State)
    assert {state for state in TERMINAL if TRANSITIONS[state]} == {State.DEAD_LETTER}


def test_a_task_is_pending_then_processing_then_completed(app: App) -> None:
    """What the seed calls its state machine, as whoever asks sees it."""
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def job() -> int:
        begun.set()
        go_on.wait(LIMIT_SECONDS)
        return 5

    result = job.enqueue()
    seen = [result.state]
    with working(Worker(app)):
        assert begun.wait(LIMIT_SECONDS)
        seen.append(result.state)
        go_on.set()
        value = result.get(LIMIT_SECONDS)
        seen.append(result.state)

    assert seen == [State.PENDING, State.PROCESSING, State.COMPLETED]
    assert value == 5


def test_a_task_that_fails_is_retrying_then_a_dead_letter(app: App, clock: ManualClock) -> None:
    """With a wait before each try."""

    @app.task(retries=1, backoff=TIMED)
    def job() -> None:
        raise ValueError("no")

    result = job.enqueue()
    work(app)
    retrying = result.record()
    clock.advance(seconds=1)
    work(app)

    assert (retrying.state, retrying.error) == (State.RETRYING, "ValueError: no")
    assert retrying.due_us == clock()
    assert result.state is State.DEAD_LETTER
    assert happenings(app, result.id) == ["retrying", "dead_letter"]


def test_a_task_for_later_is_scheduled_until_its_time(app: App, clock: ManualClock) -> None:
    """It does not run before, and does then."""

    @app.task
    def job() -> str:
        return "ran"

    result = job.using(delay=10).enqueue()
    work(app)
    waiting = result.record()
    clock.advance(seconds=9.999)
    work(app)
    still = result.state
    clock.advance(ms=1)
    work(app)

    assert (waiting.state, still) == (State.SCHEDULED, State.SCHEDULED)
    assert waiting.due_us == clock()
    assert result.get(0) == "ran"


def test_everything_a_worker_says_follows_from_what_it_said_before(
    app: App, clock: ManualClock
) -> None:
    """One table has all transitions; nothing else happens to any task."""

    @app.task(retries=2, backoff=AT_ONCE)
    def job(number: int) -> int:
        if number % 5 == 0:
            raise GiveUp("for good")
        if number % 3 == 0 or (number % 2 == 0 and not current().is_last_try):
            raise ValueError("again")
        return number

    results = job.map(range(30))
    for result in results[::7]:
        result.cancel()
    work(app, size=3)

    for result in results:
        events = events_of(app, result.id)
        states = [State.PENDING]
        for event in events:
            # A short run is said to have been, and not to be: each of these ends one.
            states += [State.PROCESSING, State(event.happened)]
        assert all(may_follow(before, after) for before, after in pairwise(states)), states
        assert states[-1] in TERMINAL
        assert result.state is states[-1]


def test_a_dead_letter_comes_back_as_the_table_says(app: App) -> None:
    """Bringing it back is a transition, too."""

    @app.task(retries=0)
    def job() -> None:
        raise ValueError("no")

    result = job.enqueue()
    work(app)
    was_one = app.desk.retry(result.id)

    assert was_one
    assert may_follow(State.DEAD_LETTER, result.state), result.state


def test_a_dead_letter_that_is_brought_back_has_all_its_tries_anew(app: App) -> None:
    """And succeeds, if what was wrong is right by then."""
    attempts: list[int] = []
    is_right = False

    @app.task(retries=1, backoff=AT_ONCE)
    def job() -> str:
        attempts.append(current().attempt)
        if not is_right:
            raise ValueError("no")
        return "done"

    result = job.enqueue()
    work(app)
    is_right = True
    app.desk.retry(result.id)
    work(app)

    assert attempts == [1, 2, 1]
    assert (result.state, result.get(0)) == (State.COMPLETED, "done")
    assert not app.desk.retry(result.id)


# Tries -------------------------------------------------------------------------------------


def test_the_first_wait_is_a_second_and_each_is_twice_the_last_up_to_five_minutes(
    app: App, clock: ManualClock
) -> None:
    """The seed's formula, from the attempt that just failed, capped; not its table."""

    @app.task(retries=11, backoff=TIMED)
    def job() -> None:
        raise ValueError("no")

    result = job.enqueue()
    waits = []
    for _ in range(11):
        work(app)
        due_us = result.record().due_us
        waits.append((due_us - clock()) / 1_000_000)
        clock.advance(seconds=(due_us - clock()) / 1_000_000)

    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_tasks_that_fail_together_do_not_come_back_together(app: App, clock: ManualClock) -> None:
    """Waits differ by a tenth more or less, unless the backoff says otherwise."""

    @app.task(retries=1)
    def job(number: int) -> None:
        raise ValueError("no")

    results = job.map(range(20))
    work(app)
    waits = [result.record().due_us - clock() for result in results]

    assert all(900_000 <= wait <= 1_100_000 for wait in waits)
    assert len(set(waits)) > 10


def test_a_task_knows_which_try_it_is(app: App) -> None:
    """From 1, and which is the last."""
    seen: list[tuple[int, int, bool]] = []

    @app.task(retries=2, backoff=AT_ONCE)
    def job() -> None:
        seen.append((current().attempt, current().retries, current().is_last_try))
        raise ValueError("no")

    job.enqueue()
    work(app)

    assert seen == [(1, 2, False), (2, 2, False), (3, 2, True)]


def test_a_task_may_say_when_it_wants_to_be_tried_again(app: App, clock: ManualClock) -> None:
    """Retry has a delay of its own; it counts as a try."""

    @app.task(retries=1)
    def job() -> None:
        raise Retry("the other side said so", delay=90)

    result = job.enqueue()
    work(app)
    waiting = result.record()
    clock.advance(seconds=90)
    work(app)

    assert waiting.state is State.RETRYING
    assert waiting.due_us == clock()
    assert waiting.error == "Retry: the other side said so"
    assert result.state is State.DEAD_LETTER


def test_a_task_that_gives_up_is_not_tried_again(app: App) -> None:
    """However many tries are left."""

    @app.task(retries=5)
    def job() -> None:
        raise GiveUp("the order was withdrawn")

    result = job.enqueue()
    work(app)

    assert result.state is State.DEAD_LETTER
    assert happenings(app, result.id) == ["dead_letter"]
    assert result.record().error == "GiveUp: the order was withdrawn"


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_wait_that_makes_no_sense_is_the_fault_of_its_task(app: App, kind: str) -> None:
    """Its worker goes on."""

    @app.task(retries=0, timeout=LIMIT_SECONDS)
    async def bad() -> None:
        raise Retry(delay=-1)

    @app.task
    async def good() -> int:
        return 1

    failed, done = bad.enqueue(), good.enqueue()
    work(app, kind="async" if kind == "async" else "thread")

    assert (failed.state, done.state) == (State.DEAD_LETTER, State.COMPLETED)
    assert "Timeout" not in failed.record().error


def test_a_call_has_as_many_tries_as_it_asks_for(app: App) -> None:
    """More than its task has, and more than its queue has by itself."""
    ran: list[int] = []

    @app.task(backoff=AT_ONCE)
    def job() -> None:
        ran.append(current().attempt)
        raise ValueError("no")

    job.using(retries=30).enqueue()
    work(app)

    assert ran == list(range(1, 32))


def test_a_task_has_its_tries_in_any_queue(app: App) -> None:
    """Also where it does not usually go."""
    ran: list[int] = []
    app.queue("elsewhere")

    @app.task(backoff=AT_ONCE, retries=30)
    def job() -> None:
        ran.append(current().attempt)
        raise ValueError("no")

    job.using(queue="elsewhere").enqueue()
    work(app, queues=["elsewhere"])

    assert len(ran) == 31


def test_no_retries_is_one_try(app: App) -> None:
    """A call may have fewer than its task."""
    ran: list[int] = []

    @app.task(retries=5, backoff=AT_ONCE)
    def job() -> None:
        ran.append(current().attempt)
        raise ValueError("no")

    job.using(retries=0).enqueue()
    work(app)

    assert ran == [1]


# Dead letters ------------------------------------------------------------------------------


def test_a_dead_letter_has_the_call_the_reason_and_the_time(app: App, clock: ManualClock) -> None:
    """All that is needed to understand it, and to bring it back."""

    @app.task(retries=0)
    def job(path: str) -> None:
        raise FileNotFoundError(f"no file {path}")

    result = job.enqueue("a.png")
    clock.advance(seconds=5)
    work(app)
    (letter,) = letters(app)

    assert f"default/{letter.message.id}" == result.id
    assert letter.message.body == b'{"task":"job","args":{"path":"a.png"}}'
    assert letter.reason == "FileNotFoundError: no file a.png"
    assert letter.died_us == clock()
    assert result.record().finished_us == clock()


def test_dead_letters_are_kept_until_they_are_purged(app: App, clock: ManualClock) -> None:
    """Longer than any record: nothing cleans them up but people."""

    @app.task(retries=0, result_ttl=60)
    def job(value: int) -> None:
        raise ValueError("no")

    result = job.enqueue(7)
    work(app)
    clock.advance(seconds=400 * 86_400)
    record = result.record()
    found = [each.id for each in app.desk.find(states=[State.DEAD_LETTER])]

    assert (record.state, record.error, record.args) == (
        State.DEAD_LETTER,
        "ValueError: no",
        b'{"value":7}',
    )
    assert found == [result.id]
    assert len(letters(app)) == 1


def test_a_dead_letter_that_was_dropped_is_none_any_more(app: App) -> None:
    """Whoever looks for dead letters is shown those there are."""

    @app.task(retries=0)
    def job() -> None:
        raise ValueError("no")

    job.enqueue()
    work(app)
    app.store.queue("default").discard()

    assert app.desk.find(states=[State.DEAD_LETTER]) == []


def test_a_task_that_was_not_taken_in_time_is_a_dead_letter(app: App, clock: ManualClock) -> None:
    """Its time to live was over: it never runs."""
    ran: list[int] = []

    @app.task
    def job() -> None:
        ran.append(1)

    result = job.using(ttl=10).enqueue()
    clock.advance(seconds=11)
    work(app)

    assert ran == []
    assert result.state is State.DEAD_LETTER
    with pytest.raises(TaskFailed):
        result.get(0)


def test_a_task_whose_workers_died_too_often_is_a_dead_letter(app: App, clock: ManualClock) -> None:
    """One that kills whoever runs it must not do so for ever."""
    ran: list[int] = []

    @app.task(retries=2)
    def job() -> None:
        ran.append(1)

    result = job.enqueue()
    queue = app.store.queue("default")
    for _ in range(3):
        queue.lease(ttl=1)
        clock.advance(seconds=2)
    work(app)

    assert ran == []
    assert result.state is State.DEAD_LETTER
    assert result.record().error_type == "WorkerDied"


# Records -----------------------------------------------------------------------------------


def test_a_result_is_forgotten_after_its_time(app: App, clock: ManualClock) -> None:
    """A week unless the task says otherwise; then nothing is known of it."""

    @app.task(result_ttl=3_600)
    def short() -> int:
        return 1

    @app.task
    def long() -> int:
        return 2

    results = [short.enqueue(), long.enqueue()]
    work(app)
    before = [result.get(0) for result in results]
    clock.advance(seconds=3_600 + 2 * MINUTE)

    assert before == [1, 2]
    with pytest.raises(TaskNotFound):
        results[0].record()
    assert results[1].get(0) == 2
    clock.advance(seconds=7 * 86_400)
    with pytest.raises(TaskNotFound):
        results[1].get(0)


def test_a_result_is_not_had_after_its_time(app: App, clock: ManualClock) -> None:
    """Not even a second later, however seldom the index is cleaned up."""

    @app.task(result_ttl=10)
    def job() -> int:
        return 1

    result = job.enqueue()
    work(app)
    assert result.get(0) == 1
    clock.advance(seconds=11)

    with pytest.raises(TaskNotFound):
        result.record()


def test_a_record_says_when_everything_happened(app: App, clock: ManualClock) -> None:
    """Pushed, started, finished, by whom and which attempt."""

    @app.task
    def job(value: int) -> int:
        clock.advance(seconds=3)
        return value

    pushed_us = clock()
    result = job.enqueue(4)
    clock.advance(seconds=2)
    BurstWorker(app, burst=True, name="worker-7").run()
    record = result.record()

    assert (record.pushed_us, record.started_us) == (pushed_us, pushed_us + 2_000_000)
    assert record.finished_us == clock()
    assert (record.wait_us, record.run_us) == (2_000_000, 3_000_000)
    assert (record.worker, record.attempt, record.task) == ("worker-7", 1, "job")
    assert (record.args, record.result, record.queue) == (b'{"value":4}', b"4", "default")


def test_progress_is_seen_while_a_task_runs(world: TaskWorld) -> None:
    """Soon after it was told; the last that was told stays."""
    told, go_on = threading.Event(), threading.Event()
    with manual_app(url_of(world), world.clock) as app:

        @app.task
        def job() -> None:
            current().progress({"done": 3, "of": 10})
            told.set()
            go_on.wait(LIMIT_SECONDS)
            current().progress(1.0)

        def is_told() -> bool:
            world.clock.advance(ms=100)
            return result.progress == {"done": 3, "of": 10}

        result = job.enqueue()
        before = result.progress
        with working(Worker(app)):
            assert told.wait(LIMIT_SECONDS)
            wait_until(is_told)
            state = result.state
            go_on.set()
            result.get(LIMIT_SECONDS)

        assert before is None
        assert state is State.PROCESSING
        assert result.progress == 1.0
        assert "processing" in happenings(app, result.id)
