"""What all structs are, numbers as they may be answered, and the one way to put bytes in JSON."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from segue.delivery.topic_record import MOMENT_US_MAX, MOMENT_US_MIN

Raw = msgspec.Raw

INTEGER_MAX: Final = (1 << 63) - 1
LONG_BYTES: Final = 1 << 20
"""From here on it matters how much longer a text gets as JSON: all of it must fit in a request."""

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
"""How many, or the how-manieth."""
Integer = Annotated[int, Meta(ge=-INTEGER_MAX - 1, le=INTEGER_MAX)]
"""What fits in 64 bits, as a column has it."""
Moment = Annotated[int, Meta(ge=MOMENT_US_MIN, le=MOMENT_US_MAX)]
"""A time that a calendar has."""

_LONG_ESCAPES: Final = bytes(set(range(32)) - set(b"\b\t\n\f\r"))
"""Of which JSON makes six bytes each."""
_ESCAPES: Final = bytes(range(32)) + b'"\\'
"""Of which it makes two at least."""


class Wire(msgspec.Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object that a client sends. A field that nobody knows is a mistake."""


class Answer(msgspec.Struct, kw_only=True):
    """A JSON object that a server sends. A client of an older version passes over new fields."""


def text_or_bytes(data: bytes) -> tuple[str | None, bytes | None]:
    """Return bytes as text if they are UTF-8, and else as they are.

    What has a NUL in it is no text to anybody. Nor is what is long and takes up more as text than
    as Base64: a body that is allowed must fit in a request.
    """
    if b"\0" in data or (len(data) > LONG_BYTES and _is_shorter_as_base64(data)):
        return None, data
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, data


def _is_shorter_as_base64(data: bytes) -> bool:
    """Tell whether JSON adds more to a text than the third that Base64 adds."""
    escaped = len(data) - len(data.translate(None, _ESCAPES))
    if 5 * escaped <= len(data) // 3:
        return False  # However long each of them gets.
    long = len(data) - len(data.translate(None, _LONG_ESCAPES))
    return escaped + 4 * long > len(data) // 3
