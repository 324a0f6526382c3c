"""The bytes of a segment file: its header, its regions and its name. Pure, no I/O.

    ┌──────────────────┬───────────────────────────┬──────────────────────────────┐
    │ header  4 KiB    │ slots  items_max × 40     │ payloads, side by side       │
    └──────────────────┴───────────────────────────┴──────────────────────────────┘

docs/format.md draws every byte; `slots.py` owns what a slot says. The header is kept twice, half
a page apart, because one flipped bit in it must not cost a segment.
"""

import re
import struct
from dataclasses import field, replace
from pathlib import Path
from typing import Final, NewType
from zlib import crc32

from segue.errors import (
    BatchTooLarge,
    CorruptSegment,
    InvalidArgument,
    InvalidName,
    RecordTooLarge,
    UnsupportedFormat,
)
from segue.values import dataclass

Offset = NewType("Offset", int)
"""Counts records since the log began."""
Position = NewType("Position", int)
"""Counts bytes since the start of a file."""
SegmentId = NewType("SegmentId", int)

FORMAT_VERSION: Final = 1
PAGE_BYTES: Final = 4096
HEADER_BYTES: Final = 4096
SLOT_BYTES: Final = 40

SEGMENT_BYTES_MIN: Final = 3 * PAGE_BYTES
"""A page of header, one of slots, one of payloads."""
SEGMENT_BYTES_MAX: Final = 1 << 30
"""Below 2 GiB, so that positions fit the signed 32-bit offsets of an Arrow array."""
SEGMENT_BYTES_DEFAULT: Final = 8 * 1024 * 1024
BYTES_PER_SLOT_DEFAULT: Final = 128
"""How many bytes of segment one slot is reserved for, unless `segment_items` says otherwise."""
BATCH_ITEMS_MAX: Final = (1 << 24) - 1
SEGMENT_ID_MAX: Final = (1 << 53) - 1
NAME_CHARACTERS_MAX: Final = 100

_HEADER_MAGIC: Final = b"SegueLog"
_SUMMARY_MAGIC: Final = b"Sealed\0\0"
_USUAL_MAGIC: Final = b"Usual\0\0\0"
_COPY_POSITIONS: Final = (0, HEADER_BYTES // 2)
_SUMMARY_POSITION: Final = 512  # In a sector of its own: sealing never rewrites the identity.
_USUAL_POSITION: Final = 1024
_HEADER = struct.Struct("<8sIIQQIIqQ")
_SUMMARY = struct.Struct("<8sIIqqI")
_USUAL = struct.Struct("<8sII")
_CRC = struct.Struct("<I")
_SEGMENT_NAME = re.compile(r"(\d{9,})\.q")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a segment takes."""

    items_max: int
    bytes_max: int

    def __post_init__(self) -> None:
        if not 1 <= self.items_max <= BATCH_ITEMS_MAX:
            raise InvalidArgument(f"segment_items must be 1 to {BATCH_ITEMS_MAX}")
        if not SEGMENT_BYTES_MIN <= self.bytes_max <= SEGMENT_BYTES_MAX:
            raise InvalidArgument(
                f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )
        if payloads_position(self.items_max) >= self.bytes_max:
            raise InvalidArgument(
                f"segment_items={self.items_max} leaves no room for payloads in "
                f"segment_bytes={self.bytes_max}: each item takes {SLOT_BYTES} bytes of it"
            )


def payloads_position(items_max: int) -> Position:
    """Return where the payloads begin after so many slots: at the next page."""
    end = HEADER_BYTES + items_max * SLOT_BYTES
    return Position(-(-end // PAGE_BYTES) * PAGE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """What a segment says about itself from birth; never rewritten."""

    id: SegmentId
    first_offset: Offset
    items_max: int
    bytes_max: int
    created_us: int
    nonce: int
    """A random number: bytes left over from any other file never pass for this segment's."""
    usual: Limits | None = None
    """What the other segments take, if this one was made to measure for a batch."""
    key: int = field(init=False, repr=False, compare=False)
    """A digest of the above. The chain of payload checksums starts with it."""
    slot_seed: int = field(init=False, repr=False, compare=False)
    """Where the checksum of a run of slots starts, and where it must come back to."""

    def __post_init__(self) -> None:
        if not 0 <= self.id <= SEGMENT_ID_MAX or self.first_offset < 0:
            raise InvalidArgument(f"impossible segment {self.id} at offset {self.first_offset}")
        Limits(items_max=self.items_max, bytes_max=self.bytes_max)  # Raises if they do not fit.
        key = crc32(_pack_header(self))
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "slot_seed", crc32(_CRC.pack(key)))

    @property
    def payloads_position(self) -> Position:
        """Where the payloads begin: the first page after the slots."""
        return payloads_position(self.items_max)

    @property
    def payload_bytes_max(self) -> int:
        """How many bytes of payload fit in the segment."""
        return self.bytes_max - self.payloads_position

    @property
    def inherited(self) -> Limits:
        """The limits that the segment after this one takes over."""
        return self.usual or Limits(items_max=self.items_max, bytes_max=self.bytes_max)

    def with_room_for(self, count: int, size_bytes: int) -> "SegmentHeader":
        """Return this header, or if `count` records of `size_bytes` do not fit, one to measure.

        Raises BatchTooLarge or RecordTooLarge where no segment could take them.
        """
        if count <= self.items_max and size_bytes <= self.payload_bytes_max:
            return self
        if count > BATCH_ITEMS_MAX:
            raise BatchTooLarge(f"a batch has at most {BATCH_ITEMS_MAX} records")
        position = payloads_position(count)
        room_bytes = SEGMENT_BYTES_MAX - position
        if size_bytes > room_bytes and count == 1:
            raise RecordTooLarge(size_bytes=size_bytes, size_bytes_max=room_bytes)
        if size_bytes > room_bytes:
            raise BatchTooLarge(
                f"a batch of {size_bytes} bytes does not fit: at most {room_bytes} bytes do "
                f"with {count} records"
            )
        return replace(
            self,
            items_max=count,
            bytes_max=max(SEGMENT_BYTES_MIN, position + max(1, size_bytes)),
            usual=self.inherited,
        )

    def encode(self) -> bytes:
        """Return the header page as a new segment carries it."""
        page = bytearray(HEADER_BYTES)
        for position, piece in self.writes():
            page[position : position + len(piece)] = piece
        return bytes(page)

    def writes(self) -> list[tuple[Position, bytes]]:
        """Return the pieces of the header page that are this header's, each within one sector."""
        body = _pack_header(self)
        checked = body + _CRC.pack(crc32(body))
        pieces = [(Position(position), checked) for position in _COPY_POSITIONS]
        if self.usual is not None:
            body = _USUAL.pack(_USUAL_MAGIC, self.usual.items_max, self.usual.bytes_max)
            checked = body + _CRC.pack(crc32(body))
            pieces += [(Position(copy + _USUAL_POSITION), checked) for copy in _COPY_POSITIONS]
        return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a sealed segment adds to its header."""

    count: int
    payloads_end: Position
    first_time_us: int
    last_time_us: int
    chain: int
    """The payload checksum after the last record."""

    def writes(self) -> list[tuple[Position, bytes]]:
        """Return the pieces that seal a segment, each within one sector."""
        body = _SUMMARY.pack(
            _SUMMARY_MAGIC,
            self.count,
            self.payloads_end,
            self.first_time_us,
            self.last_time_us,
            self.chain,
        )
        sealed = body + _CRC.pack(crc32(body))
        return [(Position(position + _SUMMARY_POSITION), sealed) for position in _COPY_POSITIONS]


def _pack_header(header: SegmentHeader) -> bytes:
    return _HEADER.pack(
        _HEADER_MAGIC,
        FORMAT_VERSION,
        SLOT_BYTES,
        header.id,
        header.first_offset,
        header.items_max,
        header.bytes_max,
        header.created_us,
        header.nonce,
    )


def _first_valid(page: bytes, layout: struct.Struct, at: int) -> tuple[int | bytes, ...] | None:
    for copy in _COPY_POSITIONS:
        start = copy + at
        body = page[start : start + layout.size]
        stored = page[start + layout.size : start + layout.size + _CRC.size]
        if len(stored) == _CRC.size and crc32(body) == _CRC.unpack(stored)[0]:
            return layout.unpack(body)
    return None


def decode_header(page: bytes, *, path: Path) -> SegmentHeader:
    """Return the header in `page`, from whichever copy is intact.

    Raises CorruptSegment if neither is, UnsupportedFormat if it is of a later version.
    """
    fields = _first_valid(page, _HEADER, 0)
    if fields is None or fields[0] != _HEADER_MAGIC:
        raise CorruptSegment(path=path, reason="no valid segment header")
    _, version, slot_bytes, id_, first_offset, items_max, bytes_max, created_us, nonce = fields
    if version != FORMAT_VERSION or slot_bytes != SLOT_BYTES:
        raise UnsupportedFormat(f"{path}: format version {version!r} needs a newer Segue")
    try:
        return SegmentHeader(
            id=SegmentId(int(id_)),
            first_offset=Offset(int(first_offset)),
            items_max=int(items_max),
            bytes_max=int(bytes_max),
            created_us=int(created_us),
            nonce=int(nonce),
            usual=_decode_usual(page),
        )
    except InvalidArgument as error:
        raise CorruptSegment(path=path, reason=f"impossible header: {error}") from error


def _decode_usual(page: bytes) -> Limits | None:
    fields = _first_valid(page, _USUAL, _USUAL_POSITION)
    if fields is None or fields[0] != _USUAL_MAGIC:
        return None
    return Limits(items_max=int(fields[1]), bytes_max=int(fields[2]))


def decode_summary(page: bytes, header: SegmentHeader) -> Summary | None:
    """Return the summary in `page`, or None while the segment is not sealed."""
    fields = _first_valid(page, _SUMMARY, _SUMMARY_POSITION)
    if fields is None or fields[0] != _SUMMARY_MAGIC:
        return None
    _, count, payloads_end, first_time_us, last_time_us, chain = fields
    if int(count) > header.items_max or int(payloads_end) > header.bytes_max:
        return None
    return Summary(
        count=int(count),
        payloads_end=Position(int(payloads_end)),
        first_time_us=int(first_time_us),
        last_time_us=int(last_time_us),
        chain=int(chain),
    )


def damaged_copies(page: bytes, *, sealed: bool) -> int:
    """Count the header and summary copies that fail although another one holds."""
    damaged = 0
    to_measure = _first_valid(page, _USUAL, _USUAL_POSITION) is not None
    for copy in _COPY_POSITIONS:
        half = page[copy : copy + HEADER_BYTES // 2]
        damaged += _first_valid(half, _HEADER, 0) is None
        damaged += sealed and _first_valid(half, _SUMMARY, _SUMMARY_POSITION) is None
        damaged += to_measure and _first_valid(half, _USUAL, _USUAL_POSITION) is None
    return damaged


def segment_filename(id_: SegmentId) -> str:
    """Return the file name of segment `id_`; names of up to nine digits sort as their ids do."""
    return f"{id_:09d}.q"


def segment_id(filename: str) -> SegmentId | None:
    """Return the id a file name stands for, or None if it is not a segment's."""
    match = _SEGMENT_NAME.fullmatch(filename)
    if match is None or segment_filename(SegmentId(int(match[1]))) != filename:
        return None
    return SegmentId(int(match[1]))


def is_name(name: str) -> bool:
    """Tell whether `name` is one that `checked_name` returns."""
    return bool(_NAME.fullmatch(name)) and len(name) <= NAME_CHARACTERS_MAX


def checked_name(name: str) -> str:
    """Return `name` if it is safe as a file name everywhere, else raise InvalidName."""
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InvalidName(
            f"{name!r} is not a usable name: letters, digits, '_', '-' and '.', "
            f"not starting with '.' or '-'"
        )
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidName(f"a name has at most {NAME_CHARACTERS_MAX} characters: {name[:40]}…")
    return name
