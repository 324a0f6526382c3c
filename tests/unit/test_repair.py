"""Repair: damage is set aside, offsets stay, the rest reads on."""

import contextlib
from pathlib import Path

import pytest

from segue import Log
from segue.errors import CorruptPosition, CorruptRecord, RecordRemoved, UnsupportedFormat
from tests.unit.support import (
    SECOND_HEADER,
    contents,
    destroy_header,
    fill,
    flip_bit,
    offsets,
    payloads,
    segment_ids,
    segment_path,
    slot_position,
    small_log,
)
from tests.unit.test_opening import write_newer_version

TEN = [b"record 0", b"record 1", b"batch 2", b"batch 3", *(b"record %d" % n for n in range(4, 8))]
TEN += [b"batch 8", b"batch 9"]


@pytest.fixture
def directory(scratch: Path) -> Path:
    """A log of ten records over three segments, batches among them; closed, to be damaged."""
    directory = scratch / "log"
    with small_log(directory, segment_items=4) as log:
        fill(log, 2)
        log.append_many(TEN[2:4])
        fill(log, 4, first=4)
        log.append_many(TEN[8:])
    return directory


def is_intact(log: Log) -> bool:
    return all(audit.is_intact for audit in log.verify())


def expect_only(log: Log, kept: list[int]) -> None:
    """Check that exactly `kept` can be read, the others of the ten being removed."""
    assert is_intact(log)
    assert offsets(log.records(stop=10)) == kept
    assert payloads(log.records(stop=10)) == [TEN[offset] for offset in kept]
    for offset in range(10):
        if offset in kept:
            assert log.read(offset).payload == TEN[offset]
        else:
            with pytest.raises(RecordRemoved) as raised:
                log.read(offset)
            assert raised.value.offset == offset


def test_a_log_without_damage_is_left_as_it_is(directory: Path) -> None:
    """The report says that nothing was done, and the records say so, too."""
    with small_log(directory) as log:
        report = log.repair()

        assert not report.changed
        assert (report.segments, report.readers, report.quarantined) == ([], [], [])
        assert report.removed_records == 0
        expect_only(log, list(range(10)))
    assert not (directory / "quarantine").exists()


@pytest.mark.parametrize(
    ("id_", "slot", "removed"), [(0, 0, [0]), (0, 2, [2, 3]), (1, 1, [5]), (2, 0, [8, 9])]
)
@pytest.mark.parametrize("reopen", [False, True], ids=["same handle", "reopened"])
def test_a_damaged_batch_is_removed(
    directory: Path, id_: int, slot: int, removed: list[int], reopen: bool
) -> None:
    """In a sealed segment and in the active one; its offsets stay taken, its neighbours stay."""
    damaged = segment_path(directory, id_)
    flip_bit(damaged, slot_position(slot) + 1)
    with small_log(directory) as log:
        before = damaged.read_bytes()
        report = log.repair()
        assert report.changed
        assert report.segments == [id_]
        assert report.removed_records == len(removed)
        (copy,) = report.quarantined
        assert copy.parent == directory / "quarantine"
        if id_ < 2:
            assert copy.read_bytes().rstrip(b"\0") == before.rstrip(b"\0")
        if not reopen:
            expect_only(log, [offset for offset in range(10) if offset not in removed])
            assert log.append(b"next") == 10
    if reopen:
        with small_log(directory) as log:
            expect_only(log, [offset for offset in range(10) if offset not in removed])
            assert not log.repair().changed
            assert log.append(b"next") == 10


def test_damage_that_appears_in_the_active_segment_is_removed(scratch: Path) -> None:
    """While the log is open; it goes on in a new segment."""
    directory = scratch / "open"
    with small_log(directory, segment_items=20) as log:
        fill(log, 5)
        flip_bit(segment_path(directory, 0), slot_position(2))
        report = log.repair()

        assert (report.segments, report.removed_records) == ([0], 1)
        assert is_intact(log)
        assert log.append(b"next") == 5
        assert offsets(log.records()) == [0, 1, 3, 4, 5]


def test_several_damages_are_removed_at_once(directory: Path) -> None:
    """In one segment and in several; repairing again does nothing."""
    flip_bit(segment_path(directory, 0), slot_position(0))
    flip_bit(segment_path(directory, 0), slot_position(3))
    flip_bit(segment_path(directory, 1), slot_position(3))
    with small_log(directory) as log:
        report = log.repair()

        assert (report.segments, report.removed_records) == ([0, 1], 4)
        expect_only(log, [1, 4, 5, 6, 8, 9])
        before = contents(directory)
        assert not log.repair().changed
        assert {name: before[name] for name in before if name[0] == "0"}.items() <= contents(
            directory
        ).items()


@pytest.mark.parametrize("copy", [0, SECOND_HEADER])
def test_a_damaged_copy_of_a_header_is_written_anew(directory: Path, copy: int) -> None:
    """No record is lost by it."""
    flip_bit(segment_path(directory, 1), copy + 10)
    with small_log(directory) as log:
        report = log.repair()

        assert (report.segments, report.removed_records) == ([1], 0)
        expect_only(log, list(range(10)))


@pytest.mark.parametrize("copy", [0, SECOND_HEADER])
def test_a_damaged_copy_in_an_empty_active_segment_is_written_anew(
    directory: Path, copy: int
) -> None:
    """The segment that takes records is repaired like any other."""
    with small_log(directory) as log:
        log.roll()
        flip_bit(segment_path(directory, 3), copy + 10)
        assert not is_intact(log)
        log.repair()

        assert is_intact(log)
        assert log.append(b"next") == 10
    with small_log(directory) as log:
        assert is_intact(log)
        assert log.read(10).payload == b"next"


@pytest.mark.parametrize("how", ["destroyed", "missing"])
@pytest.mark.parametrize("reopen", [False, True], ids=["same handle", "reopened"])
def test_a_lost_segment_becomes_removed_records(directory: Path, how: str, reopen: bool) -> None:
    """What was in the middle is filled in, so that reading goes on past it."""
    path = segment_path(directory, 1)
    if how == "destroyed":
        destroy_header(path)
    else:
        path.unlink()
    with small_log(directory) as log:
        report = log.repair()
        assert report.changed
        assert 1 in report.segments
        assert report.removed_records == 4
        assert len(report.quarantined) == (1 if how == "destroyed" else 0)
        if not reopen:
            expect_only(log, [0, 1, 2, 3, 8, 9])
    if reopen:
        with small_log(directory) as log:
            expect_only(log, [0, 1, 2, 3, 8, 9])
            assert not log.repair().changed


def test_a_gap_in_front_of_the_active_segment_is_filled(directory: Path) -> None:
    """Also when nothing after it has to be written anew."""
    with small_log(directory) as log:
        log.roll()
    segment_path(directory, 2).unlink()
    with small_log(directory) as log:
        report = log.repair()

        assert report.changed
        assert report.segments == [2]
        expect_only(log, [0, 1, 2, 3, 4, 5, 6, 7])
        assert log.append(b"next") == 10


def test_several_lost_segments_in_a_row_are_filled(scratch: Path) -> None:
    """One segment of removed records takes the place of all of them."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 22)
    segment_path(directory, 1).unlink()
    segment_path(directory, 2).unlink()
    with small_log(directory) as log:
        assert log.repair().removed_records == 8
    with small_log(directory) as log:
        assert is_intact(log)
        assert offsets(log.records()) == [0, 1, 2, 3, *range(12, 22)]


@pytest.mark.parametrize("how", ["destroyed", "missing"])
def test_a_lost_first_segment_is_trimmed(directory: Path, how: str) -> None:
    """Nothing says how far back it went, so the log begins later."""
    path = segment_path(directory, 0)
    if how == "destroyed":
        destroy_header(path)
    else:
        path.unlink()
    with small_log(directory) as log:
        log.repair()

        assert is_intact(log)
        assert log.first_offset == 4
        assert offsets(log.records()) == [4, 5, 6, 7, 8, 9]


def test_a_damaged_reader_starts_over(directory: Path) -> None:
    """From the earliest record: reading twice is allowed, skipping is not."""
    with small_log(directory) as log:
        log.reader("fine", 6).close()
        log.reader("damaged", 6).close()
        flip_bit(directory / "readers" / "damaged.meta", 9)
        with pytest.raises(CorruptPosition):
            log.reader("damaged")
        report = log.repair()

        assert (report.changed, report.readers, report.segments) == (True, ["damaged"], [])
        assert len(report.quarantined) == 1
        assert {name: saved.offset for name, saved in log.readers().items()} == {
            "damaged": 0,
            "fine": 6,
        }
        with log.reader("damaged") as reader:
            assert len(list(reader)) == 10


def test_readers_go_on_past_what_was_removed(directory: Path) -> None:
    """The records after it come next, at their own offsets."""
    flip_bit(segment_path(directory, 0), slot_position(2))
    with small_log(directory) as log, log.reader("r") as reader:
        assert offsets(reader.read()) == [0, 1]
        with pytest.raises(CorruptRecord):
            reader.read()
        log.repair()

        assert offsets(reader) == [4, 5, 6, 7, 8, 9]
        assert reader.skipped == 0


def test_other_handles_see_a_repair(directory: Path) -> None:
    """A handle that has met the damage reads the repaired segment at its next try."""
    flip_bit(segment_path(directory, 0), slot_position(1))
    with small_log(directory) as log, Log(directory, read_only=True) as other:
        with pytest.raises(CorruptRecord):
            other.read(1)
        assert other.read(0).payload == TEN[0]
        log.repair()

        with pytest.raises(RecordRemoved):
            other.read(1)
        assert offsets(other.records()) == [0, *range(2, 10)]


def test_a_repair_destroys_no_intact_record(directory: Path) -> None:
    """Files that changed places are put right or left alone; no record is written over."""
    segment_path(directory, 0).rename(directory / "swap")
    segment_path(directory, 1).rename(segment_path(directory, 0))
    (directory / "swap").rename(segment_path(directory, 1))
    with small_log(directory) as log:
        log.repair()

    everything = b"".join(contents(directory).values())
    assert [payload for payload in TEN if payload not in everything] == []


def test_a_repair_leaves_segments_of_a_newer_format_alone(directory: Path) -> None:
    """They are no damage: another version of Segue can read them."""
    with small_log(directory) as log:
        write_newer_version(segment_path(directory, 1))
        before = segment_path(directory, 1).read_bytes()
        with contextlib.suppress(UnsupportedFormat):
            log.repair()

        assert segment_path(directory, 1).read_bytes() == before


def test_a_repair_never_takes_the_active_segment_away(directory: Path) -> None:
    """What is appended afterwards is found again, whatever happened to its header."""
    with small_log(directory) as log:
        log.roll()
        destroy_header(segment_path(directory, 3))
        log.repair()
        assert log.append(b"next") == 10
        assert log.read(10).payload == b"next"
    with small_log(directory) as log:
        assert log.read(10).payload == b"next"
        assert segment_ids(log)[:3] == [0, 1, 2]


def test_a_repair_keeps_times_and_attrs(scratch: Path) -> None:
    """Of the records it keeps, single and batch; times never run backwards."""
    directory = scratch / "log"
    with small_log(directory, segment_items=20) as log:
        log.append(b"a", attr=1)
        log.append_many([b"b", b"", b"c"], attrs=[2, 3, 4])
        log.append(b"d", attr=5)
        log.append_many([b"e", b"f"])
        before = list(log.records())
        flip_bit(segment_path(directory, 0), slot_position(4))
        log.repair()

        assert list(log.records()) == before[:4] + before[5:]
        flip_bit(segment_path(directory, 0), slot_position(0))
        log.repair()
        assert list(log.records()) == before[1:4] + before[5:]
