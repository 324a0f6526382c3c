"""What is to be archived: which offsets a run takes, and the rows they stand for."""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, cast

from pyspark.sql import DataFrame, SparkSession, functions

from segue.delivery.events import ASIDE
from segue.errors import InvalidArgument, OffsetTrimmed, TopicNotFound
from segue.spark.jobs.manifests import ArchiveKind, Manifest, Ranges
from segue.spark.strands import DEAD, LATER
from segue.stores.file.portrait import LogPortrait, portrait_of
from segue.stores.file.store import FileStore
from segue.stores.http.address import is_http
from segue.stores.topic_contract import Topic
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.spark.places import AnyStore
    from segue.stores.http.store import HttpStore

logger = logging.getLogger(__name__)

_HEADERS: Final = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
TOPIC_SCHEMA: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    + _HEADERS
)
QUEUE_SCHEMA: Final = (
    "queue STRING, message_id STRING, priority INT, offset BIGINT, timestamp TIMESTAMP, "
    "key STRING, value BINARY, attempt INT, " + _HEADERS
)
_LANE: Final = "lane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run takes."""

    ranges: Ranges
    ends: Mapping[str, int]
    pending: Mapping[str, Sequence[int]]
    late: Mapping[str, Sequence[int]]
    """What an earlier run left out because it was not settled, and is now."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to take."""
        return bool(self.ranges) or any(self.late.values())


class History(Protocol):
    """Something that can be archived."""

    kind: ArchiveKind
    name: str

    def plan(self, last: Manifest | None, *, until: datetime | None, skip_trimmed: bool) -> Plan:
        """Return what came since the last run. Raises OffsetTrimmed, InvalidArgument."""

    def rows(self, spark: SparkSession, url: str, plan: Plan) -> DataFrame:
        """Return the rows of a plan."""

    def check(self, plan: Plan) -> None:
        """Raise OffsetTrimmed if anything of a plan was deleted while it was read."""

    def follow(self, ends: Mapping[str, int]) -> None:
        """Let retention know what is archived."""

    def clean(self) -> tuple[int, int]:
        """Delete what may go; return how many segments and bytes that were."""

    def close(self) -> None:
        """Let go of everything."""


def require_there(store: "AnyStore", kind: ArchiveKind, name: str) -> None:
    """Raise TopicNotFound or InvalidArgument unless there is such a topic or queue."""
    if kind == "topic":
        if name not in store.topics():
            raise TopicNotFound(name=name)
    elif name not in store.queues():
        there = ", ".join(store.queues()) or "none"
        raise InvalidArgument(f"there is no queue {name}; there are {there}")


def _is_worth_flushing(store: "AnyStore") -> bool:
    """Tell whether what was appended lately may still have to reach the device."""
    if isinstance(store, FileStore):
        return store.place.is_durable
    return is_http(store.url) and cast("HttpStore", store).about.durable == "interval"


class TopicHistory:
    """The records of a topic."""

    kind: ArchiveKind = "topic"

    def __init__(self, store: "AnyStore", name: str, reader: str) -> None:
        self.name = name
        self._topic: Topic = store.topic(name)
        self._store = store
        # From here on nothing is deleted that it has not left behind.
        self._reader = self._topic.reader(reader)

    def plan(self, last: Manifest | None, *, until: datetime | None, skip_trimmed: bool) -> Plan:
        topic = self._topic
        if _is_worth_flushing(self._store):
            topic.flush()
        stops = dict(topic.offsets("latest"))
        if until is not None:
            stops = {each: min(stops[each], at) for each, at in topic.offsets(until).items()}
        ends: dict[str, int] = {}
        ranges: dict[str, tuple[int, int]] = {}
        for partition, first in topic.offsets("earliest").items():
            label = str(partition)
            start = first if last is None else last.ends.get(label, first)
            self._check_reader(partition, start)
            if start < first:
                lost = OffsetTrimmed(
                    offset=start, earliest=first, latest=stops[partition], partition=partition
                )
                if not skip_trimmed:
                    raise lost
                logger.warning("not archived: %s", lost)
                start = first
            ends[label] = max(start, stops.get(partition, start))
            if start < ends[label]:
                ranges[label] = (start, ends[label])
        return Plan(ranges=ranges, ends=ends, pending={}, late={})

    def _check_reader(self, partition: int, start: int) -> None:
        place = self._reader.position.get(partition, 0)
        if place > start:
            raise InvalidArgument(
                f"reader {self._reader.name} is at {place} in partition {partition}, and the "
                f"archive at {start}: an archive needs a reader of its own"
            )

    def rows(self, spark: SparkSession, url: str, plan: Plan) -> DataFrame:
        options = {
            "url": url,
            "topic": self.name,
            "partitions": ",".join(plan.ranges),
            "startingOffsets": json.dumps({each: at for each, (at, _) in plan.ranges.items()}),
            "endingOffsets": json.dumps({each: at for each, (_, at) in plan.ranges.items()}),
        }
        return spark.read.format("segue").schema(TOPIC_SCHEMA).options(**options).load()

    def check(self, plan: Plan) -> None:
        """Do nothing: reading what is gone fails by itself."""

    def follow(self, ends: Mapping[str, int]) -> None:
        self._reader.commit({int(partition): end for partition, end in ends.items()})

    def clean(self) -> tuple[int, int]:
        report = self._topic.clean()
        return report.count, report.freed_bytes

    def close(self) -> None:
        self._reader.close()


class QueueHistory:
    """The messages of a queue that are settled, which nothing can change any more."""

    kind: ArchiveKind = "queue"

    def __init__(self, store: FileStore, name: str) -> None:
        if not store.queue(name).rules.keeps_settled:
            logger.warning("queue %s keeps nothing that is settled: set keep_seconds", name)
        self._store = store
        self.name = name

    def plan(self, last: Manifest | None, *, until: datetime | None, skip_trimmed: bool) -> Plan:
        core = self._store._queue_core(self.name)
        ranges: dict[str, tuple[int, int]] = {}
        ends: dict[str, int] = dict({} if last is None else last.ends)
        pending: dict[str, list[int]] = {}
        late: dict[str, list[int]] = {}
        for portrait in portrait_of(core):
            if portrait.lane is None:
                continue
            label = _label(portrait)
            stop = portrait.cursor
            if until is not None:
                log = core.lanes.aside.log if label == LATER else core.lane(portrait.lane).log
                stop = min(stop, int(log.offset_at(until)))
            known = None if last is None else last.ends.get(label)
            start = portrait.first if known is None else known
            if start < portrait.first:
                self._lose(label, portrait.first - start)
                start = portrait.first
            stop = max(start, stop)
            waiting = [each for each in _unsettled(portrait) if portrait.first <= each < stop]
            before = () if last is None else last.pending.get(label, ())
            gone = sum(each < portrait.first for each in before)
            if gone:
                self._lose(label, gone)
            ends[label] = stop
            pending[label] = waiting
            late[label] = sorted({e for e in before if e >= portrait.first} - set(waiting))
            if start < stop:
                ranges[label] = (start, stop)
        return Plan(ranges=ranges, ends=ends, pending=pending, late=late)

    def _lose(self, label: str, count: int) -> None:
        logger.warning(
            "deleted before they were archived queue=%s priority=%s messages=%d",
            self.name,
            label,
            count,
        )

    def rows(self, spark: SparkSession, url: str, plan: Plan) -> DataFrame:
        fresh = self._read(spark, url, plan.ranges)
        waiting = _places(spark, plan.pending)
        if waiting is not None:
            fresh = fresh.join(functions.broadcast(waiting), [_LANE, "offset"], "left_anti")
        late = _places(spark, plan.late)
        if late is not None:
            ranges = {
                label: (offsets[0], offsets[-1] + 1)
                for label, offsets in plan.late.items()
                if offsets
            }
            settled = self._read(spark, url, ranges)
            fresh = fresh.unionByName(
                settled.join(functions.broadcast(late), [_LANE, "offset"], "left_semi")
            )
        return fresh.drop(_LANE)

    def _read(self, spark: SparkSession, url: str, ranges: Ranges) -> DataFrame:
        """Return the messages that were pushed at these offsets, each with its lane."""
        # Empty where there is nothing to take: what is not named would be read from the beginning.
        labels = self._labels()
        starts = {label: ranges[label][0] if label in ranges else -1 for label in labels}
        stops = {label: ranges[label][1] if label in ranges else -1 for label in labels}
        rows = (
            spark.read.format("segue")
            .schema(QUEUE_SCHEMA)
            .options(
                url=url,
                queue=self.name,
                startingOffsets=json.dumps(starts),
                endingOffsets=json.dumps(stops),
            )
            .load()
            .withColumn(_LANE, functions.substring_index("message_id", "-", 1))
        )
        chosen = functions.lit(False)
        for label, (start, stop) in ranges.items():
            chosen |= (functions.col(_LANE) == label) & functions.col("offset").between(
                start, stop - 1
            )
        return rows.filter(chosen)

    def _labels(self) -> list[str]:
        return [_label(each) for each in portrait_of(self._store._queue_core(self.name))]

    def check(self, plan: Plan) -> None:
        """Raise OffsetTrimmed if anything is gone: a snapshot of a queue passes over it."""
        for portrait in portrait_of(self._store._queue_core(self.name)):
            label = _label(portrait)
            wanted = [*plan.late.get(label, ())[:1], *plan.ranges.get(label, ())[:1]]
            if wanted and min(wanted) < portrait.first:
                raise OffsetTrimmed(
                    offset=min(wanted), earliest=portrait.first, latest=portrait.end
                )

    def follow(self, ends: Mapping[str, int]) -> None:
        """Do nothing: a queue keeps what is settled by its rules, for nobody in particular."""

    def clean(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


def _label(portrait: LogPortrait) -> str:
    """Return what the source calls a log of a queue."""
    return {None: DEAD, ASIDE: LATER}.get(portrait.lane, str(portrait.lane))


def _unsettled(portrait: LogPortrait) -> list[int]:
    """Return where messages were pushed to that somebody touched and nobody has settled."""
    touched = portrait.touched
    at_home = touched.at[touched.lane == portrait.lane]
    return sorted({*at_home.tolist(), *portrait.hidden.tolist()})


def _places(spark: SparkSession, offsets: Mapping[str, Sequence[int]]) -> DataFrame | None:
    pairs = [(label, offset) for label, each in offsets.items() for offset in each]
    return spark.createDataFrame(pairs, f"{_LANE} STRING, offset BIGINT") if pairs else None
