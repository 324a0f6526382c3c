"""What every store promises. Nothing here does anything: `file/` and its siblings do.

The promises hold on every store, and `tests/contract` holds every store to them:

- A push that returned is kept: through a kill always, through a power cut with sync "always".
- A message is delivered at least once. Twice only after an expired lease, a nack, a crash or a
  redrive, and then with `attempt` above 1 (a released message keeps its attempt).
- First deliveries of one priority come in the order of pushes; lower numbers come first. Only
  messages that must wait for others of their group are overtaken.
- No more messages of a group are out at once, and no more are delivered in a second, than the
  rules say, however many processes take them.
- Every lease has a token, and no token is ever good for a later lease of the same message.
- Bad arguments raise InvalidArgument before anything is written.

Times are seconds or a timedelta. `wait` says how long a call may block: 0 does not, None does for
as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from segue.delivery.message import Body, DeadLetter, Message, MessageId
from segue.delivery.priority import Priority
from segue.delivery.rules import QueueRules
from segue.delivery.topic_rules import TopicRules
from segue.log.options import Duration
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.consumer import Consumer
    from segue.stores.job import Job
    from segue.stores.topic_contract import Topic

Outcome = Literal["release", "fail", "dead"]
"""How a lease ends without success: given back as if never taken; tried and failed, to be tried
again after a backoff; or not to be tried again."""

MessageState = Literal["ready", "delayed", "leased", "dead"]
"""Where a message stands that is not settled."""

TimelineState = Literal["ready", "delayed", "leased", "dead", "settled", "unknown"]
"""Where a message stands, settled or not; of an unknown one the queue knows nothing."""

Happening = Literal[
    "pushed",
    "delayed",
    "leased",
    "extended",
    "released",
    "failed",
    "expired",
    "dead",
    "redriven",
    "acked",
    "popped",
    "purged",
    "dropped",
    "outlived",
    "discarded",
    "moved",
    "held",
    "lost",
]
"""What can happen to a message. It is held where it is seen to wait for others of its group, moved
if it lies elsewhere now, dropped if it made way in a full queue, lost if it cannot be read."""

TIMELINE_EVENTS_MAX: Final = 10_000
"""How much of what happened to a message is told: of more its push and the newest."""

Receipt = str
"""Names one lease of one message: "<message id>/<token>". What `ack` takes besides a job."""

RingMode = Literal["open_or_create", "create", "open"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message to push with `push_many`."""

    body: Body
    priority: Priority = 0
    delay: Duration | None = None
    ttl: Duration | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many messages are in which state."""

    ready: int
    """To be had now, unless the queue is paused, its rate used up, or others of a message's group
    come first."""
    delayed: int
    """To be had later."""
    leased: int
    """Somebody is at work on them."""
    dead: int
    """Given up; `redrive` brings them back."""

    @property
    def total(self) -> int:
        """All that is not settled, dead letters left out."""
        return self.ready + self.delayed + self.leased


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseInfo:
    """A lease that is out."""

    message_id: MessageId
    receipt: Receipt
    owner: str
    attempt: int
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStatus:
    """A message that is not settled, and how it stands."""

    message: Message
    """As its next delivery would show it; as the last one did if it is leased or dead."""
    state: MessageState
    due_us: int | None = None
    """When a delayed one becomes ready, if that is a matter of time."""
    owner: str | None = None
    """Who holds the lease."""
    seconds_left: float | None = None
    """How long the lease lasts."""
    reason: str = ""
    """Why it was returned or died last; of a leased one nothing is known any more."""
    tries: int = 0
    """How often it was delivered since its push or its last redrive; releases do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One thing that happened to a message."""

    what: Happening
    at_us: int | None
    """When; None where the store does not keep that."""
    attempt: int | None = None
    """Which delivery it was, or ended."""
    owner: str | None = None
    """Who held the message."""
    reason: str = ""
    due_us: int | None = None
    """Until when it had to wait from then on."""
    ends_us: int | None = None
    """Until when the lease was to last; None if the machine was started anew since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What happened to a message, and how it stands now."""

    id: MessageId
    state: TimelineState
    message: Message | None = None
    """As in a MessageStatus; of a settled one as it was delivered last. None if it is gone."""
    body_bytes_total: int = 0
    """How long its body is. A server sends no more than 8 MiB of it."""
    due_us: int | None = None
    owner: str | None = None
    seconds_left: float | None = None
    reason: str = ""
    tries: int = 0
    letter: int | None = None
    """The number of the dead letter that it is."""
    events: tuple[TimelineEvent, ...] = ()
    """What happened, oldest first."""
    is_whole: bool = False
    """Whether that is all that ever happened to it."""
    since_us: int | None = None
    """If it is not, from when on it is, as far as is known."""

    @property
    def is_cut(self) -> bool:
        """Whether there is more of the body than the message has."""
        return self.message is not None and len(self.message.body) < self.body_bytes_total


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """What an operator wants to know of a queue."""

    name: str
    counts: Counts
    ready_by_priority: Mapping[int, int]
    paused: bool
    oldest_ready_seconds: float | None
    """How long the message that would be leased next has been waiting."""
    leases: Sequence[LeaseInfo]
    """The leases that end first, at most a hundred."""
    totals: Mapping[str, int]
    """Since the queue was made: acked, failed, released, expired, buried, redriven, dropped …"""
    size_bytes: int
    """What the queue takes up on the device."""
    pinned_bytes: int
    """Of that, what is kept only for messages that were delivered long ago and not settled."""
    damaged: int
    """Messages that could not be read and were passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveReport:
    """What a redrive did, or would do."""

    matched: int
    redriven: int
    dry_run: bool


class Queue(Protocol):
    """A durable priority queue. Safe from any thread; any number of processes may share it."""

    name: str

    @property
    def rules(self) -> QueueRules:
        """How the queue behaves, the same for everybody who uses it."""

    def configure(self, rules: QueueRules) -> None:
        """Change the rules, durably and for everybody. What is out stays as it was taken."""

    def push(
        self,
        body: Body,
        *,
        priority: Priority = 0,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
        wait: Duration | None = None,
    ) -> MessageId:
        """Push one message and return its id.

        It is not delivered before `delay` has passed, nor after `ttl`. A push with the `key` of a
        message pushed within the queue's deduplication window does nothing and returns that
        message's id. Messages of one `group` and priority are delivered in the order of their
        pushes, no more of the group at once than the rules say; one that failed comes again before
        those behind it. A full queue refuses, drops its oldest message, or makes the push wait,
        for at most `wait`. Raises InvalidArgument, RecordTooLarge, QueueFull.
        """

    def push_many(
        self, items: Iterable[Item | Body], *, wait: Duration | None = None
    ) -> list[MessageId]:
        """Push all items, or none if one of them is bad or does not fit; return their ids.

        Those of one priority are one batch, kept or lost together, unless they are more than fit
        in a segment. A crash can part batches.
        """

    def pop(self, *, wait: Duration | None = 0) -> Message | None:
        """Take the next message for good, or None if there is none: delivered at most once."""

    def pop_many(self, count: int, *, wait: Duration | None = 0) -> list[Message]:
        """Take up to `count` messages for good, in one step; fewer if they are large (16 MiB)."""

    def lease(
        self, *, ttl: Duration | None = None, wait: Duration | None = 0, owner: str | None = None
    ) -> Job:
        """Take the next message for `ttl`, to be settled by then.

        `with queue.lease() as job:` acks at the end, and nacks if an exception ends it; meanwhile
        the lease is kept alive. Raises QueueEmpty, and QueueLocked where the rules limit leases.
        """

    def lease_many(
        self,
        count: int,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = 0,
        owner: str | None = None,
    ) -> list[Job]:
        """Take up to `count` messages in one step, each to be settled on its own.

        Fewer if they are large: no more than 16 MiB together, but for one.
        """

    def ack(self, job: Job | Receipt) -> None:
        """Say that the work is done. Raises LeaseLost."""

    def ack_many(self, jobs: Iterable[Job | Receipt]) -> None:
        """Settle many in one step. Raises LeaseLost if any is lost; all others are settled."""

    def nack(
        self,
        job: Job | Receipt,
        *,
        outcome: Outcome = "fail",
        delay: Duration | None = None,
        reason: str = "",
    ) -> None:
        """Give a message back. Raises LeaseLost.

        "release" as if it had never been taken; "fail" after `delay`, by default the queue's
        backoff, and to the dead letters after its last allowed delivery; "dead" there at once.
        """

    def extend(self, job: Job | Receipt, *, ttl: Duration | None = None) -> None:
        """Let a lease end `ttl` from now. Raises LeaseLost."""

    def consume(
        self,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        prefetch: int = 1,
        owner: str | None = None,
        stop: Event | None = None,
    ) -> Consumer:
        """Yield jobs as they come, kept alive meanwhile; end when `stop` is set or none comes.

        Asking for the next job acks the one before. Leaving the loop, also by an exception, gives
        it back as if it had not been taken: work that may fail belongs in `with job:`.
        """

    def wait(self, timeout: Duration | None = None) -> bool:
        """Return True once there is a message that can be leased now, taking nothing.

        False if there is none within `timeout`; None waits for as long as it takes. Somebody else
        may be faster: True promises nothing about the next call.
        """

    def peek(self, count: int = 1) -> list[Message]:
        """Return the messages that would be delivered next, without taking them; 16 MiB of them."""

    def look_up(self, message_id: MessageId) -> MessageStatus | None:
        """Return how one message stands; None once it is settled, or if nothing is known of it.

        In constant time, but for what is neither waiting nor leased: that is searched for among
        the dead letters. Raises InvalidArgument if `message_id` is no id.
        """

    def timeline(self, message_id: MessageId) -> Timeline:
        """Return what happened to one message, as far back as the store keeps that.

        A directory keeps what happened lately, also of what is settled. Redis knows the push and
        how the message stands. Takes nothing and holds nobody up, however much is in the queue.
        Raises InvalidArgument if `message_id` is no id.
        """

    def browse(
        self,
        *,
        state: MessageState | None = None,
        limit: int = 100,
        after: MessageId | None = None,
    ) -> list[MessageStatus]:
        """Return up to `limit` messages that are not settled, or those of one state.

        Fewer if they are large, as with `lease_many`: the last page is the one that is empty.
        In the order of their ids: by priority, then as they were pushed, then those pushed with a
        delay; last the dead letters, oldest first. `after` goes on behind a message, whatever has
        become of it since; behind a dead letter that is none any more the dead letters start over.
        Costs what it returns and what is outstanding, however much has never been delivered; the
        place behind a dead letter is searched for among them.
        """

    def count(self) -> Counts:
        """Return how many messages are in which state, in constant time."""

    def stats(self) -> QueueStats:
        """Return what an operator wants to know."""

    def state(self, key: str | None = None) -> dict[str, object]:
        """Return what waits, as `metadata` and `queue_<p>_seg_<n>` (docs/queues.md).

        All of it is read at once, and the queue held up meanwhile. With `key` that one alone, which
        costs the same however much waits; nothing if there is no such key.
        """

    def pause(self) -> None:
        """Deliver nothing until `resume`, durably and for everybody. Pushing goes on."""

    def resume(self) -> None:
        """Deliver again."""

    def purge(self) -> int:
        """Drop all that is ready or delayed and return how much that was."""

    def dead_letters(self, *, limit: int | None = None) -> Iterator[DeadLetter]:
        """Yield the dead letters, oldest first."""

    def redrive(
        self,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> RedriveReport:
        """Bring dead letters back to the front of their priority, with all their deliveries anew.

        Those `where` says yes to, at most `limit`, at most `rate` a second.
        """

    def discard(
        self, *, where: Callable[[DeadLetter], bool] | None = None, limit: int | None = None
    ) -> int:
        """Drop dead letters for good and return how many."""

    def history(
        self,
        *,
        priority: Priority | None = None,
        start: int | datetime | None = None,
        stop: int | datetime | None = None,
    ) -> Iterator[Message]:
        """Yield what was pushed and is still kept, settled or not, by offset or time."""

    def replay(
        self,
        *,
        priority: Priority | None = None,
        start: int | datetime | None = None,
        stop: int | datetime | None = None,
    ) -> int:
        """Push what `history` yields once more, with `attempt` above 1; return how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a ring."""

    offset: int
    body: bytes
    time_us: int

    @property
    def time(self) -> datetime:
        """When it was committed, in UTC."""
        return _EPOCH + timedelta(microseconds=self.time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingInfo:
    """A ring at one moment."""

    name: str
    capacity: int
    entries_per_segment: int
    head_offset: int
    """The oldest entry anyone can read."""
    tail_offset: int
    """The offset the next entry gets."""
    groups: Mapping[str, int]
    """Where each consumer group stands."""
    locked_by: str | None
    """The transaction that holds the ring."""
    token: int
    """The fencing token given last."""

    @property
    def count(self) -> int:
        """How many entries the ring holds."""
        return self.tail_offset - self.head_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOutcome:
    """What a committed transaction did."""

    txn_id: str
    token: int
    enqueued: range
    """The offsets of its entries."""
    dequeued: Mapping[str, range]
    """The offsets it took, by consumer group."""


class Transaction(Protocol):
    """Several steps on a ring as one. Its lock expires; what others took over cannot commit."""

    txn_id: str
    token: int

    def enqueue(self, body: Body, *, overwrite_if_full: bool = False) -> int:
        """Add an entry and return the offset it will have. Raises RingFull."""

    def dequeue(self, *, group: str = "default") -> Entry | None:
        """Take the group's head entry, or None if there is none."""

    def commit(self) -> None:
        """Make all steps happen at once, or raise TransactionAborted and none has."""

    def abort(self) -> None:
        """Let go of the lock; nothing has happened."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or abort if an exception ends the block."""


class Ring(Protocol):
    """A bounded buffer: the oldest entry leaves first, or makes way. Safe as `Queue` is.

    Every step needs the ring's lock. Who holds it longer than it lasts loses it to the next who
    asks, and can then commit nothing, by its token and not by its id. Calls that find it held ask
    again until `wait` is over and then raise LockBusy.
    """

    name: str

    def enqueue(
        self,
        body: Body,
        txn_id: str | int | None = None,
        *,
        overwrite_if_full: bool = False,
        wait: Duration | None = 0.3,
    ) -> int:
        """Add an entry and return its offset. Raises RingFull, LockBusy."""

    def dequeue(
        self,
        txn_id: str | int | None = None,
        *,
        group: str = "default",
        wait: Duration | None = 0.3,
    ) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises LockBusy."""

    def get(self, offset: int) -> Entry | None:
        """Return the entry at `offset`, or None if it is not, or no longer, there. No lock."""

    def info(self) -> RingInfo:
        """Return how the ring stands."""

    def transaction(
        self,
        txn_id: str | int | None = None,
        *,
        ttl: Duration = 0.2,
        wait: Duration | None = 0.3,
    ) -> Transaction:
        """Take the ring's lock for `ttl` and return the steps to be made. Raises LockBusy."""

    def outcome(self, txn_id: str | int) -> TransactionOutcome | None:
        """Return what a recent transaction committed, or None if it is not known to have."""

    def add_group(self, group: str, *, start: Literal["head", "tail"] = "head") -> None:
        """Let another group of consumers read on its own. Entries wait for the slowest."""

    def remove_group(self, group: str) -> bool:
        """Forget a group, so that it holds nothing back; tell whether it was there."""


class HeldLock(Protocol):
    """A lock that is held, until it is released or expires."""

    name: str
    token: int
    """Grows with every acquisition, for ever: hand it to what the lock guards."""

    @property
    def is_held(self) -> bool:
        """Whether it is still ours, as far as can be told without asking."""

    def renew(self, *, ttl: Duration | None = None) -> None:
        """Hold it for `ttl` from now. Raises LockLost."""

    def release(self) -> None:
        """Let go. Raises LockLost if it was not ours any more."""


class Lock(Protocol):
    """A lock with a name, shared by all who use the store.

    `with store.lock("leader", ttl=10) as held:` acquires, keeps it alive in the background, and
    releases.
    """

    name: str

    def acquire(self, *, wait: Duration | None = None, owner: str | None = None) -> HeldLock:
        """Take the lock, waiting for it. Raises LockBusy after `wait`."""

    def held(self, token: int) -> HeldLock:
        """Return the lock as it was acquired with `token`, here or elsewhere, asking nobody.

        Whether it still is, renewing it tells; until then `is_held` may be False.
        """

    def holder(self) -> tuple[str, int, float] | None:
        """Return the owner, token and seconds left of who holds it now."""

    def __enter__(self) -> HeldLock: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Store(Protocol):
    """A place that holds queues, rings, locks and topics. Safe from any thread."""

    url: str

    def queue(self, name: str, rules: QueueRules | None = None) -> Queue:
        """Return the queue called `name`; it exists from its first push on.

        `rules` become its rules if it is new or has others; without them it keeps those it has.
        """

    def queues(self) -> list[str]:
        """Return the names of the queues there are."""

    def remove_queue(self, name: str) -> bool:
        """Delete a queue with all it holds; tell whether it was there."""

    def ring(
        self,
        name: str,
        *,
        capacity: int | None = None,
        entries_per_segment: int | None = None,
        mode: RingMode = "open_or_create",
    ) -> Ring:
        """Return the ring called `name`. Raises RingExists, RingNotFound, InvalidArgument.

        A new one needs a capacity, which is rounded up to whole segments. One that exists keeps
        its own, and refuses another.
        """

    def rings(self) -> list[str]:
        """Return the names of the rings there are."""

    def lock(self, name: str, *, ttl: Duration = 30) -> Lock:
        """Return the lock called `name`."""

    def locks(self) -> list[str]:
        """Return the names of the locks that were ever taken."""

    def topic(
        self, name: str, *, partitions: int | None = None, rules: TopicRules | None = None
    ) -> Topic:
        """Return the topic called `name`; it exists from its first append on.

        With `partitions` or `rules` it exists at once. One that exists keeps its partitions, and
        refuses another number; `rules` become its rules if it has others.
        """

    def topics(self) -> list[str]:
        """Return the names of the topics there are."""

    def close(self) -> None:
        """Give back nothing, lose nothing, let go of everything. Closing twice is allowed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
