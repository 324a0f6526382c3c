"""What happened to the messages of queues, as far as their ledgers still say it, as rows.

Events of one kind have one layout: a head, a text of some length, and runs of messages. So all of
a stretch are taken apart at once, without a look at any of them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from segue.delivery.events import CHECKPOINT, LEASED, SETTLED
from segue.errors import LogNotFound
from segue.log import Log
from segue.log.columns import Columns
from segue.spark.options import ReadOptions
from segue.spark.planning import Task, plan
from segue.spark.schema import arrow_schema
from segue.spark.strands import Label, Strand
from segue.stores.column_pieces import BATCH_ROWS_MAX, pieces
from segue.stores.file.store import QUEUES
from segue.values import dataclass

POPPED: Final = 3
RETURNED: Final = 4
BURIED: Final = 6
DELIVERIES: Final = (LEASED, POPPED)
ENDS: Final = (SETTLED, RETURNED, BURIED)

EVENT: Final = StructType(
    [
        StructField("queue", StringType(), False),
        StructField("place", LongType(), False),
        StructField("time_us", LongType(), False),
        StructField("what", IntegerType(), False),
        StructField("lane", LongType(), False),
        StructField("offset", LongType(), False),
        StructField("attempt", IntegerType(), False),
        StructField("how", IntegerType(), False),
    ]
)

_Ints = npt.NDArray[np.int64]
_RUN: Final = np.dtype([("lane", "<u4"), ("first", "<u8"), ("size", "<u4")])
_TAKE: Final = np.dtype([*_RUN.descr, ("attempt", "<u4"), ("since", "<u4")])
_BURIAL: Final = np.dtype([("lane", "<u4"), ("first", "<u8"), ("dead", "<u8"), ("how", "u1")])


class _Layout(NamedTuple):
    """How an event lies in its record: a head, a text, and as many items as fit."""

    head_bytes: int
    item: np.dtype[np.void]
    text_at: int | None = None
    """Where the length of the text is said."""
    text_size_bytes: int = 0
    how_at: int | None = None


_LAYOUTS: Final = {
    LEASED: _Layout(17, _TAKE, text_at=16, text_size_bytes=1),
    SETTLED: _Layout(9, _RUN, how_at=8),
    POPPED: _Layout(0, _TAKE),
    RETURNED: _Layout(19, _RUN, text_at=17, text_size_bytes=2, how_at=8),
    BURIED: _Layout(0, _BURIAL),
}


@dataclass(frozen=True, kw_only=True)
class LedgerDecoder:
    """Rows of a queue's ledger: a row for each message of each event."""

    queue: str

    def within(self, start: int, stop: int) -> "LedgerDecoder":
        return self

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        for part in pieces(columns):
            for what, layout in _LAYOUTS.items():
                yield from self._batches(part, what, layout)

    def _batches(self, columns: Columns, what: int, layout: _Layout) -> Iterator[pa.RecordBatch]:
        # What a checkpoint says once more happened before.
        rows = np.flatnonzero((columns.attr & np.uint64(0xFF | CHECKPOINT)) == what)
        if not len(rows):
            return
        owner, items, how = _taken_apart(columns.payload, rows, layout)
        sizes = _field(items, "size", default=1)
        item, nth = np.repeat(np.arange(len(items)), sizes), _counted(sizes)
        for start in range(0, len(item), BATCH_ROWS_MAX):
            part = slice(start, start + BATCH_ROWS_MAX)
            chosen = items[item[part]]
            row = owner[item[part]]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(self.queue), len(chosen)),
                    pa.array(columns.offset[row]),
                    pa.array(columns.time_us[row]),
                    pa.array(np.full(len(chosen), what, dtype=np.int32)),
                    pa.array(chosen["lane"].astype(np.int64)),
                    pa.array(chosen["first"].astype(np.int64) + nth[part]),
                    pa.array(_field(chosen, "attempt", default=0).astype(np.int32)),
                    pa.array(how[item[part]].astype(np.int32)),
                ],
                schema=arrow_schema(EVENT),
            )


def _taken_apart(
    payload: pa.BinaryArray, rows: _Ints, layout: _Layout
) -> tuple[_Ints, npt.NDArray[np.void], _Ints]:
    """Return the items of all events: the row of each, what it says, and how it came to be."""
    bounds = np.frombuffer(payload.buffers()[1], dtype=np.int32)[payload.offset :]
    bounds = bounds[: len(payload) + 1].astype(np.int64)
    data = np.frombuffer(payload.buffers()[2], dtype=np.uint8)
    rows = rows[bounds[rows + 1] - bounds[rows] >= layout.head_bytes]
    start = bounds[rows]
    begin = start + layout.head_bytes
    if layout.text_at is not None:
        for place in range(layout.text_size_bytes):
            begin = begin + (data[start + layout.text_at + place].astype(np.int64) << 8 * place)
    size = layout.item.itemsize
    count = np.maximum(bounds[rows + 1] - begin, 0) // size
    event = np.repeat(np.arange(len(rows)), count)
    at = begin[event] + _counted(count) * size
    items = data[at[:, None] + np.arange(size)].view(layout.item).ravel()
    how = _field(items, "how", default=0)
    if layout.how_at is not None:
        how = data[start[event] + layout.how_at].astype(np.int64)
    return rows[event], items, how


def _field(items: npt.NDArray[np.void], name: str, *, default: int) -> _Ints:
    """Return what items say under a name, or the default where they have no such thing."""
    if name in (items.dtype.names or ()):
        return np.asarray(items[name]).astype(np.int64)
    return np.full(len(items), default, dtype=np.int64)


def _counted(sizes: _Ints) -> _Ints:
    """Return 0, 1, 2 … for each of the sizes, one behind the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - sizes, sizes)


def ledger_tasks(
    root: Path, queues: Sequence[str], *, allow_network: bool
) -> tuple[list[Task], dict[str, int]]:
    """Return what reads the ledgers of queues, and since when each of them says anything, in µs."""
    tasks: list[Task] = []
    since_us: dict[str, int] = {}
    for name in queues:
        path = root / QUEUES / name / "ledger"
        try:
            log = Log(path, read_only=True, allow_network=allow_network)
        except LogNotFound:
            continue
        with log:
            label = Label(name, "ledger")
            strand = Strand(
                label=label,
                path=path,
                first=int(log.first_offset),
                end=int(log.next_offset),
                decoder=LedgerDecoder(queue=name),
                log=log,
            )
            moment_us = log.time_of(strand.first) if strand.first < strand.end else None
            if moment_us is not None:
                since_us[name] = moment_us
            options = ReadOptions(
                url=str(root),
                kind="queue",
                name=name,
                fails_on_data_loss=False,
                allows_network=allow_network,
            )
            tasks += plan(options, {label: strand}, {label: (strand.first, strand.end)})
    return tasks, since_us
