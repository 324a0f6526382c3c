"""Records to standard output, as they are or as JSON lines: what `cat` and `tail` print."""

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from segue.cli.output import Json
from segue.cli.text import iso_time
from segue.log import Record

NEWLINE: Final = b"\n"
NUL: Final = b"\0"

# Made once: `json.dumps` with any option makes one for each call.
_encoder: Final = json.JSONEncoder(ensure_ascii=False).encode


class PayloadWriter:
    """Writes records, each followed by a separator. Raises OSError as the output does."""

    def __init__(self, out: BinaryIO, *, as_json: bool, offsets: bool, null: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._offsets = offsets
        self._separator = NUL if null else NEWLINE

    def write(self, record: Record) -> None:
        """Write one record, through a buffer: `flush` empties it."""
        self._out.write(self._encode(record))

    def flush(self) -> None:
        """Return once everything written has been handed to whoever reads it."""
        self._out.flush()

    def _encode(self, record: Record) -> bytes:
        if self._as_json:
            return json_line(record_json(record))
        if self._offsets:
            return b"%d\t%b%b" % (record.offset, record.payload, self._separator)
        return record.payload + self._separator


@contextmanager
def payload_writer(*, as_json: bool, offsets: bool, null: bool) -> Iterator[PayloadWriter]:
    """Yield a writer to standard output; whatever ends it, what was written is handed on."""
    with bytes_output() as out:
        yield PayloadWriter(out, as_json=as_json, offsets=offsets, null=null)


@contextmanager
def bytes_output() -> Iterator[BinaryIO]:
    """Yield standard output for bytes; whatever ends it, what was written is handed on."""
    # A buffer of its own: that of `sys.stdout` is missing with PYTHONUNBUFFERED, and then each
    # record is a system call, and one that writes only half of it goes unnoticed.
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        yield out


def record_json(record: Record) -> dict[str, Json]:
    """Return a record as a JSON object; what is not text is in `payload_base64`."""
    document: dict[str, Json] = {
        "offset": record.offset,
        "time": iso_time(record.time_us),
        "attr": record.attr,
    }
    document.update(bytes_json("payload", record.payload))
    return document


def bytes_json(name: str, data: bytes) -> dict[str, Json]:
    """Return bytes as JSON under `name`, or under `name`_base64 if they are no text."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def json_line(document: dict[str, Json]) -> bytes:
    """Return a JSON object as a line."""
    return _encoder(document).encode() + NEWLINE
