"""How far a log goes, as seen by one process: from the live words, or by looking for oneself.

A log that nobody has opened for writing since the machine started has no words to believe. Then
the last segment is walked, once, and nothing is written: reading never repairs.
"""

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from segue.errors import CorruptRecord, CorruptSegment, Damage, LogClosed, OffsetTrimmed
from segue.log import slots
from segue.log.catalog import Catalog
from segue.log.disk import Disk
from segue.log.hint import read_hint
from segue.log.layout import Offset, SegmentId
from segue.log.live import FIRST, PUBLISHED, REWRITES, SEGMENT, Live
from segue.log.record import Record
from segue.log.segment import SegmentView
from segue.log.tailcheck import Evidence, check_tail


class Extent(NamedTuple):
    """A part of a segment: offsets, and how many bytes of payload they have."""

    start: Offset
    stop: Offset
    size_bytes: int


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
        self._rewrites = 0
        self._is_closed = False

    def _current(self) -> Live | None:
        """Return the live words if there are any to believe."""
        if self._is_closed:
            raise LogClosed(f"{self._directory} is closed")
        if not self._owns_live:
            return self.live
        if self.live is None:
            with contextlib.suppress(OSError, ValueError):
                self.live = Live(self._directory, self._disk, read_only=True)
        return self.live if self.live is not None and self.live.is_current() else None

    def _word(self, which: int) -> int | None:
        """Return a live word, or None if there is none to believe."""
        try:
            live = self._current()
            return None if live is None else live.words[which]
        except ValueError:  # Closed by another thread just now.
            raise LogClosed(f"{self._directory} is closed") from None

    def next_offset(self) -> Offset:
        """Return the offset after the last record that can be read."""
        published = self._word(PUBLISHED)
        if published is not None:
            return Offset(published)
        with self._lock:
            return self._latest()

    def _latest(self) -> Offset:
        published = self._word(PUBLISHED)
        if published is not None:
            return Offset(published)
        if self._walked is None:
            self._walked = self._walk()
        return self._walked

    def _walk(self) -> Offset:
        evidence = Evidence(hint=read_hint(self._directory, self._disk), published=None)
        for id_ in reversed(self.catalog.ids):
            with contextlib.suppress(CorruptSegment, FileNotFoundError):
                view = SegmentView(self.catalog.path(id_), self._disk)
                try:
                    summary = view.summary()
                    count = check_tail(view, evidence).count if summary is None else summary.count
                    return Offset(view.first_offset + count)
                finally:
                    view.close()
        return Offset(0)

    def first_offset(self) -> Offset:
        """Return the offset of the oldest record there is; `next_offset` if there is none."""
        with self._lock:
            self.follow()
            if self.catalog.ids and self.catalog.ids[0] == 0:
                return Offset(0)  # Also if its header is damaged: nothing can have come before.
            for place in range(len(self.catalog.ids)):
                begins = self.catalog.first_offset(place)
                if begins is not None:
                    return begins
        return self.next_offset()

    def active(self) -> SegmentId | None:
        """Return the segment that takes records, as far as is known."""
        segment = self._word(SEGMENT)
        if segment is not None:
            return SegmentId(segment)
        return self.catalog.ids[-1] if self.catalog.ids else None

    def follow(self) -> None:
        """Bring the catalogue up to date. The caller holds the lock."""
        try:
            live = self._current()
            if live is None:
                return
            words = live.words
            first, segment, rewrites = words[FIRST], words[SEGMENT], words[REWRITES]
        except ValueError:  # Closed by another thread just now.
            raise LogClosed(f"{self._directory} is closed") from None
        self.catalog.follow(SegmentId(first), SegmentId(segment))
        if rewrites != self._rewrites or rewrites & 1:
            self.catalog.drop_views()
            self._rewrites = rewrites

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Tell every process that the file of a segment is being replaced.

        Mappings of it that are kept for reads by offset are then dropped. The caller keeps other
        writers away.
        """
        assert self.live is not None, "who may write has the live words"
        self.live.words[REWRITES] |= 1
        try:
            yield
        finally:
            self.live.words[REWRITES] += 1

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
        # Never more than the segment can hold, whatever the words say.
        latest = Offset(min(self._latest(), view.first_offset + view.header.items_max))
        if view.header.id == self.active():
            return latest
        summary = view.summary()
        if summary is not None:
            return Offset(view.first_offset + summary.count)
        following = self._following(view.first_offset)
        return latest if following is None else following

    def following(self, offset: Offset) -> Offset | None:
        """Return where the first readable segment that begins after `offset` does so."""
        with self._lock:
            return self._following(offset)

    def starts(self) -> Iterator[Offset]:
        """Yield where segments begin, the last one first, but those that cannot be read."""
        with self._lock:
            self.follow()
            ids = list(self.catalog.ids)
        for id_ in reversed(ids):
            with self._lock:
                first = self._first_offset_of(id_)
            if first is not None:
                yield first

    def _following(self, offset: Offset) -> Offset | None:
        self.follow()
        found = self.catalog.find(offset)
        place = 0 if found is None else bisect_right(self.catalog.ids, found)
        for later in range(place, len(self.catalog.ids)):
            begins = self.catalog.first_offset(later)
            if begins is not None and begins > offset:
                return begins
        return None

    def record(self, offset: Offset) -> Record:
        """Return one record, from the few segments kept mapped. The caller serialises."""
        with self._lock:
            self.follow()
            id_ = self.catalog.find(offset)
            if id_ is not None:
                with contextlib.suppress(FileNotFoundError):
                    try:
                        record = self._record_in(id_, offset)
                    except CorruptRecord:
                        # It may have been repaired since it was mapped: look at it anew.
                        self.catalog.drop_view(id_)
                        record = self._record_in(id_, offset)
                    if record is not None:
                        return record
        self.require(offset)
        raise CorruptSegment(
            path=self._directory, reason=f"no readable segment holds offset {offset}"
        )

    def _record_in(self, id_: SegmentId, offset: Offset) -> Record | None:
        view = self.catalog.view(id_)
        end = self._end_of(view)
        first = view.first_offset
        return view.record(offset - first, end - first) if offset < end else None

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
            place = bisect_left(range(len(ids)), True, key=lambda at: self._reaches(at, time_us))
            for id_ in ids[place:]:
                try:
                    view = self.catalog.view(id_)
                except (Damage, FileNotFoundError):
                    continue
                stop = self._end_of(view) - view.first_offset
                index = view.index_at(time_us, stop)
                if index < stop:
                    return Offset(view.first_offset + index)
        return latest

    def bytes_from(self, offset: Offset) -> int:
        """Return the payload bytes of all records from `offset` on."""
        with self._lock:
            return sum(self._bytes_in(id_, offset) for id_ in self._ids_from(offset))

    def _bytes_in(self, id_: SegmentId, offset: Offset) -> int:
        try:
            header, summary = self.catalog.read_page(id_)
            if summary is not None and offset <= header.first_offset:
                return summary.payloads_end - header.payloads_position
            view = self.catalog.view(id_)
        except (Damage, FileNotFoundError):
            return 0
        first = view.first_offset
        return view.payload_bytes(max(0, offset - first), self._end_of(view) - first)

    def extents(self, start: Offset, stop: Offset) -> Iterator[Extent]:
        """Yield the parts of segments that lie between two offsets, in order, from headers alone.

        What cannot be read belongs to the part before it, or to the first one.
        """
        with self._lock:
            ids = self._ids_from(start)
        begin, size_bytes = start, 0
        for id_ in ids:
            with self._lock:
                first = self._first_offset_of(id_)
                here_bytes = self._bytes_between(id_, start, stop)
            if first is None:
                continue
            if first >= stop:
                break
            if first > begin:
                yield Extent(begin, first, size_bytes)
                begin = first
            size_bytes = here_bytes
        if begin < stop:
            yield Extent(begin, stop, size_bytes)

    def _first_offset_of(self, id_: SegmentId) -> Offset | None:
        try:
            return self.catalog.header(id_).first_offset
        except (Damage, FileNotFoundError):
            return None

    def _bytes_between(self, id_: SegmentId, start: Offset, stop: Offset) -> int:
        try:
            header, summary = self.catalog.read_page(id_)
            first = header.first_offset
            if first >= stop:
                return 0
            if summary is not None and start <= first and first + summary.count <= stop:
                return summary.payloads_end - header.payloads_position
            view = self.catalog.view(id_)
        except (Damage, FileNotFoundError):
            return 0
        end = min(self._end_of(view), stop) - first
        low = max(0, start - first)
        return view.payload_bytes(low, end) if low < end else 0

    def time_of(self, offset: Offset) -> int | None:
        """Return the time of the first record from `offset` on, None if there is none."""
        with self._lock:
            for id_ in self._ids_from(offset):
                try:
                    view = self.catalog.view(id_)
                except (Damage, FileNotFoundError):
                    continue
                first = view.first_offset
                stop = self._end_of(view) - first
                index = view.kept_index(max(0, offset - first), stop)
                if index < stop:
                    return slots.slot_at(view.view, index).time_us
        return None

    def _ids_from(self, offset: Offset) -> list[SegmentId]:
        """Return the segment that holds `offset` and those after it."""
        self.follow()
        found = self.catalog.find(offset)
        return self.catalog.ids[0 if found is None else bisect_left(self.catalog.ids, found) :]

    def _reaches(self, place: int, time_us: int) -> bool:
        """Tell whether the segment at `place`, or one before it, has a record at `time_us`."""
        for id_ in self.catalog.ids[place:]:
            with contextlib.suppress(Damage, FileNotFoundError):
                header, summary = self.catalog.read_page(id_)
                if id_ == self.catalog.ids[place]:
                    return summary is None or summary.last_time_us >= time_us
                return header.created_us >= time_us  # Damaged: judge by where the next begins.
        return True

    def close(self) -> None:
        self._is_closed = True
        with ExitStack() as closing:
            closing.callback(self.catalog.close)
            if self._owns_live and self.live is not None:
                closing.callback(self.live.close)
