"""What lies between two places of a topic, queue or ring, by columns."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from segue.errors import CorruptSegment, Damage, OffsetNotWritten, OffsetTrimmed
from segue.log.columns import Columns
from segue.stores.message_pages import MessagePage
from segue.stores.passing import Passing
from segue.stores.redis.tables import RingTable, Row, Spoilt
from segue.stores.redis.topics.partition import Partition

BLOCK_RECORDS_MAX: Final = 1 << 16
BLOCK_BYTES_MAX: Final = 4 << 20
"""What one call brings of a topic, or one batch if that is more: the server does nothing else
meanwhile."""


def record_stretches(
    partition: Partition, start: int, stop: int, passing: Passing
) -> Iterator[Columns]:
    """Yield the records of a partition, passing over what may be."""
    while start < stop:
        try:
            found = partition.read(
                start,
                records_max=min(BLOCK_RECORDS_MAX, stop - start),
                bytes_max=BLOCK_BYTES_MAX,
            )
        except OffsetTrimmed as error:
            if not passing.deleted:
                raise
            after, reason = error.earliest, "deleted"
        except OffsetNotWritten:
            if not passing.damaged:
                raise
            return
        except CorruptSegment as error:
            if not passing.damaged:
                raise
            after, reason = _next_segment(partition, start), str(error)
        else:
            if found.stretch is None:
                # A server that took over from another may not have what there was at planning.
                if passing.damaged:
                    return
                raise OffsetNotWritten(
                    offset=start,
                    earliest=found.first_offset,
                    latest=found.next_offset,
                    partition=partition.number,
                )
            yield found.stretch.columns(start, stop)
            start = found.stretch.stop
            continue
        after = max(start + 1, min(after, stop))
        passing.warn(start, after, reason)
        start = after


def _next_segment(partition: Partition, offset: int) -> int:
    survey = partition.survey()
    later = [facts.first_offset for facts in survey.sealed if facts.first_offset > offset]
    if survey.active.count and survey.active.first_offset > offset:
        later.append(survey.active.first_offset)
    return min(later, default=survey.next_offset)


def message_stretches(
    pages: Iterable[list[Row | Spoilt]], passing: Passing
) -> Iterator[MessagePage]:
    """Yield pages of messages. Raises Damage for one that cannot be read, unless it may be."""
    for page in pages:
        for row in page:
            if isinstance(row, Spoilt):
                if not passing.damaged:
                    raise Damage(f"the message at {row.offset} cannot be read: {row.reason}")
                passing.warn(row.offset, row.offset + 1, row.reason)
        rows = [row for row in page if isinstance(row, Row)]
        if rows:
            yield _page_of(rows)


def _page_of(rows: Sequence[Row]) -> MessagePage:
    def numbers(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    return MessagePage(
        offset=numbers([row.offset for row in rows]),
        time_us=numbers([row.time_us for row in rows]),
        attr=np.array([row.attr for row in rows], dtype=np.uint64),
        payload=pa.array([row.payload for row in rows], pa.binary()),
        lane=numbers([row.lane for row in rows]),
        number=numbers([row.number for row in rows]),
        priority=numbers([row.priority for row in rows]),
        attempt=numbers([row.attempt for row in rows]),
        not_before_us=numbers([row.not_before_us for row in rows]),
        died_us=numbers([row.died_us for row in rows]),
        state=pa.array([row.state.value for row in rows], pa.string()),
        cause=pa.array([row.cause for row in rows], pa.string()),
        reason=pa.array([row.reason for row in rows], pa.string()),
    )


def entry_stretches(table: RingTable, start: int, stop: int) -> Iterator[Columns]:
    """Yield the entries of a ring."""
    for page in table.entries(start, stop):
        offsets, times, bodies = zip(*page, strict=True)
        yield Columns(
            offset=np.array(offsets, dtype=np.int64),
            time_us=np.array(times, dtype=np.int64),
            attr=np.zeros(len(page), dtype=np.uint64),
            payload=pa.array(bodies, pa.binary()),
        )
