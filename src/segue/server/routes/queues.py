"""Queues: how they stand, what they keep, and how they behave."""

import json
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from segue.delivery.message import MessageId
from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    InvalidName,
    OffsetNotWritten,
    OffsetTrimmed,
    QueueFull,
)
from segue.server.call import Call
from segue.server.routing import Reply, Role, Route, Stream
from segue.server.streams import NDJSON, lines_of
from segue.stores.contract import MessageState, QueueStats
from segue.stores.http.wire.queues import (
    CountsJson,
    Messages,
    Number,
    Queues,
    Removed,
    Replay,
    StateJson,
    StatsJson,
    Statuses,
    StatusJson,
    counts_json,
    message_json,
    stats_json,
    status_json,
)
from segue.stores.http.wire.rules import ConfigureQueue, QueueRulesJson
from segue.stores.http.wire.timeline import BODY_BYTES_MAX
from segue.stores.message_ids import key_of

STATE_MESSAGES_MAX: Final = 1_000_000
"""How many messages the state shows at once: all of them are in memory meanwhile."""
STATE_BYTES_MAX: Final = 128 << 20
"""How large a queue may be whose state is shown at once."""
FITTING_BYTES: Final = 1 << 20
"""A page of messages that holds less was not cut short by its size."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Page(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages to list."""

    state: MessageState | None = None
    limit: int = 100
    after: str | None = None
    body_bytes: int | None = None
    """How much of each body to tell; all of it unless that is said."""


class HowMany(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many to show."""

    count: int = 1


class WhichKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which part of the state to show, all of it if none is named."""

    key: str | None = None


class Span(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was pushed between two places."""

    priority: int | None = None
    start: int | None = None
    stop: int | None = None
    start_us: int | None = None
    stop_us: int | None = None
    after: str | None = None
    """The id of the last one that was told of: those behind it."""


# Looking ---------------------------------------------------------------------------------------


def names(call: Call) -> Queues:
    """List queues."""
    return Queues(queues=[name for name in call.store.queues() if call.grant.covers(name)])


def stats(call: Call) -> StatsJson:
    """Tell what an operator wants to know."""
    return stats_json(call.queue.stats())


def count(call: Call) -> CountsJson:
    """Count messages by state."""
    return counts_json(call.queue.count())


def peek(call: Call) -> Messages:
    """Show what would be delivered next."""
    found = call.queue.peek(call.query(HowMany).count)
    return Messages(messages=[message_json(message) for message in found])


def browse(call: Call) -> Statuses:
    """List messages that are not settled."""
    page = call.query(Page)
    after = None if page.after is None else MessageId(page.after)
    require_body_bytes(page.body_bytes)
    found = call.queue.browse(state=page.state, limit=page.limit, after=after)
    size_bytes = sum(len(status.message.body) for status in found)
    # Fewer than asked for may be all there are, or all that fit.
    is_over = len(found) < page.limit and size_bytes < FITTING_BYTES
    return Statuses(
        messages=[status_json(status, body_bytes=page.body_bytes) for status in found],
        next=None if is_over or not found else found[-1].message.id,
    )


def require_body_bytes(asked: int | None) -> None:
    """Raise InvalidArgument unless that much of a body can be told."""
    if asked is not None and not 0 <= asked <= BODY_BYTES_MAX:
        raise InvalidArgument(f"body_bytes must be from 0 to {BODY_BYTES_MAX}: {asked}")


def look_up(call: Call) -> StatusJson | None:
    """Tell how one message stands."""
    status = call.queue.look_up(MessageId(call.names[1]))
    return None if status is None else status_json(status)


def state(call: Call) -> Reply:
    """Show what waits in the words of its ancestors."""
    key = call.query(WhichKey).key
    if key is None:
        _require_small(call.queue.stats())
    # Bodies may hold half a character, which JSON can say and UTF-8 cannot.
    return Reply(body=json.dumps({"state": call.queue.state(key)}).encode())


def _require_small(stats: QueueStats) -> None:
    if stats.counts.ready > STATE_MESSAGES_MAX or stats.size_bytes > STATE_BYTES_MAX:
        raise BatchTooLarge(
            f"more than {STATE_MESSAGES_MAX:,} messages or {STATE_BYTES_MAX >> 20} MiB are too "
            "much at once: ask for one key"
        )


def history(call: Call) -> Stream:
    """Tell what was pushed and is still kept, a line each."""
    span = call.query(Span)
    start, stop = _bounds(span.start, span.stop, span.start_us, span.stop_us)
    found = call.queue.history(priority=span.priority, start=start, stop=stop)
    if span.after is not None:
        # In this order they are told of, too: by lane, what was pushed with a delay last.
        after = key_of(MessageId(span.after))
        found = (message for message in found if key_of(message.id) > after)
    return Stream(media_type=NDJSON, pieces=lines_of(map(message_json, found)))


def replay(call: Call) -> Number:
    """Push what is still kept once more."""
    body = call.body(Replay)
    start, stop = _bounds(body.start, body.stop, body.start_us, body.stop_us)
    return Number(count=call.queue.replay(priority=body.priority, start=start, stop=stop))


def _bounds(
    start: int | None, stop: int | None, start_us: int | None, stop_us: int | None
) -> tuple[int | datetime | None, int | datetime | None]:
    return _bound(start, start_us), _bound(stop, stop_us)


def _bound(offset: int | None, time_us: int | None) -> int | datetime | None:
    if time_us is None:
        return offset
    if offset is not None:
        raise InvalidArgument("a place is an offset or a time, not both")
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError as error:
        raise InvalidArgument(f"no such time: {time_us}") from error


# Operating -------------------------------------------------------------------------------------


def rules(call: Call) -> QueueRulesJson:
    """Tell how the queue behaves."""
    return QueueRulesJson.of(call.queue.rules)


def configure(call: Call) -> None:
    """Change how the queue behaves."""
    call.queue.configure(call.body(ConfigureQueue).rules())


def pause(call: Call) -> None:
    """Deliver nothing until resumed."""
    call.queue.pause()


def resume(call: Call) -> None:
    """Deliver again."""
    call.queue.resume()


def purge(call: Call) -> Number:
    """Drop what is ready or delayed."""
    return Number(count=call.queue.purge())


def remove(call: Call) -> Removed:
    """Delete a queue with all it holds."""
    name = call.names[0]
    removed = call.store.remove_queue(name)
    call.desk.forget_queue(name)
    return Removed(removed=removed)


_QUEUE: Final = "/queues/{queue}"
_ASKING: Final = (InvalidArgument, InvalidName)
_REACHING_BACK: Final = (*_ASKING, OffsetNotWritten, OffsetTrimmed)

ROUTES: Final = (
    Route(
        method="GET",
        path="/queues",
        summary="List the queues there are",
        role=Role.READ,
        about="queues",
        handle=names,
        answer=Queues,
    ),
    Route(
        method="GET",
        path=_QUEUE,
        summary="Tell what an operator wants to know of a queue",
        role=Role.READ,
        about="queues",
        handle=stats,
        answer=StatsJson,
        errors=_ASKING,
    ),
    Route(
        method="DELETE",
        path=_QUEUE,
        summary="Delete a queue with all it holds",
        role=Role.ADMIN,
        about="queues",
        handle=remove,
        answer=Removed,
        errors=_ASKING,
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/count",
        summary="Count messages by state",
        role=Role.READ,
        about="queues",
        handle=count,
        answer=CountsJson,
        errors=_ASKING,
        is_quick=True,
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/peek",
        summary="Show what would be delivered next, taking nothing",
        role=Role.READ,
        about="queues",
        handle=peek,
        query=HowMany,
        answer=Messages,
        errors=_ASKING,
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/messages",
        summary="List messages that are not settled",
        role=Role.READ,
        about="queues",
        handle=browse,
        query=Page,
        answer=Statuses,
        errors=_ASKING,
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/messages/{{message}}",
        summary="Tell how one message stands; 204 if it is settled or unknown",
        role=Role.READ,
        about="queues",
        handle=look_up,
        answer=StatusJson,
        errors=_ASKING,
        statuses=(204,),
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/state",
        summary="Show what waits, as metadata and queue_<p>_seg_<n>",
        role=Role.READ,
        about="queues",
        handle=state,
        query=WhichKey,
        answer=StateJson,
        errors=(*_ASKING, BatchTooLarge),
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/history",
        summary="Tell what was pushed and is still kept, a line each",
        role=Role.READ,
        about="queues",
        handle=history,
        query=Span,
        gives=(NDJSON,),
        errors=_REACHING_BACK,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/replay",
        summary="Push what is still kept once more",
        role=Role.ADMIN,
        about="queues",
        handle=replay,
        body=Replay,
        answer=Number,
        errors=(*_REACHING_BACK, QueueFull),
    ),
    Route(
        method="GET",
        path=f"{_QUEUE}/rules",
        summary="Tell how a queue behaves",
        role=Role.READ,
        about="queues",
        handle=rules,
        answer=QueueRulesJson,
        errors=_ASKING,
    ),
    Route(
        method="PUT",
        path=f"{_QUEUE}/rules",
        summary="Change how a queue behaves, for everybody",
        role=Role.ADMIN,
        about="queues",
        handle=configure,
        body=ConfigureQueue,
        errors=_ASKING,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/pause",
        summary="Deliver nothing until resumed",
        role=Role.ADMIN,
        about="queues",
        handle=pause,
        errors=_ASKING,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/resume",
        summary="Deliver again",
        role=Role.ADMIN,
        about="queues",
        handle=resume,
        errors=_ASKING,
    ),
    Route(
        method="POST",
        path=f"{_QUEUE}/purge",
        summary="Drop all that is ready or delayed",
        role=Role.ADMIN,
        about="queues",
        handle=purge,
        answer=Number,
        errors=_ASKING,
    ),
)
