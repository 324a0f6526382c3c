import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.crash.channel import Report
from tests.crash.children import (
    READER,
    append_and_roll,
    clean_up_and_trim,
    read_and_commit,
    repair,
    wait_in_vain,
)
from tests.crash.damage import flip_bit, overwrite
from tests.crash.kill_runs import finish, kill_everywhere
from tests.crash.killing_disk import KillPoint
from tests.crash.processes import Child, ForkServer
from tests.crash.replay import TORTURE
from tests.crash.workload import (
    SHARED,
    Attempts,
    Setting,
    Writer,
    check_intact,
    check_records,
    contents_of,
    settings_in_short_run,
)

WRITER: Final = Writer(id=1, seed=7)
OTHER_WRITER: Final = Writer(id=2, seed=7)
CALLS: Final = 8
SEGMENTS: Final = 6
CALLS_PER_SEGMENT: Final = 3
WANTED_SEGMENT: Final = 4
"""Where the reader stands in those."""


@pytest.mark.parametrize(
    "setting",
    settings_in_short_run(Setting(sync="always"), Setting(sync="interval", exclusive=True)),
    ids=str,
)
def test_a_kill_at_any_call_of_an_append_or_a_roll_keeps_what_was_acknowledged(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """C1, C2: wherever inside create, append, roll, seal or close the process dies."""

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(append_and_roll, path, setting, WRITER, calls=CALLS, point=point)

    def check(path: Path, reports: list[Report]) -> None:
        offsets = [report for report in reports if isinstance(report, int)]
        tried = Attempts(writer=WRITER, acknowledged=offsets)
        with setting.open(path) as log:
            recovered = contents_of(log)
            check_records(recovered.records, [tried])
            check_intact(log)
        own = Attempts(writer=OTHER_WRITER, in_flight_max=0)
        with setting.open(path) as log:
            assert contents_of(log) == recovered
            own.acknowledged.extend(OTHER_WRITER.append(log, number) for number in range(3))
            check_records(list(log.records()), [tried, own])
            check_intact(log)

    kills = kill_everywhere(scratch, start, check)

    assert kills > 0


@pytest.mark.parametrize("setting", SHARED if TORTURE else [Setting(sync="os")], ids=str)
def test_a_kill_at_any_call_of_a_clean_up_deletes_nothing_a_reader_wants(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """A half-done deletion leaves a log that begins a little earlier, without a gap."""

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(clean_up_and_trim, path, setting, wanted, point)

    def check(path: Path, _: list[Report]) -> None:
        with setting.open(path) as log:
            first = log.first_offset
            assert first <= wanted
            assert list(log.records()) == full.records[first:]
            check_intact(log)
            with log.reader(READER) as reader:
                assert reader.position == wanted
        finish(start(path, None))
        with setting.open(path) as log:
            assert contents_of(log) == cleaned

    template, whole = _filled(scratch, setting), scratch / "whole"
    with setting.open(template) as log:
        full = contents_of(log)
    wanted = full.readers[READER].offset
    shutil.copytree(template, whole)
    finish(start(whole, None))
    with setting.open(whole) as log:
        cleaned = contents_of(log)
    kills = kill_everywhere(scratch, start, check, template=template)

    assert cleaned.first_offset == wanted
    assert kills > 0


@pytest.mark.parametrize("setting", SHARED if TORTURE else [Setting(sync="interval")], ids=str)
def test_a_kill_at_any_call_of_a_commit_leaves_the_old_place_or_the_new_one(
    scratch: Path, forks: ForkServer, setting: Setting
) -> None:
    """A reader resumes from its last commit that returned, or from the one under way."""
    step = 4

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(read_and_commit, path, setting, step, point)

    def check(path: Path, reports: list[Report]) -> None:
        committed = [report for report in reports if isinstance(report, int)]
        with setting.open(path) as log:
            last = committed[-1] if committed else full.readers[READER].offset
            with log.reader(READER) as reader:
                resumed = reader.position
                assert last <= resumed <= last + step
                assert list(reader) == full.records[resumed:]
            check_intact(log)

    template = _filled(scratch, setting)
    with setting.open(template) as log:
        full = contents_of(log)
    kills = kill_everywhere(scratch, start, check, template=template)

    assert kills > 0


def test_a_kill_at_any_call_of_a_repair_changes_nothing_about_its_result(
    scratch: Path, forks: ForkServer
) -> None:
    """C7: repaired again after being interrupted, the log is as if it had not been."""
    setting = Setting()  # A repair always syncs.

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(repair, path, setting, point)

    def check(path: Path, _: list[Report]) -> None:
        finish(start(path, None))
        with setting.open(path) as log:
            assert contents_of(log) == repaired

    template, whole = _filled(scratch, setting), scratch / "whole"
    with setting.open(template) as log:
        segments = log.segments()
    flip_bit(segments[1].path, segments[1].path.stat().st_size // 2 + 64)
    overwrite(segments[3].path, b"\xff" * 4096, position=0)
    flip_bit(template / "readers" / f"{READER}.meta", 9)
    shutil.copytree(template, whole)
    finish(start(whole, None))
    with setting.open(whole) as log:
        repaired = contents_of(log)
    kills = kill_everywhere(scratch, start, check, template=template)

    assert repaired.damage == []
    assert list(repaired.readers) == [READER]
    assert kills > 0


def test_a_kill_at_any_call_of_a_waiter_leaves_nothing_behind(
    scratch: Path, forks: ForkServer
) -> None:
    """Whoever publishes next clears away the pipe of a waiter that died."""
    setting = Setting(sync="os")

    def start(path: Path, point: KillPoint | None) -> Child:
        return forks.start(wait_in_vain, path, setting, point)

    def check(path: Path, _: list[Report]) -> None:
        with setting.open(path) as log:
            log.append(b"wakes")
            check_intact(log)
        assert list((path / "wake").glob("*")) == []

    kills = kill_everywhere(scratch, start, check)

    assert kills > 0


def _filled(directory: Path, setting: Setting) -> Path:
    """Return the path of a log of several segments, with a reader at the start of one."""
    path = directory / "template"
    with setting.open(path) as log:
        for number in range(SEGMENTS * CALLS_PER_SEGMENT):
            WRITER.append(log, number)
            if number % CALLS_PER_SEGMENT == CALLS_PER_SEGMENT - 1:
                log.roll()
        wanted = log.segments()[WANTED_SEGMENT].first_offset
        with log.reader(READER) as reader:
            reader.commit(wanted)
    return path
