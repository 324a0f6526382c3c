"""Workers of all kinds killed at random, each a program of its own, and started again.

Kills are due when so many tasks were run, not by the clock: so they are spread over the whole run
on any machine. In the end every task is completed, and every result is there.
"""

import logging
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from segue.tasks import Result, State
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.task_apps import (
    BEGAN,
    ENDED,
    LONG_SECONDS,
    Fact,
    Facts,
    Tasks,
    expire_leases,
)
from tests.crash.task_fleet import SIZES, Fleet
from tests.waiting import LIMIT_SECONDS, random_pause, wait_for_progress, wait_until

logger = logging.getLogger(__name__)

TASKS: Final = 6_000 if TORTURE else 600
KILLS: Final = 20 if TORTURE else 7
KEYS: Final = 4
KEYED_TASKS: Final = 2_000 if TORTURE else 160
KEYED_KILLS: Final = 12 if TORTURE else 3
LEASE_SECONDS: Final = 1.0
"""Short, so that the tasks of a killed worker run again soon. Living workers may lose leases, too:
they log it, and the tests allow it."""
KEYED_LEASE_SECONDS: Final = 3.0
AGAIN: Final = 0.25
"""How often who was just started is killed again, while it still imports its modules."""
STARTING_SECONDS_MAX: Final = 0.4


@pytest.fixture
def tasks(scratch: Path) -> Iterator[Tasks]:
    """The App, for the test itself."""
    found = Tasks(scratch)
    found.accounts.prepare()
    with found.app:
        yield found


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


def wait_for_facts(facts: Facts, count: int) -> None:
    """Return once runs have written `count` facts."""
    wait_for_progress(facts.count, lambda: facts.count() >= count)


def kill_on_the_way(fleet: Fleet, facts: Facts, chance: random.Random) -> None:
    """Kill workers as tasks are run, all of them at once in the middle."""
    due = sorted(chance.sample(range(TASKS // 20, TASKS * 9 // 10), KILLS - len(SIZES)))
    middle = len(due) // 2
    for number, runs in enumerate(due):
        wait_for_facts(facts, runs)
        victims = list(fleet.kinds) if number == middle else [chance.choice(fleet.kinds)]
        for kind in victims:
            fleet.kill(kind)
        for kind in victims:
            fleet.start(kind)
        if number != middle and chance.random() < AGAIN:
            random_pause(chance, STARTING_SECONDS_MAX)
            fleet.kill(victims[0])
            fleet.start(victims[0])
    while fleet.kills < KILLS:
        kind = chance.choice(fleet.kinds)
        fleet.kill(kind)
        fleet.start(kind)


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
        values = producer.submit(lambda: [each.get(timeout=LIMIT_SECONDS) for each in handles])
        kill_on_the_way(fleet, tasks.facts, chance)

        assert values.result() == expected
        wait_for_progress(tasks.unsettled, tasks.is_settled)
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
    """Another worker runs all tasks that the killed one held in the middle of their work."""
    held = tasks.wait_once.map(range(SIZES[kind]))
    with Fleet(scratch, lease_seconds=LONG_SECONDS) as fleet:
        fleet.start(kind)
        wait_for_facts(tasks.facts, len(held))
        free = "async" if kind == "thread" else "thread"
        fleet.start(free)
        tasks.double.enqueue(1).get(timeout=LIMIT_SECONDS)  # Ready: it runs tasks.
        fleet.kill(kind)
        expire_leases(scratch)
        values = [each.get(timeout=LIMIT_SECONDS) for each in held]
        wait_until(tasks.is_settled, "all is acked")
        fleet.stop()
    facts = tasks.facts.read()
    waits = [wait.seconds for wait in fleet.waits(facts)]
    logger.info("killed kind=%s waits=%s", kind, ", ".join(f"{wait:.3f}" for wait in waits))
    last = {fact.id: fact for fact in facts}

    assert [value.partition(" of ")[2] for value in values] == [
        str(number) for number in range(SIZES[kind])
    ]
    assert values == [
        f"try {last[each.id].attempt} of {number}" for number, each in enumerate(held)
    ]
    assert all(last[each.id].attempt > 1 for each in held)
    assert {last[each.id].worker.partition("-")[0] for each in held} == {free}
    assert fleet.repeated_for_nothing(facts) == []
    assert fleet.processes_killed == (SIZES[kind] if kind == "process" else 0)


def test_tasks_of_one_key_run_one_after_another_whoever_is_killed(
    scratch: Path, tasks: Tasks
) -> None:
    """In their order, also where one of them has to be run again: the next ones wait for it."""
    seed = new_seed()
    chance = random.Random(seed)
    handles = tasks.in_turn.starmap((f"key-{n % KEYS}", n) for n in range(KEYED_TASKS))
    with naming_seed(seed), Fleet(scratch, lease_seconds=KEYED_LEASE_SECONDS) as fleet:
        for kind in SIZES:
            fleet.start(kind)
        for due in sorted(chance.sample(range(5, 2 * KEYED_TASKS), KEYED_KILLS)):
            wait_for_facts(tasks.facts, due)
            kind = tasks.facts.read()[-1].worker.partition("-")[0]
            fleet.kill(kind)  # Whoever began last: it is likely to be at it.
            fleet.start(kind)
        values = [each.get(timeout=LIMIT_SECONDS) for each in handles]
        wait_for_progress(tasks.unsettled, tasks.is_settled)
        fleet.stop()
        # A worker that lost its lease may run the task late. That run has no claim to the key.
        facts = [fact for fact in tasks.facts.read_all() if not fleet.has_lost(fact)]

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
