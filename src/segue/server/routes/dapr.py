"""PushPopActor as Dapr's actors are called: the sidecar's routes, without a sidecar.

`/v1.0/actors/PushPopActor/{id}/state/{key}` shows a queue's segments, `…/method/Push` and its
siblings do what the actor's methods did. Answers and errors are those a Dapr client expects: an
actor's own refusals are answers, what went wrong otherwise has an `errorCode`. No other actors,
timers or reminders live here.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Final, TypeVar

import msgspec

from segue.errors import InvalidArgument, SegueError, StorageFailed
from segue.server.call import Call
from segue.server.push_pop import (
    TTL_SECONDS_DEFAULT,
    Lock,
    LockGone,
    LongerLock,
    PushItems,
    Settled,
    acknowledge,
    bury,
    extend_lock,
    items_of,
    lock_item,
    pop_items,
    push_items,
    taken,
)
from segue.server.refusal import Refused
from segue.server.routing import AsyncHandler, Handler, Method, Reply, Role, Route
from segue.stores.http.problems import NOT_BEGUN, problem_of
from segue.stores.http.wire.base import Answer

S = TypeVar("S", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


class LockFor(msgspec.Struct, kw_only=True):
    """How long to lock an item, from 1 to 300 seconds."""

    ttl_seconds: float = TTL_SECONDS_DEFAULT


class DaprError(Answer):
    """What went wrong, as Dapr says it."""

    error_code: str = msgspec.field(name="errorCode")
    message: str


# Methods ---------------------------------------------------------------------------------------


async def push(call: Call) -> Reply:
    """Push an item: true, or false if it is none."""
    try:
        items = items_of(_body(call, PushItems))
    except (msgspec.ValidationError, InvalidArgument):
        return Reply(body=b"false")
    await push_items(call, items)
    return Reply(body=b"true")


async def pop(call: Call) -> Reply:
    """Take the next item: a list of one, or of none."""
    return Reply(body=_encode(await taken(call, partial(pop_items, call.queue, 1))))


async def pop_with_ack(call: Call) -> Reply:
    """Lock the next item."""
    lock = partial(lock_item, call.queue, _body(call, LockFor).ttl_seconds)
    return Reply(body=_encode(await taken(call, lock)))


def settle_with_ack(call: Call) -> Reply:
    """Say that work on a locked item is done."""
    return _settled(lambda: acknowledge(call.queue, _body(call, Lock).lock_id))


def extend(call: Call) -> Reply:
    """Let a lock end later than it would."""
    body = _body(call, LongerLock)
    return _settled(lambda: extend_lock(call.queue, body.lock_id, body.additional_ttl_seconds))


def dead_letter(call: Call) -> Reply:
    """Move a locked item to the dead letters."""
    return _settled(lambda: bury(call.queue, _body(call, Lock).lock_id))


def _settled(act: Callable[[], Settled]) -> Reply:
    try:
        return Reply(body=_encode(act()))
    except LockGone as gone:
        told = Settled(success=False, message=gone.message, error_code=gone.error_code)
        return Reply(body=_encode(told))


# State -----------------------------------------------------------------------------------------


def state(call: Call) -> Reply | None:
    """Show one key of what waits, nothing if there is none."""
    key = call.names[1]
    found = call.queue.state(key).get(key)
    if found is None:
        return None
    # Not by msgspec: half a surrogate pair can only be written as the escape that it was.
    return Reply(body=json.dumps(found).encode())


def health(call: Call) -> None:
    """Say that the sidecar, which there is none of, is ready."""
    del call


# Errors ----------------------------------------------------------------------------------------


def _body(call: Call, kind: type[S]) -> S:
    return msgspec.json.decode(call.data or b"{}", type=kind)


def _told(
    call: Call, error: SegueError | msgspec.DecodeError | RecursionError | UnicodeDecodeError
) -> Reply:
    """Return what went wrong. Raises Refused if nothing was done: it is no answer to remember."""
    if not isinstance(error, SegueError):
        return _as_dapr_says(400, "malformed_request", f"body: {error}")
    if isinstance(error, StorageFailed):
        call.desk.operations.watchdog.note_failure()
    problem = problem_of(error)
    reply = _as_dapr_says(problem.status, problem.code, problem.detail)
    if problem.code in NOT_BEGUN:
        call.desk.forget_queue(call.names[0])  # Another process may have removed it.
        refused = Refused(problem.status, problem.code, problem.detail)
        refused.problem = replace(problem, fields=json.loads(reply.body))
        raise refused from error
    return reply


def _as_dapr_says(status: int, code: str, message: str) -> Reply:
    told = DaprError(error_code=f"ERR_{code.upper()}", message=message)
    return Reply(body=_encode(told), status=status)


_EXPECTED: Final = (SegueError, msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def _telling(handle: Callable[[Call], Reply | None]) -> Handler:
    @wraps(handle)
    def told(call: Call) -> Reply | None:
        try:
            return handle(call)
        except _EXPECTED as error:
            return _told(call, error)

    return told


def _telling_async(handle: Callable[[Call], Awaitable[Reply]]) -> AsyncHandler:
    @wraps(handle)
    async def told(call: Call) -> Reply:
        try:
            return await handle(call)
        except _EXPECTED as error:
            return _told(call, error)

    return told


# Routes ----------------------------------------------------------------------------------------

_ACTOR: Final = "/v1.0/actors/PushPopActor/{queue}"
_ABOUT: Final = "Dapr"
_METHODS: Final[tuple[Method, ...]] = ("POST", "PUT")
_HEALTH: Final = ("/v1.0/healthz", "/v1.0/healthz/outbound")


def _method(
    name: str,
    summary: str,
    role: Role,
    body: type[msgspec.Struct] | None,
    handle: Callable[[Call], Reply] | None = None,
    handle_async: Callable[[Call], Awaitable[Reply]] | None = None,
) -> tuple[Route, ...]:
    return tuple(
        Route(
            method=method,
            path=f"{_ACTOR}/method/{name}",
            summary=summary,
            role=role,
            about=_ABOUT,
            handle=None if handle is None else _telling(handle),
            handle_async=None if handle_async is None else _telling_async(handle_async),
            body=body,
            has_raw_body=True,
            gives=("application/json",),
            statuses=(400, 413, 423, 429),
            is_quick=True,
            is_absolute=True,
        )
        for method in _METHODS
    )


ROUTES: Final = (
    *_method("Push", "Push an item", Role.PRODUCE, PushItems, handle_async=push),
    *_method("Pop", "Take the next item, as a list", Role.CONSUME, None, handle_async=pop),
    *_method("PopWithAck", "Lock the next item", Role.CONSUME, LockFor, handle_async=pop_with_ack),
    *_method("Acknowledge", "Say that work is done", Role.CONSUME, Lock, settle_with_ack),
    *_method("ExtendLock", "Let a lock end later", Role.CONSUME, LongerLock, extend),
    *_method("DeadLetter", "Move to the dead letters", Role.CONSUME, Lock, dead_letter),
    Route(
        method="GET",
        path=f"{_ACTOR}/state/{{key}}",
        summary="Show `metadata` or `queue_<p>_seg_<n>`; 204 if there is no such key",
        role=Role.READ,
        about=_ABOUT,
        handle=_telling(state),
        gives=("application/json",),
        errors=(),
        statuses=(204, 400),
        is_absolute=True,
    ),
    *(
        Route(
            method="GET",
            path=path,
            summary="Say that the sidecar is ready",
            role=Role.NOBODY,
            about=_ABOUT,
            handle=health,
            is_quick=True,
            is_absolute=True,
        )
        for path in _HEALTH
    ),
)
