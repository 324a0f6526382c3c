"""The logs that hold a queue's messages, read ahead where they are delivered in order.

lanes/<priority>/   what was pushed, in order
aside/              what was pushed with a delay, and what was carried out of an old segment
dead/               dead letters
"""

import threading
from contextlib import ExitStack
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from segue.delivery.events import ASIDE
from segue.delivery.priority import PRIORITY_MAX
from segue.errors import (
    CorruptRecord,
    CorruptSegment,
    OffsetOutOfRange,
    OffsetTrimmed,
    RecordRemoved,
    SegueError,
)
from segue.log import Log
from segue.log.cursor import Cursor
from segue.log.disk import storage_errors
from segue.log.layout import SEGMENT_BYTES_DEFAULT, Offset
from segue.log.live import PUBLISHED, SEGMENT
from segue.log.options import SyncName
from segue.log.record import Record
from segue.log.wake import Bell
from segue.stores.file.place import Place
from segue.stores.portions import PORTION_BYTES_MAX

UNREADABLE: Final = (OffsetOutOfRange, RecordRemoved, CorruptRecord, CorruptSegment)
"""What reading a message may come to: it was lost to a power cut, removed or damaged."""
WIDE_SEGMENT_BYTES: Final = 2 * SEGMENT_BYTES_DEFAULT
"""The segments of what is moved: whatever fits in a lane fits here with all that is said of it."""
READ_AHEAD_STEP: Final = 16
READ_AHEAD_ITEMS: Final = 256
READ_AHEAD_BYTES: Final = 256 * 1024


def is_damage(error: SegueError) -> bool:
    """Tell whether what cannot be read is there, but damaged."""
    return isinstance(error, CorruptRecord | CorruptSegment)


class Lane:
    """One log of messages. Reading is for whoever has the queue's turn."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.append = log.append
        self.words = log.writer.live.words
        self._cursor = Cursor(log._horizon, Offset(0), on_damage="skip", pin=False)
        self.ahead: list[Record] = []
        self.base = 0
        self._items = READ_AHEAD_STEP
        self._first_end: int | None = None
        self._measured_at = -1

    @property
    def end(self) -> int:
        """The offset after the last message that can be read."""
        return self.words[PUBLISHED]

    def run(self, first: int, most: int) -> list[Record]:
        """Return messages from `first` on, without a gap; none if the first cannot be read.

        Fewer than `most` if they are large, and one at least.
        """
        place = first - self.base
        ahead = self.ahead
        if place < 0 or place + most > len(ahead):
            self.read_ahead(first, most)
            place, ahead = 0, self.ahead
        if most == 1:
            return [ahead[place]] if ahead else []
        return ahead[place : place + most]

    def read_ahead(self, first: int, most: int) -> None:
        """Have messages from `first` on in memory: `ahead`, which begins with `base`."""
        cursor = self._cursor
        wanted, most = most, max(most, self._items)
        place = first - self.base
        records = self.ahead[place:] if 0 <= place < len(self.ahead) else []
        cursor.offset = Offset(first + len(records))
        size_bytes = size_of(records)
        try:
            while (len(records) < wanted and size_bytes < PORTION_BYTES_MAX) or (
                len(records) < most and size_bytes < READ_AHEAD_BYTES
            ):
                more = cursor.fetch(max(READ_AHEAD_STEP, wanted - len(records)))
                if not more:
                    break
                records += more
                size_bytes += size_of(more)
        except OffsetTrimmed:
            records = []  # The first segment is gone, and nobody deleted it.
        if records and records[-1].offset != first + len(records) - 1:
            records = _without_gap(records, first)
        self.ahead = records
        self.base = first
        self._items = READ_AHEAD_ITEMS

    def next_readable(self, first: int) -> int:
        """Return where reading can go on after `first`, which cannot be read."""
        self._cursor.offset = Offset(first)
        try:
            records = self._cursor.fetch(1)
        except OffsetTrimmed as error:
            return error.earliest
        return records[0].offset if records else max(first + 1, self._cursor.offset)

    def first_segment_end(self) -> int | None:
        """Return the offset where the second segment begins; None if there is only one."""
        segment = self.words[SEGMENT]
        if self._first_end is None and segment != self._measured_at:
            self._measured_at = segment
            self._first_end = self.log._horizon.following(self.log.first_offset)
        return self._first_end

    def trim(self, offset: int) -> None:
        """Delete the segments before `offset`."""
        self.log.trim(offset)
        self._first_end = None
        self._measured_at = -1

    def close(self) -> None:
        self._cursor.close()
        self.log.close()


def _without_gap(records: list[Record], first: int) -> list[Record]:
    """Return the records that follow each other from `first` on."""
    return [
        record
        for _, record in takewhile(
            lambda pair: pair[0] == pair[1].offset, zip(count(first), records, strict=False)
        )
    ]


def _is_priority(name: str) -> bool:
    is_number = name.isascii() and name.isdecimal() and len(name) <= len(str(PRIORITY_MAX))
    return is_number and str(int(name)) == name and int(name) <= PRIORITY_MAX


class Lanes:
    """All logs of one queue but its ledger, opened when they are first needed."""

    def __init__(self, path: Path, place: Place, bell: Bell) -> None:
        self._path = path
        self._place = place
        self._bell = bell
        self._lock = threading.Lock()
        self._segment_items: int | None = None
        self.by_priority: dict[int, Lane] = {}
        self._aside: Lane | None = None
        self._dead: Lane | None = None

    def set_segment_items(self, segment_items: int | None) -> None:
        """Say how lanes that are opened from now on are cut."""
        self._segment_items = segment_items

    def open(self, priority: int) -> Lane:
        """Return the lane of `priority`, making it if it is not there."""
        if priority == ASIDE:
            return self.aside
        lane = self.by_priority.get(priority)
        if lane is None:
            with self._lock:
                lane = self.by_priority.get(priority)
                if lane is None:
                    lane = self._open(f"lanes/{priority}", segment_items=self._segment_items)
                    self.by_priority[priority] = lane
        return lane

    def _open(
        self,
        name: str,
        *,
        segment_items: int | None = None,
        segment_bytes: int | None = None,
        sync: SyncName | None = None,
    ) -> Lane:
        return Lane(
            self._place.log(
                self._path / name,
                segment_items=segment_items,
                segment_bytes=segment_bytes,
                bell=self._bell,
                sync=sync,
            )
        )

    @property
    def aside(self) -> Lane:
        with self._lock:
            if self._aside is None:
                self._aside = self._open("aside", segment_bytes=WIDE_SEGMENT_BYTES)
            return self._aside

    @property
    def dead(self) -> Lane:
        with self._lock:
            if self._dead is None:
                # Synced at once: the ledger must not say of a message that it is here before it is.
                sync: SyncName = "always" if self._place.is_durable else "os"
                self._dead = self._open("dead", sync=sync, segment_bytes=WIDE_SEGMENT_BYTES)
            return self._dead

    def make_directory(self) -> None:
        """Have the queue be there for others to see, before anything is pushed to it."""
        with storage_errors(f"creating {self._path}"):
            self._place.disk.make_directory(self._path / "lanes")

    def priorities_on_disk(self) -> list[int]:
        """Return the priorities that have a lane."""
        with storage_errors(f"listing {self._path}"):
            names = self._place.disk.names(self._path / "lanes")
        return [int(name) for name in names if _is_priority(name)]

    def has_aside_on_disk(self) -> bool:
        return self._place.disk.exists(self._path / "aside")

    @property
    def has_dead(self) -> bool:
        """Whether there is a log of dead letters."""
        return self._dead is not None or self._place.disk.exists(self._path / "dead")

    def opened(self) -> list[Lane]:
        """Return the logs that are open."""
        others = [lane for lane in (self._aside, self._dead) if lane is not None]
        return [*self.by_priority.values(), *others]

    def close(self) -> None:
        with ExitStack() as closing:
            for lane in self.opened():
                closing.callback(lane.close)


def size_of(records: list[Record]) -> int:
    """Return how many bytes messages have together."""
    return sum([len(payload) for _, _, _, payload in records])
