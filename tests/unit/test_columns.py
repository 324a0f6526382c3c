"""Columns are the same records, however they were appended and wherever they lie."""

from pathlib import Path

import pytest

from segue import Log
from segue.errors import CorruptRecord, InvalidArgument, OffsetTrimmed
from tests.unit.support import (
    SMALL_SEGMENT_BYTES,
    ManualClock,
    fill,
    flip_bit,
    moment,
    segment_path,
    slot_position,
    small_log,
)

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

Row = tuple[int, int, int, bytes]


def rows_of_columns(log: Log, start: int | None = None, stop: int | None = None) -> list[Row]:
    rows: list[Row] = []
    for columns in log.columns("earliest" if start is None else start, stop=stop):
        assert 0 < len(columns) == len(columns.payload) == len(columns.attr)
        rows += zip(
            columns.offset.tolist(),
            columns.time_us.tolist(),
            columns.attr.tolist(),
            columns.payload.to_pylist(),
            strict=True,
        )
    return rows


def rows_of_records(log: Log, start: int | None = None, stop: int | None = None) -> list[Row]:
    records = log.records("earliest" if start is None else start, stop=stop)
    return [(r.offset, r.time_us, r.attr, r.payload) for r in records]


def write_a_mixture(log: Log, clock: ManualClock) -> None:
    """Singles and batches, with and without attrs and bytes, over several segments."""
    for number in range(6):
        clock.advance(us=number)
        log.append(b"single %d" % number, attr=number)
        log.append(b"")
        log.append_many([b"", b"batch", b"x" * number], attrs=[(1 << 64) - 1, 0, 1 << 63])
        log.append_many([b"", b""])


@pytest.mark.parametrize("segment_items", [7, 50])
@pytest.mark.parametrize("roll", [False, True])
def test_columns_equal_records(
    directory: Path, clock: ManualClock, segment_items: int, roll: bool
) -> None:
    """In sealed segments and in the active one."""
    with small_log(directory, clock=clock, segment_items=segment_items) as log:
        write_a_mixture(log, clock)
        if roll:
            log.roll()

        assert rows_of_columns(log) == rows_of_records(log)
        assert len(rows_of_columns(log)) == 42
    with Log(directory, read_only=True) as log:
        assert rows_of_columns(log) == rows_of_records(log)


def test_columns_begin_and_stop_anywhere(directory: Path, clock: ManualClock) -> None:
    """Inside a segment and inside a batch, as records do."""
    with small_log(directory, clock=clock, segment_items=9) as log:
        write_a_mixture(log, clock)
        for start in range(0, 43, 5):
            for stop in (None, 0, 1, 8, 9, 10, 17, 41, 42, 99):
                assert rows_of_columns(log, start, stop) == rows_of_records(log, start, stop)


def test_columns_begin_at_any_start(directory: Path) -> None:
    """At either end and at a time; an offset that is not there is an error at once."""
    clock = ManualClock(1_000)
    with small_log(directory, clock=clock) as log:
        for number in range(10):
            log.append(b"%d" % number)
            clock.advance(us=100)
        log.trim(4)

        assert sum(len(columns) for columns in log.columns()) == 6
        assert sum(len(columns) for columns in log.columns("latest")) == 0
        assert sum(len(columns) for columns in log.columns(moment(1_700))) == 3
        with pytest.raises(OffsetTrimmed):
            log.columns(3)
        with pytest.raises(InvalidArgument):
            log.columns("resume")


@pytest.mark.parametrize("payload", [b"", b"x"])
def test_segments_of_one_record_are_columns(directory: Path, payload: bytes) -> None:
    """Also if that record has no bytes."""
    with small_log(directory, segment_items=1) as log:
        for _ in range(3):
            log.append(payload)

        assert rows_of_columns(log) == rows_of_records(log)


def test_an_empty_log_has_no_columns(directory: Path) -> None:
    """Not even empty ones."""
    with small_log(directory) as log:
        assert list(log.columns()) == []


def test_columns_see_what_was_appended_meanwhile(directory: Path) -> None:
    """As far as it is there when they get there."""
    with small_log(directory) as log:
        fill(log, 3)
        stretches = log.columns()
        first = next(stretches)
        fill(log, 7, first=3)

        assert first.payload.to_pylist() == [b"record 0", b"record 1", b"record 2"]
        assert sum(len(columns) for columns in stretches) == 7


def test_removed_records_are_in_no_column(scratch: Path, clock: ManualClock) -> None:
    """After a repair the rest lines up as before."""
    directory = scratch / "log"
    with small_log(directory, clock=clock, segment_items=50) as log:
        write_a_mixture(log, clock)
        before = rows_of_records(log)
        flip_bit(segment_path(directory, 0), slot_position(10))
        log.repair()

        assert rows_of_columns(log) == rows_of_records(log)
        assert rows_of_columns(log) == [row for row in before if row[0] not in (9, 10, 11)]


def test_a_segment_of_removed_records_has_no_columns(scratch: Path) -> None:
    """A gap that was filled in yields nothing, not an empty stretch."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 12)
        segment_path(directory, 1).unlink()
        log.repair()
    with small_log(directory) as log:
        assert [columns.offset.tolist() for columns in log.columns()] == [
            [0, 1, 2, 3],
            [8, 9, 10, 11],
        ]


def test_damage_is_never_in_a_column(scratch: Path) -> None:
    """What comes before it is yielded, then the error names it."""
    directory = scratch / "log"
    with small_log(directory, segment_items=20) as log:
        fill(log, 10)
        flip_bit(segment_path(directory, 0), slot_position(6))
        stretches = log.columns()

        assert next(stretches).offset.tolist() == [0, 1, 2, 3, 4, 5]
        with pytest.raises(CorruptRecord) as raised:
            next(stretches)
        assert (raised.value.first_offset, raised.value.last_offset) == (6, 6)


def test_columns_become_an_arrow_batch(directory: Path) -> None:
    """Offset, time in UTC, attr and payload."""
    clock = ManualClock(1_500_000_000_123_456)
    with small_log(directory, clock=clock) as log:
        log.append(b"x", attr=5)
        (columns,) = log.columns()
        batch = columns.to_arrow()
        batch.validate(full=True)

        assert batch.schema.names == ["offset", "time", "attr", "payload"]
        assert batch.to_pylist() == [
            {"offset": 0, "time": moment(clock.now_us), "attr": 5, "payload": b"x"}
        ]


def test_columns_stay_valid_after_closing(directory: Path) -> None:
    """They keep what they point to, and let go of it when they go."""
    with Log(directory, segment_bytes=SMALL_SEGMENT_BYTES, sync="os") as log:
        written = fill(log, 10)
        columns = list(log.columns())

    assert [item for stretch in columns for item in stretch.payload.to_pylist()] == written
    for stretch in columns:
        stretch.payload.validate(full=True)
