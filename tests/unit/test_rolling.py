"""When a segment is closed and the next begun, what they are called, and what they inherit."""

from datetime import timedelta
from pathlib import Path

import pytest

from segue import Log
from segue.log.layout import SegmentId, segment_filename, segment_id
from segue.log.options import SyncName
from tests.unit.support import (
    SMALL_PAYLOAD_BYTES,
    SMALL_SEGMENT_BYTES,
    ManualClock,
    fill,
    offsets,
    payloads,
    segment_ids,
    segment_path,
    small_log,
)

modes = pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
syncs = pytest.mark.parametrize("sync", ["always", "interval", "os"])


def counts(log: Log) -> list[int]:
    return [segment.count for segment in log.segments()]


@modes
@syncs
def test_segment_rollover_and_read_across(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """Seed 002: fill a segment, force a roll; both files exist, one reader gets both in order."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        log.append(b"1" * SMALL_PAYLOAD_BYTES)
        with log.reader("across") as reader:
            log.append(b"2" * SMALL_PAYLOAD_BYTES)

            assert segment_path(directory, 0).exists()
            assert segment_path(directory, 1).exists()
            assert payloads(reader) == [b"1" * SMALL_PAYLOAD_BYTES, b"2" * SMALL_PAYLOAD_BYTES]


@modes
def test_a_segment_is_full_when_one_more_byte_would_exceed_it(
    directory: Path, exclusive: bool
) -> None:
    """Equality fits; the next byte goes into the next segment, an empty record still fits."""
    with small_log(directory, segment_items=10, exclusive=exclusive) as log:
        log.append(b"x" * (SMALL_PAYLOAD_BYTES - 10))
        log.append(b"y" * 10)
        log.append(b"")
        exactly_full = counts(log)
        log.append(b"z")

        assert exactly_full == [3]
        assert counts(log) == [3, 1]
        assert [len(record.payload) for record in log.records()] == [4086, 10, 0, 1]


def test_a_batch_rolls_whole(directory: Path) -> None:
    """A batch that fits exactly stays; one byte or one record more and all of it moves on."""
    with small_log(directory, segment_items=4) as log:
        log.append(b"x" * 96)
        log.append_many([b"y" * 2_000, b"z" * 2_000])
        exactly_full = counts(log)
        log.append_many([b"", b"z"])
        log.append_many([b"1", b"2"])
        log.append_many([b"3"])

        assert exactly_full == [3]
        assert counts(log) == [3, 4, 1]


@modes
def test_a_segment_is_full_after_its_items(directory: Path, exclusive: bool) -> None:
    """The last slot is used; one more record rolls."""
    with small_log(directory, segment_items=3, exclusive=exclusive) as log:
        fill(log, 3)
        exactly_full = counts(log)
        fill(log, 1)

        assert exactly_full == [3]
        assert counts(log) == [3, 1]


@pytest.mark.parametrize("append", ["append", "append_many"])
def test_a_segment_is_closed_by_its_age(directory: Path, clock: ManualClock, append: str) -> None:
    """A record that comes exactly at the age limit still fits; a microsecond later one rolls."""
    with Log(
        directory,
        segment_bytes=SMALL_SEGMENT_BYTES,
        segment_age=timedelta(seconds=10),
        sync="os",
        clock=clock,
    ) as log:

        def put() -> None:
            log.append(b"x") if append == "append" else log.append_many([b"x"])

        put()
        clock.advance(seconds=10)
        put()
        exactly_old = counts(log)
        clock.advance(us=1)
        put()

        assert exactly_old == [2]
        assert counts(log) == [2, 1]


def test_an_empty_segment_does_not_age(directory: Path, clock: ManualClock) -> None:
    """Rolling an empty segment would only use up a number."""
    with Log(
        directory, segment_bytes=SMALL_SEGMENT_BYTES, segment_age=1, sync="os", clock=clock
    ) as log:
        clock.advance(seconds=100)
        log.append(b"x")

        assert segment_ids(log) == [0]


def test_rolling_by_hand_closes_what_has_records(directory: Path) -> None:
    """An empty segment is not rolled: the answer is the segment that takes records now."""
    with small_log(directory) as log:
        assert log.roll() == 0
        fill(log, 1)

        assert log.roll() == 1
        assert log.roll() == 1
        assert [(segment.id, segment.count, segment.sealed) for segment in log.segments()] == [
            (0, 1, True),
            (1, 0, False),
        ]


def test_the_segment_list_says_where_records_are(directory: Path, clock: ManualClock) -> None:
    """Ids, first offsets and counts are contiguous; only the last is not sealed."""
    with small_log(directory, clock=clock) as log:
        fill(log, 10)
        segments = log.segments()

        assert [segment.id for segment in segments] == [0, 1, 2]
        assert [segment.first_offset for segment in segments] == [0, 4, 8]
        assert [segment.count for segment in segments] == [4, 4, 2]
        assert [segment.sealed for segment in segments] == [True, True, False]
        assert [segment.path for segment in segments] == [
            segment_path(directory, id_) for id_ in range(3)
        ]
        assert {segment.created_us for segment in segments} == {clock.now_us}
        assert sum(segment.size_bytes for segment in segments) == log.size_bytes


# Names and numbers ---------------------------------------------------------------------------


def test_segments_are_called_by_nine_digits(directory: Path) -> None:
    """Names sort as their ids do; nothing else in the directory ends in .q."""
    with small_log(directory, segment_items=1) as log:
        fill(log, 12)

        names = sorted(path.name for path in directory.glob("*.q"))
        assert names == [f"{id_:09d}.q" for id_ in range(12)]


def test_a_segment_file_is_as_large_as_its_limit(directory: Path) -> None:
    """The size is fixed when a segment is made and never exceeded."""
    with small_log(directory) as log:
        fill(log, 10)

        sizes = {path.stat().st_size for path in directory.glob("*.q")}
        assert sizes == {SMALL_SEGMENT_BYTES}


def test_numbers_and_offsets_are_never_used_again(directory: Path) -> None:
    """Trimming all but the active segment and reopening changes neither."""
    with small_log(directory) as log:
        fill(log, 10)
        log.roll()
        log.trim(10)
        assert segment_ids(log) == [3]
    with small_log(directory) as log:
        assert (segment_ids(log), log.first_offset, log.next_offset) == ([3], 10, 10)
        assert log.append(b"a") == 10
        log.roll()
        log.trim(99)
    with small_log(directory) as log:
        assert log.append(b"b") == 11
        assert segment_ids(log) == [4]
        assert offsets(log.records()) == [11]


def test_opening_again_and_again_makes_no_segments(directory: Path) -> None:
    """A log that is opened and closed without an append stays as it is."""
    for _ in range(5):
        with small_log(directory, sync="always") as log:
            assert segment_ids(log) == [0]
    with small_log(directory) as log:
        fill(log, 5)
    for sync in ("always", "interval", "os"):
        with small_log(directory, sync=sync) as log:
            assert segment_ids(log) == [0, 1]
            assert log.next_offset == 5


def test_numbers_go_on_beyond_nine_digits() -> None:
    """A wider name is a segment's as well, so no log ends at a thousand million of them."""
    assert segment_filename(SegmentId(10**9)) == "1000000000.q"
    assert segment_id("1000000000.q") == 10**9
    assert segment_id("999999999.q") == 10**9 - 1


@pytest.mark.parametrize(
    "name",
    [
        "1.q",
        "0000000001.q",
        "00000000a.q",
        "000000001.q.new",
        "000000001",
        "\u0660" * 8 + "\u0661.q",
        ".q",
    ],
)
def test_other_files_are_no_segments(name: str) -> None:
    """Only the one way to write a number names a segment."""
    assert segment_id(name) is None


# Limits --------------------------------------------------------------------------------------


def sizes_of_new_segments(log: Log) -> tuple[int, int]:
    """Return bytes and items of the segments that are made now."""
    log.append(b"")
    new = log.roll()
    for items in range(1, 1_000):
        log.append(b"")
        if log.segments()[-1].id != new:
            return log.segments()[-1].path.stat().st_size, items - 1
    raise AssertionError("it never rolled")


def test_limits_that_are_not_given_stay_as_the_log_has_them(directory: Path) -> None:
    """A log opened without limits goes on with those it was made with."""
    with Log(directory, segment_bytes=16_384, segment_items=10, sync="os"):
        pass
    with Log(directory, sync="os") as log:
        assert sizes_of_new_segments(log) == (16_384, 10)
    with Log(directory, segment_items=7, sync="os") as log:
        assert sizes_of_new_segments(log) == (16_384, 7)
    with Log(directory, sync="os") as log:
        assert sizes_of_new_segments(log) == (16_384, 7)


def test_items_stay_when_only_the_bytes_change(directory: Path) -> None:
    """What is not given stays: a larger segment does not lift the limit of its items."""
    with Log(directory, segment_bytes=16_384, segment_items=10, sync="os"):
        pass
    with Log(directory, segment_bytes=65_536, sync="os") as log:
        assert sizes_of_new_segments(log) == (65_536, 10)


def test_new_limits_hold_from_the_next_segment_on(directory: Path) -> None:
    """The active segment keeps the limits it was made with."""
    with small_log(directory, segment_items=4) as log:
        fill(log, 1)
    with small_log(directory, segment_items=2) as log:
        fill(log, 7)

        assert counts(log) == [4, 2, 2]


def test_a_record_too_large_for_the_active_segment_goes_to_a_larger_one(directory: Path) -> None:
    """Reopening with larger segments is enough to append larger records."""
    with small_log(directory) as log:
        fill(log, 1)
    with Log(directory, segment_bytes=65_536, sync="os") as log:
        log.append(b"x" * 30_000)

        assert counts(log) == [1, 1]
        assert log.read(1).payload == b"x" * 30_000


@syncs
def test_two_handles_roll_for_each_other(directory: Path, sync: SyncName) -> None:
    """Handles that share a log take turns, and each finds the segment the other began."""
    with small_log(directory, sync=sync) as one, small_log(directory, sync=sync) as two:
        given = [log.append(b"x") for _ in range(7) for log in (one, two)]
        one.roll()
        given += [two.append(b"x"), one.append_many([b"x", b"x"])]

        assert given == list(range(16))
        assert offsets(one.records()) == offsets(two.records()) == list(range(17))
        assert segment_ids(one) == segment_ids(two) == [0, 1, 2, 3, 4]
