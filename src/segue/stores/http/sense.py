"""Answers that have the right fields and yet make no sense.

What comes from a network deserves no trust: whoever answers like this is no Segue that we know, and
whoever asked did nothing wrong. What types can say stands in `wire/`; this is for the rest.
"""

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Final, TypeVar

from segue.errors import UnsupportedServer

WORDS_MAX: Final = 200
"""How many characters are told of what is wrong: it may hold all that was answered."""

S = TypeVar("S", bound=Sized)


@contextmanager
def making_sense() -> Iterator[None]:
    """Raise UnsupportedServer where nothing can be made of what a server answered.

    No call belongs inside: what a refusal raises is meant for whoever asked.
    """
    try:
        yield
    # InvalidArgument is a ValueError, and so is all that reading JSON, text and Arrow raises.
    except (ValueError, LookupError, ArithmeticError, TypeError, RecursionError) as error:
        raise nonsense(str(error)) from error


def nonsense(what: str) -> UnsupportedServer:
    """Return the error for an answer that makes no sense."""
    return UnsupportedServer(f"an answer that makes no sense: {what[:WORDS_MAX]}")


def exactly(count: int, found: S) -> S:
    """Return what was answered if it is as much as was sent. Raises UnsupportedServer."""
    if len(found) != count:
        raise nonsense(f"{len(found)} instead of {count}")
    return found


def at_most(count: int, found: S) -> S:
    """Return what was answered if it is no more than asked for. Raises UnsupportedServer."""
    if len(found) > count:
        raise nonsense(f"{len(found)} where {count} were asked for")
    return found
