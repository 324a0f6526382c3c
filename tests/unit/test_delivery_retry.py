"""How long a failed message waits before it is tried again."""

import random

import pytest

from segue.delivery.retry import Backoff

SECOND = 1_000_000


def exact(failures: int, **settings: int) -> float:
    """Return the wait without its random part, in seconds."""
    return Backoff(**settings, jitter=0).delay_us(failures, random.Random(0)) / SECOND


def test_a_failure_waits_twice_as_long_as_the_one_before() -> None:
    """One second, two, four, up to five minutes."""
    waits = [exact(failures) for failures in range(11)]

    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.parametrize("failures", [63, 64, 1_000, 10**9, 10**30])
def test_no_number_of_failures_is_too_large(failures: int) -> None:
    """The cap holds, and nothing overflows or takes long."""
    assert exact(failures) == 300


@pytest.mark.parametrize("failures", [0, -1, -100])
def test_no_failure_waits_as_the_first(failures: int) -> None:
    """A count that makes no sense is none."""
    assert exact(failures) == 1


def test_a_cap_below_the_base_is_the_wait() -> None:
    """The cap always holds."""
    assert exact(0, base_us=10 * SECOND, cap_us=3 * SECOND) == 3


def test_no_base_is_no_wait() -> None:
    """A base of nothing means at once, for ever."""
    assert [exact(failures, base_us=0) for failures in (0, 5, 90)] == [0, 0, 0]


@pytest.mark.parametrize("jitter", [0.1, 0.5, 1.0])
def test_jitter_spreads_the_waits_within_its_bounds(jitter: float) -> None:
    """Messages that fail together do not come back together."""
    backoff = Backoff(base_us=100 * SECOND, cap_us=100 * SECOND, jitter=jitter)
    chance = random.Random(1)
    waits = [backoff.delay_us(0, chance) / (100 * SECOND) for _ in range(500)]

    assert all(1 - jitter <= wait <= 1 + jitter for wait in waits)
    assert max(waits) > 1 + 0.8 * jitter
    assert min(waits) < 1 - 0.8 * jitter
