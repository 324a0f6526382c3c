"""A queue without any disk: decides as the file store does, writes events to a list."""

from collections.abc import Iterable
from itertools import takewhile

from segue.delivery import events
from segue.delivery.events import ASIDE, Cause, Event, How, Leased, Run, Settled, Take
from segue.delivery.ledger import Ledger
from segue.delivery.life import Happening, State
from segue.delivery.lines import Grant, Rest
from segue.delivery.message import Key

Change = tuple[State, Happening, State]

_CAUSES = {
    Cause.RELEASED: Happening.RELEASED,
    Cause.FAILED: Happening.FAILED,
    Cause.EXPIRED: Happening.EXPIRED,
    Cause.DEAD: Happening.BURIED,
    Cause.OUTLIVED: Happening.OUTLIVED,
}
_HOWS = {
    How.ACKED: Happening.ACKED,
    How.OUTLIVED: Happening.OUTLIVED,
    How.DROPPED: Happening.DROPPED,
}


class Clerk:
    """Keeps one ledger by its answers alone, and takes note of every change it makes."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.written: list[Event] = []
        self.ends: dict[int, int] = {}
        self.pushed_aside: list[tuple[int, int, int]] = []
        self.groups: dict[Key, bytes] = {}
        """The groups of messages, as the messages themselves would say it."""
        self.dead: dict[Key, tuple[int, int]] = {}
        """Where a message lies among the dead letters, and how often it was delivered."""
        self.dead_end = 0
        self.changes: list[Change] = []
        self.now_us = 1_000
        self.ticks_us = 0

    # The messages --------------------------------------------------------------------------

    def messages(self) -> list[Key]:
        """Return every message that was ever pushed."""
        lanes = [Key(lane, offset) for lane, end in self.ends.items() for offset in range(end)]
        return lanes + [Key(ASIDE, offset) for offset, _, _ in self.pushed_aside]

    def state_of(self, key: Key) -> State:
        place = self.dead.get(key)
        if place is not None and place[0] in self.ledger.dead:
            return State.DEAD
        return self.ledger.state_of(key, self.ends.get(key.lane, 0))

    def states(self) -> dict[Key, State]:
        return {key: self.state_of(key) for key in self.messages()}

    def end_of(self, priority: int) -> int:
        return self.ends.get(priority, 0)

    def held(self) -> list[tuple[Key, Grant]]:
        found = [(key, self.ledger.find(key)) for key in self.messages()]
        return [(key, grant) for key, grant in found if isinstance(grant, Grant)]

    # Writing -------------------------------------------------------------------------------

    def write(self, event: Event, happening: Happening | None = None) -> None:
        before = self.states()
        self.written.append(event)
        self.ledger.apply(event)
        self._note(before, happening)

    def _note(self, before: dict[Key, State], happening: Happening | None) -> None:
        after = self.states()
        for key, state in before.items():
            if state is not after[key]:
                assert happening is not None, (key, state, after[key])
                self.changes.append((state, happening, after[key]))

    def begin(self) -> None:
        """Take in what was pushed aside, end what has expired, promote what is due."""
        start = self.ledger.aside_next
        new = self.pushed_aside[start:]
        if new:
            self.written.append(events.Deferred(tuple(new), start, len(self.pushed_aside)))
            self.ledger.apply(self.written[-1])
        for grant in self.ledger.overdue(self.ticks_us):
            offsets = self.ledger.held(grant)
            if self.ledger.is_last(grant.attempt, grant.since):
                for offset in offsets:
                    self._bury(Key(grant.lane, offset), grant.attempt, Cause.EXPIRED)
            else:
                runs = tuple(Run(grant.lane, offset, 1) for offset in offsets)
                event = events.Returned(grant.token, Cause.EXPIRED, 0, b"", runs)
                self.write(event, Happening.EXPIRED)
        before = self.states()
        self.ledger.promote(self.now_us)
        self._note(before, Happening.DUE)

    # Steps ---------------------------------------------------------------------------------

    def push(self, priority: int, count: int, group: bytes | None = None) -> None:
        if priority not in self.ends:
            self.write(events.Opened(priority))
        end = self.end_of(priority)
        self.ends[priority] = end + count
        if group is not None:
            self.groups |= {Key(priority, offset): group for offset in range(end, end + count)}

    def push_aside(self, priority: int, delay_us: int, group: bytes | None = None) -> None:
        if not self.ledger.has_aside:
            self.write(events.Opened(ASIDE))
        if group is not None:
            self.groups[Key(ASIDE, len(self.pushed_aside))] = group
        self.pushed_aside.append((len(self.pushed_aside), priority, self.now_us + delay_us))

    def lease(self, count: int, ttl_us: int) -> list[Take]:
        takes = self._choose(count)
        if takes:
            token = len(self.written) + 1
            event = Leased(token, self.ticks_us + ttl_us, b"clerk", tuple(takes))
            self.write(event, Happening.LEASED)
        return takes

    def pop(self, count: int) -> None:
        takes = self._choose(count, settles=True)
        if takes:
            self.write(events.Popped(tuple(takes)), Happening.POPPED)

    def _choose(self, count: int, *, settles: bool = False) -> list[Take]:
        """Return what comes next, after noting the groups of what is looked at."""
        while takes := self.ledger.take(count, self.end_of, settles=settles):
            chosen: list[Take] = []
            for place, take in enumerate(takes):
                size = self._look_at(take)
                if size:
                    chosen.append(take._replace(size=size))
                if size < take.size:
                    self.ledger.put_back(takes[place + 1 :])
                    break
            if chosen:
                return chosen
        return []

    def _look_at(self, take: Take) -> int:
        """Return how many of a take can be delivered as they are."""
        first = Key(take.lane, take.first)
        if self.ledger.find(first) is not None:
            if first not in self.groups or first in self.ledger.groups.of:
                return 1
            self.write(events.Grouped(*first, 0, (self.groups[first],)))
            self.ledger.put_back([take])
            return 0
        keys = [Key(take.lane, take.first + place) for place in range(take.size)]
        plain = list(takewhile(lambda key: key not in self.groups, keys))
        if not plain:
            digests = [self.groups[key] for key in takewhile(self.groups.__contains__, keys)]
            self.write(events.Grouped(*first, 0, tuple(digests)))
        return len(plain)

    def put_back(self, count: int) -> None:
        """Take and think again: nothing has happened."""
        self.ledger.put_back(self.ledger.take(count, self.end_of))

    def ack(self, key: Key, grant: Grant) -> None:
        run = Run(key.lane, key.offset, 1)
        self.write(Settled(grant.token, How.ACKED, (run,)), Happening.ACKED)

    def give_back(self, key: Key, grant: Grant, cause: Cause, delay_us: int) -> None:
        if cause is Cause.DEAD or (
            cause is Cause.FAILED and self.ledger.is_last(grant.attempt, grant.since)
        ):
            self._bury(key, grant.attempt, cause)
            return
        not_before_us = self.now_us + delay_us if delay_us else 0
        run = Run(key.lane, key.offset, 1)
        event = events.Returned(grant.token, cause, not_before_us, b"why", (run,))
        self.write(event, _CAUSES[cause])

    def extend(self, key: Key, grant: Grant, ttl_us: int) -> None:
        run = Run(key.lane, key.offset, 1)
        event = events.Extended(grant.token, self.ticks_us + ttl_us, (run,))
        self.write(event, Happening.EXTENDED)

    def _bury(self, key: Key, attempt: int, cause: Cause) -> None:
        at = self.dead_end
        before = self.states()
        self.dead_end += 1
        self.dead[key] = (at, attempt)
        event = events.Buried(key.lane, key.offset, at, cause)
        self.written.append(event)
        self.ledger.apply(event)
        self._note(before, _CAUSES[cause])

    def outlive(self, *, drop: bool) -> None:
        """Deal with the message that comes next as with one whose time is over."""
        take = next(iter(self.ledger.waiting(self.end_of)), None)
        if take is None:
            return
        key = Key(take.lane, take.first)
        if not drop:
            self._bury(key, take.attempt - 1, Cause.OUTLIVED)
        else:
            self._settle(take, 1, How.OUTLIVED)

    def drop_oldest(self) -> None:
        take = next(iter(self.ledger.waiting(self.end_of)), None)
        if take is not None:
            self._settle(take, take.size, How.DROPPED)

    def _settle(self, take: Take, size: int, how: How) -> None:
        if isinstance(self.ledger.find(Key(take.lane, take.first)), Rest):
            self.write(Settled(0, how, (Run(take.lane, take.first, 1),)), _HOWS[how])
        else:
            self.write(events.Passed(take.lane, take.first, size, how), _HOWS[how])

    def revive(self, number: int) -> None:
        dead = [key for key, (at, _) in self.dead.items() if at in self.ledger.dead]
        if dead:
            key = dead[number % len(dead)]
            at, attempt = self.dead[key]
            priority = key.lane
            if key.lane == ASIDE:
                priority = self.pushed_aside[key.offset][1]
            event = events.Revived(at, key.lane, key.offset, priority, attempt)
            self.write(event, Happening.REDRIVEN)

    def discard(self) -> None:
        first = self.ledger.dead.first
        if first is not None:
            self.write(events.Discarded(first, 1), Happening.DISCARDED)

    def purge(self) -> None:
        ends = [(priority, self.end_of(priority)) for priority in self.ledger.order]
        if self.ledger.has_aside:
            ends.append((ASIDE, len(self.pushed_aside)))
        self.write(events.Purged(tuple(ends)), Happening.PURGED)

    def key_a_message(self, number: int) -> None:
        digest = bytes([number % 4] * 16)
        self.write(events.Keyed(digest, self.now_us + 50, 0, number))


def replayed(written: Iterable[Event]) -> Ledger:
    """Return the ledger that follows from these events."""
    ledger = Ledger()
    for event in written:
        ledger.apply(event)
    return ledger
