"""When a task is due: by a cron line or at an interval.

Pure: every moment is passed in, as microseconds since 1970-01-01 UTC, and all who ask with the same
moments get the same answer. Who asks, and where the last firing is kept, is no matter here.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from segue.delivery.rules import check_count, check_seconds
from segue.errors import InvalidArgument
from segue.values import dataclass

Missed = Literal["latest", "all", "skip"]
"""Of the firings that nobody was there to make: the newest, each, or none."""

FIRINGS_MAX: Final = 100
"""How many firings `due` returns at once, unless asked for another number."""
MISSED_GRACE_SECONDS: Final = 60.0
"""A firing that is no older than this is late; after it, it is missed."""
EVERY_SECONDS_MIN: Final = 1.0
EXPRESSION_CHARACTERS_MAX: Final = 256

_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = 5
_DAY_FIELD, _MONTH_FIELD = 2, 3
_UNITS_US: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}
_EVERY: Final = re.compile(r"every\s+([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_CRON_STEP_US: Final = 60_000_000
_EXPRESSIONS_REMEMBERED: Final = 256
_REPEATS_MAX: Final = 24 * 60
"""More firings than any zone ever repeated when it set its clocks back."""
_EXAMPLES: Final = 'for example "*/5 * * * *", "0 3 * * * Europe/Berlin", "@daily" or "every 30s"'


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron line of five fields, or @hourly, @daily, @weekly, @monthly, @yearly, in a time zone.

    Names (MON, JAN), lists, ranges and steps, and L, LW, 5L and MON#2 for days are understood. If
    both days are given either will do, unless one starts with a star: then both must match.

    Where the clocks are set forward, a run in the hour that is skipped comes at its end, and
    several come as one; where they are set back, a run in the hour that is repeated comes in the
    first pass alone. Lines whose minute or hour starts with a star follow the hours that pass
    instead: the skipped hour has no runs, the repeated one has them twice.

    Raises InvalidArgument for what is no such line, and for an unknown zone.
    """

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _check_texts(self.expression, self.zone)
        expression = " ".join(self.expression.split())
        if expression.startswith("@"):
            expression = expression.lower()
        # Equal schedules are equal values, however they were spaced.
        object.__setattr__(self, "expression", expression)
        _zone_of(self.zone)
        _is_possible(expression)

    @property
    def text(self) -> str:
        """The schedule as `schedule_from` reads it."""
        return self.expression if self.zone == "UTC" else f"{self.expression} {self.zone}"

    def after(self, moment_us: int) -> int | None:
        """Return the first firing strictly after `moment_us`; None if there is none in 50 years."""
        if not _is_possible(self.expression):
            return None
        fields = _ALIASES.get(self.expression, self.expression)
        try:
            moment = (_EPOCH + moment_us * _MICROSECOND).astimezone(_zone_of(self.zone))
            firings = CronSim(fields, moment)
            # Within a repeated hour the library starts from the first pass, which is over.
            for _ in range(_REPEATS_MAX):
                firing_us = (next(firings) - _EPOCH) // _MICROSECOND
                if firing_us > moment_us:
                    return firing_us
        except (StopIteration, OverflowError):  # The latter at the end of the calendar.
            return None
        raise AssertionError(f"{self.text} has no end of firings before {moment_us}")


@dataclass(frozen=True, slots=True)
class Every:
    """An interval. Firings are its multiples since 1970, so that all workers agree on them.

    Kept to the microsecond. Raises InvalidArgument for what is no duration.
    """

    seconds: float

    def __post_init__(self) -> None:
        check_seconds("every", self.seconds, EVERY_SECONDS_MIN)
        object.__setattr__(self, "seconds", round(self.seconds * 1_000_000) / 1_000_000)

    @property
    def interval_us(self) -> int:
        return round(self.seconds * 1_000_000)

    @property
    def text(self) -> str:
        """The schedule as `schedule_from` reads it."""
        for unit, unit_us in _UNITS_US.items():
            count, rest = divmod(self.interval_us, unit_us)
            if rest == 0:
                return f"every {count}{unit}"
        # In full: a float would leave digits out, or write an exponent.
        return f"every {Decimal(self.interval_us).scaleb(-3).normalize():f}ms"

    def after(self, moment_us: int) -> int:
        """Return the first firing strictly after `moment_us`."""
        return (moment_us // self.interval_us + 1) * self.interval_us


Schedule = Cron | Every


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What is to be done now."""

    firings: tuple[int, ...]
    """The moments to fire for, oldest first."""
    last_us: int
    """What to remember, once they are made, as the last firing dealt with."""


def schedule_from(value: str | timedelta | float | Schedule) -> Schedule:
    """Return the schedule that `value` says: its text, a duration or number of seconds, or itself.

    Texts are a cron line, with a time zone behind it if it is not UTC, or "every" and a duration in
    ms, s, m, h or d. Raises InvalidArgument for anything else.
    """
    if isinstance(value, Cron | Every):
        return value
    if isinstance(value, timedelta):
        return Every(value.total_seconds())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Every(value)
    if not isinstance(value, str):
        raise InvalidArgument(f"no schedule: {value!r}; {_EXAMPLES}, or seconds")
    words = value.split()
    if words and words[0].lower() == "every":
        return _every_from(value.strip())
    count = 1 if words and words[0].startswith("@") else _FIELDS
    if len(words) == count + 1:
        return Cron(" ".join(words[:count]), words[count])
    return Cron(" ".join(words))


def due(
    schedule: Schedule, *, last_us: int, now_us: int, missed: Missed, limit: int = FIRINGS_MAX
) -> Due:
    """Return which firings to make now, and what to remember.

    `last_us` is the last firing dealt with, or the moment the schedule was made: nothing at or
    before it is fired, so a clock that was set back fires nothing twice. Of the firings since then,
    "latest" makes the newest; "all" makes each, at most `limit` of them and the next ones when
    asked again; "skip" makes those that are no older than MISSED_GRACE_SECONDS, as many at once.
    However long the gap, this takes no longer than `limit` firings do.
    """
    if missed not in get_args(Missed):
        raise InvalidArgument(f"missed must be one of {', '.join(get_args(Missed))}: {missed!r}")
    check_count("limit", limit)
    if missed == "all":
        return _walk(schedule, last_us=last_us, now_us=now_us, limit=limit)
    newest_us = _newest(schedule, last_us=last_us, now_us=now_us)
    if newest_us is None:
        return Due(firings=(), last_us=last_us)
    if missed == "latest":
        return Due(firings=(newest_us,), last_us=newest_us)
    oldest_us = now_us - round(MISSED_GRACE_SECONDS * 1_000_000)
    if newest_us < oldest_us:
        return Due(firings=(), last_us=newest_us)
    return _walk(schedule, last_us=max(last_us, oldest_us - 1), now_us=now_us, limit=limit)


def _walk(schedule: Schedule, *, last_us: int, now_us: int, limit: int) -> Due:
    """Make each firing after `last_us`, up to `limit`."""
    firings: list[int] = []
    while len(firings) < limit:
        firing_us = schedule.after(last_us)
        if firing_us is None or firing_us > now_us:
            break
        firings.append(firing_us)
        last_us = firing_us
    return Due(firings=tuple(firings), last_us=last_us)


def _newest(schedule: Schedule, *, last_us: int, now_us: int) -> int | None:
    """Return the newest firing after `last_us` up to `now_us`, without walking through all."""
    newest_us = schedule.after(last_us)
    if newest_us is None or newest_us > now_us:
        return None
    if isinstance(schedule, Every):
        return now_us // schedule.interval_us * schedule.interval_us
    # Halve the stretch that may hold a newer one. Cron lines fire on whole minutes only, so what
    # is left in the end holds none.
    after_us = now_us
    while after_us - newest_us >= _CRON_STEP_US:
        middle_us = (newest_us + after_us) // 2
        firing_us = schedule.after(middle_us)
        if firing_us is not None and firing_us <= now_us:
            newest_us = firing_us
        else:
            after_us = middle_us
    return newest_us


def _every_from(text: str) -> Every:
    match = _EVERY.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f'no interval: {text!r}; write "every", a number and ms, s, m, h or d, '
            'for example "every 30s" or "every 1.5h"'
        )
    return Every(float(Decimal(match[1]) * _UNITS_US[match[2].lower()] / 1_000_000))


def _check_texts(*values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise InvalidArgument(f"a cron line and its time zone are texts; {_EXAMPLES}")


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # The library is quicker with this one than with the zone of that name.
    try:
        return ZoneInfo(name)
    # Zones are files: names of directories and names that are too long fail as those do.
    except (LookupError, ValueError, OSError) as error:
        raise InvalidArgument(
            f'no time zone: {name[:EXPRESSION_CHARACTERS_MAX]!r}; for example "Europe/Berlin"; a '
            f"cron line has {_FIELDS} fields before it: minute, hour, day, month and weekday"
        ) from error


@lru_cache(maxsize=_EXPRESSIONS_REMEMBERED)
def _is_possible(expression: str) -> bool:
    """Say whether the line's days exist: 30 February is well written, but never comes.

    Raises InvalidArgument if it is not well written.
    """
    fields = _ALIASES.get(expression, expression).split()
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise InvalidArgument(f"a cron line has at most {EXPRESSION_CHARACTERS_MAX} characters")
    if expression.startswith("@") and expression not in _ALIASES:
        raise InvalidArgument(f"no cron line: {expression!r}; there are {', '.join(_ALIASES)}")
    if len(fields) != _FIELDS:
        raise InvalidArgument(
            f"no cron line: {expression!r} has {len(fields)} fields, not {_FIELDS}: minute, hour, "
            f"day, month and weekday; {_EXAMPLES}"
        )
    try:
        CronSim(" ".join(fields), _EPOCH)
    except CronSimError as error:
        # The library refuses days that their months never have as it refuses bad ones.
        for anything in (_DAY_FIELD, _MONTH_FIELD):
            others = [*fields[:anything], "*", *fields[anything + 1 :]]
            try:
                CronSim(" ".join(others), _EPOCH)
            except CronSimError:
                reason = str(error).lower()
                raise InvalidArgument(
                    f"no cron line: {expression!r}: {reason}; {_EXAMPLES}"
                ) from error
        return False
    return True
