"""What a task does with a range on a server: it fetches blocks and yields their rows."""

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from segue.errors import CorruptSegment, Damage, OffsetNotWritten, OffsetTrimmed
from segue.log.columns import Columns
from segue.spark.planning import Range, Task
from segue.spark.servers.messages import page_of
from segue.spark.sources import ServerSource
from segue.stores.redis.tables import QueueTable, RingTable, Row, Spoilt
from segue.stores.redis.topics.partition import Partition

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.redis.store import RedisStore

logger = logging.getLogger(__name__)

BLOCK_RECORDS_MAX: Final = 1 << 16
BLOCK_BYTES_MAX: Final = 4 << 20
"""What one call brings of a topic, or one batch if that is more: the server does nothing else
meanwhile."""


def read_range(store: "RedisStore", range_: Range, task: Task) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a range, passing over what the task may."""
    source = range_.source
    assert isinstance(source, ServerSource)
    if source.kind == "topic":
        partition = store.topic(source.name)._core.partition(source.number)
        return _records(partition, range_, task)
    if source.kind == "ring":
        return _entries(RingTable(store, source.name), range_)
    table = QueueTable(store, source.name)
    if source.kind == "dead_letters":
        return _messages(table.letters(range_.start, range_.stop), range_, task)
    return _messages(table.rows(source.number, range_.start, range_.stop), range_, task)


def _records(partition: Partition, range_: Range, task: Task) -> "Iterator[pa.RecordBatch]":
    start, stop = range_.start, range_.stop
    while start < stop:
        try:
            found = partition.read(
                start,
                records_max=min(BLOCK_RECORDS_MAX, stop - start),
                bytes_max=BLOCK_BYTES_MAX,
            )
        except OffsetTrimmed as error:
            if not task.passes_deleted:
                raise
            after, reason = error.earliest, "deleted"
        except OffsetNotWritten:
            if not task.passes_damage:
                raise
            return
        except CorruptSegment as error:
            if not task.passes_damage:
                raise
            after, reason = _next_segment(partition, start), str(error)
        else:
            if found.stretch is None:
                # A server that took over from another may not have what there was at planning.
                if task.passes_damage:
                    return
                raise OffsetNotWritten(
                    offset=start,
                    earliest=found.first_offset,
                    latest=found.next_offset,
                    partition=partition.number,
                )
            yield from range_.decoder.batches(found.stretch.columns(start, stop))
            start = found.stretch.stop
            continue
        after = max(start + 1, min(after, stop))
        _warn(range_, start, after, reason)
        start = after


def _next_segment(partition: Partition, offset: int) -> int:
    survey = partition.survey()
    later = [facts.first_offset for facts in survey.sealed if facts.first_offset > offset]
    if survey.active.count and survey.active.first_offset > offset:
        later.append(survey.active.first_offset)
    return min(later, default=survey.next_offset)


def _messages(
    pages: Iterable[list[Row | Spoilt]], range_: Range, task: Task
) -> "Iterator[pa.RecordBatch]":
    for page in pages:
        for row in page:
            if isinstance(row, Spoilt):
                if not task.passes_damage:
                    raise Damage(f"the message at {row.offset} cannot be read: {row.reason}")
                _warn(range_, row.offset, row.offset + 1, row.reason)
        rows = [row for row in page if isinstance(row, Row)]
        if rows:
            yield from range_.decoder.batches(page_of(rows))


def _entries(table: RingTable, range_: Range) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for page in table.entries(range_.start, range_.stop):
        offsets, times, bodies = zip(*page, strict=True)
        columns = Columns(
            offset=np.array(offsets, dtype=np.int64),
            time_us=np.array(times, dtype=np.int64),
            attr=np.zeros(len(page), dtype=np.uint64),
            payload=pa.array(bodies, pa.binary()),
        )
        yield from range_.decoder.batches(columns)


def _warn(range_: Range, start: int, after: int, reason: str) -> None:
    logger.warning(
        "passed over name=%s number=%s from=%d to=%d reason=%s",
        *range_.label,
        start,
        after,
        reason,
    )
