"""How messages and what is known of them are laid out for the functions in functions/queue.lua.

What comes back from the server is looked at before it is believed: anybody may have written it.
"""

import struct
from typing import Final

from segue.delivery.events import ASIDE, Cause
from segue.delivery.message import (
    CARRIED,
    HAS_GROUP,
    HAS_TTL,
    NUMBER_MAX,
    PREFIX_MASK,
    DeadLetter,
    Key,
    Message,
    MessageId,
    Prefix,
    body_from,
    headers_from,
    key_from,
    message_from,
    pack_message,
    unpack_prefix,
)
from segue.delivery.priority import priority_from
from segue.errors import Damage, RecordTooLarge
from segue.stores.arguments import duration_us
from segue.stores.contract import Item
from segue.stores.deduplication import DIGEST_BYTES, digest_of
from segue.stores.message_ids import message_id
from segue.values import dataclass

ITEM_BYTES_MAX: Final = 8 * 1024 * 1024 - 4096
"""The largest message, about that of a directory's. The server does nothing else meanwhile."""
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""The most that one call pushes."""

LEASED: Final = 1
READY: Final = 2
DELAYED: Final = 3
HELD_BACK: Final = 4

_HEAD: Final = struct.Struct(">QI")
_EXPIRES: Final = struct.Struct(">Q")
_STATE: Final = struct.Struct(">BBQIIIQB16sH")
_LETTER: Final = struct.Struct(">QQIIIBH")
_PLACE: Final = struct.Struct(">I")

Parcel = tuple[int, int, int, bytes, bytes]
"""A message on its way in: priority, delay, time to live, digest of its key, and attr with data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a message stands that was touched."""

    kind: int
    token: int
    attempt: int
    since: int
    priority: int
    not_before_us: int
    cause: int
    """Why it waits, as in delivery/events.py."""
    is_started: bool
    """Whether it was delivered since its push or its last redrive."""
    text: str
    """Who holds it, or why it came back."""


def parcel_of(item: Item) -> Parcel:
    """Lay out a message for pushing. Raises InvalidArgument, RecordTooLarge."""
    priority = priority_from(item.priority)
    body = body_from(item.body)
    prefix: Prefix = {}
    headers = headers_from(item.headers)
    if headers:
        prefix["h"] = headers
    delay_us = duration_us(item.delay, name="delay") or 0
    ttl_us = duration_us(item.ttl, name="ttl", least_us=1) or 0
    key = key_from(item.key)
    if key is not None:
        prefix["k"] = key
    group = key_from(item.group, name="group")
    if group is not None:
        prefix["g"] = group
    if delay_us:
        prefix["p"] = priority
    digest = b"" if key is None else digest_of(key)
    return (priority, delay_us, ttl_us, digest, _data(body, prefix, has_ttl=ttl_us > 0))


def parcel_again(priority: int, item: bytes) -> Parcel:
    """Lay out a message that is pushed once more, as it was but for its attempt."""
    prefix, body = prefix_of(item)
    again: Prefix = {**prefix, "a": prefix.get("a", 0) + 1}
    # By its key it would be taken for a duplicate, by its times for late: it is meant to come.
    for name in ("k", "x", "n", "p"):
        again.pop(name, None)  # type: ignore[misc]
    return (priority, 0, 0, b"", _data(body, again, has_ttl=False))


def _data(body: bytes, prefix: Prefix, *, has_ttl: bool) -> bytes:
    payload, attr = pack_message(body, prefix)
    if has_ttl:
        attr |= HAS_TTL
    check_size(len(payload))
    digest = digest_of(prefix["g"]) if "g" in prefix else b""
    return _PLACE.pack(attr) + digest + payload


def check_size(size_bytes: int) -> None:
    """Raise RecordTooLarge for a message nobody should push."""
    if size_bytes > ITEM_BYTES_MAX:
        raise RecordTooLarge(size_bytes=size_bytes, size_bytes_max=ITEM_BYTES_MAX)


def record_of(item: bytes) -> tuple[int, int, bytes]:
    """Return a message's time, attr and payload, as a log would keep them. Raises Damage."""
    try:
        time_us, attr = _HEAD.unpack_from(item)
        if attr <= PREFIX_MASK:
            return time_us, attr, item[_HEAD.size :]
        first = _HEAD.size
        expires_us = None
        if attr & HAS_TTL:
            (expires_us,) = _EXPIRES.unpack_from(item, first)
            first += _EXPIRES.size
    except struct.error:
        raise Damage(f"a message of {len(item)} bytes has no head") from None
    if attr & HAS_GROUP:
        first += DIGEST_BYTES
    payload = item[first:]
    attr &= ~CARRIED
    if expires_us is not None and expires_us <= NUMBER_MAX:
        prefix, body = unpack_prefix(payload, attr)
        payload, attr = pack_message(body, {**prefix, "x": expires_us})
    return time_us, attr, payload


def prefix_of(item: bytes) -> tuple[Prefix, bytes]:
    """Return what stands before a message's body, and the body. Raises Damage."""
    _, attr, payload = record_of(item)
    return unpack_prefix(payload, attr)


def message_of(key: Key, item: bytes, *, priority: int, attempt: int) -> Message:
    """Return a message as consumers see it. Raises Damage."""
    time_us, attr, payload = record_of(item)
    return message_from(
        message_id(*key), payload, attr, priority=priority, attempt=attempt, time_us=time_us
    )


def standing_of(packed: bytes) -> Standing:
    """Return how a message stands. Raises Damage."""
    try:
        kind, started, token, attempt, since, priority, not_before_us, cause, _, size = (
            _STATE.unpack_from(packed)
        )
    except struct.error:
        raise Damage(f"a state of {len(packed)} bytes has no head") from None
    text = packed[_STATE.size : _STATE.size + size]
    return Standing(
        kind=kind,
        token=token,
        attempt=attempt,
        since=since,
        priority=priority,
        not_before_us=not_before_us,
        cause=cause,
        is_started=bool(started),
        text=text.decode(errors="replace"),
    )


def letter_of(key: Key, packed: bytes) -> DeadLetter:
    """Return a dead letter. Raises Damage."""
    try:
        number, died_us, priority, deliveries, since, cause, size = _LETTER.unpack_from(packed)
        cause_name = Cause(cause).name.lower()
    except (struct.error, ValueError):
        raise Damage(f"the dead letter {message_id(*key)} cannot be read") from None
    reason = packed[_LETTER.size : _LETTER.size + size]
    message = message_of(key, packed[_LETTER.size + size :], priority=priority, attempt=deliveries)
    return DeadLetter(
        message=message,
        cause=cause_name,
        reason=reason.decode(errors="replace"),
        died_us=died_us,
        number=number,
        deliveries=deliveries,
        tries=max(0, deliveries - since),
    )


# Ids: those of what was pushed with a delay have all their digits, so that they sort by time.


def wire_id(lane: int, offset: int) -> str:
    """Return what the server calls a message."""
    return f"later-{offset:016d}" if lane == ASIDE else f"{lane}-{offset}"


def key_from_wire(name: bytes) -> Key:
    """Return the place of a message that the server calls `name`. Raises Damage."""
    lane, _, offset = name.rpartition(b"-")
    if not offset.isdigit() or not (lane == b"later" or lane.isdigit()):
        raise Damage(f"{name[:40]!r} is no id of a message")
    return Key(ASIDE if lane == b"later" else int(lane), int(offset))


def id_from_wire(name: bytes) -> MessageId:
    """Return the id of a message that the server calls `name`. Raises Damage."""
    return message_id(*key_from_wire(name))
