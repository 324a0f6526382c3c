"""What no segment shows alone: a producer's record that is there twice, keys out of order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark calls it
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from pyspark.sql.window import Window

from segue.delivery import topic_record as layout
from segue.log.columns import Columns
from segue.spark.decoding import Wanted
from segue.spark.jobs.tasks import rows_of
from segue.spark.options import ReadOptions
from segue.spark.planning import Task, plan
from segue.spark.reading import read_task
from segue.spark.schema import arrow_schema
from segue.spark.strands import Strand, opened_shelf
from segue.stores.column_pieces import pieces
from segue.stores.topic_columns import Parts, lengths_in
from segue.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FACT: Final = StructType(
    [
        StructField("topic", StringType(), False),
        StructField("partition", LongType(), False),
        StructField("is_producer", BooleanType(), False),
        StructField("who", BinaryType(), False),
        StructField("place", LongType(), False),
        StructField("time_us", LongType(), False),
    ]
)
_NO_COLUMNS: Final = Wanted(schema=StructType([]), value_format="binary")


def disorder_of(spark: "SparkSession", tasks: Sequence[Task]) -> dict[str, tuple[int, int]]:
    """Return by topic how many records of producers are there again, and how many come too late."""
    if not tasks:
        return {}
    line = Window.partitionBy("topic", "partition", "is_producer", "who").orderBy("place")
    before = F.lag("place").over(line), F.lag("time_us").over(line)
    again = F.col("is_producer") & (before[0] == F.col("place"))
    late = ~F.col("is_producer") & (before[1] > F.col("time_us"))
    counts = (
        rows_of(spark, tasks, read_task, _FACT)
        .select("topic", again.alias("again"), late.alias("late"))
        .groupBy("topic")
        .agg(F.count_if("again").alias("again"), F.count_if("late").alias("late"))
    )
    return {row["topic"]: (row["again"], row["late"]) for row in counts.collect()}


def order_tasks(url: str, topic: str, *, allow_network: bool) -> list[Task]:
    """Return what reads the records of a topic. Raises Damage."""
    options = ReadOptions(
        url=url, kind="topic", name=topic, fails_on_data_loss=False, allows_network=allow_network
    )
    with opened_shelf(options, _NO_COLUMNS) as shelf:
        strands = {
            label: replace(
                strand, decoder=_FactDecoder(topic=label.name, partition=int(label.number))
            )
            for label, strand in shelf.strands().items()
            if isinstance(strand, Strand)
        }
        ends = {label: (strand.first, strand.end) for label, strand in strands.items()}
        return plan(options, strands, ends)


@dataclass(frozen=True, kw_only=True)
class _FactDecoder:
    """What can be out of order: the records of each key, and those of each producer."""

    topic: str
    partition: int

    def within(self, start: int, stop: int) -> "_FactDecoder":
        return self

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        for part in pieces(columns):
            if part.attr.any():
                yield from self._batches(part)

    def _batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        parts = Parts(columns)
        keys = parts.keys()
        has_key = np.asarray(keys.is_valid())
        if has_key.any():
            times = parts.timestamps(columns.time_us)
            yield self._batch(
                keys.drop_null(), columns.offset[has_key], times[has_key], is_producer=False
            )
        made = _origins(columns)
        if len(made):
            who = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(8), len(made), [None, pa.py_buffer(np.ascontiguousarray(made[:, 0]))]
            )
            sequence = made[:, 1].astype(np.int64)
            yield self._batch(who.cast(pa.binary()), sequence, sequence, is_producer=True)

    def _batch(
        self,
        who: pa.BinaryArray,
        place: npt.NDArray[np.int64],
        time_us: npt.NDArray[np.int64],
        *,
        is_producer: bool,
    ) -> pa.RecordBatch:
        count = len(who)
        # A producer counts over all partitions, a key is at home in one.
        partition = -1 if is_producer else self.partition
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(self.topic), count),
                pa.array(np.full(count, partition, dtype=np.int64)),
                pa.repeat(pa.scalar(is_producer), count),
                who,
                pa.array(place),
                pa.array(time_us),
            ],
            schema=arrow_schema(_FACT),
        )


def _origins(columns: Columns) -> npt.NDArray[np.uint64]:
    """Return producer and sequence number of the records that have them, a row each."""
    payload = columns.payload
    bounds = np.frombuffer(payload.buffers()[1], dtype=np.int32)[payload.offset :]
    starts = bounds[: len(payload)].astype(np.int64)
    lengths = bounds[1 : len(payload) + 1] - starts
    attr = columns.attr
    has_origin = (attr & np.uint64(layout.HAS_PRODUCER)) != 0
    has_origin &= (sum(lengths_in(attr)) <= lengths) & (attr <= layout.KNOWN_BITS)
    if not has_origin.any():
        return np.empty((0, 2), dtype=np.uint64)
    has_time = (attr[has_origin] & np.uint64(layout.HAS_TIMESTAMP)) != 0
    start = starts[has_origin] + np.where(has_time, layout.TIMESTAMP_BYTES, 0)
    data = np.frombuffer(payload.buffers()[2], dtype=np.uint8)
    rows = data[start[:, None] + np.arange(layout.PRODUCER_BYTES)]
    origins: npt.NDArray[np.uint64] = rows.view("<u8").reshape(-1, 2)
    return origins
