"""What callers append to a topic, made records of. The same on every store."""

from collections.abc import Iterable, Iterator

from segue.delivery.message import Body
from segue.delivery.topic_record import (
    HAS_KEY,
    Event,
    Origin,
    moment_us,
    pack_record,
    value_bytes,
)
from segue.errors import InvalidArgument

Packed = tuple[bytes, int]
"""The payload and attr of a record."""


def event_from(item: Event | Body) -> Event:
    """Return what `append_many` was given as an event. Raises InvalidArgument."""
    given: object = item
    if isinstance(given, Event):
        return given
    if isinstance(given, str | bytes | bytearray | memoryview):
        return Event(value=given)
    raise InvalidArgument(f"an event is an Event, bytes or text, not {type(given).__name__}")


def events_from(items: Iterable[Event | Body]) -> Iterator[Event]:
    """Yield what `append_many` was given as events. Raises InvalidArgument."""
    check_many(items)
    return map(event_from, items)


def check_many(items: Iterable[Event | Body]) -> None:
    """Raise InvalidArgument for what is one event, and not several."""
    given: object = items
    if isinstance(given, str | bytes | bytearray | memoryview | Event):
        raise InvalidArgument("append_many takes several events; append takes one")


def packed(event: Event, key: bytes | None, origin: Origin | None = None) -> Packed:
    """Return an event as a record. Raises InvalidArgument."""
    value, timestamp = event.value, event.timestamp
    if timestamp is None and event.headers is None and origin is None and type(value) is bytes:
        # The same, only sooner: most events are no more than this.
        return (value, 0) if key is None else (key + value, HAS_KEY | len(key))
    return pack_record(
        key,
        value_bytes(value),
        headers=event.headers,
        timestamp_us=None if timestamp is None else moment_us(timestamp, name="timestamp"),
        origin=origin,
    )
