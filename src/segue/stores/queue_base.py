"""What a queue does in the same way wherever it is kept."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from threading import Event
from typing import Protocol, cast

from segue.delivery.message import Body, DeadLetter, Message, MessageId
from segue.delivery.priority import Priority
from segue.errors import InvalidArgument, QueueEmpty
from segue.log.options import Duration
from segue.stores.consumer import Consumer
from segue.stores.contract import Item, Queue, Receipt, RedriveReport
from segue.stores.job import Job
from segue.stores.letters import DeadLetters, Where
from segue.stores.message_ids import lease_of

Bound = int | datetime | None


class Past(Protocol):
    """Reads what a queue still keeps of what was pushed to it."""

    def messages(self, priority: Priority | None, start: Bound, stop: Bound) -> Iterator[Message]:
        """Yield messages in order of priority, then of pushing; last those pushed with a delay."""

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt; return how many."""


class QueueBase:
    """The part of a queue that stands on its other calls alone."""

    name: str
    _letters: DeadLetters
    _history: Past

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
        item = Item(
            body=body,
            priority=priority,
            delay=delay,
            ttl=ttl,
            key=key,
            headers=headers,
            group=group,
        )
        return cast("Queue", self).push_many([item], wait=wait)[0]

    def pop(self, *, wait: Duration | None = 0) -> Message | None:
        """Take the next message for good, or None if there is none."""
        messages = cast("Queue", self).pop_many(1, wait=wait)
        return messages[0] if messages else None

    def lease(
        self, *, ttl: Duration | None = None, wait: Duration | None = 0, owner: str | None = None
    ) -> Job:
        """Take the next message for `ttl`. Raises QueueEmpty, QueueLocked."""
        jobs = cast("Queue", self).lease_many(1, ttl=ttl, wait=wait, owner=owner)
        if not jobs:
            raise QueueEmpty(queue=self.name)
        return jobs[0]

    def consume(
        self,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        prefetch: int = 1,
        owner: str | None = None,
        stop: Event | None = None,
    ) -> Consumer:
        """Yield jobs as they come, until `stop` is set or none comes within `wait`."""
        queue = cast("Queue", self)
        return Consumer(queue, ttl=ttl, wait=wait, prefetch=prefetch, owner=owner, stop=stop)

    def _lease_of(self, job: Job | Receipt) -> tuple[int, int, int]:
        """Return the lane, offset and token a job or receipt stands for. Raises InvalidArgument."""
        if type(job) is Job:
            holder: object = job.holder
            if holder is not self and job.holder.name != self.name:
                raise InvalidArgument(f"{job!r} is a job of queue {job.holder.name}")
            return job.lane, job.offset, job.token
        return lease_of(job)

    @property
    def letters(self) -> DeadLetters:
        """The dead letters, for who deals with them by number."""
        return self._letters

    def dead_letters(self, *, limit: int | None = None) -> Iterator[DeadLetter]:
        """Yield the dead letters, oldest first."""
        return self._letters.chosen(None, limit)

    def redrive(
        self,
        *,
        where: Where | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> RedriveReport:
        """Bring dead letters back to the front of their priority."""
        return self._letters.redrive(where, limit, rate, dry_run=dry_run)

    def discard(self, *, where: Where | None = None, limit: int | None = None) -> int:
        """Drop dead letters for good and return how many."""
        return self._letters.discard(where, limit)

    def history(
        self, *, priority: Priority | None = None, start: Bound = None, stop: Bound = None
    ) -> Iterator[Message]:
        """Yield what was pushed and is still kept, settled or not, by offset or time."""
        return self._history.messages(priority, start, stop)

    def replay(
        self, *, priority: Priority | None = None, start: Bound = None, stop: Bound = None
    ) -> int:
        """Push what `history` yields once more; return how many."""
        return self._history.replay(priority, start, stop)
