"""How a topic stands for an operator: who reads it, how far behind, and what is kept for whom.

The values here are the same of every store. `AnyTopicLooks` finds them by what every topic
promises; a directory knows them without opening anything (`file/topics/looking.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from segue.delivery.topic_record import moment_us
from segue.delivery.topic_rules import TopicRules
from segue.errors import TopicNotFound
from segue.stores.topic_contract import Lag, MemberInfo, PartitionInfo, Topic, TopicInfo
from segue.stores.topic_manifest import GROUP_PREFIX
from segue.values import dataclass

Kind = Literal["reader", "group"]
Who = tuple[Kind, str]
"""A reader or a group, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """The reader or group that has most records ahead of it."""

    kind: Kind
    name: str
    records: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A topic in one line."""

    partitions: int
    records: int
    size_bytes: int
    oldest_us: int | None
    readers: int
    groups: int
    worst: Behind | None
    """None if nobody is behind."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A reader or a group, and how far it is behind."""

    kind: Kind
    name: str
    lag: Sequence[Lag]
    generation: int | None = None
    """Of a group."""
    members: Sequence[MemberInfo] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one partition keeps, and for whom."""

    partition: int
    first_offset: int
    next_offset: int
    size_bytes: int
    oldest_us: int | None
    marks: int
    """How many readers and groups have a place in it."""
    held_by: str
    """What keeps the oldest segment that may not go yet; empty if there is none, or a rule does."""
    deletable_segments: int
    deletable_bytes: int


class TopicLooks(Protocol):
    """Looks at one topic, and changes nothing. Raises TopicNotFound."""

    def standing(self) -> Standing:
        """Return the topic in one line."""

    def consumers(self) -> list[Consumer]:
        """Return who reads, readers first."""

    def retention(self) -> tuple[TopicRules, list[Kept]]:
        """Return the rules, and what each partition keeps."""


def kind_of(mark: str) -> Who:
    """Return whose place has this name."""
    if mark.startswith(GROUP_PREFIX):
        return "group", mark.removeprefix(GROUP_PREFIX)
    return "reader", mark


def holder(mark: str) -> str:
    """Return whose place has this name, in words."""
    return " ".join(kind_of(mark))


def and_others(first: str, count: int) -> str:
    """Return one of `count`, and in words how many others there are."""
    return first + {1: "", 2: " and one more"}.get(count, f" and {count - 1} more")


def worst_of(consumers: Mapping[Who, Sequence[Lag]]) -> Behind | None:
    """Return who has most records ahead, None if nobody has any."""
    found = max(consumers, key=lambda each: _records(consumers[each]), default=None)
    if found is None or not _records(consumers[found]):
        return None
    kind, name = found
    lags = consumers[found]
    return Behind(
        kind=kind,
        name=name,
        records=_records(lags),
        size_bytes=sum(lag.size_bytes for lag in lags),
        seconds=max(lag.seconds for lag in lags),
    )


def _records(lags: Sequence[Lag]) -> int:
    return sum(lag.records for lag in lags)


class AnyTopicLooks:
    """Looks at a topic by what every topic promises."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def standing(self) -> Standing:
        """Return the topic in one line."""
        info = self._info()
        moments = [_oldest_us(each) for each in info.partitions]
        return Standing(
            partitions=len(info.partitions),
            records=info.count,
            size_bytes=info.size_bytes,
            oldest_us=min((each for each in moments if each is not None), default=None),
            readers=len(info.readers),
            groups=len(info.groups),
            worst=worst_of(self._lags(info)),
        )

    def _info(self) -> TopicInfo:
        info = self._topic.info()
        if not info.version:
            raise TopicNotFound(name=self._topic.name)
        return info

    def _lags(self, info: TopicInfo) -> dict[Who, Sequence[Lag]]:
        """Return how far everybody is behind."""
        found: dict[Who, Sequence[Lag]] = {
            ("reader", name): lag for name, lag in self._topic.readers().items()
        }
        return found | {("group", name): self._topic.group(name).lag() for name in info.groups}

    def consumers(self) -> list[Consumer]:
        """Return who reads, readers first."""
        info = self._info()
        found = [
            Consumer(kind="reader", name=name, lag=lag)
            for name, lag in self._topic.readers().items()
        ]
        for name in info.groups:
            group = self._topic.group(name).info()
            found.append(
                Consumer(
                    kind="group",
                    name=name,
                    lag=group.lag,
                    generation=group.generation,
                    members=group.members,
                )
            )
        return found

    def retention(self) -> tuple[TopicRules, list[Kept]]:
        """Return the rules, and what each partition keeps."""
        info = self._info()
        return info.rules, [self._kept(each) for each in info.partitions]

    def _kept(self, info: PartitionInfo) -> Kept:
        number = info.partition
        report = self._topic.clean(partitions=[number], dry_run=True)
        deletable = len(report.deleted.get(number, ()))
        mark = report.held_by.get(number)
        is_held = mark is not None and info.segments - 1 > deletable
        return Kept(
            partition=number,
            first_offset=info.first_offset,
            next_offset=info.next_offset,
            size_bytes=info.size_bytes,
            oldest_us=_oldest_us(info),
            marks=0 if mark is None else 1,
            held_by=holder(mark) if mark is not None and is_held else "",
            deletable_segments=deletable,
            deletable_bytes=report.freed_bytes,
        )


def _oldest_us(info: PartitionInfo) -> int | None:
    return None if info.oldest is None else moment_us(info.oldest, name="oldest")
