"""Numbers as people say them."""

from collections.abc import Sequence
from typing import Final

NUMBERS_SHOWN_MAX: Final = 8
"""How many numbers are listed before it is only said how many more there are."""

_DURATIONS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))
_SIZES: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def lasting(seconds: float) -> str:
    """Return a duration in the largest unit that leaves no fraction, as "7 d"."""
    for unit, length in _DURATIONS:
        if seconds and not seconds % length:
            return f"{seconds // length:,.0f} {unit}"
    return f"{seconds:,.6g} s"


def sized(size_bytes: int) -> str:
    """Return a size in the largest unit it reaches, as "1.5 GiB"."""
    for unit, length in _SIZES:
        if size_bytes >= length:
            return f"{size_bytes / length:.4g} {unit}"
    return f"{size_bytes:,} bytes"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Return which of several are meant, as "partitions 0, 2"."""
    shown = ", ".join(map(str, numbers[:NUMBERS_SHOWN_MAX]))
    more = len(numbers) - NUMBERS_SHOWN_MAX
    return f"{noun}{'s' * (len(numbers) > 1)} {shown}" + (f" and {more:,} more" if more > 0 else "")
