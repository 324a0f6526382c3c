"""What callers hand in, checked before anything is touched. The same for every store."""

from typing import Final

from segue.delivery.events import OWNER_BYTES_MAX, Cause
from segue.delivery.rules import SECONDS_MAX
from segue.errors import InvalidArgument
from segue.log.options import Duration, microseconds_from

COUNT_MAX: Final = 10_000
"""How many messages one call delivers at most."""

_CAUSES: Final = {"release": Cause.RELEASED, "fail": Cause.FAILED, "dead": Cause.DEAD}


def duration_us(duration: Duration | None, *, name: str, least_us: int = 0) -> int | None:
    """Return a duration in microseconds. Raises InvalidArgument for one nobody can mean."""
    length_us = microseconds_from(duration, name=name)
    if length_us is not None and not least_us <= length_us <= SECONDS_MAX * 1_000_000:
        least = "positive" if least_us else "not negative"
        raise InvalidArgument(f"{name} must be {least} and below a hundred years: {duration!r}")
    return length_us


def check_message_count(count: int, *, name: str = "count") -> None:
    """Raise InvalidArgument unless one call may deliver so many."""
    if type(count) is not int or not 1 <= count <= COUNT_MAX:
        raise InvalidArgument(f"{name} must be a whole number from 1 to {COUNT_MAX}: {count!r}")


def owner_bytes(owner: str) -> bytes:
    """Return an owner as it is kept. Raises InvalidArgument."""
    given: object = owner
    name = given.encode(errors="surrogatepass") if isinstance(given, str) else b""
    if not isinstance(given, str) or not given.isprintable() or len(name) > OWNER_BYTES_MAX:
        raise InvalidArgument(
            f"owner must be printable text of at most {OWNER_BYTES_MAX} bytes: {owner!r}"
        )
    return name


def cause_of(outcome: str, reason: str) -> Cause:
    """Return how a lease ends without success. Raises InvalidArgument."""
    cause = _CAUSES.get(outcome)
    if cause is None:
        raise InvalidArgument(f"outcome must be one of {', '.join(_CAUSES)}: {outcome!r}")
    given: object = reason
    if not isinstance(given, str):
        raise InvalidArgument(f"reason must be text: {reason!r}")
    return cause
