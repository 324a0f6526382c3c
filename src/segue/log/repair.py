"""Setting damage aside: the segment is written anew without it, the damaged file is kept.

Offsets never change. A damaged record becomes a removed one: reading passes over it, reading it by
offset says so. The new file takes the old one's name in one step, so an interrupted repair leaves
either the damaged segment or the repaired one.
"""

import logging
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from segue.errors import CorruptPosition, CorruptSegment
from segue.log import slots
from segue.log.audit import SegmentAudit, audit_segment
from segue.log.catalog import list_segments
from segue.log.disk import Disk, storage_errors
from segue.log.horizon import Horizon
from segue.log.layout import (
    HEADER_BYTES,
    PAGE_BYTES,
    SEGMENT_BYTES_MIN,
    SLOT_BYTES,
    Offset,
    SegmentHeader,
    SegmentId,
)
from segue.log.positions import Positions, SavedPosition
from segue.log.recovery import copy_to_quarantine, quarantine_path, set_aside
from segue.log.rewriting import (
    Stretch,
    copied,
    discard,
    removed_records,
    take_name,
    write_beside,
)
from segue.log.segment import SegmentView
from segue.values import dataclass

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
            usual=self._horizon.catalog.header(before).inherited,
        )
        self._write(header, removed_records(count, time_us=time_us))
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

    def _write(self, header: SegmentHeader, stretches: Iterator[Stretch]) -> None:
        """Write a sealed segment and give it its name in one step."""
        path = self._horizon.catalog.path(header.id)
        temporary = write_beside(path, header, stretches, self._disk)
        try:
            take_name(temporary, path, self._horizon, self._disk)
        except BaseException:
            discard(temporary, self._disk)
            raise


def _rebuilt(view: SegmentView, count: int) -> Iterator[Stretch]:
    """Yield the batches of a segment, with removed records in place of damaged ones."""
    time_us = view.header.created_us
    for run in slots.walk(view.view, view.header, 0, count):
        if run.intact:
            time_us = slots.slot_at(view.view, run.stop - 1).time_us
            yield from copied(view, run.first, run.stop)
        else:
            yield from removed_records(run.stop - run.first, time_us=time_us)


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
    disk.replace_file(target, disk.read_file(path, PAGE_BYTES), sync=True)
    disk.sync_directory(target.parent)
    return target
