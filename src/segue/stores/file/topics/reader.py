"""Named readers of a topic."""

from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from segue.delivery.topic_record import TopicRecord
from segue.errors import OffsetOutOfRange, StoreClosed
from segue.log import Log
from segue.log.layout import Offset
from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.file.topics import marks
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.feed import Feed, check_limits, wait_for_more
from segue.stores.file.topics.places import (
    check_start,
    in_partition,
    resolve_in,
    resolved,
    start_in,
)
from segue.stores.topic_contract import POLL_RECORDS_DEFAULT, Lag, Partitions, ReaderStart

if TYPE_CHECKING:
    import pyarrow as pa


class FileTopicReader:
    """A reader with a name, whose place is kept."""

    def __init__(
        self, core: TopicCore, name: str, start: ReaderStart, partitions: Partitions
    ) -> None:
        self.name = name
        self._core = core
        self._mark = marks.reader_mark(name)
        self._partitions = core.chosen(partitions)
        self._grows = partitions is None
        self._closed = False
        if start != "resume":
            check_start(core, start, self._partitions)
        self._moves = 0
        self._feed = Feed(core, self._registered(start))

    def _registered(self, start: ReaderStart) -> dict[int, Offset]:
        """Return where to begin, which nothing is deleted after from here on."""
        places = {}
        for partition in self._partitions:
            log = self._core.log(partition)
            place = marks.saved(log, self._mark) if start == "resume" else None
            if place is None:
                begin = start_in("earliest" if start == "resume" else start, partition)
                place = marks.register(log, self._mark, partial(resolve_in, log, partition, begin))
            places[partition] = place
        return places

    # Reading -------------------------------------------------------------------------------

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records, at least one if any comes within `timeout`."""
        check_limits(max_records, max_bytes)
        timeout_us = duration_us(timeout, name="timeout")
        for _ in wait_for_more(self._core, self._feed.has_more, timeout_us):
            self._look_around()
            records = self._feed.fetch(max_records, max_bytes)
            if records:
                return records
        return []

    def poll_table(
        self, max_records: int = POLL_RECORDS_DEFAULT, *, timeout: Duration | None = 0
    ) -> "pa.Table":
        """Return the next records as an Arrow table."""
        check_limits(max_records, None)
        timeout_us = duration_us(timeout, name="timeout")
        for _ in wait_for_more(self._core, self._feed.has_more, timeout_us):
            self._look_around()
            table = self._feed.fetch_table(max_records)
            if len(table):
                break
        return table

    def _look_around(self) -> None:
        """Take in partitions that were added, if all are meant."""
        self._require_open()
        numbers = self._core.numbers()
        if self._grows and len(numbers) != len(self._partitions):
            self._partitions = list(numbers)
            for partition, place in self._registered("resume").items():
                if partition not in self._feed.position:
                    self._feed.add(partition, place)

    def __iter__(self) -> Iterator[TopicRecord]:
        """Yield what is there one by one, so that `position` is always that of the next record."""
        while records := self.poll():
            moves, after = self._moves, self._feed.position
            for record in reversed(records):
                self._feed.add(record.partition, Offset(record.offset))
            for record in records:
                self._feed.add(record.partition, Offset(record.offset + 1))
                yield record
                self._require_open()
                if self._moves != moves:
                    break  # The consumer went elsewhere.
            else:
                for partition, offset in after.items():
                    self._feed.add(partition, Offset(offset))

    @property
    def position(self) -> Mapping[int, int]:
        """The offset of the next record, by partition."""
        return self._feed.position

    def seek(self, start: ReaderStart) -> None:
        """Go to another place; `commit` makes it the saved one."""
        self._require_open()
        if start == "resume":
            places = self._registered(start)
        else:
            places = resolved(self._core, start, self._partitions)
        self._moves += 1
        for partition, place in places.items():
            self._feed.add(partition, place)

    # The saved place -----------------------------------------------------------------------

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the current position, as the place to resume from."""
        self._require_open()
        for partition, offset in (self._feed.position if offsets is None else offsets).items():
            log = self._core.log(self._core.check(partition))
            save_place(log, self._mark, partition, offset)

    def lag(self) -> list[Lag]:
        """Return how far the reader is behind, by what it committed."""
        self._require_open()
        return lag_of(self._core, self._mark)

    def _require_open(self) -> None:
        self._core.require_open()
        if self._closed:
            raise StoreClosed(f"reader {self.name} is closed")

    def close(self) -> None:
        """Let go of the topic. Does not commit."""
        self._closed = True
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def save_place(log: Log, mark: str, partition: int, offset: int) -> None:
    """Save a place. Raises OffsetTrimmed, OffsetNotWritten."""
    try:
        if marks.saved(log, mark) != offset:
            marks.save(log, mark, resolve_in(log, partition, offset))
    except OffsetOutOfRange as error:
        raise in_partition(error, partition) from None


def lag_of(core: TopicCore, mark: str) -> list[Lag]:
    """Return how far the reader or group with this mark is behind, by partition."""
    now_us = core.place.clock()
    found = []
    for partition in core.numbers():
        log = core.log(partition)
        committed = marks.saved(log, mark)
        if committed is None:
            continue
        time_us = log.time_of(committed)
        found.append(
            Lag(
                partition=partition,
                committed=committed,
                next_offset=log.next_offset,
                size_bytes=log.bytes_from(committed),
                seconds=0.0 if time_us is None else max(0, now_us - time_us) / 1_000_000,
                trimmed=max(0, log.first_offset - committed),
            )
        )
    return found
