"""A topic in a directory: the door to what its neighbours in this folder do."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from segue.delivery.message import Body
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import (
    Appended,
    Event,
    Key,
    Moment,
    TopicRecord,
    key_bytes,
    moment_us,
    pack_record,
    value_bytes,
)
from segue.delivery.topic_rules import PARTITIONS_DEFAULT, TopicRules
from segue.errors import CorruptPosition, InvalidArgument, OffsetOutOfRange
from segue.log.layout import BATCH_ITEMS_MAX, Offset
from segue.log.options import Duration
from segue.log.record import datetime_from
from segue.log.sending import HasFileno, Writable
from segue.stores.arguments import duration_us
from segue.stores.file.topics import bulk, keeping, marks
from segue.stores.file.topics.appending import append_each, append_one
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.feed import Feed
from segue.stores.file.topics.group import FileGroup, group_names
from segue.stores.file.topics.places import resolve_in, resolved
from segue.stores.file.topics.polling import tries
from segue.stores.file.topics.producer import FileProducer
from segue.stores.file.topics.reader import FileTopicReader, lag_of
from segue.stores.topic_contract import (
    Adoption,
    CleanReport,
    CompactReport,
    Lag,
    PartitionInfo,
    Partitions,
    ReaderStart,
    Start,
    TopicInfo,
)
from segue.stores.topic_events import events_from, packed
from segue.stores.topic_manifest import GROUP_PREFIX, check_partitions, check_rules, reader_mark
from segue.stores.topic_reading import (
    Budget,
    OneStart,
    budget,
    by_time,
    check_limits,
    check_start,
    in_partition,
    limited,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

FOLLOW_RECORDS = 1024


class FileTopic:
    """A partitioned stream that can be read again."""

    def __init__(self, core: TopicCore) -> None:
        self._core = core
        self.name = core.name

    # How it is made ------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        manifest = self._core.manifest
        return PARTITIONS_DEFAULT if manifest is None else manifest.partitions

    @property
    def rules(self) -> TopicRules:
        """How the topic keeps what it holds."""
        manifest = self._core.manifest
        return TopicRules() if manifest is None else manifest.rules

    def configure(self, rules: TopicRules) -> None:
        """Change the rules, durably and for everybody."""
        check_rules(rules)
        self._core.change(rules=rules)

    def grow(self, partitions: int) -> None:
        """Have so many partitions from now on."""
        check_partitions(partitions)
        self._core.change(partitions=partitions)

    # Appending -----------------------------------------------------------------------------

    def append(
        self,
        value: Body | None,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp: Moment | None = None,
        partition: int | None = None,
    ) -> Appended:
        """Append a record and return where it went."""
        # Without an Event in between: making one takes as long as all the rest.
        stored_key = key_bytes(key)
        record = pack_record(
            stored_key,
            value_bytes(value),
            headers=headers,
            timestamp_us=None if timestamp is None else moment_us(timestamp, name="timestamp"),
        )
        core = self._core
        number = core.route(stored_key) if partition is None else core.check(partition)
        return append_one(core, number, record)

    def append_many(self, events: Iterable[Event | Body]) -> list[Appended]:
        """Append all events, or none if one of them is bad; return where they went."""
        partitions = self._core.existing().partitions
        self._core.log(0)  # From here on it is known from memory whether that still holds.
        records = []
        for event in events_from(events):
            key = key_bytes(event.key)
            if event.partition is not None:
                partition = self._core.check(event.partition)
            elif key is not None:
                partition = partition_of(key, partitions)
            else:
                partition = self._core.sticky.take(partitions)
            records.append((partition, packed(event, key)))
        return append_each(self._core, records)

    def producer(self, name: str) -> FileProducer:
        """Return what appends without ever duplicating."""
        return FileProducer(self._core, name)

    def flush(self) -> None:
        """Return once everything appended before is on the device."""
        self._core.flush()

    # Reading -------------------------------------------------------------------------------

    def records(
        self,
        start: Start = "earliest",
        *,
        partitions: Partitions = None,
        stop: Start | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield what is there from `start` on, partitions merged by timestamp, then stop."""
        check_limits(max_records, max_bytes)
        chosen = self._core.chosen(partitions)
        stops = self._stops(stop, chosen)
        feed = Feed(self._core, resolved(self._core, start, chosen))
        return self._merged(feed, stops, max_records, max_bytes)

    def _merged(
        self,
        feed: Feed,
        stops: Mapping[int, Offset],
        max_records: int | None,
        max_bytes: int | None,
    ) -> Iterator[TopicRecord]:
        try:
            yield from limited(feed.merged(stops), max_records, max_bytes)
        finally:
            feed.close()

    def _stops(self, stop: Start | None, partitions: list[int]) -> dict[int, Offset]:
        ends: dict[int, OneStart] = dict.fromkeys(partitions, "latest")
        if isinstance(stop, Mapping):
            check_start(self._core, stop, partitions)
            ends |= {partition: stop[partition] for partition in partitions if partition in stop}
        elif stop is not None:
            return resolved(self._core, stop, partitions)
        return {
            partition: resolve_in(self._core.log(partition), partition, end)
            for partition, end in ends.items()
        }

    def follow(
        self,
        start: Start = "latest",
        *,
        partitions: Partitions = None,
        timeout: Duration | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield records as they come; end when none comes within `timeout`."""
        timeout_us = duration_us(timeout, name="timeout")
        self._core.require()
        chosen = self._core.chosen(partitions)
        feed = Feed(self._core, resolved(self._core, start, chosen))
        return self._following(feed, timeout_us, everything=partitions is None)

    def _following(
        self, feed: Feed, timeout_us: int | None, *, everything: bool
    ) -> Iterator[TopicRecord]:
        try:
            while True:
                for _ in tries(self._core, feed.has_more, timeout_us):
                    self._core.require_open()
                    if everything:
                        for partition in set(self._core.numbers()) - feed.position.keys():
                            feed.add(partition, Offset(0))
                    records = feed.fetch(FOLLOW_RECORDS, None)
                    if records:
                        break
                else:
                    return
                yield from by_time(records)
        finally:
            feed.close()

    def tables(
        self,
        start: Start = "earliest",
        *,
        partitions: Partitions = None,
        stop: Start | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> "Iterator[pa.Table]":
        """Yield what `records` does as Arrow tables, a partition after the other."""
        within = budget(max_records, max_bytes)
        chosen = self._core.chosen(partitions)
        stops = self._stops(stop, chosen)
        places = resolved(self._core, start, chosen)
        feed = Feed(self._core, places, ahead_items=BATCH_ITEMS_MAX)
        return self._tables(feed, stops, within)

    def _tables(
        self, feed: Feed, stops: Mapping[int, Offset], within: Budget
    ) -> "Iterator[pa.Table]":
        try:
            for partition, stop in stops.items():
                try:
                    yield from feed.tables(partition, stop, within)
                except OffsetOutOfRange as error:
                    raise in_partition(error, partition) from None
        finally:
            feed.close()

    def offsets(
        self, start: Start = "latest", *, partitions: Partitions = None
    ) -> Mapping[int, int]:
        """Return the offset that `start` stands for in each partition."""
        return dict(resolved(self._core, start, self._core.chosen(partitions)))

    # Readers and groups --------------------------------------------------------------------

    def reader(
        self, name: str, start: ReaderStart = "resume", *, partitions: Partitions = None
    ) -> FileTopicReader:
        """Open the reader called `name`, registering it durably."""
        self._core.require()
        return FileTopicReader(self._core, name, start, partitions)

    def readers(self) -> Mapping[str, list[Lag]]:
        """Return the registered readers, and how far each is behind."""
        return {name: self._lag(name) for name in self._reader_names()}

    def _lag(self, name: str) -> list[Lag]:
        try:
            return lag_of(self._core, name)
        except CorruptPosition as error:
            logger.warning("unreadable place topic=%s reason=%s", self.name, error)
            return []  # The others are to be seen all the same.

    def _reader_names(self) -> list[str]:
        found = marks.all_names(self._core.log(partition) for partition in self._core.numbers())
        return [name for name in found if not name.startswith(GROUP_PREFIX)]

    def remove_reader(self, name: str) -> bool:
        """Forget a reader, so that it holds nothing back; tell whether it was there."""
        mark = reader_mark(name)
        removed = [
            self._core.log(partition).remove_reader(mark) for partition in self._core.numbers()
        ]
        return any(removed)

    def group(self, name: str) -> FileGroup:
        """Return the group called `name`."""
        return FileGroup(self._core, name)

    def groups(self) -> list[str]:
        """Return the names of the groups there are."""
        return group_names(self._core)

    def remove_group(self, name: str) -> bool:
        """Forget a group; tell whether it was there."""
        return FileGroup(self._core, name).remove()

    # Keeping -------------------------------------------------------------------------------

    def clean(
        self,
        *,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
        lag_max: int | None = None,
        partitions: Partitions = None,
        dry_run: bool = False,
    ) -> CleanReport:
        """Delete the segments that may go, by the rules or by stricter limits given here."""
        rules = self.rules.tightened(
            keep_seconds=keep_seconds, keep_bytes=keep_bytes, lag_max=lag_max
        )
        chosen = self._core.chosen(partitions)
        return keeping.clean(self._core, rules, chosen, dry_run=dry_run)

    def compact(self, *, partitions: Partitions = None) -> CompactReport:
        """Remove every record that a later one with the same key has made needless."""
        return keeping.compact(self._core, self.rules, self._core.chosen(partitions))

    def roll(self, *, partitions: Partitions = None) -> None:
        """Begin a new segment."""
        for partition in self._core.chosen(partitions):
            self._core.log(partition).roll()

    # Looking -------------------------------------------------------------------------------

    def info(self) -> TopicInfo:
        """Return how the topic stands."""
        manifest = self._core.manifest
        return TopicInfo(
            name=self.name,
            rules=self.rules,
            version=0 if manifest is None else manifest.version,
            partitions=[self._partition_info(number) for number in self._core.numbers()],
            readers=self._reader_names(),
            groups=self.groups(),
        )

    def _partition_info(self, partition: int) -> PartitionInfo:
        log = self._core.log(partition)
        segments = log.segments()
        oldest_us = log.time_of(log.first_offset)
        return PartitionInfo(
            partition=partition,
            first_offset=log.first_offset,
            next_offset=log.next_offset,
            size_bytes=sum(segment.size_bytes for segment in segments),
            segments=len(segments),
            oldest=None if oldest_us is None else datetime_from(oldest_us),
        )

    # Whole segments ------------------------------------------------------------------------

    def send_segment(
        self, partition: int, segment: int, target: Writable | HasFileno, *, position: int = 0
    ) -> int:
        """Send a sealed segment to a file or socket as it is."""
        if type(segment) is not int:
            raise InvalidArgument(f"segment must be a whole number: {segment!r}")
        log = self._core.log(self._core.check(partition))
        return log.send_segment(segment, target, position=position)

    def adopt(self, path: str | PathLike[str], *, partition: int, key: str) -> Adoption:
        """Append all records of a sealed segment that was written elsewhere, in one step."""
        return bulk.adopt(self._core, Path(path), partition=partition, key=key)
