"""A topic behind a server: the door to what its neighbours in this folder do."""

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from segue.delivery.message import Body
from segue.delivery.topic_record import Appended, Event, Key, Moment, TopicRecord
from segue.delivery.topic_rules import TopicRules
from segue.errors import AccessDenied
from segue.log.layout import checked_name
from segue.log.options import Duration
from segue.log.sending import HasFileno, Writable
from segue.stores.arguments import duration_us
from segue.stores.http.calls import LONG_SECONDS, Calls, path_of
from segue.stores.http.sense import exactly, making_sense
from segue.stores.http.topics import bulk
from segue.stores.http.topics.group import HttpGroup
from segue.stores.http.topics.producer import HttpProducer
from segue.stores.http.topics.reader import HttpTopicReader
from segue.stores.http.topics.reading import Reading, following
from segue.stores.http.wire.about import Names
from segue.stores.http.wire.queues import Removed
from segue.stores.http.wire.rules import ConfigureTopic, TopicRulesJson
from segue.stores.http.wire.starts import partitions_json, start_json
from segue.stores.http.wire.topic_reports import Cleaned, Compacted, Readers, TopicJson
from segue.stores.http.wire.topics import (
    Append,
    Bounds,
    Clean,
    Create,
    EventJson,
    Grow,
    PartitionCount,
    Places,
    Some,
    Span,
    event_json,
)
from segue.stores.topic_contract import (
    Adoption,
    CleanReport,
    CompactReport,
    Lag,
    Partitions,
    ReaderStart,
    Start,
    TopicInfo,
)
from segue.stores.topic_events import events_from
from segue.stores.topic_manifest import check_partitions, check_rules, group_mark, reader_mark
from segue.stores.topic_reading import check_limits

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.http.store import HttpStore


def open_topic(
    store: "HttpStore", name: str, *, partitions: int | None, rules: TopicRules | None
) -> "HttpTopic":
    """Return the topic called `name`, made if partitions or rules are asked for."""
    topic = HttpTopic(store, checked_name(name))
    if partitions is not None:
        check_partitions(partitions)
    if rules is not None:
        check_rules(rules)
    if (partitions is not None or rules is not None) and not _is_so(topic, partitions, rules):
        said = None if rules is None else ConfigureTopic.of(rules)
        body = Create(partitions=partitions, rules=said)
        store.calls.tell(path_of("topics", name), body, method="PUT")
    return topic


def _is_so(topic: "HttpTopic", partitions: int | None, rules: TopicRules | None) -> bool:
    """Tell whether a topic is there, and as it should be: making one takes more than using it."""
    try:
        known = topic.info()
    except AccessDenied:
        return False
    return bool(
        known.version
        and partitions in (None, len(known.partitions))
        and rules in (None, known.rules)
    )


class HttpTopic:
    """A partitioned stream that can be read again. Safe from any thread."""

    def __init__(self, store: "HttpStore", name: str) -> None:
        self.name = name
        self._store = store
        self._path = path_of("topics", name)

    @property
    def _calls(self) -> Calls:
        """What asks the server. Raises StoreClosed."""
        self._store.require_open()
        return self._store.calls

    # How it is made ------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return self._calls.get(f"{self._path}/partitions", PartitionCount).partitions

    @property
    def rules(self) -> TopicRules:
        """How the topic keeps what it holds."""
        answer = self._calls.get(f"{self._path}/rules", TopicRulesJson)
        with making_sense():
            return answer.rules()

    def configure(self, rules: TopicRules) -> None:
        """Change the rules, durably and for everybody."""
        check_rules(rules)
        self._calls.tell(f"{self._path}/rules", ConfigureTopic.of(rules), method="PUT")

    def grow(self, partitions: int) -> None:
        """Have so many partitions from now on."""
        check_partitions(partitions)
        self._calls.tell(f"{self._path}/grow", Grow(partitions=partitions))

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
        event = Event(
            value=value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )
        return self._appended([event_json(event)])[0]

    def append_many(self, events: Iterable[Event | Body]) -> list[Appended]:
        """Append all events, or none if one of them is bad; return where they went."""
        return self._appended([event_json(event) for event in events_from(events)])

    def _appended(self, records: list[EventJson]) -> list[Appended]:
        answer = self._calls.post(f"{self._path}/records", Append(records=records), Places)
        return [place.appended() for place in exactly(len(records), answer.places)]

    def producer(self, name: str) -> HttpProducer:
        """Return what appends without ever duplicating."""
        return HttpProducer(self._store, self.name, name)

    def flush(self) -> None:
        """Return once everything appended before is on the server's device."""
        self._calls.tell(f"{self._path}/flush")

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
        span = self._span(start, stop, partitions)
        return Reading(self._store, self._path, span, max_records, max_bytes).records()

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
        check_limits(max_records, max_bytes)
        span = self._span(start, stop, partitions)
        return Reading(self._store, self._path, span, max_records, max_bytes).tables()

    def follow(
        self,
        start: Start = "latest",
        *,
        partitions: Partitions = None,
        timeout: Duration | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield records as they come; end when none comes within `timeout`."""
        duration_us(timeout, name="timeout")
        chosen = partitions_json(partitions)
        span = self._span(start, None, chosen, is_required=True)
        return following(self._store, self._path, span.start, chosen, timeout)

    def offsets(
        self, start: Start = "latest", *, partitions: Partitions = None
    ) -> Mapping[int, int]:
        """Return the offset that `start` stands for in each partition."""
        return self._span(start, None, partitions).start

    def _span(
        self,
        start: Start,
        stop: Start | None,
        partitions: Partitions,
        *,
        is_required: bool = False,
    ) -> Span:
        """Return from where to where to read: as it is now, and not when the reading begins."""
        body = Bounds(
            start=start_json(start),
            stop=None if stop is None else start_json(stop),
            partitions=partitions_json(partitions),
            is_required=is_required,
        )
        return self._calls.post(f"{self._path}/bounds", body, Span)

    # Readers and groups --------------------------------------------------------------------

    def reader(
        self, name: str, start: ReaderStart = "resume", *, partitions: Partitions = None
    ) -> HttpTopicReader:
        """Open the reader called `name`, registering it durably."""
        return HttpTopicReader(self._store, self.name, name, start, partitions)

    def readers(self) -> Mapping[str, list[Lag]]:
        """Return the registered readers, and how far each is behind."""
        found = self._calls.get(f"{self._path}/readers", Readers).readers
        return {name: [each.lag() for each in lags] for name, lags in found.items()}

    def remove_reader(self, name: str) -> bool:
        """Forget a reader, so that it holds nothing back; tell whether it was there."""
        path = path_of("topics", self.name, "readers", reader_mark(name))
        return self._calls.delete(path, Removed).removed

    def group(self, name: str) -> HttpGroup:
        """Return the group called `name`."""
        return HttpGroup(self._store, self.name, name)

    def groups(self) -> list[str]:
        """Return the names of the groups there are."""
        return self._calls.get(f"{self._path}/groups", Names).names

    def remove_group(self, name: str) -> bool:
        """Forget a group; tell whether it was there."""
        group_mark(name)
        return self._calls.delete(path_of("topics", self.name, "groups", name), Removed).removed

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
        TopicRules(keep_seconds=keep_seconds, keep_bytes=keep_bytes, lag_max=lag_max)
        body = Clean(
            keep_seconds=keep_seconds,
            keep_bytes=keep_bytes,
            lag_max=lag_max,
            partitions=partitions_json(partitions),
            dry_run=dry_run,
        )
        answer = self._calls.post(f"{self._path}/clean", body, Cleaned, takes=LONG_SECONDS)
        return answer.report()

    def compact(self, *, partitions: Partitions = None) -> CompactReport:
        """Remove every record that a later one with the same key has made needless."""
        body = Some(partitions=partitions_json(partitions))
        answer = self._calls.post(f"{self._path}/compact", body, Compacted, takes=LONG_SECONDS)
        return answer.report()

    def roll(self, *, partitions: Partitions = None) -> None:
        """Begin a new segment."""
        self._calls.tell(f"{self._path}/roll", Some(partitions=partitions_json(partitions)))

    # Looking -------------------------------------------------------------------------------

    def info(self) -> TopicInfo:
        """Return how the topic stands."""
        answer = self._calls.get(self._path, TopicJson)
        with making_sense():
            return answer.info()

    # Whole segments ------------------------------------------------------------------------

    def send_segment(
        self, partition: int, segment: int, target: Writable | HasFileno, *, position: int = 0
    ) -> int:
        """Send a sealed segment to a file or socket, as the server's store sends it."""
        return bulk.send(self._store, self._path, partition, segment, target, position=position)

    def adopt(self, path: str | PathLike[str], *, partition: int, key: str) -> Adoption:
        """Append all records of a sealed segment that was written elsewhere, in one step."""
        return bulk.adopt(self._store, self._path, Path(path), partition=partition, key=key)
