"""What every topic promises. Nothing here does anything: `file/topics/` and its siblings do.

The promises hold on every store, and `tests/contract` holds every store to them:

- An append that returned is kept: through a kill always, through a power cut with sync "always".
- Offsets of a partition are dense, never given twice and never change.
- Records with the same key are in one partition, in the order they were appended, for as long as
  no partitions are added.
- Nothing a reader or group has not left behind is deleted, unless the rules or the caller set a
  limit; whoever loses something by a limit is told by OffsetTrimmed.
- A member of a group that lost a partition cannot commit for it.

Times are seconds or a timedelta, moments a datetime or microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from segue.delivery.message import Body
from segue.delivery.topic_record import Appended, Event, Key, Moment, TopicRecord
from segue.delivery.topic_rules import TopicRules
from segue.log.options import Duration
from segue.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.log.sending import HasFileno, Writable

Start = Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
"""Where to begin: an end of every partition, the first record appended at or after a time, an
offset where one partition is meant, or one for each (those left out begin with the earliest)."""
ReaderStart = Start | Literal["resume"]
"""Or where the reader last committed; from the earliest record if it never did."""
Partitions = Collection[int] | None
"""Which partitions are meant; None is all of them."""
OnRebalance = Callable[[list[int]], None]

POLL_RECORDS_DEFAULT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """One partition at one moment."""

    partition: int
    first_offset: int
    """The oldest record that is left."""
    next_offset: int
    """The offset the next record gets."""
    size_bytes: int
    """What it takes up on the device."""
    segments: int
    oldest: datetime | None
    """When the oldest record that is left was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic at one moment."""

    name: str
    rules: TopicRules
    version: int
    """How often partitions or rules were changed, from 1."""
    partitions: Sequence[PartitionInfo]
    readers: Sequence[str]
    groups: Sequence[str]

    @property
    def count(self) -> int:
        """How many offsets the topic holds."""
        return sum(each.next_offset - each.first_offset for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a reader or group is behind in one partition, by what it committed."""

    partition: int
    committed: int
    next_offset: int
    size_bytes: int
    """Of the records that are still to be read, as they are stored."""
    seconds: float
    """How long the oldest of these has been waiting; 0 if there is none."""
    trimmed: int
    """How many of these are gone, by a limit of retention."""

    @property
    def records(self) -> int:
        """How many offsets are still to be read."""
        return self.next_offset - self.committed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A member of a group."""

    member: str
    owner: str
    partitions: Sequence[int]
    seconds_left: float
    """Until it is taken for dead, unless it shows up before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group at one moment."""

    name: str
    generation: int
    members: Sequence[MemberInfo]
    lag: Sequence[Lag]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """What cleaning deleted."""

    deleted: Mapping[int, Sequence[int]]
    """The segments that are gone, by partition."""
    freed_bytes: int
    held_by: Mapping[int, str]
    """By partition, the reader or group that stands furthest back and so keeps the rest."""

    @property
    def count(self) -> int:
        """How many segments are gone."""
        return sum(map(len, self.deleted.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What compaction removed."""

    removed_records: int
    freed_bytes: int
    segments: Mapping[int, Sequence[int]]
    """The segments that were written anew, by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What became of a segment that was written elsewhere."""

    partition: int
    first_offset: int
    count: int
    is_new: bool
    """False if it had been adopted before under the same key: nothing happened."""


class Producer(Protocol):
    """Appends so that repeating an append never duplicates. For one thread at a time.

    Each record has a sequence number, and the numbers must grow. One that is not above the last of
    its partition is there already, and is not appended again. Only one at a time can use a name;
    it is free again when its user closes it or dies.
    """

    name: str

    def append(
        self,
        value: Body | None,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp: Moment | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Appended | None:
        """Append a record, or return None if it is there already.

        Without `sequence` it is the next one: so whoever repeats a call must say the number. It
        goes where the first try went, also if partitions were added in between; without key and
        partition the number decides where.
        """

    def append_many(
        self, events: Iterable[Event | Body], *, first_sequence: int | None = None
    ) -> list[Appended | None]:
        """Append events with consecutive sequence numbers, those that are not there already."""

    def last_sequence(self, partition: int | None = None) -> int:
        """Return the highest number of a partition, or of all; -1 if there is none."""

    def close(self) -> None:
        """Let others use the name."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class TopicReader(Protocol):
    """Reads partitions from a saved place on. For one thread at a time.

    What it has not committed is not deleted without a limit, from the moment it exists. A record
    that is gone by a limit raises OffsetTrimmed from then on; `seek` goes past the gap.
    """

    name: str

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records, at least one if any comes within `timeout`.

        In order within each partition.
        """

    def poll_table(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> pa.Table:
        """Return the next records as an Arrow table, as `Topic.tables` yields them."""

    def __iter__(self) -> Iterator[TopicRecord]:
        """Yield what is there, and stop at the end."""

    @property
    def position(self) -> Mapping[int, int]:
        """The offset of the next record, by partition."""

    def seek(self, start: ReaderStart) -> None:
        """Go to another place; `commit` makes it the saved one.

        Offsets by partition leave the other partitions where they are.
        """

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the current position, as the place to resume from.

        Raises OffsetTrimmed for what is gone; the others are saved all the same.
        """

    def lag(self) -> list[Lag]:
        """Return how far the reader is behind, by what it committed."""

    def close(self) -> None:
        """Let go of the topic. Does not commit."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Member(Protocol):
    """One of those who share the partitions of a topic. For one thread at a time.

    It shows that it is alive by calling `poll`, `commit` or `show_up` within its `ttl`. If it does
    not, or its process dies, the others take over what it had: then its commits raise
    PartitionLost, and its next `poll` joins the group anew.
    """

    name: str
    """Of the group."""

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> list[TopicRecord]:
        """Return the next records of our partitions; at least one if any comes within `timeout`.

        This is where partitions are given up and taken over.
        """

    def poll_table(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: int | None = None,
        timeout: Duration | None = 0,
    ) -> pa.Table:
        """Return the next records as an Arrow table, as `Topic.tables` yields them."""

    @property
    def assignment(self) -> Mapping[int, int]:
        """Our partitions, each with its fencing token: hand it to what the records change."""

    @property
    def position(self) -> Mapping[int, int]:
        """The offset of the next record, by partition."""

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on elsewhere in partitions that are ours. Raises PartitionLost."""

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the position in all our partitions, for whoever reads on.

        Raises PartitionLost if any is not ours any more; the others are saved all the same.
        """

    def show_up(self) -> None:
        """Show that we are alive, where work between two polls takes long.

        Raises PartitionLost if we were taken for dead.
        """

    def close(self) -> None:
        """Leave the group, so that the others take over at once. Does not commit."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Group(Protocol):
    """Consumers that share the partitions of a topic, and the place they are at."""

    name: str

    def join(
        self,
        *,
        start: Start = "earliest",
        ttl: Duration = 60,
        owner: str | None = None,
        on_assign: OnRebalance | None = None,
        on_revoke: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> Member:
        """Become a member. `start` is where a new group begins. Raises TopicNotFound.

        `on_revoke` is called with the partitions we are about to give up, while commits for them
        still count; `on_assign` with those we got; `on_lost` with those we had when we were taken
        for dead. All of them from within `poll`, the second also from here.
        """

    def info(self) -> GroupInfo:
        """Return who is in the group, and how far it is behind."""

    def lag(self) -> list[Lag]:
        """Return how far the group is behind, by what it committed."""

    def reset(self, start: Start) -> None:
        """Let the group begin elsewhere. Raises GroupBusy while it has members."""


class Topic(Protocol):
    """A partitioned stream that can be read again. Safe from any thread and process."""

    name: str

    @property
    def partitions(self) -> int:
        """How many partitions there are."""

    @property
    def rules(self) -> TopicRules:
        """How the topic keeps what it holds, the same for everybody who uses it."""

    def configure(self, rules: TopicRules) -> None:
        """Change the rules, durably and for everybody."""

    def grow(self, partitions: int) -> None:
        """Have so many partitions from now on. Keys may then go to other partitions than before.

        Raises InvalidArgument for fewer than there are.
        """

    def append(
        self,
        value: Body | None,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp: Moment | None = None,
        partition: int | None = None,
    ) -> Appended:
        """Append a record and return where it went.

        To `partition`; else where its key belongs; else to one partition for a while and then to
        the next. None as value is a tombstone. Raises InvalidArgument, RecordTooLarge.
        """

    def append_many(self, events: Iterable[Event | Body]) -> list[Appended]:
        """Append all events, or none if one of them is bad; return where they went.

        Those of one partition are one batch, kept or lost together, unless they are more than fit
        in a segment. A crash can part batches.
        """

    def producer(self, name: str) -> Producer:
        """Return what appends without ever duplicating. Raises ProducerBusy."""

    def flush(self) -> None:
        """Return once everything appended before is on the device, whatever the sync mode."""

    def records(
        self,
        start: Start = "earliest",
        *,
        partitions: Partitions = None,
        stop: Start | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield what is there from `start` on, partitions merged by timestamp, then stop.

        Up to `stop`, or the end as it is now. A partition's own order is never changed.
        """

    def follow(
        self,
        start: Start = "latest",
        *,
        partitions: Partitions = None,
        timeout: Duration | None = None,
    ) -> Iterator[TopicRecord]:
        """Yield records as they come; end when none comes within `timeout`.

        Raises TopicNotFound.
        """

    def tables(
        self,
        start: Start = "earliest",
        *,
        partitions: Partitions = None,
        stop: Start | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield what `records` does as Arrow tables, a partition after the other.

        Columns: key, value, headers, timestamp, offset, partition. Needs the extra `columns`.
        """

    def offsets(
        self, start: Start = "latest", *, partitions: Partitions = None
    ) -> Mapping[int, int]:
        """Return the offset that `start` stands for in each partition."""

    def reader(
        self, name: str, start: ReaderStart = "resume", *, partitions: Partitions = None
    ) -> TopicReader:
        """Open the reader called `name`, registering it durably. Raises TopicNotFound."""

    def readers(self) -> Mapping[str, Sequence[Lag]]:
        """Return the registered readers, and how far each is behind."""

    def remove_reader(self, name: str) -> bool:
        """Forget a reader, so that it holds nothing back; tell whether it was there."""

    def group(self, name: str) -> Group:
        """Return the group called `name`; it exists from its first member on."""

    def groups(self) -> Sequence[str]:
        """Return the names of the groups there are."""

    def remove_group(self, name: str) -> bool:
        """Forget a group; tell whether it was there. Raises GroupBusy while it has members."""

    def clean(
        self,
        *,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
        lag_max: int | None = None,
        partitions: Partitions = None,
        dry_run: bool = False,
    ) -> CleanReport:
        """Delete the segments that may go, by the rules or by stricter limits given here.

        Never a segment that takes records. `dry_run` only tells which would go.
        """

    def compact(self, *, partitions: Partitions = None) -> CompactReport:
        """Remove every record that a later one with the same key has made needless.

        Offsets stay as they are, records without a key stay, tombstones go after the rules'
        `tombstone_seconds`. What is in the segment that takes records is not touched.
        """

    def roll(self, *, partitions: Partitions = None) -> None:
        """Begin a new segment, so that what there is can be cleaned, compacted or sent."""

    def info(self) -> TopicInfo:
        """Return how the topic stands."""

    def send_segment(
        self, partition: int, segment: int, target: Writable | HasFileno, *, position: int = 0
    ) -> int:
        """Send a sealed segment to a file or socket as it is; return how many bytes that were.

        It never passes through Python. `position` goes on with what broke off.
        """

    def adopt(self, path: str | PathLike[str], *, partition: int, key: str) -> Adoption:
        """Append all records of a sealed segment that was written elsewhere, in one step.

        They get their offsets now, and the time of appending, too. Adopting again under the same
        `key` into the same partition does nothing. Raises InvalidArgument, CorruptSegment,
        CorruptRecord before anything is written.
        """
