"""What a record of a topic is, and how it is laid out in a record of the log.

    │ timestamp i64 │ producer u64, sequence u64 │ adoption 16 bytes │ key │ headers │ value │

The first three are there only if attr says so. Every length is in attr, so that whoever reads
millions of records finds all keys and values by arithmetic, without a look at any of them:

    attr   bits 0–23 key bytes · 24–47 header bytes · 48 has a key · 49 has no value (a tombstone)
           50 has a timestamp of its own · 51 has a producer · 52 begins an adopted segment

A header is │ name bytes u16 │ value bytes u32 │ name │ value │, in UTF-8. A plain value without
key is its bytes and nothing else, with an attr of 0.
"""

import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple

from segue.delivery.message import Body, headers_from
from segue.errors import InvalidArgument
from segue.log.record import Record, microseconds
from segue.values import dataclass

LENGTH_MASK: Final = (1 << 24) - 1
HEADERS_SHIFT: Final = 24
HAS_KEY: Final = 1 << 48
HAS_NO_VALUE: Final = 1 << 49
HAS_TIMESTAMP: Final = 1 << 50
HAS_PRODUCER: Final = 1 << 51
HAS_ADOPTION: Final = 1 << 52
KNOWN_BITS: Final = (1 << 53) - 1
PREFIXED: Final = HAS_TIMESTAMP | HAS_PRODUCER | HAS_ADOPTION

TIMESTAMP_BYTES: Final = 8
PRODUCER_BYTES: Final = 16
ADOPTION_BYTES: Final = 16
KEY_BYTES_MAX: Final = 1 << 20
SEQUENCE_MAX: Final = (1 << 63) - 1
HEADER_NAME_BYTES_MAX: Final = (1 << 16) - 1
MOMENT_US_MIN: Final = -62_135_596_800_000_000
MOMENT_US_MAX: Final = 253_402_300_799_999_999
"""From the year 1 to the year 9999, as a datetime has it."""

_TIMESTAMP = struct.Struct("<q")
_PRODUCER = struct.Struct("<QQ")
_HEADER = struct.Struct("<HI")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

Key = bytes | str
"""What decides the partition of a record, and what compaction goes by. Text is UTF-8."""
Moment = datetime | int
"""A time: a datetime, or microseconds since 1970 in UTC."""


class Appended(NamedTuple):
    """Where a record went."""

    partition: int
    offset: int


class TopicRecord(NamedTuple):
    """A record of a topic as readers get it.

    A named tuple for the reason that `Record` is one.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    """None is a tombstone: it says that there is nothing under the key any more."""
    headers: Mapping[str, str]
    timestamp_us: int
    """When it happened: what its producer said, or when it was appended."""

    @property
    def timestamp(self) -> datetime:
        """When it happened, in UTC."""
        return _EPOCH + timedelta(microseconds=self.timestamp_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record to append."""

    value: Body | None
    key: Key | None = None
    headers: Mapping[str, str] | None = None
    timestamp: Moment | None = None
    partition: int | None = None


class Origin(NamedTuple):
    """Who made a record: a number that stands for a producer, and its count."""

    number: int
    sequence: int


def producer_number(name: str) -> int:
    """Return the number that stands for a producer in its records."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def adoption_digest(key: str) -> bytes:
    """Return what stands for an adoption key in the record that begins what was adopted."""
    return blake2b(key.encode(), digest_size=ADOPTION_BYTES).digest()


def key_bytes(key: Key | None) -> bytes | None:
    """Return a key as it is stored. Raises InvalidArgument."""
    if key is None or type(key) is bytes:
        data = key
    elif isinstance(key, str):
        try:
            data = key.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("a key must be valid text, or bytes") from None
    elif isinstance(key, bytes | bytearray | memoryview):
        data = bytes(key)
    else:
        raise InvalidArgument(f"a key is bytes or text, not {type(key).__name__}")
    if data is not None and len(data) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a key of {len(data)} bytes; at most {KEY_BYTES_MAX} fit")
    return data


def value_bytes(value: Body | None) -> bytes | None:
    """Return a value as it is stored. Raises InvalidArgument."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("a value must be valid text, or bytes") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"a value is bytes, text or None, not {type(value).__name__}")


def moment_us(moment: Moment, *, name: str) -> int:
    """Return a time in microseconds. Raises InvalidArgument."""
    given: object = moment
    if isinstance(given, datetime):
        try:
            return microseconds(given)
        except (OverflowError, OSError, ValueError) as error:
            raise InvalidArgument(f"{name} cannot be told: {error}") from error
    if type(given) is not int or not MOMENT_US_MIN <= given <= MOMENT_US_MAX:
        raise InvalidArgument(f"{name} must be a datetime or microseconds: {moment!r}")
    return given


def pack_headers(headers: Mapping[str, str] | None) -> bytes:
    """Return headers as they are stored. Raises InvalidArgument."""
    pairs = headers_from(headers)
    if not pairs:
        return b""
    pieces: list[bytes] = []
    try:
        for name, value in pairs.items():
            packed_name, packed_value = name.encode(), value.encode()
            if len(packed_name) > HEADER_NAME_BYTES_MAX:
                raise InvalidArgument(f"the name of a header is too long: {name[:40]}…")
            pieces += (_HEADER.pack(len(packed_name), len(packed_value)), packed_name, packed_value)
    except UnicodeEncodeError:
        raise InvalidArgument("headers must be valid text") from None
    return b"".join(pieces)


def unpack_headers(data: bytes) -> Mapping[str, str]:
    """Return the headers in `data`. Bytes that make no sense say nothing."""
    headers = {}
    position = 0
    while position + _HEADER.size <= len(data):
        name_bytes, value_length = _HEADER.unpack_from(data, position)
        middle = position + _HEADER.size + name_bytes
        end = middle + value_length
        if end > len(data):
            break
        name = data[position + _HEADER.size : middle].decode(errors="replace")
        headers[name] = data[middle:end].decode(errors="replace")
        position = end
    return MappingProxyType(headers)


def pack_record(
    key: bytes | None,
    value: bytes | None,
    *,
    headers: Mapping[str, str] | None = None,
    timestamp_us: int | None = None,
    origin: Origin | None = None,
) -> tuple[bytes, int]:
    """Return the payload and attr of a record. Raises InvalidArgument."""
    if key is None:
        head, attr = b"", 0
    else:
        head, attr = key, HAS_KEY | len(key)
    if headers:
        packed = pack_headers(headers)
        head += packed
        attr |= len(packed) << HEADERS_SHIFT
    if origin is not None:
        head = _PRODUCER.pack(*origin) + head
        attr |= HAS_PRODUCER
    if timestamp_us is not None:
        head = _TIMESTAMP.pack(timestamp_us) + head
        attr |= HAS_TIMESTAMP
    if value is None:
        return head, attr | HAS_NO_VALUE
    return head + value, attr


def unpack_record(partition: int, record: Record) -> TopicRecord:
    """Return what a record of the log says. Bytes that make no sense are a value without key."""
    offset, time_us, attr, payload = record
    if not attr:
        return TopicRecord(partition, offset, None, payload, NO_HEADERS, time_us)
    start = _prefix_bytes(attr) if attr & PREFIXED else 0
    middle = start + (attr & LENGTH_MASK)
    end = middle + (attr >> HEADERS_SHIFT & LENGTH_MASK)
    if end > len(payload) or attr > KNOWN_BITS:
        return TopicRecord(partition, offset, None, payload, NO_HEADERS, time_us)
    if attr & HAS_TIMESTAMP:
        (time_us,) = _TIMESTAMP.unpack_from(payload)
    return TopicRecord(
        partition,
        offset,
        payload[start:middle] if attr & HAS_KEY else None,
        None if attr & HAS_NO_VALUE else payload[end:],
        NO_HEADERS if middle == end else unpack_headers(payload[middle:end]),
        time_us,
    )


def makes_sense(attr: int, payload_bytes: int) -> bool:
    """Tell whether a payload can hold what attr says of it."""
    if not attr:
        return True
    lengths = (attr & LENGTH_MASK) + (attr >> HEADERS_SHIFT & LENGTH_MASK)
    return attr <= KNOWN_BITS and _prefix_bytes(attr) + lengths <= payload_bytes


def key_of(record: Record) -> bytes | None:
    """Return the key of a record alone."""
    attr, payload = record.attr, record.payload
    if not attr & HAS_KEY or not makes_sense(attr, len(payload)):
        return None
    start = _prefix_bytes(attr)
    return payload[start : start + (attr & LENGTH_MASK)]


def is_tombstone(record: Record) -> bool:
    """Tell whether a record says that there is nothing under its key."""
    return record.attr & (HAS_KEY | HAS_NO_VALUE) == HAS_KEY | HAS_NO_VALUE and makes_sense(
        record.attr, len(record.payload)
    )


def origin_of(record: Record) -> Origin | None:
    """Return who made a record, if it says so."""
    attr, payload = record.attr, record.payload
    if not attr & HAS_PRODUCER or not makes_sense(attr, len(payload)):
        return None
    return Origin._make(_PRODUCER.unpack_from(payload, _prefix_bytes(attr & HAS_TIMESTAMP)))


def adoption_of(record: Record) -> bytes | None:
    """Return the digest of the key under which what begins here was adopted."""
    attr, payload = record.attr, record.payload
    if not attr & HAS_ADOPTION or not makes_sense(attr, len(payload)):
        return None
    start = _prefix_bytes(attr & (HAS_TIMESTAMP | HAS_PRODUCER))
    return payload[start : start + ADOPTION_BYTES]


def without_origin(payload: bytes, attr: int) -> tuple[bytes, int]:
    """Return a record that says nothing of who made it: what is true elsewhere is not here."""
    foreign = attr & (HAS_PRODUCER | HAS_ADOPTION)
    if not foreign:
        return payload, attr
    start = _prefix_bytes(attr & HAS_TIMESTAMP)
    return payload[:start] + payload[start + _prefix_bytes(foreign) :], attr & ~foreign


def with_adoption(payload: bytes, attr: int, digest: bytes) -> tuple[bytes, int]:
    """Return the record that begins what is adopted under a key; it has no origin yet."""
    start = _prefix_bytes(attr & HAS_TIMESTAMP)
    return payload[:start] + digest + payload[start:], attr | HAS_ADOPTION


def _prefix_bytes(attr: int) -> int:
    return (
        (TIMESTAMP_BYTES if attr & HAS_TIMESTAMP else 0)
        + (PRODUCER_BYTES if attr & HAS_PRODUCER else 0)
        + (ADOPTION_BYTES if attr & HAS_ADOPTION else 0)
    )
