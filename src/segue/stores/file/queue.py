"""The queue as its callers see it: arguments checked, turns taken, waits waited."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from segue.delivery.events import ASIDE, Purged
from segue.delivery.message import Body, Message, MessageId
from segue.delivery.priority import Priority
from segue.delivery.rules import QueueRules
from segue.errors import LogClosed, QueueEmpty, QueueLocked
from segue.log.live import OWN, PUBLISHED
from segue.log.options import Duration
from segue.stores.arguments import cause_of, check_message_count, duration_us, owner_bytes
from segue.stores.contract import (
    Counts,
    Item,
    MessageState,
    MessageStatus,
    Outcome,
    QueueStats,
    Receipt,
    Timeline,
)
from segue.stores.file.browsing import Browsing
from segue.stores.file.chronicle import Chronicle
from segue.stores.file.core import QueueCore
from segue.stores.file.history import History
from segue.stores.file.inspection import Inspection
from segue.stores.file.letters import FileDeadLetters
from segue.stores.file.pushing import Pusher
from segue.stores.heartbeat import Heartbeat
from segue.stores.job import Job
from segue.stores.queue_base import QueueBase

T = TypeVar("T")


class FileQueue(QueueBase):
    """A queue in a directory. Safe from any thread."""

    def __init__(self, core: QueueCore, heartbeat: Heartbeat) -> None:
        self.name = core.name
        self.heartbeat = heartbeat
        self._core = core
        self._pusher = Pusher(core)
        self._letters = FileDeadLetters(core)
        self._inspection = Inspection(core)
        self._browsing = Browsing(core, self._letters)
        self._chronicle = Chronicle(core, self._browsing)
        self._history = History(core, self._pusher)

    # Rules ---------------------------------------------------------------------------------

    @property
    def rules(self) -> QueueRules:
        """How the queue behaves."""
        with self._core.turn():
            return self._core.ledger.rules

    def configure(self, rules: QueueRules) -> None:
        """Change the rules for everybody."""
        self._core.configure(rules)

    # Pushing -------------------------------------------------------------------------------

    def push(
        self,
        body: Body,
        *,
        priority: Priority = 0,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        group: str | None = None,
        wait: Duration | None = None,
    ) -> MessageId:
        """Push one message and return its id."""
        core = self._core
        if (
            type(body) is bytes
            and type(priority) is int
            and delay is None
            and ttl is None
            and key is None
            and headers is None
            and group is None
            and (wait is None or (type(wait) is int and wait == 0))
            and core.is_plain
        ):
            # Most messages: one append and nothing else.
            lane = core.lanes.by_priority.get(priority)
            try:
                if lane is not None and core.journal.words[OWN] == core.rules_seen:
                    offset = lane.append(body)
                    if core.journal.words[OWN] != core.rules_seen:
                        core.look_at_rules()  # It may have been removed under our hands.
                    return MessageId(f"{priority}-{offset}")
            except (ValueError, LogClosed):
                core.look_at_rules()  # Closed by another thread, or by a fork: this says which.
                raise
        item = Item(
            body=body,
            priority=priority,
            delay=delay,
            ttl=ttl,
            key=key,
            headers=headers,
            group=group,
        )
        return self._pusher.push([item], wait)[0]

    def push_many(
        self, items: Iterable[Item | Body], *, wait: Duration | None = None
    ) -> list[MessageId]:
        """Push all items or none; return their ids."""
        return self._pusher.push(items, wait)

    # Delivering ----------------------------------------------------------------------------

    def pop(self, *, wait: Duration | None = 0) -> Message | None:
        """Take the next message for good, or None if there is none."""
        messages = self.pop_many(1, wait=wait)
        return messages[0] if messages else None

    def pop_many(self, count: int, *, wait: Duration | None = 0) -> list[Message]:
        """Take up to `count` messages for good."""
        check_message_count(count)
        core = self._core
        messages = self._deliver(core.delivery.pop, wait, count)
        if messages and core.place.sync == "always":
            core.journal.sync()
        return messages

    def lease(
        self, *, ttl: Duration | None = None, wait: Duration | None = 0, owner: str | None = None
    ) -> Job:
        """Take the next message for `ttl`. Raises QueueEmpty, QueueLocked."""
        core = self._core
        if wait == 0 and owner is None:
            jobs = core.run(core.delivery.lease, 1, ttl, core.owner, self)
        else:
            jobs = self.lease_many(1, ttl=ttl, wait=wait, owner=owner)
        if not jobs:
            raise QueueEmpty(queue=self.name)
        return jobs[0]

    def lease_many(
        self,
        count: int,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = 0,
        owner: str | None = None,
    ) -> list[Job]:
        """Take up to `count` messages, each to be settled on its own."""
        check_message_count(count)
        core = self._core
        holder = core.owner if owner is None else owner_bytes(owner)

        return self._deliver(core.delivery.lease, wait, count, ttl, holder, self)

    def _deliver(
        self,
        step: Callable[..., list[T]],
        wait: Duration | None,
        *arguments: object,
        name: str = "wait",
    ) -> list[T]:
        """Return what `step` does in a turn, again and again until `wait` is over."""
        core = self._core
        if wait == 0:
            return core.run(step, *arguments)
        wait_us = duration_us(wait, name=name)
        deadline = None if wait_us is None else time.monotonic() + wait_us / 1_000_000
        while True:
            locked: QueueLocked | None = None
            with core.turn():
                seen = core.signature()  # Before looking: what comes later is news.
                try:
                    found = step(*arguments)
                except QueueLocked as error:
                    found, locked = [], error
                pause = core.seconds_to_next()
            left = None if deadline is None else deadline - time.monotonic()
            if found or (left is not None and left <= 0):
                if locked is not None:
                    raise locked
                return found
            waits = [seconds for seconds in (left, pause) if seconds is not None]
            core.wait_for_news(seen, min(waits, default=None))

    def wait(self, timeout: Duration | None = None) -> bool:
        """Return True once a message can be leased, False if none can within `timeout`."""
        return bool(self._deliver(self._core.delivery.probe, timeout, name="timeout"))

    # Settling ------------------------------------------------------------------------------

    def ack(self, job: Job | Receipt) -> None:
        """Say that the work is done. Raises LeaseLost."""
        core = self._core
        if type(job) is not Job or job.holder is not self:
            self.ack_many([job])
            return
        core.run(core.settling.ack, job.lane, job.offset, job.token)
        job.settle()

    def ack_many(self, jobs: Iterable[Job | Receipt]) -> None:
        """Settle many in one step. Raises LeaseLost if any is lost; all others are settled."""
        taken = list(jobs)
        if not taken:
            return
        leases = [
            (job.lane, job.offset, job.token)
            if type(job) is Job and job.holder is self
            else self._lease_of(job)
            for job in taken
        ]
        core = self._core
        with core.turn():
            lost = core.settling.ack_many(leases)
        if not lost:
            for job in taken:
                if type(job) is Job:
                    job.settle()
            return
        receipts = {error.receipt for error in lost}
        for job in taken:
            if type(job) is Job and job.receipt not in receipts:
                job.settle()
        error = lost[0]
        error.lost = tuple(each.receipt for each in lost)
        raise error

    def nack(
        self,
        job: Job | Receipt,
        *,
        outcome: Outcome = "fail",
        delay: Duration | None = None,
        reason: str = "",
    ) -> None:
        """Give a message back. Raises LeaseLost."""
        cause = cause_of(outcome, reason)
        delay_us = duration_us(delay, name="delay")
        lease = self._lease_of(job)
        with self._core.turn():
            self._core.settling.give_back(lease, cause, delay_us, reason)
        if type(job) is Job:
            job.settle()

    def extend(self, job: Job | Receipt, *, ttl: Duration | None = None) -> None:
        """Let a lease end `ttl` from now. Raises LeaseLost."""
        lane, offset, token = self._lease_of(job)
        with self._core.turn():
            if ttl is None and type(job) is Job:
                ttl_us = round(job.ttl_seconds * 1_000_000)  # As it was taken, whatever holds now.
            elif ttl is None:
                ttl_us = round(self._core.ledger.rules.lease_ttl * 1_000_000)
            else:
                ttl_us = self._core.delivery.ttl_us(ttl)
            self._core.settling.extend(lane, offset, token, ttl_us)

    # Looking -------------------------------------------------------------------------------

    def peek(self, count: int = 1) -> list[Message]:
        """Return the messages that would be delivered next."""
        check_message_count(count)
        return self._inspection.peek(count)

    def look_up(self, message_id: MessageId) -> MessageStatus | None:
        """Return how one message stands; None if it is settled or unknown."""
        return self._browsing.look_up(message_id)

    def timeline(self, message_id: MessageId) -> Timeline:
        """Return what happened to one message, as far back as the ledger goes."""
        return self._chronicle.timeline(message_id)

    def browse(
        self,
        *,
        state: MessageState | None = None,
        limit: int = 100,
        after: MessageId | None = None,
    ) -> list[MessageStatus]:
        """Return messages that are not settled, in the order of their ids, the dead last."""
        check_message_count(limit, name="limit")
        return self._browsing.page(state, limit, after)

    def count(self) -> Counts:
        """Return how many messages are in which state."""
        with self._core.turn():
            return self._inspection.counts()

    def stats(self) -> QueueStats:
        """Return what an operator wants to know."""
        return self._inspection.stats()

    def state(self, key: str | None = None) -> dict[str, object]:
        """Return what waits, as `metadata` and `queue_<p>_seg_<n>`, or `key` of it alone."""
        return self._inspection.state(key)

    # Operating -----------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self._core.set_paused(True)

    def resume(self) -> None:
        """Deliver again."""
        self._core.set_paused(False)

    def purge(self) -> int:
        """Drop all that is ready or delayed and return how much that was."""
        core = self._core
        with core.turn():
            ledger = core.ledger
            before = ledger.totals["purged"]
            ends = [(priority, core.end_of(priority)) for priority in ledger.order]
            if ledger.has_aside:
                ends.append((ASIDE, core.lanes.aside.words[PUBLISHED]))
            core.journal.write(Purged(tuple(ends)))
            core.upkeep.is_due = True
            return ledger.totals["purged"] - before
