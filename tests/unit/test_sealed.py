"""Reading a sealed segment that comes from elsewhere."""

import os
import struct
from array import array
from pathlib import Path
from zlib import crc32

import pytest

from segue import Log
from segue.errors import (
    CorruptRecord,
    CorruptSegment,
    InvalidArgument,
    StorageError,
    UnsupportedFormat,
)
from segue.log import slots
from segue.log.disk import Disk
from segue.log.layout import HEADER_BYTES, Summary
from segue.log.sealed import SealedSegment, read_sealed
from segue.log.segment import SegmentView
from tests.unit.support import (
    SECOND_HEADER,
    flip_bit,
    no_descriptor_left_open,
    segment_path,
    slot_position,
    small_log,
)

CALLS = [[b"one"], [b"", b"three", b"four" * 50], [b""], [b"five"]]
ATTRS = [1, 0, (1 << 64) - 1, 4, 5, 6]


@pytest.fixture
def path(scratch: Path) -> Path:
    """The file of a sealed segment, as it was received."""
    return make_sealed(scratch)


def make_sealed(scratch: Path) -> Path:
    path = scratch / "received"
    with small_log(scratch / "source", segment_items=8) as log, path.open("wb") as file:
        attrs = iter(ATTRS)
        for call in CALLS:
            log.append_many(call, attrs=[next(attrs) for _ in call])
        log.roll()
        log.send_segment(0, file)
    return path


def read(path: Path) -> SealedSegment:
    return read_sealed(path, Disk())


def resummarise(path: Path, **changes: int) -> None:
    """Seal a segment once more, with a summary that lies, its checksum in order."""
    view = SegmentView(path, Disk())
    summary = view.summary()
    view.close()
    assert summary is not None
    fields = {name: getattr(summary, name) for name in Summary.__slots__}
    lying = Summary(**(fields | changes))
    with path.open("r+b") as file:
        for position, piece in lying.writes():
            os.pwrite(file.fileno(), piece, position)


def rewrite_slots(path: Path, index: int, place: int, value: int) -> None:
    """Change a word of a slot that is a batch of its own, its checksum in order again."""
    view = SegmentView(path, Disk())
    header = view.header
    view.close()
    with path.open("r+b") as file:
        at = slot_position(index)
        slot = bytearray(os.pread(file.fileno(), 40, at))
        struct.pack_into("<I", slot, place * 4, value)
        struct.pack_into("<I", slot, 36, crc32(slot[:36], header.slot_seed) ^ header.key)
        os.pwrite(file.fileno(), slot, at)


def test_a_sealed_segment_is_read_column_by_column(path: Path) -> None:
    """Lengths and attrs of every record, and their payloads side by side."""
    payloads = [payload for call in CALLS for payload in call]
    with no_descriptor_left_open(), read(path) as sealed:
        assert sealed.count == len(payloads)
        assert list(sealed.lengths) == [len(payload) for payload in payloads]
        assert sealed.attrs == array("Q", ATTRS)
        assert bytes(sealed.data) == b"".join(payloads)
        assert sealed.data.readonly
        assert (sealed.header.id, sealed.header.first_offset) == (0, 0)
        assert sealed.summary.count == len(payloads)


def test_the_file_of_a_log_is_as_good_as_what_was_sent(path: Path, scratch: Path) -> None:
    """It is longer by the hole at its end, which does not matter."""
    with read(path) as sent, read(segment_path(scratch / "source", 0)) as own:
        assert len(own._view.view) > len(sent._view.view)
        assert (own.lengths, own.attrs, own.data) == (sent.lengths, sent.attrs, sent.data)


def test_removed_records_are_left_out(scratch: Path) -> None:
    """Whole batches or some of one: their bytes are gone, and so are their lengths and attrs."""
    directory = scratch / "log"
    with small_log(directory, segment_items=8) as log:
        log.append_many([b"a", b"bb", b"ccc"], attrs=[1, 2, 3])
        log.append(b"dddd", attr=4)
        log.append(b"", attr=5)
        log.roll()
        log.remove_records(lambda record: record.attr not in {2, 4})
    with read(segment_path(directory, 0)) as sealed:
        assert sealed.count == 3
        assert list(sealed.lengths) == [1, 3, 0]
        assert list(sealed.attrs) == [1, 3, 5]
        assert bytes(sealed.data) == b"accc"
        assert sealed.summary.count == 5


def test_closing_lets_go_of_the_payloads(path: Path) -> None:
    """Using them later is an error; a part taken before stays. Closing twice is allowed."""
    sealed = read(path)
    part = sealed.data[:3]
    sealed.close()
    sealed.close()

    assert bytes(part) == b"one"
    with pytest.raises(ValueError, match="released"):
        bytes(sealed.data)


def test_a_segment_that_takes_records_is_refused(scratch: Path) -> None:
    """Nobody can say where it ends."""
    with small_log(scratch / "log") as log, no_descriptor_left_open():
        log.append(b"one")
        with pytest.raises(InvalidArgument, match="never sealed"):
            read(segment_path(scratch / "log", 0))


def test_files_of_another_kind_are_refused(scratch: Path, path: Path) -> None:
    """Empty, random, of a later format, or not there at all."""
    foreign = scratch / "foreign"
    for content in (b"", b"x", os.urandom(20_000), bytes(20_000)):
        foreign.write_bytes(content)
        with no_descriptor_left_open(), pytest.raises(CorruptSegment):
            read(foreign)
    body = bytearray(path.read_bytes())
    for copy in (0, SECOND_HEADER):
        struct.pack_into("<I", body, copy + 8, 2)
        struct.pack_into("<I", body, copy + 56, crc32(body[copy : copy + 56]))
    foreign.write_bytes(body)
    with no_descriptor_left_open(), pytest.raises(UnsupportedFormat):
        read(foreign)
    for missing in (scratch / "missing", scratch):
        with no_descriptor_left_open(), pytest.raises(StorageError):
            read(missing)


def test_the_first_damaged_batch_is_named(path: Path) -> None:
    """By its offsets, whatever became of the others."""
    flip_bit(path, slot_position(2) + 8)
    flip_bit(path, slot_position(5) + 8)
    with no_descriptor_left_open(), pytest.raises(CorruptRecord) as caught:
        read(path)

    assert (caught.value.first_offset, caught.value.last_offset) == (1, 3)
    assert caught.value.position == slot_position(1)


def test_payloads_of_another_segment_do_not_pass(path: Path, scratch: Path) -> None:
    """Slots and payloads belong to the segment that they were written for."""
    (scratch / "other").mkdir()
    other = make_sealed(scratch / "other")
    mixed = scratch / "mixed"
    mixed.write_bytes(path.read_bytes()[:HEADER_BYTES] + other.read_bytes()[HEADER_BYTES:])
    with no_descriptor_left_open(), pytest.raises(CorruptRecord):
        read(mixed)


@pytest.mark.parametrize(
    "lie",
    [
        {"count": 5},
        {"count": 0},
        {"count": 3},
        {"count": 7},
        {"payloads_end": 8_192},
        {"payloads_end": 4_096},
        {"payloads_end": 8_200},
        {"payloads_end": 12_288},
        {"chain": 0},
    ],
    ids=str,
)
def test_a_summary_that_lies_is_found_out(path: Path, lie: dict[str, int]) -> None:
    """Its checksum is in order; what it says is not."""
    resummarise(path, **lie)
    with no_descriptor_left_open(), pytest.raises((CorruptSegment, CorruptRecord)):
        read(path)


@pytest.mark.parametrize(
    ("index", "place", "value"),
    [
        (4, 4, 8_192),
        (4, 4, 0xFFFFFFFF),
        (4, 5, 0xFFFFFFFF),
        (4, 5, 3),
        (5, 5, 5),
        (5, 4, 0),
        (0, 4, 0),
        (4, 6, 1 << 25),
        (4, 6, 0xFF000000),
        (0, 6, slots.REMOVED),
    ],
)
def test_slots_that_lie_are_found_out(path: Path, index: int, place: int, value: int) -> None:
    """Their checksums are in order; the payloads do not lie where they say."""
    rewrite_slots(path, index, place, value)
    with no_descriptor_left_open(), pytest.raises((CorruptSegment, CorruptRecord)):
        read(path)


def test_a_segment_of_a_log_that_goes_on_is_not_kept_from_it(path: Path, scratch: Path) -> None:
    """Reading takes no lock."""
    source = scratch / "source"
    with read(segment_path(source, 0)), Log(source, sync="os") as log:
        assert log.trim(99) == [0]
    assert path.exists()
