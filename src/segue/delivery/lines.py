"""Messages that were touched and are not settled: who holds one, or which line it is in.

What waits in a lane beyond its cursor was never touched and takes no memory. Heaps keep entries of
what has moved on since; whoever meets one passes it by, and a heap that is mostly such is made
anew.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from segue.delivery.events import ASIDE, Cause, Run, Take
from segue.delivery.message import Key
from segue.delivery.message_groups import MessageGroup, MessageGroups

GAP_ITEMS_MAX: Final = 100_000
"""How many messages are taken one by one for what a lost event did not say of them."""
HEAP_SLACK: Final = 64
"""How many entries of a heap may be stale, besides as many as are not."""
RANK_NEW: Final = 1 << 62
"""Behind all that came back: the rank of what was looked at and never delivered."""


class Grant:
    """A lease of neighbours: who holds them, until when, and for the how-manieth time."""

    __slots__ = (
        "attempt",
        "count",
        "deadline_us",
        "first",
        "lane",
        "owner",
        "priority",
        "since",
        "size",
        "token",
    )

    def __init__(
        self,
        token: int,
        deadline_us: int,
        owner: bytes,
        lane: int,
        first: int,
        size: int,
        attempt: int,
        since: int,
        priority: int,
    ) -> None:
        self.token = token
        self.deadline_us = deadline_us
        self.owner = owner
        self.lane = lane
        self.first = first
        self.size = self.count = size
        self.attempt = attempt
        self.since = since
        self.priority = priority


class Rest:
    """A message that was touched and is nobody's: ready, or delayed until its time has come."""

    __slots__ = (
        "attempt",
        "cause",
        "is_held",
        "is_ready",
        "not_before_us",
        "number",
        "priority",
        "reason",
        "since",
    )

    def __init__(
        self,
        priority: int,
        attempt: int,
        since: int,
        not_before_us: int,
        cause: int,
        reason: bytes,
    ) -> None:
        self.priority = priority
        self.attempt = attempt
        self.since = since
        self.not_before_us = not_before_us
        self.cause = cause
        self.reason = reason
        self.is_ready = False
        self.is_held = False
        """Whether it was found to have to wait for others of its group."""
        self.number = 0
        """Which of its entries in a line is good: the one made last."""


Entry = tuple[int, int, int, int, Rest]
"""A place in a line: rank, offset, number, lane, and who stands there."""


class Level:
    """One priority: how far its lane was delivered, and what came back to be delivered again."""

    __slots__ = ("cursor", "items", "priority", "ready", "ready_count")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.cursor = 0
        self.items: dict[int, Grant | Rest] = {}
        self.ready: list[Entry] = []
        self.ready_count = 0


class Lines:
    """The messages of one queue that are leased, ready again, or delayed."""

    def __init__(self) -> None:
        self.levels: dict[int, Level] = {}
        self.order: list[int] = []
        """The priorities there are, the most urgent first."""
        self.aside: dict[int, Grant | Rest] = {}
        self.places: dict[Key, tuple[int, int]] = {}
        """Where messages lie that were moved out of their lane."""
        self.is_aside_unordered = False
        """Whether what is aside was noted in another order than it lies there."""
        self._aside_last = 0
        self.leased = 0
        self.ready = 0
        self.delayed = 0
        self.grants = 0
        self.groups = MessageGroups()
        self.held_back = 0
        """How many of the ready ones are known to have to wait for others of their groups."""
        self.due: list[tuple[int, int, int, int, Rest]] = []
        self.deadlines: list[tuple[int, int, Grant]] = []
        self._numbers = count()

    # Answers -------------------------------------------------------------------------------

    def find(self, key: Key) -> Grant | Rest | None:
        """Return what is known of a message that was delivered and is not settled."""
        level = self.levels.get(key.lane)
        items = self.aside if key.lane == ASIDE else level.items if level else {}
        return items.get(key.offset)

    def take(self, most: int, end_of: Callable[[int], int], *, settles: bool = False) -> list[Take]:
        """Return what to deliver next: up to `most`, lowest priority first, returned before new.

        What was returned is taken out of its line: apply the event, or `put_back` what it says.
        With `settles` it is settled as it is delivered, and the next of its group may follow.
        """
        takes: list[Take] = []
        grouped = self.groups.of
        admission = self.groups.admission()
        for priority in self.order:
            level = self.levels[priority]
            ready = level.ready
            while ready and most:
                entry = heapq.heappop(ready)
                if not self._is_waiting(entry):
                    continue
                _, offset, _, lane, rest = entry
                key = Key(lane, offset)
                group = grouped.get(key)
                if group is not None:
                    if not admission.admits(group.digest, key):
                        self._hold_back(group, entry)
                        continue
                    admission.note(group.digest, key, settles=settles)
                takes.append(Take(lane, offset, 1, rest.attempt + 1, rest.since))
                most -= 1
                if settles and group is not None:
                    if key in group.started:
                        return takes  # Who waited for its place may come before all the rest.
                    self._call_up_from(group, priority, 1)
            if most:
                fresh = min(most, end_of(priority) - level.cursor)
                if fresh > 0:
                    takes.append(Take(priority, level.cursor, fresh, 1, 0))
                    most -= fresh
            if not most:
                break
        return takes

    def _is_waiting(self, entry: Entry) -> bool:
        _, offset, number, lane, rest = entry
        items = self.aside if lane == ASIDE else self.levels[lane].items
        return rest.is_ready and rest.number == number and items.get(offset) is rest

    def put_back(self, takes: list[Take]) -> None:
        """Undo a `take` that came to nothing."""
        for take in takes:
            key = Key(take.lane, take.first)
            found = self.find(key)
            if isinstance(found, Rest) and found.is_ready:
                self._line_up(take.lane, take.first, found)
                self._call_up(self.groups.of.get(key))

    def waiting(self, end_of: Callable[[int], int]) -> Iterator[Take]:
        """Yield what is ready, in order, taking nothing; some may have to wait for its group."""
        for priority in self.order:
            level = self.levels[priority]
            for entry in _in_order([*level.ready, *self.groups.held(priority)]):
                if self._is_waiting(entry):
                    _, offset, _, lane, rest = entry
                    yield Take(lane, offset, 1, rest.attempt + 1, rest.since)
            fresh = end_of(priority) - level.cursor
            if fresh > 0:
                yield Take(priority, level.cursor, fresh, 1, 0)

    def promote(self, now_us: int) -> None:
        """Let delayed messages become ready whose time has come."""
        due = self.due
        while due and due[0][0] <= now_us:
            _, _, lane, offset, rest = heapq.heappop(due)
            if self._is_delayed(lane, offset, rest):
                self.delayed -= 1
                self._make_ready(lane, offset, rest)

    def _is_delayed(self, lane: int, offset: int, rest: Rest) -> bool:
        items = self.aside if lane == ASIDE else self.levels[lane].items
        return items.get(offset) is rest and not rest.is_ready

    def next_due_us(self) -> int | None:
        """Return when the next delayed message becomes ready."""
        return self.due[0][0] if self.due else None

    def overdue(self, ticks_us: int) -> list[Grant]:
        """Return the leases that have ended."""
        found = []
        while (grant := self.first_ending()) is not None and grant.deadline_us <= ticks_us:
            heapq.heappop(self.deadlines)
            found.append(grant)
        for grant in found:
            self._watch(grant)  # Until the event is applied it is as it was.
        return found

    def first_ending(self) -> Grant | None:
        """Return the lease that ends first."""
        deadlines = self.deadlines
        while deadlines:
            deadline_us, _, grant = deadlines[0]
            if grant.count and grant.deadline_us == deadline_us:
                return grant
            heapq.heappop(deadlines)
        return None

    def grants_by_deadline(self, most: int) -> list[Grant]:
        """Return the leases that end first."""
        live = {
            id(grant): grant
            for deadline_us, _, grant in self.deadlines
            if grant.count and grant.deadline_us == deadline_us
        }
        return heapq.nsmallest(most, live.values(), key=lambda grant: grant.deadline_us)

    def held(self, grant: Grant) -> list[int]:
        """Return the offsets a lease still holds."""
        items = self.aside if grant.lane == ASIDE else self.levels[grant.lane].items
        stop = grant.first + grant.size
        if grant.count == grant.size:
            return list(range(grant.first, stop))
        return [offset for offset in range(grant.first, stop) if items.get(offset) is grant]

    # Changes -------------------------------------------------------------------------------

    def _level(self, priority: int) -> Level:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = Level(priority)
            insort(self.order, priority)
        return level

    def _hold(self, grant: Grant) -> None:
        self.leased += grant.count
        self.grants += 1
        self._watch(grant)

    def _watch(self, grant: Grant) -> None:
        deadlines = self.deadlines
        heapq.heappush(deadlines, (grant.deadline_us, next(self._numbers), grant))
        if len(deadlines) > 2 * self.grants + HEAP_SLACK:
            self._renew_deadlines()

    def _renew_deadlines(self) -> None:
        """Make the heap anew without what has moved on."""
        self.deadlines = [
            entry for entry in self.deadlines if entry[2].count and entry[2].deadline_us == entry[0]
        ]
        heapq.heapify(self.deadlines)

    def _let_go(self, grant: Grant) -> None:
        """Take one message out of a lease."""
        self.leased -= 1
        grant.count -= 1
        if not grant.count:
            self.grants -= 1

    def _forget(self, found: Grant | Rest | None) -> None:
        """Count what stood at an offset no more."""
        if isinstance(found, Grant):
            self._let_go(found)
        elif found is not None:
            self._leave_line(found)

    def _fill_gap(self, level: Level, stop: int) -> bool:
        """Let what lies before `stop` be delivered: what became of it was said by lost events.

        False if that is so much that it is better to deliver everything from the cursor on again.
        """
        if stop - level.cursor > GAP_ITEMS_MAX:
            return False
        for offset in range(level.cursor, stop):
            if offset in level.items:
                continue
            rest = Rest(level.priority, 1, 0, 0, Cause.EXPIRED, b"")
            level.items[offset] = rest
            self._make_ready(level.priority, offset, rest)
        return True

    # Groups --------------------------------------------------------------------------------

    def _hold_back(self, group: MessageGroup, entry: Entry) -> None:
        """Have a message wait where nobody meets it, until its group has a place for it."""
        rest = entry[-1]
        held = group.held.setdefault(rest.priority, [])
        heapq.heappush(held, entry)
        if not rest.is_held:
            rest.is_held = True
            self.held_back += 1
        if len(held) > 2 * group.members + HEAP_SLACK:
            group.held[rest.priority] = [each for each in held if self._is_waiting(each)]
            heapq.heapify(group.held[rest.priority])

    def _call_up(self, group: MessageGroup | None) -> None:
        """Have as many of a group stand in line again as it may have places for.

        Whoever delivers looks again: it may be fewer, and others may have come before them.
        """
        if group is None:
            return
        room = self.groups.places - len(group.leased)
        for priority in group.held:
            self._call_up_from(group, priority, room)

    def _call_up_from(self, group: MessageGroup, priority: int, room: int) -> None:
        held = group.held.get(priority)
        while held and room > 0:
            entry = heapq.heappop(held)
            if self._is_waiting(entry):
                self._let_stand(entry[-1])
                heapq.heappush(self._level(priority).ready, entry)
                room -= 1

    def _let_stand(self, rest: Rest) -> None:
        if rest.is_held:
            rest.is_held = False
            self.held_back -= 1

    def _make_ready(self, lane: int, offset: int, rest: Rest) -> None:
        rest.is_ready = True
        self.ready += 1
        self._level(rest.priority).ready_count += 1
        self._line_up(lane, offset, rest)

    def _line_up(self, lane: int, offset: int, rest: Rest) -> None:
        # What was in line before everything aside; aside by the time it was to be ready.
        if lane == ASIDE:
            rank = max(1, rest.not_before_us)
        else:
            rank = RANK_NEW if rest.cause == Cause.HELD else 0
        level = self._level(rest.priority)
        self._let_stand(rest)
        rest.number = next(self._numbers)
        heapq.heappush(level.ready, (rank, offset, rest.number, lane, rest))
        if len(level.ready) > 2 * level.ready_count + HEAP_SLACK:
            # In place: somebody may be taking from it.
            level.ready[:] = [entry for entry in level.ready if self._is_waiting(entry)]
            heapq.heapify(level.ready)

    def _leave_line(self, rest: Rest) -> None:
        if rest.is_ready:
            self.ready -= 1
            self.levels[rest.priority].ready_count -= 1
            rest.is_ready = False
            self._let_stand(rest)
        else:
            self.delayed -= 1

    def _put_to_rest(self, lane: int, offset: int, rest: Rest) -> None:
        if lane == ASIDE:
            items = self.aside
            self.is_aside_unordered |= offset < self._aside_last and offset not in items
            self._aside_last = max(self._aside_last, offset)
        else:
            items = self._level(lane).items
        self._forget(items.get(offset))
        items[offset] = rest
        if self.groups.of:
            self._call_up(self.groups.give_back(Key(lane, offset)))
        if rest.not_before_us:
            self.delayed += 1
            heapq.heappush(self.due, (rest.not_before_us, next(self._numbers), lane, offset, rest))
            if len(self.due) > 2 * self.delayed + HEAP_SLACK:
                self.due = [entry for entry in self.due if self._is_delayed(*entry[2:])]
                heapq.heapify(self.due)
        else:
            self._make_ready(lane, offset, rest)

    def _remove_run(self, run: Run) -> int:
        lane, first, size = run
        if lane == ASIDE:
            items = self.aside
        else:
            level = self._level(lane)
            items = level.items
            if first + size > level.cursor and self._fill_gap(level, first):
                level.cursor = first + size
        removed = leased = 0
        remove = items.pop
        for offset in range(first, first + size):
            found = remove(offset, None)
            if isinstance(found, Grant):
                leased += 1
                found.count -= 1
                if not found.count:
                    self.grants -= 1
            elif found is not None:
                removed += 1
                self._leave_line(found)
        self.leased -= leased
        if self.places:
            for offset in range(first, first + size):
                self.places.pop(Key(lane, offset), None)
        if self.groups.of:
            for offset in range(first, first + size):
                self._call_up(self.groups.leave(Key(lane, offset)))
        return removed + leased


def _in_order(entries: list[Entry]) -> Iterator[Entry]:
    """Yield entries in order: the first few cost little, however many there are."""
    heapq.heapify(entries)
    while entries:
        yield heapq.heappop(entries)
