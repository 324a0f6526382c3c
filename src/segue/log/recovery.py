"""Opening after any kind of stop: keep the longest valid run, never delete on doubt.

Runs once, while the opener is alone with the log. Whatever it does, doing it again, or again after
being interrupted, gives the same answer:

- A segment before the last that was never sealed is sealed at the offset where the next begins.
- In the last one, what lies behind the valid run is cut: its slots are zeroed and written over.
- Unless it was certainly there before, because a process of this boot published it or the hint
  says it was synced. Then bytes have rotted: the segment is sealed as it is, the damaged batch is
  reported to whoever reads it, its neighbours stay readable, and the log goes on in a new segment.
- Anything that might have been a record and is moved or cut is copied to `quarantine/` first;
  after a restart of the machine that is every torn tail.
"""

import contextlib
import logging
import re
import secrets
from dataclasses import replace
from itertools import count as count_from
from pathlib import Path
from typing import Final

from segue.errors import CorruptPosition, CorruptSegment
from segue.log import slots
from segue.log.catalog import DELETED_SUFFIX, NEW_SUFFIX, Catalog, list_leftovers
from segue.log.disk import Disk, storage_errors
from segue.log.hint import read_hint
from segue.log.layout import (
    BATCH_ITEMS_MAX,
    SLOT_BYTES,
    Offset,
    Position,
    SegmentHeader,
    SegmentId,
    Summary,
    segment_id,
)
from segue.log.live import PUBLISHED, WRITTEN, Live
from segue.log.options import LogOptions, Sync
from segue.log.positions import DIRECTORY as READERS
from segue.log.positions import Positions, SavedPosition
from segue.log.segment import SegmentView
from segue.log.tail import adopt_segment, create_segment
from segue.log.tailcheck import Evidence, check_tail
from segue.log.wake import DIRECTORY as WAKE
from segue.values import dataclass

logger = logging.getLogger(__name__)

QUARANTINE: Final = "quarantine"
_REPLACEMENT = re.compile(r".+\.meta\.\d+-\d+\.tmp")
"""A position that was being replaced."""
_COPY_STEP_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """Where the log goes on: after `count` records of `header`'s segment.

    `sealed` says that the segment takes no more, so the next one must be made.
    """

    header: SegmentHeader
    count: int
    sealed: bool
    last_time_us: int = 0


def recover_log(directory: Path, live: Live, options: LogOptions) -> None:
    """Bring a log into order, which nobody else has open, and say so in the live words."""
    disk = options.disk
    sync = options.sync is not Sync.OS
    catalog = Catalog(directory, disk)
    evidence = Evidence(
        hint=read_hint(directory, disk),
        published=_published(live),
    )
    recovery = Recovery(directory, catalog, disk, evidence, sync=sync)
    tip = recovery.run()
    end = Offset(0) if tip is None else Offset(tip.header.first_offset + tip.count)
    end = max(end, recovery.lost_end(tip))
    if (
        evidence.published is not None
        and (tip is None or tip.sealed)
        and 0 < evidence.published - end <= BATCH_ITEMS_MAX
    ):
        # Published, but in no segment that is left: their offsets are not given out again.
        end = evidence.published
    if tip is not None and not tip.sealed:
        active = tip.header.id
    else:
        previous = None if tip is None else tip.header
        active = SegmentId(recovery.highest_id + 1)
        header = options.new_header(
            active,
            end,
            previous,
            nonce=secrets.randbits(64),
            not_before_us=0 if tip is None else tip.last_time_us,
        )
        created = create_segment(directory, header, disk, sync=sync)
        adopt_segment(created, disk, sync=sync)
        catalog.ids.append(active)
    Positions(directory, disk).clamp(SavedPosition(active, end))
    live.start(first=catalog.ids[0], segment=active, next_offset=end)


def _published(live: Live) -> Offset | None:
    """Return the published word, if it can be believed."""
    if live.is_current() and live.words[PUBLISHED] <= live.words[WRITTEN]:
        return Offset(live.words[PUBLISHED])
    return None


class Recovery:
    """One recovery of one log."""

    def __init__(
        self, directory: Path, catalog: Catalog, disk: Disk, evidence: Evidence, *, sync: bool
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._disk = disk
        self._evidence = evidence
        self._sync = sync
        self.highest_id = self._highest_id()

    def run(self) -> Tip | None:
        """Bring the log into order and return its tip, or None if it has no segment yet."""
        with storage_errors(f"recovering {self._directory}"):
            self._clear_leftovers()
            self._seal_earlier_segments()
            while self._catalog.ids:
                last = self._catalog.ids[-1]
                try:
                    tip = self._recover_last(last)
                except CorruptSegment as error:
                    self._set_aside_last(last, error)
                    continue
                if tip.sealed or self.highest_id == tip.header.id:
                    return tip
                # A later one was set aside, now or by a recovery that was interrupted.
                summary = self._seal(tip.header, tip.count)
                return replace(tip, sealed=True, last_time_us=summary.last_time_us)
            return None

    def lost_end(self, tip: Tip | None) -> Offset:
        """Return where the segments that were set aside ended, as far as anything tells."""
        last = -1 if tip is None else tip.header.id
        if self.highest_id <= last:
            return Offset(0)
        end = 0 if tip is None else tip.header.first_offset + tip.count
        hint = self._evidence.hint
        if hint is not None and last < hint.segment <= self.highest_id:
            # Counted from the end of the tip, or from the start of the very first segment.
            end += hint.index if tip is not None or hint.segment == 0 else 0
        return Offset(max(end, self._highest_position()))

    def _highest_position(self) -> int:
        """Return the highest offset that a reader has been at."""
        positions = Positions(self._directory, self._disk)
        highest = 0
        for name in positions.names():
            with contextlib.suppress(CorruptPosition):
                saved = positions.load(name)
                highest = highest if saved is None else max(highest, saved.offset)
        return highest

    def _highest_id(self) -> SegmentId:
        """Return the highest id ever seen here: also of those set aside, for none is reused."""
        ids = [-1, *self._catalog.ids]
        for name in self._disk.names(self._directory / QUARANTINE):
            stem, _, _ = name.rpartition(".")
            id_ = segment_id(stem)
            if id_ is not None:
                ids.append(id_)
        if self._evidence.hint is not None and not self._catalog.ids:
            ids.append(self._evidence.hint.segment)
        return SegmentId(max(ids))

    def _clear_leftovers(self) -> None:
        directory, disk = self._directory, self._disk
        leftovers = [directory / WAKE / name for name in disk.names(directory / WAKE)]
        leftovers += list_leftovers(directory, disk, NEW_SUFFIX, DELETED_SUFFIX)
        leftovers += [
            directory / READERS / name
            for name in disk.names(directory / READERS)
            if _REPLACEMENT.fullmatch(name)
        ]
        for path in leftovers:
            # Who closed the log just now may still be waking up, or giving up, in other threads.
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(path)

    def _seal_earlier_segments(self) -> None:
        hint = self._evidence.hint
        ids = self._catalog.ids
        begin = 0
        if self._evidence.published is not None and hint is not None and hint.segment in ids:
            begin = ids.index(hint.segment)  # Without a restart, what came before it is sealed.
        for place in range(begin, len(ids) - 1):
            try:
                header, summary = self._catalog.read_page(ids[place])
            except CorruptSegment:
                continue  # Whoever reads it is told; verify and repair see it, too.
            following = self._catalog.first_offset(place + 1)
            if summary is not None:
                self._complete_summary(header, summary)
            if summary is not None or following is None:
                continue
            count = min(header.items_max, max(0, following - header.first_offset))
            self._seal(header, count)

    def _recover_last(self, last: SegmentId) -> Tip:
        header, summary = self._catalog.read_page(last)
        if summary is not None:
            self._complete_summary(header, summary)
            return Tip(
                header=header,
                count=summary.count,
                sealed=True,
                last_time_us=summary.last_time_us,
            )
        view = SegmentView(self._catalog.path(last), self._disk)
        try:
            return self._recover_tail(view)
        finally:
            view.close()

    def _recover_tail(self, view: SegmentView) -> Tip:
        header = view.header
        found = check_tail(view, self._evidence)
        if not found.is_torn:
            return Tip(header=header, count=found.valid, sealed=False)
        if found.has_rotted:
            logger.warning(
                "sealed with damage path=%s first_offset=%d count=%d",
                view.path,
                header.first_offset + found.valid,
                found.count,
            )
            summary = self._seal(header, found.count)
            return Tip(
                header=header,
                count=found.count,
                sealed=True,
                last_time_us=summary.last_time_us,
            )
        if found.last_intact > found.valid or self._evidence.published is None:
            # An intact batch lies behind it; or after a restart it may have been one.
            copy_to_quarantine(self._directory, view, self._disk, sync=self._sync)
        logger.warning(
            "cut torn tail path=%s next_offset=%d lost_slots=%d",
            view.path,
            header.first_offset + found.valid,
            found.written - found.valid,
        )
        self._zero_slots(view.path, found.valid, found.written)
        return Tip(header=header, count=found.valid, sealed=False)

    # Doing ---------------------------------------------------------------------------------

    def _seal(self, header: SegmentHeader, count: int) -> Summary:
        path = self._catalog.path(header.id)
        view = SegmentView(path, self._disk)
        try:
            summary = summarise(view, count, self._evidence)
        finally:
            view.close()
        logger.info("seal path=%s count=%d", path, count)
        self._write_summary(header, summary)
        return summary

    def _complete_summary(self, header: SegmentHeader, summary: Summary) -> None:
        """Write the second copy of a seal if whoever sealed was killed before it did."""
        fd = self._disk.open_to_read(self._catalog.path(header.id))
        try:
            is_whole = all(
                self._disk.read_at(fd, len(piece), position) == piece
                for position, piece in summary.writes()
            )
        finally:
            self._disk.close(fd)
        if not is_whole:
            self._write_summary(header, summary)

    def _write_summary(self, header: SegmentHeader, summary: Summary) -> None:
        fd = self._disk.open_to_write(self._catalog.path(header.id))
        try:
            if self._sync:
                self._disk.sync_data(fd)
            for position, piece in summary.writes():
                self._disk.write_at(fd, piece, position)
            if self._sync:
                self._disk.sync_data(fd)
        finally:
            self._disk.close(fd)

    def _zero_slots(self, path: Path, first: int, stop: int) -> None:
        # Zeroed and not left: a later append could complete what looks like an old batch.
        fd = self._disk.open_to_write(path)
        try:
            zeros = bytes((stop - first) * SLOT_BYTES)
            self._disk.write_at(fd, zeros, slots.slot_position(first))
            if self._sync:
                self._disk.sync_data(fd)
        finally:
            self._disk.close(fd)

    def _set_aside_last(self, last: SegmentId, error: CorruptSegment) -> None:
        """Move a last segment without a header to quarantine; nothing in it can be addressed."""
        logger.warning("set aside path=%s reason=%s", error.path, error.reason)
        self._catalog.forget([last])
        set_aside(self._directory, error.path, self._disk, sync=self._sync)


def summarise(view: SegmentView, count: int, evidence: Evidence) -> Summary:
    """Return the summary of a segment's first `count` slots, by those that can be believed."""
    header = view.header
    intact = min(count, check_tail(view, evidence).last_intact)
    if intact == 0:
        return Summary(
            count=count,
            payloads_end=header.payloads_position,
            first_time_us=header.created_us,
            last_time_us=header.created_us,
            chain=header.key,
        )
    last = slots.slot_at(view.view, intact - 1)
    return Summary(
        count=count,
        payloads_end=min(last.end, Position(header.bytes_max)),
        first_time_us=header.created_us,
        last_time_us=max(last.time_us, header.created_us),
        chain=last.after,
    )


def quarantine_path(directory: Path, name: str, disk: Disk) -> Path:
    """Return a free path in the log's quarantine, which then exists."""
    quarantine = directory / QUARANTINE
    disk.make_directory(quarantine)
    for number in count_from(1):
        path = quarantine / f"{name}.{number}"
        if not disk.exists(path):
            return path
    raise AssertionError("unreachable")


def set_aside(directory: Path, path: Path, disk: Disk, *, sync: bool) -> Path:
    """Move a file of the log to its quarantine and return where it lies."""
    target = quarantine_path(directory, path.name, disk)
    disk.rename(path, target)
    if sync:
        disk.sync_directory(target.parent)
        disk.sync_directory(directory)
    return target


def copy_to_quarantine(directory: Path, view: SegmentView, disk: Disk, *, sync: bool) -> Path:
    """Keep a copy of a segment that is about to be changed and return where it lies."""
    target = quarantine_path(directory, view.path.name, disk)
    fd = disk.open_to_write(target, create=True)
    try:
        for position in range(0, len(view.view), _COPY_STEP_BYTES):
            piece = bytes(view.view[position : position + _COPY_STEP_BYTES])
            if piece != bytes(len(piece)):  # Fifty times as fast as stripping zeros.
                disk.write_at(fd, piece, position)
        if sync:
            disk.sync_data(fd)
            disk.sync_directory(target.parent)
    finally:
        disk.close(fd)
    logger.warning("copied to quarantine path=%s copy=%s", view.path, target)
    return target
