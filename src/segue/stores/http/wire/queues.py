"""Queues: what is sent to them, and what they answer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from segue.delivery.message import DeadLetter, Message, MessageId
from segue.delivery.rules import LEASE_SECONDS_MAX
from segue.errors import InvalidArgument
from segue.stores.arguments import COUNT_MAX
from segue.stores.contract import (
    Counts,
    Item,
    LeaseInfo,
    MessageState,
    MessageStatus,
    QueueStats,
    Receipt,
)
from segue.stores.http.wire.base import Answer, Count, Moment, Raw, Wire, text_or_bytes

MESSAGE_BYTES_MAX: Final = 32 << 20
"""How large a body may be, so that it fits in a request also as Base64."""

# What is sent --------------------------------------------------------------------------------


class Draft(Wire):
    """One message to push: one of `body`, `body_base64` and `json`."""

    body: str | None = None
    body_base64: bytes | None = None
    json: Raw | UnsetType = UNSET
    priority: int = 0
    delay: float | None = None
    ttl: float | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    group: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but a body and a priority."""
        return (
            self.headers is None
            and self.key is None
            and self.delay is None
            and self.ttl is None
            and self.group is None
        )

    def data(self) -> bytes:
        """Return the body. Raises InvalidArgument unless it is said once."""
        text, data, said = self.body, self.body_base64, self.json
        if text is not None and data is None and said is msgspec.UNSET:
            return text.encode()
        if text is None and data is not None and said is msgspec.UNSET:
            return data
        if text is None and data is None and said is not msgspec.UNSET:
            return bytes(said)  # To the letter, as it was sent.
        raise InvalidArgument("a message has one of body, body_base64 and json")


class Push(Wire):
    """Messages to push, all or none."""

    messages: list[Draft]
    wait: float | None = 0
    """How long to wait for room, where the queue's rules say that one waits."""


class Take(Wire):
    """How many messages to take, and how long to wait for one."""

    count: int = 1
    wait: float = 0


class TakeLeases(Take):
    """The same, to be settled later."""

    ttl: float | None = None
    owner: str | None = None


class Receipts(Wire):
    """Leases, no more than one request takes."""

    receipts: Annotated[list[Receipt], Meta(max_length=COUNT_MAX)]


class GiveBack(Wire):
    """A lease that ends without success."""

    receipt: Receipt
    outcome: Literal["release", "fail", "dead"] = "fail"
    delay: float | None = None
    reason: str = ""


class Extend(Wire):
    """A lease that is to end later."""

    receipt: Receipt
    ttl: float | None = None


class Await(Wire):
    """How long to wait."""

    timeout: float = 0


class LetterName(Wire):
    """A dead letter: its message, and its place among the dead letters."""

    id: str
    number: int


class Letters(Wire):
    """Dead letters that are meant; without a list all that fit."""

    letters: list[LetterName] | None = None
    cause: str | None = None
    """Only those that died of this."""
    reason: str | None = None
    """Only those whose reason has this in it."""
    pattern: str | None = None
    """Only those whose reason is of this pattern, as the groups tell it."""
    limit: int | None = None


class Redrive(Letters):
    """Dead letters to bring back."""

    rate: float | None = None
    dry_run: bool = False


class Replay(Wire):
    """What was pushed between two places, offsets or times in microseconds."""

    priority: int | None = None
    start: int | None = None
    stop: int | None = None
    start_us: int | None = None
    stop_us: int | None = None


# What is answered ----------------------------------------------------------------------------


class Ids(Answer):
    """The messages that were pushed."""

    ids: list[str]


class MessageJson(Answer, omit_defaults=True):
    """A message."""

    id: str
    body: str | None = None
    body_base64: bytes | None = None
    priority: Count = 0
    attempt: Count = 1
    pushed_us: Moment = 0
    expires_us: Moment | None = None
    key: str | None = None
    group: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)

    def message(self) -> Message:
        """Return the message."""
        return Message(
            id=MessageId(self.id),
            body=self.data(),
            priority=self.priority,
            attempt=self.attempt,
            headers=MappingProxyType(self.headers),
            key=self.key,
            group=self.group,
            pushed_us=self.pushed_us,
            expires_us=self.expires_us,
        )

    def data(self) -> bytes:
        """Return the body."""
        return self.body.encode() if self.body is not None else self.body_base64 or b""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but a body."""
        return not (self.headers or self.key or self.group or self.expires_us)


class JobJson(MessageJson, kw_only=True):
    """A message with the lease on it."""

    receipt: str
    tries: Count
    """Which delivery this is since the push or the last redrive."""


class Messages(Answer):
    """Messages."""

    messages: list[MessageJson]


class Jobs(Answer):
    """Messages that are leased."""

    jobs: list[JobJson]
    ttl: Annotated[float, Meta(ge=0, le=LEASE_SECONDS_MAX)]
    """How long the leases last, 0 if there are none."""


class Found(Answer):
    """Whether there is a message to take."""

    found: bool


class CountsJson(Answer):
    """How many messages are in which state."""

    ready: Count
    delayed: Count
    leased: Count
    dead: Count

    def counts(self) -> Counts:
        """Return the counts."""
        return Counts(ready=self.ready, delayed=self.delayed, leased=self.leased, dead=self.dead)


class LeaseJson(Answer):
    """A lease that is out."""

    message_id: str
    receipt: str
    owner: str
    attempt: int
    seconds_left: float


class StatsJson(Answer):
    """What an operator wants to know of a queue."""

    name: str
    counts: CountsJson
    ready_by_priority: dict[int, int]
    paused: bool
    oldest_ready_seconds: float | None
    leases: list[LeaseJson]
    totals: dict[str, int]
    size_bytes: Count
    pinned_bytes: Count
    damaged: Count

    def stats(self) -> QueueStats:
        """Return the answer as a value."""
        return QueueStats(
            name=self.name,
            counts=self.counts.counts(),
            ready_by_priority=self.ready_by_priority,
            paused=self.paused,
            oldest_ready_seconds=self.oldest_ready_seconds,
            leases=[
                LeaseInfo(
                    message_id=MessageId(each.message_id),
                    receipt=each.receipt,
                    owner=each.owner,
                    attempt=each.attempt,
                    seconds_left=each.seconds_left,
                )
                for each in self.leases
            ],
            totals=self.totals,
            size_bytes=self.size_bytes,
            pinned_bytes=self.pinned_bytes,
            damaged=self.damaged,
        )


class StatusJson(Answer):
    """A message that is not settled, and how it stands."""

    message: MessageJson
    state: MessageState
    due_us: int | None
    owner: str | None
    seconds_left: float | None
    reason: str
    tries: int

    def status(self) -> MessageStatus:
        """Return the answer as a value."""
        return MessageStatus(
            message=self.message.message(),
            state=self.state,
            due_us=self.due_us,
            owner=self.owner,
            seconds_left=self.seconds_left,
            reason=self.reason,
            tries=self.tries,
        )


class Statuses(Answer):
    """Messages that are not settled."""

    messages: list[StatusJson]
    next: str | None = None
    """Behind which there may be more; null at the end."""


class LetterJson(Answer):
    """A dead letter."""

    message: MessageJson
    cause: str
    reason: str
    died_us: Moment
    number: Count
    deliveries: Count
    tries: Count

    def letter(self) -> DeadLetter:
        """Return the letter."""
        return DeadLetter(
            message=self.message.message(),
            cause=self.cause,
            reason=self.reason,
            died_us=self.died_us,
            number=self.number,
            deliveries=self.deliveries,
            tries=self.tries,
        )


class LetterPage(Answer):
    """Dead letters, oldest first."""

    letters: list[LetterJson]
    next: Count | None = None
    """The `after` of the next page; None at the end."""


class Redriven(Answer):
    """What a redrive did, or would do."""

    matched: Count
    redriven: Count
    dry_run: bool
    stopped: bool | UnsetType = UNSET
    """Whether there may be more: whoever asked left, or the server ends."""


class Number(Answer):
    """How many it were."""

    count: Count


class Queues(Answer):
    """The queues there are."""

    queues: list[str]


class StateJson(Answer):
    """What waits, as `metadata` and `queue_<p>_seg_<n>`."""

    state: dict[str, object]


class Removed(Answer):
    """Whether it was there."""

    removed: bool


# From values to what is sent -------------------------------------------------------------------


def item_of(draft: Draft) -> Item:
    """Return the item that a draft stands for. Raises InvalidArgument."""
    return Item(
        body=draft.data(),
        priority=draft.priority,
        delay=draft.delay,
        ttl=draft.ttl,
        key=draft.key,
        headers=draft.headers,
        group=draft.group,
    )


def message_json(message: Message, *, body_bytes: int | None = None) -> MessageJson:
    """Return a message as it is sent, with so much of its body; a text in whole characters."""
    text, data = text_or_bytes(message.body)
    if body_bytes is not None and len(message.body) > body_bytes:
        part = message.body[:body_bytes]
        text, data = (None, part) if text is None else (part.decode(errors="ignore"), None)
    return MessageJson(
        id=message.id,
        body=text,
        body_base64=data,
        priority=message.priority,
        attempt=message.attempt,
        pushed_us=message.pushed_us,
        expires_us=message.expires_us,
        key=message.key,
        group=message.group,
        headers=plain(message.headers),
    )


def letter_json(letter: DeadLetter, *, body_bytes: int | None = None) -> LetterJson:
    """Return a dead letter as it is sent, with so much of its body."""
    return LetterJson(
        message=message_json(letter.message, body_bytes=body_bytes),
        cause=letter.cause,
        reason=letter.reason,
        died_us=letter.died_us,
        number=letter.number,
        deliveries=letter.deliveries,
        tries=letter.tries,
    )


def status_json(status: MessageStatus, *, body_bytes: int | None = None) -> StatusJson:
    """Return how a message stands as it is sent, with so much of its body."""
    return StatusJson(
        message=message_json(status.message, body_bytes=body_bytes),
        state=status.state,
        due_us=status.due_us,
        owner=status.owner,
        seconds_left=status.seconds_left,
        reason=status.reason,
        tries=status.tries,
    )


def counts_json(counts: Counts) -> CountsJson:
    """Return counts as they are sent."""
    return CountsJson(
        ready=counts.ready, delayed=counts.delayed, leased=counts.leased, dead=counts.dead
    )


def stats_json(stats: QueueStats) -> StatsJson:
    """Return what an operator wants to know as it is sent."""
    return StatsJson(
        name=stats.name,
        counts=counts_json(stats.counts),
        ready_by_priority=dict(stats.ready_by_priority),
        paused=stats.paused,
        oldest_ready_seconds=stats.oldest_ready_seconds,
        leases=[
            LeaseJson(
                message_id=each.message_id,
                receipt=each.receipt,
                owner=each.owner,
                attempt=each.attempt,
                seconds_left=each.seconds_left,
            )
            for each in stats.leases
        ],
        totals=dict(stats.totals),
        size_bytes=stats.size_bytes,
        pinned_bytes=stats.pinned_bytes,
        damaged=stats.damaged,
    )


def plain(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as JSON has them."""
    return dict(headers) if headers else {}
