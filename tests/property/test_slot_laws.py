"""Laws of slots and batches: what is written is intact, and what was changed is not."""

from dataclasses import dataclass, replace
from zlib import crc32

from hypothesis import assume, example, given
from hypothesis import strategies as st

from segue.log import slots
from segue.log.checksum import crc32_bulk, crc32_short
from segue.log.layout import HEADER_BYTES, SLOT_BYTES, Offset, SegmentHeader, SegmentId
from segue.log.slots import Run

ITEMS_MAX = 100
ATTR_MAX = (1 << 64) - 1

HEADERS = st.builds(
    SegmentHeader,
    id=st.integers(min_value=0, max_value=1 << 40).map(SegmentId),
    first_offset=st.integers(min_value=0, max_value=1 << 50).map(Offset),
    items_max=st.just(ITEMS_MAX),
    bytes_max=st.just(1 << 16),
    created_us=st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1),
    nonce=st.integers(min_value=0, max_value=ATTR_MAX),
)
HEADER = SegmentHeader(
    id=SegmentId(0),
    first_offset=Offset(0),
    items_max=ITEMS_MAX,
    bytes_max=1 << 16,
    created_us=0,
    nonce=0,
)
BATCHES = st.lists(
    st.lists(st.binary(max_size=30), min_size=1, max_size=6), min_size=1, max_size=12
)
TIMES = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes of a segment and where its batches begin and end."""

    header: SegmentHeader
    data: bytearray
    edges: list[int]
    spans: list[list[range]]
    """Per batch, the bytes that are its slots and payloads."""

    @property
    def view(self) -> memoryview:
        return memoryview(self.data)

    @property
    def count(self) -> int:
        return self.edges[-1]


def image_of(
    header: SegmentHeader, batches: list[list[bytes]], *, time_us: int = 0, attr: int = 0
) -> Image:
    """Lay out batches as a segment has them; those of one record both ways there are."""
    data = bytearray(header.bytes_max)
    data[:HEADER_BYTES] = header.encode()
    position, chain, edges, spans = header.payloads_position, header.key, [0], []
    for number, batch in enumerate(batches):
        joined = b"".join(batch)
        after = crc32(joined, chain)
        if len(batch) == 1 and number % 2:
            table = slots.encode_one(
                header,
                time_us=time_us,
                attr=attr,
                position=position,
                length=len(joined),
                before=chain,
                after=after,
            )
        else:
            table = slots.encode_batch(
                [len(payload) for payload in batch],
                [attr] * len(batch),
                time_us=time_us,
                position=position,
                before=chain,
                after=after,
                key=header.key,
                seed=header.slot_seed,
            )
        at = slots.slot_position(edges[-1])
        data[at : at + len(table)] = table
        data[position : position + len(joined)] = joined
        spans.append([range(at, at + len(table)), range(position, position + len(joined))])
        position, chain = position + len(joined), after  # type: ignore[assignment]
        edges.append(edges[-1] + len(batch))
    return Image(header, data, edges, spans)


@given(
    header=HEADERS,
    items_max=st.integers(1, 5_000),
    written=st.lists(st.tuples(st.integers(0, 4_999), st.integers(0, SLOT_BYTES - 1))),
    shortfall_bytes=st.integers(0, 300_000),
)
@example(header=HEADER, items_max=5_000, written=[(0, 0)], shortfall_bytes=0)
@example(header=HEADER, items_max=5_000, written=[], shortfall_bytes=0)
def test_the_last_slot_that_is_not_empty_is_found_wherever_it_is(
    header: SegmentHeader,
    items_max: int,
    written: list[tuple[int, int]],
    shortfall_bytes: int,
) -> None:
    """Whichever of its bytes is set, in a table of many pieces or a file that ends within it."""
    header = replace(header, items_max=items_max, bytes_max=1 << 20)
    end = slots.slot_position(items_max)
    data = bytearray(b"?" * HEADER_BYTES).ljust(max(HEADER_BYTES, end - shortfall_bytes), b"\0")
    if shortfall_bytes == 0:
        data += b"payloads"
    for index, byte in written:
        position = slots.slot_position(index) + byte
        if position < min(end, len(data)):
            data[position] = 1
    places = range(HEADER_BYTES, min(end, len(data)))
    last = next((place for place in reversed(places) if data[place]), None)

    found = slots.written_slots(memoryview(data), header)

    assert found == (0 if last is None else (last - HEADER_BYTES) // SLOT_BYTES + 1)


@given(header=HEADERS, batches=BATCHES, time_us=TIMES, attr=st.integers(0, ATTR_MAX))
def test_what_was_written_is_one_intact_run(
    header: SegmentHeader, batches: list[list[bytes]], time_us: int, attr: int
) -> None:
    """However the records were batched, one pass over all of them finds nothing wrong."""
    image = image_of(header, batches, time_us=time_us, attr=attr)

    assert slots.written_slots(image.view, header) == image.count
    assert list(slots.walk(image.view, header, 0, image.count)) == [Run(0, image.count, True)]
    payloads = [payload for batch in batches for payload in batch]
    found = [slots.slot_at(image.view, index) for index in range(image.count)]
    assert [bytes(image.data[slot.position : slot.end]) for slot in found] == payloads
    assert {(slot.time_us, slot.attr) for slot in found} == {(time_us, attr)}


@given(header=HEADERS, batches=BATCHES, data=st.data())
def test_a_run_is_intact_exactly_between_batches(
    header: SegmentHeader, batches: list[list[bytes]], data: st.DataObject
) -> None:
    """From any batch to any later one; never from or to the middle of one."""
    image = image_of(header, batches)
    first = data.draw(st.integers(0, image.count))
    stop = data.draw(st.integers(first, image.count))
    whole = first == stop or (first in image.edges and stop in image.edges)

    assert slots.is_intact(image.view, header, first, stop) == whole
    for edge in image.edges[:-1]:
        assert list(slots.walk(image.view, header, edge, image.count)) == [
            Run(edge, image.count, True)
        ]


@given(header=HEADERS, batches=BATCHES)
def test_every_slot_knows_its_batch(header: SegmentHeader, batches: list[list[bytes]]) -> None:
    """From any slot, the first and the last of its batch are found."""
    image = image_of(header, batches)
    for first, stop in zip(image.edges, image.edges[1:], strict=False):
        for index in range(first, stop):
            assert slots.batch_start(image.view, index) == first
            assert slots.batch_stop(image.view, index) == stop


HEADER = SegmentHeader(
    id=SegmentId(0),
    first_offset=Offset(0),
    items_max=ITEMS_MAX,
    bytes_max=1 << 16,
    created_us=0,
    nonce=0,
)
LINK = 24
"""Where a slot says how many slots of its batch follow."""


def change(image: Image, where: int, by: int) -> int:
    """Change one byte of a slot or payload and return whose batch it is."""
    places = [(at, hit) for hit, spans in enumerate(image.spans) for span in spans for at in span]
    position, hit = places[where % len(places)]
    image.data[position] ^= by
    return hit


@given(header=HEADERS, batches=BATCHES, where=st.integers(0), by=st.integers(1, 255))
def test_any_change_is_noticed(
    header: SegmentHeader, batches: list[list[bytes]], where: int, by: int
) -> None:
    """Of any byte of any slot or payload, by every run that covers it and by no other."""
    image = image_of(header, batches)
    hit = change(image, where, by)
    for first in range(len(batches)):
        for stop in range(first + 1, len(batches) + 1):
            assert slots.is_intact(image.view, header, image.edges[first], image.edges[stop]) == (
                not first <= hit < stop
            )


@given(header=HEADERS, batches=BATCHES, where=st.integers(0), by=st.integers(1, 255))
@example(header=HEADER, batches=[[b""], [b""]], where=LINK, by=1)
@example(header=HEADER, batches=[[b""], [b"", b""]], where=LINK, by=2)
@example(header=HEADER, batches=[[b"", b""], [b""]], where=LINK, by=3)
def test_a_change_costs_one_batch(
    header: SegmentHeader, batches: list[list[bytes]], where: int, by: int
) -> None:
    """Walking finds every other batch intact, also if the changed slot claims to be part of it."""
    image = image_of(header, batches)
    hit = change(image, where, by)
    runs = list(slots.walk(image.view, header, 0, image.count))

    expected = [
        Run(0, image.edges[hit], True),
        Run(image.edges[hit], image.edges[hit + 1], False),
        Run(image.edges[hit + 1], image.count, True),
    ]
    assert runs == [run for run in expected if run.first < run.stop]


@given(header=HEADERS, other=HEADERS, batches=BATCHES)
def test_bytes_of_another_segment_do_not_pass(
    header: SegmentHeader, other: SegmentHeader, batches: list[list[bytes]]
) -> None:
    """What a recycled block still holds is not taken for what this segment wrote."""
    assume(other.key != header.key)
    image = image_of(other, batches)
    runs = list(slots.walk(image.view, header, 0, image.count))

    assert not any(run.intact for run in runs)


@given(header=HEADERS, other=HEADERS, batches=BATCHES, kept=st.integers(0, 11))
def test_bytes_of_another_segment_do_not_continue_this_one(
    header: SegmentHeader, other: SegmentHeader, batches: list[list[bytes]], kept: int
) -> None:
    """A batch that is whole but does not follow from the one before it ends the valid run."""
    assume(other.key != header.key)
    kept %= len(batches)
    image, foreign = image_of(header, batches), image_of(other, batches)
    for spans in foreign.spans[kept:]:
        for span in spans:
            image.data[span.start : span.stop] = foreign.data[span.start : span.stop]
    runs = list(slots.walk(image.view, header, 0, image.count))

    assert (runs[0].intact, runs[0].stop) == (True, image.edges[kept]) or (
        kept == 0 and not runs[0].intact
    )


@given(header=HEADERS, batches=BATCHES, data=st.data())
def test_a_torn_tail_keeps_a_prefix(
    header: SegmentHeader, batches: list[list[bytes]], data: st.DataObject
) -> None:
    """Wherever the bytes end or turn to zeros, the whole batches before are intact."""
    image = image_of(header, batches)
    cut = data.draw(st.integers(HEADER_BYTES, len(image.data)))
    torn = memoryview(image.data[:cut])
    whole = [all(span.stop <= cut for span in spans) for spans in image.spans]
    runs = list(slots.walk(torn, header, 0, image.count))
    intact = {index for run in runs if run.intact for index in range(run.first, run.stop)}

    for number, (first, stop) in enumerate(zip(image.edges, image.edges[1:], strict=False)):
        assert set(range(first, stop)) <= intact if whole[number] else True
        assert not whole[number] or first in intact
    assert [index for run in runs for index in range(run.first, run.stop)] == list(
        range(image.count)
    )


@given(st.binary(max_size=5_000), st.integers(0, (1 << 32) - 1))
@example(b"", 0)
def test_every_checksum_is_that_of_zlib(data: bytes, start: int) -> None:
    """The standard library can always check what we write."""
    assert crc32_bulk(data, start) == crc32_short(data, start) == crc32(data, start)


@given(HEADERS, st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_a_checked_run_leads_back_to_the_seed(header: SegmentHeader, pieces: list[bytes]) -> None:
    """The identity that lets one pass check any number of batches."""
    run = b""
    for piece in pieces:
        run += piece + (crc32(piece, header.slot_seed) ^ header.key).to_bytes(4, "little")

    assert crc32(run, header.slot_seed) == header.slot_seed
