"""Answers that are remembered, so that repeating a request does nothing twice.

Whoever may repeat a request gives it an `Idempotency-Key`. A request whose key was answered gets
the same answer; one whose key is being answered waits for it. Keys of the form
`segue-line:<name>/<number>` take up no more than one answer for each line: a new number says that
the last answer arrived. What is remembered is this process's alone, and gone with it
(docs/server.md).
"""

import asyncio
import time
from collections import OrderedDict
from itertools import islice
from typing import Final

from segue.server.refusal import Refused
from segue.values import dataclass

REMEMBERED_SECONDS: Final = 600.0
REMEMBERED_BYTES_MAX: Final = 64 << 20
REMEMBERED_MAX: Final = 100_000
KEY_BYTES_MAX: Final = 200
DIGITS_MAX: Final = 18
LINE_PREFIX: Final = b"segue-line:"
"""Nobody's own keys begin like that by chance: those are remembered each on its own."""
FORGOTTEN_MAX: Final = 16
"""How many are looked at after each answer: more than come in, so that there is room again."""
_OVERHEAD_BYTES: Final = 300


@dataclass(slots=True)
class Remembered:
    """An answer, or the promise of one."""

    asked: int
    """What was asked, in short: another request under the same key is a mistake."""
    since: float
    status: int = 0
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_over: asyncio.Event | None = None
    """Set once there is an answer; None while nobody waits for it."""


class Requests:
    """The answers of one server. For the event loop alone."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Remembered] = OrderedDict()
        self._last: dict[bytes, int] = {}
        """The highest number of each line."""
        self._bytes = 0

    @property
    def count(self) -> int:
        """How many answers, and promises of one, are remembered."""
        return len(self._known)

    def find(self, key: bytes) -> Remembered | None:
        """Return what is remembered under `key`."""
        return self._known.get(key)

    def begin(self, key: bytes, asked: int) -> Remembered:
        """Take note that `key` is being answered."""
        line, number = _numbered(key)
        if line is not None:
            last = self._last.get(line)
            if last is None or last < number:
                self._last[line] = number
                before = b"%b/%d" % (line, -1 if last is None else last)
                known_before = self._known.get(before)
                # One without an answer yet stays: who asked may still repeat it.
                if known_before is not None and known_before.status:
                    self._forget(before)
        known = self._known[key] = Remembered(asked=asked, since=time.monotonic())
        self._bytes += _OVERHEAD_BYTES
        return known

    def end(
        self,
        key: bytes,
        known: Remembered,
        status: int,
        headers: tuple[tuple[bytes, bytes], ...],
        body: bytes,
    ) -> None:
        """Remember the answer."""
        known.status = status
        known.headers = headers
        known.body = body
        if known.is_over is not None:
            known.is_over.set()
        if self._known.get(key) is not known:
            return
        line, number = _numbered(key)
        if line is not None and self._last.get(line, number) > number:
            self._bytes -= _OVERHEAD_BYTES
            del self._known[key]  # A later one of its line has begun: nobody repeats this one.
            return
        self._bytes += len(body)
        # From now on: a request may have taken longer than answers are remembered.
        known.since = time.monotonic()
        self._known.move_to_end(key)
        self._make_room()

    def give_up(self, key: bytes, known: Remembered) -> None:
        """Forget what was not done after all: it may be asked again."""
        if self._known.get(key) is known:
            self._forget(key)
        if known.is_over is not None:
            known.is_over.set()

    def _make_room(self) -> None:
        """Forget the oldest answers. Requests without one yet are few, and stay."""
        oldest = time.monotonic() - REMEMBERED_SECONDS
        for key, known in list(islice(self._known.items(), FORGOTTEN_MAX)):
            if (
                known.since > oldest
                and self._bytes <= REMEMBERED_BYTES_MAX
                and len(self._known) <= REMEMBERED_MAX
            ):
                return
            if known.status:
                self._forget(key)
            else:
                self._known.move_to_end(key)

    def _forget(self, key: bytes) -> None:
        known = self._known.pop(key)
        self._bytes -= _OVERHEAD_BYTES + len(known.body)
        line, number = _numbered(key)
        if line is not None and self._last.get(line) == number:
            del self._last[line]


def key_of(token: str, said: bytes) -> bytes:
    """Return under which key a request is remembered: each token has keys of its own.

    Raises Refused for one that nobody can mean.
    """
    if not 0 < len(said) <= KEY_BYTES_MAX:
        raise Refused(400, "invalid_argument", f"an Idempotency-Key has 1 to {KEY_BYTES_MAX} bytes")
    if said.startswith(LINE_PREFIX):
        return b"%b%b:%b" % (LINE_PREFIX, token.encode(), said.removeprefix(LINE_PREFIX))
    return b"%b:%b" % (token.encode(), said)


def _numbered(key: bytes) -> tuple[bytes | None, int]:
    """Return the line and the number that a key has, None if it is not of that form."""
    line, slash, number = key.rpartition(b"/")
    if not line.startswith(LINE_PREFIX) or not slash:
        return None, 0
    if not number.isdigit() or len(number) > DIGITS_MAX or number.startswith(b"0"):
        return None, 0
    return line, int(number)
