"""Setting damage aside: the segment is written anew without it, the damaged file is kept.

Offsets never change. A damaged record becomes a removed one: reading passes over it, reading it by
offset says so. The new file takes the old one's name in one step, so an interrupted repair leaves
either the damaged segment or the repaired one.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from segue.errors import CorruptPosition, CorruptSegment
from segue.log import slots
from segue.log.audit import SegmentAudit, audit_segment
from segue.log.catalog import list_segments
from segue.log.checksum import crc32_bulk
from segue.log.disk import Disk, storage_errors
from segue.log.horizon import Horizon
from segue.log.layout import (
    HEADER_BYTES,
    PAGE_BYTES,
    SEGMENT_BYTES_MIN,
    SLOT_BYTES,
    Offset,
    Position,
    SegmentHeader,
    SegmentId,
    Summary,
)
from segue.log.positions import Positions, SavedPosition
from segue.log.recovery import NEW_SUFFIX, copy_to_quarantine, quarantine_path, set_aside
from segue.log.segment import SegmentView

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """What a repair did."""

    segments: list[SegmentId] = field(default_factory=list)
    """Written anew, set aside whole, or filled in where one was missing."""
    removed_records: int = 0
    readers: list[str] = field(default_factory=list)
    """Start over from the earliest record, because their saved position was damaged."""
    quarantined: list[Path] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether there was anything to repair."""
        return bool(self.segments or self.readers)


def repair_log(directory: Path, horizon: Horizon, positions: Positions, disk: Disk) -> RepairReport:
    """Repair every sealed segment and every reader. The caller keeps writers away."""
    report = RepairReport()
    with storage_errors(f"repairing {directory}"):
        repairer = _Repairer(directory, horizon, disk, report)
        repairer.repair_segments()
        _repair_readers(directory, horizon, positions, disk, report)
    return report


class _Repairer:
    def __init__(self, directory: Path, horizon: Horizon, disk: Disk, report: RepairReport) -> None:
        self._directory = directory
        self._horizon = horizon
        self._disk = disk
        self._report = report

    def repair_segments(self) -> None:
        end: Offset | None = None
        previous: SegmentId | None = None
        last_time_us = 0
        for audit in self._audits():
            if audit.first_offset is None:
                self._set_aside(audit)
                continue
            if end is not None and previous is not None and audit.first_offset > end:
                gap_id = SegmentId(previous + 1)
                self._fill_gap(gap_id, end, audit.first_offset, last_time_us, before=audit.id)
            if audit.sealed and (audit.damaged or audit.header_is_damaged):
                self._rewrite(audit)
            end, previous = audit.end_offset, audit.id
            last_time_us = max(last_time_us, audit.last_time_us)
        self._horizon.catalog.refresh()

    def _audits(self) -> list[SegmentAudit]:
        """Look at everything before anything is changed. Raises what is no damage."""
        audits = []
        for id_ in list_segments(self._directory, self._disk):
            audit = audit_segment(self._horizon, id_, self._disk, None)
            if audit is None:
                continue
            if audit.error is not None and not isinstance(audit.error, CorruptSegment):
                raise audit.error
            audits.append(audit)
        return audits

    def _set_aside(self, audit: SegmentAudit) -> None:
        """Move a segment without a header away; its place is filled once the next is known."""
        self._horizon.catalog.forget([audit.id])
        self._report.quarantined.append(
            set_aside(self._directory, audit.path, self._disk, sync=True)
        )
        self._report.segments.append(audit.id)

    def _fill_gap(
        self, id_: SegmentId, first: Offset, stop: Offset, time_us: int, *, before: SegmentId
    ) -> None:
        """Write a segment of removed records where one is missing."""
        if id_ >= before:
            return  # No number is free between them; readers go on reporting the gap.
        count = stop - first
        pages = -(-(HEADER_BYTES + count * SLOT_BYTES) // PAGE_BYTES) + 1
        header = SegmentHeader(
            id=id_,
            first_offset=first,
            items_max=count,
            bytes_max=max(SEGMENT_BYTES_MIN, pages * PAGE_BYTES),
            created_us=time_us,
            nonce=0,
        )
        self._write(header, _removed(count, time_us=time_us))
        self._report.removed_records += count
        if id_ not in self._report.segments:
            self._report.segments.append(id_)

    def _rewrite(self, audit: SegmentAudit) -> None:
        view = SegmentView(audit.path, self._disk)
        try:
            summary = view.summary()
            assert summary is not None
            if audit.damaged:
                self._report.quarantined.append(
                    copy_to_quarantine(self._directory, view, self._disk, sync=True)
                )
            self._write(view.header, _rebuilt(view, summary.count))
        finally:
            view.close()
        self._horizon.catalog.forget([audit.id])
        self._report.segments.append(audit.id)
        self._report.removed_records += sum(
            damage.last_offset - damage.first_offset + 1 for damage in audit.damaged
        )

    def _write(self, header: SegmentHeader, batches: Iterator["_Batch"]) -> None:
        """Write a sealed segment from `batches` and give it its name in one step."""
        disk = self._disk
        path = self._horizon.catalog.path(header.id)
        temporary = path.with_name(path.name + NEW_SUFFIX)
        fd = disk.open_to_write(temporary, create=True)
        try:
            disk.resize(fd, 0)
            disk.resize(fd, header.bytes_max)
            disk.write_at(fd, header.encode(), 0)
            summary = Summary(
                count=0,
                payloads_end=header.payloads_position,
                first_time_us=header.created_us,
                last_time_us=header.created_us,
                chain=header.key,
            )
            for batch in batches:
                summary = self._write_batch(fd, header, batch, summary)
            for position, piece in summary.writes():
                disk.write_at(fd, piece, position)
            disk.sync_data(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, path)
        disk.sync_directory(path.parent)

    def _write_batch(
        self, fd: int, header: SegmentHeader, batch: "_Batch", summary: Summary
    ) -> Summary:
        position = summary.payloads_end
        after = crc32_bulk(batch.data, summary.chain)
        if len(batch.lengths) == 1:
            table = slots.encode_one(
                header,
                time_us=batch.time_us,
                attr=batch.attrs[0],
                position=position,
                length=batch.lengths[0],
                flags=batch.flags,
                before=summary.chain,
                after=after,
            )
        else:
            table = slots.encode_batch(
                batch.lengths,
                batch.attrs,
                time_us=batch.time_us,
                position=position,
                before=summary.chain,
                after=after,
                key=header.key,
                seed=header.slot_seed,
            )
        if batch.data:
            self._disk.write_at(fd, batch.data, position)
        self._disk.write_at(fd, table, slots.slot_position(summary.count))
        return replace(
            summary,
            count=summary.count + len(batch.lengths),
            payloads_end=Position(position + len(batch.data)),
            first_time_us=summary.first_time_us if summary.count else batch.time_us,
            last_time_us=batch.time_us,
            chain=after,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    lengths: list[int]
    attrs: list[int]
    data: bytes
    time_us: int
    flags: int = 0


def _rebuilt(view: SegmentView, count: int) -> Iterator[_Batch]:
    """Yield the batches of a segment, with removed records in place of damaged ones."""
    time_us = view.header.created_us
    for run in slots.walk(view.view, view.header, 0, count):
        if not run.intact:
            yield from _removed(run.stop - run.first, time_us=time_us)
            continue
        index = run.first
        while index < run.stop:
            stop = slots.batch_stop(view.view, index)
            batch = [slots.slot_at(view.view, place) for place in range(index, stop)]
            time_us = batch[-1].time_us
            yield _Batch(
                lengths=[slot.length for slot in batch],
                attrs=[slot.attr for slot in batch],
                data=bytes(view.view[batch[0].position : batch[-1].end]),
                time_us=time_us,
                flags=batch[-1].link & ~slots.MORE_MASK,
            )
            index = stop


def _removed(count: int, *, time_us: int) -> Iterator[_Batch]:
    for _ in range(count):
        yield _Batch(lengths=[0], attrs=[0], data=b"", time_us=time_us, flags=slots.REMOVED)


def _repair_readers(
    directory: Path, horizon: Horizon, positions: Positions, disk: Disk, report: RepairReport
) -> None:
    for name in positions.names():
        try:
            positions.load(name)
        except CorruptPosition as error:
            report.quarantined.append(_keep_copy(directory, error.path, disk))
            earliest = horizon.first_offset()
            start = SavedPosition(horizon.segment_of(earliest), earliest)
            positions.save(name, start, sync=True)
            report.readers.append(name)


def _keep_copy(directory: Path, path: Path, disk: Disk) -> Path:
    """Copy a small file to the quarantine; the file itself is never gone, not for an instant."""
    target = quarantine_path(directory, path.name, disk)
    fd = disk.open_to_read(path)
    try:
        data = disk.read_at(fd, PAGE_BYTES, 0)
    finally:
        disk.close(fd)
    disk.replace_file(target, data, sync=True)
    disk.sync_directory(target.parent)
    return target
