"""`index.meta`: 16 bytes {segment u64, position u64}, the last place known to be on the device.

A hint for a fast open and never evidence of data: what it names is checked before it is used. Its
position is that of the next slot, in bytes.
"""

import struct
from pathlib import Path
from typing import Final

from segue.log.disk import Disk, reading_errors
from segue.log.layout import HEADER_BYTES, SEGMENT_ID_MAX, SLOT_BYTES, SegmentId
from segue.values import dataclass

FILENAME: Final = "index.meta"
_PAIR = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Slots below `index` of `segment` were synced."""

    segment: SegmentId
    index: int


def read_hint(directory: Path, disk: Disk) -> Hint | None:
    """Return the hint, or None if it is missing or cannot be one."""
    path = directory / FILENAME
    try:
        with reading_errors(path):
            data = disk.read_file(path, _PAIR.size + 1)
    except FileNotFoundError:
        return None
    if len(data) != _PAIR.size:
        return None
    segment, position = _PAIR.unpack(data)
    index, rest = divmod(position - HEADER_BYTES, SLOT_BYTES)
    if rest or index < 0 or segment >= SEGMENT_ID_MAX:
        return None
    return Hint(segment=SegmentId(segment), index=index)


class HintFile:
    """The file, open to be rewritten in place after each sync."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._disk = disk
        self._fd = disk.open_to_write(directory / FILENAME, create=True)

    def write(self, segment: SegmentId, index: int) -> None:
        position = HEADER_BYTES + index * SLOT_BYTES
        self._disk.write_at(self._fd, _PAIR.pack(segment, position), 0)

    def close(self) -> None:
        self._disk.close(self._fd)
