"""Segments that are written aside, for a log to adopt later. No loop over records.

One says of itself that it is the first segment of a log; whoever adopts it gives its records their
place. What was written aside is believed no more than anything else: see `read_staged`.
"""

import secrets
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from segue.errors import CorruptSegment, InvalidArgument
from segue.log import slots
from segue.log.checksum import crc32_bulk
from segue.log.disk import Disk, storage_errors
from segue.log.layout import (
    HEADER_BYTES,
    SEGMENT_BYTES_MIN,
    Offset,
    Position,
    SegmentHeader,
    SegmentId,
    Summary,
    payloads_position,
)
from segue.log.segment import SegmentView
from segue.log.slot_table import SLOT_DTYPE
from segue.values import dataclass

_CRC_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records that are kept or lost together, their payloads side by side."""

    lengths: npt.NDArray[np.uint32]
    attrs: npt.NDArray[np.uint64]
    data: memoryview

    def __len__(self) -> int:
        return len(self.lengths)


def write_staged(
    path: Path, batches: Sequence[Batch], disk: Disk, *, time_us: int, sync: bool
) -> None:
    """Write batches to a new file as a sealed segment. Whatever fails, none is left.

    Raises InvalidArgument, BatchTooLarge, StorageError.
    """
    count = sum(map(len, batches))
    size_bytes = sum(len(batch.data) for batch in batches)
    if not count:
        raise InvalidArgument("there are no records to write")
    # The limits of any segment first: one that could never be adopted is not written.
    header = SegmentHeader(
        id=SegmentId(0),
        first_offset=Offset(0),
        items_max=1,
        bytes_max=SEGMENT_BYTES_MIN,
        created_us=time_us,
        nonce=secrets.randbits(64),
    ).with_room_for(count, size_bytes)
    header = SegmentHeader(
        id=header.id,
        first_offset=header.first_offset,
        items_max=count,
        bytes_max=max(SEGMENT_BYTES_MIN, payloads_position(count) + max(1, size_bytes)),
        created_us=time_us,
        nonce=header.nonce,
    )
    table, chain = slots_of(header, batches, time_us)
    summary = Summary(
        count=count,
        payloads_end=Position(header.payloads_position + size_bytes),
        first_time_us=time_us,
        last_time_us=time_us,
        chain=chain,
    )
    with storage_errors(f"writing {path}"):
        fd = disk.open_to_write(path, create=True)
        try:
            disk.resize(fd, header.bytes_max)
            disk.write_at(fd, header.encode(), 0)
            for position, piece in summary.writes():
                disk.write_at(fd, piece, position)
            disk.write_at(fd, table, HEADER_BYTES)
            position = header.payloads_position
            for batch in batches:
                if batch.data:
                    disk.write_at(fd, batch.data, position)
                position = Position(position + len(batch.data))
            if sync:
                disk.sync_data(fd)
        except BaseException:
            disk.close(fd)
            disk.unlink(path)
            raise
        disk.close(fd)


def slots_of(
    header: SegmentHeader, batches: Sequence[Batch], time_us: int | npt.NDArray[np.int64]
) -> tuple[memoryview, int]:
    """Return the slots of a segment, and the checksum of all its payloads.

    `time_us` is that of all records, or of each.
    """
    count = sum(map(len, batches))
    table = np.zeros(count, dtype=SLOT_DTYPE)
    lengths = np.concatenate([batch.lengths for batch in batches])
    table["time_us"] = time_us
    table["attr"] = np.concatenate([batch.attrs for batch in batches])
    table["length"] = lengths
    ends = np.cumsum(lengths, dtype=np.int64)
    table["position"] = header.payloads_position + ends - lengths
    raw = table.view(np.uint8).data
    chain, start = header.key, 0
    for batch in batches:
        stop = start + len(batch)
        table["link"][start:stop] = np.arange(len(batch) - 1, -1, -1, dtype=np.uint32)
        after = crc32_bulk(batch.data, chain)
        last = table[stop - 1]
        last["before"], last["after"] = chain, after
        slots = raw[start * SLOT_DTYPE.itemsize : stop * SLOT_DTYPE.itemsize - _CRC_BYTES]
        last["crc"] = crc32_bulk(slots, header.slot_seed) ^ header.key
        chain, start = after, stop
    return raw, chain


class StagedSegment:
    """What `write_staged` wrote, checked. Holds the file mapped until it is closed."""

    def __init__(self, view: SegmentView, batches: Sequence[Batch]) -> None:
        """Use `read_staged`."""
        self._view = view
        self.batches = batches
        self.count = sum(map(len, batches))

    def close(self) -> None:
        """Let go of the file."""
        for batch in self.batches:
            batch.data.release()
        self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_staged(path: Path, disk: Disk) -> StagedSegment:
    """Return the segment that was written aside at `path`, every byte of it checked.

    Raises CorruptSegment, UnsupportedFormat, StorageError, FileNotFoundError, and InvalidArgument
    if it was never finished.
    """
    view = SegmentView(path, disk)
    try:
        return StagedSegment(view, _checked(view))
    except BaseException:
        view.close()
        raise


def _checked(view: SegmentView) -> list[Batch]:
    header, summary = view.header, view.summary()
    if summary is None or not summary.count:
        raise InvalidArgument(f"{view.path} was never finished")
    start, end = header.payloads_position, summary.payloads_end
    if not start <= end <= len(view.view):
        raise CorruptSegment(path=view.path, reason=f"its payloads do not end at byte {end}")
    if not slots.is_intact(view.view, header, 0, summary.count, before=header.key):
        raise CorruptSegment(path=view.path, reason="its records fail their checksum")
    table = np.frombuffer(
        view.view[HEADER_BYTES : slots.slot_position(summary.count)], dtype=SLOT_DTYPE
    )
    lengths = np.ascontiguousarray(table["length"])
    ends = start + np.cumsum(lengths, dtype=np.int64)
    if int(ends[-1]) != end or not (table["position"] == ends - lengths).all():
        raise CorruptSegment(path=view.path, reason="its payloads do not lie side by side")
    more = table["link"]
    if (more > slots.MORE_MASK).any():
        raise CorruptSegment(path=view.path, reason="a slot has flags that do not belong there")
    attrs = np.ascontiguousarray(table["attr"])
    borders = [0, *(np.flatnonzero(more == 0) + 1).tolist()]
    return [
        Batch(
            lengths=lengths[first:stop],
            attrs=attrs[first:stop],
            data=view.view[start if first == 0 else int(ends[first - 1]) : int(ends[stop - 1])],
        )
        for first, stop in pairwise(borders)
    ]
