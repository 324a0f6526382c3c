"""The queue as its callers see it: arguments checked, one request, answers unpacked."""

import json
import os
import socket
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, cast, get_args

from segue.delivery.events import OWNER_BYTES_MAX, REASON_BYTES_MAX
from segue.delivery.message import (
    Body,
    Message,
    MessageId,
    body_from,
    headers_from,
    key_from,
)
from segue.delivery.priority import priority_from
from segue.delivery.rules import QueueRules
from segue.errors import (
    InvalidArgument,
    LeaseLost,
    QueueFull,
    QueueLocked,
    RecordTooLarge,
    StoreClosed,
)
from segue.log.options import Duration
from segue.stores.arguments import COUNT_MAX, cause_of, check_message_count, owner_bytes
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
from segue.stores.http.calls import LONG_SECONDS, Calls, path_of, renewing_seconds
from segue.stores.http.letters import HttpDeadLetters, HttpHistory
from segue.stores.http.patience import Patience, seconds, waited
from segue.stores.http.sense import at_most, exactly, making_sense, nonsense
from segue.stores.http.wire.base import text_or_bytes
from segue.stores.http.wire.queues import (
    MESSAGE_BYTES_MAX,
    Await,
    CountsJson,
    Draft,
    Extend,
    Found,
    GiveBack,
    Ids,
    JobJson,
    Jobs,
    Messages,
    Number,
    Push,
    Receipts,
    StatsJson,
    Statuses,
    StatusJson,
    Take,
    TakeLeases,
)
from segue.stores.http.wire.rules import ConfigureQueue, QueueRulesJson
from segue.stores.http.wire.timeline import BODY_BYTES_MAX, TimelineJson
from segue.stores.job import Job
from segue.stores.message_ids import key_of, lease_of
from segue.stores.queue_base import QueueBase

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore

_STATES: Final = get_args(MessageState)


class HttpQueue(QueueBase):
    """A queue behind a server. Safe from any thread."""

    def __init__(self, store: "HttpStore", name: str) -> None:
        self.name = name
        self.heartbeat = store.heartbeat
        self._store = store
        self._removals = store.removals.get(name, 0)
        self._path = path_of("queues", name)
        self._owner = f"{socket.gethostname()}:{os.getpid()}"[:OWNER_BYTES_MAX]
        self._letters = HttpDeadLetters(lambda: self.calls, self._path)
        self._history = HttpHistory(lambda: self.calls, self._path)

    @property
    def calls(self) -> Calls:
        """What asks the server. Raises StoreClosed if the queue was removed here."""
        self._store.require_open()
        if self._store.removals.get(self.name, 0) != self._removals:
            raise StoreClosed(f"queue {self.name} was removed")
        return self._store.calls

    # Rules ---------------------------------------------------------------------------------

    @property
    def rules(self) -> QueueRules:
        """How the queue behaves."""
        answer = self.calls.get(f"{self._path}/rules", QueueRulesJson)
        with making_sense():
            return answer.rules()

    def configure(self, rules: QueueRules) -> None:
        """Change the rules for everybody."""
        self.calls.tell(f"{self._path}/rules", ConfigureQueue.of(rules), method="PUT")

    # Pushing -------------------------------------------------------------------------------

    def push_many(
        self, items: Iterable[Item | Body], *, wait: Duration | None = None
    ) -> list[MessageId]:
        """Push all items or none; return their ids."""
        if isinstance(items, bytes | bytearray | memoryview | str):
            raise InvalidArgument("push_many takes several items; push takes one")
        patience = Patience(wait)
        drafts = [_draft_of(item) for item in items]
        if not drafts:
            return []
        is_patient = False
        while True:
            try:
                if is_patient:
                    return waited(patience, partial(self._pushed, drafts))
                return self._pushed(drafts, 0)
            except QueueFull as error:
                if patience.is_over or error.is_final:
                    raise
                is_patient = True

    def _pushed(self, drafts: list[Draft], step: float) -> list[MessageId]:
        body = Push(messages=drafts, wait=step)
        answer = self.calls.post(f"{self._path}/messages", body, Ids, wait=step)
        return exactly(len(drafts), cast("list[MessageId]", answer.ids))

    # Delivering ----------------------------------------------------------------------------

    def pop_many(self, count: int, *, wait: Duration | None = 0) -> list[Message]:
        """Take up to `count` messages for good."""
        check_message_count(count)
        patience = Patience(wait)
        while True:
            try:
                answer = waited(patience, partial(self._popped, count))
            except QueueLocked:
                if patience.is_over:
                    raise
                continue
            if answer.messages or patience.is_over:
                return [each.message() for each in at_most(count, answer.messages)]

    def _popped(self, count: int, step: float) -> Messages:
        asked = Take(count=count, wait=step)
        return self.calls.post(f"{self._path}/pop", asked, Messages, wait=step)

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
        if owner is not None:
            owner_bytes(owner)
        length = seconds(ttl, name="ttl")
        patience = Patience(wait)
        while True:
            body = TakeLeases(count=count, ttl=length, owner=owner or self._owner)
            try:
                answer = waited(patience, partial(self._leased, body))
            except QueueLocked:
                if patience.is_over:
                    raise
                continue
            if answer.jobs or patience.is_over:
                return self._jobs(at_most(count, answer.jobs), answer.ttl)

    def _leased(self, body: TakeLeases, step: float) -> Jobs:
        body.wait = step
        return self.calls.post(f"{self._path}/lease", body, Jobs, wait=step)

    def _jobs(self, said: list[JobJson], ttl_seconds: float) -> list[Job]:
        if said and not ttl_seconds:
            raise nonsense("leases that are over")
        with making_sense():
            return [self._job(each, ttl_seconds) for each in said]

    def _job(self, said: JobJson, ttl_seconds: float) -> Job:
        lane, offset, token = lease_of(said.receipt)
        is_plain = said.is_plain
        job = Job(
            self,
            lane,
            offset,
            token,
            ttl_seconds,
            said.priority,
            said.attempt,
            said.data(),
            0 if is_plain else 1,
            said.pushed_us,
            said.attempt - said.tries,
        )
        if not is_plain:
            job.know(said.message())
        return job

    def wait(self, timeout: Duration | None = None) -> bool:
        """Return True once a message can be leased, False if none can within `timeout`."""
        patience = Patience(timeout, name="timeout")
        while True:
            answer = waited(
                patience,
                lambda step: self.calls.post(
                    f"{self._path}/wait", Await(timeout=step), Found, wait=step
                ),
            )
            if answer.found or patience.is_over:
                return answer.found

    # Settling ------------------------------------------------------------------------------

    def ack(self, job: Job | Receipt) -> None:
        """Say that the work is done. Raises LeaseLost."""
        self.ack_many([job])

    def ack_many(self, jobs: Iterable[Job | Receipt]) -> None:
        """Settle many in one step. Raises LeaseLost if any is lost; all others are settled.

        More than 10,000 are several steps.
        """
        taken = list(jobs)
        receipts = [self._receipt_of(job) for job in taken]
        failure: LeaseLost | None = None
        for first in range(0, len(taken), COUNT_MAX):
            part = slice(first, first + COUNT_MAX)
            lost = frozenset[str]()
            try:
                self.calls.tell(f"{self._path}/ack", Receipts(receipts=receipts[part]))
            except LeaseLost as error:
                lost = frozenset(error.lost)
                failure = failure or error
                failure.lost = tuple(dict.fromkeys((*failure.lost, *error.lost)))
            _settle(taken[part], receipts[part], lost)
        if failure is not None:
            raise failure

    def nack(
        self,
        job: Job | Receipt,
        *,
        outcome: Outcome = "fail",
        delay: Duration | None = None,
        reason: str = "",
    ) -> None:
        """Give a message back. Raises LeaseLost."""
        cause_of(outcome, reason)
        words = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
        body = GiveBack(
            receipt=self._receipt_of(job),
            outcome=outcome,
            delay=seconds(delay, name="delay"),
            reason=words,
        )
        self.calls.tell(f"{self._path}/nack", body)
        if type(job) is Job:
            job.settle()

    def extend(self, job: Job | Receipt, *, ttl: Duration | None = None) -> None:
        """Let a lease end `ttl` from now. Raises LeaseLost."""
        length = seconds(ttl, name="ttl")
        if length is None and type(job) is Job:
            length = job.ttl_seconds  # As it was taken, whatever holds now.
        self.calls.tell(
            f"{self._path}/extend",
            Extend(receipt=self._receipt_of(job), ttl=length),
            within=None if length is None else renewing_seconds(length),
        )

    def _receipt_of(self, job: Job | Receipt) -> Receipt:
        self._lease_of(job)
        return job.receipt if type(job) is Job else cast("Receipt", job)

    # Looking -------------------------------------------------------------------------------

    def peek(self, count: int = 1) -> list[Message]:
        """Return the messages that would be delivered next."""
        check_message_count(count)
        answer = self.calls.get(f"{self._path}/peek", Messages, query={"count": count})
        return [each.message() for each in at_most(count, answer.messages)]

    def look_up(self, message_id: MessageId) -> MessageStatus | None:
        """Return how one message stands; None if it is settled or unknown."""
        key_of(message_id)
        found = self.calls.get_or_none(f"{self._path}/messages{path_of(message_id)}", StatusJson)
        return None if found is None else found.status()

    def timeline(self, message_id: MessageId) -> Timeline:
        """Return what happened to one message, as far back as the store keeps that."""
        key_of(message_id)
        path = f"{self._path}/messages{path_of(message_id)}/timeline"
        query = {"body_bytes": BODY_BYTES_MAX}
        return self.calls.get(path, TimelineJson, query=query).timeline()

    def browse(
        self,
        *,
        state: MessageState | None = None,
        limit: int = 100,
        after: MessageId | None = None,
    ) -> list[MessageStatus]:
        """Return messages that are not settled, in the order of their ids, the dead last."""
        check_message_count(limit, name="limit")
        if after is not None:
            key_of(after)
        if state is not None and state not in _STATES:
            raise InvalidArgument(f"state must be one of {', '.join(_STATES)}: {state!r}")
        query = {"state": state, "limit": limit, "after": after}
        answer = self.calls.get(f"{self._path}/messages", Statuses, query=query)
        return [each.status() for each in at_most(limit, answer.messages)]

    def count(self) -> Counts:
        """Return how many messages are in which state."""
        return self.calls.get(f"{self._path}/count", CountsJson).counts()

    def stats(self) -> QueueStats:
        """Return what an operator wants to know."""
        return self.calls.get(self._path, StatsJson).stats()

    def state(self, key: str | None = None) -> dict[str, object]:
        """Return what waits, as `metadata` and `queue_<p>_seg_<n>`, or `key` of it alone."""
        data = self.calls.fetch("GET", f"{self._path}/state", query={"key": key})
        with making_sense():
            # Not as a struct: bodies may hold half a character, which only this reads.
            state = cast("object", json.loads(data)["state"])
        if not isinstance(state, dict):
            raise nonsense("a state that is no object")
        return cast("dict[str, object]", state)

    # Operating -----------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.calls.tell(f"{self._path}/pause")

    def resume(self) -> None:
        """Deliver again."""
        self.calls.tell(f"{self._path}/resume")

    def purge(self) -> int:
        """Drop all that is ready or delayed and return how much that was."""
        return self.calls.post(f"{self._path}/purge", None, Number, takes=LONG_SECONDS).count


def _settle(jobs: list[Job | Receipt], receipts: list[Receipt], lost: frozenset[str]) -> None:
    for job, receipt in zip(jobs, receipts, strict=True):
        if receipt not in lost and type(job) is Job:
            job.settle()


def _draft_of(item: Item | Body) -> Draft:
    """Return what is sent of an item. Raises InvalidArgument."""
    if not isinstance(item, Item):
        item = Item(body=item)
    body = body_from(item.body)
    if len(body) > MESSAGE_BYTES_MAX:
        raise RecordTooLarge(size_bytes=len(body), size_bytes_max=MESSAGE_BYTES_MAX)
    text, data = text_or_bytes(body)
    return Draft(
        body=text,
        body_base64=data,
        priority=priority_from(item.priority),
        delay=seconds(item.delay, name="delay"),
        ttl=seconds(item.ttl, name="ttl"),
        key=key_from(item.key),
        headers=headers_from(item.headers),
        group=key_from(item.group, name="group"),
    )
