"""What is taken over from a sealed segment that was written elsewhere. The same on every store."""

from typing import Final

from segue.delivery.topic_record import (
    HAS_ADOPTION,
    HAS_PRODUCER,
    makes_sense,
    without_origin,
)
from segue.errors import InvalidArgument
from segue.log.sealed import SealedSegment

KEY_CHARACTERS_MAX: Final = 1024
FOREIGN: Final = HAS_PRODUCER | HAS_ADOPTION
"""What a record says that is not true in another topic."""


def check_key(key: str) -> None:
    """Raise InvalidArgument unless something can be adopted under `key`."""
    given: object = key
    if not isinstance(given, str) or not 0 < len(given) <= KEY_CHARACTERS_MAX:
        raise InvalidArgument(f"key must be text of 1 to {KEY_CHARACTERS_MAX} characters: {key!r}")


def records_of(sealed: SealedSegment) -> tuple[list[int], list[int], memoryview]:
    """Return lengths, attrs and payloads of records that say nothing of where they were made.

    Raises InvalidArgument if they are no records of a topic.
    """
    lengths, attrs, data = list(sealed.lengths), list(sealed.attrs), sealed.data
    if not all(map(makes_sense, attrs, lengths)):
        raise InvalidArgument("it holds records that are not a topic's")
    if any(map(FOREIGN.__and__, attrs)):
        data = memoryview(_without_origins(lengths, attrs, data))
    return lengths, attrs, data


def _without_origins(lengths: list[int], attrs: list[int], data: memoryview) -> bytes:
    """Return the payloads without what was true of them elsewhere; mend their lengths."""
    pieces = []
    position = 0
    for index, (length, attr) in enumerate(zip(lengths, attrs, strict=True)):
        payload = bytes(data[position : position + length])
        position += length
        payload, attrs[index] = without_origin(payload, attr)
        lengths[index] = len(payload)
        pieces.append(payload)
    return b"".join(pieces)
