"""How many workers there should be."""

from collections.abc import Sequence
from itertools import product

import pytest

from segue.errors import InvalidArgument
from segue.tasks.autoscaler import (
    DECISIONS_KEPT,
    Autoscaler,
    Sample,
    ScalingRules,
    is_safe_to_stop,
)
from tests.unit.support import failing_cases

SECOND = 1_000_000
LONG = 120 * SECOND
COUNTS = [
    "min_workers",
    "max_workers",
    "depth_up",
    "depth_per_worker_up",
    "step_depth",
]
SECONDS = ["idle_seconds", "cooldown_up_seconds", "cooldown_down_seconds", "check_seconds"]
FRACTIONS = ["step_up_fraction", "step_down_fraction"]


def sample(
    second: float = 0,
    *,
    depth: int = 0,
    workers: int = 2,
    busy: int = 0,
    idle_us: Sequence[int] = (),
) -> Sample:
    """Return how things stand some seconds after the start."""
    return Sample(
        ticks_us=round(second * SECOND), depth=depth, workers=workers, busy=busy, idle_us=idle_us
    )


def autoscaler(**settings: float) -> Autoscaler:
    """Return one for up to a hundred workers."""
    return Autoscaler(ScalingRules(**{"max_workers": 100} | settings))  # type: ignore[arg-type]


def test_counts_are_whole_numbers() -> None:
    """Anything else is refused, by name."""

    def check(name: str, value: object) -> None:
        with pytest.raises(InvalidArgument, match=name):
            ScalingRules(**{name: value})  # type: ignore[arg-type]

    assert failing_cases(check, product(COUNTS, [-1, True, 1.5, "1", None, 1 << 60])) == []


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "1"], ids=repr)
def test_durations_are_seconds(name: str, value: object) -> None:
    """Finite and not negative."""
    with pytest.raises(InvalidArgument, match=name):
        ScalingRules(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FRACTIONS)
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "1"], ids=repr)
def test_steps_are_fractions(name: str, value: object) -> None:
    """From nothing to all."""
    with pytest.raises(InvalidArgument, match=name):
        ScalingRules(**{name: value})  # type: ignore[arg-type]


def test_the_fewest_are_no_more_than_the_most() -> None:
    """Zero is a fewest, but no most."""
    assert ScalingRules(min_workers=0, max_workers=1).min_workers == 0
    with pytest.raises(InvalidArgument, match="max_workers"):
        ScalingRules(max_workers=0)
    with pytest.raises(InvalidArgument, match="5 > 4"):
        ScalingRules(min_workers=5, max_workers=4)


@pytest.mark.parametrize("name", ["depth", "workers", "busy"])
def test_a_sample_counts_from_nothing_on(name: str) -> None:
    """A count below nothing is a mistake of who counted."""
    with pytest.raises(InvalidArgument, match=name):
        sample(**{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("depth", "workers", "busy", "reason"),
    [
        (40, 2, 2, "up 2 → 3: all 2 workers busy, 40 waiting"),
        (1, 1, 1, "up 1 → 2: the only worker busy, 1 waiting"),
        (101, 20, 3, "up 20 → 22: 101 waiting, more than 100"),
        (31, 3, 1, "up 3 → 4: 31 waiting, more than 10 for each worker"),
    ],
)
def test_load_adds_workers(depth: int, workers: int, busy: int, reason: str) -> None:
    """All busy and a backlog, too much in all, or too much for each; the reason says which."""
    decision = autoscaler().decide(sample(depth=depth, workers=workers, busy=busy))

    assert decision.reason == reason
    assert decision.is_change


@pytest.mark.parametrize(
    ("depth", "workers", "busy"), [(100, 10, 9), (20, 2, 1), (0, 2, 2), (0, 1, 0)]
)
def test_load_at_its_limits_adds_none(depth: int, workers: int, busy: int) -> None:
    """More than the limit is too much; as much as the limit is not, nor are busy workers alone."""
    decision = autoscaler().decide(sample(depth=depth, workers=workers, busy=busy))

    assert not decision.is_change


@pytest.mark.parametrize(
    ("depth", "workers", "added"),
    [(5, 10, 1), (99, 10, 1), (100, 10, 2), (250, 10, 5), (10_000, 10, 6), (10_000, 1, 1)],
)
def test_one_worker_is_added_for_each_fifty_that_wait(depth: int, workers: int, added: int) -> None:
    """At least one, at most half as many again and one."""
    decision = autoscaler().decide(sample(depth=depth, workers=workers, busy=workers))

    assert decision.workers_after - workers == added


def test_from_none_the_first_is_one() -> None:
    """Where no worker need be, the first task that waits gets one."""
    decision = autoscaler(min_workers=0).decide(sample(depth=900, workers=0))

    assert decision.reason == "up 0 → 1: nobody works, 900 waiting"


def test_there_are_never_more_than_the_most() -> None:
    """The last step is cut short, and then it says why it stays."""
    scaler = autoscaler(max_workers=11)
    decision = scaler.decide(sample(depth=10_000, workers=10, busy=10))
    stayed = scaler.decide(sample(60, depth=10_000, workers=11, busy=11))

    assert decision.workers_after == 11
    assert stayed.workers_after == 11
    assert scaler.standing == (
        "11 workers: the most there may be; all 11 workers busy, 10000 waiting"
    )


def test_after_adding_workers_more_come_when_it_has_cooled_down() -> None:
    """The very first step waits for nothing."""
    scaler = autoscaler()
    first = scaler.decide(sample(0, depth=40, workers=1, busy=1))
    held = scaler.decide(sample(29.5, depth=40, workers=2, busy=2))
    later = scaler.decide(sample(30, depth=40, workers=2, busy=2))

    assert [first.workers_after, held.workers_after, later.workers_after] == [2, 2, 3]
    assert held.reason == (
        "2 workers: up again in 1 s at the earliest; all 2 workers busy, 40 waiting"
    )


def test_idle_workers_go_after_two_checks() -> None:
    """One look may be chance."""
    scaler = autoscaler()
    idle = [LONG, 5, 5]
    first = scaler.decide(sample(1, depth=3, workers=8, busy=5, idle_us=idle))
    second = scaler.decide(sample(2, depth=3, workers=8, busy=5, idle_us=idle))

    assert not first.is_change
    assert second.reason == "down 8 → 7: 1 idle for 120 s or longer, 3 waiting"


def test_the_two_checks_follow_each_other() -> None:
    """A check that found nobody idle starts the count anew, and one moment is one check."""
    scaler = autoscaler()
    rest, work = [LONG], [LONG - 1]
    decisions = [
        scaler.decide(sample(1, depth=1, workers=8, busy=7, idle_us=rest)),
        scaler.decide(sample(2, depth=1, workers=8, busy=7, idle_us=work)),
        scaler.decide(sample(3, depth=1, workers=8, busy=7, idle_us=rest)),
        scaler.decide(sample(3, depth=1, workers=8, busy=7, idle_us=rest)),
    ]

    assert not any(decision.is_change for decision in decisions)


def test_with_nothing_to_do_and_half_of_them_idle_one_check_is_enough() -> None:
    """An empty queue needs no second look."""
    half = autoscaler().decide(sample(workers=8, busy=4, idle_us=[LONG] * 4))
    fewer = autoscaler().decide(sample(workers=8, busy=5, idle_us=[LONG] * 3))

    assert half.workers_after == 6
    assert not fewer.is_change


@pytest.mark.parametrize(
    ("workers", "idle", "left"), [(40, 40, 30), (40, 22, 30), (3, 3, 2), (2, 2, 1), (1, 1, 1)]
)
def test_a_quarter_goes_at_once(workers: int, idle: int, left: int) -> None:
    """At least one, but never below the fewest."""
    decision = autoscaler().decide(
        sample(workers=workers, busy=workers - idle, idle_us=[LONG] * idle)
    )

    assert decision.workers_after == left


def test_no_more_go_than_are_idle() -> None:
    """A quarter of forty is ten, but who works is left alone."""
    scaler = autoscaler()
    scaler.decide(sample(1, workers=40, busy=38, idle_us=[LONG] * 2))
    decision = scaler.decide(sample(2, workers=40, busy=38, idle_us=[LONG] * 2))
    behind = autoscaler().decide(sample(workers=4, busy=4, idle_us=[LONG] * 4))

    assert decision.workers_after == 38
    assert not behind.is_change


def test_after_any_change_workers_go_when_it_has_cooled_down() -> None:
    """Those that were just added are not sent away again."""
    scaler = autoscaler()
    idle = [LONG] * 4
    scaler.decide(sample(0, depth=40, workers=3, busy=3))
    held = scaler.decide(sample(119, workers=4, idle_us=idle))
    first = scaler.decide(sample(120, workers=4, idle_us=idle))
    again = scaler.decide(sample(239, workers=3, idle_us=idle))
    second = scaler.decide(sample(240, workers=3, idle_us=idle))

    assert held.reason == "4 workers: down in 1 s at the earliest; 4 idle for 120 s or longer"
    assert [first.workers_after, again.workers_after, second.workers_after] == [3, 3, 2]


def test_after_workers_went_load_brings_them_back_at_once() -> None:
    """To be slow to add them would only keep tasks waiting."""
    scaler = autoscaler()
    scaler.decide(sample(0, workers=4, idle_us=[LONG] * 4))
    decision = scaler.decide(sample(1, depth=40, workers=3, busy=3))

    assert decision.workers_after == 4


def test_load_outweighs_idle_workers() -> None:
    """With too much waiting nobody is sent away."""
    decision = autoscaler().decide(sample(depth=500, workers=8, busy=0, idle_us=[LONG] * 8))

    assert decision.workers_after > 8


@pytest.mark.parametrize(
    ("workers", "after", "reason"),
    [
        (0, 3, "up 0 → 3: at least 3 wanted"),
        (50, 5, "down 50 → 5: at most 5 wanted"),
    ],
)
def test_a_number_that_may_not_be_is_put_right_at_once(
    workers: int, after: int, reason: str
) -> None:
    """Workers that died come back in one step, and no cool-down follows from it."""
    scaler = autoscaler(min_workers=3, max_workers=5)
    decision = scaler.decide(sample(0, depth=9, workers=workers, busy=workers))
    following = scaler.decide(sample(1, depth=9, workers=3, busy=3))

    assert (decision.workers_after, decision.reason) == (after, reason)
    assert following.workers_after == 4


def test_the_waits_may_be_set() -> None:
    """Idleness, cool-downs and steps are rules, not laws."""
    scaler = autoscaler(
        idle_seconds=1, cooldown_up_seconds=0, cooldown_down_seconds=0, step_down_fraction=1
    )
    up = [scaler.decide(sample(tick, depth=9, workers=4, busy=4)) for tick in (1, 2)]
    down = scaler.decide(sample(2, workers=8, idle_us=[SECOND] * 8))

    assert [decision.workers_after for decision in up] == [5, 5]
    assert down.workers_after == 1


def test_decisions_that_changed_something_are_kept() -> None:
    """The last hundred, oldest first, with what was seen; the others leave a reason behind."""
    scaler = autoscaler(cooldown_up_seconds=0)
    assert (scaler.decisions, scaler.standing) == ((), "")
    made = [
        scaler.decide(Sample(ticks_us=tick, time_us=tick + 7, depth=40, workers=2, busy=2))
        for tick in range(DECISIONS_KEPT + 5)
    ]
    scaler.decide(sample(depth=3, workers=2, busy=1))

    assert scaler.decisions == tuple(made[-DECISIONS_KEPT:])
    assert scaler.standing == "2 workers: 1 busy, 3 waiting"
    last = scaler.decisions[-1]
    assert (last.workers_before, last.depth, last.busy) == (2, 40, 2)
    assert last.time_us == last.ticks_us + 7


@pytest.mark.parametrize(
    ("depth", "busy", "safe"), [(0, 0, True), (1, 0, False), (0, 1, False), (2, 3, False)]
)
def test_it_is_safe_to_stop_with_nothing_waiting_and_nothing_leased(
    depth: int, busy: int, safe: bool
) -> None:
    """However many workers there are."""
    assert is_safe_to_stop(sample(depth=depth, busy=busy)) is safe
