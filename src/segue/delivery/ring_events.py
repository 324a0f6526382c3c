"""What happens to a ring, as records.

A commit that adds entries stands before the first of them, in the log of entries, so that both are
one batch; the record's attr holds its length. Everything else stands in the ring's ledger.

    entries   │ commit: JSON │ body │   │ body │   │ body │ …      attr: bytes of commit, else 0
    ledger    │ event: JSON │   │ event: JSON │ …                  attr: 1 on a checkpoint
"""

from collections.abc import Callable
from typing import Final

from segue.delivery.rows import Row, Value, pack_row, unpack_row
from segue.values import dataclass

CHECKPOINT: Final = 1
"""The attr of a ledger record that holds the whole state."""
PREFIX_MASK: Final = (1 << 24) - 1
"""The bits of an entry's attr that say how many bytes of commit stand before its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """There is a ring."""

    capacity: int
    entries_per_segment: int
    boot: int

    def row(self) -> list[Value]:
        return [self.capacity, self.entries_per_segment, self.boot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """The machine was started anew; what it had not synced before is gone."""

    token: int
    """Above every token that was given before."""
    boot: int
    tail: int
    """Where the entries end now. What was taken beyond that was never kept."""

    def row(self) -> list[Value]:
        return [self.token, self.boot, self.tail]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A transaction holds the ring, until it commits, lets go, or others find it expired."""

    token: int
    txn_id: str
    since_us: int
    deadline_us: int
    boot: int
    """What its ticks count from."""

    def row(self) -> list[Value]:
        return [self.token, self.txn_id, self.since_us, self.deadline_us, self.boot]

    def is_in_time(self, *, now_us: int, boot: int) -> bool:
        """Tell whether it has not expired. One of an earlier start of the machine has."""
        return boot == self.boot and self.since_us <= now_us < self.deadline_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlocked:
    """A transaction let go without committing."""

    token: int

    def row(self) -> list[Value]:
        return [self.token]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdded:
    """Another group of consumers reads on its own."""

    name: str
    id: int
    """Tells it from a group of the same name that was there before."""
    head: int

    def row(self) -> list[Value]:
        return [self.name, self.id, self.head]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemoved:
    """A group is no more."""

    name: str
    id: int

    def row(self) -> list[Value]:
        return [self.name, self.id]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a commit took for a group: from `start` on, and the group now stands at `stop`."""

    group: str
    id: int
    start: int
    stop: int

    def row(self) -> list[Value]:
        return [self.group, self.id, self.start, self.stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Something was added or taken, or both, in one step."""

    token: int
    txn_id: str
    """Empty if the caller named none: nobody can ask for its outcome."""
    count: int
    """How many entries it added."""
    taken: tuple[Taken, ...]

    def row(self) -> list[Value]:
        return [self.token, self.txn_id, self.count, [taken.row() for taken in self.taken]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit and where its entries went."""

    commit: Commit
    first_offset: int

    def row(self) -> list[Value]:
        return [*self.commit.row(), self.first_offset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All of the state, as of the moment the entries ended at `tail`."""

    capacity: int
    entries_per_segment: int
    boot: int
    token: int
    fence: int
    tail: int
    locks: tuple[Locked, ...]
    """The lock given last, if any."""
    groups: tuple[GroupAdded, ...]
    outcomes: tuple[Committed, ...]

    def row(self) -> list[Value]:
        return [
            self.capacity,
            self.entries_per_segment,
            self.boot,
            self.token,
            self.fence,
            self.tail,
            [lock.row() for lock in self.locks],
            [group.row() for group in self.groups],
            [outcome.row() for outcome in self.outcomes],
        ]


Event = Created | Booted | Locked | Unlocked | GroupAdded | GroupRemoved | Commit | Checkpoint


def _created(row: Row) -> Created:
    return Created(capacity=row.integer(), entries_per_segment=row.integer(), boot=row.integer())


def _booted(row: Row) -> Booted:
    return Booted(token=row.integer(), boot=row.integer(), tail=row.integer())


def _locked(row: Row) -> Locked:
    return Locked(
        token=row.integer(),
        txn_id=row.text(),
        since_us=row.integer(),
        deadline_us=row.integer(),
        boot=row.integer(),
    )


def _unlocked(row: Row) -> Unlocked:
    return Unlocked(token=row.integer())


def _group_added(row: Row) -> GroupAdded:
    return GroupAdded(name=row.text(), id=row.integer(), head=row.integer())


def _group_removed(row: Row) -> GroupRemoved:
    return GroupRemoved(name=row.text(), id=row.integer())


def _taken(row: Row) -> Taken:
    return Taken(group=row.text(), id=row.integer(), start=row.integer(), stop=row.integer())


def _commit(row: Row) -> Commit:
    return Commit(
        token=row.integer(),
        txn_id=row.text(),
        count=row.integer(),
        taken=tuple(map(_taken, row.rows())),
    )


def _committed(row: Row) -> Committed:
    return Committed(commit=_commit(row), first_offset=row.integer())


def _checkpoint(row: Row) -> Checkpoint:
    return Checkpoint(
        capacity=row.integer(),
        entries_per_segment=row.integer(),
        boot=row.integer(),
        token=row.integer(),
        fence=row.integer(),
        tail=row.integer(),
        locks=tuple(map(_locked, row.rows())),
        groups=tuple(map(_group_added, row.rows())),
        outcomes=tuple(map(_committed, row.rows())),
    )


_KINDS: Final[dict[type[Event], str]] = {
    Created: "created",
    Booted: "booted",
    Locked: "locked",
    Unlocked: "unlocked",
    GroupAdded: "group",
    GroupRemoved: "ungroup",
    Commit: "commit",
    Checkpoint: "checkpoint",
}

_READERS: Final[dict[str, Callable[[Row], Event]]] = {
    "created": _created,
    "booted": _booted,
    "locked": _locked,
    "unlocked": _unlocked,
    "group": _group_added,
    "ungroup": _group_removed,
    "commit": _commit,
    "checkpoint": _checkpoint,
}


def encode_event(event: Event) -> bytes:
    """Return an event as a record holds it."""
    return pack_row(_KINDS[type(event)], event.row())


def decode_event(payload: bytes) -> Event | None:
    """Return the event in a record, or None if this version cannot make sense of it."""
    try:
        kind, row = unpack_row(payload)
        return _READERS[kind](row)
    except (ValueError, KeyError):
        return None


def pack_entry(commit: Commit, body: bytes) -> tuple[bytes, int]:
    """Return the payload and attr of the first entry of a commit."""
    prefix = encode_event(commit)
    return prefix + body, len(prefix)


def unpack_body(payload: bytes, attr: int) -> bytes:
    """Return the body of an entry."""
    prefix_bytes = attr & PREFIX_MASK
    return payload[prefix_bytes:] if prefix_bytes else payload


def unpack_commit(payload: bytes, attr: int) -> Commit | None:
    """Return the commit that stands before an entry, or None where none does."""
    prefix_bytes = attr & PREFIX_MASK
    if not prefix_bytes:
        return None
    event = decode_event(payload[:prefix_bytes])
    return event if isinstance(event, Commit) else None
