"""Where to begin reading, how much to read, and in which order. The same on every store."""

import heapq
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby, islice
from operator import attrgetter
from typing import Literal, Protocol

from segue.delivery.topic_record import TopicRecord
from segue.errors import InvalidArgument, OffsetOutOfRange
from segue.log.record import Record
from segue.stores.topic_contract import Start

OneStart = Literal["earliest", "latest"] | datetime | int
"""Where to begin in one partition."""


class Partitioned(Protocol):
    """Knows which partitions there are."""

    def check(self, partition: int) -> int: ...


# Starts ------------------------------------------------------------------------------------


def check_offsets(offsets: Mapping[int, int]) -> None:
    """Raise InvalidArgument unless these are offsets by partition."""
    given: object = offsets
    if not isinstance(given, Mapping) or not all(
        type(number) is int for pair in given.items() for number in pair
    ):
        raise InvalidArgument(f"offsets must be numbers by partition, as {{0: 17}}: {offsets!r}")


def start_in(start: Start, partition: int) -> OneStart:
    """Return what `start` says of one partition."""
    return start.get(partition, "earliest") if isinstance(start, Mapping) else start


def check_start(topic: Partitioned, start: Start, partitions: Collection[int]) -> None:
    """Raise InvalidArgument for what is no start."""
    given: object = start
    if given in ("earliest", "latest") or isinstance(given, datetime):
        return
    if isinstance(given, Mapping):
        if not all(type(number) is int for pair in given.items() for number in pair):
            raise InvalidArgument(f"a start by partition is a mapping of numbers: {start!r}")
        for partition in given:
            topic.check(partition)
        return
    if type(given) is int:
        if len(partitions) == 1:
            return
        raise InvalidArgument(
            f"an offset is of one partition; for several give one each, as {{0: {given}}}"
        )
    raise InvalidArgument(
        f"start must be earliest, latest, a datetime, an offset or offsets: {start!r}"
    )


def in_partition(error: OffsetOutOfRange, partition: int) -> OffsetOutOfRange:
    """Return the same error, saying which partition it is about."""
    return type(error)(
        offset=error.offset, earliest=error.earliest, latest=error.latest, partition=partition
    )


# Limits ------------------------------------------------------------------------------------


class Budget:
    """How much may still be read."""

    __slots__ = ("bytes_left", "is_whole", "records_left")

    def __init__(self, max_records: int, max_bytes: int | None) -> None:
        self.records_left = max_records
        self.bytes_left = max_bytes
        self.is_whole = True
        """Whether nothing was taken yet: then one record may be larger than the budget."""

    @property
    def is_spent(self) -> bool:
        return self.records_left <= 0 or (self.bytes_left is not None and self.bytes_left <= 0)

    def take(self, records: list[Record]) -> list[Record]:
        """Return the first records that are within the budget, which is smaller then."""
        if self.bytes_left is None:
            self.spend(len(records), 0)
            return records
        for count, record in enumerate(records):
            size_bytes = len(record.payload)
            if size_bytes > self.bytes_left and not self.is_whole:
                self.bytes_left = 0
                return records[:count]
            self.spend(1, size_bytes)
        return records

    def spend(self, records: int, size_bytes: int) -> None:
        """Note that so much was taken."""
        self.records_left -= records
        self.is_whole = self.is_whole and not records
        if self.bytes_left is not None:
            self.bytes_left -= size_bytes


def check_limits(
    max_records: int | None, max_bytes: int | None, *, may_be_all: bool = True
) -> None:
    """Raise InvalidArgument for limits nothing can keep to."""
    if max_records is None and not may_be_all:
        raise InvalidArgument("max_records must be a positive whole number")
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidArgument(f"{name} must be a positive whole number: {value!r}")


def budget(max_records: int | None, max_bytes: int | None) -> Budget:
    """Return a budget for tables that are yielded one by one."""
    check_limits(max_records, max_bytes)
    return Budget(1 << 62 if max_records is None else max_records, max_bytes)


def limited(
    records: Iterator[TopicRecord], max_records: int | None, max_bytes: int | None
) -> Iterator[TopicRecord]:
    """Yield no more than so many records and bytes, but always at least one record."""
    size_bytes = 0
    for count, record in enumerate(islice(records, _slice(max_records))):
        size_bytes += len(record.key or b"") + len(record.value or b"")
        if max_bytes is not None and size_bytes > max_bytes and count:
            return
        yield record


def _slice(count: int | None) -> int | None:
    """Return a count that itertools takes: there are not so many records as it does not."""
    return None if count is None else min(count, sys.maxsize)


# Order -------------------------------------------------------------------------------------


def by_time(records: list[TopicRecord]) -> Iterator[TopicRecord]:
    """Yield what was polled by timestamp, as far as that leaves partitions in order."""
    return merged_by_time(list(each) for _, each in groupby(records, key=attrgetter("partition")))


def merged_by_time(sources: Iterable[Iterable[TopicRecord]]) -> Iterator[TopicRecord]:
    """Yield the records of several partitions by timestamp, each partition in its order."""
    return heapq.merge(*sources, key=attrgetter("timestamp_us"))


def in_turn(partitions: Iterable[int], first: int) -> list[int]:
    """Return partitions in order, from the one whose turn it is round to the one before it."""
    ordered = sorted(partitions)
    later = [partition for partition in ordered if partition >= first]
    return later + ordered[: len(ordered) - len(later)]
