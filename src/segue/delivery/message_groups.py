"""Groups of messages: delivered in the order of their pushes, few at a time.

A message of a group that was delivered has a *place* in it until it is settled or dead, also while
it waits to be tried again. A group has as many places as the rules say, so with one place nothing
overtakes a message that failed. Who is in which group is said by events; nothing here knows time.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from segue.delivery.message import Key

if TYPE_CHECKING:
    from segue.delivery.lines import Entry

HELD_MAX: Final = 10_000
"""How many messages of a queue wait for their groups in memory; beyond them a lane waits, too."""


class MessageGroup:
    """The messages of one group that were looked at and are not settled."""

    __slots__ = ("digest", "held", "leased", "members", "started")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.members = 0
        self.leased: set[Key] = set()
        self.started: set[Key] = set()
        """Those that have a place: leased, or returned to be tried again."""
        self.held: dict[int, list[Entry]] = {}
        """Those that were found to have to wait for others, a heap for each priority."""


class Admission:
    """Who may be delivered together in one step, asked in the order of delivery."""

    def __init__(self, groups: Mapping[bytes, MessageGroup], places: int) -> None:
        self._groups = groups
        self._places = places
        self._taken: dict[bytes, tuple[int, int]] = {}

    def admits(self, digest: bytes, key: Key) -> bool:
        """Tell whether a message may be delivered now."""
        group = self._groups.get(digest)
        leased, started = self._taken.get(digest, (0, 0))
        if group is not None:
            leased += len(group.leased)
            started += len(group.started)
        return leased < self._places and (started < self._places or self._is_started(digest, key))

    def note(self, digest: bytes, key: Key, *, settles: bool) -> None:
        """Take note that it is; with `settles` it leaves its place to the next at once."""
        leased, started = self._taken.get(digest, (0, 0))
        is_started = self._is_started(digest, key)
        if settles:
            self._taken[digest] = (leased, started - is_started)
        else:
            self._taken[digest] = (leased + 1, started + (not is_started))

    def _is_started(self, digest: bytes, key: Key) -> bool:
        group = self._groups.get(digest)
        return group is not None and key in group.started


class MessageGroups:
    """The groups of one queue, and who is in them."""

    def __init__(self) -> None:
        self.places = 1
        """How many messages of a group may be out at once."""
        self.of: dict[Key, MessageGroup] = {}
        self.by_digest: dict[bytes, MessageGroup] = {}

    def admission(self) -> Admission:
        """Return who may be delivered in one step."""
        return Admission(self.by_digest, self.places)

    def has_place(self, digest: bytes) -> bool:
        """Tell whether a new message of a group could be delivered now."""
        group = self.by_digest.get(digest)
        return group is None or len(group.started) < self.places

    def join(self, key: Key, digest: bytes) -> MessageGroup:
        """Note that a message belongs to a group, for good; return it."""
        found = self.of.get(key)
        if found is not None:
            return found
        group = self.by_digest.get(digest)
        if group is None:
            group = self.by_digest[digest] = MessageGroup(digest)
        group.members += 1
        self.of[key] = group
        return group

    def start(self, key: Key) -> None:
        """Note that a message was leased."""
        group = self.of.get(key)
        if group is not None:
            group.leased.add(key)
            group.started.add(key)

    def give_back(self, key: Key) -> MessageGroup | None:
        """Note that a message is not leased any more, and keeps its place; return its group."""
        group = self.of.get(key)
        if group is not None:
            group.leased.discard(key)
        return group

    def leave(self, key: Key) -> MessageGroup | None:
        """Note that a message is done with; return its group if there are others in it."""
        group = self.of.pop(key, None)
        if group is None:
            return None
        group.leased.discard(key)
        group.started.discard(key)
        group.members -= 1
        if group.members:
            return group
        del self.by_digest[group.digest]
        return None

    def held(self, priority: int) -> "Iterator[Entry]":
        """Yield what was found to have to wait for others, in no order; some has moved on since."""
        for group in self.by_digest.values():
            yield from group.held.get(priority, ())
