"""What a line of standard input stands for: an event to append."""

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from segue.cli.output import Json, json_text
from segue.errors import InvalidArgument

if TYPE_CHECKING:
    from segue.delivery.topic_record import Event, Moment


class LineFormat(Enum):
    """How lines are read."""

    LINES = "lines"
    JSON = "json"


class EventReader(Protocol):
    """Makes events of lines."""

    def event(self, line: bytes) -> "Event":
        """Return the event that a line stands for. Raises InvalidArgument."""


class PlainLines:
    """A line is a value, or a key and a value with a separator in between."""

    def __init__(
        self,
        *,
        key: bytes | None,
        separator: bytes | None,
        headers: Mapping[str, str] | None,
        partition: int | None,
        tombstones: bool,
    ) -> None:
        self._key = key
        self._separator = separator
        self._headers = headers
        self._partition = partition
        self._tombstones = tombstones

    def event(self, line: bytes) -> "Event":
        """Return the event that a line stands for."""
        from segue.delivery.topic_record import Event

        key = self._key
        if self._separator is not None:
            before, found, after = line.partition(self._separator)
            # As kcat has it: a line without the separator is a value without a key.
            if found:
                key, line = before, after
        return Event(
            value=None if self._tombstones and not line else line,
            key=key,
            headers=self._headers,
            partition=self._partition,
        )


class JsonLines:
    """A line is a JSON object, as `topic cat --json` prints them."""

    def __init__(
        self, *, headers: Mapping[str, str] | None, partition: int | None, repartition: bool
    ) -> None:
        """`headers` are added; `partition` and `repartition` overrule what the lines say."""
        self._headers = headers or {}
        self._partition = partition
        self._repartition = repartition

    def event(self, line: bytes) -> "Event":
        """Return the event that a line stands for. Raises InvalidArgument."""
        from segue.delivery.topic_record import Event

        document = _object(line)
        partition = self._partition
        if partition is None and not self._repartition:
            partition = _partition(document.get("partition"))
        value = _bytes(document, "value")
        if value is None and "value" not in document:
            raise InvalidArgument("it has neither value nor value_base64; null is a tombstone")
        return Event(
            value=value,
            key=_bytes(document, "key"),
            headers={**self._headers, **_headers(document.get("headers"))} or None,
            timestamp=_timestamp(document.get("timestamp")),
            partition=partition,
        )


def _object(line: bytes) -> dict[str, Json]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"no JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument("no JSON object")
    return document


_BASE64: Final = "_base64"


def _bytes(document: dict[str, Json], name: str) -> bytes | None:
    """Return a key or value; one that is neither text nor null is kept as the JSON it is."""
    coded = document.get(name + _BASE64)
    if coded is not None:
        try:
            return base64.b64decode(str(coded), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgument(f"{name}{_BASE64} is no Base64") from None
    found = document.get(name)
    if found is None:
        return None
    text = found if isinstance(found, str) else json_text(found)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is no valid text") from None


def _headers(found: Json) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidArgument("headers must be an object of texts")
    return {name: str(value) for name, value in found.items()}


def _partition(found: Json) -> int | None:
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    raise InvalidArgument(f"partition must be a number: {found!r}")


def _timestamp(found: Json) -> "Moment | None":
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    try:
        return datetime.fromisoformat(str(found)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"timestamp must be an ISO 8601 time, or microseconds since 1970: {found!r}"
        ) from None
