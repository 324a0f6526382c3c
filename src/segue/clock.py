"""Time as a value that is passed in, so that tests own it."""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns the microseconds since 1970-01-01 UTC."""


def system_clock() -> int:
    """Return the wall clock in microseconds."""
    return time.time_ns() // 1000
