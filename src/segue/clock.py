"""Time as a value that is passed in, so that tests own it.

Two kinds: the *clock* says what time it is and may step; *ticks* only say how much time has passed,
never step, agree between all processes of a machine and start over when it restarts. Moments that
mean something to people (a delay, a time to live) are clock times; leases and locks run on ticks.
"""

import time
from collections.abc import Callable
from functools import partial

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # The latter but on Linux.

Clock = Callable[[], int]
"""Returns the microseconds since 1970-01-01 UTC."""

Ticks = Callable[[], int]
"""Returns the microseconds since the machine started, time asleep included."""


def system_clock() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000


def nanoseconds_of(ticks: Ticks) -> Ticks:
    """Return `ticks` in nanoseconds: for the system's own that saves a call where each counts."""
    if ticks is system_ticks:
        return partial(time.clock_gettime_ns, _BOOTTIME)
    return lambda: ticks() * 1000


def system_ticks() -> int:
    """Return the microseconds since the machine started."""
    return time.clock_gettime_ns(_BOOTTIME) // 1000
