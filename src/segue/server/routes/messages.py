"""Messages of queues: in, out, and what becomes of leases."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar, cast

from segue.delivery.message import MessageId
from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    InvalidName,
    LeaseLost,
    QueueFull,
    QueueLocked,
    RecordTooLarge,
)
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.server.tracing import with_trace
from segue.server.waiting import is_quick, run
from segue.stores.contract import Queue
from segue.stores.http.wire.base import text_or_bytes
from segue.stores.http.wire.queues import (
    Await,
    Draft,
    Extend,
    Found,
    GiveBack,
    Ids,
    JobJson,
    Jobs,
    Messages,
    Push,
    Receipts,
    Take,
    TakeLeases,
    item_of,
    message_json,
    plain,
)
from segue.stores.job import Job

T = TypeVar("T")
A = TypeVar("A", Messages, Jobs)

MESSAGES_MAX: Final = 100_000
"""How many messages one request pushes."""


# Messages in -----------------------------------------------------------------------------------


async def push(call: Call) -> Ids:
    """Push messages and wake those who wait for some."""
    body = call.body(Push)
    if len(body.messages) > MESSAGES_MAX:
        raise BatchTooLarge(f"one push takes at most {MESSAGES_MAX:,} messages")
    drafts = with_trace(body.messages, call.headers)
    queue = call.queue
    push_now = partial(_push, queue, drafts)
    try:
        # Most pushes: nothing is waited for, not even for whoever would wait.
        ids = push_now() if is_quick(call, len(drafts)) else await run(call, push_now, len(drafts))
    except QueueFull as error:
        if not body.wait or error.is_final:
            raise
        ids = await _pushed_when_there_is_room(call, push_now, body.wait, len(drafts))
    call.desk.waiting.wake(call.names[0], len(ids))
    return Ids(ids=cast("list[str]", ids))


async def _pushed_when_there_is_room(
    call: Call, push_now: Callable[[], list[MessageId]], wait: float, count: int
) -> list[MessageId]:
    def full_or_pushed() -> list[MessageId] | QueueFull:
        try:
            return push_now()
        except QueueFull as error:
            return error

    found = await call.desk.waiting.ask_again(
        call, full_or_pushed, wait, lambda found: isinstance(found, QueueFull), count=count
    )
    if isinstance(found, QueueFull):
        raise found
    return found


def _push(queue: Queue, drafts: list[Draft]) -> list[MessageId]:
    """Push, in the quickest way that there is for what is pushed."""
    if len(drafts) == 1 and drafts[0].is_plain:
        return [queue.push(drafts[0].data(), priority=drafts[0].priority, wait=0)]
    if all(draft.is_plain and draft.priority == 0 for draft in drafts):
        return queue.push_many([draft.data() for draft in drafts], wait=0)
    return queue.push_many([item_of(draft) for draft in drafts], wait=0)


# Messages out ----------------------------------------------------------------------------------

# What is taken is put as it is sent where it was taken: of many messages that takes as long.


async def pop(call: Call) -> Messages:
    """Take messages for good."""
    body = call.body(Take)
    queue = call.queue

    def take() -> Messages:
        return Messages(messages=[message_json(each) for each in queue.pop_many(body.count)])

    found = await call.desk.waiting.deliver(
        call, _or_locked(take), body.wait, _is_empty, count=body.count
    )
    return _taken(found)


async def lease(call: Call) -> Jobs:
    """Take messages, to be settled later."""
    body = call.body(TakeLeases)
    queue = call.queue
    owner = body.owner or (call.grant.name if call.grant.id else None)

    def take() -> Jobs:
        jobs = queue.lease_many(body.count, ttl=body.ttl, owner=owner)
        return Jobs(jobs=[job_json(job) for job in jobs], ttl=jobs[0].ttl_seconds if jobs else 0)

    found = await call.desk.waiting.deliver(
        call, _or_locked(take), body.wait, _is_empty, count=body.count
    )
    return _taken(found)


def _or_locked(take: Callable[[], T]) -> Callable[[], T | QueueLocked]:
    """Return what returns QueueLocked, which is waited for as messages are."""

    def taken() -> T | QueueLocked:
        try:
            return take()
        except QueueLocked as error:
            return error

    return taken


def _is_empty(found: Messages | Jobs | QueueLocked) -> bool:
    if isinstance(found, QueueLocked):
        return True
    return not (found.messages if isinstance(found, Messages) else found.jobs)


def _taken(found: A | QueueLocked) -> A:
    """Return what was taken. Raises QueueLocked."""
    if isinstance(found, QueueLocked):
        raise found
    return found


def job_json(job: Job) -> JobJson:
    """Return a leased message as it is sent."""
    message = job.message
    text, data = text_or_bytes(message.body)
    return JobJson(
        id=message.id,
        body=text,
        body_base64=data,
        priority=message.priority,
        attempt=message.attempt,
        pushed_us=message.pushed_us,
        expires_us=message.expires_us,
        key=message.key,
        group=message.group,
        headers=plain(message.headers),
        receipt=job.receipt,
        tries=job.tries,
    )


async def wait(call: Call) -> Found:
    """Wait until there is a message, taking nothing."""
    timeout = call.body(Await).timeout
    queue = call.queue
    found = await call.desk.waiting.deliver(
        call, lambda: queue.wait(0), timeout, lambda found: not found
    )
    return Found(found=found)


# Settling --------------------------------------------------------------------------------------


async def ack(call: Call) -> None:
    """Settle leases."""
    receipts = call.body(Receipts).receipts
    await run(call, partial(call.queue.ack_many, receipts), len(receipts))


def nack(call: Call) -> None:
    """Give a message back."""
    body = call.body(GiveBack)
    call.queue.nack(body.receipt, outcome=body.outcome, delay=body.delay, reason=body.reason)


def extend(call: Call) -> None:
    """Let a lease end later."""
    body = call.body(Extend)
    call.queue.extend(body.receipt, ttl=body.ttl)


_QUEUE: Final = "/queues/{queue}"
_TAKING: Final = (InvalidArgument, InvalidName, QueueLocked)
_SETTLING: Final = (InvalidArgument, InvalidName, LeaseLost)
_ASKING: Final = (InvalidArgument, InvalidName)

ROUTES: Final = (
    Route(
        method="POST",
        path=f"{_QUEUE}/messages",
        summary="Push messages, all or none",
        role=Role.PRODUCE,
        about="queues",
        handle_async=push,
        body=Push,
        answer=Ids,
        errors=(InvalidArgument, InvalidName, RecordTooLarge, BatchTooLarge, QueueFull),
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/pop",
        summary="Take messages for good, waiting for one",
        role=Role.CONSUME,
        about="queues",
        handle_async=pop,
        body=Take,
        answer=Messages,
        errors=_TAKING,
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/lease",
        summary="Take messages to be settled later, waiting for one",
        role=Role.CONSUME,
        about="queues",
        handle_async=lease,
        body=TakeLeases,
        answer=Jobs,
        errors=_TAKING,
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/wait",
        summary="Wait until there is a message, taking nothing",
        role=Role.CONSUME,
        about="queues",
        handle_async=wait,
        body=Await,
        answer=Found,
        errors=_ASKING,
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/ack",
        summary="Say that work is done; those that are lost are named",
        role=Role.CONSUME,
        about="queues",
        handle_async=ack,
        body=Receipts,
        errors=_SETTLING,
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/nack",
        summary="Give a message back",
        role=Role.CONSUME,
        about="queues",
        handle=nack,
        body=GiveBack,
        errors=_SETTLING,
        is_quick=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/extend",
        summary="Let a lease end later",
        role=Role.CONSUME,
        about="queues",
        handle=extend,
        body=Extend,
        errors=_SETTLING,
        is_quick=True,
    ),
)
