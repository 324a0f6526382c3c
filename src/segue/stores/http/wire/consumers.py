"""Topics as an operator sees them: who reads, how far behind, and what is kept for whom."""

from typing import Literal

from segue.stores.http.wire.base import Answer, Count, Moment
from segue.stores.http.wire.rules import TopicRulesJson
from segue.stores.http.wire.topic_reports import LagJson, MemberJson
from segue.stores.topic_looks import Consumer, Kept, Kind, Standing


class TopicRow(Answer):
    """One topic, and the reader or group that is furthest behind."""

    name: str
    partitions: Count = 0
    records: Count = 0
    size_bytes: Count = 0
    oldest_us: Moment | None = None
    readers: Count = 0
    groups: Count = 0
    lag_records: Count = 0
    lag_bytes: Count = 0
    lag_seconds: float = 0.0
    lag_of: str = ""
    """Who that is; empty if nobody is behind."""
    lag_kind: Literal["reader", "group", ""] = ""
    problem: str = ""

    @classmethod
    def of(cls, name: str, standing: Standing) -> "TopicRow":
        """Return it as it is sent."""
        row = cls(
            name=name,
            partitions=standing.partitions,
            records=standing.records,
            size_bytes=standing.size_bytes,
            oldest_us=standing.oldest_us,
            readers=standing.readers,
            groups=standing.groups,
            problem=standing.problem,
        )
        worst = standing.worst
        if worst is not None:
            row.lag_records = worst.records
            row.lag_bytes = worst.size_bytes
            row.lag_seconds = worst.seconds
            row.lag_of = worst.name
            row.lag_kind = worst.kind
        return row


class TopicRows(Answer):
    """Topics by name."""

    topics: list[TopicRow]
    next: str | None
    """The `after` of the next page; None if there is none. A page may have fewer than asked for."""


class ConsumerJson(Answer):
    """A reader or a group, and how far it is behind."""

    kind: Kind
    name: str
    records: Count
    size_bytes: Count
    seconds: float
    """How long the oldest record has been waiting that it has not read."""
    trimmed: Count
    lag: list[LagJson]
    """By partition."""
    generation: int | None
    """Of a group."""
    members: list[MemberJson]

    @classmethod
    def of(cls, consumer: Consumer) -> "ConsumerJson":
        """Return it as it is sent."""
        return cls(
            kind=consumer.kind,
            name=consumer.name,
            records=sum(lag.records for lag in consumer.lag),
            size_bytes=sum(lag.size_bytes for lag in consumer.lag),
            seconds=max((lag.seconds for lag in consumer.lag), default=0.0),
            trimmed=sum(lag.trimmed for lag in consumer.lag),
            lag=[LagJson.of(lag) for lag in consumer.lag],
            generation=consumer.generation,
            members=[MemberJson.of(member) for member in consumer.members],
        )


class Consumers(Answer):
    """Who reads a topic, readers first."""

    consumers: list[ConsumerJson]


class KeptJson(Answer):
    """What one partition keeps, and for whom."""

    partition: Count
    first_offset: Count
    next_offset: Count
    size_bytes: Count
    oldest_us: Moment | None
    held_by: str
    """What keeps the oldest segment that may not go; empty if there is none, or a rule does."""
    deletable_segments: Count
    deletable_bytes: Count

    @classmethod
    def of(cls, kept: Kept) -> "KeptJson":
        """Return it as it is sent."""
        return cls(
            partition=kept.partition,
            first_offset=kept.first_offset,
            next_offset=kept.next_offset,
            size_bytes=kept.size_bytes,
            oldest_us=kept.oldest_us,
            held_by=kept.held_by,
            deletable_segments=kept.deletable_segments,
            deletable_bytes=kept.deletable_bytes,
        )


class Retention(Answer):
    """What a topic keeps, and what it waits for before it deletes more."""

    partitions: list[KeptJson]
    rules: TopicRulesJson
    waits_for: str
    """In words."""
