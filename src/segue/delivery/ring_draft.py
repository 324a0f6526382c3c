"""Steps on a ring that have not happened yet, pure."""

from typing import Protocol

from segue.delivery.ring_events import Commit, Taken
from segue.errors import InvalidArgument, RingFull


class Standing(Protocol):
    """How a ring stands, as far as steps on it need to know."""

    @property
    def capacity(self) -> int: ...

    @property
    def tail(self) -> int: ...

    def heads(self) -> dict[str, int]:
        """Return where each group stands, overwritten entries behind it."""

    def group_id(self, name: str) -> int | None:
        """Return what tells this group from others of its name, or None if there is none."""


class Draft:
    """Steps made on a copy of the state, to be made again when they are committed.

    Who kept the lock finds nothing changed by then but groups, which come and go without it.
    """

    def __init__(self, state: Standing, *, name: str) -> None:
        self._name = name
        self._capacity = state.capacity
        self._heads = state.heads()
        self._ids = {group: state.group_id(group) for group in self._heads}
        self._first_new = self._tail = state.tail
        self._taken: dict[str, Taken] = {}
        self._steps: list[tuple[str, int, int] | bool] = []
        self.bodies: list[bytes] = []

    @property
    def tail(self) -> int:
        """The offset the next entry gets."""
        return self._tail

    @property
    def committed_tail(self) -> int:
        """Where the entries that others made end."""
        return self._first_new

    @property
    def has_steps(self) -> bool:
        """Whether anything was added or taken."""
        return bool(self._steps)

    def enqueue(self, body: bytes, *, overwrite_if_full: bool) -> int:
        """Add an entry and return its offset. Raises RingFull."""
        self._make_room(overwrite=overwrite_if_full)
        self._steps.append(overwrite_if_full)
        self.bodies.append(body)
        return self._tail - 1

    def _make_room(self, *, overwrite: bool) -> None:
        if self._tail - min(self._heads.values()) >= self._capacity:
            if not overwrite:
                raise RingFull(name=self._name, capacity=self._capacity)
            least = self._tail + 1 - self._capacity
            self._heads = {group: max(head, least) for group, head in self._heads.items()}
        self._tail += 1

    def head(self, group: str) -> int | None:
        """Return the offset the group takes next, None if it has all. Raises InvalidArgument."""
        head = self._heads.get(group)
        if head is None:
            raise InvalidArgument(f"ring {self._name} has no group {group!r}")
        return head if head < self._tail else None

    def own_body(self, offset: int) -> bytes | None:
        """Return the body of an entry that was added here, or None if it is another's."""
        place = offset - self._first_new
        return self.bodies[place] if place >= 0 else None

    def take(self, group: str, *, start: int, stop: int) -> None:
        """Take the entries from `start` up to `stop`; what lies before cannot be read."""
        self._steps.append((group, start, stop))
        self._take(group, start, stop)

    def _take(self, group: str, start: int, stop: int) -> None:
        before = self._taken.get(group)
        if before is not None and before.start < before.stop:
            start = before.start
        self._heads[group] = stop
        self._taken[group] = Taken(group=group, id=self._ids[group] or 0, start=start, stop=stop)

    def conflict(self, state: Standing) -> str | None:
        """Return what keeps the same steps from having the same results now, if anything."""
        again = Draft(state, name=self._name)
        if again.tail != self._first_new:
            return "entries were added"
        for step in self._steps:
            if isinstance(step, bool):
                try:
                    again._make_room(overwrite=step)
                except RingFull:
                    return "a group was added that needs the room"
                continue
            group, start, stop = step
            if again._ids.get(group) != self._ids[group]:
                return f"group {group} was removed"
            again._take(group, start, stop)
        return None

    def commit(self, *, token: int, txn_id: str) -> Commit:
        """Return the event that makes all steps happen."""
        return Commit(
            token=token,
            txn_id=txn_id,
            count=len(self.bodies),
            taken=tuple(self._taken.values()),
        )
