"""What a message is, and how it is laid out in a record.

    │ prefix: JSON, only if there is something to say │ body │

The record's attr holds the length of the prefix and a few flags, so that a plain message is its
body and nothing else, and whoever leases can tell from the slot alone which messages need a look:

    attr   bits 0–23 prefix bytes · 24 has a time to live · 25 has a deduplication key
           26 was carried here from elsewhere · 27 has a group
"""

import json
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple, NewType, TypedDict, cast

from segue.delivery.priority import PRIORITY_MAX
from segue.errors import InvalidArgument
from segue.values import dataclass

MessageId = NewType("MessageId", str)
"""Names a message within its queue, for ever: "<priority>-<offset>"."""

Body = bytes | bytearray | memoryview | str

PREFIX_MASK: Final = (1 << 24) - 1
HAS_TTL: Final = 1 << 24
HAS_KEY: Final = 1 << 25
CARRIED: Final = 1 << 26
HAS_GROUP: Final = 1 << 27

NUMBER_MAX: Final = (1 << 63) - 1
HEADERS_BYTES_MAX: Final = 64 * 1024
KEY_CHARACTERS_MAX: Final = 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Key(NamedTuple):
    """Where a message was pushed to; this never changes, whatever happens to it later."""

    lane: int
    offset: int


class Prefix(TypedDict, total=False):
    """What the JSON before a body may say. One letter each: it stands before every such body."""

    h: dict[str, str]
    """headers"""
    n: int
    """not before, µs"""
    x: int
    """expires, µs"""
    k: str
    """deduplication key"""
    g: str
    """group"""
    p: int
    """priority, where the log does not say it"""
    a: int
    """deliveries before this message was made from another"""
    t: int
    """pushed, µs, if before it came here"""
    f: int
    """its lane before it came here"""
    o: int
    """its offset there"""
    c: str
    """cause of death"""
    r: str
    """reason of death, in the words of whoever knew"""
    d: int
    """deliveries until death"""
    s: int
    """those of them that were before a redrive"""
    b: str
    """the key under which what begins here was adopted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as consumers see it."""

    id: MessageId
    body: bytes
    priority: int
    attempt: int = 1
    """Which delivery this is, from 1; more than 1 means that somebody may have seen it before."""
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    key: str | None = None
    """What it was deduplicated by."""
    group: str | None = None
    """Whose messages come in order, few at a time."""
    pushed_us: int = 0
    expires_us: int | None = None

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, in UTC."""
        return _EPOCH + timedelta(microseconds=self.pushed_us)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> object:
        """Return what the body says as JSON. Raises ValueError if it says none."""
        return cast("object", json.loads(self.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that is delivered no more, and why."""

    message: Message
    cause: str
    """failed or expired (for the last time allowed), dead (its holder said so), outlived."""
    reason: str
    """In the words of the last holder."""
    died_us: int
    number: int = field(repr=False)
    """Its place among the dead letters."""
    deliveries: int = field(repr=False)
    """How often it was delivered."""
    tries: int = field(default=0, repr=False)
    """How often since its push or its last redrive."""

    @property
    def died_at(self) -> datetime:
        """When it was given up, in UTC."""
        return _EPOCH + timedelta(microseconds=self.died_us)


def body_from(body: Body) -> bytes:
    """Return a body as bytes; text becomes UTF-8. Raises InvalidArgument."""
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("a body must be valid text, or bytes") from None
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise InvalidArgument(f"a body is bytes or text, not {type(body).__name__}")


def headers_from(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return headers as they are stored. Raises InvalidArgument."""
    if not headers:
        return None
    given: object = headers
    if not isinstance(given, Mapping) or not all(
        isinstance(text, str) for pair in given.items() for text in pair
    ):
        raise InvalidArgument(f"headers are a mapping of text to text, not {headers!r}")
    size_bytes = sum(len(name) + len(value) for name, value in headers.items())
    if size_bytes > HEADERS_BYTES_MAX:
        raise InvalidArgument(f"headers of {size_bytes} bytes; at most {HEADERS_BYTES_MAX} fit")
    return dict(headers)


def key_from(key: str | None, *, name: str = "key") -> str | None:
    """Return a deduplication key, or a group. Raises InvalidArgument."""
    if key is None:
        return None
    given: object = key
    if not isinstance(given, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise InvalidArgument(
            f"{name} must be text of 1 to {KEY_CHARACTERS_MAX} characters: {key!r}"
        )
    return key


def pack_message(body: bytes, prefix: Prefix) -> tuple[bytes, int]:
    """Return the payload and attr of a record. Raises InvalidArgument."""
    if not prefix:
        return body, 0
    text = json.dumps(prefix, separators=(",", ":"), ensure_ascii=False)
    try:
        head = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("headers, keys and groups must be valid text") from None
    attr = len(head) | (HAS_TTL if "x" in prefix else 0) | (HAS_KEY if "k" in prefix else 0)
    return head + body, attr | (HAS_GROUP if "g" in prefix else 0)


def unpack_prefix(payload: bytes, attr: int) -> tuple[Prefix, bytes]:
    """Return what stands before a body, and the body. Bytes that make no sense say nothing."""
    length = attr & PREFIX_MASK
    if not length:
        return {}, payload
    try:
        prefix = json.loads(payload[:length].decode())  # Bytes would be guessed at first.
    except (ValueError, RecursionError):
        return {}, payload
    if not isinstance(prefix, dict):
        return {}, payload[length:]
    return cast("Prefix", {k: v for k, v in prefix.items() if _is_sound(k, v)}), payload[length:]


def _is_sound(name: str, value: object) -> bool:
    """Tell whether a field of a prefix is what it should be: anybody may have written it."""
    if name == "h":
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    if name in ("k", "g", "c", "r", "b"):
        return isinstance(value, str)
    most = PRIORITY_MAX if name == "p" else NUMBER_MAX
    return type(value) is int and 0 <= value <= most


def message_from(
    message_id: MessageId, payload: bytes, attr: int, *, priority: int, attempt: int, time_us: int
) -> Message:
    """Return the message a record holds."""
    if not attr & PREFIX_MASK:
        return Message(
            id=message_id, body=payload, priority=priority, attempt=attempt, pushed_us=time_us
        )
    prefix, body = unpack_prefix(payload, attr)
    return Message(
        id=message_id,
        body=body,
        priority=priority,
        attempt=attempt + prefix.get("a", 0),
        headers=MappingProxyType(prefix["h"]) if "h" in prefix else _NO_HEADERS,
        key=prefix.get("k"),
        group=prefix.get("g"),
        pushed_us=prefix.get("t", time_us),
        expires_us=prefix.get("x"),
    )
