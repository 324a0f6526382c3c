"""Messages between a test and its fork server."""

from dataclasses import dataclass
from typing import Final

MESSAGE_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Either a call to make in a new child, or the pid of an ended child to reap."""

    number: int
    call: bytes | None = None
    """Pickled function and arguments. The server loads it, so a failed import is an answer, too."""
    reap_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of the request with the same number: a pid, an exit code, or an error."""

    number: int
    result: int = 0
    error: str | None = None
    """Traceback of a request that failed."""
