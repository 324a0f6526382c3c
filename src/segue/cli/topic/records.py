r"""How a topic's records look on standard output: as they are, as JSON lines, or by a template.

A template is text with `%s` for the value, `%k` the key, `%h` the headers, `%p` the partition,
`%o` the offset, `%T` the timestamp in milliseconds, `%t` the topic, `%S` and `%K` the bytes of
value and key (-1 if there is none), `%%` a percent sign, and `\n`, `\r`, `\t`, `\0`, `\\`,
`\xFF`. What kcat has means the same here.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

import typer

from segue.cli.output import Json
from segue.cli.payloads import NEWLINE, NUL, bytes_json, bytes_output, json_line
from segue.cli.text import iso_time
from segue.delivery.topic_record import MOMENT_US_MAX, MOMENT_US_MIN, TopicRecord

VALUE: Final = "value"
RAW: Final = "raw"
JSON: Final = "json"

Encode = Callable[[TopicRecord], bytes]

_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_FIELDS: Final[dict[str, Encode]] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "h": lambda record: ",".join(
        f"{name}={value}" for name, value in record.headers.items()
    ).encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % (record.timestamp_us // 1000),
}


class RecordWriter:
    """Writes records to an output. Raises OSError as the output does."""

    def __init__(self, out: BinaryIO, encode: Encode) -> None:
        self._out = out
        self._encode = encode

    def write(self, record: TopicRecord) -> None:
        """Write one record, through a buffer: `flush` empties it."""
        self._out.write(self._encode(record))

    def flush(self) -> None:
        """Return once everything written has been handed to whoever reads it."""
        self._out.flush()


@contextmanager
def record_writer(encode: Encode) -> Iterator[RecordWriter]:
    """Yield a writer to standard output; whatever ends it, what was written is handed on."""
    with bytes_output() as out:
        yield RecordWriter(out, encode)


def encoder_from(text: str, *, topic: str, null: bool, as_json: bool) -> Encode:
    """Return what makes bytes of records. Raises BadParameter."""
    if as_json or text == JSON:
        return lambda record: json_line(record_json(record))
    if text == VALUE:
        separator = NUL if null else NEWLINE
        return lambda record: (record.value or b"") + separator
    if text == RAW:
        return lambda record: record.value or b""
    if "%" not in text:
        raise typer.BadParameter(
            f"{text!r} is neither value, raw nor json, and no template such as '%k: %s\\n'",
            param_hint="--format",
        )
    return _template(text, topic)


def record_json(record: TopicRecord) -> dict[str, Json]:
    """Return a record as a JSON object; what is no text is in `key_base64` and `value_base64`."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _timestamp(record.timestamp_us),
        **({"key": None} if record.key is None else bytes_json("key", record.key)),
        "headers": dict(record.headers),
        **({"value": None} if record.value is None else bytes_json("value", record.value)),
    }


def _timestamp(time_us: int) -> str | int:
    # Beyond what a calendar can show it is a number: 'append' takes that back as it is.
    return iso_time(time_us) if MOMENT_US_MIN <= time_us <= MOMENT_US_MAX else time_us


def _template(text: str, topic: str) -> Encode:
    pieces: list[bytes | Encode] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        piece = None if match is None else _piece(match, topic)
        if match is None or piece is None:
            raise typer.BadParameter(
                f"{text[position : position + 2]!r} means nothing in a template",
                param_hint="--format",
            )
        pieces.append(piece)
        position = match.end()
    return lambda record: b"".join(
        piece if isinstance(piece, bytes) else piece(record) for piece in pieces
    )


def _piece(match: re.Match[str], topic: str) -> bytes | Encode | None:
    field, code, escape, plain = match.groups()
    if plain is not None:
        # Arguments that are no valid text come with surrogates in the place of their bytes.
        return str(plain).encode(errors="surrogateescape")
    if code is not None:
        return bytes.fromhex(code)
    if escape is not None:
        return _ESCAPES.get(escape)
    fixed = {"%": b"%", "t": topic.encode()}
    return fixed.get(field) or _FIELDS.get(field)
