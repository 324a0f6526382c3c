"""When a task is due."""

from datetime import UTC, datetime, timedelta

import pytest

from segue.errors import InvalidArgument
from segue.tasks.schedule import (
    FIRINGS_MAX,
    MISSED_GRACE_SECONDS,
    Cron,
    Due,
    Every,
    Missed,
    Schedule,
    due,
    schedule_from,
)
from tests.unit.support import failing_cases

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BERLIN = "Europe/Berlin"


def us(text: str) -> int:
    """Return a moment that is written in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def written(moment_us: int | None) -> str:
    """Return a moment as people write it, in UTC."""
    assert moment_us is not None
    return f"{datetime.fromtimestamp(moment_us // SECOND, UTC):%Y-%m-%d %H:%M}"


def firings(schedule: Schedule, start: str, count: int) -> list[str]:
    """Return the first firings after `start`."""
    found = []
    moment_us = us(start)
    for _ in range(count):
        following_us = schedule.after(moment_us)
        assert following_us is not None
        found.append(written(following_us))
        moment_us = following_us
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/5 * * * *", "2026-01-15 10:05"),
        ("0 3 * * *", "2026-01-16 03:00"),
        ("0 12 * * MON", "2026-01-19 12:00"),
        ("0 12 L * *", "2026-01-31 12:00"),
        ("0 12 LW * *", "2026-01-30 12:00"),
        ("0 12 * * MON#1", "2026-02-02 12:00"),
        ("0 12 * * 5L", "2026-01-30 12:00"),
        ("0 0 29 2 *", "2028-02-29 00:00"),
        ("0 0 20 * FRI", "2026-01-16 00:00"),
        ("@hourly", "2026-01-15 11:00"),
        ("@daily", "2026-01-16 00:00"),
        ("@weekly", "2026-01-18 00:00"),
        ("@monthly", "2026-02-01 00:00"),
        ("@YEARLY", "2027-01-01 00:00"),
    ],
)
def test_a_cron_line_fires_when_it_says(expression: str, expected: str) -> None:
    """Five fields with names, lists and steps, days counted from the end, and five short names."""
    assert written(Cron(expression).after(us("2026-01-15 10:00"))) == expected


def test_a_cron_line_fires_in_its_zone() -> None:
    """Three in the morning in Berlin is two in UTC in winter, and one in summer."""
    schedule = Cron("0 3 * * *", BERLIN)

    assert firings(schedule, "2026-01-15 10:00", 1) == ["2026-01-16 02:00"]
    assert firings(schedule, "2026-07-15 10:00", 1) == ["2026-07-16 01:00"]


def test_runs_in_the_skipped_hour_come_as_one_at_its_end() -> None:
    """On 29 March 2026 there is no time from 02:00 to 03:00 in Berlin: 03:00 is 01:00 UTC."""
    once, four_times = Cron("30 2 * * *", BERLIN), Cron("0,15,30,45 2 * * *", BERLIN)

    assert firings(once, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:30"]
    assert firings(four_times, "2026-03-28 12:00", 2) == ["2026-03-29 01:00", "2026-03-30 00:00"]


def test_runs_in_the_repeated_hour_come_in_the_first_pass_alone() -> None:
    """On 25 October 2026 the hour from 02:00 to 03:00 comes twice in Berlin, from 00:00 UTC on."""
    schedule = Cron("30 2 * * *", BERLIN)

    assert firings(schedule, "2026-10-24 12:00", 2) == ["2026-10-25 00:30", "2026-10-26 01:30"]


@pytest.mark.parametrize("minutes", range(0, 60, 7))
def test_in_the_second_pass_of_an_hour_nothing_of_the_first_comes_again(minutes: int) -> None:
    """What comes next is later than now, also where the time of day is one that has been."""
    schedule = Cron("0,15,30,45 2 * * *", BERLIN)

    following_us = schedule.after(us("2026-10-25 01:00") + minutes * MINUTE)

    assert written(following_us) == "2026-10-26 01:00"


def test_lines_with_a_star_follow_the_hours_that_pass() -> None:
    """Every twenty minutes is every twenty minutes, whatever the clocks on the wall do."""
    schedule = Cron("*/20 * * * *", BERLIN)
    for start in ("2026-03-28 20:00", "2026-10-24 20:00"):
        moment_us = us(start)
        for _ in range(40):
            following_us = schedule.after(moment_us)
            assert following_us == moment_us + 20 * MINUTE
            moment_us = following_us


def test_lines_with_a_star_have_no_runs_in_the_skipped_hour_and_twice_those_of_the_repeated() -> (
    None
):
    """As Debian's cron has it: only runs at a given time are moved."""
    schedule = Cron("*/30 2 * * *", BERLIN)

    assert firings(schedule, "2026-03-28 12:00", 1) == ["2026-03-30 00:00"]
    assert firings(schedule, "2026-10-24 12:00", 5) == [
        "2026-10-25 00:00",
        "2026-10-25 00:30",
        "2026-10-25 01:00",
        "2026-10-25 01:30",
        "2026-10-26 01:00",
    ]


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *", "* * */30 2 MON#2"])
def test_a_day_that_never_comes_is_none(expression: str) -> None:
    """The search ends."""
    assert Cron(expression).after(us("2026-01-01 00:00")) is None


def test_a_rare_day_is_found() -> None:
    """A fifth Monday in February: next in 2044."""
    assert written(Cron("0 0 * 2 MON#5").after(us("2026-01-01"))) == "2044-02-29 00:00"


def test_there_is_nothing_after_the_end_of_the_calendar() -> None:
    """Moments that no date can name are no reason to fail."""
    assert Cron("@daily").after(us("9999-12-31 12:00")) is None
    assert Cron("@daily").after(10**19) is None


def test_a_firing_is_after_the_moment_to_the_microsecond() -> None:
    """A moment before it is; the firing itself is not."""
    noon_us = us("2026-01-15 12:00")
    for schedule in (Cron("0 12 * * *"), Every(86_400 / 2)):
        assert schedule.after(noon_us - 1) == noon_us
        assert schedule.after(noon_us) != noon_us


def test_an_interval_fires_on_its_multiples_since_1970() -> None:
    """All workers find the same moments without talking, before 1970 too."""
    assert [Every(30).after(moment_us) for moment_us in (-1, 0, 1, 30 * SECOND)] == [
        0,
        30 * SECOND,
        30 * SECOND,
        60 * SECOND,
    ]
    assert Every(4 / 3).after(0) == 1_333_333


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("*/5 * * * *", Cron("*/5 * * * *")),
        ("  0   3 * *\t* ", Cron("0 3 * * *")),
        ("0 3 * * * Europe/Berlin", Cron("0 3 * * *", BERLIN)),
        ("@daily", Cron("@daily")),
        ("@daily Europe/Berlin", Cron("@daily", BERLIN)),
        ("every 30s", Every(30)),
        ("every 5m", Every(300)),
        ("every 1.5h", Every(5_400)),
        ("every 1d", Every(86_400)),
        ("Every 2500 ms", Every(2.5)),
        (timedelta(minutes=2), Every(120)),
        (90, Every(90)),
        (1.5, Every(1.5)),
        (Cron("@hourly"), Cron("@hourly")),
        (Every(7), Every(7)),
    ],
    ids=str,
)
def test_a_schedule_may_be_said_in_many_ways(
    value: str | timedelta | float | Schedule, expected: Schedule
) -> None:
    """A text, a duration, seconds, or the thing itself; its own text says the same again."""
    schedule = schedule_from(value)

    assert schedule == expected
    assert schedule_from(schedule.text) == schedule


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (30, "every 30s"),
        (300, "every 5m"),
        (5_400, "every 90m"),
        (7_200, "every 2h"),
        (172_800, "every 2d"),
        (1.5, "every 1500ms"),
        (4 / 3, "every 1333.333ms"),
    ],
)
def test_an_interval_is_written_in_the_largest_unit_that_fits(
    seconds: float, expected: str
) -> None:
    """For people to read, and exact."""
    assert Every(seconds).text == expected


def test_what_is_no_schedule_is_refused_with_words_that_help() -> None:
    """The message says what is wrong."""

    def check(value: str, said: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            schedule_from(value)

        assert said in str(caught.value)

    failing = failing_cases(
        check,
        [
            ("", "has 0 fields"),
            ("* * * *", "has 4 fields, not 5"),
            ("61 * * * *", "bad minute"),
            ("0 24 * * *", "bad hour"),
            ("0 0 32 2 *", "bad day-of-month"),
            ("0 0 30 13 *", "bad month"),
            ("* * * * FUNDAY", "bad day-of-week"),
            ("*/0 * * * *", "bad minute"),
            ("0 0 3 * * *", "a cron line has 5 fields"),
            ("0 3 * * * Europe", "no time zone: 'Europe'"),
            ("0 3 * * * Mars/Olympus", "no time zone: 'Mars/Olympus'"),
            ("0 3 * * * ../../etc/passwd", "no time zone"),
            ("* * * * * " + "x" * 5_000, "no time zone"),
            ("0 3 * * * Europe/Berlin now", "has 7 fields"),
            ("@never", "there are @hourly"),
            ("9" * 5_000 + " * * * *", "at most 256 characters"),
            ("every", 'write "every"'),
            ("every 5", 'write "every"'),
            ("every -5s", 'write "every"'),
            ("every 5 fortnights", 'write "every"'),
            ("every 0s", "every must be from"),
            ("every 99999999999d", "every must be from"),
            (timedelta(seconds=-1), "every must be from"),
            (0, "every must be from"),
            (float("nan"), "every must be from"),
            (True, "no schedule"),
            (None, "no schedule"),
            (b"@daily", "no schedule"),
        ],
    )
    assert failing == []


def test_a_cron_line_is_a_text() -> None:
    """Fields as numbers, or no zone, are refused as other mistakes are."""
    with pytest.raises(InvalidArgument, match="texts"):
        Cron(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="texts"):
        Cron("@daily", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_a_firing_is_due_once_when_its_moment_comes(missed: Missed) -> None:
    """Not before, at the moment, and not again."""
    schedule = Every(60)
    early = due(schedule, last_us=0, now_us=MINUTE - 1, missed=missed)
    there = due(schedule, last_us=early.last_us, now_us=MINUTE, missed=missed)
    again = due(schedule, last_us=there.last_us, now_us=MINUTE + 1, missed=missed)

    assert early == Due(firings=(), last_us=0)
    assert there == Due(firings=(MINUTE,), last_us=MINUTE)
    assert again == Due(firings=(), last_us=MINUTE)


@pytest.mark.parametrize("schedule", [Every(60), Cron("* * * * *")], ids=str)
def test_after_a_gap_latest_makes_the_newest_alone(schedule: Schedule) -> None:
    """Ten minutes missed are one run, and it is remembered."""
    found = due(schedule, last_us=0, now_us=10 * MINUTE + 5, missed="latest")

    assert found == Due(firings=(10 * MINUTE,), last_us=10 * MINUTE)


@pytest.mark.parametrize("schedule", [Every(60), Cron("* * * * *")], ids=str)
def test_after_a_gap_all_makes_each_in_parts(schedule: Schedule) -> None:
    """At most `limit` at once, and the rest when asked again."""
    made: list[int] = []
    last_us = 0
    for expected in (4, 4, 2, 0):
        found = due(schedule, last_us=last_us, now_us=10 * MINUTE + 5, missed="all", limit=4)
        assert len(found.firings) == expected
        made += found.firings
        last_us = found.last_us

    assert made == [minute * MINUTE for minute in range(1, 11)]


def test_no_more_than_a_named_limit_are_made_at_once() -> None:
    """Unless asked for another."""
    found = due(Every(1), last_us=0, now_us=DAY, missed="all")

    assert len(found.firings) == FIRINGS_MAX


def test_after_a_gap_skip_makes_none_that_is_older_than_the_grace() -> None:
    """What is a little late is still made; what is older is dealt with by leaving it out."""
    grace_us = round(MISSED_GRACE_SECONDS * SECOND)
    schedule = Cron("0 * * * *")
    late = due(schedule, last_us=0, now_us=5 * HOUR + grace_us, missed="skip")
    later = due(schedule, last_us=0, now_us=5 * HOUR + grace_us + 1, missed="skip")

    assert late == Due(firings=(5 * HOUR,), last_us=5 * HOUR)
    assert later == Due(firings=(), last_us=5 * HOUR)


def test_what_was_skipped_does_not_come_back_with_the_clock() -> None:
    """A clock set back makes an old firing young again; it has been dealt with all the same."""
    skipped = due(Every(3_600), last_us=0, now_us=HOUR + 10 * MINUTE, missed="skip")
    back = due(Every(3_600), last_us=skipped.last_us, now_us=HOUR + SECOND, missed="skip")

    assert (skipped.firings, back.firings) == ((), ())


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_a_clock_set_back_fires_nothing_twice(missed: Missed) -> None:
    """Until the clock has caught up with what was fired, nothing is."""
    found = due(Every(60), last_us=60 * MINUTE, now_us=2 * MINUTE, missed=missed)

    assert found == Due(firings=(), last_us=60 * MINUTE)


@pytest.mark.parametrize("missed", ["latest", "skip"])
@pytest.mark.parametrize(
    "schedule", [Every(1), Cron("* * * * *"), Cron("* * 1 1 *"), Cron("* * * * *", BERLIN)]
)
def test_fifty_years_of_missed_firings_are_jumped_over(schedule: Schedule, missed: Missed) -> None:
    """Walked through one by one, millions of firings would outlast any test's time."""
    now_us = us("2026-01-01 00:30")
    found = due(schedule, last_us=0, now_us=now_us, missed=missed)

    assert 1 <= len(found.firings) <= FIRINGS_MAX
    assert found.firings[0] >= now_us - round(MISSED_GRACE_SECONDS * SECOND)
    if missed == "latest":
        assert found.firings == (now_us,)


@pytest.mark.parametrize("missed", ["latest", "all", "skip"])
def test_a_schedule_that_never_fires_is_never_due(missed: Missed) -> None:
    """And nothing is remembered."""
    found = due(Cron("0 0 30 2 *"), last_us=7, now_us=us("2026-01-01"), missed=missed)

    assert found == Due(firings=(), last_us=7)


def test_bad_ways_and_limits_are_refused() -> None:
    """The message names what there is."""
    with pytest.raises(InvalidArgument, match="latest, all, skip"):
        due(Every(1), last_us=0, now_us=1, missed="none")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="limit"):
        due(Every(1), last_us=0, now_us=1, missed="all", limit=0)
