"""Who asked for what, a line of JSON for each request. Never a token, a query or a body.

A request only leaves a note. Once a second the notes become lines, in a thread. The file is opened
anew each time, so that it can be moved away at any moment.
"""

import logging
import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

logger = logging.getLogger(__name__)

NOTES_MAX: Final = 200_000
"""How many requests may wait to be written; those beyond are only counted."""
PATH_CHARACTERS_MAX: Final = 1_000
FILE_MODE: Final = 0o600
STDOUT: Final = "-"


class Note(NamedTuple):
    """One request. A named tuple, because each request makes one."""

    time_us: int
    method: str
    path: str
    route: str | None
    status: int
    bytes: int | None
    """Of the answer's body; None where it was a stream."""
    duration_us: int
    token: str
    token_id: str
    remote: str
    request_id: str


class AccessLog:
    """Writes notes to a file, or to standard output if it is "-"."""

    def __init__(self, target: str) -> None:
        """Make the file if there is none. Raises OSError if that cannot be."""
        self._path = None if target == STDOUT else Path(target)
        self._notes: deque[Note] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._write(b"")

    def note(self, note: Note) -> None:
        """Take note of a request."""
        if len(self._notes) < NOTES_MAX:
            self._notes.append(note)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Write what was noted. Safe from any thread."""
        with self._lock:
            count, dropped = len(self._notes), self._dropped
            if not count:
                return
            lines = bytearray()
            for _ in range(count):
                lines += self._encoder.encode(_document(self._notes.popleft()))
                lines += b"\n"
            if dropped:
                self._dropped -= dropped
                lines += self._encoder.encode({"dropped": dropped}) + b"\n"
            try:
                self._write(lines)
            except OSError as error:
                logger.warning("access log not written lines=%d reason=%s", count, error)

    def _write(self, lines: bytes | bytearray) -> None:
        if self._path is None:
            sys.stdout.write(lines.decode())
            sys.stdout.flush()
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            while lines:
                lines = lines[os.write(fd, lines) :]
        finally:
            os.close(fd)


def _document(note: Note) -> dict[str, object]:
    document = note._asdict()
    document["path"] = note.path[:PATH_CHARACTERS_MAX]
    return document
