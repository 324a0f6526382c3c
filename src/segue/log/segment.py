"""One segment, open to read: records by index, checked before anyone sees them."""

import contextlib
import os
import time
from bisect import bisect_left
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from segue.errors import CorruptRecord, RecordRemoved
from segue.log import slots
from segue.log.disk import Disk, reading_errors
from segue.log.hot import read_records
from segue.log.layout import (
    HEADER_BYTES,
    SLOT_BYTES,
    Offset,
    SegmentHeader,
    Summary,
    decode_header,
    decode_summary,
)
from segue.log.record import Record

CHECK_AHEAD_ITEMS: Final = 4096
"""How many records are checked in one pass when reading on."""
SETTLE_SECONDS: Final = 0.002


class SegmentView:
    """A mapped segment. Reads need no lock; one view is not for two threads at once."""

    def __init__(self, path: Path, disk: Disk) -> None:
        """Map the file at `path`. Raises FileNotFoundError, CorruptSegment, StorageError."""
        self.path = path
        self._disk = disk
        self._pinned_by = 0
        with reading_errors(path), ExitStack() as undo:
            self._fd = disk.open_to_read(path)
            undo.callback(disk.close, self._fd)
            self.header: SegmentHeader = decode_header(
                disk.read_at(self._fd, HEADER_BYTES, 0), path=path
            )
            self._mapping = disk.map_to_read(self._fd, disk.size(self._fd))
            undo.pop_all()
        self.view = memoryview(self._mapping)
        self._summary: Summary | None = None
        self._checked_first = 0
        self._checked_stop = 0

    @property
    def first_offset(self) -> Offset:
        return self.header.first_offset

    def summary(self) -> Summary | None:
        """Return what the seal says, or None while the segment takes records."""
        if self._summary is None:
            self._summary = decode_summary(bytes(self.view[:HEADER_BYTES]), self.header)
        return self._summary

    def pin(self) -> None:
        """Keep retention, in any process, from deleting the file until this view is closed."""
        if not self._pinned_by:
            with reading_errors(self.path):
                self._disk.lock(self._fd, shared=True)
            self._pinned_by = os.getpid()

    def is_current(self) -> bool:
        """Tell whether the path still leads to this file, and not to one that replaced it."""
        with reading_errors(self.path):
            return self._disk.is_same_file(self._fd, self.path)

    def send(self, target: int, count_bytes: int, position: int) -> int:
        """Send bytes of the file to a descriptor; return how many were. Raises OSError."""
        return self._disk.send(self._fd, target, count_bytes, position)

    def close(self) -> None:
        """Let go of the file. Columns that still point into the mapping keep it alive."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with reading_errors(self.path), ExitStack() as closing:
            closing.callback(self._disk.close, fd)
            if self._pinned_by == os.getpid():
                # By hand: the mapping holds the file open for as long as somebody holds the
                # mapping. Not in a forked child, where it would unlock the parent's.
                self._disk.unlock(fd)
            with contextlib.suppress(BufferError):
                self.view.release()
                self._mapping.close()

    # Checking ------------------------------------------------------------------------------

    def check(self, index: int, stop: int, ahead_items: int = CHECK_AHEAD_ITEMS) -> int:
        """Make sure record `index` is intact and return up to where the ones after it are, too.

        `stop` bounds what may be looked at: the number of records published. Raises CorruptRecord
        if the batch of `index` is damaged.
        """
        if self._checked_first <= index < self._checked_stop:
            return min(stop, self._checked_stop)
        ahead = min(stop, index + ahead_items)
        if index == self._checked_stop and index < stop:
            start = index
        else:
            start = slots.batch_start(self.view, index) if self._has_slot(index) else index
        if self._has_slot(ahead - 1):
            ahead = slots.batch_stop(self.view, ahead - 1)
        before = self.header.key if start == 0 else None
        if ahead > stop or not slots.is_intact(self.view, self.header, start, ahead, before=before):
            ahead = self._intact_stop(start, index, stop)
        if start != self._checked_stop:
            self._checked_first = start
        self._checked_stop = ahead
        return min(stop, ahead)

    def _has_slot(self, index: int) -> bool:
        end = slots.slot_position(index + 1)
        return 0 <= index < self.header.items_max and end <= len(self.view)

    def _intact_stop(self, start: int, index: int, stop: int) -> int:
        """Return where the intact run that holds `index` ends; raise if there is none."""
        for attempt in range(2):
            damaged = None
            for run in slots.walk(self.view, self.header, start, stop):
                if run.first <= index < run.stop:
                    if run.intact:
                        return run.stop
                    damaged = run
                    break
            if attempt == 0 and self.summary() is None:
                # On a processor that reorders stores, the words may have come before the bytes.
                time.sleep(SETTLE_SECONDS)
                continue
            break
        assert damaged is not None
        raise CorruptRecord(
            path=self.path,
            first_offset=self.first_offset + damaged.first,
            last_offset=self.first_offset + damaged.stop - 1,
            position=slots.slot_position(damaged.first),
        )

    # Reading -------------------------------------------------------------------------------

    def record(self, index: int, stop: int) -> Record:
        """Return record `index`. Raises CorruptRecord, RecordRemoved."""
        self.check(index, stop, 1)
        slot = slots.slot_at(self.view, index)
        offset = Offset(self.first_offset + index)
        if slot.link & slots.REMOVED:
            raise RecordRemoved(offset=offset)
        return Record(offset, slot.time_us, slot.attr, self._mapping[slot.position : slot.end])

    def records(self, index: int, stop: int) -> list[Record]:
        """Return records `index` to `stop`, all checked before; removed ones are left out."""
        return read_records(Record, self._mapping, index, stop, self.first_offset)

    def index_at(self, time_us: int, stop: int) -> int:
        """Return the first index, up to `stop`, whose record is not older than `time_us`."""
        times = _Times(self.view)
        return bisect_left(times, time_us, 0, min(stop, len(times)))

    def kept_index(self, index: int, stop: int) -> int:
        """Return the first index from `index` on whose record is not removed; `stop` if none is.

        Unchecked, as `index_at` is.
        """
        last = min(stop, len(_Times(self.view)))
        if index < last:
            table = self.view[slots.slot_position(index) : slots.slot_position(last)]
            for place, link in enumerate(slots.links(table), index):
                if not link & slots.REMOVED:
                    return place
        return stop

    def find(self, data: bytes, position: int, stop: int) -> int:
        """Return where these bytes stand next, before `stop`; -1 if nowhere. Unchecked."""
        return self._mapping.find(data, position, stop)

    def payload_bytes(self, index: int, stop: int) -> int:
        """Return the payload bytes of records `index` to `stop`, by two slots; unchecked."""
        stop = min(stop, len(_Times(self.view)))
        if index >= stop:
            return 0
        first, last = slots.slot_at(self.view, index), slots.slot_at(self.view, stop - 1)
        return min(max(0, last.end - first.position), self.header.payload_bytes_max)


class _Times:
    """The times of a segment's slots as a sequence to bisect; unchecked, so only a guide."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __len__(self) -> int:
        return (len(self._view) - HEADER_BYTES) // SLOT_BYTES

    def __getitem__(self, index: int) -> int:
        return slots.slot_at(self._view, index).time_us
