"""Reading several partitions at once: by turns, merged by time, or as columns."""

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from segue.delivery.topic_record import TopicRecord, unpack_record
from segue.errors import InvalidArgument, OffsetOutOfRange, SegueError
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.log.record import Record
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.places import in_partition

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_RECORDS: Final = 1024
"""How many records of a partition are in memory at once while it is iterated over."""
LOOK_AGAIN_SECONDS: Final = 0.5
"""How often a wait looks up whether there is anything else to do."""


class Feed:
    """A place in each of some partitions. For one thread at a time."""

    def __init__(self, core: TopicCore, offsets: Mapping[int, Offset]) -> None:
        self._core = core
        self._cursors: dict[int, Cursor] = {}
        self._turn = 0
        for partition, offset in offsets.items():
            self.add(partition, offset)

    def add(self, partition: int, offset: Offset) -> None:
        """Read this partition, too, or go on elsewhere in it."""
        cursor = self._cursors.get(partition)
        if cursor is None:
            horizon = self._core.log(partition)._horizon
            self._cursors[partition] = Cursor(horizon, offset, on_damage="raise")
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

    def fetch(self, max_records: int, max_bytes: int | None) -> list[TopicRecord]:
        """Return the next records, from as many partitions as it takes, each in its turn.

        What cannot be read is told once all before it has been returned.
        """
        records: list[TopicRecord] = []
        left = max_bytes
        for partition in self._in_turn():
            cursor = self._cursors[partition]
            while len(records) < max_records and (left is None or left > 0 or not records):
                try:
                    found = cursor.fetch(min(max_records - len(records), FETCH_RECORDS))
                except SegueError as error:
                    if records:
                        self._turn = partition  # Told next time, before anything else.
                        return records
                    if isinstance(error, OffsetOutOfRange):
                        raise in_partition(error, partition) from None
                    raise
                if not found:
                    break
                if left is not None:
                    found, left = _within(found, left, at_least_one=not records)
                    if not found:
                        left = 0
                        break
                    cursor.offset = Offset(found[-1].offset + 1)
                records += [unpack_record(partition, record) for record in found]
            if len(records) >= max_records or (left is not None and left <= 0):
                self._turn = partition + 1
                break
        return records

    def _in_turn(self) -> list[int]:
        partitions = sorted(self._cursors)
        later = [partition for partition in partitions if partition >= self._turn]
        return later + partitions[: len(partitions) - len(later)]

    def fetch_table(self, max_records: int) -> "pa.Table":
        """Return the next records as a table."""
        import pyarrow as pa

        from segue.stores.file.topics.columns import SCHEMA, table_of

        tables: list[pa.Table] = []
        left = max_records
        for partition in self._in_turn():
            cursor = self._cursors[partition]
            log = self._core.log(partition)
            while left > 0 and cursor.offset < log.next_offset:
                stop = Offset(min(log.next_offset, cursor.offset + left))
                try:
                    for columns in log.columns(cursor.offset, stop=stop):
                        tables.append(table_of(partition, columns))
                        left -= len(columns)
                except SegueError as error:
                    if tables:
                        self._turn = partition
                        return pa.concat_tables(tables)
                    if isinstance(error, OffsetOutOfRange):
                        raise in_partition(error, partition) from None
                    raise
                cursor.offset = stop
            if left <= 0:
                self._turn = partition + 1
                break
        return pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def merged(self, stops: Mapping[int, Offset]) -> Iterator[TopicRecord]:
        """Yield what lies before `stops`, ordered by timestamp as far as the partitions are."""
        return heapq.merge(
            *(self._one(partition, stops[partition]) for partition in sorted(self._cursors)),
            key=lambda record: record.timestamp_us,
        )

    def _one(self, partition: int, stop: Offset) -> Iterator[TopicRecord]:
        cursor = self._cursors[partition]
        try:
            while records := cursor.fetch(FETCH_RECORDS, stop):
                for record in records:
                    yield unpack_record(partition, record)
        except OffsetOutOfRange as error:
            raise in_partition(error, partition) from None

    def has_more(self) -> bool:
        """Tell whether there is anything to fetch now."""
        return any(
            cursor.offset < self._core.log(partition).next_offset
            for partition, cursor in self._cursors.items()
        )

    def close(self) -> None:
        """Let go of every partition."""
        for partition in list(self._cursors):
            self.drop(partition)


def _within(records: list[Record], left: int, *, at_least_one: bool) -> tuple[list[Record], int]:
    """Return the first records that are not larger than `left` together, and what is left then."""
    for count, record in enumerate(records):
        if len(record.payload) > left and not (at_least_one and count == 0):
            return records[:count], 0
        left -= len(record.payload)
    return records, left


def limited(
    records: Iterator[TopicRecord], max_records: int | None, max_bytes: int | None
) -> Iterator[TopicRecord]:
    """Yield no more than so many records and bytes, but always at least one record."""
    size_bytes = 0
    for count, record in enumerate(islice(records, max_records)):
        size_bytes += len(record.key or b"") + len(record.value or b"")
        if max_bytes is not None and size_bytes > max_bytes and count:
            return
        yield record


def check_limits(max_records: int | None, max_bytes: int | None) -> None:
    """Raise InvalidArgument for limits nothing can keep to."""
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidArgument(f"{name} must be a positive whole number: {value!r}")


def wait_for_more(
    core: TopicCore, condition: Callable[[], bool], timeout_us: int | None
) -> Iterator[None]:
    """Yield each time there may be something to do, until `timeout_us` is over."""
    deadline = None if timeout_us is None else time.monotonic() + timeout_us / 1_000_000
    yield
    waiter = None
    try:
        while True:
            pause = LOOK_AGAIN_SECONDS
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    return
            waiter = waiter or core.bell.waiter()
            waiter.wait(condition, pause)
            yield
    finally:
        if waiter is not None:
            waiter.close()
