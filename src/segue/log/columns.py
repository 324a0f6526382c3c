"""Records as columns: NumPy for the fixed fields, Arrow for the payloads. No loop over records."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segue.log import slots
from segue.log.cursor import Cursor
from segue.log.horizon import Horizon
from segue.log.layout import BATCH_ITEMS_MAX, Offset
from segue.log.segment import SegmentView
from segue.log.slot_table import SLOT_DTYPE
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A stretch of records, column by column, all of the same length."""

    offset: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.int64]
    attr: npt.NDArray[np.uint64]
    payload: pa.BinaryArray
    """Like the two before it, points into the segment's file; keeps it mapped while it lives."""

    def __len__(self) -> int:
        return len(self.offset)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the same as an Arrow record batch: offset, time, attr, payload."""
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.offset),
                pa.array(self.time_us).cast(pa.timestamp("us", tz="UTC")),
                pa.array(self.attr),
                self.payload,
            ],
            names=["offset", "time", "attr", "payload"],
        )


def columns_of(horizon: Horizon, start: Offset, stop: Offset | None) -> Iterator[Columns]:
    """Yield the records from `start` up to `stop` or the end, checked, by stretches."""
    cursor = Cursor(horizon, start, on_damage="raise", ahead_items=BATCH_ITEMS_MAX)
    try:
        while True:
            latest = horizon.next_offset()
            if stop is not None and stop < latest:
                latest = stop
            if cursor.offset >= latest:
                return
            span = cursor.span(latest)
            assert span is not None, "a cursor that raises skips nothing"
            view, index, last = span
            cursor.offset = Offset(view.first_offset + last)
            columns = columns_in(view, index, last)
            if len(columns):
                yield columns
    finally:
        cursor.close()


def columns_in(view: SegmentView, index: int, stop: int) -> Columns:
    """Return the records `index` to `stop` of a segment, which were checked before."""
    table = np.frombuffer(
        view.view[slots.slot_position(index) : slots.slot_position(stop)], dtype=SLOT_DTYPE
    )
    first = view.first_offset + index
    offset = np.arange(first, first + len(table), dtype=np.int64)
    time_us, attr = table["time_us"], table["attr"]
    payload = _payloads(view, table)
    if int(table["link"].max(initial=0)) >= slots.REMOVED:
        kept = (table["link"] & slots.REMOVED) == 0
        return Columns(
            offset=offset[kept],
            time_us=time_us[kept],
            attr=attr[kept],
            payload=payload.filter(pa.array(kept)),
        )
    return Columns(offset=offset, time_us=time_us, attr=attr, payload=payload)


def _payloads(view: SegmentView, table: npt.NDArray[np.void]) -> pa.BinaryArray:
    """Wrap the payloads without copying them: they lie side by side, as Arrow wants them."""
    base, end = int(table["position"][0]), int(table["position"][-1] + table["length"][-1])
    ends = np.empty(len(table) + 1, dtype=np.int32)
    ends[0] = 0
    np.subtract(table["position"][1:], base, out=ends[1:-1], casting="unsafe")
    ends[-1] = end - base
    return pa.BinaryArray.from_buffers(
        pa.binary(),
        len(table),
        [None, pa.py_buffer(ends), pa.py_buffer(view.view[base:end])],
    )
