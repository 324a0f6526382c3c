"""The index of tasks, killed while it takes in events: it is derived, and never differs."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest

from segue.clock import system_clock
from segue.tasks import State
from segue.tasks.events import TaskEvent
from segue.tasks.index import TaskIndex
from segue.tasks.records import TaskRecord
from tests.crash.processes import KILLED, ForkServer
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.task_apps import Tasks
from tests.crash.task_index_users import READY, catch_up_and_die, catch_up_for_ever
from tests.waiting import random_pause

EVENTS: Final = 600
IDS: Final = 150
BATCH_EVENTS: Final = 64
USERS: Final = 3
KILLS: Final = 60 if TORTURE else 12
HAPPENINGS: Final[
    tuple[Literal["processing", "completed", "retrying", "dead_letter", "progress", "lost"], ...]
] = ("processing", "completed", "completed", "retrying", "dead_letter", "progress", "lost")


@pytest.fixture
def tasks(scratch: Path) -> Iterator[Tasks]:
    """The App, for the test itself."""
    found = Tasks(scratch)
    with found.app:
        found.app.desk.prepare()
        yield found


def some_events(chance: random.Random, count: int) -> list[TaskEvent]:
    """Return events in any order, as workers that lose their leases write them."""
    now_us = system_clock()
    return [
        TaskEvent(
            id=f"default/2-{chance.randrange(IDS)}",
            happened=chance.choice(HAPPENINGS),
            at_us=now_us + number,
            task=chance.choice(("double", "negate")),
            attempt=chance.randint(1, 4),
            worker=chance.choice(("ann", "bob")),
            result=msgspec.Raw(b"42"),
            progress=msgspec.Raw(b"0.5"),
        )
        for number in range(count)
    ]


def answers(index: TaskIndex) -> tuple[list[TaskRecord], dict[tuple[str, State], int]]:
    """Return all that an index says."""
    return index.find(limit=10 * IDS), index.counts()


def assert_as_rebuilt(tasks: Tasks) -> None:
    """Assert that the index on disk says what one that is made anew does."""
    rebuilt = TaskIndex(tasks.app.log, None, system_clock)
    try:
        assert answers(tasks.app.desk.index) == answers(rebuilt)
    finally:
        rebuilt.close()


@pytest.mark.parametrize("records", [0, 1, BATCH_EVENTS - 1, BATCH_EVENTS, 200, EVENTS])
def test_an_index_killed_as_it_catches_up_goes_on_where_it_was(
    scratch: Path, tasks: Tasks, forks: ForkServer, records: int
) -> None:
    """Each event counts once: what was taken in and how far that is are one transaction."""
    seed = new_seed()
    with naming_seed(seed):
        tasks.app.log.append(some_events(random.Random(seed), EVENTS))
        for _ in range(2):
            with forks.start(catch_up_and_die, scratch, BATCH_EVENTS, records) as child:
                assert child.join() == KILLED

        assert_as_rebuilt(tasks)


def test_so_it_is_with_several_who_share_the_index_and_are_killed_at_random(
    scratch: Path, tasks: Tasks, forks: ForkServer
) -> None:
    """Also as they make it, all at once; and nobody is told that anything is wrong with it."""
    seed = new_seed()
    chance = random.Random(seed)
    with naming_seed(seed):
        users = [forks.start(catch_up_for_ever, scratch, BATCH_EVENTS) for _ in range(USERS)]
        try:
            for _ in range(KILLS):
                tasks.app.log.append(some_events(chance, chance.randrange(1, EVENTS)))
                random_pause(chance, 0.03)
                with users.pop(chance.randrange(USERS)) as victim:
                    victim.kill()
                    assert victim.join() == KILLED
                    assert set(victim.read_rest()) <= {READY}
                users.append(forks.start(catch_up_for_ever, scratch, BATCH_EVENTS))
                assert_as_rebuilt(tasks)
        finally:
            for user in users:
                user.close()
