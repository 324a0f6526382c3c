"""What a partition answers to who reads: whole batches of one segment, checked."""

from __future__ import annotations

import struct
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.errors import CorruptSegment
from segue.log.layout import Offset
from segue.log.record import Record
from segue.stores.redis.topics.answers import bytes_of, number_of
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.log.columns import Columns

REMOVED: Final = 1 << 63
"""A bit of attr: the record is gone on purpose, its offset stays taken."""
TIME_US_MAX: Final = 1 << 62
_SLOT = struct.Struct("<QI")
_BATCH = struct.Struct("<IIQ")
pack_slot = _SLOT.pack
pack_batch = _BATCH.pack
SLOT_BYTES: Final = _SLOT.size
_KNOWN_FLAGS: Final = frozenset({0, REMOVED >> 56})
"""What the highest byte of attr can be: what a record says ends at bit 52."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Records of one segment, without a gap, from `first_offset` up to `stop`."""

    segment: int
    first_offset: int
    stop: int
    batches: list[tuple[int, int]]
    """How many records each has, and when it came."""
    slots: bytes
    payload: bytes

    def records(self) -> list[Record]:
        """Return the records that were not removed."""
        found: list[Record] = []
        offset, position = self.first_offset, 0
        slots = _SLOT.iter_unpack(self.slots)
        payload = self.payload
        for count, time_us in self.batches:
            for attr, length in islice(slots, count):
                if attr < REMOVED:
                    data = payload[position : position + length]
                    found.append(Record(Offset(offset), time_us, attr, data))
                offset += 1
                position += length
        return found

    def columns(self, start: int, stop: int) -> Columns:
        """Return those from `start` up to `stop` as columns, without a loop over records."""
        import numpy as np
        import pyarrow as pa

        from segue.log.columns import Columns

        dtype = np.dtype([("attr", "<u8"), ("length", "<u4")])
        table = np.frombuffer(self.slots, dtype=dtype)
        ends = np.zeros(len(table) + 1, dtype=np.int32)
        np.cumsum(table["length"], out=ends[1:])
        counts = [count for count, _ in self.batches]
        times = np.repeat(
            np.array([time_us for _, time_us in self.batches], dtype=np.int64), counts
        )
        low, high = max(start, self.first_offset) - self.first_offset, stop - self.first_offset
        bounds = np.ascontiguousarray(ends[low : high + 1])
        attr = np.ascontiguousarray(table["attr"][low:high])
        payload = pa.BinaryArray.from_buffers(
            pa.binary(), len(attr), [None, pa.py_buffer(bounds), pa.py_buffer(self.payload)]
        )
        offset = np.arange(self.first_offset + low, self.first_offset + low + len(attr))
        kept = attr < np.uint64(REMOVED)
        if not kept.all():
            return Columns(
                offset=offset[kept],
                time_us=times[low:high][kept],
                attr=attr[kept],
                payload=payload.filter(pa.array(kept)),
            )
        return Columns(offset=offset, time_us=times[low:high], attr=attr, payload=payload)


def stretch_from(base: str, answer: list[object]) -> Stretch:
    """Return what `read` answered after the first three words. Raises CorruptSegment."""
    segment, first_offset = number_of(answer[0]), number_of(answer[1])
    batches, slots, payload = map(bytes_of, answer[2:5])
    count, odd = divmod(len(slots), _SLOT.size)
    if odd or not count:
        raise damaged(base, segment, "its slots are cut short")
    if len(batches) % _BATCH.size or not batches:
        raise damaged(base, segment, "its batches are cut short")
    words = memoryview(slots).cast("I")  # Low and high half of attr, and the length.
    lengths = sum(words[2::3])
    if lengths != len(payload):
        raise damaged(base, segment, f"{len(payload)} bytes of payload for {lengths} in its slots")
    if not _KNOWN_FLAGS.issuperset(slots[7::SLOT_BYTES]):
        raise damaged(base, segment, "a slot has flags that nobody knows")
    return Stretch(
        segment=segment,
        first_offset=first_offset,
        stop=first_offset + count,
        batches=_batches(base, segment, batches, count=count, size_bytes=len(payload)),
        slots=slots,
        payload=payload,
    )


def _batches(
    base: str, segment: int, data: bytes, *, count: int, size_bytes: int
) -> list[tuple[int, int]]:
    rows = list(_BATCH.iter_unpack(data))
    index, position, _ = rows[0]
    ends = [*rows, (index + count, position + size_bytes, TIME_US_MAX)]
    for this, following in pairwise(ends):
        if this[0] >= following[0] or this[1] > following[1] or this[2] > following[2]:
            raise damaged(base, segment, "its batches do not lie side by side")
    return [(following[0] - this[0], this[2]) for this, following in pairwise(ends)]


def damaged(base: str, segment: int, reason: str) -> CorruptSegment:
    """Return the error that names a segment of which the server told what cannot be."""
    return CorruptSegment(path=Path(f"{base}:seg_{segment}"), reason=reason)
