"""The queue as its callers see it: arguments checked, one call to the server, answers unpacked."""

import logging
import os
import random
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from segue.delivery.events import OWNER_BYTES_MAX, REASON_BYTES_MAX
from segue.delivery.message import Body, Key, Message, MessageId
from segue.delivery.priority import Priority, priority_from
from segue.delivery.rules import QueueRules
from segue.errors import (
    LeaseLost,
    NotReplicated,
    QueueLocked,
    SegueError,
    StoreClosed,
)
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
from segue.stores.job import Job
from segue.stores.message_ids import message_id
from segue.stores.queue_base import QueueBase
from segue.stores.redis.calls import Refusal, Word
from segue.stores.redis.history import History
from segue.stores.redis.inspection import Inspection
from segue.stores.redis.items import (
    key_from_wire,
    message_of,
    record_of,
    wire_id,
)
from segue.stores.redis.letters import RedisDeadLetters
from segue.stores.redis.libraries import library
from segue.stores.redis.pushing import Pusher
from segue.stores.redis.tables import QueueTable
from segue.stores.redis.timelines import Timelines
from segue.stores.redis.waiting import Patience, seconds_of

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore

logger = logging.getLogger(__name__)

LIBRARY: Final = "queue"
EXTENDING_SHARE: Final = 6
"""Which part of its length a lease's renewal may take: half the time between two beats."""
SCAN_COUNT: Final = 1_000
"""About how many messages the server lists at a time."""

_LOST: Final = {
    "other": "somebody else has the message now",
    "returned": "it expired or was given back",
    "gone": "the message is settled, dead or was never leased",
}
_HEAD_WORDS: Final = 4
_RUN_WORDS: Final = 6

Answer = list[object]


class RedisQueue(QueueBase):
    """A queue on a server. Safe from any thread."""

    def __init__(self, store: "RedisStore", name: str) -> None:
        self.name = name
        self.heartbeat = store.heartbeat
        self._store = store
        self._calls = store.calls
        self._base = store.base("queue", name)
        self._library = library(LIBRARY)
        self._owner = f"{socket.gethostname()}:{os.getpid()}".encode()[:OWNER_BYTES_MAX]
        self._chance = random.Random()
        self._removals = store.removals.get(name, 0)
        self._pusher = Pusher(store, name, self._base, self.change)
        self._letters = RedisDeadLetters(self.look, self.change, QueueTable(store, name))
        self._inspection = Inspection(name, self.look, self._letters, self._scan)
        self._timelines = Timelines(self._inspection, self.look, store.calls.clock)
        self._history = History(
            self._inspection,
            self.look,
            self._pusher.push_parcels,
            scan=self._scan,
            kept=self._kept,
        )

    def change(self, name: str, *words: Word, retry: float | None = None) -> object:
        """Have one of the queue's functions change something. Raises Refusal."""
        self._require_open()
        call = partial(self._calls.change, self._library, name, self._base, *words, retry=retry)
        return _until_true(call)

    def look(self, name: str, *words: Word) -> object:
        """Have one of the queue's functions answer. Raises Refusal."""
        self._require_open()
        return _until_true(partial(self._calls.look, self._library, name, self._base, *words))

    def _require_open(self) -> None:
        self._store.require_open()
        if self._store.removals.get(self.name, 0) != self._removals:
            raise StoreClosed(f"queue {self.name} was removed")

    def _scan(self, name: str) -> Iterator[Key]:
        """Yield the messages that one of the queue's hashes has, in no order."""
        self._require_open()
        key = f"{self._base}:{name}"
        cursor = 0
        while True:
            answer = self._calls.command(key, "HSCAN", key, cursor, "COUNT", SCAN_COUNT)
            said, fields = cast("tuple[bytes, list[bytes]]", answer)
            yield from map(key_from_wire, fields[::2])
            cursor = int(said)
            if not cursor:
                return

    def _kept(self, lane: int, first: int) -> Iterator[int]:
        """Yield the offsets of a lane's settled messages that are kept, from `first` on."""
        key = f"{self._base}:kept_{lane}"
        while True:
            words = ("ZRANGEBYSCORE", key, first, "+inf", "LIMIT", 0, SCAN_COUNT)
            found = cast("list[bytes]", self._calls.command(key, *words))
            yield from map(int, found)
            if not found:
                return
            first = int(found[-1]) + 1

    # Rules ---------------------------------------------------------------------------------

    @property
    def rules(self) -> QueueRules:
        """How the queue behaves."""
        said = cast("bytes | None", self.look("rules"))
        return QueueRules() if said is None else QueueRules.from_json(said)

    def configure(self, rules: QueueRules) -> None:
        """Change the rules for everybody."""
        self.change("configure", rules.to_json())

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
        if (
            type(body) is bytes
            and delay is None
            and ttl is None
            and key is None
            and headers is None
            and group is None
        ):
            duration_us(wait, name="wait")
            return self._pusher.push_plain(priority_from(priority), [body], wait)[0]
        return super().push(
            body,
            priority=priority,
            delay=delay,
            ttl=ttl,
            key=key,
            headers=headers,
            group=group,
            wait=wait,
        )

    def push_many(
        self, items: Iterable[Item | Body], *, wait: Duration | None = None
    ) -> list[MessageId]:
        """Push all items or none; return their ids."""
        return self._pusher.push(items, wait)

    # Delivering ----------------------------------------------------------------------------

    def pop_many(self, count: int, *, wait: Duration | None = 0) -> list[Message]:
        """Take up to `count` messages for good."""
        check_message_count(count)
        answer = self._taken("pop", (count,), wait)
        return [
            message_of(key, item, priority=priority, attempt=attempt)
            for key, item, priority, attempt, _ in _deliveries(answer)
        ]

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
        holder = self._owner if owner is None else owner_bytes(owner)
        ttl_us = duration_us(ttl, name="ttl")
        words: tuple[Word, ...] = (count, "" if ttl_us is None else ttl_us, holder)
        try:
            answer = self._taken("lease", words, wait)
        except Refusal as refusal:
            if refusal.code == "TTL":
                self._refuse_ttl(ttl_us)
            raise
        token, ttl_taken_us = cast("tuple[int, int]", answer[:2])
        ttl_seconds = ttl_taken_us / 1_000_000
        jobs = []
        for (lane, offset), item, priority, attempt, since in _deliveries(answer):
            time_us, attr, payload = record_of(item)
            jobs.append(
                Job(
                    self,
                    lane,
                    offset,
                    token,
                    ttl_seconds,
                    priority,
                    attempt,
                    payload,
                    attr,
                    time_us,
                    since,
                )
            )
        return jobs

    def _refuse_ttl(self, ttl_us: int | None) -> None:
        """Raise InvalidArgument in the words of the rules that forbid it."""
        self.rules.lease_us((ttl_us or 0) / 1_000_000)

    def _taken(self, function: str, words: tuple[Word, ...], wait: Duration | None) -> Answer:
        """Return what a call delivers, again and again until `wait` is over. Raises QueueLocked."""
        patience = Patience(self._calls, self._base, wait)
        while True:
            locked: QueueLocked | None = None
            pause_us = -1
            try:
                answer = cast(
                    "Answer", self.change(function, *words, patience.waiter, patience.step_us)
                )
            except NotReplicated as error:
                if not error.answer:
                    raise
                # Ours all the same: who would have it if we threw it away?
                logger.warning("taken, and not confirmed queue=%s reason=%s", self.name, error)
                return cast("Answer", error.answer)
            except Refusal as refusal:
                if refusal.code != "LOCKED":
                    raise
                answer = [0, 0, 0, -1]
                leases_max, left_us = map(int, refusal.words)
                pause_us = left_us
                locked = QueueLocked(
                    queue=self.name, leases_max=leases_max, seconds_left=left_us / 1_000_000
                )
            else:
                if len(answer) > _HEAD_WORDS:
                    return answer
                if answer[2]:
                    continue  # There was more in the way than one call may look at.
                pause_us = cast("int", answer[3])
            if patience.is_over or not patience.waiter:
                if locked is not None:
                    raise locked
                return answer
            patience.wait(seconds_of(pause_us))

    def wait(self, timeout: Duration | None = None) -> bool:
        """Return True once a message can be leased, False if none can within `timeout`."""
        patience = Patience(self._calls, self._base, timeout, name="timeout")
        while True:
            answer = cast("list[int]", self.look("probe", patience.waiter, patience.step_us))
            found, more, pause_us = answer
            if found:
                return True
            if more:
                continue  # There was more in the way than one call may look at.
            if patience.is_over or not patience.waiter:
                return False
            patience.wait(seconds_of(pause_us))

    # Settling ------------------------------------------------------------------------------

    def ack(self, job: Job | Receipt) -> None:
        """Say that the work is done. Raises LeaseLost."""
        self.ack_many([job])

    def ack_many(self, jobs: Iterable[Job | Receipt]) -> None:
        """Settle many in one step. Raises LeaseLost if any is lost; all others are settled."""
        taken = list(jobs)
        if not taken:
            return
        leases = [self._lease_of(job) for job in taken]
        words: list[Word] = []
        for lane, offset, token in leases:
            words += (wire_id(lane, offset), token)
        answer = cast("Answer", self.change("ack", *words))
        lost = dict(
            zip(cast("list[int]", answer[::2]), cast("list[bytes]", answer[1::2]), strict=True)
        )
        for place, job in enumerate(taken):
            if place not in lost and type(job) is Job:
                job.settle()
        if lost:
            errors = [_lost(leases[place], reason.decode()) for place, reason in lost.items()]
            errors[0].lost = tuple(error.receipt for error in errors)
            raise errors[0]

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
        lane, offset, token = lease = self._lease_of(job)
        words = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        try:
            self.change(
                "nack",
                *(wire_id(lane, offset), token, int(cause)),
                *("" if delay_us is None else delay_us, words),
                repr(self._chance.uniform(-1, 1)),
            )
        except Refusal as refusal:
            raise _lost(lease, refusal.words[0]) from None
        if type(job) is Job:
            job.settle()

    def extend(self, job: Job | Receipt, *, ttl: Duration | None = None) -> None:
        """Let a lease end `ttl` from now. Raises LeaseLost."""
        lane, offset, token = lease = self._lease_of(job)
        ttl_us = duration_us(ttl, name="ttl")
        is_checked = ttl_us is not None or type(job) is not Job
        if ttl_us is None and type(job) is Job:
            ttl_us = round(job.ttl_seconds * 1_000_000)  # As it was taken, whatever holds now.
        try:
            self.change(
                "extend",
                *(wire_id(lane, offset), token),
                *("" if ttl_us is None else ttl_us, int(is_checked)),
                # Another beat comes, and others wait for this one to end.
                retry=seconds_of(-1 if ttl_us is None else ttl_us // EXTENDING_SHARE),
            )
        except Refusal as refusal:
            if refusal.code == "TTL":
                self._refuse_ttl(ttl_us)
                raise
            raise _lost(lease, refusal.words[0]) from None

    # Looking -------------------------------------------------------------------------------

    def peek(self, count: int = 1) -> list[Message]:
        """Return the messages that would be delivered next."""
        check_message_count(count)
        return self._inspection.peek(count)

    def look_up(self, message_id: MessageId) -> MessageStatus | None:
        """Return how one message stands; None if it is settled or unknown."""
        return self._inspection.look_up(message_id)

    def timeline(self, message_id: MessageId) -> Timeline:
        """Return what is known to have happened to one message: its push, and how it stands."""
        return self._timelines.timeline(message_id)

    def browse(
        self,
        *,
        state: MessageState | None = None,
        limit: int = 100,
        after: MessageId | None = None,
    ) -> list[MessageStatus]:
        """Return messages that are not settled, in the order of their ids, the dead last."""
        check_message_count(limit, name="limit")
        return self._inspection.page(state, limit, after)

    def count(self) -> Counts:
        """Return how many messages are in which state."""
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
        self.change("pause", 1)

    def resume(self) -> None:
        """Deliver again."""
        self.change("pause", 0)

    def purge(self) -> int:
        """Drop all that is ready or delayed and return how much that was."""
        return cast("int", self.change("purge"))


def _until_true(call: Callable[[], object]) -> object:
    """Return what a call answers once the server has done what was due by itself."""
    while True:
        try:
            return call()
        except Refusal as refusal:
            if refusal.code != "AGAIN":
                raise


def queue_exists(store: "RedisStore", name: str) -> bool:
    """Tell whether anything was ever pushed to a queue that is not removed."""
    key = f"{store.base('queue', name)}:metadata"
    return bool(store.calls.command(key, "HEXISTS", key, "generation"))


def remove_queue(store: "RedisStore", name: str) -> bool:
    """Delete a queue with all it holds; tell whether it was there."""
    is_gone = bool(RedisQueue(store, name).change("remove"))
    store.removals[name] = store.removals.get(name, 0) + 1
    with suppress(SegueError):  # It is gone all the same, and who lists finds that out.
        store.unregister_queue(name)
    return is_gone


def _deliveries(answer: Answer) -> Iterator[tuple[Key, bytes, int, int, int]]:
    """Yield place, item, priority, attempt of each message, and its deliveries before a redrive."""
    place = _HEAD_WORDS
    while place < len(answer):
        head = cast("list[int]", answer[place : place + _RUN_WORDS])
        lane, first, size, attempt, since, priority = head
        place += _RUN_WORDS
        for number, item in enumerate(cast("list[bytes]", answer[place : place + size])):
            yield Key(lane, first + number), item, priority, attempt, since
        place += size


def _lost(lease: tuple[int, int, int], reason: str) -> LeaseLost:
    lane, offset, token = lease
    return LeaseLost(
        receipt=f"{message_id(lane, offset)}/{token}", reason=_LOST.get(reason, reason)
    )
