"""A queue that is not there yet, for servers, where everybody may ask for any name.

Who looks at it, or would take something out of it, is answered as by an empty queue, and nothing is
made. Who puts something in makes it. Every call looks whether somebody has made it meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from segue.delivery.message import Body, DeadLetter, Message, MessageId
from segue.delivery.priority import Priority, priority_from
from segue.delivery.rules import QueueRules
from segue.errors import InvalidArgument, LeaseLost
from segue.log.options import Duration
from segue.stores.arguments import cause_of, check_message_count, duration_us, owner_bytes
from segue.stores.contract import (
    Counts,
    Item,
    MessageState,
    MessageStatus,
    Outcome,
    Queue,
    QueueStats,
    Receipt,
    Timeline,
)
from segue.stores.file.browsing import STATES
from segue.stores.file.queue import FileQueue
from segue.stores.job import Job
from segue.stores.letters import DeadLetters
from segue.stores.message_ids import key_of, message_id
from segue.stores.queue_base import Bound, QueueBase
from segue.stores.state import METADATA, only, segment_of, state_of

_RULES: Final = QueueRules()
_GONE: Final = "the message is settled, dead or was never leased"

Find = Callable[[], FileQueue | None]
"""Returns the queue, once it is there."""


class AbsentQueue(QueueBase):
    """Stands for a queue for as long as it is not there. Safe from any thread."""

    def __init__(self, name: str, *, find: Find, make: Callable[[], Queue]) -> None:
        """`make` is called by what puts something in, and by what waits for as long as it likes."""
        self.name = name
        self._find = find
        self._make = make
        self._letters = _NoLetters(find)
        self._history = _NoPast(find)

    # Making it -----------------------------------------------------------------------------

    def configure(self, rules: QueueRules) -> None:
        """Change the rules for everybody."""
        self._make().configure(rules)

    def push_many(
        self, items: Iterable[Item | Body], *, wait: Duration | None = None
    ) -> list[MessageId]:
        """Push all items or none; return their ids."""
        return self._make().push_many(items, wait=wait)

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self._make().pause()

    def resume(self) -> None:
        """Deliver again."""
        self._make().resume()

    # Delivering ----------------------------------------------------------------------------

    def pop_many(self, count: int, *, wait: Duration | None = 0) -> list[Message]:
        """Take up to `count` messages for good."""
        there = self._there_in(wait)
        if there is not None:
            return there.pop_many(count, wait=wait)
        check_message_count(count)
        return []

    def lease_many(
        self,
        count: int,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = 0,
        owner: str | None = None,
    ) -> list[Job]:
        """Take up to `count` messages, each to be settled on its own."""
        there = self._there_in(wait)
        if there is not None:
            return there.lease_many(count, ttl=ttl, wait=wait, owner=owner)
        check_message_count(count)
        if owner is not None:
            owner_bytes(owner)
        _check_ttl(ttl)
        return []

    def wait(self, timeout: Duration | None = None) -> bool:
        """Return True once a message can be leased, False if none can within `timeout`."""
        there = self._there_in(timeout)
        return there is not None and there.wait(timeout)

    def _there_in(self, wait: Duration | None) -> Queue | None:
        """Return the queue if it is there, or has to be: only files wake who waits for long."""
        return self._find() if wait == 0 else self._make()

    # Settling ------------------------------------------------------------------------------

    def ack(self, job: Job | Receipt) -> None:
        """Say that the work is done. Raises LeaseLost."""
        self.ack_many([job])

    def ack_many(self, jobs: Iterable[Job | Receipt]) -> None:
        """Settle many in one step. Raises LeaseLost if any is lost; all others are settled."""
        there = self._find()
        if there is not None:
            there.ack_many(jobs)
            return
        lost = [self._lost(job) for job in jobs]
        if lost:
            lost[0].lost = tuple(each.receipt for each in lost)
            raise lost[0]

    def nack(
        self,
        job: Job | Receipt,
        *,
        outcome: Outcome = "fail",
        delay: Duration | None = None,
        reason: str = "",
    ) -> None:
        """Give a message back. Raises LeaseLost."""
        there = self._find()
        if there is not None:
            there.nack(job, outcome=outcome, delay=delay, reason=reason)
            return
        cause_of(outcome, reason)
        duration_us(delay, name="delay")
        raise self._lost(job)

    def extend(self, job: Job | Receipt, *, ttl: Duration | None = None) -> None:
        """Let a lease end `ttl` from now. Raises LeaseLost."""
        there = self._find()
        if there is not None:
            there.extend(job, ttl=ttl)
            return
        lost = self._lost(job)
        _check_ttl(ttl)
        raise lost

    def _lost(self, job: Job | Receipt) -> LeaseLost:
        lane, offset, token = self._lease_of(job)
        return LeaseLost(receipt=f"{message_id(lane, offset)}/{token}", reason=_GONE)

    # Looking -------------------------------------------------------------------------------

    @property
    def rules(self) -> QueueRules:
        """How the queue behaves, or would."""
        there = self._find()
        return _RULES if there is None else there.rules

    def peek(self, count: int = 1) -> list[Message]:
        """Return the messages that would be delivered next."""
        check_message_count(count)
        there = self._find()
        return [] if there is None else there.peek(count)

    def look_up(self, message_id: MessageId) -> MessageStatus | None:
        """Return how one message stands; None if it is settled or unknown."""
        key_of(message_id)
        there = self._find()
        return None if there is None else there.look_up(message_id)

    def timeline(self, message_id: MessageId) -> Timeline:
        """Return what happened to one message: nothing, while there is none."""
        key_of(message_id)
        there = self._find()
        if there is None:
            return Timeline(id=message_id, state="unknown")
        return there.timeline(message_id)

    def browse(
        self,
        *,
        state: MessageState | None = None,
        limit: int = 100,
        after: MessageId | None = None,
    ) -> list[MessageStatus]:
        """Return messages that are not settled, in the order of their ids, the dead last."""
        there = self._find()
        if there is not None:
            return there.browse(state=state, limit=limit, after=after)
        check_message_count(limit, name="limit")
        if state is not None and state not in STATES:
            raise InvalidArgument(f"state must be one of {', '.join(STATES)}: {state!r}")
        if after is not None:
            key_of(after)
        return []

    def count(self) -> Counts:
        """Return how many messages are in which state."""
        there = self._find()
        return Counts(ready=0, delayed=0, leased=0, dead=0) if there is None else there.count()

    def stats(self) -> QueueStats:
        """Return what an operator wants to know."""
        there = self._find()
        if there is not None:
            return there.stats()
        return QueueStats(
            name=self.name,
            counts=Counts(ready=0, delayed=0, leased=0, dead=0),
            ready_by_priority={},
            paused=False,
            oldest_ready_seconds=None,
            leases=[],
            totals={},
            size_bytes=0,
            pinned_bytes=0,
            damaged=0,
        )

    def state(self, key: str | None = None) -> dict[str, object]:
        """Return what waits, as `metadata` and `queue_<p>_seg_<n>`, or `key` of it alone."""
        there = self._find()
        if there is not None:
            return there.state(key)
        found = state_of([], cursors={}, segment_size=_RULES.segment_size)
        if key is None:
            return found
        return only(found, key) if key == METADATA or segment_of(key) is not None else {}

    def purge(self) -> int:
        """Drop all that is ready or delayed and return how much that was."""
        there = self._find()
        return 0 if there is None else there.purge()


class _NoLetters(DeadLetters):
    """The dead letters of such a queue."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def behind(self, number: int) -> Iterator[DeadLetter]:
        """Yield those that are there now and died after the one with that number."""
        there = self._find()
        return iter(()) if there is None else there.letters.behind(number)

    def numbers(self) -> list[tuple[int, int]]:
        """Return the numbers of those that are there now, as runs: (start, stop), in order."""
        there = self._find()
        return [] if there is None else there.letters.numbers()

    def revive(self, letters: list[DeadLetter]) -> int:
        """Bring letters back in one step, those that are still there; return how many."""
        there = self._find()
        return 0 if there is None else there.letters.revive(letters)

    def drop(self, letters: list[DeadLetter]) -> int:
        """Drop letters for good in one step, those that are still there; return how many."""
        there = self._find()
        return 0 if there is None else there.letters.drop(letters)

    def drop_all(self) -> int:
        """Drop every letter, also those that cannot be read; return how many."""
        there = self._find()
        return 0 if there is None else there.letters.drop_all()


class _NoPast:
    """What such a queue keeps of what was pushed to it."""

    def __init__(self, find: Find) -> None:
        self._find = find

    def messages(self, priority: Priority | None, start: Bound, stop: Bound) -> Iterator[Message]:
        """Yield messages in order of priority, then of pushing; last those pushed with a delay."""
        there = self._find()
        if there is not None:
            yield from there.history(priority=priority, start=start, stop=stop)
            return
        _check_span(priority, start, stop)

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt; return how many."""
        there = self._find()
        if there is not None:
            return there.replay(priority=priority, start=start, stop=stop)
        _check_span(priority, start, stop)
        return 0


def _check_span(priority: Priority | None, start: Bound, stop: Bound) -> None:
    """Raise InvalidArgument unless there can be something between the two."""
    if priority is None and (type(start) is int or type(stop) is int):
        raise InvalidArgument("an offset means something only within a priority: give one")
    if priority is not None:
        priority_from(priority)


def _check_ttl(ttl: Duration | None) -> None:
    """Raise InvalidArgument unless a lease may last so long."""
    if ttl is not None:
        _RULES.lease_us((duration_us(ttl, name="ttl") or 0) / 1_000_000)
