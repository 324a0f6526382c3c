"""Appending what belongs together as one batch, whatever its size."""

import errno
import io
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from segue import Log
from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    RecordTooLarge,
    StorageFull,
)
from segue.log.disk import Disk
from segue.log.layout import (
    BATCH_ITEMS_MAX,
    SEGMENT_BYTES_MAX,
    Limits,
    Offset,
    SegmentHeader,
    SegmentId,
    damaged_copies,
    decode_header,
)
from segue.log.options import SyncName
from segue.log.payloads import Payload
from segue.log.sealed import read_sealed
from segue.testing import FaultyDisk
from tests.unit.support import (
    SMALL_PAYLOAD_BYTES,
    SMALL_SEGMENT_BYTES,
    ManualClock,
    RestartedMachine,
    fill,
    flip_bit,
    payloads,
    segment_path,
    small_log,
)

modes = pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
syncs = pytest.mark.parametrize("sync", ["always", "interval", "os"])

USUAL = (4, SMALL_SEGMENT_BYTES)


def put_whole(
    log: Log, lengths: Sequence[int], data: Payload, attrs: Sequence[int] | None = None
) -> int:
    """Append in a turn of its own, and have it synced and shown."""
    writer = log.writer
    with writer.mutex:
        try:
            writer.begin()
            offset = writer.put_whole(lengths, data, [0] * len(lengths) if attrs is None else attrs)
        finally:
            writer.end(wrote=True)
    writer.sync(offset + len(lengths))
    log.flush()  # With sync "always" nobody else shows what was put in a turn.
    return offset


def put_each(log: Log, batch: list[bytes]) -> int:
    return put_whole(log, [len(payload) for payload in batch], b"".join(batch))


def limits(log: Log) -> list[tuple[int, int]]:
    return [(segment.items_max, segment.bytes_max) for segment in log.segments()]


def counts(log: Log) -> list[int]:
    return [segment.count for segment in log.segments()]


@modes
@syncs
def test_a_batch_goes_where_there_is_room(directory: Path, exclusive: bool, sync: SyncName) -> None:
    """In the active segment, else in a new one like it, else in one made to measure."""
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        fits, next_one = [b"a", b"", b"c"], [b"d", b"e"]
        many, large = [b"%d" % number for number in range(300)], [b"x" * 5_000, b"y"]
        given = [put_each(log, batch) for batch in (fits, next_one, many, large)]
        given.append(log.append(b"last"))

        assert given == [0, 3, 5, 305, 307]
        assert payloads(log.records()) == [*fits, *next_one, *many, *large, b"last"]
        assert counts(log) == [3, 2, 300, 2, 1]
        assert limits(log) == [USUAL, USUAL, (300, 17_174), (2, 13_193), USUAL]
        assert all(
            path.stat().st_size == info.bytes_max for info in log.segments() for path in [info.path]
        )


@modes
@syncs
def test_limits_hold_again_after_a_batch_made_to_measure(
    directory: Path, exclusive: bool, sync: SyncName
) -> None:
    """Also in a log that is opened anew without any, and also after several of them in a row."""
    batch = [b"z" * 3_000] * 10
    with small_log(directory, exclusive=exclusive, sync=sync) as log:
        put_each(log, batch)
    with Log(directory, exclusive=exclusive, sync=sync) as log:
        assert log.writer.payload_bytes_max == SMALL_PAYLOAD_BYTES
        assert log.writer.batch_items_max == 4
        put_each(log, batch)
        put_each(log, batch)
    with Log(directory, exclusive=exclusive, sync=sync, disk=RestartedMachine()) as log:
        with pytest.raises(RecordTooLarge):
            log.append(b"x" * (SMALL_PAYLOAD_BYTES + 1))
        with pytest.raises(BatchTooLarge):
            log.append_many([b""] * 5)
        log.append(b"x" * SMALL_PAYLOAD_BYTES)

        assert counts(log) == [0, 10, 10, 10, 1]
        assert limits(log)[-1] == USUAL
        assert limits(log)[1:4] == [(10, 38_192)] * 3


def test_the_next_segment_has_usual_limits_wherever_it_is_made(directory: Path) -> None:
    """By rolling, by another handle, by a recovery; new limits count as ever."""
    with small_log(directory) as log, Log(directory, sync="os") as other:
        put_each(log, [b"1"] * 10)
        other.roll()
        put_each(other, [b"2"] * 10)
        log.append(b"3")
        put_each(log, [b"4"] * 10)
    with Log(directory, segment_items=7, sync="os") as log:
        log.append(b"5")

        assert [limits(log)[2], limits(log)[-1]] == [USUAL, (7, SMALL_SEGMENT_BYTES)]
        assert limits(log)[4] == USUAL
        assert counts(log) == [0, 10, 0, 10, 1, 10, 1]


def test_a_recovery_that_makes_a_segment_makes_a_usual_one(scratch: Path) -> None:
    """A rotten record in one made to measure has it sealed, and the next takes its place."""
    directory = scratch / "log"
    with small_log(directory) as log:
        put_each(log, [b"1"] * 10)
    flip_bit(segment_path(directory, 1), 8_192)
    with Log(directory, sync="os") as log:
        assert limits(log) == [USUAL, (10, SMALL_SEGMENT_BYTES), USUAL]
        assert log.append(b"next") == 10


def test_an_exactly_full_segment_takes_a_batch(directory: Path) -> None:
    """As `append_many` does: the last slot and the last byte are used, and nothing is rolled."""
    with small_log(directory) as log:
        fill(log, 1)
        put_each(log, [b"x" * (SMALL_PAYLOAD_BYTES - 8), b"", b""])

        assert counts(log) == [4]


def test_a_batch_in_a_new_segment_leaves_room_for_more(directory: Path) -> None:
    """What follows is written behind it and not over it."""
    with small_log(directory, segment_items=100, sync="os") as log:
        log.append(b"x" * 4_050)
        batch = [b"%d" % number for number in range(50)]
        put_each(log, batch)
        rest = fill(log, 50)

        assert counts(log) == [1, 100]
        assert payloads(log.records(1)) == batch + rest


def test_a_batch_after_the_age_of_a_segment_goes_into_the_next(
    directory: Path, clock: ManualClock
) -> None:
    """Its time is never before that of the record before."""
    with Log(directory, segment_age=10, sync="os", clock=clock) as log:
        log.append(b"old")
        clock.advance(seconds=11)
        put_each(log, [b"new"])
        clock.advance(seconds=-100)
        put_each(log, [bytes(9_000_000)])

        assert counts(log) == [1, 1, 1]
        times = [record.time_us for record in log.records()]
        assert times == sorted(times)


def test_nothing_is_a_batch_of_nothing(directory: Path) -> None:
    """It gets the offset that the next record gets."""
    with small_log(directory) as log:
        fill(log, 3)

        assert put_whole(log, [], b"") == 3
        assert log.next_offset == 3


def test_attrs_and_views_are_taken_as_they_are(directory: Path) -> None:
    """Arrays, and a view of something larger, which is not copied to be understood."""
    data = memoryview(b"..onetwo..")[2:-2]
    with small_log(directory) as log:
        put_whole(log, array("I", [3, 3]), data, array("Q", [1, (1 << 64) - 1]))
        words = memoryview(array("I", [1, 2]))
        put_whole(log, [8], words)

        assert [(each.payload, each.attr) for each in log.records()] == [
            (b"one", 1),
            (b"two", (1 << 64) - 1),
            (words.tobytes(), 0),
        ]


@pytest.mark.parametrize(
    ("lengths", "data", "attrs"),
    [
        ([1, 2], b"four", [0, 0]),
        ([5], b"four", [0]),
        ([-1, 5], b"four", [0, 0]),
        ([4], b"four", []),
        ([4], b"four", [-1]),
        ([4], b"four", [1 << 64]),
        ([4], b"four", ["0"]),
        (["4"], b"four", [0]),
        ([4], "four", [0]),
        ([1 << 32], b"four", [0]),
        ([2], memoryview(b"four")[::2], [0]),
    ],
)
def test_what_does_not_fit_together_is_refused(
    directory: Path, lengths: list[int], data: bytes, attrs: list[int]
) -> None:
    """Before anything is written."""
    with small_log(directory) as log:
        with pytest.raises(InvalidArgument):
            put_whole(log, lengths, data, attrs)

        assert (log.next_offset, log.append(b"next")) == (0, 0)


def header(items_max: int = 4, bytes_max: int = SMALL_SEGMENT_BYTES) -> SegmentHeader:
    return SegmentHeader(
        id=SegmentId(3),
        first_offset=Offset(9),
        items_max=items_max,
        bytes_max=bytes_max,
        created_us=1,
        nonce=2,
    )


def test_no_segment_is_made_larger_than_a_segment_can_be() -> None:
    """One record or a batch, by its bytes or its number: said before memory or space is taken."""
    largest = SEGMENT_BYTES_MAX - 8_192
    fitted = header().with_room_for(1, largest)

    assert (fitted.items_max, fitted.bytes_max) == (1, SEGMENT_BYTES_MAX)
    assert header().with_room_for(BATCH_ITEMS_MAX, 0).items_max == BATCH_ITEMS_MAX
    with pytest.raises(RecordTooLarge) as caught:
        header().with_room_for(1, largest + 1)
    assert caught.value.size_bytes_max == largest
    with pytest.raises(BatchTooLarge):
        header().with_room_for(2, largest + 1)
    with pytest.raises(BatchTooLarge):
        header().with_room_for(BATCH_ITEMS_MAX + 1, 0)


def test_a_segment_made_to_measure_remembers_what_is_usual(tmp_path: Path) -> None:
    """In both halves of its header page: one flipped bit neither hides it nor goes unseen."""
    made = header().with_room_for(10, 10_000)
    page = made.encode()

    assert header().with_room_for(4, SMALL_PAYLOAD_BYTES) == header()
    assert made.usual == Limits(items_max=4, bytes_max=SMALL_SEGMENT_BYTES)
    assert made.with_room_for(1_000, 0).usual == made.usual
    assert decode_header(page, path=tmp_path) == made
    assert damaged_copies(page, sealed=False) == 0
    for position in (*range(1_024, 1_044), *range(3_072, 3_092)):
        damaged = bytearray(page)
        damaged[position] ^= 1
        assert decode_header(bytes(damaged), path=tmp_path) == made
        assert damaged_copies(bytes(damaged), sealed=False) == 1


def test_a_damaged_memory_of_what_is_usual_is_repaired(scratch: Path) -> None:
    """Verifying sees it, repairing writes it anew."""
    directory = scratch / "log"
    with small_log(directory) as log:
        put_each(log, [b"1"] * 10)
        log.roll()
        flip_bit(segment_path(directory, 1), 1_024 + 8)

        assert [audit.is_intact for audit in log.verify()] == [True, False, True]
        log.repair()
        assert [audit.is_intact for audit in log.verify()] == [True, True, True]
        assert payloads(log.records()) == [b"1"] * 10


@modes
@syncs
@pytest.mark.parametrize("call", [1, 2, 3], ids=["header", "payloads", "slots"])
@pytest.mark.parametrize("size_bytes", [4_000, 40_000], ids=["usual", "to measure"])
def test_a_full_disk_changes_nothing(
    directory: Path, exclusive: bool, sync: SyncName, size_bytes: int, call: int
) -> None:
    """Neither records nor segments; the log goes on as soon as there is space again."""
    disk = FaultyDisk()
    with small_log(directory, exclusive=exclusive, sync=sync, disk=disk) as log:
        log.append(b"before" * 100)
        disk.fail(operation="write_at", call=call, error=errno.ENOSPC, lasting=True, after_bytes=7)
        with pytest.raises(StorageFull):
            put_each(log, [b"x" * size_bytes, b"y"])
        disk.heal()

        assert [path.name for path in directory.glob("*.q*")] == ["000000000.q"]
        assert payloads(log.records()) == [b"before" * 100]
        assert log.append(b"after") == 1
        assert put_each(log, [b"x" * size_bytes, b"y"]) == 2
        assert counts(log) == [2, 2]


@modes
@syncs
def test_a_full_disk_in_the_active_segment_changes_nothing(
    directory: Path, exclusive: bool, sync: SyncName
) -> None:
    """The next record takes the place."""
    disk = FaultyDisk()
    with Log(directory, exclusive=exclusive, sync=sync, disk=disk) as log:
        log.append(b"before")
        disk.fail(operation="write_at", error=errno.ENOSPC, lasting=True, after_bytes=70_000)
        with pytest.raises(StorageFull):
            put_each(log, [b"x" * 50_000, b"y" * 50_000])
        disk.heal()

        assert log.append(b"after") == 1
        assert payloads(log.records()) == [b"before", b"after"]


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_handles_go_on_after_each_other(directory: Path, sync: SyncName) -> None:
    """One finds what the other made to measure, in whatever order they come."""
    expected = []
    with small_log(directory, sync=sync) as one, small_log(directory, sync=sync) as two:
        for number in range(12):
            log, other = (one, two) if number % 2 else (two, one)
            batch = [b"%d" % number] * (1 + number % 4 * 7)
            put_each(log, batch)
            other.append(b"between")
            expected += [*batch, b"between"]

        assert payloads(one.records()) == payloads(two.records()) == expected


def test_records_of_a_batch_made_to_measure_can_be_removed(directory: Path) -> None:
    """The segment written anew remembers what is usual."""
    with small_log(directory) as log:
        put_each(log, [b"%d" % number for number in range(10)])
        log.roll()
        log.remove_records(lambda record: record.offset % 2 == 0)
        log.roll()
        found, _ = log._horizon.catalog.read_page(SegmentId(1))

        assert payloads(log.records()) == [b"0", b"2", b"4", b"6", b"8"]
        assert found.usual == Limits(items_max=4, bytes_max=SMALL_SEGMENT_BYTES)


def test_a_segment_sent_is_a_batch_elsewhere(directory: Path, scratch: Path) -> None:
    """The round trip: sent, checked, appended whole."""
    received = scratch / "received"
    source = [b"%d" % number * number for number in range(200)]
    with Log(scratch / "source", sync="os") as log:
        log.append_many(source, attrs=range(200))
        log.roll()
        target = io.BytesIO()
        log.send_segment(0, target)
        received.write_bytes(target.getvalue())
    with small_log(directory) as log, read_sealed(received, Disk()) as sealed:
        log.append(b"before")
        put_whole(log, sealed.lengths, sealed.data, sealed.attrs)

        assert [(each.payload, each.attr) for each in log.records(1)] == list(
            zip(source, range(200), strict=True)
        )
