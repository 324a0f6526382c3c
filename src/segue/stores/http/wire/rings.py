"""Rings: what is sent to them, and what they answer."""

from types import MappingProxyType
from typing import Literal

from segue.delivery.ring import DEFAULT_GROUP
from segue.errors import InvalidArgument
from segue.stores.contract import Entry, RingInfo, TransactionOutcome
from segue.stores.http.wire.base import Answer, Count, Moment, Wire, text_or_bytes
from segue.stores.ring_arguments import TTL_SECONDS_DEFAULT

# What is sent --------------------------------------------------------------------------------


class Shape(Wire):
    """How large a ring is to be; None is as it is, or as by default."""

    capacity: int | None = None
    entries_per_segment: int | None = None


class StepBody(Wire):
    """One entry to add: one of `body` and `body_base64`."""

    body: str | None = None
    body_base64: bytes | None = None
    overwrite_if_full: bool = False

    def data(self) -> bytes:
        """Return the body. Raises InvalidArgument unless it is said once."""
        if (self.body is None) == (self.body_base64 is None):
            raise InvalidArgument("an entry has one of body and body_base64")
        return self.body.encode() if self.body is not None else self.body_base64 or b""


class Enqueue(StepBody):
    """An entry to add, and how long to wait for one's turn."""

    txn_id: str | None = None
    wait: float = 0


class Take(Wire):
    """For whom to take an entry."""

    group: str = DEFAULT_GROUP


class Dequeue(Take):
    """The same, and how long to wait for one's turn."""

    txn_id: str | None = None
    wait: float = 0


class Begin(Wire):
    """A transaction to begin."""

    txn_id: str | None = None
    ttl: float = TTL_SECONDS_DEFAULT
    wait: float = 0


class AddGroup(Wire):
    """Where a new group begins."""

    start: Literal["head", "tail"] = "head"


# What is answered ----------------------------------------------------------------------------


class Place(Answer):
    """Where an entry is, or will be."""

    offset: Count


class EntryJson(Answer, omit_defaults=True):
    """An entry."""

    offset: Count
    time_us: Moment
    body: str | None = None
    body_base64: bytes | None = None

    @classmethod
    def of(cls, entry: Entry) -> "EntryJson":
        """Return an entry as it is sent."""
        text, data = text_or_bytes(entry.body)
        return cls(offset=entry.offset, time_us=entry.time_us, body=text, body_base64=data)

    def entry(self) -> Entry:
        """Return the entry."""
        body = self.body.encode() if self.body is not None else self.body_base64 or b""
        return Entry(offset=self.offset, body=body, time_us=self.time_us)


class Begun(Answer):
    """A transaction that holds its ring."""

    session: str
    """By what the server knows it."""
    txn_id: str
    token: Count


class RingJson(Answer):
    """A ring at one moment."""

    name: str
    capacity: Count
    entries_per_segment: Count
    head_offset: Count
    tail_offset: Count
    groups: dict[str, Count]
    locked_by: str | None
    token: Count

    @classmethod
    def of(cls, info: RingInfo) -> "RingJson":
        """Return how a ring stands as it is sent."""
        return cls(
            name=info.name,
            capacity=info.capacity,
            entries_per_segment=info.entries_per_segment,
            head_offset=info.head_offset,
            tail_offset=info.tail_offset,
            groups=dict(info.groups),
            locked_by=info.locked_by,
            token=info.token,
        )

    def info(self) -> RingInfo:
        """Return the answer as a value."""
        return RingInfo(
            name=self.name,
            capacity=self.capacity,
            entries_per_segment=self.entries_per_segment,
            head_offset=self.head_offset,
            tail_offset=self.tail_offset,
            groups=MappingProxyType(self.groups),
            locked_by=self.locked_by,
            token=self.token,
        )


class Span(Answer):
    """Offsets from `start` up to, not including, `stop`."""

    start: Count
    stop: Count


class OutcomeJson(Answer):
    """What a committed transaction did."""

    txn_id: str
    token: int
    enqueued: Span
    dequeued: dict[str, Span]

    @classmethod
    def of(cls, outcome: TransactionOutcome) -> "OutcomeJson":
        """Return an outcome as it is sent."""
        return cls(
            txn_id=outcome.txn_id,
            token=outcome.token,
            enqueued=_span(outcome.enqueued),
            dequeued={group: _span(taken) for group, taken in outcome.dequeued.items()},
        )

    def outcome(self) -> TransactionOutcome:
        """Return the answer as a value."""
        return TransactionOutcome(
            txn_id=self.txn_id,
            token=self.token,
            enqueued=range(self.enqueued.start, self.enqueued.stop),
            dequeued=MappingProxyType(
                {group: range(taken.start, taken.stop) for group, taken in self.dequeued.items()}
            ),
        )


def _span(offsets: range) -> Span:
    return Span(start=offsets.start, stop=offsets.stop)
