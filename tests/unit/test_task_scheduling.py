"""Schedules fire once: whoever watches, whatever the clock does, and whoever comes and goes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from segue.stores.contract import Queue
from segue.tasks import App, State
from segue.tasks.schedule import Every, Missed
from segue.tasks.scheduling import (
    FIRINGS_PER_TICK,
    LOCK_SECONDS,
    TICK_SECONDS,
    ScheduleBook,
    Scheduler,
    ScheduleState,
    fire,
    next_firing_us,
)
from segue.testing import ManualClock
from tests.contract.task_support import manual_app, work

MINUTE = 60
SECOND = 1_000_000
START_US = 1_700_000_040_000_000
"""A full minute, so that what is due each minute is due at multiples of one from here."""


@pytest.fixture
def clock() -> ManualClock:
    """What everybody goes by."""
    return ManualClock(START_US)


Make = Callable[..., App]


@pytest.fixture
def make(scratch: Path, clock: ManualClock) -> Iterator[Make]:
    """Make an App with a task that runs each minute, as another process would have it."""
    apps: list[App] = []

    def make(when: str | float = "every 1m", *, missed: Missed = "latest") -> App:
        app = manual_app(scratch / "data", clock)
        apps.append(app)

        @app.task(schedule=when, missed=missed)
        def beat() -> str:
            return "beat"

        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make: Make) -> App:
    return make()


def queue_of(app: App) -> Queue:
    return app.store.queue("default")


def fired(app: App) -> int:
    """Return how many firings wait."""
    return queue_of(app).count().ready


def state_of(app: App, when: str = "every 1m") -> ScheduleState:
    """Return how the schedule stands."""
    (found,) = (
        state
        for state in ScheduleBook(app.store).states().values()
        if (state.name, state.when) == ("beat", when)
    )
    return found


def leads(scheduler: Scheduler) -> bool:
    """Let a scheduler do its work, and tell whether it is the one to do it."""
    assert scheduler.tick() == TICK_SECONDS
    return scheduler._held is not None


# Firing ------------------------------------------------------------------------------------


def test_a_schedule_fires_when_it_is_due_and_once(app: App, clock: ManualClock) -> None:
    """Not when it is first seen, and however often it is looked at."""
    scheduler = Scheduler(app)
    counts = []
    for seconds in (0, 59.9, 0.1, 0, 59, 1, 0.5):
        clock.advance(seconds=seconds)
        scheduler.tick()
        scheduler.tick()
        counts.append(fired(app))

    assert counts == [0, 0, 1, 1, 1, 2, 2]
    scheduler.close()


def test_what_fires_is_a_task_as_any_other_and_knows_where_it_comes_from(
    app: App, clock: ManualClock
) -> None:
    """Its record names the schedule, and the schedule its last task."""
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.advance(seconds=MINUTE)
    scheduler.tick()
    state = state_of(app)
    before = app.record(state.last_id)
    scheduler.close()
    work(app)
    after = app.record(state.last_id)

    assert (before.state, before.schedule) == (State.PENDING, "beat")
    assert (after.state, after.schedule, after.result) == (State.COMPLETED, "beat", b'"beat"')
    assert (state.fired, state.fired_us) == (1, START_US + MINUTE * SECOND)
    assert next_firing_us(state, clock()) == START_US + 2 * MINUTE * SECOND


def test_a_schedule_has_arguments_priority_and_queue_of_its_task(
    scratch: Path, clock: ManualClock
) -> None:
    """Under a name of its own."""
    with manual_app(scratch / "other", clock) as app:

        @app.task(priority="critical", queue="mail")
        def send(to: str) -> str:
            return to

        app.schedule("boss", Every(MINUTE), send, "boss@example.org")
        scheduler = Scheduler(app)
        scheduler.tick()
        clock.advance(seconds=MINUTE)
        scheduler.tick()
        (message,) = app.store.queue("mail").peek(5)
        scheduler.close()

    assert message.priority == 0
    assert message.json() == {
        "task": "send",
        "args": {"to": "boss@example.org"},
        "schedule": "boss",
    }


def test_a_schedule_can_be_fired_by_hand(app: App) -> None:
    """As often as one likes, and without a change to when it is due."""
    scheduler = Scheduler(app)
    scheduler.tick()
    state = state_of(app)
    ids = {fire(queue_of(app), state) for _ in range(2)}
    scheduler.close()

    assert len(ids) == fired(app) == 2
    assert state_of(app) == state


# Once --------------------------------------------------------------------------------------


def test_two_that_watch_fire_once(make: Make, clock: ManualClock) -> None:
    """One leads, the other stands by; on two stores of one directory."""
    apps = [make(), make()]
    schedulers = [Scheduler(app) for app in apps]
    leaders = []
    for _ in range(5):
        leaders.append([leads(scheduler) for scheduler in schedulers])
        clock.advance(seconds=MINUTE / 2)

    assert leaders[0] == [True, False]
    assert fired(apps[0]) == fired(apps[1]) == 2
    for scheduler in schedulers:
        scheduler.close()


def test_when_the_leader_leaves_another_goes_on(make: Make, clock: ManualClock) -> None:
    """At once if it says so, and when its lock is over if it died; nothing fires twice."""
    apps = [make(), make(), make()]
    first, second, third = (Scheduler(app) for app in apps)
    first.tick()
    clock.advance(seconds=MINUTE)
    first.tick()
    first.close()
    took_over = leads(second)
    after_leaving = fired(apps[0])
    clock.advance(seconds=LOCK_SECONDS + 1)  # The second is silent for too long.
    took_over_again = leads(third)
    still_leads = leads(second)
    clock.advance(seconds=MINUTE)
    for scheduler in (second, third):
        scheduler.tick()

    assert (took_over, took_over_again, still_leads) == (True, True, False)
    assert after_leaving == 1
    assert fired(apps[0]) == 2
    second.close()
    third.close()


def test_one_that_died_after_the_push_and_before_the_note_has_fired_once(
    app: App, make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The firing's own key says that it was there."""
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.advance(seconds=MINUTE)

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ScheduleBook, "note", die)
        with pytest.raises(KeyboardInterrupt):
            scheduler.tick()
    before = fired(app)
    clock.advance(seconds=LOCK_SECONDS + 1)
    heir = Scheduler(make())
    heir.tick()

    assert (before, fired(app)) == (1, 1)
    assert state_of(app).fired == 1
    heir.close()


def test_apps_that_share_one_schedule_and_no_other_fire_it_once(
    make: Make, scratch: Path, clock: ManualClock
) -> None:
    """Two versions of the code at the same time, say: they have different locks."""
    old, new = make(), make()

    @new.task(schedule="every 1h")
    def hourly() -> None: ...

    schedulers = [Scheduler(old), Scheduler(new)]
    for _ in range(4):
        for scheduler in schedulers:
            scheduler.tick()
        clock.advance(seconds=MINUTE)

    assert fired(old) == 3
    for scheduler in schedulers:
        scheduler.close()


# Clocks ------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_fires_nothing_twice(app: App, clock: ManualClock) -> None:
    """It goes on when the time is there for the first time."""
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.advance(seconds=3 * MINUTE)
    scheduler.tick()
    clock.step(seconds=-2.5 * MINUTE)
    counts = []
    for _ in range(7):
        scheduler.tick()
        counts.append(fired(app))
        clock.advance(seconds=MINUTE / 2)

    assert counts == [1, 1, 1, 1, 1, 1, 1]
    clock.advance(seconds=MINUTE / 2)
    scheduler.tick()
    assert fired(app) == 2
    scheduler.close()


def test_a_clock_that_is_set_forward_fires_what_was_skipped_once(
    app: App, clock: ManualClock
) -> None:
    """The newest alone, unless it is said otherwise."""
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.step(seconds=1_000 * MINUTE)
    scheduler.tick()
    scheduler.tick()

    assert fired(app) == 1
    scheduler.close()


# Missed ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "count"), [("latest", 1), ("all", 10), ("skip", 2)], ids=["latest", "all", "skip"]
)
def test_what_nobody_was_there_to_fire_is_made_up_for_as_the_schedule_says(
    make: Make, clock: ManualClock, missed: Missed, count: int
) -> None:
    """After a restart: the newest, each of them, or those of the last minute."""
    before = Scheduler(make(missed=missed))
    before.tick()
    before.close()
    clock.advance(seconds=10 * MINUTE)
    app = make(missed=missed)
    after = Scheduler(app)
    after.tick()
    after.tick()

    assert fired(app) == count
    assert state_of(app).last_us == clock()
    after.close()


def test_what_is_too_old_is_skipped(make: Make, clock: ManualClock) -> None:
    """With "skip", and if the last firing was a while ago: nothing now, the next in time."""
    app = make("every 1h", missed="skip")
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.advance(seconds=90 * MINUTE)
    scheduler.tick()
    late = fired(app)
    clock.advance(seconds=60 * MINUTE - (clock() // SECOND) % (60 * MINUTE))
    scheduler.tick()

    assert late == 0
    assert fired(app) == 1
    scheduler.close()


def test_a_long_gap_is_made_up_for_in_steps(make: Make, clock: ManualClock) -> None:
    """No more than a named limit at once; all in the end, each once."""
    app = make("every 1s", missed="all")
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.advance(seconds=FIRINGS_PER_TICK + 500)
    scheduler.tick()
    first = fired(app)
    scheduler.tick()
    scheduler.tick()

    assert first == FIRINGS_PER_TICK
    assert fired(app) == FIRINGS_PER_TICK + 500
    scheduler.close()


# Changes -----------------------------------------------------------------------------------


def test_a_schedule_that_the_code_changes_begins_anew(make: Make, clock: ManualClock) -> None:
    """By its new times from now on, and by none of the old ones."""
    old = Scheduler(make("every 1m"))
    old.tick()
    clock.advance(seconds=MINUTE)
    old.tick()
    old.close()
    clock.advance(seconds=30 * MINUTE)
    app = make("every 10m")
    new = Scheduler(app)
    new.tick()
    at_once = fired(app)
    clock.advance(seconds=10 * MINUTE)
    new.tick()

    assert at_once == 1
    assert fired(app) == 2
    assert state_of(app, "every 10m").fired == 1
    new.close()


def test_a_schedule_that_is_changed_back_goes_on_where_the_other_ended(
    make: Make, clock: ManualClock
) -> None:
    """It fires for no time at which the code had it at another; that was dealt with."""
    first = Scheduler(make("every 1m", missed="all"))
    first.tick()
    first.close()
    second_app = make("every 10m", missed="all")
    second = Scheduler(second_app)
    second.tick()
    for _ in range(6):
        clock.advance(seconds=10 * MINUTE)
        second.tick()
    second.close()
    meanwhile = fired(second_app)
    clock.advance(seconds=3 * MINUTE)
    app = make("every 1m", missed="all")
    scheduler = Scheduler(app)
    scheduler.tick()
    # The last full ten minutes, by the clock, may be up to nine minutes ago.
    ended_us = state_of(app, "every 10m").last_us
    made_up = (clock() - ended_us) // (MINUTE * SECOND)

    assert meanwhile == 6
    assert fired(app) - meanwhile == made_up < 13
    scheduler.close()


def test_what_else_the_code_changes_leaves_the_times_as_they_were(
    make: Make, clock: ManualClock
) -> None:
    """Another policy or another priority is no reason to miss a firing."""
    old = Scheduler(make(missed="latest"))
    old.tick()
    old.close()
    clock.advance(seconds=3 * MINUTE)
    app = make(missed="all")
    new = Scheduler(app)
    new.tick()

    assert fired(app) == 3
    assert state_of(app).missed == "all"
    new.close()


def test_a_schedule_can_be_forgotten(app: App, clock: ManualClock) -> None:
    """Its past is gone; while the code has it, it begins again."""
    scheduler = Scheduler(app)
    scheduler.tick()
    clock.advance(seconds=MINUTE)
    scheduler.tick()
    book = ScheduleBook(app.store)

    assert book.remove("beat")
    assert not book.remove("beat")
    assert book.states() == {}
    scheduler.tick()
    assert state_of(app).fired == 0
    scheduler.close()


def test_an_app_without_schedules_leads_nothing(scratch: Path, clock: ManualClock) -> None:
    """It makes no topic and takes no lock."""
    with manual_app(scratch / "empty", clock) as app:
        scheduler = Scheduler(app)

        assert not leads(scheduler)
        assert (app.store.topics(), app.store.locks()) == ([], [])
        scheduler.close()


def test_what_somebody_else_wrote_among_the_schedules_is_passed_over(
    app: App, clock: ManualClock
) -> None:
    """Anybody may append to a topic."""
    scheduler = Scheduler(app)
    scheduler.tick()
    for nonsense in (b"", b"{}", b"\xff", b'{"name": 5}'):
        app.store.topic("segue.schedules").append(nonsense, key="beat")
    clock.advance(seconds=MINUTE)
    scheduler.tick()

    assert fired(app) == 1
    scheduler.close()


# Full queues -------------------------------------------------------------------------------


def test_a_full_queue_delays_a_firing_and_loses_none(
    app: App, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again with each tick, and said."""
    caplog.set_level(logging.WARNING, "segue")
    scheduler = Scheduler(app)
    scheduler.tick()
    queue = app.queue_for("default")
    queue.configure(replace(queue.rules, capacity=1))
    queue.push(b"in the way")
    clock.advance(seconds=MINUTE)
    scheduler.tick()
    full = queue.count().ready
    queue.pop()
    scheduler.tick()

    assert full == 1
    assert "not fired yet" in caplog.text
    assert [message.json() for message in queue.peek(5)] == [
        {"task": "beat", "args": {}, "schedule": "beat"}
    ]
    scheduler.close()


@pytest.mark.parametrize("seconds", [0, 301, 3_600])
def test_a_queue_that_is_full_for_long_has_each_firing_once(
    make: Make, clock: ManualClock, seconds: int
) -> None:
    """Also longer than the queue remembers what was pushed to it."""
    app = make(missed="all")
    scheduler = Scheduler(app)
    scheduler.tick()
    queue = app.queue_for("default")
    queue.configure(replace(queue.rules, capacity=2))
    clock.advance(seconds=3 * MINUTE)
    scheduler.tick()
    taken = len(queue.pop_many(5))
    queue.configure(replace(queue.rules, capacity=1_000))
    clock.advance(seconds=seconds)
    scheduler.tick()

    assert taken == 2
    assert taken + fired(app) == 3 + seconds // MINUTE
    scheduler.close()


def test_a_full_queue_holds_up_no_other_schedule(
    app: App, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each fires to its own queue."""
    caplog.set_level(logging.CRITICAL, "segue")

    @app.task(queue="other", schedule="every 1m")
    def other() -> None: ...

    scheduler = Scheduler(app)
    scheduler.tick()
    queue = app.queue_for("default")
    queue.configure(replace(queue.rules, capacity=1))
    queue.push(b"in the way")
    clock.advance(seconds=MINUTE)
    scheduler.tick()

    assert app.store.queue("other").count().ready == 1
    scheduler.close()
