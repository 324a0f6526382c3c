"""Checking every byte of a segment and saying what was found; changes nothing."""

from dataclasses import field
from pathlib import Path

from segue.errors import CorruptSegment, SegueError, StorageError
from segue.log import slots
from segue.log.disk import Disk
from segue.log.horizon import Horizon
from segue.log.layout import HEADER_BYTES, Offset, SegmentId, damaged_copies
from segue.log.segment import SegmentView
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Offsets `first_offset` to `last_offset` cannot be read; the damage begins at `position`."""

    first_offset: Offset
    last_offset: Offset
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAudit:
    """What checking one segment found."""

    id: SegmentId
    path: Path
    first_offset: Offset | None = None
    end_offset: Offset | None = None
    records: int = 0
    """How many records are intact."""
    removed: int = 0
    """How many of those were removed on purpose."""
    payload_bytes: int = 0
    last_time_us: int = 0
    sealed: bool = False
    damaged: list[DamagedRange] = field(default_factory=list)
    missing_before: int = 0
    """How many records should come before it and are in no segment."""
    header_is_damaged: bool = False
    """Whether one copy of the header is damaged; the other one serves."""
    error: SegueError | None = None
    """Why the segment cannot be read at all."""

    @property
    def problem(self) -> str | None:
        """What is wrong apart from damaged records, in words."""
        if isinstance(self.error, CorruptSegment):
            return self.error.reason
        if self.error is not None:
            return str(self.error)
        if self.missing_before:
            return f"{self.missing_before} records before it are missing"
        return "one copy of its header is damaged" if self.header_is_damaged else None

    @property
    def is_intact(self) -> bool:
        """Whether every record that should be there is there and unchanged."""
        return not self.damaged and self.problem is None


def audit_segment(
    horizon: Horizon, id_: SegmentId, disk: Disk, expected: Offset | None
) -> SegmentAudit | None:
    """Check segment `id_`, which should begin at `expected`; None if it was just deleted.

    Raises UnsupportedFormat.
    """
    path = horizon.catalog.path(id_)
    try:
        view = SegmentView(path, disk)
    except FileNotFoundError:
        return None
    except (CorruptSegment, StorageError) as error:
        return SegmentAudit(id=id_, path=path, error=error)
    try:
        if view.header.id != id_:
            wrong = CorruptSegment(path=path, reason=f"it is segment {view.header.id}")
            return SegmentAudit(id=id_, path=path, error=wrong)
        return _audit_view(view, horizon.end_of(view), expected)
    finally:
        view.close()


def _audit_view(view: SegmentView, end: Offset, expected: Offset | None) -> SegmentAudit:
    first = view.first_offset
    records = removed = payload_bytes = 0
    damaged = []
    last_time_us = view.header.created_us
    page = bytes(view.view[:HEADER_BYTES])
    count = max(0, min(end - first, view.header.items_max))
    for run in slots.walk(view.view, view.header, 0, count):
        if run.intact:
            table = view.view[slots.slot_position(run.first) : slots.slot_position(run.stop)]
            fields = list(slots.unpack_slots(table))
            records += len(fields)
            removed += sum(1 for slot in fields if slot[4] & slots.REMOVED)
            payload_bytes += sum(slot[3] for slot in fields)
            last_time_us = max(last_time_us, fields[-1][0])
        else:
            damaged.append(
                DamagedRange(
                    first_offset=Offset(first + run.first),
                    last_offset=Offset(first + run.stop - 1),
                    position=slots.slot_position(run.first),
                )
            )
    return SegmentAudit(
        id=view.header.id,
        path=view.path,
        first_offset=first,
        end_offset=Offset(first + count),
        records=records,
        removed=removed,
        payload_bytes=payload_bytes,
        last_time_us=last_time_us,
        sealed=view.summary() is not None,
        damaged=damaged,
        missing_before=0 if expected is None else max(0, first - expected),
        header_is_damaged=damaged_copies(page, sealed=view.summary() is not None) > 0,
    )
