"""Schedules whose workers are killed: each moment fires once, whoever fires it."""

import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pytest

from segue.tasks import Worker
from segue.tasks.scheduling import SCHEDULES_TOPIC, ScheduleBook, ScheduleState
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.replay import TORTURE, naming_seed, new_seed
from tests.crash.stopping import wait_until_stopped
from tests.crash.task_apps import EVERY_SECONDS, Beats
from tests.crash.task_workers import (
    STOPS,
    beat,
    beat_and_die_before_the_note,
    beat_and_stop_before_the_note,
)
from tests.waiting import random_pause, wait_until

logger = logging.getLogger(__name__)

WORKERS: Final = 3
KILLS: Final = 60 if TORTURE else 12
EVERYBODY: Final = 0.25
"""How often everybody is killed at once."""
PAUSE_SECONDS_MAX: Final = 0.5
LEASE_SECONDS: Final = 0.5
KEPT_SECONDS: Final = 86_400.0


@pytest.fixture
def beats(scratch: Path) -> Iterator[Beats]:
    """The App, for the test itself, with a queue that keeps what was settled."""
    found = Beats(scratch)
    with found.app:
        queue = found.app.queue_for("beats")
        queue.configure(replace(queue.rules, keep_seconds=KEPT_SECONDS))
        yield found


def noted(beats: Beats) -> ScheduleState | None:
    """Return what is known of the schedule."""
    states = ScheduleBook(beats.app.store).states().values()
    return next((state for state in states if state.name == "beat"), None)


def fired(beats: Beats) -> int:
    """Return how many firings were noted."""
    state = noted(beats)
    return 0 if state is None else state.fired


def wait_for_firings(beats: Beats, count: int) -> None:
    """Return once so many firings were noted."""
    wait_until(lambda: fired(beats) >= count, f"{count} firings")


class Shift:
    """Three workers, who are replaced when they are killed."""

    def __init__(self, root: Path, forks: ForkServer) -> None:
        self._root = root
        self._forks = forks
        self._started = 0
        self.present: list[Child] = []
        self.kills = 0

    def fill(self) -> None:
        """Have three."""
        while len(self.present) < WORKERS:
            self._started += 1
            name = f"beating-{self._started}"
            self.present.append(self._forks.start(beat, self._root, name, LEASE_SECONDS))

    def kill(self, victims: list[Child]) -> None:
        """Kill some, and have others."""
        for child in victims:
            child.kill()
        for child in victims:
            self.present.remove(child)
            with child:
                assert child.join() == KILLED, child.read_rest()
            self.kills += 1
        self.fill()

    def end(self) -> None:
        """Have all end in order."""
        for child in self.present:
            child.tell("end")
        for child in self.present:
            with child:
                assert child.join() == 0
        self.present.clear()

    def close(self) -> None:
        """End whoever is left."""
        for child in self.present:
            child.close()


def check(beats: Beats) -> list[int]:
    """Assert that each moment since the schedule began fired once, and ran; return the moments."""
    topic = beats.app.store.topic(SCHEDULES_TOPIC)
    registered = next(iter(topic.records({0: 0}))).value
    began_us = msgspec.json.decode(registered or b"", type=ScheduleState).last_us
    last = noted(beats)
    assert last is not None
    step_us = round(EVERY_SECONDS * 1_000_000)
    first_us = began_us // step_us * step_us + step_us
    expected = list(range(first_us, last.last_us + 1, step_us))
    pushed = {
        f"beats/{message.id}": message.key or ""
        for message in beats.app.queue_for("beats").history()
    }
    moments = sorted(int(key.removeprefix("schedule:beat:")) for key in pushed.values())
    runs = Counter(fact.id for fact in beats.facts.read())
    logger.info("fired moments=%d noted=%d runs=%d", len(moments), last.fired, runs.total())

    assert moments == expected
    assert last.fired == len(expected)
    assert runs.keys() == pushed.keys()
    return moments


def test_whoever_is_killed_each_moment_of_a_schedule_fires_exactly_once(
    scratch: Path, beats: Beats, forks: ForkServer
) -> None:
    """Also where all are killed at once, and where one is killed as it fires: none is missed."""
    seed = new_seed()
    chance = random.Random(seed)
    shift = Shift(scratch, forks)
    with naming_seed(seed):
        try:
            shift.fill()
            while shift.kills < KILLS:
                due = fired(beats) + 1
                wait_for_firings(beats, due)
                random_pause(chance, PAUSE_SECONDS_MAX)
                everybody = chance.random() < EVERYBODY
                shift.kill(list(shift.present) if everybody else [chance.choice(shift.present)])
            due = fired(beats) + 1
            wait_for_firings(beats, due)
            wait_until(lambda: len(runs_of(beats)) >= fired(beats), "all have run")
            shift.end()
        finally:
            shift.close()
        moments = check_after_settling(scratch, beats, forks)
        logger.info("killed workers=%d moments=%d", shift.kills, len(moments))


def runs_of(beats: Beats) -> set[str]:
    """Return the tasks that ran."""
    return {fact.id for fact in beats.facts.read()}


def check_after_settling(scratch: Path, beats: Beats, forks: ForkServer) -> list[int]:
    """Have one last worker finish what was left, and check."""
    shift = Shift(scratch, forks)
    try:
        shift.fill()
        queue = beats.app.queue_for("beats")
        due = fired(beats) + 1
        wait_for_firings(beats, due)
        shift.end()
        assert queue.count().dead == 0
    finally:
        shift.close()
    settle(beats)
    return check(beats)


def settle(beats: Beats) -> None:
    """Run what fired in the last moment before all ended, with nobody there to fire more."""
    beats.app.schedules.clear()
    Worker(beats.app, queues=["beats"], lease_ttl=LEASE_SECONDS, burst=True).run()


def test_a_moment_that_fired_and_was_not_noted_is_not_fired_again(
    scratch: Path, beats: Beats, forks: ForkServer
) -> None:
    """Killed between push and note, time after time: the key of the moment is what makes it one."""
    for number in range(2):
        name = f"dying-{number}"
        with forks.start(beat_and_die_before_the_note, scratch, name, LEASE_SECONDS) as child:
            assert child.join() == KILLED
    assert fired(beats) == 0
    pushed = len(list(beats.app.queue_for("beats").history()))
    moments = check_after_settling(scratch, beats, forks)

    assert pushed >= 1
    assert len(moments) > pushed


def test_who_is_stopped_as_it_fires_and_goes_on_late_changes_nothing(
    scratch: Path, beats: Beats, forks: ForkServer
) -> None:
    """Others took over: what it notes late is older than what is noted, and does not count."""
    with forks.start(beat_and_stop_before_the_note, scratch, "stopped", LEASE_SECONDS) as late:
        assert late.read() == STOPS
        wait_until_stopped(late.pid)
        shift = Shift(scratch, forks)
        try:
            shift.fill()
            wait_for_firings(beats, 2)
            os.kill(late.pid, signal.SIGCONT)
            due = fired(beats) + 2
            wait_for_firings(beats, due)
            late.tell("end")
            assert late.join() == 0
            shift.end()
        finally:
            shift.close()
    check_after_settling(scratch, beats, forks)
