"""Records as they come, for as long as anyone wants them: what `tail` and `topic tail` share."""

import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

FETCH_RECORDS_MAX: Final = 1024
"""How many records are taken at once, and committed together."""
LOOK_SECONDS: Final = 0.5
"""How often a silent tail looks whether anyone still reads its output."""

Item = TypeVar("Item")


class Limit:
    """How many records are still wanted."""

    def __init__(self, count: int | None) -> None:
        """Without a count there is no end."""
        self._left = count

    @property
    def is_reached(self) -> bool:
        """Whether nothing more is wanted."""
        return self._left == 0

    @property
    def at_once(self) -> int:
        """How many records to take next, at most."""
        return FETCH_RECORDS_MAX if self._left is None else min(self._left, FETCH_RECORDS_MAX)

    def took(self, count: int) -> None:
        """Note that so many were printed."""
        if self._left is not None:
            self._left -= count


def arriving(
    fetch: Callable[[int, float], Sequence[Item]], limit: Limit, *, timeout_seconds: float | None
) -> Iterator[Sequence[Item]]:
    """Yield what `fetch` returns, until that is nothing for `timeout_seconds`.

    It is called with how many records to return at most, and how many seconds to wait for the
    first. Raises BrokenPipeError once nobody reads the output, also while there is nothing to
    print.
    """
    last_came = time.monotonic()
    while not limit.is_reached:
        pause = LOOK_SECONDS
        if timeout_seconds is not None:
            pause = min(pause, max(0.0, last_came + timeout_seconds - time.monotonic()))
        found = fetch(limit.at_once, pause)
        if found:
            yield found
            last_came = time.monotonic()
        elif pause == 0:
            return
        elif not _output_is_read():
            raise BrokenPipeError


def _output_is_read() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # No events asked for: only errors are told.
    return not poll.poll(0)
