"""Records, tables and what comes, page by page.

The server keeps our place in what we read. If it does not know it any more, we begin anew from
where we are: partitions are merged by time, and that goes on the same from any place.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from segue.delivery.topic_record import TopicRecord
from segue.errors import SegueError, SessionGone, StoreUnavailable
from segue.log.options import Duration
from segue.stores.http.calls import path_of
from segue.stores.http.patience import Patience, waited
from segue.stores.http.sense import making_sense
from segue.stores.http.topics.polling import table_from
from segue.stores.http.wire.starts import limit_json
from segue.stores.http.wire.topics import (
    ARROW,
    PAGE_RECORDS_MAX,
    Follow,
    Followed,
    Opened,
    Page,
    Read,
    Span,
)
from segue.stores.topic_reading import limited

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.http.store import HttpStore

PAGE_RECORDS_SECOND: Final = 16
PAGE_GROWTH: Final = 8
"""Pages grow: who wants a few records gets no more, and who wants all need not ask often."""
LOSSES_MAX: Final = 3
"""How often in a row, without anything read in between, a place may be lost."""


class Reading:
    """What somebody reads, between offsets that are fixed."""

    def __init__(
        self,
        store: "HttpStore",
        path: str,
        span: Span,
        max_records: int | None,
        max_bytes: int | None,
    ) -> None:
        self._store = store
        self._path = f"{path}/reads"
        self._start = dict(span.start)
        self._stop = span.stop
        self._max_records = limit_json(max_records)
        self._max_bytes = limit_json(max_bytes)
        self._read = 0

    # Records -------------------------------------------------------------------------------

    def records(self) -> Iterator[TopicRecord]:
        """Yield records, merged by time."""
        return limited(self._records(), self._max_records, self._max_bytes)

    def _records(self) -> Iterator[TopicRecord]:
        self._store.require_open()
        losses = 0
        while self._start:
            read = self._read
            try:
                for record in self._pages():
                    self._start[record.partition] = record.offset + 1
                    self._read += 1
                    yield record
                return
            except SessionGone:
                losses = self._lost(losses if self._read == read else 0)

    def _pages(self) -> Iterator[TopicRecord]:
        opened = self._opened(as_tables=False)
        path = f"{self._path}{path_of(opened.session or '')}"
        number, count = 1, PAGE_RECORDS_SECOND
        is_last = opened.session is None
        try:
            for said in opened.records:
                yield said.record()
            while not is_last:
                number += 1
                query = {"number": number, "count": count}
                page = self._store.calls.get(path, Page, query=query)
                for said in page.records:
                    yield said.record()
                is_last = page.is_last
                count = min(count * PAGE_GROWTH, PAGE_RECORDS_MAX)
        finally:
            if opened.session is not None:
                self._let_go(path)

    # Tables --------------------------------------------------------------------------------

    def tables(self) -> "Iterator[pa.Table]":
        """Yield tables, a partition after the other."""
        self._store.require_open()
        losses = 0
        while self._start:
            read = self._read
            try:
                for table in self._table_pages():
                    self._take_note(table)
                    yield table
                return
            except SessionGone:
                if self._max_bytes is not None and self._read:
                    raise StoreUnavailable("the server lost our place") from None
                losses = self._lost(losses if self._read == read else 0)
                if self._max_records is not None and self._read >= self._max_records:
                    return

    def _table_pages(self) -> "Iterator[pa.Table]":
        opened = self._opened(as_tables=True)
        if opened.session is None:
            return
        path = f"{self._path}{path_of(opened.session)}"
        number = 0
        try:
            while True:
                number += 1
                data = self._store.calls.fetch(
                    "GET", f"{path}/table", query={"number": number}, headers={"Accept": ARROW}
                )
                if not data:
                    return
                yield table_from(data)
        finally:
            self._let_go(path)

    def _take_note(self, table: "pa.Table") -> None:
        """Begin behind a table if we have to begin again."""
        with making_sense():
            partition = table["partition"][-1].as_py()
            for before in self._start:
                if before == partition:
                    break
                self._start[before] = self._stop[before]  # They come one after the other.
            self._start[partition] = table["offset"][-1].as_py() + 1
            self._read += len(table)

    # Both ----------------------------------------------------------------------------------

    def _opened(self, *, as_tables: bool) -> Opened:
        left = None if self._max_records is None else self._max_records - self._read
        body = Read(
            start={str(partition): offset for partition, offset in self._start.items()},
            stop={str(partition): offset for partition, offset in self._stop.items()},
            partitions=list(self._start),
            max_records=left,
            max_bytes=None if self._read else self._max_bytes,
            as_tables=as_tables,
        )
        return self._store.calls.post(self._path, body, Opened)

    def _lost(self, losses: int) -> int:
        if losses == LOSSES_MAX:
            raise StoreUnavailable("the server loses our place again and again") from None
        return losses + 1

    def _let_go(self, path: str) -> None:
        with suppress(SegueError):  # It is let go of anyway when its time is over.
            self._store.calls.tell(path, method="DELETE", within=self._store.closing_seconds)


def following(
    store: "HttpStore",
    path: str,
    position: dict[int, int],
    partitions: list[int] | None,
    timeout: Duration | None,
) -> Iterator[TopicRecord]:
    """Yield records as they come; end when none comes within `timeout`."""
    while True:
        patience = Patience(timeout, name="timeout")
        while True:
            store.require_open()
            body = Follow(position=position, partitions=partitions)
            answer = waited(patience, partial(_followed, store, path, body))
            if answer.records:
                break
            if patience.is_over:
                return
        position = answer.position
        for said in answer.records:
            yield said.record()


def _followed(store: "HttpStore", path: str, body: Follow, step: float) -> Followed:
    body.wait = step
    return store.calls.post(f"{path}/follow", body, Followed, wait=step)
