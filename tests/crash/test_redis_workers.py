"""Workers on a server killed at random, each a program of its own, and started again.

As tests/crash/test_task_random_kill.py has it with files: here the server lives on, and learns of a
death only when leases end.
"""

import logging
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from segue.tasks import Result, State
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.task_apps import STORE_VARIABLE, Tasks
from tests.crash.task_fleet import SIZES, Fleet
from tests.redis_server import RedisServer
from tests.waiting import LIMIT_SECONDS, wait_for_progress

logger = logging.getLogger(__name__)

TASKS: Final = 3_000 if TORTURE else 300
KILLS: Final = 20 if TORTURE else 4
LEASE_SECONDS: Final = 1.0


@pytest.fixture
def tasks(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tasks]:
    """The App, for the test itself; its store is on a server of its own."""
    with RedisServer(scratch / "server") as server:
        monkeypatch.setenv(STORE_VARIABLE, server.url)
        found = Tasks(scratch)
        found.accounts.prepare()
        with found.app:
            yield found


def queue_all(tasks: Tasks) -> tuple[list[Result[int]], list[int]]:
    """Queue tasks of all sorts; return their handles, and what must come of them."""
    numbers = range(TASKS)
    handles = [
        *tasks.double.map(numbers[0::3]),
        *tasks.negate.map(numbers[1::3]),
        *tasks.credit.starmap((f"account {number % 7}", number) for number in numbers[2::3]),
    ]
    expected = [2 * number for number in numbers[0::3]]
    expected += [-number for number in numbers[1::3]]
    return handles, [*expected, *numbers[2::3]]


def has_run(tasks: Tasks, count: int) -> bool:
    """Tell whether so many runs have begun."""
    return tasks.facts.count() >= count


def kill_on_the_way(fleet: Fleet, tasks: Tasks, chance: random.Random) -> None:
    """Kill workers as tasks are run, and start others in their place."""
    due = sorted(chance.sample(range(TASKS // 20, TASKS * 9 // 10), KILLS))
    for count in due:
        wait_for_progress(tasks.facts.count, partial(has_run, tasks, count))
        kind = chance.choice(fleet.kinds)
        fleet.kill(kind)
        fleet.start(kind)


def test_whoever_is_killed_every_task_on_a_server_is_completed_and_counts_once(
    scratch: Path, tasks: Tasks
) -> None:
    """At least once, with a key of its own exactly once; none stuck, none dead by crashes alone."""
    seed = new_seed()
    chance = random.Random(seed)
    handles, expected = queue_all(tasks)
    with (
        naming_seed(seed),
        Fleet(scratch, lease_seconds=LEASE_SECONDS) as fleet,
        ThreadPoolExecutor(1) as producer,
    ):
        for kind in SIZES:
            fleet.start(kind)
        values = producer.submit(lambda: [each.get(timeout=LIMIT_SECONDS) for each in handles])
        kill_on_the_way(fleet, tasks, chance)

        assert values.result() == expected
        wait_for_progress(tasks.unsettled, tasks.is_settled)
        fleet.stop()
        check_evidence(tasks, fleet, {each.id for each in handles})


def check_evidence(tasks: Tasks, fleet: Fleet, ids: set[str]) -> None:
    """Assert that facts, events, records, accounts and queue all say the same."""
    facts = tasks.facts.read()
    completed = Counter(
        (event.id, event.attempt)
        for _, event in tasks.app.log.read(0)
        if event.happened == "completed"
    )
    waits = [wait.seconds for wait in fleet.waits(facts)]
    logger.info(
        "killed workers=%d tasks=%d runs=%d waits=%d longest=%.3f s",
        *(fleet.kills, len(ids), len(facts), len(waits), max(waits, default=0.0)),
    )
    expected: Counter[str] = Counter()
    for number in range(TASKS)[2::3]:
        expected[f"account {number % 7}"] += number
    found = tasks.app.desk.find(limit=2 * TASKS)
    counts = tasks.app.queue_for("default").count()

    assert fleet.kills == KILLS
    assert {fact.id for fact in facts} == ids
    assert {task_id for task_id, _ in completed} == ids
    assert set(completed.values()) == {1}
    assert fleet.repeated_for_nothing(facts) == []
    assert tasks.accounts.read() == expected
    assert Counter(record.id for record in found) == Counter(ids)
    assert {record.state for record in found} == {State.COMPLETED}
    assert (counts.total, counts.dead) == (0, 0)
