"""Laws of the header page, of names and of positions."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import CorruptSegment, InvalidName
from segue.log.layout import (
    HEADER_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_ID_MAX,
    SLOT_BYTES,
    Offset,
    Position,
    SegmentHeader,
    SegmentId,
    Summary,
    checked_name,
    damaged_copies,
    decode_header,
    decode_summary,
    segment_filename,
    segment_id,
)

PATH = Path("some.q")
SIGNED = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@st.composite
def headers(draw: st.DrawFn) -> SegmentHeader:
    bytes_max = draw(st.integers(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX))
    room = (bytes_max - 1) // 4096 * 4096 - HEADER_BYTES
    return SegmentHeader(
        id=SegmentId(draw(st.integers(0, SEGMENT_ID_MAX))),
        first_offset=Offset(draw(st.integers(0, (1 << 63) - 1))),
        items_max=draw(st.integers(1, min((1 << 24) - 1, room // SLOT_BYTES))),
        bytes_max=bytes_max,
        created_us=draw(SIGNED),
        nonce=draw(st.integers(0, (1 << 64) - 1)),
    )


@st.composite
def summaries(draw: st.DrawFn, header: SegmentHeader) -> Summary:
    return Summary(
        count=draw(st.integers(0, header.items_max)),
        payloads_end=Position(draw(st.integers(header.payloads_position, header.bytes_max))),
        first_time_us=draw(SIGNED),
        last_time_us=draw(SIGNED),
        chain=draw(st.integers(0, (1 << 32) - 1)),
    )


def sealed(header: SegmentHeader, summary: Summary) -> bytearray:
    page = bytearray(header.encode())
    for position, piece in summary.writes():
        page[position : position + len(piece)] = piece
    return page


@given(headers())
def test_a_header_comes_back_as_it_was_written(header: SegmentHeader) -> None:
    """Every field, and no summary before there is one."""
    page = header.encode()

    assert len(page) == HEADER_BYTES
    assert decode_header(page, path=PATH) == header
    assert decode_summary(page, header) is None
    assert damaged_copies(page, sealed=False) == 0


@given(st.data())
def test_a_summary_comes_back_as_it_was_written(data: st.DataObject) -> None:
    """And leaves the header as it was; each piece lies within one sector."""
    header = data.draw(headers())
    summary = data.draw(summaries(header))
    page = bytes(sealed(header, summary))

    assert decode_summary(page, header) == summary
    assert decode_header(page, path=PATH) == header
    assert damaged_copies(page, sealed=True) == 0
    for position, piece in summary.writes():
        assert position // 512 == (position + len(piece) - 1) // 512


@given(st.data())
def test_one_damaged_place_costs_neither_header_nor_summary(data: st.DataObject) -> None:
    """Up to half a page of rot, anywhere in one half, leaves the other half."""
    header = data.draw(headers())
    summary = data.draw(summaries(header))
    page = sealed(header, summary)
    start = data.draw(st.sampled_from([0, HEADER_BYTES // 2]))
    first = data.draw(st.integers(start, start + HEADER_BYTES // 2 - 1))
    rot = data.draw(st.binary(min_size=1, max_size=start + HEADER_BYTES // 2 - first))
    page[first : first + len(rot)] = rot

    assert decode_header(bytes(page), path=PATH) == header
    assert decode_summary(bytes(page), header) == summary


@given(st.data())
def test_a_header_is_right_or_not_there(data: st.DataObject) -> None:
    """Damage in both copies gives an error, never another header."""
    header = data.draw(headers())
    page = bytearray(header.encode())
    for copy in (0, HEADER_BYTES // 2):
        page[copy + data.draw(st.integers(0, 59))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSegment):
        decode_header(bytes(page), path=PATH)


@given(headers(), st.integers(0, HEADER_BYTES - 1))
def test_a_header_that_ends_too_early_is_right_or_not_there(
    header: SegmentHeader, size: int
) -> None:
    """However short the file."""
    page = header.encode()[:size]
    if size >= 60:
        assert decode_header(page, path=PATH) == header
    else:
        with pytest.raises(CorruptSegment):
            decode_header(page, path=PATH)
    assert decode_summary(page, header) is None


@given(headers())
def test_regions_do_not_overlap(header: SegmentHeader) -> None:
    """Slots end before payloads begin, on a page, and there is room for at least a byte."""
    assert header.payloads_position >= HEADER_BYTES + header.items_max * SLOT_BYTES
    assert header.payloads_position % 4096 == 0
    assert header.payloads_position + header.payload_bytes_max == header.bytes_max
    assert header.payload_bytes_max >= 1


@given(st.integers(0, SEGMENT_ID_MAX))
def test_a_file_name_names_one_segment(id_: int) -> None:
    """And comes back from it."""
    name = segment_filename(SegmentId(id_))

    assert segment_id(name) == id_
    assert checked_name(name) == name


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))
def test_names_sort_as_ids_do(one: int, other: int) -> None:
    """So that a listing is in order, for the first thousand million segments."""
    names = (segment_filename(SegmentId(one)), segment_filename(SegmentId(other)))

    assert (names[0] < names[1]) == (one < other)


@given(st.text(max_size=120))
def test_a_name_is_safe_or_refused(name: str) -> None:
    """What is accepted is one plain component of a path, whatever it is joined to."""
    with contextlib.suppress(InvalidName):
        accepted = checked_name(name)
        assert accepted == name
        assert (Path("base") / name).parent == Path("base")
        assert name not in ("", ".", "..")
        assert len(name.encode()) <= 100
