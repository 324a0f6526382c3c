"""The hottest code there is, in Python: storing one record in the active segment's mapping.

`_hot.c` is its compiled twin. Both write the same bytes; change them together.
"""

import mmap
from collections.abc import Sequence
from itertools import count as count_from
from typing import Final, TypeVar, cast

from segue.log.checksum import SHORT_BYTES, crc32_bulk, crc32_short
from segue.log.layout import HEADER_BYTES, SLOT_BYTES
from segue.log.live import PUBLISHED, READY, SEGMENT, STATE, WRITTEN
from segue.log.slots import REMOVED, pack_body, pack_crc, slot_position, unpack_slots

NO_ROOM: Final = -1

_BYTES: Final = frozenset({bytes})
_Record = TypeVar("_Record", bound=tuple[object, ...])


class HotTail:
    """The state of the active segment and the store of one record."""

    __slots__ = (
        "_mapping",
        "_words",
        "chain",
        "first_offset",
        "index",
        "key",
        "payloads_ready",
        "position",
        "publish_at_once",
        "seed",
        "segment",
        "slots_ready",
        "time_us",
    )

    def __init__(self, mapping: mmap.mmap | None, words: memoryview, publish_at_once: bool) -> None:
        self._mapping = mapping
        self._words = words
        self.publish_at_once = publish_at_once
        self.index = self.position = self.chain = self.time_us = self.key = self.seed = 0
        self.segment = self.first_offset = self.slots_ready = self.payloads_ready = 0

    def store(self, payload: bytes, attr: int, time_us: int) -> int:
        """Append one record to space written ahead and return its offset.

        NO_ROOM if there is not enough of it, or if another process was here meanwhile.
        Nothing may interrupt between the stores: calls come first, plain assignments last.
        """
        index = self.index
        position = self.position
        length = len(payload)
        end = position + length
        if end > self.payloads_ready or index >= self.slots_ready:
            return NO_ROOM
        words = self._words
        offset = self.first_offset + index
        if words[WRITTEN] != offset or words[SEGMENT] != self.segment or words[STATE] != READY:
            return NO_ROOM
        if time_us < self.time_us:  # noqa: PLR1730 - a call to max costs a tenth of the append
            time_us = self.time_us  # A clock that steps back must not reorder the log.
        before = self.chain
        after = (crc32_short if length < SHORT_BYTES else crc32_bulk)(payload, before)
        body = pack_body(time_us, attr, position, length, 0, before, after)
        slot = body + pack_crc(crc32_short(body, self.seed) ^ self.key)
        at = HEADER_BYTES + index * SLOT_BYTES
        mapping = self._mapping
        if mapping is None:
            raise ValueError("the segment is closed")
        mapping[position:end] = payload
        mapping[at : at + SLOT_BYTES] = slot
        self.position = end
        self.chain = after
        self.time_us = time_us
        self.index = index + 1
        words[WRITTEN] = offset + 1
        if self.publish_at_once:
            words[PUBLISHED] = offset + 1
        return offset

    def detach(self) -> None:
        """Let go of the mapping."""
        self._mapping = None


def read_records(
    record_type: type[_Record],
    segment: mmap.mmap | memoryview | bytes,
    index: int,
    stop: int,
    first_offset: int,
) -> list[_Record]:
    """Return records `index` to `stop` of a mapped segment; removed ones are left out."""
    make = tuple.__new__
    view = memoryview(segment)
    with view, view[slot_position(index) : slot_position(stop)] as table:
        return [
            make(record_type, (offset, time_us, attr, bytes(view[position : position + length])))
            for offset, (time_us, attr, position, length, link, _, _, _) in zip(
                count_from(first_offset + index), unpack_slots(table), strict=False
            )
            if not link & REMOVED
        ]


def measure_batch(payloads: Sequence[object]) -> list[int] | None:
    """Return the length of each payload, or None unless all are bytes."""
    if not set(map(type, payloads)) <= _BYTES:
        return None
    return list(map(len, cast("Sequence[bytes]", payloads)))
