"""Reading a batch, and what every task does, of a batch or a stream."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segue.errors import CorruptRecord, CorruptSegment, OffsetTrimmed
from segue.log import Log
from segue.spark.decoding import Wanted
from segue.spark.options import ReadOptions
from segue.spark.planning import Range, Task, batch_offsets, plan
from segue.spark.strands import Label, opened_shelf

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.redis.store import RedisStore

logger = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads what there was when the read was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = Wanted(schema=schema, value_format=options.value_format)

    def partitions(self) -> Sequence[InputPartition]:
        with opened_shelf(self._options, self._wanted) as shelf:
            strands = shelf.strands()
            options = self._options
            ends = batch_offsets(options, strands)
            return plan(options, strands, ends, is_snapshot=True)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_task(partition)


def read_task(task: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a task."""
    if not isinstance(task, Task):
        return  # Where there is nothing to read, Spark has a partition of its own.
    with ExitStack() as closing:
        stores: dict[str, RedisStore] = {}
        for each in task.ranges:
            if isinstance(each.source, str):
                with Log(each.source, read_only=True, allow_network=task.allows_network) as log:
                    yield from _read(log, each, task)
                continue
            from segue.spark.servers.reading import read_range
            from segue.stores.opening import open_redis

            url = each.source.url
            if url not in stores:
                stores[url] = closing.enter_context(open_redis(url, create=False))
            yield from read_range(stores[url], each, task)


def _read(log: Log, range_: Range, task: Task) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a range, passing over what the task may."""
    start = range_.start
    while start < range_.stop:
        try:
            for columns in log.columns(start, stop=range_.stop):
                yield from range_.decoder.batches(columns)
                start = int(columns.offset[-1]) + 1
            return
        except OffsetTrimmed as error:
            if not task.passes_deleted:
                raise in_partition(error, range_.label) from None
            after, reason = error.earliest, "deleted"
        except CorruptRecord as error:
            if not task.passes_damage:
                raise
            after, reason = error.last_offset + 1, str(error)
        except CorruptSegment as error:
            if not task.passes_damage:
                raise
            after, reason = _next_segment(log, start), str(error)
        after = max(start + 1, min(after, range_.stop))
        logger.warning(
            "passed over name=%s number=%s from=%d to=%d reason=%s",
            *range_.label,
            start,
            after,
            reason,
        )
        start = after


def in_partition(error: OffsetTrimmed, label: Label) -> OffsetTrimmed:
    """Return the same error, saying which partition it is about."""
    return OffsetTrimmed(
        offset=error.offset,
        earliest=error.earliest,
        latest=error.latest,
        partition=int(label.number) if label.number.isdecimal() else None,
    )


def _next_segment(log: Log, offset: int) -> int:
    later = [
        int(info.first_offset)
        for info in log.segments()
        if info.first_offset is not None and info.first_offset > offset
    ]
    return min(later, default=int(log.next_offset))
