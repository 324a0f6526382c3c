"""Reading several partitions at once: by turns, merged by time, or as columns."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from segue.delivery.topic_record import TopicRecord, unpack_record
from segue.errors import LogClosed, OffsetOutOfRange, SegueError, StoreClosed
from segue.extras import extra
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.log.record import Record
from segue.log.segment import CHECK_AHEAD_ITEMS
from segue.stores.file.topics.core import TopicCore
from segue.stores.topic_reading import Budget, in_partition, in_turn, merged_by_time

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_RECORDS: Final = 1024
"""How many records of a partition are in memory at once while it is iterated over."""
FETCH_RECORDS_FIRST: Final = 32
"""And how many are read at first where bytes are limited: they may be large."""


class Feed:
    """A place in each of some partitions. For one thread at a time.

    It keeps nothing from being deleted: that is what saved places are for.
    """

    def __init__(
        self,
        core: TopicCore,
        offsets: Mapping[int, Offset],
        *,
        ahead_items: int = CHECK_AHEAD_ITEMS,
    ) -> None:
        self._core = core
        self._ahead_items = ahead_items
        self._cursors: dict[int, Cursor] = {}
        self._turn = 0
        self._lock = threading.Lock()
        """Keeps whoever closes the store from closing what is being read."""
        self._is_closed = False
        core.users.add(self)
        for partition, offset in offsets.items():
            self.add(partition, offset)

    def add(self, partition: int, offset: Offset) -> None:
        """Read this partition, too, or go on elsewhere in it. Raises StoreClosed."""
        self._require_open()
        cursor = self._cursors.get(partition)
        if cursor is None:
            horizon = self._core.log(partition)._horizon
            self._cursors[partition] = Cursor(
                horizon, offset, on_damage="raise", ahead_items=self._ahead_items, pin=False
            )
        else:
            cursor.offset = offset

    def drop(self, partition: int) -> None:
        """Read this partition no more."""
        cursor = self._cursors.pop(partition, None)
        if cursor is not None:
            cursor.close()

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next record, by partition."""
        return {partition: cursor.offset for partition, cursor in self._cursors.items()}

    # Records -------------------------------------------------------------------------------

    def fetch(self, max_records: int, max_bytes: int | None) -> list[TopicRecord]:
        """Return the next records, from as many partitions as it takes, each in its turn.

        What cannot be read is told once all before it has been returned.
        """
        self._require_open()
        with self._lock:
            found = self._fetched(Budget(max_records, max_bytes))
        if not found:
            self._require_open()  # Nothing, it may be, because all was closed under our hands.
        return found

    def _require_open(self) -> None:
        self._core.require_open()
        if self._is_closed:
            raise StoreClosed(f"topic {self._core.name} is not read here any more")

    def _fetched(self, budget: Budget) -> list[TopicRecord]:
        records: list[TopicRecord] = []
        for partition in in_turn(self._cursors, self._turn):
            try:
                for found in self._pieces(partition, budget):
                    records += [unpack_record(partition, record) for record in found]
            except SegueError as error:
                if records:
                    self._turn = partition  # Told next time, before anything else.
                    return records
                raise self._told(error, partition) from None
            if budget.is_spent:
                self._turn = partition + 1
                break
        return records

    def _pieces(self, partition: int, budget: Budget) -> Iterator[list[Record]]:
        """Yield what one partition has within the budget, and go on behind it."""
        cursor = self._cursors[partition]
        step = FETCH_RECORDS if budget.bytes_left is None else FETCH_RECORDS_FIRST
        while not budget.is_spent:
            before = cursor.offset
            found = cursor.fetch(min(budget.records_left, step))
            within = budget.take(found)
            if len(within) < len(found):
                cursor.offset = Offset(within[-1].offset + 1) if within else before
            if not within:
                return
            yield within
            step = min(step * 2, FETCH_RECORDS)

    def _told(self, error: SegueError, partition: int) -> SegueError:
        """Return what to tell of an error: which partition it is about, or that all is closed."""
        if isinstance(error, LogClosed):
            self._core.require_open()
        return in_partition(error, partition) if isinstance(error, OffsetOutOfRange) else error

    def merged(self, stops: Mapping[int, Offset]) -> Iterator[TopicRecord]:
        """Yield what lies before `stops`, ordered by timestamp as far as the partitions are."""
        self._core.require_open()
        return merged_by_time(
            self._one(partition, stops[partition]) for partition in sorted(self._cursors)
        )

    def _one(self, partition: int, stop: Offset) -> Iterator[TopicRecord]:
        cursor = self._cursors[partition]
        try:
            while True:
                with self._lock:
                    records = cursor.fetch(FETCH_RECORDS, stop)
                if not records:
                    return
                for record in records:
                    yield unpack_record(partition, record)
        except SegueError as error:
            raise self._told(error, partition) from None

    # Columns -------------------------------------------------------------------------------

    def fetch_table(self, max_records: int, max_bytes: int | None) -> "pa.Table":
        """Return the next records as a table."""
        with extra("columns", needed_by="a topic as a table"):
            import pyarrow as pa

            from segue.stores.topic_columns import SCHEMA

        budget = Budget(max_records, max_bytes)
        tables: list[pa.Table] = []
        for partition in in_turn(self._cursors, self._turn):
            try:
                tables.extend(self.tables(partition, None, budget))
            except SegueError as error:
                if tables:
                    self._turn = partition
                    break
                raise self._told(error, partition) from None
            if budget.is_spent:
                self._turn = partition + 1
                break
        return pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def tables(self, partition: int, stop: Offset | None, budget: Budget) -> "Iterator[pa.Table]":
        """Yield what one partition has before `stop` and within the budget, as tables."""
        with extra("columns", needed_by="a topic as a table"):
            from segue.log.columns import columns_in
            from segue.stores.topic_columns import rows_within, table_of

        self._core.require_open()
        cursor = self._cursors[partition]
        log = self._core.log(partition)
        while not budget.is_spent:
            latest = log.next_offset if stop is None else min(stop, log.next_offset)
            if cursor.offset >= latest:
                return
            with self._lock:
                span = cursor.span(Offset(min(latest, cursor.offset + budget.records_left)))
                assert span is not None, "a cursor that raises skips nothing"
                view, index, last = span
                columns = columns_in(view, index, last)
                after = Offset(view.first_offset + last)
            rows, size_bytes = rows_within(columns, budget.bytes_left, at_least_one=budget.is_whole)
            budget.spend(rows, size_bytes)
            if rows < len(columns):
                after = Offset(int(columns.offset[rows]))
                budget.bytes_left = 0
            if rows:
                yield table_of(partition, columns).slice(0, rows)
            # Only now: what was not handed over is read again.
            cursor.offset = after

    def has_more(self) -> bool:
        """Tell whether there is anything to fetch now, or to tell."""
        try:
            return any(
                cursor.offset < self._core.log(partition).next_offset
                for partition, cursor in list(self._cursors.items())
            )
        except (LogClosed, StoreClosed):
            return True

    def close(self) -> None:
        """Let go of every partition."""
        self._is_closed = True
        with self._lock:
            for partition in list(self._cursors):
                self.drop(partition)

    def __del__(self) -> None:
        # Whoever drops a reader without closing it must not run out of descriptors.
        with suppress(Exception):
            self.close()
