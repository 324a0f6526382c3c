"""Whole numbers as they stand in paths and queries."""

from typing import Final

from segue.errors import InvalidArgument

DIGITS_MAX: Final = 18
"""Enough for every offset there is, and few enough that nobody is kept busy by one number."""


def whole_number(text: str, *, what: str) -> int:
    """Return what `text` says. Raises InvalidArgument unless it is `what`, a whole number."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > DIGITS_MAX:
        raise InvalidArgument(f"{what} is a whole number, not {text[:40]!r}")
    return int(text)
