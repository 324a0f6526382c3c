"""How far a log goes, as seen by one process: from the live words, or by looking for oneself.

A log that nobody has opened for writing since the machine started has no words to believe. Then
the last segment is walked, once, and nothing is written: reading never repairs.
"""

import contextlib
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path

from segue.errors import CorruptSegment, Damage, LogClosed, OffsetTrimmed
from segue.log import slots
from segue.log.catalog import Catalog
from segue.log.disk import Disk
from segue.log.layout import Offset, SegmentId
from segue.log.live import FIRST, PUBLISHED, SEGMENT, Live
from segue.log.record import Record
from segue.log.segment import SegmentView


class Horizon:
    """The range of offsets that can be read now. Safe from any thread."""

    def __init__(self, directory: Path, disk: Disk, live: Live | None) -> None:
        self._directory = directory
        self._disk = disk
        self._owns_live = live is None
        self.live = live
        self._lock = threading.Lock()
        self.catalog = Catalog(directory, disk)
        self._walked: Offset | None = None

    def _current(self) -> Live | None:
        """Return the live words if there are any to believe."""
        if not self._owns_live:
            return self.live
        if self.live is None:
            with contextlib.suppress(OSError, ValueError):
                self.live = Live(self._directory, self._disk, read_only=True)
        return self.live if self.live is not None and self.live.is_current() else None

    def next_offset(self) -> Offset:
        """Return the offset after the last record that can be read."""
        live = self._current()
        if live is None:
            with self._lock:
                return self._latest()
        try:
            return Offset(live.words[PUBLISHED])
        except ValueError:
            raise LogClosed(f"{self._directory} is closed") from None

    def _latest(self) -> Offset:
        live = self._current()
        if live is not None:
            return Offset(live.words[PUBLISHED])
        if self._walked is None:
            self._walked = self._walk()
        return self._walked

    def _walk(self) -> Offset:
        for id_ in reversed(self.catalog.ids):
            with contextlib.suppress(CorruptSegment, FileNotFoundError):
                view = SegmentView(self.catalog.path(id_), self._disk)
                try:
                    return Offset(view.first_offset + _valid_count(view))
                finally:
                    view.close()
        return Offset(0)

    def first_offset(self) -> Offset:
        """Return the offset of the oldest record there is; `next_offset` if there is none."""
        with self._lock:
            self.follow()
            for place in range(len(self.catalog.ids)):
                begins = self.catalog.first_offset(place)
                if begins is not None:
                    return begins
        return self.next_offset()

    def active(self) -> SegmentId | None:
        """Return the segment that takes records, as far as is known."""
        live = self._current()
        if live is not None:
            return SegmentId(live.words[SEGMENT])
        return self.catalog.ids[-1] if self.catalog.ids else None

    def follow(self) -> None:
        """Bring the catalogue up to date. The caller holds the lock."""
        live = self._current()
        if live is not None:
            self.catalog.follow(SegmentId(live.words[FIRST]), SegmentId(live.words[SEGMENT]))

    def open_view(self, offset: Offset) -> SegmentView:
        """Map the segment that holds `offset`, or should: the last one that begins before it.

        Raises OffsetTrimmed, CorruptSegment.
        """
        for _ in range(3):
            with self._lock:
                self.follow()
                id_ = self.catalog.find(offset)
                if id_ is not None:
                    try:
                        return SegmentView(self.catalog.path(id_), self._disk)
                    except FileNotFoundError:
                        pass  # Deleted since we listed the directory.
                self.catalog.forget([] if id_ is None else [id_])
                self.catalog.refresh()
        self.require(offset)
        raise CorruptSegment(
            path=self._directory, reason=f"no readable segment holds offset {offset}"
        )

    def require(self, offset: Offset) -> None:
        """Raise OffsetTrimmed if `offset` lies before the oldest record."""
        earliest = self.first_offset()
        if offset < earliest:
            raise OffsetTrimmed(offset=offset, earliest=earliest, latest=self.next_offset())

    def end_of(self, view: SegmentView) -> Offset:
        """Return the offset after the last record of a segment that can be read now."""
        with self._lock:
            return self._end_of(view)

    def _end_of(self, view: SegmentView) -> Offset:
        latest = self._latest()
        if view.header.id == self.active():
            return latest
        summary = view.summary()
        if summary is not None:
            return Offset(view.first_offset + summary.count)
        following = self._following(view)
        return latest if following is None else following

    def following(self, view: SegmentView) -> Offset | None:
        """Return where the next readable segment after `view` begins, if there is one."""
        with self._lock:
            return self._following(view)

    def _following(self, view: SegmentView) -> Offset | None:
        self.follow()
        place = bisect_right(self.catalog.ids, view.header.id)
        for later in range(place, len(self.catalog.ids)):
            begins = self.catalog.first_offset(later)
            if begins is not None:
                return begins
        return None

    def record(self, offset: Offset) -> Record:
        """Return one record, from the few segments kept mapped. The caller serialises."""
        with self._lock:
            self.follow()
            id_ = self.catalog.find(offset)
            if id_ is not None:
                with contextlib.suppress(FileNotFoundError):
                    view = self.catalog.view(id_)
                    end = self._end_of(view)
                    if offset < end:
                        first = view.first_offset
                        return view.record(offset - first, end - first)
        self.require(offset)
        raise CorruptSegment(
            path=self._directory, reason=f"no readable segment holds offset {offset}"
        )

    def segment_of(self, offset: Offset) -> SegmentId:
        """Return the segment that holds `offset`, or will."""
        with self._lock:
            self.follow()
            found = self.catalog.find(offset)
            return found if found is not None else SegmentId(0)

    def offset_at(self, time_us: int) -> Offset:
        """Return the first offset whose record is not older than `time_us`."""
        latest = self.next_offset()
        with self._lock:
            self.follow()
            ids = self.catalog.ids
            place = bisect_left(ids, True, key=lambda id_: self._begins_after(id_, time_us))
            for id_ in ids[max(0, place - 1) :]:
                try:
                    view = self.catalog.view(id_)
                except (Damage, FileNotFoundError):
                    continue
                stop = self._end_of(view) - view.first_offset
                index = view.index_at(time_us, stop)
                if index < stop:
                    return Offset(view.first_offset + index)
        return latest

    def _begins_after(self, id_: SegmentId, time_us: int) -> bool:
        try:
            return self.catalog.header(id_).created_us > time_us
        except (Damage, FileNotFoundError):
            return False

    def close(self) -> None:
        self.catalog.close()
        if self._owns_live and self.live is not None:
            self.live.close()


def _valid_count(view: SegmentView) -> int:
    summary = view.summary()
    if summary is not None:
        return summary.count
    for run in slots.walk(view.view, view.header, 0, slots.written_slots(view.view, view.header)):
        return run.stop if run.intact else 0
    return 0
