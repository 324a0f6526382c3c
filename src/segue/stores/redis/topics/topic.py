"""A topic on a server: the door to what its neighbours in this folder do."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.delivery.message import Body
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
from segue.log.options import Duration
from segue.log.record import datetime_from
from segue.log.sending import HasFileno, Writable
from segue.stores.arguments import duration_us
from segue.stores.redis.topics import bulk, keeping
from segue.stores.redis.topics.appending import Routed, append_each
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.feed import Feed
from segue.stores.redis.topics.group import RedisGroup
from segue.stores.redis.topics.places import all_lags, resolved
from segue.stores.redis.topics.polling import vigil_for
from segue.stores.redis.topics.producer import RedisProducer
from segue.stores.redis.topics.reader import RedisTopicReader
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
from segue.stores.topic_events import check_many, event_from, packed
from segue.stores.topic_manifest import GROUP_PREFIX, check_partitions, check_rules, reader_mark
from segue.stores.topic_reading import (
    Budget,
    budget,
    by_time,
    check_limits,
    check_start,
    limited,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.redis.store import RedisStore

FOLLOW_RECORDS: Final = 1024


def open_topic(
    store: "RedisStore", name: str, *, partitions: int | None, rules: TopicRules | None
) -> "RedisTopic":
    """Return the topic called `name`, made if partitions or rules are asked for."""
    core = TopicCore(store, name)
    if partitions is not None or rules is not None:
        core.establish(partitions, rules)
    return RedisTopic(core)


def topic_exists(store: "RedisStore", name: str) -> bool:
    """Tell whether there is a topic called `name`, be it one with something wrong with it."""
    return TopicCore(store, name).exists


class RedisTopic:
    """A partitioned stream that can be read again. Safe from any thread."""

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
        """Change the rules, for everybody."""
        check_rules(rules)
        self._core.alter(rules=rules)

    def grow(self, partitions: int) -> None:
        """Have so many partitions from now on."""
        check_partitions(partitions)
        self._core.alter(partitions=partitions)

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
        stored_key = key_bytes(key)
        record = pack_record(
            stored_key,
            value_bytes(value),
            headers=headers,
            timestamp_us=None if timestamp is None else moment_us(timestamp, name="timestamp"),
        )
        chosen = None if partition is None else self._core.check(partition)
        return append_each(self._core, [(record, stored_key, chosen)])[0]

    def append_many(self, events: Iterable[Event | Body]) -> list[Appended]:
        """Append all events, or none if one of them is bad; return where they went."""
        check_many(events)
        records: list[Routed] = []
        for item in events:
            if type(item) is bytes:
                records.append(((item, 0), None, None))  # The same as below, only sooner.
                continue
            event = event_from(item)
            key = key_bytes(event.key)
            chosen = None if event.partition is None else self._core.check(event.partition)
            records.append((packed(event, key), key, chosen))
        return append_each(self._core, records)

    def producer(self, name: str) -> RedisProducer:
        """Return what appends without ever duplicating."""
        return RedisProducer(self._core, name)

    def flush(self) -> None:
        """Return at once: every append waits for what the store's URL asks of the server."""
        self._core.require_open()

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
        return limited(feed.merged(stops), max_records, max_bytes)

    def _stops(self, stop: Start | None, partitions: list[int]) -> dict[int, int]:
        if isinstance(stop, Mapping):
            check_start(self._core, stop, partitions)
            ends = resolved(self._core, "latest", [each for each in partitions if each not in stop])
            said = [partition for partition in partitions if partition in stop]
            return ends | resolved(self._core, stop, said)
        return resolved(self._core, "latest" if stop is None else stop, partitions)

    def follow(
        self,
        start: Start = "latest",
        *,
        partitions: Partitions = None,
        timeout: Duration | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield records as they come; end when none comes within `timeout`."""
        duration_us(timeout, name="timeout")
        self._core.require()
        chosen = self._core.chosen(partitions)
        feed = Feed(self._core, resolved(self._core, start, chosen))
        return self._following(feed, timeout, everything=partitions is None)

    def _following(
        self, feed: Feed, timeout: Duration | None, *, everything: bool
    ) -> Iterator[TopicRecord]:
        while True:
            vigil = vigil_for(self._core, timeout)
            for wait in vigil.tries():
                if everything:
                    for partition in set(self._core.numbers()) - feed.position.keys():
                        feed.add(partition, 0)
                records = feed.fetch(FOLLOW_RECORDS, None, wait)
                if records:
                    break
                vigil.bases = feed.bases
            else:
                return
            yield from by_time(records)

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
        feed = Feed(self._core, resolved(self._core, start, chosen))
        return self._tables(feed, stops, within)

    def _tables(self, feed: Feed, stops: Mapping[int, int], within: Budget) -> "Iterator[pa.Table]":
        for partition, stop in stops.items():
            yield from feed.tables(partition, stop, within)

    def offsets(
        self, start: Start = "latest", *, partitions: Partitions = None
    ) -> Mapping[int, int]:
        """Return the offset that `start` stands for in each partition."""
        core = self._core
        core.require_open()
        if partitions is not None:
            return resolved(core, start, core.chosen(partitions))
        # Asked for all the time, so by a manifest that may be a moment old: partitions know better.
        while (manifest := core.known()) is not None:
            found = resolved(core, start, range(manifest.partitions))
            for number in found:
                core.saw_version(core.partition(number).version_seen)
            if not core.is_outdated:
                return found
        return resolved(core, start, core.numbers())

    # Readers and groups --------------------------------------------------------------------

    def reader(
        self, name: str, start: ReaderStart = "resume", *, partitions: Partitions = None
    ) -> RedisTopicReader:
        """Open the reader called `name`, registering it."""
        self._core.require()
        return RedisTopicReader(self._core, name, start, partitions)

    def readers(self) -> Mapping[str, list[Lag]]:
        """Return the registered readers, and how far each is behind."""
        found = all_lags(self._core)
        return {mark: lags for mark, lags in found.items() if not mark.startswith(GROUP_PREFIX)}

    def remove_reader(self, name: str) -> bool:
        """Forget a reader, so that it holds nothing back; tell whether it was there."""
        mark = reader_mark(name)
        removed = [
            self._core.partition(partition).forget(mark) for partition in self._core.numbers()
        ]
        return any(removed)

    def group(self, name: str) -> RedisGroup:
        """Return the group called `name`."""
        return RedisGroup(self._core, name)

    def groups(self) -> list[str]:
        """Return the names of the groups there are."""
        marks = {
            mark
            for partition in self._core.numbers()
            for mark in self._core.partition(partition).marks()
        }
        return _groups_in(sorted(marks))

    def remove_group(self, name: str) -> bool:
        """Forget a group; tell whether it was there."""
        return RedisGroup(self._core, name).remove()

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
            self._core.partition(partition).roll()

    # Looking -------------------------------------------------------------------------------

    def info(self) -> TopicInfo:
        """Return how the topic stands."""
        manifest = self._core.manifest
        numbers = range(0 if manifest is None else manifest.partitions)
        surveys = [self._core.partition(number).survey() for number in numbers]
        marks = sorted({mark for survey in surveys for mark in survey.places})
        return TopicInfo(
            name=self.name,
            rules=TopicRules() if manifest is None else manifest.rules,
            version=0 if manifest is None else manifest.version,
            partitions=[
                PartitionInfo(
                    partition=number,
                    first_offset=survey.first_offset,
                    next_offset=survey.next_offset,
                    size_bytes=survey.size_bytes,
                    segments=len(survey.sealed) + 1,
                    oldest=None if survey.oldest_us is None else datetime_from(survey.oldest_us),
                )
                for number, survey in zip(numbers, surveys, strict=True)
            ],
            readers=[mark for mark in marks if not mark.startswith(GROUP_PREFIX)],
            groups=_groups_in(marks),
        )

    # Whole segments ------------------------------------------------------------------------

    def send_segment(
        self, partition: int, segment: int, target: Writable | HasFileno, *, position: int = 0
    ) -> int:
        """Send a sealed segment to a file or socket, as the file it would be."""
        return bulk.send(self._core, partition, segment, target, position=position)

    def adopt(self, path: str | PathLike[str], *, partition: int, key: str) -> Adoption:
        """Append all records of a sealed segment that was written elsewhere, in one step."""
        return bulk.adopt(self._core, Path(path), partition=partition, key=key)


def _groups_in(marks: list[str]) -> list[str]:
    return [mark.removeprefix(GROUP_PREFIX) for mark in marks if mark.startswith(GROUP_PREFIX)]
