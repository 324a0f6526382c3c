"""Workers of tasks that are killed, stopped or poisoned, as real processes."""

import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from segue.errors import TaskFailed
from segue.tasks import Result, State
from segue.tasks.events import TaskEvent
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.task_apps import BEGAN, ENDED, POISON_RETRIES, Fact, Facts, Tasks, wait_for
from tests.crash.task_fleet import SIZES, Fleet
from tests.crash.task_workers import (
    FULL_TIMES,
    STOPS,
    work,
    work_and_die_before_the_ack,
    work_and_stop_before_the_event,
    work_limited,
    work_on_a_broken_disk,
    work_on_a_full_disk,
)

logger = logging.getLogger(__name__)

TASKS: Final = 10_000 if TORTURE else 1_500
KILLS: Final = 20 if TORTURE else 9
KEYS: Final = 4
KEYED_TASKS: Final = 2_000 if TORTURE else 300
KEYED_KILLS: Final = 20 if TORTURE else 4
LEASE_SECONDS: Final = 1.0
PROMISED_SECONDS: Final = LEASE_SECONDS + 1.0
"""A task whose worker died is run again after so long at most, if somebody is free."""
SLACK_SECONDS: Final = 10.0
"""What a machine that others use, too, may add to that; an idle one adds nothing."""
AGAIN: Final = 0.25
"""How often who was just started is killed again, while it still imports its modules."""
STARTING_SECONDS_MAX: Final = 0.4
RESULT_SECONDS: Final = 100.0
SHORT_LEASE_SECONDS: Final = 0.5


@pytest.fixture
def tasks(scratch: Path) -> Iterator[Tasks]:
    """The App, for the test itself."""
    found = Tasks(scratch)
    found.accounts.prepare()
    with found.app:
        yield found


def is_settled(tasks: Tasks) -> bool:
    """Tell whether no message is left."""
    return tasks.app.queue_for("default").count().total == 0


def end(child: Child) -> None:
    """Have a worker stop in order."""
    child.tell("end")
    assert child.join() == 0


# Killed at random ------------------------------------------------------------------------------


def queue_all(tasks: Tasks, count: int) -> tuple[list[Result[int]], list[int]]:
    """Queue tasks of all sorts; return their handles, and what must come of them."""
    numbers = range(count)
    handles = [
        *tasks.double.map(numbers[0::3]),
        *tasks.negate.map(numbers[1::3]),
        *tasks.credit.starmap((f"account {number % 7}", number) for number in numbers[2::3]),
    ]
    expected = [2 * number for number in numbers[0::3]]
    expected += [-number for number in numbers[1::3]]
    return handles, [*expected, *numbers[2::3]]


def kill_on_the_way(fleet: Fleet, facts: Facts, chance: random.Random) -> None:
    """Kill workers as tasks are run, all of them at once in the middle."""
    due = sorted(chance.sample(range(TASKS // 20, TASKS * 9 // 10), KILLS - len(SIZES)))
    middle = len(due) // 2
    for number, runs in enumerate(due):
        wait_for(lambda runs=runs: len(facts.read()) >= runs, f"{runs} runs")  # type: ignore[misc]
        victims = list(fleet.kinds) if number == middle else [chance.choice(fleet.kinds)]
        for kind in victims:
            fleet.kill(kind)
        for kind in victims:
            fleet.start(kind)
        if number != middle and chance.random() < AGAIN:
            time.sleep(chance.uniform(0, STARTING_SECONDS_MAX))
            fleet.kill(victims[0])
            fleet.start(victims[0])
    while fleet.kills < KILLS:
        kind = chance.choice(fleet.kinds)
        fleet.kill(kind)
        fleet.start(kind)


@pytest.mark.timeout(0 if TORTURE else 120)
def test_whoever_is_killed_every_task_is_completed_and_no_result_is_lost(
    scratch: Path, tasks: Tasks
) -> None:
    """At least once, with a key of its own exactly once; none stuck, none dead by crashes alone."""
    seed = new_seed()
    chance = random.Random(seed)
    handles, expected = queue_all(tasks, TASKS)
    with (
        naming_seed(seed),
        Fleet(scratch, lease_seconds=LEASE_SECONDS) as fleet,
        ThreadPoolExecutor(1) as producer,
    ):
        for kind in SIZES:
            fleet.start(kind)
        values = producer.submit(lambda: [each.get(timeout=RESULT_SECONDS) for each in handles])
        kill_on_the_way(fleet, tasks.facts, chance)

        assert values.result() == expected
        wait_for(lambda: is_settled(tasks), "every message is acked")
        fleet.stop()
        check_evidence(tasks, fleet, handles)


def check_evidence(tasks: Tasks, fleet: Fleet, handles: list[Result[int]]) -> None:
    """Assert that facts, events, records and queue all say the same."""
    ids = {each.id for each in handles}
    facts = tasks.facts.read()
    runs = Counter(fact.id for fact in facts)
    completed = Counter(
        (event.id, event.attempt)
        for _, event in tasks.app.log.read(0)
        if event.happened == "completed"
    )
    waits = fleet.waits(facts)
    longest = max((wait.seconds for wait in waits), default=0.0)
    logger.info(
        "killed workers=%d processes=%d tasks=%d runs=%d events=%d waits=%d longest=%.3f s",
        fleet.kills,
        fleet.processes_killed,
        len(ids),
        len(facts),
        len(completed),
        len(waits),
        longest,
    )
    assert fleet.kills >= KILLS
    assert runs.keys() == ids
    assert {task_id for task_id, _ in completed} == ids
    assert set(completed.values()) == {1}
    assert fleet.repeated_for_nothing(facts) == []
    assert all(wait.seconds < PROMISED_SECONDS + SLACK_SECONDS for wait in waits), waits
    check_accounts(tasks)
    check_records(tasks, ids)


def check_accounts(tasks: Tasks) -> None:
    """Assert that every credit counts once, however often it ran."""
    expected: Counter[str] = Counter()
    for number in range(TASKS)[2::3]:
        expected[f"account {number % 7}"] += number
    assert tasks.accounts.read() == expected


def check_records(tasks: Tasks, ids: set[str]) -> None:
    """Assert that the desk has each task once, as completed, and the queue none."""
    found = tasks.app.desk.find(limit=2 * TASKS)
    assert Counter(record.id for record in found) == Counter(ids)
    assert {record.state for record in found} == {State.COMPLETED}
    counts = tasks.app.queue_for("default").count()
    assert (counts.total, counts.dead) == (0, 0)


@pytest.mark.parametrize("kind", SIZES)
def test_the_tasks_of_a_killed_worker_go_to_whoever_is_free_once_its_leases_are_over(
    scratch: Path, tasks: Tasks, kind: str
) -> None:
    """Lease and a second: all it held, in the middle of their work; and none before that."""
    held = tasks.wait_once.map(range(SIZES[kind]))
    with Fleet(scratch, lease_seconds=LEASE_SECONDS) as fleet:
        fleet.start(kind)
        wait_for(lambda: len(tasks.facts.read()) == len(held), "it is at all of them")
        free = "async" if kind == "thread" else "thread"
        fleet.start(free)
        tasks.double.enqueue(1).get(timeout=RESULT_SECONDS)  # Ready: it runs tasks.
        fleet.kill(kind)
        values = [each.get(timeout=RESULT_SECONDS) for each in held]
        wait_for(lambda: is_settled(tasks), "all is acked")
        fleet.stop()
    waits = [wait.seconds for wait in fleet.waits(tasks.facts.read())]
    logger.info("killed kind=%s waits=%s", kind, ", ".join(f"{wait:.3f}" for wait in waits))

    assert values == [f"try 2 of {number}" for number in range(SIZES[kind])]
    assert len(waits) == len(held)
    assert max(waits) < PROMISED_SECONDS + SLACK_SECONDS
    assert fleet.processes_killed == (SIZES[kind] if kind == "process" else 0)


def test_tasks_of_one_key_run_one_after_another_whoever_is_killed(
    scratch: Path, tasks: Tasks
) -> None:
    """In their order, also where one of them has to be run again: the next ones wait for it."""
    seed = new_seed()
    chance = random.Random(seed)
    handles = tasks.in_turn.starmap((f"key-{n % KEYS}", n) for n in range(KEYED_TASKS))
    with naming_seed(seed), Fleet(scratch, lease_seconds=LEASE_SECONDS) as fleet:
        for kind in SIZES:
            fleet.start(kind)
        for due in sorted(chance.sample(range(5, KEYED_TASKS), KEYED_KILLS)):
            wait_for(lambda due=due: len(tasks.facts.read()) >= due, f"{due} runs")  # type: ignore[misc]
            kind = tasks.facts.read()[-1].worker.partition("-")[0]
            fleet.kill(kind)  # Whoever began last: it is likely to be at it.
            fleet.start(kind)
        values = [each.get(timeout=RESULT_SECONDS) for each in handles]
        wait_for(lambda: is_settled(tasks), "every message is acked")
        fleet.stop()
        facts = tasks.facts.read_all()

        assert values == list(range(KEYED_TASKS))
        for number in range(KEYS):
            check_in_turn(fleet, [f for f in facts if f.about.startswith(f"key-{number} ")])


def check_in_turn(fleet: Fleet, facts: list[Fact]) -> None:
    """Assert that of one key no run began before the one before it was over, and in order."""
    first = {int(fact.about.split()[1]): None for fact in facts if fact.happened == BEGAN}
    assert list(first) == sorted(first)
    for before, after in pairwise(facts):
        if after.happened == BEGAN:
            is_over = before.happened == ENDED
            assert is_over or fleet.is_cut_short(before, until_us=after.at_us), (before, after)


# Killed, stopped and poisoned where it matters --------------------------------------------------


def test_a_worker_killed_between_event_and_ack_has_its_task_run_again_and_recorded_once(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """The result is there at once; the second run says the same under the next attempt."""
    result = tasks.double.enqueue(21)
    with forks.start(work_and_die_before_the_ack, scratch, "dying", SHORT_LEASE_SECONDS) as child:
        assert child.join() == KILLED
    first = result.record()
    assert (first.state, first.attempt, result.get(timeout=0)) == (State.COMPLETED, 1, 42)
    assert [record.id for record in tasks.app.desk.find()] == [result.id]

    with forks.start(work, scratch, "living", SHORT_LEASE_SECONDS) as child:
        wait_for(lambda: is_settled(tasks), "it is acked")
        end(child)
    last = result.record()
    assert (last.state, last.attempt, last.worker) == (State.COMPLETED, 2, "living")
    assert result.get(timeout=0) == 42
    assert [record.state for record in tasks.app.desk.find()] == [State.COMPLETED]
    assert [fact.worker for fact in tasks.facts.read()] == ["dying", "living"]


def test_a_result_that_was_given_out_stays_though_its_worker_died_before_the_last_ack(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """With no tries left it is not run again; what is known of it holds: it was completed."""
    result = tasks.once.enqueue(21)
    with forks.start(work_and_die_before_the_ack, scratch, "dying", SHORT_LEASE_SECONDS) as child:
        assert child.join() == KILLED
    assert result.get(timeout=0) == 42

    with forks.start(work, scratch, "living", SHORT_LEASE_SECONDS) as child:
        wait_for(lambda: is_settled(tasks), "it is settled")
        end(child)
    assert result.get(timeout=0) == 42
    assert [record.state for record in tasks.app.desk.find()] == [State.COMPLETED]


def test_a_dead_letter_keeps_its_cause_though_its_worker_died_before_it_was_buried(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """What the task raised is why it is dead; that a worker died, too, explains nothing."""
    result = tasks.fail.enqueue()
    with forks.start(work_and_die_before_the_ack, scratch, "dying", SHORT_LEASE_SECONDS) as child:
        assert child.join() == KILLED
    with forks.start(work, scratch, "living", SHORT_LEASE_SECONDS) as child:
        wait_for(lambda: tasks.app.queue_for("default").count().dead == 1, "it is buried")
        end(child)

    with pytest.raises(TaskFailed, match="ValueError: there is no such account"):
        result.get(timeout=0)
    assert "ValueError" in result.record().traceback
    assert [fact.worker for fact in tasks.facts.read()] == ["dying"]


def test_a_worker_stopped_past_its_lease_has_its_late_result_dropped(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """The one who took over is who counts, before and after the late one speaks."""
    result = tasks.wait_once.enqueue(7)
    with forks.start(work_limited, scratch, "stopped", SHORT_LEASE_SECONDS, 1) as late:
        wait_for(lambda: bool(tasks.facts.read()), "the first run begins")
        os.kill(late.pid, signal.SIGSTOP)
        with forks.start(work, scratch, "other", SHORT_LEASE_SECONDS) as other:
            assert result.get(timeout=RESULT_SECONDS) == "try 2 of 7"
            tasks.open_gate()
            os.kill(late.pid, signal.SIGCONT)
            assert late.join() == 0
            end(other)

    record = result.record()
    assert (record.attempt, record.worker, record.result) == (2, "other", b'"try 2 of 7"')
    assert {event.attempt for event in completions(tasks)} == {2}
    assert [fact.worker for fact in tasks.facts.read()] == ["stopped", "other"]


def completions(tasks: Tasks) -> list[TaskEvent]:
    """Return what was said to be completed."""
    return [event for _, event in tasks.app.log.read(0) if event.happened == "completed"]


def test_a_worker_stopped_where_it_speaks_takes_back_what_it_says_late(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """It saw its lease held, and then not: the ack is refused by its token, and it says so."""
    tasks.open_gate()
    result = tasks.wait_once.enqueue(7)
    with forks.start(work_and_stop_before_the_event, scratch, "stopped", 0.5) as late:
        assert late.read() == STOPS
        with forks.start(work, scratch, "other", SHORT_LEASE_SECONDS) as other:
            wait_for(lambda: is_settled(tasks), "somebody else acks it")
            os.kill(late.pid, signal.SIGCONT)
            assert late.join() == 0
            end(other)

    record = result.record()
    assert (record.state, record.attempt, record.worker) == (State.COMPLETED, 2, "other")
    assert result.get(timeout=0) == "try 2 of 7"
    said = [(event.happened, event.attempt, event.worker) for _, event in tasks.app.log.read(0)]
    assert said == [
        ("completed", 2, "other"),
        ("completed", 1, "stopped"),
        ("lost", 1, "stopped"),
    ]
    assert [each.id for each in tasks.app.desk.find()] == [result.id]


def test_a_task_that_kills_its_workers_is_a_dead_letter_and_the_others_go_on(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """It costs as many workers as it has tries, and the cause names what happened."""
    before = tasks.once.using(retries=POISON_RETRIES + 1).map(range(5))
    poison = tasks.poison.enqueue()
    after = tasks.once.using(retries=POISON_RETRIES + 1).map(range(5, 10))
    for number in range(POISON_RETRIES + 1):
        with forks.start(work, scratch, f"poisoned-{number}", SHORT_LEASE_SECONDS) as child:
            assert child.join() == KILLED
    with forks.start(work, scratch, "living", SHORT_LEASE_SECONDS) as child:
        values = [each.get(timeout=RESULT_SECONDS) for each in (*before, *after)]
        with pytest.raises(TaskFailed, match=r"WorkerDied: delivered 3 times"):
            poison.get(timeout=RESULT_SECONDS)
        wait_for(lambda: is_settled(tasks), "all is settled")
        end(child)

    assert values == [2 * number for number in range(10)]
    tries = [fact.attempt for fact in tasks.facts.read() if fact.id == poison.id]
    assert tries == [1, 2, 3]
    letters = list(tasks.app.queue_for("default").dead_letters())
    assert [f"default/{letter.message.id}" for letter in letters] == [poison.id]
    assert letters[0].reason.startswith("WorkerDied: ")
    dead = tasks.app.desk.find(states=[State.DEAD_LETTER])
    assert [(record.id, record.error_type) for record in dead] == [(poison.id, "WorkerDied")]


# Disks ------------------------------------------------------------------------------------------


def test_while_the_disk_is_full_leases_are_kept_and_nothing_runs_twice(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """Results wait for room, for longer than a lease lasts, and then arrive; once each."""
    results = tasks.double.map(range(4))
    with forks.start(work_on_a_full_disk, scratch, "full", SHORT_LEASE_SECONDS) as full:
        wait_for(lambda: bool(tasks.facts.read()), "the first run begins")
        with forks.start(work, scratch, "other", SHORT_LEASE_SECONDS) as other:
            values = [each.get(timeout=RESULT_SECONDS) for each in results]
            wait_for(lambda: is_settled(tasks), "all is acked")
            end(other)
        full.tell("end")
        assert full.read_rest() == [FULL_TIMES]
        assert full.join() == 0

    assert values == [0, 2, 4, 6]
    assert set(Counter(fact.id for fact in tasks.facts.read()).values()) == {1}


def test_a_worker_whose_disk_fails_stops_with_the_error_and_another_finishes_its_work(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """It acks nothing it could not say; its leases end, and the tasks are run elsewhere."""
    results = tasks.double.map(range(6))
    with forks.start(work_on_a_broken_disk, scratch, "broken", SHORT_LEASE_SECONDS) as broken:
        assert broken.read_rest() == ["input/output error"]
        assert broken.join() == 0
    assert not is_settled(tasks)

    with forks.start(work, scratch, "other", SHORT_LEASE_SECONDS) as other:
        values = [each.get(timeout=RESULT_SECONDS) for each in results]
        wait_for(lambda: is_settled(tasks), "all is acked")
        end(other)
    assert values == [0, 2, 4, 6, 8, 10]
    assert {event.worker for event in completions(tasks)} == {"other"}
