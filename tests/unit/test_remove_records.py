"""Removing records: space is freed, offsets stay, nobody who reads is disturbed."""

import errno
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from segue import Log, Record
from segue.errors import LogClosed, LogReadOnly, RecordRemoved, StorageError, StorageFull
from segue.log.options import SyncName
from segue.testing import FaultyDisk
from tests.unit.support import (
    SECOND_HEADER,
    ManualClock,
    contents,
    destroy_header,
    fill,
    flip_bit,
    no_descriptor_left_open,
    offsets,
    payloads,
    segment_ids,
    segment_path,
    slot_position,
    small_log,
)
from tests.waiting import LIMIT_SECONDS


def is_even(record: Record) -> bool:
    return record.offset % 2 == 0


def nothing(_: Record) -> bool:
    return False


def everything(_: Record) -> bool:
    return True


def is_intact(log: Log) -> bool:
    return all(audit.is_intact for audit in log.verify())


def segments_of(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(directory).items() if name.endswith(".q")}


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.suffix in {".new", ".deleted"}]


# What happens --------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_what_is_refused_is_removed_from_sealed_segments(
    directory: Path, sync: SyncName, exclusive: bool
) -> None:
    """Offsets stay taken; the active segment stays as it is; a reopened log says the same."""

    def check(log: Log) -> None:
        assert offsets(log.records(stop=10)) == [0, 2, 4, 6, 8, 9]
        assert (log.first_offset, log.next_offset) == (0, 10)
        for offset in (1, 3, 5, 7):
            with pytest.raises(RecordRemoved) as raised:
                log.read(offset)
            assert raised.value.offset == offset
        assert is_intact(log)

    with small_log(directory, sync=sync, exclusive=exclusive) as log:
        kept = [payload for payload in fill(log, 10) if payload[-1:] in b"02468"] + [b"record 9"]
        active = segment_path(directory, 2).read_bytes()
        report = log.remove_records(is_even)

        assert (report.segments, report.removed_records) == ([0, 1], 4)
        check(log)
        assert payloads(log.records()) == kept
        assert segment_path(directory, 2).read_bytes() == active
        assert leftovers(directory) == []
    with small_log(directory, sync=sync) as log:
        check(log)
        assert log.append(b"next") == 10


def test_times_and_attrs_of_what_is_kept_stay(directory: Path, clock: ManualClock) -> None:
    """Singles and batches, whole or in part; finding a record by its time works as before."""
    with small_log(directory, segment_items=20, clock=clock) as log:
        log.append(b"a", attr=1)
        clock.advance(us=5)
        log.append_many([b"b", b"", b"ccc", b"d"], attrs=[2, 1 << 63, 4, 5])
        clock.advance(us=5)
        log.append(b"", attr=6)
        log.append_many([b"e", b"f"])
        log.roll()
        before = list(log.records())
        log.remove_records(lambda record: record.offset not in {0, 2, 4, 7})

        assert list(log.records()) == [before[offset] for offset in (1, 3, 5, 6)]
        assert [audit.removed for audit in log.verify()] == [4, 0]
        assert [audit.payload_bytes for audit in log.verify()] == [5, 0]
        assert log.segments()[0].count == 8
        assert log._horizon.offset_at(before[3].time_us) == 1


def test_a_whole_segment_can_be_removed(directory: Path) -> None:
    """The log still begins where it did, and reading goes on behind it."""
    with small_log(directory) as log, log.reader("r") as reader:
        fill(log, 10)
        report = log.remove_records(lambda record: record.offset >= 8)

        assert (report.segments, report.removed_records) == ([0, 1], 8)
        assert (log.first_offset, len(log)) == (0, 10)
        assert offsets(reader) == [8, 9]
        assert offsets(log.follow(0, timeout=0)) == [8, 9]
        assert is_intact(log)


def test_space_is_given_back(scratch: Path) -> None:
    """The report says how much, as the file system counts it."""
    with Log(scratch / "log", segment_bytes=1 << 20, sync="os") as log:
        for number in range(300):
            log.append(bytes(8_000), attr=number)
        before = log.size_bytes
        report = log.remove_records(lambda record: record.attr % 10 == 0)

        assert report.freed_bytes == before - log.size_bytes
        assert report.freed_bytes > report.removed_records * 7_000
        assert is_intact(log)


def test_removing_again_changes_nothing(directory: Path) -> None:
    """What is already removed stays so and does not count; `keep` never sees it."""
    with small_log(directory) as log:
        fill(log, 10)
        log.remove_records(is_even)
        before = segments_of(directory)
        seen: list[int] = []

        def keep(record: Record) -> bool:
            seen.append(record.offset)
            return is_even(record)

        report = log.remove_records(keep)

        assert (report.segments, report.removed_records, report.freed_bytes) == ([], 0, 0)
        assert seen == [0, 2, 4, 6]
        assert segments_of(directory) == before
        assert log.remove_records(lambda record: record.offset != 4).segments == [1]
        assert offsets(log.records()) == [0, 2, 6, 8, 9]


def test_a_segment_in_which_all_is_kept_is_not_written_anew(directory: Path) -> None:
    """It stays the same file."""
    with small_log(directory) as log:
        fill(log, 14)
        inodes = [info.path.stat().st_ino for info in log.segments()]
        report = log.remove_records(lambda record: record.offset != 5)

        assert report.segments == [1]
        after = [info.path.stat().st_ino for info in log.segments()]
        assert [old == new for old, new in zip(inodes, after, strict=True)] == [
            True,
            False,
            True,
            True,
        ]


@pytest.mark.parametrize(
    ("stop", "segments"), [(0, []), (3, []), (4, [0]), (7, [0]), (8, [0, 1]), (99, [0, 1, 2])]
)
def test_only_segments_that_end_before_the_stop_are_touched(
    directory: Path, stop: int, segments: list[int]
) -> None:
    """As `trim` counts; records of the others are not even looked at."""
    with small_log(directory) as log:
        fill(log, 14)
        seen: list[int] = []

        def keep(record: Record) -> bool:
            seen.append(record.offset)
            return False

        report = log.remove_records(keep, stop=stop)

        assert report.segments == segments
        assert seen == list(range(4 * len(segments)))
        assert offsets(log.records()) == list(range(4 * len(segments), 14))


def test_nothing_is_removed_from_a_log_of_one_segment(directory: Path) -> None:
    """It is the active one; nor is there anything to do in an empty log."""
    with small_log(directory) as log:
        assert log.remove_records(nothing).segments == []
        fill(log, 3)

        assert log.remove_records(nothing).segments == []
        assert offsets(log.records()) == [0, 1, 2]


def test_a_report_cannot_be_changed(directory: Path) -> None:
    """It says what happened."""
    with small_log(directory) as log:
        report = log.remove_records(nothing)
        with pytest.raises(FrozenInstanceError):
            report.removed_records = 5  # type: ignore[misc]


def test_large_stretches_and_batches_are_kept_whole(scratch: Path) -> None:
    """Also where a batch is larger than what is held in memory otherwise."""
    with Log(scratch / "log", segment_bytes=64 << 20, segment_items=20_000, sync="os") as log:
        log.append_many([b"%d" % number for number in range(9_000)])
        for number in range(100):
            log.append(bytes([number]) * 100_000)
        log.append_many([bytes([number]) * 1_000_000 for number in range(12)])
        log.append(b"last")
        log.roll()
        before = list(log.records())
        report = log.remove_records(lambda record: record.offset % 3 != 1)

        assert report.segments == [0]
        assert list(log.records()) == [record for record in before if record.offset % 3 != 1]
        assert is_intact(log)
        flip_bit(segment_path(scratch / "log", 0), slot_position(9_005))
        audit = next(iter(log.verify()))
        assert [(lost.first_offset, lost.last_offset) for lost in audit.damaged] == [(9_005, 9_005)]


def test_columns_leave_out_what_was_removed(directory: Path) -> None:
    """They never see more than `records` does."""
    pytest.importorskip("pyarrow")
    with small_log(directory) as log:
        fill(log, 10)
        log.remove_records(lambda record: record.offset in {2, 3})
        columns = list(log.columns())

        found = [offset for column in columns for offset in column.offset.tolist()]
        assert found == [2, 3, 8, 9]
        assert [value.as_py() for column in columns for value in column.payload] == [
            b"record 2",
            b"record 3",
            b"record 8",
            b"record 9",
        ]


# Who is reading ------------------------------------------------------------------------------


def test_readers_in_flight_go_on_undisturbed(directory: Path) -> None:
    """In the file they have mapped; whoever comes later reads the new one."""
    with small_log(directory) as log, log.reader("r") as reader:
        fill(log, 10)
        records = log.records()
        first = next(records)
        assert offsets(reader.read(2)) == [0, 1]
        column = next(log.columns())
        log.remove_records(nothing)

        assert [value.as_py() for value in column.payload] == [
            b"record %d" % number for number in range(4)
        ]
        # A fetch of `records` and the segment that the reader has open are of before.
        assert [first.offset, *offsets(records)][:4] == [0, 1, 2, 3]
        assert offsets(reader) == [2, 3, 8, 9]
        assert offsets(log.records()) == [8, 9]


def test_the_same_handle_sees_it_at_once(directory: Path) -> None:
    """Also where it has read the record by its offset before."""
    with small_log(directory) as log:
        fill(log, 10)
        assert log.read(1).payload == b"record 1"
        log.remove_records(is_even)

        with pytest.raises(RecordRemoved):
            log.read(1)
        assert log.read(2).payload == b"record 2"


@pytest.mark.parametrize("read_only", [False, True])
def test_other_handles_see_it_at_once(directory: Path, read_only: bool) -> None:
    """Also those that have the segment mapped for reading by offset."""
    with (
        small_log(directory) as log,
        Log(directory, read_only=read_only, sync="os", create=False) as other,
    ):
        fill(log, 10)
        assert other.read(1).payload == b"record 1"
        assert other.bytes_from(0) == 80
        log.remove_records(is_even)

        with pytest.raises(RecordRemoved):
            other.read(1)
        assert offsets(other.records()) == [0, 2, 4, 6, 8, 9]
        assert other.bytes_from(0) == 48
        assert other.append(b"next") == 10 if not read_only else other.next_offset == 10


def _remove_odd(path: Path) -> None:
    with Log(path, sync="os") as log:
        report = log.remove_records(is_even)
    os._exit(report.removed_records)


def test_another_process_may_remove(directory: Path) -> None:
    """This one sees it, with the segment mapped or not."""
    with small_log(directory) as log:
        fill(log, 10)
        log.read(1)
        child = multiprocessing.get_context("spawn").Process(target=_remove_odd, args=(directory,))
        child.start()
        child.join(LIMIT_SECONDS)

        assert child.exitcode == 4
        with pytest.raises(RecordRemoved):
            log.read(1)
        assert offsets(log.records()) == [0, 2, 4, 6, 8, 9]
        assert log.append(b"next") == 10


def test_a_killed_removal_costs_other_handles_no_truth(directory: Path) -> None:
    """While the word says that a file is being replaced, no mapping is believed."""
    from segue.log.live import REWRITES

    with small_log(directory) as log, Log(directory, read_only=True) as other:
        fill(log, 10)
        other.read(1)
        word = log.writer.live.words[REWRITES]
        log.remove_records(is_even, stop=4)
        log.writer.live.words[REWRITES] = word + 1  # Whoever was at it died after the rename.
        with pytest.raises(RecordRemoved):
            other.read(1)
        assert other.read(5).payload == b"record 5"
        log.remove_records(is_even)

        assert log.writer.live.words[REWRITES] % 2 == 0
        with pytest.raises(RecordRemoved):
            other.read(5)


def test_appending_goes_on_meanwhile(directory: Path) -> None:
    """While records are judged nothing is locked: `keep` itself may append and read."""
    with small_log(directory) as log:
        fill(log, 10)

        def keep(record: Record) -> bool:
            log.append(b"during %d" % record.offset)
            return log.read(record.offset).offset != 2

        report = log.remove_records(keep, stop=8)

        assert report.removed_records == 1
        assert len(list(log.records())) == 17
        assert is_intact(log)


# At the same time as others ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["trim", "remove", "repair"])
def test_a_segment_that_others_changed_meanwhile_is_left_to_them(directory: Path, how: str) -> None:
    """Between reading and the swap: deleted, compacted or repaired, that is what stands."""
    with small_log(directory) as log, small_log(directory) as other:
        fill(log, 10)

        def damage_and_repair() -> object:
            flip_bit(segment_path(directory, 0), SECOND_HEADER + 10)
            return other.repair()

        acts: dict[str, Callable[[], object]] = {
            "trim": lambda: other.trim(4),
            "remove": lambda: other.remove_records(lambda record: record.offset != 0, stop=4),
            "repair": damage_and_repair,
        }

        def keep(record: Record) -> bool:
            if record.offset == 3:
                acts[how]()
            return record.offset != 1

        report = log.remove_records(keep, stop=4)

        assert (report.segments, report.removed_records, report.freed_bytes) == ([], 0, 0)
        expected = {"trim": [], "remove": [1, 2, 3], "repair": [0, 1, 2, 3]}
        assert offsets(log.records(log.first_offset, stop=4)) == expected[how]
        assert leftovers(directory) == []
        assert is_intact(log)


def test_two_threads_may_remove_at_once(scratch: Path) -> None:
    """Each segment is changed by one of them; a second run removes what is left of the other."""
    with small_log(scratch / "log") as log, small_log(scratch / "log") as other:
        fill(log, 200)
        go = threading.Barrier(2)

        def remove(handle: Log, rest: int) -> None:
            go.wait()
            for _ in range(3):
                handle.remove_records(lambda record: record.offset % 3 != rest)

        threads = [
            threading.Thread(target=remove, args=(handle, rest))
            for handle, rest in ((log, 0), (other, 1))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.remove_records(lambda record: record.offset % 3 == 2)

        active = log.segments()[-1].first_offset
        assert active is not None
        assert offsets(log.records(stop=active)) == list(range(2, active, 3))
        assert leftovers(scratch / "log") == []
        assert is_intact(log)


# Damage and failures -------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["slot", "payload", "header copy", "header", "name"])
def test_a_damaged_segment_is_left_alone(
    scratch: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """With a warning: a new file would hide the damage. The others are done all the same."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 14)
        path = segment_path(directory, 1)
        acts: dict[str, Callable[[], object]] = {
            "slot": lambda: flip_bit(path, slot_position(2)),
            "payload": lambda: flip_bit(path, 8192 + 3),
            "header copy": lambda: flip_bit(path, SECOND_HEADER + 10),
            "header": lambda: destroy_header(path),
            "name": lambda: path.write_bytes(segment_path(directory, 0).read_bytes()),
        }
        acts[where]()
        before = path.read_bytes()
        with caplog.at_level(logging.WARNING):
            report = log.remove_records(nothing)

        assert report.segments == [0, 2]
        assert path.read_bytes() == before
        assert [record.message for record in caplog.records if path.name in record.message]
        if where != "header copy":
            assert not is_intact(log)


def test_a_repaired_segment_can_be_compacted(directory: Path) -> None:
    """Records that a repair removed stay removed."""
    with small_log(directory) as log:
        fill(log, 10)
        flip_bit(segment_path(directory, 0), slot_position(1))
        log.repair()

        assert log.remove_records(lambda record: record.offset != 3).removed_records == 1
        assert offsets(log.records()) == [0, 2, 4, 5, 6, 7, 8, 9]


def test_a_segment_that_vanished_is_passed_over(scratch: Path) -> None:
    """Somebody deleted it; that is his business and `verify`'s."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 14)

        def keep(record: Record) -> bool:
            segment_path(directory, 1).unlink(missing_ok=True)
            return False

        assert log.remove_records(keep).segments == [0, 2]


def test_an_error_of_the_callers_stops_it(directory: Path) -> None:
    """What was done before stays done, and the segment it came up in is untouched."""
    with small_log(directory) as log:
        fill(log, 14)

        def keep(record: Record) -> bool:
            if record.offset == 6:
                raise ZeroDivisionError
            return False

        with no_descriptor_left_open(), pytest.raises(ZeroDivisionError):
            log.remove_records(keep)

        assert offsets(log.records()) == list(range(4, 14))
        assert leftovers(directory) == []


@pytest.mark.parametrize(
    "operation", ["write_at", "resize", "sync_data", "rename", "open_to_write"]
)
def test_a_full_disk_leaves_the_segment_as_it_was(directory: Path, operation: str) -> None:
    """Nothing is left behind, and the next try does it."""
    disk = FaultyDisk()
    with small_log(directory, disk=disk) as log:
        fill(log, 10)
        before = segments_of(directory)
        disk.fail(operation=operation, error=errno.ENOSPC)  # type: ignore[arg-type]
        with no_descriptor_left_open(), pytest.raises(StorageFull):
            log.remove_records(is_even)

        assert segments_of(directory) == before
        assert leftovers(directory) == []
        assert log.append(b"next") == 10
        assert log.remove_records(is_even).segments == [0, 1]


def test_what_a_failed_directory_sync_leaves_is_the_new_segment(directory: Path) -> None:
    """It has its name already; the caller is told that it may not last."""
    disk = FaultyDisk()
    with small_log(directory, disk=disk, sync="always") as log:
        fill(log, 10)
        log.flush()
        disk.fail(operation="sync_directory", call=2)
        with pytest.raises(StorageError, match="rewriting"):
            log.remove_records(is_even)

        assert offsets(log.records()) == [0, 2, 4, 5, 6, 7, 8, 9]
        assert leftovers(directory) == []
        assert log.remove_records(is_even).segments == [1]


def test_who_may_only_read_may_not_remove(directory: Path) -> None:
    """Nor who has closed the log."""
    with small_log(directory) as log:
        fill(log, 10)
        with Log(directory, read_only=True) as other, pytest.raises(LogReadOnly):
            other.remove_records(nothing)
    with pytest.raises(LogClosed):
        log.remove_records(nothing)
    with small_log(directory) as log:
        assert segment_ids(log) == [0, 1, 2]
        assert log.remove_records(everything).segments == []


def test_opening_clears_what_a_killed_removal_left(directory: Path) -> None:
    """Under whatever number it was written; other files are nobody's business."""
    with small_log(directory) as log:
        fill(log, 10)
    (directory / "000000001.q.0123456789abcdef.new").write_bytes(b"half a segment")
    (directory / "000000000.q.deleted").write_bytes(b"a whole one")
    (directory / "000000001.q.mine.new").write_bytes(b"of somebody else")
    with Log(directory, read_only=True) as log:
        assert offsets(log.records()) == list(range(10))
        assert segment_ids(log) == [0, 1, 2]
    assert len(leftovers(directory)) == 3
    small_log(directory).close()

    assert leftovers(directory) == ["000000001.q.mine.new"]
