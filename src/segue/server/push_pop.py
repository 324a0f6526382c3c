"""What PushPopActor does, in terms of a queue: for its own routes, and for those of Dapr.

Items are JSON objects and come back to the letter. A lock is a lease, and its id names that one
lease, so many consumers may hold locks at once unless the queue's rules allow one lease only.
"""

import base64
from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from segue.clock import system_clock
from segue.delivery.message import MessageId
from segue.errors import InvalidArgument, LeaseLost
from segue.server.call import Call
from segue.server.tracing import with_trace
from segue.stores.contract import Item, Queue, Receipt
from segue.stores.http.wire.base import Answer
from segue.stores.message_ids import lease_of

T = TypeVar("T")

PRIORITY_MAX: Final = (1 << 31) - 1
ITEMS_MAX: Final = 1_000
"""How many items one push takes."""
COUNT_MAX: Final = 100
"""How many items one pop gives."""
TTL_SECONDS_MIN: Final = 1.0
TTL_SECONDS_DEFAULT: Final = 30.0
TTL_SECONDS_MAX: Final = 300.0
"""Longer and shorter ones are taken for these."""
GONE: Final = "the message is settled, dead or was never leased"
"""What a store says of a lease it knows nothing of, where it does not say that it expired."""

# What is sent and answered. Fields nobody knows are passed over, as they were.

ItemJson = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
PriorityJson = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]


class PushedItem(msgspec.Struct, kw_only=True):
    """An item, which is an object, and its priority: 0 comes first."""

    item: ItemJson
    priority: PriorityJson = 0
    headers: dict[str, str] | None = None
    """What other routes call headers: an extension."""


class PushItems(msgspec.Struct, kw_only=True):
    """One `item`, or `items`: all of them are pushed, or none."""

    item: ItemJson | UnsetType = UNSET
    priority: PriorityJson = 0
    items: Annotated[list[PushedItem], Meta(min_length=1, max_length=ITEMS_MAX)] | UnsetType = UNSET


class Pushed(Answer):
    """What was pushed."""

    success: bool
    message: str
    items_pushed: int
    ids: list[str]


class PopHow(msgspec.Struct, kw_only=True):
    """How to pop; each may also be a header of that name."""

    require_ack: bool | None = None
    """Only lock the item, to be acknowledged within `ttl_seconds`."""
    ttl_seconds: float | None = None
    count: int | None = None
    """Up to how many items, 0 to 100; then they are `items`, and 204 if there are none."""


class Popped(Answer):
    """`item` if one was asked for, `items` if a number of them, and the lock if there is one."""

    item: Raw | UnsetType = UNSET
    items: list[Raw] | UnsetType = UNSET
    count: int | UnsetType = UNSET
    locked: bool | UnsetType = UNSET
    lock_id: str | UnsetType | None = UNSET
    lock_expires_at: float | UnsetType | None = UNSET
    """In seconds since 1970."""
    message: str | UnsetType = UNSET


class Lock(msgspec.Struct, kw_only=True):
    """Which lock is meant."""

    lock_id: str


class LongerLock(Lock, kw_only=True):
    """How much longer a lock is to last."""

    additional_ttl_seconds: float = TTL_SECONDS_DEFAULT


class Settled(Answer, omit_defaults=True):
    """What became of a locked item."""

    success: bool
    message: str
    items_acknowledged: int = 0
    lock_id: str | None = None
    lock_expires_at: float | None = None
    dead_letters: str | None = None
    """Where they are listed."""
    error_code: str | None = None


# What is done, for these routes and those of Dapr ------------------------------------------------


class LockGone(Exception):
    """A lock that cannot be had any more, and what to say of it."""

    def __init__(self, status: int, error_code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message


def items_of(body: PushItems) -> list[PushedItem]:
    """Return what is to be pushed. Raises InvalidArgument."""
    if (body.item is UNSET) == (body.items is UNSET):
        raise InvalidArgument("a push has either an item or items")
    if body.items is not UNSET:
        items = body.items
    else:
        assert body.item is not UNSET
        items = [PushedItem(item=body.item, priority=body.priority)]
    for each in items:
        text = bytes(each.item)
        if not text.startswith(b"{"):
            raise InvalidArgument("an item is a JSON object")
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"an item is text in UTF-8: {error}") from None
    return items


async def push_items(call: Call, items: list[PushedItem]) -> list[MessageId]:
    """Push all items, or none, and wake those who wait for some."""
    drafts = with_trace(items, call.headers)
    queue = call.queue
    pushed = [
        Item(body=bytes(each.item), priority=each.priority, headers=each.headers) for each in drafts
    ]
    ids = await call.run(lambda: queue.push_many(pushed, wait=0))
    call.desk.waiting.wake(call.names[0], len(ids))
    return ids


async def taken(call: Call, take: Callable[[], T]) -> T:
    """Return what `take` takes now. Raises Gone if it would be for somebody who has left."""
    return await call.desk.waiting.deliver(call, take, 0, lambda _: False)


def pop_items(queue: Queue, count: int) -> list[Raw]:
    """Take up to `count` items for good."""
    return [shown(message.body) for message in queue.pop_many(count)] if count else []


def lock_item(queue: Queue, ttl_seconds: float) -> Popped:
    """Take one item under a lock."""
    ttl = min(max(ttl_seconds, TTL_SECONDS_MIN), TTL_SECONDS_MAX)
    jobs = queue.lease_many(1, ttl=ttl)
    if not jobs:
        return Popped(
            items=[],
            count=0,
            locked=False,
            lock_id=None,
            lock_expires_at=None,
            message="Queue is empty",
        )
    return Popped(
        items=[shown(jobs[0].body)],
        count=1,
        locked=True,
        lock_id=lock_id_of(jobs[0].receipt),
        lock_expires_at=_in_seconds(ttl),
        message=f"Item is locked for {ttl:g} seconds",
    )


def acknowledge(queue: Queue, lock_id: str) -> Settled:
    """Say that the work on a locked item is done. Raises LockGone."""
    receipt = receipt_of(lock_id)
    try:
        queue.ack(receipt)
    except LeaseLost as error:
        raise _gone(error) from error
    return Settled(success=True, message="1 item is acknowledged", items_acknowledged=1)


def extend_lock(queue: Queue, lock_id: str, additional_seconds: float) -> Settled:
    """Let a lock end later than it would. Raises LockGone, InvalidArgument."""
    if not additional_seconds > 0:
        raise InvalidArgument("additional_ttl_seconds must be positive")
    receipt = receipt_of(lock_id)
    status = queue.look_up(MessageId(receipt.rpartition("/")[0]))
    left = status.seconds_left if status is not None and status.seconds_left is not None else 0.0
    ttl = min(max(left + additional_seconds, TTL_SECONDS_MIN), TTL_SECONDS_MAX)
    try:
        queue.extend(receipt, ttl=ttl)
    except LeaseLost as error:
        raise _gone(error) from error
    return Settled(
        success=True,
        message=f"Item is locked for {ttl:g} seconds from now",
        lock_id=lock_id,
        lock_expires_at=_in_seconds(ttl),
    )


def bury(queue: Queue, lock_id: str) -> Settled:
    """Move a locked item to the dead letters. Raises LockGone."""
    receipt = receipt_of(lock_id)
    try:
        queue.nack(receipt, outcome="dead", reason="dead-lettered by its consumer")
    except LeaseLost as error:
        raise _gone(error) from error
    return Settled(
        success=True,
        message="1 item is a dead letter",
        dead_letters=f"/api/v1/queues/{queue.name}/dead-letters",
    )


def shown(body: bytes) -> Raw:
    """Return a body as JSON: to the letter if it is some, else its text, else its bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Raw(msgspec.json.encode({"base64": base64.b64encode(body).decode()}))
    try:
        return _RAW.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Raw(msgspec.json.encode(text))


_RAW: Final = msgspec.json.Decoder(Raw)


def lock_id_of(receipt: Receipt) -> str:
    """Return what a lease is called where slashes mean something else."""
    return receipt.replace("/", ".")


def receipt_of(lock_id: str) -> Receipt:
    """Return the lease that a lock's id names. Raises LockGone if there can be none."""
    message, _, token = lock_id.rpartition(".")
    receipt = f"{message}/{token}"
    try:
        lease_of(receipt)
    except InvalidArgument:
        raise LockGone(404, "LOCK_NOT_FOUND", f"there is no lock {lock_id!r}") from None
    return receipt


def _gone(error: LeaseLost) -> LockGone:
    lock_id = lock_id_of(error.receipt)
    if error.reason == GONE:
        return LockGone(404, "LOCK_NOT_FOUND", f"there is no lock {lock_id!r}: {error.reason}")
    return LockGone(410, "LOCK_EXPIRED", f"lock {lock_id!r} has expired: {error.reason}")


def _in_seconds(ttl_seconds: float) -> float:
    return system_clock() / 1_000_000 + ttl_seconds
