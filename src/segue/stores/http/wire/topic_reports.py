"""How topics, readers and groups stand, and what was done to a topic, as it is answered."""

from segue.delivery.topic_record import moment_us
from segue.log.record import datetime_from
from segue.stores.http.wire.base import Answer, Count, Moment
from segue.stores.http.wire.rules import TopicRulesJson
from segue.stores.topic_contract import (
    Adoption,
    CleanReport,
    CompactReport,
    GroupInfo,
    Lag,
    MemberInfo,
    PartitionInfo,
    TopicInfo,
)


class LagJson(Answer):
    """How far a reader or group is behind in one partition."""

    partition: Count
    committed: Count
    next_offset: Count
    size_bytes: Count
    seconds: float
    trimmed: Count

    @classmethod
    def of(cls, lag: Lag) -> "LagJson":
        """Return it as it is sent."""
        return cls(
            partition=lag.partition,
            committed=lag.committed,
            next_offset=lag.next_offset,
            size_bytes=lag.size_bytes,
            seconds=lag.seconds,
            trimmed=lag.trimmed,
        )

    def lag(self) -> Lag:
        """Return the answer as a value."""
        return Lag(
            partition=self.partition,
            committed=self.committed,
            next_offset=self.next_offset,
            size_bytes=self.size_bytes,
            seconds=self.seconds,
            trimmed=self.trimmed,
        )


class Lags(Answer):
    """How far a reader or group is behind."""

    lag: list[LagJson]


class Readers(Answer):
    """The readers there are, and how far each is behind."""

    readers: dict[str, list[LagJson]]


class MemberJson(Answer):
    """A member of a group."""

    member: str
    owner: str
    partitions: list[int]
    seconds_left: float

    @classmethod
    def of(cls, info: MemberInfo) -> "MemberJson":
        """Return it as it is sent."""
        return cls(
            member=info.member,
            owner=info.owner,
            partitions=list(info.partitions),
            seconds_left=info.seconds_left,
        )


class GroupJson(Answer):
    """A group at one moment."""

    name: str
    generation: int
    members: list[MemberJson]
    lag: list[LagJson]

    @classmethod
    def of(cls, info: GroupInfo) -> "GroupJson":
        """Return it as it is sent."""
        return cls(
            name=info.name,
            generation=info.generation,
            members=[MemberJson.of(each) for each in info.members],
            lag=[LagJson.of(each) for each in info.lag],
        )

    def info(self) -> GroupInfo:
        """Return the answer as a value."""
        return GroupInfo(
            name=self.name,
            generation=self.generation,
            members=[
                MemberInfo(
                    member=each.member,
                    owner=each.owner,
                    partitions=each.partitions,
                    seconds_left=each.seconds_left,
                )
                for each in self.members
            ],
            lag=[each.lag() for each in self.lag],
        )


class PartitionJson(Answer):
    """One partition at one moment."""

    partition: Count
    first_offset: Count
    next_offset: Count
    size_bytes: Count
    segments: Count
    oldest_us: Moment | None


class TopicJson(Answer):
    """A topic at one moment."""

    name: str
    rules: TopicRulesJson
    version: int
    partitions: list[PartitionJson]
    readers: list[str]
    groups: list[str]

    @classmethod
    def of(cls, info: TopicInfo) -> "TopicJson":
        """Return it as it is sent."""
        return cls(
            name=info.name,
            rules=TopicRulesJson.of(info.rules),
            version=info.version,
            partitions=[
                PartitionJson(
                    partition=each.partition,
                    first_offset=each.first_offset,
                    next_offset=each.next_offset,
                    size_bytes=each.size_bytes,
                    segments=each.segments,
                    oldest_us=None
                    if each.oldest is None
                    else moment_us(each.oldest, name="oldest"),
                )
                for each in info.partitions
            ],
            readers=list(info.readers),
            groups=list(info.groups),
        )

    def info(self) -> TopicInfo:
        """Return the answer as a value."""
        return TopicInfo(
            name=self.name,
            rules=self.rules.rules(),
            version=self.version,
            partitions=[
                PartitionInfo(
                    partition=each.partition,
                    first_offset=each.first_offset,
                    next_offset=each.next_offset,
                    size_bytes=each.size_bytes,
                    segments=each.segments,
                    oldest=None if each.oldest_us is None else datetime_from(each.oldest_us),
                )
                for each in self.partitions
            ],
            readers=self.readers,
            groups=self.groups,
        )


class Cleaned(Answer):
    """What cleaning deleted."""

    deleted: dict[int, list[int]]
    freed_bytes: Count
    held_by: dict[int, str]

    @classmethod
    def of(cls, report: CleanReport) -> "Cleaned":
        """Return it as it is sent."""
        return cls(
            deleted={each: list(segments) for each, segments in report.deleted.items()},
            freed_bytes=report.freed_bytes,
            held_by=dict(report.held_by),
        )

    def report(self) -> CleanReport:
        """Return the answer as a value."""
        return CleanReport(deleted=self.deleted, freed_bytes=self.freed_bytes, held_by=self.held_by)


class Compacted(Answer):
    """What compaction removed."""

    removed_records: Count
    freed_bytes: Count
    segments: dict[int, list[int]]

    @classmethod
    def of(cls, report: CompactReport) -> "Compacted":
        """Return it as it is sent."""
        return cls(
            removed_records=report.removed_records,
            freed_bytes=report.freed_bytes,
            segments={each: list(segments) for each, segments in report.segments.items()},
        )

    def report(self) -> CompactReport:
        """Return the answer as a value."""
        return CompactReport(
            removed_records=self.removed_records,
            freed_bytes=self.freed_bytes,
            segments=self.segments,
        )


class Adopted(Answer):
    """What became of a segment that was written elsewhere."""

    partition: Count
    first_offset: Count
    count: Count
    is_new: bool

    def adoption(self) -> Adoption:
        """Return the answer as a value."""
        return Adoption(
            partition=self.partition,
            first_offset=self.first_offset,
            count=self.count,
            is_new=self.is_new,
        )
