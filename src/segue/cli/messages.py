"""Messages to standard output, as they are or as JSON lines: what verbs that take or show print."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

from segue.cli.output import Json, is_terminal
from segue.cli.payloads import NEWLINE, NUL, bytes_json, bytes_output, json_line
from segue.cli.text import iso_time

if TYPE_CHECKING:
    from segue.delivery.message import Message

PREVIEW_CHARACTERS_MAX: Final = 60
"""How much of a body people are shown in a table."""


class MessageWriter:
    """Writes messages, each followed by a separator. Raises OSError as the output does."""

    def __init__(self, out: BinaryIO, *, as_json: bool, ids: bool, null: bool) -> None:
        self._out = out
        self._as_json = as_json
        self._ids = ids
        self._separator = NUL if null else NEWLINE

    def write(self, message: "Message", *, receipt: str | None = None) -> None:
        """Write one message. Its receipt, if it has one, or its id may stand before it."""
        if self._as_json:
            leased: dict[str, Json] = {} if receipt is None else {"receipt": receipt}
            self._out.write(json_line({**leased, **message_json(message)}))
            return
        before = receipt if receipt is not None else message.id if self._ids else None
        if before is not None:
            self._out.write(before.encode() + b"\t")
        self._out.write(message.body + self._separator)


@contextmanager
def message_writer(*, as_json: bool, ids: bool = False, null: bool) -> Iterator[MessageWriter]:
    """Yield a writer to standard output; whatever ends it, what was written is handed on."""
    with bytes_output() as out:
        yield MessageWriter(out, as_json=as_json, ids=ids, null=null)


def message_json(message: "Message") -> dict[str, Json]:
    """Return a message as a JSON object; a body that is not text is in `body_base64`."""
    return {
        "id": message.id,
        "priority": message.priority,
        "attempt": message.attempt,
        "pushed": iso_time(message.pushed_us),
        "expires": None if message.expires_us is None else iso_time(message.expires_us),
        "key": message.key,
        "group": message.group,
        "headers": dict(message.headers),
        **bytes_json("body", message.body),
    }


def preview(body: bytes) -> str:
    """Return a body as text: its beginning on a terminal, all of it elsewhere."""
    text = body.decode(errors="backslashreplace")
    if not is_terminal() or len(text) <= PREVIEW_CHARACTERS_MAX:
        return text
    return text[: PREVIEW_CHARACTERS_MAX - 1] + "…"
