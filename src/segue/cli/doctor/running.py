"""Looks that end in time: each in a thread of its own, which is left behind if it hangs.

A file system or a server that hangs is among the things a doctor is asked about. What goes wrong in
one look is a line of its own and keeps no other from being taken.
"""

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from segue.cli.doctor.check import Check, fail
from segue.values import dataclass

LOOK_SECONDS_MAX: Final = 10.0
"""How long one look may take, whatever it looks at."""

T = TypeVar("T")


class NoAnswer(TimeoutError):
    """A look did not end in time."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something could not be looked at."""

    reason: str


def within(look: Callable[[], T], *, seconds: float = LOOK_SECONDS_MAX) -> T:
    """Return what `look` returns, or raise what it raises. Raises NoAnswer after `seconds`."""
    outcome: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((look(), None))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for it
            outcome.put((None, error))

    threading.Thread(target=run, name="segue-doctor", daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswer(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value] # One of the two is there.


def outcome_of(look: Callable[[], T], *, seconds: float = LOOK_SECONDS_MAX) -> T | Problem:
    """Return what `look` returns, or why there is nothing to return. Raises nothing."""
    try:
        return within(look, seconds=seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what there is to tell
        return Problem(in_words(error))


def checks_of(
    name: str, look: Callable[[], Iterable[Check]], *, seconds: float = LOOK_SECONDS_MAX
) -> list[Check]:
    """Return what a look comes to; where it comes to nothing, that fails under its name."""
    found = outcome_of(lambda: list(look()), seconds=seconds)
    return [not_told(name, found)] if isinstance(found, Problem) else found


def not_told(name: str, problem: Problem) -> Check:
    """Return that something could not be looked at."""
    return fail(name, f"it cannot be told: {problem.reason}", "mend what is said there, ask again")


def in_words(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, OSError) and error.strerror is not None:
        named = "" if error.filename is None else f"{error.filename}: "
        return f"{named}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
