"""Pages of messages from a server as Arrow batches of the columns that are asked for."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from segue.log.columns import Columns
from segue.spark.decoding import Wanted, message_headers, message_ids, moments
from segue.stores.message_columns import MessageColumns
from segue.stores.message_pages import MessagePage, batch_of, columns_of_batch
from segue.values import dataclass


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
        page = columns
        if self.priorities is not None:
            assert isinstance(page, MessagePage)
            shown = np.isin(page.priority, list(self.priorities))
            if not shown.all():
                page = columns_of_batch(batch_of(page).filter(pa.array(shown)))
        assert isinstance(page, MessagePage)
        if len(page):
            yield self._batch(page)

    def _batch(self, page: MessagePage) -> pa.RecordBatch:
        messages = MessageColumns(page)
        return self.wanted.batch(
            {
                "key": lambda: messages.texts("k"),
                "value": messages.bodies,
                "queue": lambda: pa.repeat(pa.scalar(self.queue), len(page)),
                "priority": lambda: pa.array(page.priority),
                "offset": lambda: pa.array(page.number if self.is_letters else page.offset),
                "timestamp": lambda: moments(messages.numbers("t", page.time_us)),
                "headers": lambda: message_headers(messages),
                "message_id": lambda: message_ids(page.lane, page.offset),
                "state": lambda: page.state,
                "attempt": lambda: pa.array(messages.numbers("a") + page.attempt),
                "not_before": lambda: moments(page.not_before_us, null=0),
                "expires": lambda: moments(messages.numbers("x"), null=0),
                "cause": lambda: page.cause,
                "reason": lambda: page.reason,
                "died": lambda: moments(page.died_us, null=0),
            }
        )
