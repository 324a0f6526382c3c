"""The rules of a ring, pure: events in, answers out.

Two logs say what happened, and their order towards each other is not known. It need not be: heads,
tokens and the fence only grow, so the state is the highest of each, whichever log said it. A group
keeps an id of its own, so that what a group took counts for no later one of its name.

    fence   the highest token that committed or let go. A lock is in force while its own is above
            the fence, so whatever commits after an expired lock also breaks it, for ever.
    head    where a group stands. Entries more than `capacity` behind the tail are overwritten,
            so no head is effectively further back than that.
"""

from collections.abc import Iterator
from heapq import nlargest
from typing import Final

from segue.delivery.ring_events import (
    Booted,
    Checkpoint,
    Commit,
    Committed,
    Created,
    Event,
    GroupAdded,
    GroupRemoved,
    Locked,
    Unlocked,
)
from segue.errors import InvalidArgument
from segue.values import dataclass

DEFAULT_GROUP: Final = "default"
EPOCH_BITS: Final = 40
"""A token counts in these bits. Above them it counts the starts of the machine: each may have lost
the events that said which tokens were given."""
OUTCOMES_MAX: Final = 1_000
"""How many commits can at least be asked for by transaction id."""
OUTCOMES_SLACK: Final = 100
OUTCOMES_BYTES_MAX: Final = 2 * 1024 * 1024
"""How much of a checkpoint they may take up; beyond that the oldest are forgotten sooner."""
UNSAVED_RECORDS_MAX: Final = 1_000
UNSAVED_BYTES_MAX: Final = 8 * 1024 * 1024
"""So many records, or so many bytes of them, are read again at most when a ring is opened."""
_OUTCOME_BYTES: Final = 64
"""About what an outcome takes up besides its names."""


CAPACITY_MAX: Final = 1 << 40
ENTRIES_PER_SEGMENT_DEFAULT: Final = 100
ENTRIES_PER_SEGMENT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RingShape:
    """How large a ring is. It never changes."""

    capacity: int
    entries_per_segment: int

    def require(self, capacity: int | None, entries_per_segment: int | None) -> None:
        """Raise InvalidArgument if the caller wants another shape; None wants none."""
        if entries_per_segment not in {None, self.entries_per_segment}:
            raise InvalidArgument(
                f"the ring has {self.entries_per_segment} entries per segment and keeps them"
            )
        if capacity is not None and _rounded_up(capacity, self) != self.capacity:
            raise InvalidArgument(f"the ring has a capacity of {self.capacity} and keeps it")


def check_shape(capacity: int | None, entries_per_segment: int | None) -> None:
    """Raise InvalidArgument if no ring can be like that; None says nothing."""
    _check_count("capacity", capacity, CAPACITY_MAX)
    _check_count("entries_per_segment", entries_per_segment, ENTRIES_PER_SEGMENT_MAX)


def new_shape(capacity: int | None, entries_per_segment: int | None) -> RingShape:
    """Return the shape of a new ring, whole segments large. Raises InvalidArgument."""
    if capacity is None:
        raise InvalidArgument("a new ring needs a capacity")
    per_segment = entries_per_segment or ENTRIES_PER_SEGMENT_DEFAULT
    shape = RingShape(capacity=capacity, entries_per_segment=per_segment)
    return RingShape(capacity=_rounded_up(capacity, shape), entries_per_segment=per_segment)


def _rounded_up(capacity: int, shape: RingShape) -> int:
    return -(-capacity // shape.entries_per_segment) * shape.entries_per_segment


def _check_count(name: str, value: int | None, most: int) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= most):
        raise InvalidArgument(f"{name} must be a whole number from 1 to {most}: {value!r}")


@dataclass(slots=True, kw_only=True)
class _Group:
    id: int
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where a checkpoint stands in the ledger, and up to where it covers the entries."""

    ledger_offset: int
    entries_offset: int


class RingState:
    """A ring as its two logs tell it. One thread at a time."""

    def __init__(self, *, first_offset: int) -> None:
        """Know nothing yet but that the oldest entry there is to read is at `first_offset`."""
        self.shape: RingShape | None = None
        """None until the ring was created."""
        self.boot = 0
        self.token = 0
        self.fence = 0
        self.tail = 0
        self.saved: Saved | None = None
        self.saved_before: Saved | None = None
        self._first_offset = first_offset
        self._lock: Locked | None = None
        self._groups = {DEFAULT_GROUP: _Group(id=0, head=0)}
        self._outcomes: dict[str, Committed] = {}
        self._unsaved_records = 0
        self._unsaved_bytes = 0

    # Answers ---------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """How many entries fit."""
        return 0 if self.shape is None else self.shape.capacity

    def heads(self) -> dict[str, int]:
        """Return where each group stands, overwritten entries behind it."""
        least = max(self._first_offset, self.tail - self.capacity)
        return {name: max(group.head, least) for name, group in self._groups.items()}

    @property
    def head(self) -> int:
        """The oldest entry anyone can read."""
        return min(self.heads().values())

    def group_id(self, name: str) -> int | None:
        """Return what tells this group from others of its name, or None if there is none."""
        group = self._groups.get(name)
        return None if group is None else group.id

    def lock(self) -> Locked | None:
        """Return the lock that nothing has broken or ended yet, expired or not."""
        lock = self._lock
        return lock if lock is not None and lock.token > self.fence else None

    def holder(self, *, now_us: int, boot: int) -> Locked | None:
        """Return the lock that keeps everybody else out now."""
        lock = self.lock()
        return lock if lock is not None and lock.is_in_time(now_us=now_us, boot=boot) else None

    def outcome(self, txn_id: str) -> Committed | None:
        """Return the last commit of `txn_id` that is remembered."""
        return self._outcomes.get(txn_id)

    def booted(self, *, boot: int, tail: int) -> Booted | None:
        """Return what must be noted before a token is given, if anything.

        A boot of 0 is unknown, and taken for another one.
        """
        lost = self.tail > tail or any(group.head > tail for group in self._groups.values())
        if boot and boot == self.boot and not lost:
            return None
        epoch = (self.token >> EPOCH_BITS) + 1
        return Booted(token=epoch << EPOCH_BITS, boot=boot, tail=tail)

    # What happened ---------------------------------------------------------------------------

    def apply(self, event: Event, *, offset: int) -> None:
        """Take in the event at `offset` of the ledger."""
        self._unsaved_records += 1
        match event:
            case Created():
                self._create(event)
            case Booted():
                self._boot(event)
            case Locked():
                self.token = max(self.token, event.token)
                self._lock = event
            case Unlocked():
                self.fence = max(self.fence, event.token)
            case GroupAdded():
                self.token = max(self.token, event.id)
                self._groups[event.name] = _Group(id=event.id, head=event.head)
            case GroupRemoved():
                if self.group_id(event.name) == event.id:
                    del self._groups[event.name]
            case Commit():
                self._commit(event, first_offset=0)
            case Checkpoint():
                self._restore(event, offset)

    def _create(self, event: Created) -> None:
        if self.shape is None:
            self.shape = RingShape(
                capacity=event.capacity, entries_per_segment=event.entries_per_segment
            )
            self.boot = event.boot

    def _boot(self, event: Booted) -> None:
        self.boot = event.boot
        self.token = max(self.token, event.token)
        self.tail = min(self.tail, event.tail)
        for group in self._groups.values():
            group.head = min(group.head, event.tail)

    def apply_entry(self, commit: Commit | None, *, offset: int, size_bytes: int) -> None:
        """Take in the entry at `offset`, which begins `commit` if it is given."""
        self._unsaved_records += 1
        self._unsaved_bytes += size_bytes
        self.tail = max(self.tail, offset + 1)
        if commit is not None:
            self._commit(commit, first_offset=offset)

    def reach(self, offset: int) -> None:
        """Take in that there is no entry before `offset` that was not told, or could be."""
        self.tail = max(self.tail, offset, self._first_offset)

    def pass_over(self, count: int) -> None:
        """Take in that `count` records could not be read: each may have given a token."""
        self.token += count

    def _commit(self, commit: Commit, *, first_offset: int) -> None:
        self.token = max(self.token, commit.token)
        self.fence = max(self.fence, commit.token)
        for taken in commit.taken:
            group = self._groups.get(taken.group)
            if group is not None and group.id == taken.id:
                group.head = max(group.head, taken.stop)
        if commit.txn_id:
            self._remember(Committed(commit=commit, first_offset=first_offset))

    def _remember(self, committed: Committed) -> None:
        txn_id, token = committed.commit.txn_id, committed.commit.token
        known = self._outcomes.get(txn_id)
        if known is None or known.commit.token < token:
            self._outcomes[txn_id] = committed
        if len(self._outcomes) > OUTCOMES_MAX + OUTCOMES_SLACK:
            self._outcomes = {kept.commit.txn_id: kept for kept in self._newest_outcomes()}

    def _newest_outcomes(self) -> list[Committed]:
        outcomes = self._outcomes.values()
        return nlargest(OUTCOMES_MAX, outcomes, key=lambda committed: committed.commit.token)

    # Checkpoints -----------------------------------------------------------------------------

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether so much has happened that the state should be written down."""
        return (
            self._unsaved_records >= UNSAVED_RECORDS_MAX or self._unsaved_bytes >= UNSAVED_BYTES_MAX
        )

    def checkpoint(self, shape: RingShape) -> Checkpoint:
        """Return the whole state as an event."""
        return Checkpoint(
            capacity=shape.capacity,
            entries_per_segment=shape.entries_per_segment,
            boot=self.boot,
            token=self.token,
            fence=self.fence,
            tail=self.tail,
            locks=() if self._lock is None else (self._lock,),
            groups=tuple(
                GroupAdded(name=name, id=group.id, head=group.head)
                for name, group in self._groups.items()
            ),
            outcomes=tuple(_within(OUTCOMES_BYTES_MAX, self._newest_outcomes())),
        )

    def _restore(self, saved: Checkpoint, offset: int) -> None:
        if saved.tail < self.tail:
            return  # It knows less than the entries have told us already.
        self.shape = RingShape(
            capacity=saved.capacity, entries_per_segment=saved.entries_per_segment
        )
        self.boot = saved.boot
        self.token = max(self.token, saved.token)
        self.fence = max(self.fence, saved.fence)
        self.tail = saved.tail
        self._lock = saved.locks[0] if saved.locks else None
        self._groups = {group.name: _Group(id=group.id, head=group.head) for group in saved.groups}
        self._groups.setdefault(DEFAULT_GROUP, _Group(id=0, head=saved.tail))
        self._outcomes = {kept.commit.txn_id: kept for kept in saved.outcomes}
        self.saved_before = self.saved
        self.saved = Saved(ledger_offset=offset, entries_offset=saved.tail)
        self._unsaved_records = self._unsaved_bytes = 0

    @property
    def needed_entries_from(self) -> int:
        """The oldest entry that a group, or whoever restores the state, may want to read."""
        before = self.saved_before
        return 0 if before is None else min(self.head, before.entries_offset)


def _within(bytes_max: int, outcomes: list[Committed]) -> Iterator[Committed]:
    """Yield outcomes while they fit in about `bytes_max`."""
    size_bytes = 0
    for outcome in outcomes:
        names = [outcome.commit.txn_id, *(taken.group for taken in outcome.commit.taken)]
        size_bytes += sum(_OUTCOME_BYTES + len(name) for name in names)
        if size_bytes > bytes_max:
            return
        yield outcome
