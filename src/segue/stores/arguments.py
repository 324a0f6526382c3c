"""What callers hand in as times, checked before anything is touched."""

from segue.delivery.rules import SECONDS_MAX
from segue.errors import InvalidArgument
from segue.log.options import Duration, microseconds_from


def duration_us(duration: Duration | None, *, name: str, least_us: int = 0) -> int | None:
    """Return a duration in microseconds. Raises InvalidArgument for one nobody can mean."""
    length_us = microseconds_from(duration, name=name)
    if length_us is not None and not least_us <= length_us <= SECONDS_MAX * 1_000_000:
        least = "positive" if least_us else "not negative"
        raise InvalidArgument(f"{name} must be {least} and below a hundred years: {duration!r}")
    return length_us
