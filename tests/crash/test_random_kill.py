import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from segue import Log, Record
from tests.crash.children import append_from_threads_until_killed, append_until_killed
from tests.crash.processes import KILLED, Child, ForkServer
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.workload import SETTINGS, Attempts, Setting, Writer, check_intact, check_records

CYCLES: Final = 4_000 if TORTURE else 120
"""Kills in all, shared out among the settings."""
CYCLES_PER_LOG: Final = 6
THREADED_CYCLES: Final = 600 if TORTURE else 24
THREADS: Final = 4
CALLS_BEFORE_KILL_MAX: Final = 40
DELAY_SECONDS_MAX: Final = 0.001
OPENING_SECONDS_MAX: Final = 0.008
"""About what a child needs to be born and to open the log, recovery included."""


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_kill_at_any_moment_loses_nothing_acknowledged_and_invents_nothing(
    tmp_path: Path, forks: ForkServer, setting: Setting
) -> None:
    """C1, C2, C7: kill -9 keeps what was returned and adds at most the call under way, whole."""
    seed = new_seed()
    cycles = -(-CYCLES // len(SETTINGS))
    with naming_seed(seed):
        chance = random.Random(f"{seed} {setting}")
        for first in range(0, cycles, CYCLES_PER_LOG):
            path = tmp_path / str(first)
            records: list[Record] = []
            for cycle in range(first, min(cycles, first + CYCLES_PER_LOG)):
                writer = Writer(id=cycle, seed=seed)
                with naming(f"cycle {cycle}"):
                    records = _survive_one_kill(
                        forks, path, setting, writer, before=records, chance=chance
                    )
            shutil.rmtree(path)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_kill_while_threads_append_together_keeps_what_each_was_told(
    tmp_path: Path, forks: ForkServer, setting: Setting
) -> None:
    """C1, C2: threads that share a sync are acknowledged together or not at all, each in order."""
    seed = new_seed()
    chance = random.Random(f"{seed} {setting}")
    for cycle in range(-(-THREADED_CYCLES // len(SETTINGS))):
        path = tmp_path / str(cycle)
        attempts = [
            Attempts(writer=Writer(id=number, seed=seed + cycle)) for number in range(THREADS)
        ]
        writers = [tried.writer for tried in attempts]
        with (
            naming_seed(seed),
            forks.start(append_from_threads_until_killed, path, setting, writers) as child,
        ):
            reports = [child.read() for _ in range(chance.randrange(CALLS_BEFORE_KILL_MAX))]
            _pause(chance.uniform(0, DELAY_SECONDS_MAX))
            child.kill()
            assert child.join() == KILLED
            for report in reports + child.read_rest():
                assert isinstance(report, list)
                number, offset = map(int, report)
                attempts[number].acknowledged.append(offset)
        with naming_seed(seed), setting.open(path) as log:
            check_records(list(log.records()), attempts)
            check_intact(log)
        shutil.rmtree(path)


def _survive_one_kill(
    forks: ForkServer,
    path: Path,
    setting: Setting,
    writer: Writer,
    *,
    before: list[Record],
    chance: random.Random,
) -> list[Record]:
    """Kill a writer, check what it left and append to it; return all the log holds then."""
    tried = Attempts(writer=writer)
    with forks.start(append_until_killed, path, setting, writer) as child:
        tried.acknowledged.extend(_offsets_until_killed(child, chance))

    if any(path.glob("*.q")):
        with Log(path, read_only=True) as log:
            _check(list(log.records()), before, tried)
    with setting.open(path) as log:
        recovered = list(log.records())
        _check(recovered, before, tried)
        check_intact(log)
    with setting.open(path) as log:
        assert list(log.records()) == recovered
        own = Attempts(writer=Writer(id=writer.id + (1 << 30), seed=writer.seed), in_flight_max=0)
        own.acknowledged.extend(own.writer.append(log, number) for number in range(2))
        everything = list(log.records())
        _check(everything, recovered, own)
    return everything


def _offsets_until_killed(child: Child, chance: random.Random) -> Iterator[int]:
    """Kill `child` at a random moment; yield all it reported, before and after that."""
    if chance.random() < 0.2:
        _pause(chance.uniform(0, OPENING_SECONDS_MAX))
    else:
        for _ in range(chance.randrange(CALLS_BEFORE_KILL_MAX)):
            yield child.read_number()
        _pause(chance.uniform(0, DELAY_SECONDS_MAX))
    child.kill()
    assert child.join() == KILLED
    for report in child.read_rest():
        assert isinstance(report, int)
        yield report


def _pause(seconds: float) -> None:
    """Wait without sleeping: a sleep would make all kills fall on the scheduler's ticks."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _check(records: list[Record], before: list[Record], tried: Attempts) -> None:
    assert records[: len(before)] == before
    check_records(records[len(before) :], [tried], first_offset=len(before))
