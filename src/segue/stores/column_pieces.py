"""Stretches of records in parts of a good size."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from segue.log.columns import Columns

BATCH_ROWS_MAX: Final = 1 << 16
BATCH_BYTES_MAX: Final = 8 << 20
"""A batch is held whole on both sides of the socket that it goes over."""


def pieces(columns: Columns) -> Iterator[Columns]:
    """Yield a stretch in parts that make batches of a good size."""
    count = len(columns)
    if not count:
        return
    ends = np.frombuffer(columns.payload.buffers()[1], dtype=np.int32)
    ends = ends[columns.payload.offset :][: count + 1]
    if count <= BATCH_ROWS_MAX and int(ends[-1]) - int(ends[0]) <= BATCH_BYTES_MAX:
        yield columns
        return
    start = 0
    while start < count:
        # In the type of the array: else all of it would be converted first.
        most = np.int32(min(int(ends[start]) + BATCH_BYTES_MAX, np.iinfo(np.int32).max))
        fitting = int(np.searchsorted(ends, most, side="right")) - 1
        stop = min(max(fitting, start + 1), start + BATCH_ROWS_MAX, count)
        yield part_of(columns, start, stop)
        start = stop


def part_of(columns: Columns, start: int, stop: int) -> Columns:
    """Return the rows from `start` up to `stop`."""
    return Columns(
        offset=columns.offset[start:stop],
        time_us=columns.time_us[start:stop],
        attr=columns.attr[start:stop],
        payload=columns.payload[start:stop],
    )
