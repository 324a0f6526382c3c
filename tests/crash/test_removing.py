"""Removing records and deleting segments, cut short: each segment is the old one or the new."""

import shutil
from pathlib import Path
from random import Random
from typing import Final

import pytest

from segue import Log, Record
from segue.log.disk import Disk
from segue.testing import RecordingDisk
from tests.crash.channel import Report
from tests.crash.children import KEPT_EVERY, REMOVED, remove_and_clean_up
from tests.crash.kill_runs import finish, kill_everywhere
from tests.crash.killing_disk import KillPoint
from tests.crash.processes import Child, ForkServer
from tests.crash.replay import TORTURE, naming
from tests.crash.workload import SHARED, Setting, Writer, check_intact, contents_of

WRITER: Final = Writer(id=1, seed=11)
SEGMENTS: Final = 4
CALLS_PER_SEGMENT: Final = 4
TRIMMED_SEGMENTS: Final = 2
CUTS: Final = 30 if TORTURE else 1
"""How many states after a power cut are tried for each moment."""


def filled(path: Path, setting: Setting, disk: Disk | None = None) -> list[list[Record]]:
    """Fill a log and return its records, segment by segment; the last one is the active one."""
    with setting.open(path, disk=disk) as log:
        for number in range(SEGMENTS * CALLS_PER_SEGMENT):
            WRITER.append(log, number)
            if number % CALLS_PER_SEGMENT == CALLS_PER_SEGMENT - 1:
                log.roll()
        WRITER.append(log, SEGMENTS * CALLS_PER_SEGMENT)
        return by_segment(log)


def by_segment(log: Log) -> list[list[Record]]:
    """Return what can be read, segment by segment."""
    found = []
    for segment in log.segments():
        assert segment.first_offset is not None
        if segment.first_offset < log.first_offset:
            continue  # It was said to be gone, and whoever said so was killed before it was.
        stop = segment.first_offset + segment.count
        found.append(list(log.records(segment.first_offset, stop=stop)))
    return found


def is_kept(record: Record) -> bool:
    return record.offset % KEPT_EVERY == 0


def thinned(full: list[list[Record]]) -> list[list[Record]]:
    """Return what a removal that came to its end leaves: of the active segment, everything."""
    return [list(filter(is_kept, records)) for records in full[:-1]] + full[-1:]


def check_old_or_new(log: Log, full: list[list[Record]], *, removed: bool) -> None:
    """Assert that each segment is whole or thinned, and that only the first ones are gone."""
    new = thinned(full)
    found = by_segment(log)
    gone = len(full) - len(found)
    assert 0 <= gone <= (TRIMMED_SEGMENTS if removed else 0)
    for records, before, after in zip(found, full[gone:], new[gone:], strict=True):
        assert records in ((after,) if removed else (before, after))
    assert all(audit.is_intact for audit in log.verify())


def leftovers(path: Path) -> list[str]:
    return [each.name for each in path.iterdir() if each.suffix in {".new", ".deleted"}]


@pytest.mark.parametrize("setting", SHARED if TORTURE else [Setting(sync="always")], ids=str)
def test_a_kill_at_any_call_leaves_each_segment_old_or_new(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """Nothing that is kept is lost, nothing is mixed, and the next run completes it."""
    template, whole = scratch / "template", scratch / "whole"
    full = filled(template, setting)
    trim_to = full[TRIMMED_SEGMENTS][0].offset

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(remove_and_clean_up, path, setting, trim_to, point)

    def check(path: Path, reports: list[Report]) -> None:
        with setting.open(path) as log:
            assert leftovers(path) == []
            check_old_or_new(log, full, removed=REMOVED in reports)
            check_intact(log)
        finish(start(path, None))
        with setting.open(path) as log:
            assert contents_of(log) == done

    shutil.copytree(template, whole)
    finish(start(whole, None))
    with setting.open(whole) as log:
        done = contents_of(log)
        assert by_segment(log) == thinned(full)[TRIMMED_SEGMENTS:]
    kills = kill_everywhere(scratch, start, check, template=template)

    assert kills > 0


def test_a_kill_at_any_call_is_seen_through_by_who_has_the_log_open(
    scratch: Path, forks: ForkServer
) -> None:
    """Without a recovery in between: others read old or new, and can complete it."""
    setting = Setting(sync="os")
    template = scratch / "template"
    full = filled(template, setting)
    trim_to = full[TRIMMED_SEGMENTS][0].offset

    def start(path: Path, point: KillPoint | None) -> Child:
        # Opened first, so that the child joins and whoever comes after it does, too.
        logs.append(setting.open(path))
        for record in (record for records in full for record in records):
            assert logs[-1].read(record.offset) == record
        return forks.start(remove_and_clean_up, path, setting, trim_to, point)

    def check(path: Path, reports: list[Report]) -> None:
        with logs.pop() as log:
            check_old_or_new(log, full, removed=REMOVED in reports)
            readable = [record for records in by_segment(log) for record in records]
            assert [log.read(record.offset) for record in readable] == readable
            log.remove_records(is_kept)
            log.trim(trim_to)
            assert by_segment(log) == thinned(full)[TRIMMED_SEGMENTS:]
            assert not any(name.endswith(".deleted") for name in leftovers(path))
            check_intact(log)

    logs: list[Log] = []
    kills = kill_everywhere(scratch, start, check, template=template)

    assert kills > 0


def test_a_power_cut_at_any_moment_leaves_each_segment_old_or_new(scratch: Path) -> None:
    """Also what a record was removed for is there, although nobody had synced it."""
    setting = Setting(sync="interval")
    root = scratch / "before"
    root.mkdir()
    filled(root / "log", setting)
    disk = RecordingDisk(root)
    with setting.open(root / "log", disk=disk) as log:
        log.append(b"why the others may go")
        full = by_segment(log)
        begun = disk.moment
        log.remove_records(is_kept)
        removed = disk.moment
        log.trim(full[TRIMMED_SEGMENTS][0].offset)
        ended = disk.moment

    for moment in range(begun, ended + 1):
        for seed in range(CUTS):
            with naming(f"power cut at {moment}, seed {seed}"):
                after = disk.after_power_cut(scratch / "after", moment, Random(seed))
                with setting.open(scratch / "after" / "log", disk=after) as log:
                    found = by_segment(log)
                    if found[:-1] == full[:-1]:
                        assert found[-1] in (full[-1], full[-1][:-1])
                    else:
                        check_old_or_new(log, full, removed=moment >= removed)
                    check_intact(log)
                shutil.rmtree(scratch / "after")
