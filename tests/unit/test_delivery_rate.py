"""A rate is one number that moves on: never faster than it says, never slower than it must."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segue.delivery.rate import RATE_MAX, RATE_MIN, SECOND_NS, Rate

RATES = st.builds(
    lambda per_second, burst: Rate(per_second=per_second, burst=burst),
    st.floats(min_value=RATE_MIN, max_value=RATE_MAX),
    st.integers(min_value=1, max_value=50),
)
STEPS = st.lists(
    st.tuples(st.floats(min_value=0, max_value=60), st.integers(min_value=0, max_value=30)),
    max_size=40,
)


@given(RATES, STEPS)
@example(Rate(per_second=1, burst=1), [(0.0, 1), (0.5, 1), (0.5, 1)])
def test_in_no_stretch_of_time_are_there_more_than_the_rate_says(
    rate: Rate, steps: list[tuple[float, int]]
) -> None:
    """The burst, and one more for each interval that has passed."""
    due_ns, now_ns = 0, 5 * SECOND_NS
    delivered: list[tuple[int, int]] = []
    for intervals, wanted in steps:
        now_ns += int(intervals * rate.interval_ns)
        count = min(wanted, rate.allowed(due_ns=due_ns, now_ns=now_ns))
        if count:
            due_ns = rate.after(count, due_ns=due_ns, now_ns=now_ns)
            delivered.append((now_ns, count))
        for first, (start_ns, _) in enumerate(delivered):
            total = sum(each for _, each in delivered[first:])
            assert total <= rate.burst + (now_ns - start_ns) // rate.interval_ns


@given(RATES, STEPS)
def test_whoever_waits_as_long_as_it_says_gets_one(
    rate: Rate, steps: list[tuple[float, int]]
) -> None:
    """Not a nanosecond earlier."""
    due_ns, now_ns = 0, 5 * SECOND_NS
    for intervals, wanted in steps:
        now_ns += int(intervals * rate.interval_ns)
        count = min(wanted, rate.allowed(due_ns=due_ns, now_ns=now_ns))
        if count:
            due_ns = rate.after(count, due_ns=due_ns, now_ns=now_ns)
        wait_ns = rate.wait_ns(due_ns=due_ns, now_ns=now_ns)

        assert (wait_ns == 0) == (rate.allowed(due_ns=due_ns, now_ns=now_ns) > 0)
        assert rate.allowed(due_ns=due_ns, now_ns=now_ns + wait_ns) >= 1
        assert not wait_ns or rate.allowed(due_ns=due_ns, now_ns=now_ns + wait_ns - 1) == 0
        assert wait_ns <= rate.interval_ns


@given(RATES)
def test_after_a_long_rest_there_is_the_whole_burst(rate: Rate) -> None:
    """And never more."""
    assert rate.allowed(due_ns=0, now_ns=SECOND_NS) == rate.burst


@pytest.mark.parametrize("due_ns", [-(1 << 63), -1, 1 << 62, (1 << 63) - 1])
def test_what_nobody_can_have_meant_stops_nothing(due_ns: int) -> None:
    """A number from another life of the machine must not hold up the queue for a century."""
    rate = Rate(per_second=10, burst=2)

    assert rate.allowed(due_ns=due_ns, now_ns=SECOND_NS) == 2
    assert rate.wait_ns(due_ns=due_ns, now_ns=SECOND_NS) == 0
