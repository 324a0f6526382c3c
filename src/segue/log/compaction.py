"""Removing records that nobody wants from sealed segments; the caller says which.

Reading the old file and writing the new one takes no lock, so appending goes on meanwhile. At the
swap the old file must still be the one that was read: if another process has deleted, repaired or
compacted it since, that one's work stands and ours is dropped. A segment with any damage is left
as it is, because a new one would hide it.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from segue.errors import CorruptSegment
from segue.log import slots
from segue.log.appender import Appender
from segue.log.catalog import list_segments
from segue.log.disk import Disk, storage_errors
from segue.log.horizon import Horizon
from segue.log.layout import HEADER_BYTES, SegmentId, Summary, damaged_copies
from segue.log.record import Record
from segue.log.rewriting import copied, discard, take_name, write_beside
from segue.log.segment import SegmentView
from segue.values import dataclass

logger = logging.getLogger(__name__)

READ_ITEMS_MAX: Final = 1024
"""How many records are held in memory at a time."""

Keep = Callable[[Record], bool]
"""Says whether a record is still wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteReport:
    """What removing records did."""

    segments: list[SegmentId]
    """Written anew; all others are as they were."""
    removed_records: int
    freed_bytes: int
    """How much less the segments take up on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rewritten:
    id: SegmentId
    removed_records: int
    freed_bytes: int


class Compactor:
    """Works on one log. Any number of them may, in any process."""

    def __init__(self, directory: Path, horizon: Horizon, appender: Appender, disk: Disk) -> None:
        self._directory = directory
        self._horizon = horizon
        self._appender = appender
        self._disk = disk

    def remove(self, keep: Keep, stop: int | None) -> RewriteReport:
        """Remove what `keep` refuses from the sealed segments that end at or before `stop`."""
        done = []
        for id_ in list_segments(self._directory, self._disk):
            view = self._open(id_)
            if view is None:
                continue
            try:
                rewritten = self._remove_from(view, keep, stop)
            finally:
                view.close()
            if rewritten is not None:
                done.append(rewritten)
        return RewriteReport(
            segments=[each.id for each in done],
            removed_records=sum(each.removed_records for each in done),
            freed_bytes=sum(each.freed_bytes for each in done),
        )

    def _open(self, id_: SegmentId) -> SegmentView | None:
        """Map a segment, unless it is gone or cannot be read."""
        path = self._horizon.catalog.path(id_)
        try:
            return SegmentView(path, self._disk)
        except FileNotFoundError:
            return None
        except CorruptSegment as error:
            logger.warning("left damaged segment alone path=%s reason=%s", path, error.reason)
            return None

    def _remove_from(self, view: SegmentView, keep: Keep, stop: int | None) -> _Rewritten | None:
        summary = view.summary()
        if summary is None or view.header.id == self._horizon.active():
            return None
        if stop is not None and view.first_offset + summary.count > stop:
            return None
        if not self._is_whole(view, summary):
            logger.warning("left damaged segment alone path=%s", view.path)
            return None
        removed = _refused(view, summary.count, keep)
        if not removed:
            return None
        freed_bytes = self._replace(view, summary.count, removed)
        if freed_bytes is None:
            logger.info("changed by others, left alone path=%s", view.path)
            return None
        logger.info("rewrote path=%s removed=%d", view.path, len(removed))
        return _Rewritten(id=view.header.id, removed_records=len(removed), freed_bytes=freed_bytes)

    def _is_whole(self, view: SegmentView, summary: Summary) -> bool:
        header, page = view.header, bytes(view.view[:HEADER_BYTES])
        return (
            view.path == self._horizon.catalog.path(header.id)
            and damaged_copies(page, sealed=True) == 0
            and slots.is_intact(view.view, header, 0, summary.count, before=header.key)
        )

    def _replace(self, view: SegmentView, count: int, removed: list[int]) -> int | None:
        """Swap in the segment without `removed`; return the bytes freed, None if others did."""
        disk, path = self._disk, view.path
        with storage_errors(f"rewriting {path}"):
            new = write_beside(path, view.header, copied(view, 0, count, removed), disk)
            try:
                # What a record was removed for may have been appended just now: it must last.
                self._appender.flush()
                with self._appender.locked():
                    if view.is_current():
                        freed_bytes = disk.file_bytes(path) - disk.file_bytes(new)
                        take_name(new, path, self._horizon, disk)
                        return freed_bytes
            except BaseException:
                discard(new, disk)
                raise
            discard(new, disk)
        return None


def _refused(view: SegmentView, count: int, keep: Keep) -> list[int]:
    """Return the indexes of the records that `keep` refuses, from a segment that is intact."""
    first = view.first_offset
    return [
        record.offset - first
        for index in range(0, count, READ_ITEMS_MAX)
        for record in view.records(index, min(count, index + READ_ITEMS_MAX))
        if not keep(record)
    ]
