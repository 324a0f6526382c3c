"""The state of a queue: events in, answers out.

Everything here follows from the events that were applied, in order; nothing else is remembered, so
replaying a ledger gives the same state in every process. Answers change nothing that an event
would; whoever acts on one appends the event first and applies it then.

Applying never fails. Events may be missing, where a damaged batch was passed over: what they would
have settled is delivered again.
"""

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

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
from segue.delivery.lines import HEAP_SLACK, Grant, Level, Lines, Rest
from segue.delivery.message import Key
from segue.delivery.ranges import OffsetRanges
from segue.delivery.rules import QueueRules

OFFSET_END: Final = 1 << 63
"""Beyond every offset."""


class Ledger(Lines):
    """The state of one queue. Not for two threads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = QueueRules()
        self.is_configured = False
        self.paused = False
        self.is_limited = False
        """Whether the rules limit how many, or how fast, messages are delivered."""
        self.due_ns = 0
        """When the next message is due by the queue's rate, in ticks."""
        self.is_removed = False
        self.boot = 0
        self.epoch = 0
        self.aside_next = 0
        self.aside_missing = OffsetRanges()
        """What lies aside and was noted by an event that is lost."""
        self.has_aside = False
        self.dead = OffsetRanges()
        self.keys: dict[bytes, tuple[int, int, int]] = {}
        self.keying: dict[bytes, tuple[int, int]] = {}
        """Keys whose messages may have been pushed by somebody who was killed."""
        self.totals: Counter[str] = Counter()
        self._keys_due: list[tuple[int, bytes]] = []

    # Answers -------------------------------------------------------------------------------

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
        here = (offset for offset in self.aside if Key(ASIDE, offset) not in self.places)
        lowest = list(here) if self.is_aside_unordered else list(islice(here, 1))
        moved = [at for where, at in self.places.values() if where == IN_ASIDE]
        # From `aside_next` on lies what nobody has looked at.
        return min([*lowest, *moved, self.aside_next])

    def dead_floor(self, end: int) -> int:
        """Return the lowest offset in the log of dead letters that is still needed."""
        moved = [at for where, at in self.places.values() if where == IN_DEAD]
        first = self.dead.first
        return min([*moved, end if first is None else first])

    def dead_end(self) -> int:
        """Return the offset after the last dead letter that is known, or was."""
        moved = [at + 1 for where, at in self.places.values() if where == IN_DEAD]
        runs = self.dead.runs()
        return max([*moved, runs[-1][1] if runs else 0])

    def _return_home(self, where: int, first: int, stop: int) -> None:
        """Look for messages in their lanes again that were moved to where nothing is now."""
        for key, (log, at) in list(self.places.items()):
            if log == where and first <= at < stop:
                del self.places[key]

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

    def _apply_leased(self, event: Leased) -> None:
        token, deadline_us, owner, takes = event
        for take in takes:
            lane, first, size, _, _ = take
            if lane != ASIDE:
                level = self._level(lane)
                items = level.items
                if first >= level.cursor:
                    if not self._fill_gap(level, first):
                        continue
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
                self._forget(found)
                priority = lane if lane != ASIDE else found.priority if found else 0
                grant = items[offset] = Grant(
                    token, deadline_us, owner, lane, offset, 1, take.attempt, take.since, priority
                )
                self._hold(grant)
                if self.groups.of:
                    self.groups.start(Key(lane, offset))
            if lane != ASIDE:
                level.cursor = max(level.cursor, first + size)

    def lease_next(self, level: Level, token: int, deadline_us: int, owner: bytes) -> None:
        """Take in the lease of a lane's next message: the commonest of events, in fewest steps."""
        offset = level.cursor
        priority = level.priority
        grant = Grant(token, deadline_us, owner, priority, offset, 1, 1, 0, priority)
        level.items[offset] = grant
        level.cursor = offset + 1
        self.leased += 1
        self.grants += 1
        deadlines = self.deadlines
        heapq.heappush(deadlines, (deadline_us, next(self._numbers), grant))
        if len(deadlines) > 2 * self.grants + HEAP_SLACK:
            self._renew_deadlines()

    def settle_held(
        self, items: dict[int, Grant | Rest], lane: int, offset: int, grant: Grant
    ) -> None:
        """Take in the ack of one message that is leased."""
        del items[offset]
        if self.places:
            self.places.pop(Key(lane, offset), None)
        if self.groups.of:
            self._call_up(self.groups.leave(Key(lane, offset)))
        self.leased -= 1
        grant.count -= 1
        if not grant.count:
            self.grants -= 1
        self.totals["acked"] += 1

    def _apply_settled(self, event: Settled) -> None:
        settled = sum(self._remove_run(run) for run in event.runs)
        self.totals[_SETTLED_AS.get(event.how, "settled")] += settled

    def _apply_popped(self, event: events.Popped) -> None:
        for lane, first, size, _, _ in event.takes:
            self._remove_run(Run(lane, first, size))
            self.totals["popped"] += size

    def _apply_returned(self, event: events.Returned) -> None:
        for lane, first, size in event.runs:
            items = self.aside if lane == ASIDE else self._level(lane).items
            for offset in range(first, first + size):
                found = items.get(offset)
                if not isinstance(found, Grant):
                    continue
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
        is_new = lane != ASIDE and offset >= self._level(lane).cursor
        if self.find(key) is None and not is_new:
            self.places[key] = (IN_DEAD, dead_offset)
            rest = Rest(priority, attempt, attempt, 0, Cause.REDRIVEN, b"")
            self._put_to_rest(lane, offset, rest)
            self.totals["redriven"] += 1

    def _apply_discarded(self, event: events.Discarded) -> None:
        before = len(self.dead)
        self.dead.remove(event.first, event.first + event.size)
        self._return_home(IN_DEAD, event.first, event.first + event.size)
        self.totals["discarded"] += before - len(self.dead)

    def _apply_deferred(self, event: events.Deferred) -> None:
        if event.start > self.aside_next:
            self.aside_missing.add(self.aside_next, event.start)
        for offset, priority, not_before_us in event.items:
            if offset >= self.aside_next or offset in self.aside_missing:
                self._level(priority)
                rest = Rest(priority, 0, 0, not_before_us, Cause.RELEASED, b"")
                self._put_to_rest(ASIDE, offset, rest)
        self.aside_missing.remove(event.start, event.upto)
        self.aside_next = max(self.aside_next, event.upto)

    def _apply_carried(self, event: events.Carried) -> None:
        key = Key(event.lane, event.offset)
        if self.find(key) is not None:
            self.places[key] = (IN_ASIDE, event.at)

    def _apply_passed(self, event: events.Passed) -> None:
        lane, first, size, how = event
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
            self._return_home(IN_ASIDE, event.cursor, OFFSET_END)
            self.aside_missing.remove(event.cursor, OFFSET_END)
            self.aside_next = event.cursor
            return
        level = self._level(event.lane)
        for offset in [offset for offset in level.items if offset >= event.cursor]:
            self._remove_run(Run(event.lane, offset, 1))
        level.cursor = event.cursor

    def _apply_configured(self, event: events.Configured) -> None:
        try:
            rules = QueueRules.from_json(event.rules)
        except (ValueError, TypeError, AttributeError):
            return  # Written by a version that knows other rules.
        if rules.limit != self.rules.limit:
            self.due_ns = 0  # What was due by another rate says nothing.
        self.rules = rules
        self.is_configured = True
        self.is_limited = rules.max_leases is not None or rules.rate is not None
        self.groups.places = rules.group_concurrency
        for group in self.groups.by_digest.values():
            self._call_up(group)

    def _apply_paused(self, event: events.Paused) -> None:
        self.paused = bool(event.paused)

    def _apply_opened(self, event: events.Opened) -> None:
        if event.lane == ASIDE:
            self.has_aside = True
        else:
            self._level(event.lane)

    def _apply_booted(self, event: events.Booted) -> None:
        self.boot, self.epoch = event
        self.due_ns = 0  # Ticks begin anew.

    def _apply_keyed(self, event: events.Keyed) -> None:
        digest, until_us, lane, offset = event
        self.keys[digest] = (until_us, lane, offset)
        self.keying.pop(digest, None)
        heapq.heappush(self._keys_due, (until_us, digest))
        if len(self._keys_due) > 2 * len(self.keys) + HEAP_SLACK:
            self._keys_due = [(until_us, digest) for digest, (until_us, _, _) in self.keys.items()]
            heapq.heapify(self._keys_due)

    def _apply_keying(self, event: events.Keying) -> None:
        if not event.intents:
            self.keying.clear()
        for digest, lane, start in event.intents:
            self.keying[digest] = (lane, start)

    def _apply_removed(self, event: events.Removed) -> None:
        self.is_removed = True

    def _apply_grouped(self, event: events.Grouped) -> None:
        lane, first, is_started, digests = event
        for offset, digest in enumerate(digests, first):
            key = Key(lane, offset)
            found = self.find(key)
            if found is None and not self._hold_new(lane, offset):
                continue  # It is settled, or was never there as far as anybody knows.
            group = self.groups.join(key, digest)
            if isinstance(found, Grant):
                self.groups.start(key)
            elif is_started:
                group.started.add(key)

    def _hold_new(self, lane: int, offset: int) -> bool:
        """Let a message that was never delivered wait outside its lane; False if it is none."""
        if lane == ASIDE:
            return False
        level = self._level(lane)
        if offset < level.cursor or not self._fill_gap(level, offset):
            return False
        level.cursor = offset + 1
        self._put_to_rest(lane, offset, Rest(lane, 0, 0, 0, Cause.HELD, b""))
        return True

    def _apply_metered(self, event: events.Metered) -> None:
        self.due_ns = event.due_ns

    def _apply_parked(self, event: events.Parked) -> None:
        lane, offset, priority, attempt, since, not_before_us, cause, reason = event
        if lane != ASIDE:
            level = self._level(lane)
            if offset >= level.cursor:
                if not self._fill_gap(level, offset):
                    return
                level.cursor = offset + 1
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

    def checkpoint_size(self) -> int:
        """Return about how many events a checkpoint has."""
        items = len(self.aside) + sum(len(level.items) for level in self.levels.values())
        runs = len(self.dead.runs())
        others = len(self.places) + len(self.groups.of) + len(self.keys)
        return items + self.leased + others + runs + len(self.levels)

    def checkpoint(self) -> Iterator[Event]:
        """Yield events that give this state when they are applied to an empty ledger."""
        yield events.Booted(self.boot, self.epoch)
        if self.is_configured:
            yield events.Configured(self.rules.to_json().encode())
        yield events.Paused(int(self.paused))
        if self.is_removed:
            yield events.Removed()
        yield events.Counted(json.dumps(self.totals).encode(), self.aside_next)
        if self.has_aside:
            yield events.Opened(ASIDE)
        for level in self.levels.values():
            yield events.Rewound(level.priority, level.cursor)
            yield from self._items_as_events(level.priority, level.items)
        yield from self._items_as_events(ASIDE, self.aside)
        for key, (where, at) in self.places.items():
            yield events.Placed(key.lane, key.offset, where, at)
        for key, group in self.groups.of.items():
            yield events.Grouped(*key, int(key in group.started), (group.digest,))
        if self.due_ns:
            yield events.Metered(self.due_ns)
        for start, stop in self.dead.runs():
            yield events.Kept(start, stop - start)
        for digest, (until_us, lane, offset) in self.keys.items():
            yield events.Keyed(digest, until_us, lane, offset)
        for digest, (lane, start) in self.keying.items():
            yield events.Keying(((digest, lane, start),))

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
        events.Keying: "_apply_keying",
        events.Removed: "_apply_removed",
        events.Grouped: "_apply_grouped",
        events.Metered: "_apply_metered",
        events.Parked: "_apply_parked",
        events.Placed: "_apply_placed",
        events.Kept: "_apply_kept",
        events.Counted: "_apply_counted",
        events.Ended: "_apply_ended",
    }.items()
}
