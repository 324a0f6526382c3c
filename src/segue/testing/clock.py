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
        self._ticks_us = 0

    def __call__(self) -> int:
        """Return the microseconds since 1970-01-01 UTC, as a `segue.clock.Clock` does."""
        with self._lock:
            return self._now_us

    def advance(self, *, seconds: float = 0, ms: float = 0) -> int:
        """Let `seconds` plus `ms` pass and return the new time in microseconds.

        Negative ones turn the clock back, as a wall clock may; the ticks then stay.
        """
        step_us = round(seconds * 1_000_000) + round(ms * 1_000)
        with self._lock:
            self._now_us += step_us
            self._ticks_us += max(0, step_us)
            return self._now_us

    def step(self, *, seconds: float) -> None:
        """Set the clock forward or back while no time passes, as an operator may."""
        with self._lock:
            self._now_us += round(seconds * 1_000_000)

    def ticks(self) -> int:
        """Return the microseconds that have passed, as `segue.clock.Ticks` does."""
        with self._lock:
            return self._ticks_us
