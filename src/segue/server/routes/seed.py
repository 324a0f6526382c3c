"""The routes of PushPopActor's own server: `/queue/{id}/push`, `/pop`, `/acknowledge` …

A client that was written for it works here as it is. Answers are what it expects; errors are the
problems of all other routes, with `error_code` where the original had one.

An empty pop was `{"item": null}` in version 4.0, or `locked: false` where a lock was asked for, and
204 in later ones. Both hold: who asks as 4.0 did, with the query or nothing, is answered like that;
who asks in a way that only later versions know, by `count` or by headers, gets 204.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from segue.errors import InvalidArgument, InvalidName, QueueFull, QueueLocked, RecordTooLarge
from segue.server.call import Call
from segue.server.push_pop import (
    COUNT_MAX,
    TTL_SECONDS_DEFAULT,
    Lock,
    LockGone,
    LongerLock,
    PopHow,
    Popped,
    Pushed,
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
from segue.server.routing import Reply, Role, Route
from segue.stores.http.problems import MEDIA_TYPE, Problem

_NULL: Final = msgspec.Raw(b"null")
_HEADERS: Final = {
    name: (name.encode(), name.replace("_", "-").encode())
    for name in ("require_ack", "ttl_seconds", "count")
}


async def push(call: Call) -> Pushed:
    """Push one item or many."""
    ids = await push_items(call, items_of(call.body(PushItems)))
    message = "1 item is pushed" if len(ids) == 1 else f"{len(ids)} items are pushed"
    return Pushed(success=True, message=message, items_pushed=len(ids), ids=list(ids))


async def pop(call: Call) -> Popped | None:
    """Take an item for good, or lock it; or take a number of them."""
    how, is_later = _how(call)
    if how.count is not None and not 0 <= how.count <= COUNT_MAX:
        raise InvalidArgument(f"count must be from 0 to {COUNT_MAX}: {how.count}")
    if how.require_ack:
        if how.count not in {None, 1}:
            raise InvalidArgument("a lock is on one item: count must be 1")
        ttl = TTL_SECONDS_DEFAULT if how.ttl_seconds is None else how.ttl_seconds
        popped = await taken(call, partial(lock_item, call.queue, ttl))
        return None if is_later and not popped.count else popped
    items = await taken(call, partial(pop_items, call.queue, 1 if how.count is None else how.count))
    if not items and is_later:
        return None
    if how.count is None:
        return Popped(item=items[0] if items else _NULL)
    return Popped(items=items, count=len(items))


def _how(call: Call) -> tuple[PopHow, bool]:
    """Return how to pop, and whether it is asked as versions later than 4.0 did."""
    asked = call.query(PopHow)
    said = {
        name: call.headers[header].decode("latin-1")
        for name, headers in _HEADERS.items()
        for header in headers
        if header in call.headers and getattr(asked, name) is None
    }
    if not said:
        return asked, asked.count is not None
    try:
        told = msgspec.convert(said, PopHow, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"headers: {error}") from None
    return msgspec.structs.replace(asked, **{name: getattr(told, name) for name in said}), True


def _settling(act: Callable[[Call], Settled]) -> Callable[[Call], Settled | Reply]:
    """Return a handler that says of a lock that is gone why."""

    def handle(call: Call) -> Settled | Reply:
        try:
            return act(call)
        except LockGone as gone:
            problem = Problem(
                status=gone.status,
                code=gone.error_code.lower(),
                detail=gone.message,
                fields={"error_code": gone.error_code},
            )
            return Reply(body=problem.to_json(), status=gone.status, media_type=MEDIA_TYPE)

    return handle


def _acknowledge(call: Call) -> Settled:
    return acknowledge(call.queue, call.body(Lock).lock_id)


def _extend(call: Call) -> Settled:
    body = call.body(LongerLock)
    return extend_lock(call.queue, body.lock_id, body.additional_ttl_seconds)


def _bury(call: Call) -> Settled:
    return bury(call.queue, call.body(Lock).lock_id)


_QUEUE: Final = "/queue/{queue}"
_ABOUT: Final = "PushPopActor"
_GONE: Final = (404, 410)
_ASKING: Final = (InvalidArgument, InvalidName)


def _settling_route(path: str, summary: str, act: Callable[[Call], Settled]) -> Route:
    return Route(
        method="POST",
        path=f"{_QUEUE}/{path}",
        summary=summary,
        role=Role.CONSUME,
        about=_ABOUT,
        handle=_settling(act),
        body=LongerLock if act is _extend else Lock,
        answer=Settled,
        errors=_ASKING,
        statuses=_GONE,
        is_quick=True,
        is_absolute=True,
    )


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{_QUEUE}/push",
        summary="Push an item, or up to a thousand, all or none",
        role=Role.PRODUCE,
        about=_ABOUT,
        handle_async=push,
        body=PushItems,
        answer=Pushed,
        errors=(InvalidArgument, InvalidName, RecordTooLarge, QueueFull),
        is_quick=True,
        is_absolute=True,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/pop",
        summary="Take an item for good, or lock it until it is acknowledged",
        role=Role.CONSUME,
        about=_ABOUT,
        handle_async=pop,
        query=PopHow,
        answer=Popped,
        errors=(InvalidArgument, InvalidName, QueueLocked),
        statuses=(204,),
        is_quick=True,
        is_absolute=True,
    ),
    _settling_route("acknowledge", "Say that work on a locked item is done", _acknowledge),
    _settling_route("extend-lock", "Let a lock end later than it would", _extend),
    _settling_route("deadletter", "Move a locked item to the dead letters", _bury),
    _settling_route("dead-letter", "Move a locked item to the dead letters", _bury),
)
