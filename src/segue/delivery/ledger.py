"""The state of a queue: events in, answers out.

Everything here follows from the events that were applied, in order; nothing else is remembered, so
replaying a ledger gives the same state in every process. What waits in a lane beyond its cursor was
never touched and takes no memory. Answers (`take`, `overdue`) change nothing that an event would;
whoever acts on one appends the event first and applies it then.

Applying never fails. Events may be missing, where a damaged batch was passed over: what they would
have settled is delivered again.
"""

import heapq
import json
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count

from segue.delivery import events
from segue.delivery.events import (
    ASIDE,
    IN_ASIDE,
    IN_DEAD,
    Cause,
    Event,
    How,
    Leased,
    Run,
    Settled,
    Take,
)
from segue.delivery.life import State
from segue.delivery.message import Key
from segue.delivery.ranges import OffsetRanges
from segue.delivery.rules import QueueRules

HEAP_SLACK = 64
"""How many entries of a heap may be stale, besides as many as are not."""


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

    __slots__ = ("attempt", "cause", "is_ready", "not_before_us", "priority", "reason", "since")

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


class Level:
    """One priority: how far its lane was delivered, and what came back to be delivered again."""

    __slots__ = ("cursor", "items", "priority", "ready", "ready_count")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.cursor = 0
        self.items: dict[int, Grant | Rest] = {}
        self.ready: list[tuple[int, int, int, int, Rest]] = []
        self.ready_count = 0


class Ledger:
    """The state of one queue. Not for two threads at once."""

    def __init__(self) -> None:
        self.rules = QueueRules()
        self.is_configured = False
        self.paused = False
        self.boot = 0
        self.epoch = 0
        self.levels: dict[int, Level] = {}
        self.order: list[int] = []
        self.aside: dict[int, Grant | Rest] = {}
        self.aside_next = 0
        self.has_aside = False
        self.dead = OffsetRanges()
        self.places: dict[Key, tuple[int, int]] = {}
        self.keys: dict[bytes, tuple[int, int, int]] = {}
        self.leased = 0
        self.ready = 0
        self.delayed = 0
        self.grants = 0
        self.totals: Counter[str] = Counter()
        self.due: list[tuple[int, int, int, int, Rest]] = []
        self.deadlines: list[tuple[int, int, Grant]] = []
        self._keys_due: list[tuple[int, bytes]] = []
        self._numbers = count()

    # Answers -------------------------------------------------------------------------------

    def find(self, key: Key) -> Grant | Rest | None:
        """Return what is known of a message that was delivered and is not settled."""
        level = self.levels.get(key.lane)
        items = self.aside if key.lane == ASIDE else level.items if level else {}
        return items.get(key.offset)

    def state_of(self, key: Key, end: int) -> State:
        """Return where a message stands; `end` is the end of its lane."""
        found = self.find(key)
        if isinstance(found, Grant):
            return State.LEASED
        if found is not None:
            return State.READY if found.is_ready else State.DELAYED
        level = self.levels.get(key.lane)
        if level is not None and level.cursor <= key.offset < end:
            return State.READY
        return State.SETTLED

    def take(self, most: int, end_of: Callable[[int], int]) -> list[Take]:
        """Return what to deliver next: up to `most`, lowest priority first, returned before new.

        What was returned is taken out of its line: apply the event, or `put_back` what it says.
        """
        takes: list[Take] = []
        for priority in self.order:
            level = self.levels[priority]
            ready = level.ready
            while ready and most:
                _, offset, _, lane, rest = heapq.heappop(ready)
                if self._is_waiting(lane, offset, rest):
                    takes.append(Take(lane, offset, 1, rest.attempt + 1, rest.since))
                    most -= 1
            if most:
                fresh = min(most, end_of(priority) - level.cursor)
                if fresh > 0:
                    takes.append(Take(priority, level.cursor, fresh, 1, 0))
                    most -= fresh
            if not most:
                break
        return takes

    def _is_waiting(self, lane: int, offset: int, rest: Rest) -> bool:
        items = self.aside if lane == ASIDE else self.levels[lane].items
        return rest.is_ready and items.get(offset) is rest

    def put_back(self, takes: list[Take]) -> None:
        """Undo a `take` that came to nothing."""
        for take in takes:
            found = self.find(Key(take.lane, take.first))
            if isinstance(found, Rest) and found.is_ready:
                self._line_up(take.lane, take.first, found)

    def waiting(self, end_of: Callable[[int], int]) -> Iterator[Take]:
        """Yield what would be delivered, in order, taking nothing."""
        for priority in self.order:
            level = self.levels[priority]
            for _, offset, _, lane, rest in sorted(level.ready, key=lambda entry: entry[:3]):
                if self._is_waiting(lane, offset, rest):
                    yield Take(lane, offset, 1, rest.attempt + 1, rest.since)
            fresh = end_of(priority) - level.cursor
            if fresh > 0:
                yield Take(priority, level.cursor, fresh, 1, 0)

    def promote(self, now_us: int) -> None:
        """Let delayed messages become ready whose time has come."""
        due = self.due
        while due and due[0][0] <= now_us:
            _, _, lane, offset, rest = heapq.heappop(due)
            items = self.aside if lane == ASIDE else self.levels[lane].items
            if items.get(offset) is rest and not rest.is_ready:
                self.delayed -= 1
                self._make_ready(lane, offset, rest)

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
            grant.token << 64 | grant.first: grant
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

    def is_last(self, attempt: int, since: int) -> bool:
        """Tell whether no delivery may follow this one."""
        most = self.rules.max_deliveries
        return most is not None and attempt - since >= most

    def floor(self, priority: int) -> int:
        """Return the lowest offset of a lane that is not settled and still lies there."""
        level = self.levels[priority]
        for offset in level.items:
            if Key(priority, offset) not in self.places:
                return min(offset, level.cursor)
        return level.cursor

    def aside_floor(self) -> int:
        """Return the lowest offset in the log aside that is still needed."""
        here = [offset for offset in self.aside if Key(ASIDE, offset) not in self.places]
        moved = [at for where, at in self.places.values() if where == IN_ASIDE]
        return min([*here, *moved], default=self.aside_next)

    def dead_floor(self, end: int) -> int:
        """Return the lowest offset in the log of dead letters that is still needed."""
        moved = [at for where, at in self.places.values() if where == IN_DEAD]
        first = self.dead.first
        return min([*moved, end if first is None else first])

    def outstanding_before(self, priority: int, stop: int) -> list[int]:
        """Return the offsets below `stop` that lie in a lane and are not settled."""
        found = []
        for offset in self.levels[priority].items:
            if offset >= stop:
                break
            if Key(priority, offset) not in self.places:
                found.append(offset)
        return found

    def key_holder(self, digest: bytes, now_us: int) -> Key | None:
        """Return the message that a deduplication key stands for now."""
        found = self.keys.get(digest)
        if found is None or found[0] <= now_us:
            return None
        return Key(found[1], found[2])

    def forget_keys(self, now_us: int) -> None:
        """Drop the deduplication keys whose window is over."""
        due = self._keys_due
        while due and due[0][0] <= now_us:
            until_us, digest = heapq.heappop(due)
            if self.keys.get(digest, (0,))[0] == until_us:
                del self.keys[digest]

    # Events --------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take in an event."""
        _APPLY[type(event)](self, event)

    def _level(self, priority: int) -> Level:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = Level(priority)
            insort(self.order, priority)
        return level

    def _apply_leased(self, event: Leased) -> None:
        token, deadline_us, owner, takes = event
        for take in takes:
            lane, first, size, _, _ = take
            if lane != ASIDE:
                level = self._level(lane)
                items = level.items
                if first >= level.cursor:
                    if first > level.cursor:
                        self._fill_gap(level, first)
                    level.cursor = first + size
                    grant = Grant(token, deadline_us, owner, *take, lane)
                    if size == 1:
                        items[first] = grant
                    else:
                        items.update(dict.fromkeys(range(first, first + size), grant))
                    self._hold(grant)
                    continue
            else:
                items = self.aside
            # Few at a time: what came back comes one by one.
            for offset in range(first, first + size):
                found = items.get(offset)
                if isinstance(found, Rest):
                    self._leave_line(found)
                elif found is not None:
                    self._let_go(found)
                priority = lane if lane != ASIDE else found.priority if found else 0
                grant = items[offset] = Grant(
                    token, deadline_us, owner, lane, offset, 1, take.attempt, take.since, priority
                )
                self._hold(grant)

    def lease_next(self, level: Level, token: int, deadline_us: int, owner: bytes) -> None:
        """Take in the lease of a lane's next message: the commonest of events, in fewest steps."""
        offset = level.cursor
        priority = level.priority
        grant = Grant(token, deadline_us, owner, priority, offset, 1, 1, 0, priority)
        level.items[offset] = grant
        level.cursor = offset + 1
        self.leased += 1
        self.grants += 1
        self._watch(grant)

    def settle_held(
        self, items: dict[int, Grant | Rest], lane: int, offset: int, grant: Grant
    ) -> None:
        """Take in the ack of one message that is leased."""
        del items[offset]
        if self.places:
            self.places.pop(Key(lane, offset), None)
        self._let_go(grant)
        self.totals["acked"] += 1

    def _hold(self, grant: Grant) -> None:
        self.leased += grant.count
        self.grants += 1
        self._watch(grant)

    def _watch(self, grant: Grant) -> None:
        deadlines = self.deadlines
        heapq.heappush(deadlines, (grant.deadline_us, next(self._numbers), grant))
        if len(deadlines) > 2 * self.grants + HEAP_SLACK:
            self.deadlines = [
                entry for entry in deadlines if entry[2].count and entry[2].deadline_us == entry[0]
            ]
            heapq.heapify(self.deadlines)

    def _let_go(self, grant: Grant) -> None:
        """Take one message out of a lease."""
        self.leased -= 1
        grant.count -= 1
        if not grant.count:
            self.grants -= 1

    def _fill_gap(self, level: Level, stop: int) -> None:
        """Let what lies between be delivered: the event that said what became of it is missing."""
        for offset in range(level.cursor, stop):
            rest = Rest(level.priority, 1, 0, 0, Cause.EXPIRED, b"")
            level.items[offset] = rest
            self._make_ready(level.priority, offset, rest)

    def _make_ready(self, lane: int, offset: int, rest: Rest) -> None:
        rest.is_ready = True
        self.ready += 1
        self._level(rest.priority).ready_count += 1
        self._line_up(lane, offset, rest)

    def _line_up(self, lane: int, offset: int, rest: Rest) -> None:
        # What was in line before everything aside; aside by the time it was to be ready.
        rank = rest.not_before_us if lane == ASIDE else 0
        level = self._level(rest.priority)
        heapq.heappush(level.ready, (rank, offset, next(self._numbers), lane, rest))

    def _leave_line(self, rest: Rest) -> None:
        if rest.is_ready:
            self.ready -= 1
            self.levels[rest.priority].ready_count -= 1
            rest.is_ready = False
        else:
            self.delayed -= 1

    def _put_to_rest(self, lane: int, offset: int, rest: Rest) -> None:
        items = self.aside if lane == ASIDE else self._level(lane).items
        items[offset] = rest
        if rest.not_before_us:
            self.delayed += 1
            heapq.heappush(self.due, (rest.not_before_us, next(self._numbers), lane, offset, rest))
        else:
            self._make_ready(lane, offset, rest)

    def _apply_settled(self, event: Settled) -> None:
        settled = sum(self._remove_run(run) for run in event.runs)
        self.totals[_SETTLED_AS.get(event.how, "settled")] += settled

    def _remove_run(self, run: Run) -> int:
        lane, first, size = run
        if lane == ASIDE:
            items = self.aside
        else:
            level = self._level(lane)
            items = level.items
            level.cursor = max(level.cursor, first + size)
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
        return removed + leased

    def _apply_popped(self, event: events.Popped) -> None:
        for lane, first, size, _, _ in event.takes:
            if lane != ASIDE:
                level = self._level(lane)
                if first > level.cursor:
                    self._fill_gap(level, first)
                if first >= level.cursor:
                    level.cursor = first + size
            self._remove_run(Run(lane, first, size))
            self.totals["popped"] += size

    def _apply_returned(self, event: events.Returned) -> None:
        for lane, first, size in event.runs:
            items = self.aside if lane == ASIDE else self._level(lane).items
            for offset in range(first, first + size):
                found = items.get(offset)
                if not isinstance(found, Grant):
                    continue
                self._let_go(found)
                counted = event.cause != Cause.RELEASED
                rest = Rest(
                    found.priority,
                    found.attempt if counted else found.attempt - 1,
                    found.since,
                    event.not_before_us,
                    event.cause,
                    event.reason,
                )
                self._put_to_rest(lane, offset, rest)
                self.totals[_RETURNED_AS.get(event.cause, "returned")] += 1

    def _apply_extended(self, event: events.Extended) -> None:
        for lane, first, size in event.runs:
            items = self.aside if lane == ASIDE else self._level(lane).items
            for offset in range(first, first + size):
                found = items.get(offset)
                if not isinstance(found, Grant) or found.token != event.token:
                    continue
                if found.size > 1:
                    # Its neighbours keep their time: it gets a grant of its own.
                    self._let_go(found)
                    grant = Grant(
                        found.token,
                        event.deadline_us,
                        found.owner,
                        lane,
                        offset,
                        1,
                        found.attempt,
                        found.since,
                        found.priority,
                    )
                    items[offset] = grant
                    self._hold(grant)
                else:
                    found.deadline_us = event.deadline_us
                    self._watch(found)

    def _apply_buried(self, event: events.Buried) -> None:
        lane, offset, dead_offset, _ = event
        self._remove_run(Run(lane, offset, 1))
        self.dead.add(dead_offset, dead_offset + 1)
        self.totals["buried"] += 1

    def _apply_revived(self, event: events.Revived) -> None:
        dead_offset, lane, offset, priority, attempt = event
        self.dead.remove(dead_offset, dead_offset + 1)
        key = Key(lane, offset)
        if self.find(key) is None:
            self.places[key] = (IN_DEAD, dead_offset)
            rest = Rest(priority, attempt, attempt, 0, Cause.REDRIVEN, b"")
            self._put_to_rest(lane, offset, rest)
            self.totals["redriven"] += 1

    def _apply_discarded(self, event: events.Discarded) -> None:
        before = len(self.dead)
        self.dead.remove(event.first, event.first + event.size)
        self.totals["discarded"] += before - len(self.dead)

    def _apply_deferred(self, event: events.Deferred) -> None:
        for offset, priority, not_before_us in event.items:
            if offset >= self.aside_next:
                self._level(priority)
                rest = Rest(priority, 0, 0, not_before_us, Cause.RELEASED, b"")
                self._put_to_rest(ASIDE, offset, rest)
        self.aside_next = max(self.aside_next, event.upto)

    def _apply_carried(self, event: events.Carried) -> None:
        key = Key(event.lane, event.offset)
        if self.find(key) is not None:
            self.places[key] = (IN_ASIDE, event.at)

    def _apply_passed(self, event: events.Passed) -> None:
        lane, first, size, how = event
        if lane != ASIDE:
            level = self._level(lane)
            if first > level.cursor:
                self._fill_gap(level, first)
        self._remove_run(Run(lane, first, size))
        self.totals[_SETTLED_AS.get(how, "passed")] += size

    def _apply_purged(self, event: events.Purged) -> None:
        for lane, upto in event.ends:
            if lane == ASIDE:
                items = self.aside
            else:
                level = self._level(lane)
                items = level.items
                self.totals["purged"] += max(0, upto - level.cursor)
                level.cursor = max(level.cursor, upto)
            for offset in [
                offset
                for offset, found in items.items()
                if offset < upto and isinstance(found, Rest)
            ]:
                self._remove_run(Run(lane, offset, 1))
                self.totals["purged"] += 1

    def _apply_rewound(self, event: events.Rewound) -> None:
        if event.lane == ASIDE:
            for offset in [offset for offset in self.aside if offset >= event.cursor]:
                self._remove_run(Run(ASIDE, offset, 1))
            self.aside_next = event.cursor
            return
        level = self._level(event.lane)
        for offset in [offset for offset in level.items if offset >= event.cursor]:
            self._remove_run(Run(event.lane, offset, 1))
        level.cursor = event.cursor

    def _apply_configured(self, event: events.Configured) -> None:
        try:
            self.rules = QueueRules.from_json(event.rules)
            self.is_configured = True
        except (ValueError, TypeError, AttributeError):
            return  # Written by a version that knows other rules.

    def _apply_paused(self, event: events.Paused) -> None:
        self.paused = bool(event.paused)

    def _apply_opened(self, event: events.Opened) -> None:
        if event.lane == ASIDE:
            self.has_aside = True
        else:
            self._level(event.lane)

    def _apply_booted(self, event: events.Booted) -> None:
        self.boot, self.epoch = event

    def _apply_keyed(self, event: events.Keyed) -> None:
        digest, until_us, lane, offset = event
        self.keys[digest] = (until_us, lane, offset)
        heapq.heappush(self._keys_due, (until_us, digest))

    def _apply_parked(self, event: events.Parked) -> None:
        lane, offset, priority, attempt, since, not_before_us, cause, reason = event
        rest = Rest(priority, attempt, since, not_before_us, cause, reason)
        self._put_to_rest(lane, offset, rest)

    def _apply_placed(self, event: events.Placed) -> None:
        self.places[Key(event.lane, event.offset)] = (event.where, event.at)

    def _apply_kept(self, event: events.Kept) -> None:
        self.dead.add(event.first, event.first + event.size)

    def _apply_counted(self, event: events.Counted) -> None:
        self.aside_next = event.aside_next
        try:
            self.totals = Counter(json.loads(event.totals))
        except (ValueError, TypeError):
            return

    def _apply_ended(self, event: events.Ended) -> None:
        """A checkpoint is complete: whoever replays knows what that means."""

    # Checkpoint ----------------------------------------------------------------------------

    def checkpoint(self) -> Iterator[Event]:
        """Yield events that give this state when they are applied to an empty ledger."""
        yield events.Booted(self.boot, self.epoch)
        if self.is_configured:
            yield events.Configured(self.rules.to_json().encode())
        yield events.Paused(int(self.paused))
        yield events.Counted(json.dumps(self.totals).encode(), self.aside_next)
        if self.has_aside:
            yield events.Opened(ASIDE)
        for level in self.levels.values():
            yield events.Rewound(level.priority, level.cursor)
            yield from self._items_as_events(level.priority, level.items)
        yield from self._items_as_events(ASIDE, self.aside)
        for key, (where, at) in self.places.items():
            yield events.Placed(key.lane, key.offset, where, at)
        for start, stop in self.dead.runs():
            yield events.Kept(start, stop - start)
        for digest, (until_us, lane, offset) in self.keys.items():
            yield events.Keyed(digest, until_us, lane, offset)

    def _items_as_events(self, lane: int, items: dict[int, Grant | Rest]) -> Iterator[Event]:
        for offset, found in items.items():
            if isinstance(found, Rest):
                not_before_us = 0 if found.is_ready and lane != ASIDE else found.not_before_us
                yield events.Parked(
                    lane,
                    offset,
                    found.priority,
                    found.attempt,
                    found.since,
                    not_before_us,
                    found.cause,
                    found.reason,
                )
                continue
            # First as one that waits, which says its priority; then as one that is leased.
            yield events.Parked(
                lane, offset, found.priority, found.attempt, found.since, 0, Cause.RELEASED, b""
            )
            take = Take(lane, offset, 1, found.attempt, found.since)
            yield Leased(found.token, found.deadline_us, found.owner, (take,))


_SETTLED_AS = {
    int(How.ACKED): "acked",
    int(How.OUTLIVED): "outlived",
    int(How.DUPLICATE): "duplicates",
    int(How.DROPPED): "dropped",
    int(How.LOST): "lost",
    int(How.DAMAGED): "damaged",
}
_RETURNED_AS = {
    int(Cause.RELEASED): "released",
    int(Cause.FAILED): "failed",
    int(Cause.EXPIRED): "expired",
}
_APPLY: dict[type[Event], Callable[[Ledger, Event], None]] = {
    kind: getattr(Ledger, name)
    for kind, name in {
        Leased: "_apply_leased",
        Settled: "_apply_settled",
        events.Popped: "_apply_popped",
        events.Returned: "_apply_returned",
        events.Extended: "_apply_extended",
        events.Buried: "_apply_buried",
        events.Revived: "_apply_revived",
        events.Discarded: "_apply_discarded",
        events.Deferred: "_apply_deferred",
        events.Carried: "_apply_carried",
        events.Passed: "_apply_passed",
        events.Purged: "_apply_purged",
        events.Rewound: "_apply_rewound",
        events.Configured: "_apply_configured",
        events.Paused: "_apply_paused",
        events.Opened: "_apply_opened",
        events.Booted: "_apply_booted",
        events.Keyed: "_apply_keyed",
        events.Parked: "_apply_parked",
        events.Placed: "_apply_placed",
        events.Kept: "_apply_kept",
        events.Counted: "_apply_counted",
        events.Ended: "_apply_ended",
    }.items()
}
