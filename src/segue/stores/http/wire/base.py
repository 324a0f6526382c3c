"""What all structs are, and the one way to put bytes in JSON."""

import msgspec

Raw = msgspec.Raw


class Wire(msgspec.Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object that a client sends. A field that nobody knows is a mistake."""


class Answer(msgspec.Struct, kw_only=True):
    """A JSON object that a server sends. A client of an older version passes over new fields."""


def text_or_bytes(data: bytes) -> tuple[str | None, bytes | None]:
    """Return bytes as text if they are UTF-8, and else as they are.

    What has a NUL in it is no text to anybody, and would take six times its size.
    """
    if b"\0" in data:
        return None, data
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, data
