"""Slots and the batches they form: encoding, checking and walking them. Pure, no I/O.

    │ time µs i64 │ attr u64 │ position u32 │ length u32 │ link, before, after, crc: u32 each │

`link` holds how many slots of the batch follow (low 24 bits) and flags (high 8 bits). The last
slot of a batch carries its checksums; in the others those three words are zero:

- `before` and `after` are the checksum of all payloads of the segment, up to the batch and with
  it. So each batch can be checked alone, and any run of batches in one pass over its payloads.
- `crc` covers the batch's slots. It starts from the segment's `slot_seed` and is stored XORed with
  the segment's `key`. A CRC-32 over bytes that end in their own CRC-32 always gives the same
  residue, and with the XOR that residue is `slot_seed`: so a run of batches leaves the checksum
  where it found it, and one pass over any run of slots checks them all, whether records came
  singly or by the thousand. Slots of another segment have another key and fail.
"""

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from segue.log.checksum import crc32_bulk, crc32_short
from segue.log.layout import HEADER_BYTES, SLOT_BYTES, Position, SegmentHeader

if sys.byteorder != "little":  # pragma: no cover - arrays are written as they lie in memory
    raise ImportError("segue needs a little-endian machine")

MORE_MASK: Final = (1 << 24) - 1
REMOVED: Final = 1 << 24
"""A flag of `link`: the record is gone on purpose, its offset stays taken."""
KNOWN_FLAGS: Final = REMOVED

_SLOT = struct.Struct("<qQIIIIII")
_LINK = struct.Struct("<I")
_LINK_POSITION: Final = 24
_WORDS: Final = SLOT_BYTES // 4
_ZEROS: Final = bytes(1 << 16)

pack_body = struct.Struct("<qQIIIII").pack
"""Packs a slot without its last word, the crc."""
pack_crc = struct.Struct("<I").pack
unpack_slots = _SLOT.iter_unpack
"""Yields the eight fields of each slot in a table."""


class Slot(NamedTuple):
    """One slot, decoded."""

    time_us: int
    attr: int
    position: int
    length: int
    link: int
    before: int
    after: int
    crc: int

    @property
    def end(self) -> Position:
        """Where the payload ends."""
        return Position(self.position + self.length)


class Run(NamedTuple):
    """Slots `first` up to, not including, `stop`; all intact or all damaged."""

    first: int
    stop: int
    intact: bool


def slot_position(index: int) -> int:
    """Return where slot `index` begins in its file."""
    return HEADER_BYTES + index * SLOT_BYTES


def slot_at(view: memoryview, index: int) -> Slot:
    """Return slot `index`, unchecked."""
    return Slot._make(_SLOT.unpack_from(view, HEADER_BYTES + index * SLOT_BYTES))


def slot_from(data: bytes) -> Slot:
    """Return the slot in `data`, or an empty one where the file was too short to hold it."""
    return Slot._make(_SLOT.unpack(data.ljust(SLOT_BYTES, b"\0")))


def encode_one(
    header: SegmentHeader,
    *,
    time_us: int,
    attr: int,
    position: int,
    length: int,
    before: int,
    after: int,
) -> bytes:
    """Return the slot of a batch of one. `HotTail.store` makes the same by itself."""
    body = pack_body(time_us, attr, position, length, 0, before, after)
    return body + pack_crc(crc32_short(body, header.slot_seed) ^ header.key)


def encode_batch(
    lengths: Sequence[int],
    attrs: Sequence[int] | None,
    *,
    time_us: int,
    position: int,
    before: int,
    after: int,
    key: int,
    seed: int,
) -> bytes:
    """Return the slots of one batch whose payloads lie side by side from `position`."""
    count = len(lengths)
    positions = array("I", accumulate(lengths, initial=position))
    positions.pop()
    table = array("I", bytes(count * SLOT_BYTES))
    # One strided copy per column: ten times faster than a pack per record.
    words = memoryview(table)
    words[0::_WORDS] = memoryview(array("I", (time_us & 0xFFFFFFFF,)) * count)
    words[1::_WORDS] = memoryview(array("I", (time_us >> 32 & 0xFFFFFFFF,)) * count)
    if attrs is not None:
        halves = memoryview(array("Q", attrs)).cast("B").cast("I")
        words[2::_WORDS] = halves[0::2]
        words[3::_WORDS] = halves[1::2]
    words[4::_WORDS] = memoryview(positions)
    words[5::_WORDS] = memoryview(array("I", lengths))
    words[6::_WORDS] = memoryview(array("I", range(count - 1, -1, -1)))
    table[-3] = before
    table[-2] = after
    table[-1] = crc32_bulk(words.cast("B")[:-4], seed) ^ key
    return table.tobytes()


def links(table: memoryview) -> memoryview:
    """Return the `link` of each slot in a table of them."""
    return table.cast("I")[_LINK_POSITION // 4 :: _WORDS]


def batch_stop(view: memoryview, index: int) -> int:
    """Return the index after the batch that slot `index` claims to be part of."""
    (link,) = _LINK.unpack_from(view, HEADER_BYTES + index * SLOT_BYTES + _LINK_POSITION)
    return index + int(link & MORE_MASK) + 1


def batch_start(view: memoryview, index: int) -> int:
    """Return the first index of the batch that slot `index` claims to be part of.

    Slots of one batch name the same end, and those before it an earlier one: bisect on that.
    """
    if index == 0 or batch_stop(view, index - 1) <= index:
        return index
    stop = batch_stop(view, index)
    low, high = 0, index
    while low < high:
        middle = (low + high) // 2
        if batch_stop(view, middle) == stop:
            high = middle
        else:
            low = middle + 1
    return low


def is_intact(
    view: memoryview, header: SegmentHeader, first: int, stop: int, *, before: int | None = None
) -> bool:
    """Tell whether slots `first` to `stop` are whole batches, unchanged since written.

    Two passes at memory speed, however many batches. `before`, if given, is the payload checksum
    that must precede them.
    """
    if first == stop:
        return True
    if first > stop or slot_position(stop) > min(len(view), header.payloads_position):
        return False
    table = view[slot_position(first) : slot_position(stop)]
    if crc32_bulk(table, header.slot_seed) != header.slot_seed:
        return False
    first_stop = batch_stop(view, first)
    head, last = slot_at(view, first), slot_at(view, stop - 1)
    if first_stop > stop or last.link & MORE_MASK or last.link & ~KNOWN_FLAGS:
        return False
    if not header.payloads_position <= head.position <= last.end <= len(view):
        return False
    stored_before = slot_at(view, first_stop - 1).before
    if before is not None and stored_before != before:
        return False
    return crc32_bulk(view[head.position : last.end], stored_before) == last.after


def walk(view: memoryview, header: SegmentHeader, first: int, stop: int) -> Iterator[Run]:
    """Yield the intact and the damaged runs between `first`, a batch's start, and `stop`.

    A damaged run ends where the next intact batch begins, so it never hides its neighbours.
    """
    before = header.key if first == 0 else None
    if is_intact(view, header, first, stop, before=before):
        if first < stop:
            yield Run(first, stop, True)
        return
    index = first
    while index < stop:
        start = index
        while index < stop and _batch_is_intact(view, header, index, stop, before):
            index = batch_stop(view, index)
            before = slot_at(view, index - 1).after
        if start < index:
            yield Run(start, index, True)
        start = index
        before = None
        while index < stop and not (
            _may_start_a_batch(view, index) and _batch_is_intact(view, header, index, stop, None)
        ):
            index += 1
        if start < index:
            yield Run(start, index, False)


def _batch_is_intact(
    view: memoryview, header: SegmentHeader, index: int, stop: int, before: int | None
) -> bool:
    if slot_position(index + 1) > len(view):
        return False
    end = batch_stop(view, index)
    return end <= stop and is_intact(view, header, index, end, before=before)


def _may_start_a_batch(view: memoryview, index: int) -> bool:
    """Tell whether a batch may begin at slot `index`, as far as the slot before it says.

    Two signs, so that one flipped bit cannot hide both: the one before carries checksums, as the
    last of a batch does, or it does not count down to this one.
    """
    if index == 0:
        return True
    if slot_position(index + 1) > len(view):
        return False
    previous = slot_at(view, index - 1)
    if previous.before or previous.after or previous.crc:
        return True
    stop = batch_stop(view, index - 1)
    return stop <= index or stop != batch_stop(view, index)


def written_slots(view: memoryview, header: SegmentHeader) -> int:
    """Return the number of slots up to the last one that is not all zeros."""
    end = min(len(view), slot_position(header.items_max))
    while end > HEADER_BYTES:
        start = max(HEADER_BYTES, end - len(_ZEROS))
        piece = bytes(view[start:end])
        # Mostly there is nothing, which a comparison tells fifty times as fast as stripping it.
        if piece != _ZEROS[: len(piece)]:
            used = len(piece.rstrip(b"\0"))
            return -(-(start + used - HEADER_BYTES) // SLOT_BYTES)
        end = start
    return 0
