"""Pages of messages from a server as Arrow batches of the columns that are asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from segue.log.columns import Columns
from segue.spark.decoding import Wanted, message_headers, message_ids, moments
from segue.stores.message_columns import MessageColumns
from segue.stores.redis.tables import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage(Columns):
    """Messages, and what is known of each."""

    rows: Sequence[Row]


def page_of(rows: Sequence[Row]) -> MessagePage:
    """Return messages as columns."""
    return MessagePage(
        offset=np.array([row.offset for row in rows], dtype=np.int64),
        time_us=np.array([row.time_us for row in rows], dtype=np.int64),
        attr=np.array([row.attr for row in rows], dtype=np.uint64),
        payload=pa.array([row.payload for row in rows], pa.binary()),
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class PageDecoder:
    """Rows of a queue on a server."""

    wanted: Wanted
    queue: str
    is_letters: bool = False
    """Whether offsets are those among the dead letters."""
    priorities: frozenset[int] | None = None

    def within(self, start: int, stop: int) -> "PageDecoder":
        return self

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        assert isinstance(columns, MessagePage)
        page = columns
        if self.priorities is not None:
            page = page_of([row for row in page.rows if row.priority in self.priorities])
        if len(page):
            yield self._batch(page)

    def _batch(self, page: MessagePage) -> pa.RecordBatch:
        rows = page.rows
        messages = MessageColumns(page)

        def numbers(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(values, dtype=np.int64)

        return self.wanted.batch(
            {
                "key": lambda: messages.texts("k"),
                "value": messages.bodies,
                "queue": lambda: pa.repeat(pa.scalar(self.queue), len(rows)),
                "priority": lambda: pa.array([row.priority for row in rows], pa.int64()),
                "offset": lambda: pa.array(
                    [row.number if self.is_letters else row.offset for row in rows], pa.int64()
                ),
                "timestamp": lambda: moments(messages.numbers("t", page.time_us)),
                "headers": lambda: message_headers(messages),
                "message_id": lambda: message_ids(numbers([row.lane for row in rows]), page.offset),
                "state": lambda: pa.array([row.state.value for row in rows], pa.string()),
                "attempt": lambda: pa.array(
                    messages.numbers("a") + numbers([row.attempt for row in rows])
                ),
                "not_before": lambda: moments(numbers([row.not_before_us for row in rows]), null=0),
                "expires": lambda: moments(messages.numbers("x"), null=0),
                "cause": lambda: pa.array([row.cause for row in rows], pa.string()),
                "reason": lambda: pa.array([row.reason for row in rows], pa.string()),
                "died": lambda: moments(numbers([row.died_us for row in rows]), null=0),
            }
        )
