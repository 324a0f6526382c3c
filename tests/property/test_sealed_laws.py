"""A segment sent elsewhere is the same there, or an error says that it is not."""

import io
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segue import Log
from segue.errors import Damage, InvalidArgument, UnsupportedFormat
from segue.log.disk import Disk
from segue.log.sealed import read_sealed
from tests.conftest import TORTURE
from tests.unit.support import SECOND_HEADER, SMALL_SEGMENT_BYTES, slot_position

Content = tuple[bytes, int]
RECORDS = st.tuples(st.binary(max_size=300), st.integers(min_value=0, max_value=(1 << 64) - 1))
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=6), min_size=1, max_size=5)


def sent(log: Log, id_: int, *, split: int = 0) -> bytes:
    """Send a segment, broken off at `split` and gone on with from there."""
    whole, rest = io.BytesIO(), io.BytesIO()
    size_bytes = log.send_segment(id_, whole)
    position = split % (size_bytes + 1)
    log.send_segment(id_, rest, position=position)
    return whole.getvalue()[:position] + rest.getvalue()


def put_whole(log: Log, path: Path) -> int:
    """Append what was received as one batch, in a turn."""
    writer = log.writer
    with read_sealed(path, Disk()) as sealed, writer.mutex:
        writer.begin()
        try:
            return writer.put_whole(sealed.lengths, sealed.data, sealed.attrs)
        finally:
            writer.end(wrote=True)


@given(
    batches=BATCHES,
    removed=st.sets(st.integers(min_value=0, max_value=29)),
    split=st.integers(min_value=0),
    items=st.sampled_from([1, 4, 30]),
    before=st.integers(min_value=0, max_value=3),
)
@example(batches=[[(b"", 0)]], removed={0}, split=0, items=1, before=0)
@example(batches=[[(b"x", 1), (b"", 2), (b"z", 3)]], removed={0, 2}, split=1, items=1, before=1)
def test_sent_read_and_put_elsewhere_is_the_same(
    batches: list[list[Content]], removed: set[int], split: int, items: int, before: int
) -> None:
    """Payloads and attrs in order, without what was removed, in whatever kind of segment."""
    records = [record for batch in batches for record in batch]
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        scratch = Path(name)
        with Log(scratch / "source", sync="os") as log:
            for batch in batches:
                log.append_many([each[0] for each in batch], attrs=[each[1] for each in batch])
            log.roll()
            log.remove_records(lambda record: record.offset not in removed)
            (scratch / "received").write_bytes(sent(log, 0, split=split))
        kept = [each for place, each in enumerate(records) if place not in removed]
        expected = [(b"before", 0)] * before + kept
        with Log(
            scratch / "log", segment_bytes=SMALL_SEGMENT_BYTES, segment_items=items, sync="os"
        ) as log:
            for _ in range(before):
                log.append(b"before")

            assert put_whole(log, scratch / "received") == before
            assert [(each.payload, each.attr) for each in log.records()] == expected
            assert log.append(b"after") == len(expected)
            assert all(audit.is_intact for audit in log.verify())
        with Log(scratch / "log", sync="os") as log:
            log.roll()
            usual = log.segments()[-1]
            assert (usual.items_max, usual.bytes_max) == (items, SMALL_SEGMENT_BYTES)


# Damage --------------------------------------------------------------------------------------


@pytest.fixture
def segment(scratch: Path) -> bytes:
    """A sealed segment as it was sent, with batches, empty and removed records."""
    with Log(scratch / "log", segment_bytes=SMALL_SEGMENT_BYTES, segment_items=12) as log:
        log.append(b"one", attr=1)
        log.append_many([b"two", b"", b"four", b"five"], attrs=[2, 3, 4, 5])
        log.append(b"", attr=6)
        log.append_many([b"seven", b"eight"], attrs=[7, 8])
        log.roll()
        log.remove_records(lambda record: record.attr not in {4, 6})
        return sent(log, 0)


def answer(path: Path, data: bytes) -> tuple[list[int], list[int], bytes] | str:
    """Return what is read from `data`, or the name of the error; only typed ones pass."""
    path.write_bytes(data)
    try:
        with read_sealed(path, Disk()) as sealed:
            return list(sealed.lengths), list(sealed.attrs), bytes(sealed.data)
    except (Damage, InvalidArgument, UnsupportedFormat) as error:
        return type(error).__name__


def flips(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield position and bit: all there is, or each byte that means something at one bit."""
    for position in range(len(data)):
        if TORTURE:
            yield from ((position, bit) for bit in range(8))
        elif data[position] or slot_position(0) <= position < slot_position(10):
            yield position, position * 5 % 8
        elif position % 61 == 0:
            yield position, 0


def test_one_flipped_bit_is_found_or_does_not_matter(scratch: Path, segment: bytes) -> None:
    """Whatever bit it is: the same records, or an error. Records and payloads are never wrong."""
    path = scratch / "received"
    whole = answer(path, segment)
    harmless = set()
    for position, bit in flips(segment):
        damaged = bytearray(segment)
        damaged[position] ^= 1 << bit
        found = answer(path, bytes(damaged))
        assert found in (whole, "CorruptRecord", "CorruptSegment"), f"{position} {bit}: {found}"
        if found == whole:
            harmless.add(position)

    assert isinstance(whole, tuple)
    assert harmless.isdisjoint(range(slot_position(0), slot_position(8)))
    assert harmless.isdisjoint(range(8_192, len(segment)))


def test_every_cut_is_found(scratch: Path, segment: bytes) -> None:
    """One byte less than all of it is too little."""
    path = scratch / "received"
    cuts = {*range(0, len(segment), 1 if TORTURE else 37), *range(8_180, len(segment))}
    found = {answer(path, segment[:cut]) for cut in cuts}

    assert found == {"CorruptSegment"}
    assert isinstance(answer(path, segment + b"more"), tuple)


def test_stretches_of_zeros_and_noise_are_found(scratch: Path, segment: bytes) -> None:
    """A sector or a page that was never written, or holds something else."""
    path = scratch / "received"
    whole = answer(path, segment)
    for size_bytes in (64, 512, 4_096):
        for position in range(0, len(segment), size_bytes):
            for filler in (b"\0", b"\xff", b"\xa5"):
                damaged = bytearray(segment)
                span = damaged[position : position + size_bytes]
                damaged[position : position + size_bytes] = filler * len(span)
                found = answer(path, bytes(damaged))
                assert found in (whole, "CorruptRecord", "CorruptSegment", "InvalidArgument")


def test_bits_flipped_in_both_headers_are_found(scratch: Path, segment: bytes) -> None:
    """Neither is left that could be believed; without a summary it counts as not sealed."""
    path = scratch / "received"
    for at in (*range(60), *range(512, 552)):
        damaged = bytearray(segment)
        damaged[at] ^= 1
        damaged[SECOND_HEADER + at] ^= 1
        expected = "CorruptSegment" if at < 60 else "InvalidArgument"
        assert answer(path, bytes(damaged)) == expected


@given(data=st.binary(max_size=400), position=st.integers(min_value=0, max_value=8_400))
def test_anything_written_over_it_is_found_or_does_not_matter(data: bytes, position: int) -> None:
    """Only typed errors come out, whatever goes in."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        scratch = Path(name)
        with Log(scratch / "log", segment_bytes=SMALL_SEGMENT_BYTES, segment_items=12) as log:
            log.append_many([b"one", b"two" * 60, b""], attrs=[1, 2, 3])
            log.roll()
            made = sent(log, 0)
        whole = answer(scratch / "received", made)
        changed = made[:position] + data + made[position + len(data) :]
        found = answer(scratch / "received", changed)
        assert isinstance(found, str) or found == whole
