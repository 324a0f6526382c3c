"""One ring on the server: its functions, what they answer, and what their refusals mean."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, cast

from segue.delivery.ring import RingShape
from segue.delivery.ring_draft import Draft
from segue.delivery.ring_events import Commit, Committed, Taken
from segue.errors import InvalidArgument, LockBusy, RingFull, RingNotFound
from segue.log.options import Duration
from segue.stores.contract import Entry
from segue.stores.redis.calls import Refusal, Word
from segue.stores.redis.libraries import library
from segue.stores.redis.waiting import Patience
from segue.stores.ring_arguments import GROUPS_MAX
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore


class LockBroken(Exception):
    """Somebody else took the ring over. Transactions translate it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStanding:
    """How a ring stood when the server was asked."""

    capacity: int
    entries_per_segment: int
    head: int
    tail: int
    token: int
    regrouped: int
    """How often groups came or went."""
    locked_by: str | None
    groups: Mapping[str, tuple[int, int]]
    """The id and head of each, oldest first."""

    def heads(self) -> dict[str, int]:
        """Return where each group stands."""
        return {name: head for name, (_, head) in self.groups.items()}

    def group_id(self, name: str) -> int | None:
        """Return what tells this group from others of its name, or None if there is none."""
        group = self.groups.get(name)
        return None if group is None else group[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The ring is ours."""

    token: int
    until_us: int
    """By our own ticks, and not later than the server has it."""
    time_us: int
    """What time it was on the server."""
    standing: RingStanding


class RingServer:
    """Calls the functions of one ring. Safe from any thread."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        self.name = name
        self._calls = store.calls
        self._base = store.base("ring", name)
        self._functions = library("ring")

    def ticks(self) -> int:
        """Return ticks here, in microseconds."""
        return self._calls.ticks()

    def patience(self, wait: Duration | None) -> Patience:
        """Return how long a step may wait for the ring. Raises InvalidArgument."""
        return Patience(self._calls, self._base, wait)

    # Steps ---------------------------------------------------------------------------------

    def enqueue(
        self, body: bytes, patience: Patience, *, txn_id: str, overwrite: bool, capacity: int
    ) -> int:
        """Add an entry and return its offset. Raises RingFull, LockBusy."""
        try:
            (offset,) = self._alone("enqueue", patience, txn_id, int(overwrite), body)
        except Refusal as refusal:
            if refusal.code == "FULL":
                raise RingFull(name=self.name, capacity=capacity) from None
            self._raise(refusal)
        return cast("int", offset)

    def dequeue(self, group: str, patience: Patience, *, txn_id: str) -> Entry | None:
        """Take the group's head entry, or None if there is none. Raises LockBusy."""
        try:
            return _entry(self._alone("dequeue", patience, txn_id, group))
        except Refusal as refusal:
            if refusal.code == "NOGROUP":
                raise InvalidArgument(f"ring {self.name} has no group {group!r}") from None
            self._raise(refusal)

    def lock(self, patience: Patience, *, txn_id: str, ttl_us: int) -> Locked:
        """Take the ring for a transaction. Raises LockBusy."""
        try:
            token, standing, time_us, begun_us = self._alone(
                "lock", patience, txn_id, ttl_us, timed=True
            )
        except Refusal as refusal:
            self._raise(refusal)
        return Locked(
            token=cast("int", token),
            until_us=cast("int", begun_us) + ttl_us,
            time_us=cast("int", time_us),
            standing=_standing(standing),
        )

    def _alone(
        self, function: str, patience: Patience, *words: Word, timed: bool = False
    ) -> list[object]:
        """Make a step while no transaction holds the ring; `timed` adds when it was asked for."""
        while True:
            begun_us = self.ticks()
            waiting = (patience.waiter, patience.step_us)
            answer = self._calls.change(self._functions, function, self._base, *waiting, *words)
            kind, *rest = cast("list[object]", answer)
            if kind != b"busy":
                return [*rest, begun_us] if timed else rest
            owner, left_us = cast("tuple[bytes, int]", rest)
            seconds_left = left_us / 1_000_000
            if patience.is_over:
                raise LockBusy(name=self.name, owner=owner.decode(), seconds_left=seconds_left)
            patience.wait(seconds_left)

    # Transactions --------------------------------------------------------------------------

    def commit(
        self, draft: Draft, *, token: int, txn_id: str, regrouped: int
    ) -> RingStanding | None:
        """Make the steps of `draft` happen; if groups came or went, return how it stands instead.

        Nothing has happened then. Raises LockBroken.
        """
        commit = draft.commit(token=token, txn_id=txn_id)
        taken = [word for each in commit.taken for word in (each.group, each.start, each.stop)]
        function = "commit" if draft.bodies else "commit_taking"
        words = (token, txn_id, regrouped, len(commit.taken), *taken, *draft.bodies)
        answer = self._guarded("change", function, *words)
        kind, *rest = cast("list[object]", answer)
        return None if kind == b"done" else _standing(rest[0])

    def unlock(self, token: int) -> None:
        """Let go of the ring if it is held with `token`."""
        self._guarded("change", "unlock", token)

    def read(self, token: int, *, start: int, stop: int) -> Entry | None:
        """Return the first entry that is there from `start` on. Raises LockBroken."""
        return _entry(cast("list[object]", self._guarded("look", "read", token, start, stop)))

    # Answers and groups ----------------------------------------------------------------------

    def get(self, offset: int) -> Entry | None:
        """Return the entry at `offset`, or None if it is not there."""
        return _entry(cast("list[object]", self._guarded("look", "get", offset)))

    def standing(self) -> RingStanding | None:
        """Return how the ring stands, or None if there is none."""
        found = self._guarded("look", "info")
        return _standing(found) if found else None

    def outcome(self, txn_id: str) -> Committed | None:
        """Return what a recent transaction committed."""
        found = self._guarded("look", "outcome", txn_id)
        if not found:
            return None
        token, first, count, taken = cast("tuple[int, int, int, list[object]]", found)
        return Committed(
            commit=Commit(token=token, txn_id=txn_id, count=count, taken=_taken(taken)),
            first_offset=first,
        )

    def create(self, shape: RingShape) -> tuple[bool, RingShape]:
        """Make the ring; return whether it is new, and its shape."""
        answer = self._guarded("change", "create", shape.capacity, shape.entries_per_segment)
        is_new, capacity, per_segment = cast("list[int]", answer)
        return bool(is_new), RingShape(capacity=capacity, entries_per_segment=per_segment)

    def add_group(self, group: str, start: str) -> None:
        """Add a group; one that is there stays as it is. Raises InvalidArgument."""
        try:
            self._calls.change(self._functions, "add_group", self._base, group, start)
        except Refusal as refusal:
            if refusal.code == "GROUPS":
                raise InvalidArgument(f"a ring has at most {GROUPS_MAX} groups") from None
            self._raise(refusal)

    def remove_group(self, group: str) -> bool:
        """Forget a group; tell whether it was there."""
        return bool(self._guarded("change", "remove_group", group))

    def _guarded(self, how: str, function: str, *words: Word) -> object:
        call = self._calls.change if how == "change" else self._calls.look
        try:
            return call(self._functions, function, self._base, *words)
        except Refusal as refusal:
            self._raise(refusal)

    def _raise(self, refusal: Refusal) -> NoReturn:
        if refusal.code == "MISSING":
            raise RingNotFound(name=self.name) from None
        if refusal.code == "LOST":
            raise LockBroken(" ".join(refusal.words)) from None
        raise refusal


def _entry(found: list[object]) -> Entry | None:
    if not found:
        return None
    offset, time_us, body = cast("tuple[int, int, bytes]", found)
    return Entry(offset=offset, body=body, time_us=time_us)


def _standing(found: object) -> RingStanding:
    capacity, per_segment, head, tail, token, regrouped, holder, groups = cast(
        "tuple[int, int, int, int, int, int, bytes, list[tuple[bytes, int, int]]]", found
    )
    return RingStanding(
        capacity=capacity,
        entries_per_segment=per_segment,
        head=head,
        tail=tail,
        token=token,
        regrouped=regrouped,
        locked_by=holder.decode() or None,
        groups={
            name.decode(): (id_, head) for name, id_, head in sorted(groups, key=lambda g: g[1])
        },
    )


def _taken(found: list[object]) -> tuple[Taken, ...]:
    words = iter(cast("list[bytes]", found))
    triples = zip(words, words, words, strict=True)
    return tuple(
        Taken(group=group.decode(), id=0, start=int(start), stop=int(stop))
        for group, start, stop in triples
    )
