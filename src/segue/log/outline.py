"""A log as its headers tell it, remembered for whoever looks again and again.

Nothing is made, locked, repaired or opened to write here, and no payload is read: so any log can be
asked about, be it one that nobody uses, at the price of a few calls to the system. What cannot be
read counts for nothing. All of it is to be shown, and not to be relied on.
"""

import struct
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from segue.errors import CorruptPosition
from segue.log import slots
from segue.log.catalog import Catalog
from segue.log.disk import Disk
from segue.log.horizon import Horizon
from segue.log.inventory import SegmentInfo, info_of_file
from segue.log.layout import (
    SLOT_BYTES,
    Offset,
    SegmentId,
    payloads_position,
    segment_id,
)
from segue.log.live import FILENAME as LIVE_FILENAME
from segue.log.live import OWN, PUBLISHED, REWRITES, SEGMENT, is_of_boot
from segue.log.positions import DIRECTORY as READERS
from segue.log.positions import Positions, SavedPosition
from segue.log.recovery import QUARANTINE
from segue.log.retention import SegmentFacts

HEADERS_READ_MAX: Final = 2_000
"""How many headers one look at a log reads; of what lies beyond, files are only measured."""
HEADERS_FOR_BYTES_MAX: Final = 256
"""How many headers are read to tell how many bytes lie ahead, besides those that are known."""
QUARANTINED_READ_MAX: Final = 200
"""How many files of a quarantine are looked at, the newest."""
SLOTS_KEPT: Final = 64
"""How many places of a log are remembered by time and bytes: readers stand there."""

_WORDS: Final = struct.Struct(f"={OWN}Q")


class Outline:
    """One log. For one thread at a time, which `Outlines` sees to."""

    def __init__(self, path: Path, disk: Disk, boot: int) -> None:
        self.path = path
        self.users = 0
        self.weight = 0
        """How many look or wait to, and of how many segments something is remembered."""
        self.lock = threading.Lock()
        self.next_offset = Offset(0)
        """The offset the next record that becomes readable will have."""
        self._disk = disk
        self._boot = boot
        self._live_path = path / LIVE_FILENAME
        self._live: int | None = None
        with suppress(FileNotFoundError):
            self._live = disk.open_to_read(self._live_path)
        self._walked: Offset | None = None
        self._active: SegmentId | None = None
        self._last: SegmentInfo | None = None
        """The one that takes records, if anybody has it open, as it was when we last looked."""
        self._catalog: Catalog
        self._names_as_of = 0
        self._rewrites = -1
        self._infos: dict[SegmentId, SegmentInfo] = {}
        self._sizes: dict[SegmentId, int] = {}
        self._slots: dict[tuple[SegmentId, int], slots.Slot] = {}
        self._saved = Positions(path, disk)
        self._readers_path = path / READERS
        self._positions: dict[str, SavedPosition | None] = {}
        self._positions_as_of = 0

    # Keeping up ----------------------------------------------------------------------------

    def is_same(self) -> bool:
        """Tell whether this is still the log at its path, and not one that was made anew there."""
        # The file is held open, so that no other one can have its number.
        live = self._live
        return live is not None and self._disk.is_same_file(live, self._live_path)

    def refresh(self) -> None:
        """Know how far the log goes now, and forget what was said of files that are replaced."""
        words = self._words()
        rewrites = words[REWRITES]
        seen = self._disk.names_as_of(self.path)
        if rewrites != self._rewrites or rewrites & 1:
            self._catalog = Catalog(self.path, self._disk)
            self._infos.clear()
            self._sizes.clear()
            self._slots.clear()
            self._rewrites = rewrites
        elif not seen or seen != self._names_as_of:
            self._catalog.refresh()
            for id_ in self._sizes.keys() - set(self._catalog.ids):
                del self._sizes[id_]
                self._infos.pop(id_, None)
        self._names_as_of = seen
        is_current = is_of_boot(words, self._boot)
        self.next_offset = Offset(words[PUBLISHED]) if is_current else self._end_on_disk()
        self._active = SegmentId(words[SEGMENT]) if is_current else None
        if self._last is not None and self._last.id == self._active:
            self._last = self._as_now(self._last)
        else:
            self._last = None

    def _words(self) -> tuple[int, ...]:
        data = b"" if self._live is None else self._disk.read_at(self._live, _WORDS.size, 0)
        return _WORDS.unpack(data.ljust(_WORDS.size, b"\0"))

    def _end_on_disk(self) -> Offset:
        """Return the end of a log that nobody has opened since the machine started."""
        if self._walked is None:
            horizon = Horizon(self.path, self._disk, None)
            try:
                self._walked = horizon.next_offset()
            finally:
                horizon.close()
        return self._walked

    @property
    def has_segments(self) -> bool:
        """Whether there is a log at all, as far as anybody has looked."""
        return self._rewrites >= 0 and bool(self._catalog.ids)

    def remembered(self) -> int:
        """Return of how many segments something is remembered."""
        return len(self._sizes)

    # How far it goes -----------------------------------------------------------------------

    @property
    def first_offset(self) -> Offset:
        """The offset of the oldest record; equal to `next_offset` while there is none."""
        ids = self._catalog.ids
        if ids and not ids[0]:
            return Offset(0)
        begins = (self._catalog.first_offset(place) for place in range(len(ids)))
        return next((offset for offset in begins if offset is not None), self.next_offset)

    @property
    def size_bytes(self) -> int:
        """What the segments take up on the device."""
        return sum(map(self._size_of, self._catalog.ids))

    # Segments ------------------------------------------------------------------------------

    def newest(self, count: int = HEADERS_READ_MAX) -> tuple[list[SegmentInfo], int]:
        """Return the last `count` segments, oldest first, and how many there are before them."""
        ids = self._catalog.ids
        return self._infos_of(ids[-count:] if count else []), max(0, len(ids) - count)

    def oldest(self, count: int = HEADERS_READ_MAX) -> list[SegmentInfo]:
        """Return the first `count` segments, oldest first."""
        return self._infos_of(self._catalog.ids[:count])

    def quarantined(self) -> list[SegmentInfo]:
        """Return the segments that recovery or repair has set aside, oldest first."""
        directory = self.path / QUARANTINE
        found = []
        for name in self._disk.names(directory)[-QUARANTINED_READ_MAX:]:
            id_ = segment_id(name.rpartition(".")[0])
            if id_ is not None:
                with suppress(FileNotFoundError):
                    found.append(info_of_file(directory / name, id_, self._disk))
        return found

    # What lies ahead of an offset ----------------------------------------------------------

    def bytes_from(self, offset: int) -> int:
        """Return how many bytes of payload lie from `offset` to the end.

        Of segments whose headers nobody has read yet, and that are not among the newest, it is
        what they take up.
        """
        if offset >= self.next_offset:
            return 0
        ids = self._catalog.ids
        start = self._catalog.find(Offset(offset))
        ids = ids[0 if start is None else bisect_left(ids, start) :]
        size_bytes = 0
        left = HEADERS_FOR_BYTES_MAX
        for id_ in reversed(ids):
            info = self._infos.get(id_)
            if info is None and (left or id_ == ids[0]):
                left = max(0, left - 1)
                info = self._info(id_)
            if info is None:
                size_bytes += self._size_of(id_)
            else:
                size_bytes += self._payload_bytes(info, offset)
        return size_bytes

    def time_of(self, offset: int) -> int | None:
        """Return when the first record from `offset` on was appended, in µs; None without one."""
        place = Offset(max(offset, self.first_offset))
        if place >= self.next_offset:
            return None
        id_ = self._catalog.find(place)
        info = None if id_ is None else self._info(id_)
        if info is not None and info.first_offset is not None:
            index = place - info.first_offset
            slot = self._slot(info, index) if index < info.count else slots.slot_from(b"")
            if slot.time_us and not slot.link & slots.REMOVED:
                return slot.time_us
        horizon = Horizon(self.path, self._disk, None)
        try:
            return horizon.time_of(place)  # Removed, or damaged: it finds the next one.
        finally:
            horizon.close()

    def positions(self) -> dict[str, SavedPosition | None]:
        """Return where every reader stands; None for one whose place cannot be read."""
        seen = self._disk.names_as_of(self._readers_path)
        if not seen or seen != self._positions_as_of:
            self._positions = dict(self._read_positions())
            self._positions_as_of = seen
        return self._positions

    def _read_positions(self) -> Iterator[tuple[str, SavedPosition | None]]:
        for name in self._saved.names():
            try:
                saved = self._saved.load(name)
            except CorruptPosition:
                yield name, None
            else:
                if saved is not None:  # Not just removed by somebody.
                    yield name, saved

    # Remembering ---------------------------------------------------------------------------

    def _infos_of(self, ids: list[SegmentId]) -> list[SegmentInfo]:
        found = (self._info(id_) for id_ in ids)
        return [info for info in found if info is not None]

    def _info(self, id_: SegmentId) -> SegmentInfo | None:
        """Describe a segment; None if somebody has just deleted it."""
        info = self._infos.get(id_)
        if info is not None:
            return info
        if self._last is not None and self._last.id == id_:
            return self._last
        try:
            info = info_of_file(self._catalog.path(id_), id_, self._disk)
        except FileNotFoundError:
            return None
        if info.sealed:
            self._infos[id_] = info
            self._sizes[id_] = info.size_bytes
            return info
        info = self._as_now(info)
        if id_ == self._active and info.first_offset is not None:
            self._last = info
        return info

    def _as_now(self, info: SegmentInfo) -> SegmentInfo:
        """Return what is to be said now of a segment that takes records."""
        begins = self.next_offset if info.first_offset is None else info.first_offset
        count = max(0, min(info.items_max, self.next_offset - begins))
        size_bytes = info.size_bytes
        with suppress(FileNotFoundError):
            size_bytes = self._disk.file_bytes(info.path)
        return replace(info, count=count, size_bytes=size_bytes)

    def _size_of(self, id_: SegmentId) -> int:
        if self._last is not None and self._last.id == id_:
            return self._last.size_bytes
        size_bytes = self._sizes.get(id_)
        if size_bytes is None:
            try:
                size_bytes = self._disk.file_bytes(self._catalog.path(id_))
            except FileNotFoundError:
                return 0
            if id_ != self._catalog.ids[-1]:  # Only the last one grows.
                self._sizes[id_] = size_bytes
        return size_bytes

    def _payload_bytes(self, info: SegmentInfo, offset: int) -> int:
        """Return the payload bytes of one segment from `offset` on, by two slots at most."""
        if info.first_offset is None:
            return 0
        index = max(0, offset - info.first_offset)
        if index >= info.count:
            return 0
        begin = payloads_position(info.items_max)
        end = begin + info.payload_bytes if info.sealed else self._slot(info, info.count - 1).end
        start = self._slot(info, index).position if index else begin
        return min(max(0, end - start), info.bytes_max - begin)

    def _slot(self, info: SegmentInfo, index: int) -> slots.Slot:
        """Return one slot, unchecked; an empty one if the file is gone."""
        slot = self._slots.get((info.id, index))
        if slot is not None:
            return slot
        try:
            position = slots.slot_position(index)
            data = self._disk.read_file(info.path, SLOT_BYTES, position=position)
        except FileNotFoundError:
            return slots.slot_from(b"")
        if len(self._slots) >= SLOTS_KEPT:
            self._slots.clear()
        slot = self._slots[info.id, index] = slots.slot_from(data)
        return slot

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._disk.close(live)


def sealed_facts(infos: list[SegmentInfo]) -> list[SegmentFacts]:
    """Return what retention may look at, of segments in order: none behind one it must not."""
    facts = []
    for info in infos:
        if info.first_offset is None or not info.sealed:
            break
        facts.append(
            SegmentFacts(
                id=info.id,
                end_offset=Offset(info.first_offset + info.count),
                size_bytes=info.size_bytes,
                last_time_us=info.created_us if info.last_us is None else info.last_us,
            )
        )
    return facts
