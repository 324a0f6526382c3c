"""A batch that is appended whole is there or is not, wherever the process or the power ends."""

from pathlib import Path
from random import Random
from typing import Final

import pytest

from segue import Log, Record
from segue.testing import RecordingDisk
from tests.crash.channel import Report
from tests.crash.kill_runs import kill_everywhere
from tests.crash.killing_disk import KillPoint
from tests.crash.processes import Child, ForkServer
from tests.crash.replay import TORTURE, naming, new_seed
from tests.crash.whole_children import SHAPES, batch, put_batch, put_batches
from tests.crash.workload import (
    SEGMENT_BYTES,
    SEGMENT_ITEMS,
    SHARED,
    Setting,
    check_intact,
    settings_in_short_run,
)

STATES: Final = 8 if TORTURE else 1
"""How many states are looked at of each moment."""


def whole_batches(records: list[Record]) -> int:
    """Return how many batches `records` are; fail unless they are the first ones, each whole."""
    found = place = 0
    while place < len(records):
        expected = batch(found)
        stored = records[place : place + len(expected)]
        assert [record.payload for record in stored] == expected, f"batch {found} is in pieces"
        assert {record.attr for record in stored} == {found}
        found, place = found + 1, place + len(expected)
    return found


def expect_usual_limits(path: Path) -> None:
    """Open a log without any limits of its own and look at what it makes next."""
    with Log(path, sync="os") as log:
        log.append(b"one more")
        log.roll()
        last = log.segments()[-1]
        assert (last.items_max, last.bytes_max) == (SEGMENT_ITEMS, SEGMENT_BYTES)


@pytest.mark.parametrize(
    "setting", settings_in_short_run(Setting(sync="os", exclusive=True)), ids=str
)
def test_a_kill_at_any_call_leaves_whole_batches(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """What was acknowledged is there, of what was not at most one, and limits are the usual."""

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(put_batches, path, setting, point)

    def check(path: Path, reports: list[Report]) -> None:
        acknowledged = [report for report in reports if isinstance(report, int)]
        with setting.open(path) as log:
            found = whole_batches(list(log.records()))
            check_intact(log)
            assert len(acknowledged) <= found <= len(acknowledged) + 1
            for number in range(found, len(SHAPES)):
                put_batch(log, number)
            log.flush()
            assert whole_batches(list(log.records())) == len(SHAPES)
            check_intact(log)
        expect_usual_limits(path)

    kills = kill_everywhere(scratch, start, check)

    assert kills > 0


@pytest.mark.parametrize("setting", SHARED if TORTURE else [Setting(sync="always")], ids=str)
def test_a_kill_at_any_call_lets_another_process_go_on(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """One that had the log open all the time: nothing is recovered, and nothing is in pieces."""
    survivors: dict[Path, Log] = {}

    def start(path: Path, point: KillPoint | None) -> Child:
        survivors[path] = setting.open(path)
        return forks.start(put_batches, path, setting, point)

    def check(path: Path, reports: list[Report]) -> None:
        acknowledged = [report for report in reports if isinstance(report, int)]
        with survivors.pop(path) as log:
            log.flush()  # Shows what was written and not yet shown.
            found = whole_batches(list(log.records()))
            assert len(acknowledged) <= found <= len(acknowledged) + 1
            for number in range(found, len(SHAPES)):
                put_batch(log, number)
            log.flush()
            assert whole_batches(list(log.records())) == len(SHAPES)
            check_intact(log)
        expect_usual_limits(path)

    kills = kill_everywhere(scratch, start, check)

    assert kills > 0


@pytest.mark.parametrize(
    "setting",
    settings_in_short_run(
        Setting(sync="always"), Setting(sync="interval", exclusive=True), Setting(sync="os")
    ),
    ids=str,
)
def test_a_power_cut_at_any_moment_leaves_whole_batches(scratch: Path, setting: Setting) -> None:
    """What was synced is there; of the rest whole batches or nothing."""
    first_seed = new_seed()
    root = scratch / "before"
    root.mkdir()
    disk = RecordingDisk(root)
    synced: list[int] = []
    with setting.open(root / "log", disk=disk) as log:
        opened = disk.moment
        for number in range(len(SHAPES)):
            put_batch(log, number)
            synced.append(disk.moment)
        end = disk.moment
    for moment in range(opened, end + 1):
        for seed in range(first_seed, first_seed + STATES):
            with naming(f"power cut at {moment} of {end}, seed {seed}"):
                target = scratch / f"after-{moment}-{seed}"
                after = disk.after_power_cut(target, moment, Random(seed))
                certain = sum(at <= moment for at in synced)
                with setting.open(target / "log", disk=after) as log:
                    found = whole_batches(list(log.records()))
                    assert certain <= found <= len(SHAPES)
                    if setting.sync != "os":  # There a new segment's header may be torn, too.
                        check_intact(log)
                    for number in range(found, len(SHAPES)):
                        put_batch(log, number)
                    log.flush()
                    assert whole_batches(list(log.records())) == len(SHAPES)
