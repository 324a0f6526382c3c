"""A clock for tests: it moves when it is told to."""

import threading
from typing import Final

START_US: Final = 1_700_000_000_000_000
"""A moment in November 2023, so that times look like times."""


class ManualClock:
    """Returns the same microseconds until it is advanced. Safe from any thread.

    clock = ManualClock()
    log = Log("data", clock=clock, segment_age=60)
    clock.advance(seconds=61)
    """

    def __init__(self, start_us: int = START_US) -> None:
        self._lock = threading.Lock()
        self._now_us = start_us

    def __call__(self) -> int:
        """Return the microseconds since 1970-01-01 UTC, as a `segue.clock.Clock` does."""
        with self._lock:
            return self._now_us

    def advance(self, *, seconds: float = 0, ms: float = 0) -> int:
        """Move by `seconds` plus `ms` and return the new time in microseconds.

        Negative steps go back, as a wall clock may.
        """
        step_us = round(seconds * 1_000_000) + round(ms * 1_000)
        with self._lock:
            self._now_us += step_us
            return self._now_us
