"""What segments a log has, for people and tools to look at."""

from dataclasses import dataclass
from pathlib import Path

from segue.errors import Damage
from segue.log.disk import Disk
from segue.log.horizon import Horizon
from segue.log.layout import Offset, SegmentId


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


def segment_info(horizon: Horizon, id_: SegmentId, disk: Disk) -> SegmentInfo:
    """Describe one segment from its header alone. Raises FileNotFoundError."""
    path = horizon.catalog.path(id_)
    size_bytes = disk.file_bytes(path)
    try:
        header, summary = horizon.catalog.read_page(id_)
    except Damage:
        return SegmentInfo(id=id_, path=path, first_offset=None, size_bytes=size_bytes)
    readable = max(0, min(header.items_max, horizon.next_offset() - header.first_offset))
    return SegmentInfo(
        id=id_,
        path=path,
        first_offset=header.first_offset,
        count=readable if summary is None else summary.count,
        sealed=summary is not None,
        size_bytes=size_bytes,
        created_us=header.created_us,
        items_max=header.items_max,
        bytes_max=header.bytes_max,
    )
