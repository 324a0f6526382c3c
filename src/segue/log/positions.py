"""Where readers stand: `readers/<name>.meta`, replaced atomically.

    │ segment u64 │ offset u64 │ magic u32 │ crc u32 │

The first 16 bytes are the pair every version has written; a file of just those, or of the 8 bytes
{offset} in segment 0, is still read. The last 8 make a flipped bit an error instead of a skipped
record.
"""

import contextlib
import logging
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from segue.errors import CorruptPosition
from segue.log.disk import Disk, storage_errors
from segue.log.layout import Offset, SegmentId, checked_name, is_name

logger = logging.getLogger(__name__)

DIRECTORY: Final = "readers"
SUFFIX: Final = ".meta"
_LEGACY = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_CHECK = struct.Struct("<II")
_MAGIC: Final = int.from_bytes(b"SgRd", "little")


class SavedPosition(NamedTuple):
    """The next record a reader wants, and the segment that holds it."""

    segment: SegmentId
    offset: Offset


class Positions:
    """The saved positions of one log's readers."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory / DIRECTORY
        self._disk = disk

    def path(self, name: str) -> Path:
        """Return the file of a reader. Raises InvalidName."""
        return self._directory / f"{checked_name(name)}{SUFFIX}"

    def names(self) -> list[str]:
        """Return the registered readers, sorted."""
        with storage_errors(f"listing {self._directory}"):
            files = self._disk.names(self._directory)
        names = (name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX))
        return [name for name in names if is_name(name)]

    def load(self, name: str) -> SavedPosition | None:
        """Return where reader `name` stands, or None if it is not registered.

        Raises CorruptPosition.
        """
        path = self.path(name)
        with storage_errors(f"reading {path}"):
            try:
                data = self._disk.read_file(path, _PAIR.size + _CHECK.size + 1)
            except FileNotFoundError:
                return None
        return _decode(data, path)

    def save(self, name: str, position: SavedPosition, *, sync: bool) -> None:
        """Make `position` the one that `load` returns, whole or not at all."""
        path = self.path(name)
        pair = _PAIR.pack(position.segment, position.offset)
        with storage_errors(f"saving {path}"):
            is_new = not self._disk.exists(path)
            if is_new:
                self._disk.make_directory(self._directory)
            self._disk.replace_file(path, pair + _CHECK.pack(_MAGIC, crc32(pair)), sync=sync)
        if is_new and sync:
            self.sync_names()  # Retention in any later process must see the reader.

    def sync(self) -> None:
        """Make sure that what `load` returns now is what it returns after a power cut."""
        with storage_errors(f"syncing {self._directory}"):
            names = self.names()
            for name in names:
                try:
                    fd = self._disk.open_to_read(self.path(name))
                except FileNotFoundError:
                    continue  # Just removed by somebody: it holds nothing back.
                try:
                    self._disk.sync_data(fd)
                finally:
                    self._disk.close(fd)
        if names:
            self.sync_names()

    def clamp(self, end: SavedPosition) -> None:
        """Take readers back that stand beyond the end: what they had read is lost.

        What comes next at those offsets is new to them.
        """
        is_changed = False
        for name in self.names():
            with contextlib.suppress(CorruptPosition):
                saved = self.load(name)
                if saved is not None and saved.offset > end.offset:
                    logger.warning(
                        "reader stood beyond the end name=%s saved=%d end=%d",
                        name,
                        saved.offset,
                        end.offset,
                    )
                    self.save(name, end, sync=True)
                    is_changed = True
        if is_changed:
            self.sync_names()

    def sync_names(self) -> None:
        """Make sure that no registered reader is forgotten by a power cut."""
        with storage_errors(f"syncing {self._directory}"):
            self._disk.sync_directory(self._directory)
            # Its own name, too: whoever made the directory may have failed to.
            self._disk.sync_directory(self._directory.parent)

    def remove(self, name: str) -> bool:
        """Forget reader `name` and tell whether it was there."""
        path = self.path(name)
        with storage_errors(f"removing {path}"):
            try:
                self._disk.unlink(path)
            except FileNotFoundError:
                return False
            self._disk.sync_directory(self._directory)
        return True


def _decode(data: bytes, path: Path) -> SavedPosition:
    if len(data) == _LEGACY.size:
        return SavedPosition(SegmentId(0), Offset(_LEGACY.unpack(data)[0]))
    pair, check = data[: _PAIR.size], data[_PAIR.size :]
    if len(pair) != _PAIR.size or len(check) not in (0, _CHECK.size):
        raise CorruptPosition(path=path, reason=f"{len(data)} bytes are no position")
    if check and _CHECK.unpack(check) != (_MAGIC, crc32(pair)):
        raise CorruptPosition(path=path, reason="checksum does not match")
    segment, offset = _PAIR.unpack(pair)
    return SavedPosition(SegmentId(segment), Offset(offset))
