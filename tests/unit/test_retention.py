"""What `cleanup` and `trim` delete, and what keeps them from it."""

from datetime import timedelta
from pathlib import Path

import pytest

from segue import Log
from segue.errors import InvalidArgument, LogReadOnly, OffsetTrimmed, StorageError
from segue.log.options import SyncName
from segue.testing import FaultyDisk, RecordingDisk
from tests.unit.support import (
    SMALL_SEGMENT_BYTES,
    ManualClock,
    contents,
    fill,
    flip_bit,
    offsets,
    segment_ids,
    segment_path,
    slot_position,
    small_log,
)


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_retention_deletes_only_when_all_readers_advance(directory: Path, sync: SyncName) -> None:
    """Seed 002: a held-back reader blocks deletion; when all have moved on, it happens."""
    with small_log(directory, sync=sync) as log:
        fill(log, 10)
        with log.reader("fast") as fast, log.reader("slow") as slow:
            fast.seek("latest")
            fast.commit()
            held_back = log.cleanup()
            slow.seek(5)
            slow.commit()
            passed_one = log.cleanup()
            slow.seek("latest")
            slow.commit()
            passed_all = log.cleanup()

        assert (held_back, passed_one, passed_all) == ([], [0], [1])
        assert not segment_path(directory, 0).exists()
        assert segment_ids(log) == [2]
        assert offsets(log.records()) == [8, 9]


def test_without_readers_nothing_is_deleted(directory: Path) -> None:
    """Nobody has said yet that he does not need it."""
    with small_log(directory) as log:
        fill(log, 10)
        before = contents(directory)

        assert log.cleanup() == []
        assert contents(directory) == before


@pytest.mark.parametrize(
    ("offset", "deleted"), [(0, []), (3, []), (4, [0]), (7, [0]), (8, [0, 1]), (10, [0, 1])]
)
def test_segments_strictly_below_the_slowest_reader_go(
    directory: Path, offset: int, deleted: list[int]
) -> None:
    """The segment a reader stands in stays, also when it stands at its first record."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("slowest", offset).close()
        log.reader("ahead", "latest").close()

        assert log.cleanup() == deleted
        assert log.cleanup() == []
        with log.reader("slowest") as reader:
            assert offsets(reader) == list(range(offset, 10))


def test_the_active_segment_is_never_deleted(directory: Path) -> None:
    """Whatever readers and limits say, and if it is empty."""
    with small_log(directory) as log:
        fill(log, 8)
        log.roll()
        log.reader("r", "latest").close()
        deleted = log.cleanup(age_max=0, bytes_max=0, lag_max=0)

        assert deleted == [0, 1]
        assert segment_ids(log) == [2]
        assert log.trim(1 << 60) == []
        assert (log.first_offset, log.next_offset) == (8, 8)


def test_readers_ahead_of_the_log_do_not_endanger_the_active_segment(directory: Path) -> None:
    """A position that cannot be, left by a loss or a copy, deletes nothing it should not."""
    with small_log(directory) as log:
        fill(log, 10)
        (directory / "readers").mkdir(mode=0o700)
        (directory / "readers" / "odd.meta").write_bytes(b"\xff" * 16)

        assert log.cleanup() == [0, 1]
        assert segment_ids(log) == [2]


def test_a_reader_that_was_removed_holds_nothing_back(directory: Path) -> None:
    """Nor does the last one leave permission to delete everything."""
    with small_log(directory) as log:
        fill(log, 10)
        log.reader("gone").close()
        log.reader("stays", "latest").close()
        log.remove_reader("gone")

        assert log.cleanup() == [0, 1]
        fill(log, 10)
        log.remove_reader("stays")
        assert log.cleanup() == []


def test_cleanup_sees_readers_of_other_handles(directory: Path) -> None:
    """They are registered on disk, whoever opened them."""
    with small_log(directory) as log, small_log(directory) as other:
        fill(log, 10)
        with other.reader("theirs") as reader:
            assert log.cleanup() == []
            reader.seek("latest")
            reader.commit()
            assert log.cleanup() == [0, 1]


# Limits --------------------------------------------------------------------------------------


def test_old_segments_go_by_age(directory: Path, clock: ManualClock) -> None:
    """Once their last record is older than the limit; equality stays. Readers do not matter."""
    with small_log(directory, clock=clock) as log:
        log.reader("wants-it-all").close()
        for _ in range(3):
            fill(log, 4)
            clock.advance(seconds=10)
        exactly = log.cleanup(age_max=timedelta(seconds=30))
        clock.advance(us=1)

        assert exactly == []
        assert log.cleanup(age_max=30) == [0]
        assert log.cleanup(age_max=0) == [1]
        with pytest.raises(OffsetTrimmed) as raised:
            log.reader("wants-it-all")
        assert (raised.value.earliest, raised.value.latest) == (8, 12)


def test_the_oldest_segments_go_beyond_a_size(directory: Path) -> None:
    """Until the log takes up no more than the limit; equality stays."""
    with small_log(directory) as log:
        fill(log, 14)
        sizes = [segment.size_bytes for segment in log.segments()]

        assert log.cleanup(bytes_max=sum(sizes)) == []
        assert log.cleanup(bytes_max=sum(sizes) - 1) == [0]
        assert log.cleanup(bytes_max=sum(sizes[2:])) == [1]
        assert log.cleanup(bytes_max=0) == [2]
        assert log.size_bytes == sizes[3]


def test_a_reader_too_far_behind_holds_back_no_more_than_the_lag(directory: Path) -> None:
    """Readers within the lag are respected as always."""
    with small_log(directory) as log:
        fill(log, 14)
        log.reader("late", 0).close()
        log.reader("near", 9).close()

        assert log.cleanup() == []
        assert log.cleanup(lag_max=14) == []
        assert log.cleanup(lag_max=11) == []
        assert log.cleanup(lag_max=10) == [0]
        assert log.cleanup(lag_max=5) == [1]
        assert log.cleanup(lag_max=2) == [2]
        with pytest.raises(OffsetTrimmed):
            log.reader("late")


@pytest.mark.parametrize("limit", ["age_max", "bytes_max", "lag_max"])
def test_a_negative_limit_is_refused(directory: Path, limit: str) -> None:
    """It could only be a slip, and it would delete everything."""
    with small_log(directory) as log:
        fill(log, 10)
        with pytest.raises(InvalidArgument):
            log.cleanup(**{limit: -1})  # type: ignore[arg-type]

        assert len(log.segments()) == 3


# Trimming ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "deleted"),
    [(0, []), (3, []), (4, [0]), (8, [0, 1]), (12, [0, 1, 2]), (99, [0, 1, 2])],
)
def test_trimming_deletes_what_ends_before_an_offset(
    directory: Path, offset: int, deleted: list[int]
) -> None:
    """Whole segments only, whatever registered readers still want; the rest stays readable."""
    with small_log(directory) as log:
        fill(log, 14)
        log.reader("unasked").close()

        assert log.trim(offset) == deleted
        assert log.trim(offset) == []
        assert offsets(log.records()) == list(range(4 * len(deleted), 14))
        assert log.first_offset == 4 * len(deleted)
    with small_log(directory) as log:
        assert log.first_offset == 4 * len(deleted)


@pytest.mark.parametrize("how", ["trim", "cleanup"])
def test_what_somebody_has_open_is_not_deleted(directory: Path, how: str) -> None:
    """A segment that is being read stays until it has been read, and so do those after it."""
    with small_log(directory) as log, small_log(directory) as other:
        fill(log, 14)
        log.reader("done", "latest").close()
        records = other.records(5)
        first = next(records)
        deleted = log.trim(99) if how == "trim" else log.cleanup(age_max=0)
        rest = offsets(records)

        assert deleted == [0]
        assert [first.offset, *rest] == list(range(5, 14))
        assert (log.trim(99) if how == "trim" else log.cleanup(age_max=0)) == [1, 2]


def test_an_open_reader_protects_its_segment(directory: Path) -> None:
    """Also one that was opened read-only, which retention cannot see in readers/."""
    with small_log(directory) as log, Log(directory, read_only=True) as other:
        fill(log, 14)
        with other.reader("visitor") as reader:
            reader.read(1)
            while_open = log.trim(99)
            rest = offsets(reader)

        assert while_open == []
        assert rest == list(range(1, 14))
        assert log.trim(99) == [0, 1, 2]


def test_other_handles_learn_what_was_trimmed(directory: Path) -> None:
    """At once: the first offset moves for everybody, and what is gone is gone."""
    with (
        small_log(directory) as log,
        small_log(directory) as other,
        Log(directory, read_only=True) as looker,
    ):
        fill(log, 10)
        for handle in (other, looker):
            assert (handle.first_offset, handle.read(0).payload) == (0, b"record 0")
        log.trim(8)

        for handle in (other, looker):
            assert handle.first_offset == 8
            with pytest.raises(OffsetTrimmed):
                handle.read(0)
            assert offsets(handle.records()) == [8, 9]


def test_columns_outlive_the_segment_they_came_from(directory: Path) -> None:
    """Their bytes stay mapped after the file was deleted."""
    pytest.importorskip("pyarrow")
    with small_log(directory) as log:
        fill(log, 10)
        columns = list(log.columns())
        log.trim(99)

        assert segment_ids(log) == [2]
        assert columns[0].payload.to_pylist() == [b"record %d" % number for number in range(4)]


def test_damage_is_never_deleted_on_doubt(scratch: Path) -> None:
    """A segment whose header cannot be read stays, and what lies behind it."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 14)
        log.reader("r", "latest").close()
        for position in (0, 2048):
            flip_bit(segment_path(directory, 1), position)

        assert log.cleanup() == [0]
        assert log.trim(99) == []
        assert segment_ids(log) == [1, 2, 3]


def test_damaged_records_do_not_stop_retention(scratch: Path) -> None:
    """Their segment is as deletable as any other once everybody has passed it."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 10)
        flip_bit(segment_path(directory, 0), slot_position(1))
        log.reader("r", "latest").close()

        assert log.cleanup() == [0, 1]


def test_a_read_only_log_deletes_nothing(directory: Path) -> None:
    """Retention is a write."""
    with small_log(directory) as log:
        fill(log, 10)
    with Log(directory, read_only=True) as log:
        with pytest.raises(LogReadOnly):
            log.cleanup()
        with pytest.raises(LogReadOnly):
            log.trim(8)


def test_retention_by_age_goes_by_records_not_by_files(directory: Path, clock: ManualClock) -> None:
    """A segment that was begun long ago stays while its last record is young."""
    with Log(
        directory, segment_bytes=SMALL_SEGMENT_BYTES, segment_items=2, sync="os", clock=clock
    ) as log:
        fill(log, 1)
        clock.advance(seconds=100)
        fill(log, 2)

        assert log.cleanup(age_max=50) == []
        assert log.cleanup(age_max=0) == []
        clock.advance(us=1)
        assert log.cleanup(age_max=0) == [0]


# How a segment goes --------------------------------------------------------------------------


def test_a_segment_that_cannot_be_deleted_is_gone_all_the_same(directory: Path) -> None:
    """It was renamed first. The caller is told, and the next deletion clears it away."""
    disk = FaultyDisk()
    with small_log(directory, disk=disk) as log, Log(directory, read_only=True) as other:
        fill(log, 14)
        disk.fail(operation="unlink")
        with pytest.raises(StorageError):
            log.trim(8)

        assert (directory / "000000000.q.deleted").exists()
        assert segment_ids(log) == segment_ids(other) == [1, 2, 3]
        assert log.first_offset == other.first_offset == 4
        assert log.trim(8) == [1]
        assert list(directory.glob("*.deleted")) == []


def test_a_segment_that_cannot_be_renamed_stays(directory: Path) -> None:
    """Nothing has happened to it, and everybody can read it."""
    disk = FaultyDisk()
    with small_log(directory, disk=disk) as log, Log(directory, read_only=True) as other:
        fill(log, 14)
        disk.fail(operation="rename")
        with pytest.raises(StorageError):
            log.trim(8)

        assert offsets(other.records()) == offsets(log.records()) == list(range(14))
        assert log.trim(8) == [0, 1]


def test_a_name_is_gone_for_good_before_the_next_one_goes(directory: Path) -> None:
    """A power cut must not take a later segment and leave an earlier one."""
    disk = RecordingDisk(directory.parent)
    with small_log(directory, disk=disk) as log:
        fill(log, 14)
        before = disk.moment
        log.trim(8)

    changes = [str(event) for event in disk.events[before:] if event.operation != "sync_data"]
    assert changes[changes.index("rename log/000000000.q -> log/000000000.q.deleted") :][:6] == [
        "rename log/000000000.q -> log/000000000.q.deleted",
        "sync_directory log",
        "unlink log/000000000.q.deleted",
        "rename log/000000001.q -> log/000000001.q.deleted",
        "sync_directory log",
        "unlink log/000000001.q.deleted",
    ]


def test_a_reader_at_the_end_of_a_sealed_segment_has_left_it(directory: Path) -> None:
    """Its next record lies in the segment after it, whether there is one yet or not."""
    with small_log(directory) as log:
        log.append(b"a")
        with log.reader("quick") as reader:
            reader.read()
            reader.commit()
        log.roll()

        assert log.cleanup(dry_run=True) == [0]
        assert log.cleanup() == [0]
        with log.reader("quick") as reader:
            assert reader.position == 1
