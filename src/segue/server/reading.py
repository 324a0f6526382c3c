"""A place in what somebody reads, page by page."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from segue.delivery.topic_record import TopicRecord
from segue.errors import InvalidArgument, SegueError
from segue.server.holding import Held
from segue.stores.http.wire.topics import Page, record_json

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_BYTES_MAX: Final = 1 << 20
"""A page ends with the record that is beyond this."""


class Reading(Held):
    """A place in what somebody reads. A page may be asked for again, until the next one is."""

    kind = "reading"

    def __init__(self, name: str, found: "Iterator[TopicRecord] | Iterator[pa.Table]") -> None:
        super().__init__(name, getattr(found, "close", lambda: None))
        self._found = found
        self._number = 0
        self._last: object = None
        self._is_ended = False
        self._error: SegueError | None = None

    def page(self, number: int, count: int) -> Page:
        """Return some records."""
        return cast("Page", self._paged(number, partial(self._records, count)))

    def table(self, number: int) -> "pa.Table | None":
        """Return a table, None if there is none any more."""
        return self._paged(number, self._pulled)

    def _paged(self, number: int, make: Callable[[], object]) -> object:
        with self.turn():
            if number != self._number:
                if number != self._number + 1:
                    raise InvalidArgument(f"page {number} cannot follow page {self._number}")
                self._last = make()
                self._number = number
            return self._last

    def _records(self, count: int) -> Page:
        records: list[TopicRecord] = []
        size_bytes = 0
        while len(records) < count and size_bytes < PAGE_BYTES_MAX:
            if records and self._error is not None:
                break  # Told once all before it has been returned.
            try:
                record = cast("TopicRecord | None", self._pulled())
            except SegueError:
                if not records:
                    raise
                break
            if record is None:
                break
            records.append(record)
            size_bytes += len(record.key or b"") + len(record.value or b"")
        is_last = self._is_ended and self._error is None
        return Page(records=[record_json(record) for record in records], is_last=is_last)

    def _pulled(self) -> object:
        """Return what comes next, None at the end. What went wrong is told from then on."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._is_ended:
            return None
        try:
            return next(self._found)
        except StopIteration:
            self._is_ended = True
            return None
        except SegueError as error:
            self._error = error
            raise
