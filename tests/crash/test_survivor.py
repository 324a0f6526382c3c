import random
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from segue import Log
from tests.crash.children import append_and_read_in_turn, append_and_roll, append_until_killed
from tests.crash.kill_runs import ended
from tests.crash.killing_disk import KillPoint, each_kill_point
from tests.crash.processes import KILLED, ForkServer
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.workload import (
    SHARED,
    Attempts,
    Setting,
    Writer,
    check_intact,
    check_records,
    contents_of,
)
from tests.waiting import random_pause

VICTIM: Final = Writer(id=1, seed=7)
SURVIVOR: Final = Writer(id=2, seed=0)
"""Its first calls are short, so that they fit where the victim had no room and rolled."""
VICTIM_CALLS: Final = 6
KILLS: Final = 500 if TORTURE else 12
"""Of processes that share a log with one that stays, for each sync mode."""
SURVIVOR_CALLS: Final = 20
VICTIM_CALLS_MAX: Final = 20
DELAY_SECONDS_MAX: Final = 0.002


@pytest.mark.parametrize("setting", SHARED, ids=str)
def test_whoever_shares_the_log_goes_on_wherever_another_process_is_killed(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """C1, C2: a kill inside another's append or roll costs the survivor nothing, then or later."""

    def is_killed_at(point: KillPoint) -> bool:
        path = scratch / f"{point.operation} {point.number} {point.moment.value}"
        own = Attempts(writer=SURVIVOR, in_flight_max=0)
        tried = Attempts(writer=VICTIM)
        with naming(point), setting.open(path) as log:
            own.acknowledged.append(SURVIVOR.append(log, 0))
            killed, reports = ended(
                forks.start(append_and_roll, path, setting, VICTIM, calls=VICTIM_CALLS, point=point)
            )
            tried.acknowledged.extend(offset for offset in reports if isinstance(offset, int))
            own.acknowledged.extend(SURVIVOR.append(log, number) for number in range(1, 5))
            check_records(list(log.records()), [own, tried])
            check_intact(log)
            with setting.open(path) as other, Log(path, read_only=True) as onlooker:
                assert contents_of(other) == contents_of(onlooker) == contents_of(log)
        with naming(point), setting.open(path) as log:
            check_records(list(log.records()), [own, tried])
            check_intact(log)
        return killed

    assert each_kill_point(is_killed_at) > 0


@pytest.mark.parametrize("setting", SHARED, ids=str)
def test_a_survivor_appends_and_reads_on_while_others_are_killed(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """Nothing acknowledged to anyone is lost, nothing torn appears, the survivor never waits."""
    seed, path = new_seed(), scratch / "log"
    chance = random.Random(f"{seed} {setting}")
    own = Attempts(writer=Writer(id=KILLS, seed=seed), in_flight_max=0)
    everyone = [own]
    with (
        naming_seed(seed),
        forks.start(append_and_read_in_turn, path, setting, own.writer) as survivor,
    ):
        for number in range(KILLS):
            tried = Attempts(writer=Writer(id=number, seed=seed))
            everyone.append(tried)
            with (
                naming(f"kill {number}"),
                forks.start(append_until_killed, path, setting, tried.writer) as victim,
            ):
                tried.acknowledged += [
                    victim.read_number() for _ in range(chance.randrange(VICTIM_CALLS_MAX))
                ]
                survivor.tell(SURVIVOR_CALLS)
                random_pause(chance, DELAY_SECONDS_MAX)
                victim.kill()
                assert victim.join() == KILLED
                tried.acknowledged += [
                    offset for offset in victim.read_rest() if isinstance(offset, int)
                ]
                own.acknowledged += [survivor.read_number() for _ in range(SURVIVOR_CALLS)]
        survivor.tell(0)
        seen = survivor.read()
        assert survivor.join() == 0

    with naming_seed(seed), setting.open(path) as log:
        records = list(log.records())
        check_records(records, everyone)
        check_intact(log)
    digest = 0
    for record in records:
        digest = crc32(record.payload, digest)
    assert seen == [len(records), digest]
