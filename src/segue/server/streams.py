"""Answers as lines of JSON, put together to pieces that are worth sending.

An error that comes after the first piece has no status any more: it is the last line, as
`{"problem": …}`. A stream without its end was cut off on the way.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from segue.errors import SegueError
from segue.stores.http.problems import problem_of

NDJSON: Final = "application/x-ndjson"
PIECE_BYTES: Final = 64 * 1024

_encode = msgspec.json.Encoder().encode


def lines_of(values: Iterator[msgspec.Struct]) -> Iterator[bytes]:
    """Yield a line for each value, many at a time."""
    piece = bytearray()
    is_begun = False
    try:
        for value in values:
            piece += _encode(value)
            piece += b"\n"
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                is_begun = True
                piece.clear()
    except SegueError as error:
        if not is_begun and not piece:
            raise
        piece += b'{"problem":%b}\n' % problem_of(error).to_json()
    if piece:
        yield bytes(piece)
