"""What segments a log has, for people and tools to look at."""

from contextlib import suppress
from pathlib import Path

from segue.errors import Damage, UnsupportedFormat
from segue.log.disk import Disk, reading_errors
from segue.log.horizon import Horizon
from segue.log.layout import (
    HEADER_BYTES,
    Offset,
    SegmentHeader,
    SegmentId,
    Summary,
    decode_header,
    decode_summary,
)
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment, as `Log.segments` lists it."""

    id: SegmentId
    path: Path
    first_offset: Offset | None
    """None if the header cannot be read."""
    count: int = 0
    sealed: bool = False
    size_bytes: int
    """What the file takes up on the device."""
    created_us: int = 0
    items_max: int = 0
    bytes_max: int = 0
    last_us: int | None = None
    """When its last record was appended; None if it was not sealed, or has no record."""
    payload_bytes: int = 0
    """Of all its records together, once it is sealed."""


def segment_info(horizon: Horizon, id_: SegmentId, disk: Disk) -> SegmentInfo:
    """Describe one segment from its header alone. Raises FileNotFoundError."""
    path = horizon.catalog.path(id_)
    size_bytes = disk.file_bytes(path)
    try:
        header, summary = horizon.catalog.read_page(id_)
    except Damage:
        return SegmentInfo(id=id_, path=path, first_offset=None, size_bytes=size_bytes)
    readable = max(0, min(header.items_max, horizon.next_offset() - header.first_offset))
    return _described(id_, path, header, summary, count=readable, size_bytes=size_bytes)


def info_of_file(path: Path, id_: SegmentId, disk: Disk) -> SegmentInfo:
    """Describe the segment in a file that is no part of a log. Raises FileNotFoundError.

    Of one that was never sealed nobody knows how many records it has.
    """
    size_bytes = disk.file_bytes(path)
    with reading_errors(path):
        page = disk.read_file(path, HEADER_BYTES)
    header: SegmentHeader | None = None
    with suppress(Damage, UnsupportedFormat):
        header = decode_header(page, path=path)
    if header is None or header.id != id_:
        return SegmentInfo(id=id_, path=path, first_offset=None, size_bytes=size_bytes)
    summary = decode_summary(page, header)
    return _described(id_, path, header, summary, count=0, size_bytes=size_bytes)


def _described(
    id_: SegmentId,
    path: Path,
    header: SegmentHeader,
    summary: Summary | None,
    *,
    count: int,
    size_bytes: int,
) -> SegmentInfo:
    """Return what a header says; `count` is of a segment without a summary."""
    return SegmentInfo(
        id=id_,
        path=path,
        first_offset=header.first_offset,
        count=count if summary is None else summary.count,
        sealed=summary is not None,
        size_bytes=size_bytes,
        created_us=header.created_us,
        items_max=header.items_max,
        bytes_max=header.bytes_max,
        last_us=None if summary is None or not summary.count else summary.last_time_us,
        payload_bytes=0 if summary is None else summary.payloads_end - header.payloads_position,
    )
