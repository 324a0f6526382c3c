"""Laws of schedules: firings only go forward, and none is made twice or, if all are, left out."""

from datetime import UTC, datetime

from hypothesis import assume, example, given
from hypothesis import strategies as st

from segue.tasks.schedule import Cron, Every, Missed, Schedule, due, schedule_from

SECOND = 1_000_000
HOUR = 3_600 * SECOND
# Years with changes to and from summer time in all of the zones.
FIRST_US = 1_735_689_600 * SECOND  # 2025-01-01
LAST_US = 1_798_761_600 * SECOND  # 2027-01-01

MOMENTS = st.integers(min_value=FIRST_US, max_value=LAST_US)
CHANGES = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),  # Berlin and the Azores, where 00:00 is skipped,
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 3, 8, 7, tzinfo=UTC),  # New York,
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2026, 4, 23, 22, tzinfo=UTC),  # and Cairo, where a day goes back to the one before.
    datetime(2026, 10, 29, 21, tzinfo=UTC),
]
# On both sides of the moments when clocks are changed, where rules are hardest.
EDGES = st.builds(
    lambda change, offset_us: round(change.timestamp()) * SECOND + offset_us,
    st.sampled_from(CHANGES),
    st.integers(min_value=-3 * HOUR, max_value=3 * HOUR),
)
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Africa/Cairo", "Atlantic/Azores"]
)


@st.composite
def cron_fields(draw: st.DrawFn, least: int, most: int) -> str:
    """A field of any form that is within its limits."""
    form = draw(st.sampled_from(["*", "*/n", "a", "a-b", "a,b"]))
    first = draw(st.integers(min_value=least, max_value=most))
    second = draw(st.integers(min_value=first, max_value=most))
    return {
        "*": "*",
        "*/n": f"*/{draw(st.integers(min_value=1, max_value=most))}",
        "a": f"{first}",
        "a-b": f"{first}-{second}",
        "a,b": f"{first},{second}",
    }[form]


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    """Any cron line whose days come in every month."""
    fields = [
        draw(cron_fields(0, 59)),
        draw(cron_fields(0, 23)),
        draw(cron_fields(1, 28)),
        draw(cron_fields(1, 12)),
        draw(cron_fields(0, 7)),
    ]
    return Cron(" ".join(fields), draw(ZONES))


INTERVALS = st.builds(
    Every,
    st.one_of(
        st.integers(min_value=1, max_value=86_400),
        st.floats(min_value=1, max_value=1e6, allow_nan=False),
    ),
)
SCHEDULES = st.one_of(crons(), INTERVALS)
WAYS: st.SearchStrategy[Missed] = st.sampled_from(["latest", "all", "skip"])


@given(SCHEDULES)
def test_a_schedule_is_what_its_text_says(schedule: Schedule) -> None:
    """What is kept as a text is read back as the same schedule."""
    assert schedule_from(schedule.text) == schedule


@given(SCHEDULES, MOMENTS | EDGES, st.integers(min_value=0, max_value=48 * HOUR))
@example(Cron("0,15,30,45 2 * * *", "Europe/Berlin"), 1_792_891_200 * SECOND, 0)
def test_the_next_firing_is_later_and_never_goes_back(
    schedule: Schedule, moment_us: int, further_us: int
) -> None:
    """Strictly after the moment, and for a later moment no earlier."""
    following_us = schedule.after(moment_us)
    later_us = schedule.after(moment_us + further_us)
    assume(following_us is not None and later_us is not None)
    assert following_us is not None
    assert later_us is not None

    assert following_us > moment_us
    assert later_us >= following_us


@given(SCHEDULES, MOMENTS | EDGES, st.data())
def test_no_firing_hides_between_a_moment_and_the_next(
    schedule: Schedule, moment_us: int, data: st.DataObject
) -> None:
    """Asked from anywhere in between, the answer is the same."""
    following_us = schedule.after(moment_us)
    assume(following_us is not None)
    assert following_us is not None
    between_us = data.draw(st.integers(min_value=moment_us, max_value=following_us - 1))

    assert schedule.after(between_us) == following_us


@given(
    SCHEDULES,
    WAYS,
    MOMENTS | EDGES,
    st.lists(st.integers(min_value=-72 * HOUR, max_value=72 * HOUR), max_size=12),
    st.integers(min_value=1, max_value=20),
)
def test_however_the_clock_jumps_no_firing_comes_twice(
    schedule: Schedule, missed: Missed, start_us: int, jumps_us: list[int], limit: int
) -> None:
    """Each is later than all before it, and none lies in the future."""
    last_us = now_us = start_us
    for jump_us in jumps_us:
        now_us += jump_us
        found = due(schedule, last_us=last_us, now_us=now_us, missed=missed, limit=limit)
        made = [last_us, *found.firings]

        assert made == sorted(set(made))
        assert len(found.firings) <= limit
        assert all(firing_us <= now_us for firing_us in found.firings)
        assert found.last_us >= made[-1]
        assert found.last_us <= max(last_us, now_us)
        last_us = found.last_us


@given(
    SCHEDULES,
    MOMENTS | EDGES,
    st.lists(st.integers(min_value=0, max_value=30 * 60 * SECOND), max_size=8),
    st.integers(min_value=1, max_value=20),
)
def test_all_leaves_none_out_while_the_clock_goes_forward(
    schedule: Schedule, start_us: int, steps_us: list[int], limit: int
) -> None:
    """What is made, however it was asked for, is what the schedule has in that time."""
    assume(not isinstance(schedule, Every) or schedule.seconds > 10)
    made: list[int] = []
    last_us = now_us = start_us
    for step_us in [*steps_us, 0]:
        now_us += step_us
        while True:
            found = due(schedule, last_us=last_us, now_us=now_us, missed="all", limit=limit)
            made += found.firings
            last_us = found.last_us
            if len(found.firings) < limit:
                break

    expected: list[int] = []
    following_us = schedule.after(start_us)
    while following_us is not None and following_us <= now_us:
        expected.append(following_us)
        following_us = schedule.after(following_us)
    assert made == expected


@given(SCHEDULES, MOMENTS | EDGES, st.integers(min_value=0, max_value=48 * HOUR))
def test_latest_is_the_last_of_all(schedule: Schedule, last_us: int, gap_us: int) -> None:
    """To jump over a gap finds what to walk through it would have."""
    assume(not isinstance(schedule, Every) or schedule.seconds > 60)
    now_us = last_us + gap_us
    each = due(schedule, last_us=last_us, now_us=now_us, missed="all", limit=10_000)
    latest = due(schedule, last_us=last_us, now_us=now_us, missed="latest")

    assert latest.firings == each.firings[-1:]
    assert latest.last_us == each.last_us
