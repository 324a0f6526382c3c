"""The rules of a lock, pure: events in, answers out."""

from collections.abc import Callable
from typing import Final

from segue.delivery.rows import Row, Value, pack_row, unpack_row
from segue.values import dataclass

SNAPSHOT: Final = 1
"""The attr of a record that tells the whole state, whatever came before it."""
UNSAVED_RECORDS_MAX: Final = 1_000
"""How many records are read again at most when a lock is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """Somebody holds the lock until a deadline in ticks."""

    token: int
    owner: str
    since_us: int
    deadline_us: int
    boot: int
    """The start of the machine that its ticks count from."""

    def row(self) -> list[Value]:
        return [self.token, self.owner, self.since_us, self.deadline_us, self.boot]

    def is_in_time(self, *, now_us: int, boot: int) -> bool:
        """Tell whether it has not expired. One of an earlier start of the machine has."""
        return boot == self.boot and self.since_us <= now_us < self.deadline_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The holder holds it for longer."""

    token: int
    deadline_us: int

    def row(self) -> list[Value]:
        return [self.token, self.deadline_us]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Whoever held the lock with `token`, or with an earlier one, does not any more."""

    token: int

    def row(self) -> list[Value]:
        return [self.token]


LockEvent = Acquired | Renewed | Released


def _acquired(row: Row) -> Acquired:
    return Acquired(
        token=row.integer(),
        owner=row.text(),
        since_us=row.integer(),
        deadline_us=row.integer(),
        boot=row.integer(),
    )


def _renewed(row: Row) -> Renewed:
    return Renewed(token=row.integer(), deadline_us=row.integer())


def _released(row: Row) -> Released:
    return Released(token=row.integer())


_KINDS: Final[dict[type[LockEvent], str]] = {
    Acquired: "acquired",
    Renewed: "renewed",
    Released: "released",
}

_READERS: Final[dict[str, Callable[[Row], LockEvent]]] = {
    "acquired": _acquired,
    "renewed": _renewed,
    "released": _released,
}


def encode_event(event: LockEvent) -> bytes:
    """Return an event as a record holds it."""
    return pack_row(_KINDS[type(event)], event.row())


def decode_event(payload: bytes) -> LockEvent | None:
    """Return the event in a record, or None if this version cannot make sense of it."""
    try:
        kind, row = unpack_row(payload)
        return _READERS[kind](row)
    except (ValueError, KeyError):
        return None


class LockState:
    """A lock as its log tells it. One thread at a time."""

    def __init__(self) -> None:
        self.token = 0
        """The token given last."""
        self.snapshot_offset: int | None = None
        self.snapshot_offset_before: int | None = None
        self._held: Acquired | None = None
        self._unsaved_records = 0

    def apply(self, event: LockEvent | None, *, offset: int, attr: int) -> None:
        """Take in the record at `offset`; no event is one that makes no sense."""
        self._unsaved_records += 1
        match event:
            case Acquired():
                self._held = event
                self.token = max(self.token, event.token)
            case Renewed():
                held = self._held
                if held is not None and held.token == event.token:
                    self._held = _renewed_to(held, event.deadline_us)
            case Released():
                if self._held is not None and self._held.token <= event.token:
                    self._held = None
                self.token = max(self.token, event.token)
            case None:
                self.pass_over(1)
        if attr & SNAPSHOT:
            self.snapshot_offset_before, self.snapshot_offset = self.snapshot_offset, offset
            self._unsaved_records = 0

    def pass_over(self, count: int) -> None:
        """Take in that `count` records could not be read: each may have given a token."""
        self.token += count

    def holder(self, *, now_us: int, boot: int) -> Acquired | None:
        """Return who holds the lock now."""
        held = self._held
        return held if held is not None and held.is_in_time(now_us=now_us, boot=boot) else None

    def loss(self, token: int, *, now_us: int, boot: int) -> str | None:
        """Return why whoever acquired with `token` does not hold the lock, or None if it does."""
        held = self._held
        if held is not None and held.token == token:
            return None if held.is_in_time(now_us=now_us, boot=boot) else "it expired"
        return "it was taken over" if self.token > token else "it was released"

    @property
    def is_snapshot_due(self) -> bool:
        """Whether so much has happened that the state should be written down."""
        return self._unsaved_records >= UNSAVED_RECORDS_MAX

    def snapshot(self) -> list[LockEvent]:
        """Return the events that tell the whole state, to be written as one batch."""
        # The token first and by itself: damage may have taken it beyond the holder's.
        token = Released(token=self.token)
        return [token] if self._held is None else [token, self._held]


def _renewed_to(held: Acquired, deadline_us: int) -> Acquired:
    return Acquired(
        token=held.token,
        owner=held.owner,
        since_us=held.since_us,
        deadline_us=deadline_us,
        boot=held.boot,
    )
