"""The settings of a queue, checked."""

import json
from dataclasses import fields, replace
from itertools import product

import pytest

from segue import QueueRules
from segue.errors import InvalidArgument
from tests.unit.support import failing_cases

COUNTS = ["max_leases", "max_deliveries", "capacity", "segment_items"]
SECONDS = ["lease_ttl", "backoff_base", "backoff_cap", "backoff_jitter", "dedup_window"]


def test_counts_are_whole_numbers_from_one_on() -> None:
    """None means no limit; anything else is refused."""

    def check(name: str, value: object) -> None:
        with pytest.raises(InvalidArgument, match=name):
            QueueRules(**{name: value})  # type: ignore[arg-type]

        assert getattr(QueueRules(**{name: None}), name) is None  # type: ignore[arg-type]

    assert failing_cases(check, product(COUNTS, [0, -1, True, 1.0, "1", 1 << 60])) == []


def test_durations_are_seconds() -> None:
    """Finite and not negative."""

    def check(name: str, value: object) -> None:
        with pytest.raises(InvalidArgument, match=name):
            QueueRules(**{name: value})  # type: ignore[arg-type]

    failing = failing_cases(
        check, product([*SECONDS, "keep_seconds"], [-1, float("nan"), float("inf"), True, "1"])
    )
    assert failing == []


@pytest.mark.parametrize("name", ["on_full", "on_expiry"])
@pytest.mark.parametrize("value", ["", "explode", None, 1, True], ids=repr)
def test_choices_are_among_those_there_are(name: str, value: object) -> None:
    """The message says which."""
    with pytest.raises(InvalidArgument, match=f"{name} must be one of"):
        QueueRules(**{name: value})  # type: ignore[arg-type]


def test_keeping_may_be_by_nothing() -> None:
    """Keep no bytes, or nothing for longer than now: both are rules, and no rule is another."""
    assert QueueRules(keep_bytes=0).keeps_settled
    assert QueueRules(keep_seconds=0).keeps_settled
    assert not QueueRules().keeps_settled
    with pytest.raises(InvalidArgument):
        QueueRules(keep_bytes=-1)


def test_strict_mode_has_limits_of_its_own() -> None:
    """Leases last 1 to 300 seconds, 30 by default, and the rules cannot say otherwise."""
    strict = QueueRules(max_leases=1)
    assert (strict.is_strict, strict.lease_ttl) == (True, 30)
    assert (strict.lease_us(1), strict.lease_us(300)) == (1_000_000, 300_000_000)
    for seconds in (0.5, 300.5):
        with pytest.raises(InvalidArgument):
            strict.lease_us(seconds)
        with pytest.raises(InvalidArgument):
            QueueRules(max_leases=1, lease_ttl=seconds)

    assert not QueueRules(max_leases=2).is_strict
    assert QueueRules(max_leases=2, lease_ttl=0.5).lease_us(0.25) == 250_000


def test_rules_are_read_as_they_were_written() -> None:
    """Every one of them."""
    rules = QueueRules(
        lease_ttl=7.5,
        max_leases=3,
        max_deliveries=None,
        backoff_base=0.5,
        backoff_cap=9,
        backoff_jitter=0,
        capacity=100,
        on_full="block",
        on_expiry="drop",
        dedup_window=0,
        keep_seconds=60,
        keep_bytes=1_000,
        segment_items=10,
        group_concurrency=4,
        rate=12.5,
        rate_burst=3,
    )
    changed = [field.name for field in fields(rules) if getattr(rules, field.name) != field.default]

    assert QueueRules.from_json(rules.to_json()) == rules
    assert changed == [field.name for field in fields(rules)]


def test_rules_of_another_version_are_read_as_far_as_they_are_known() -> None:
    """What is not said is the default; what is not known is left out."""
    rules = QueueRules.from_json(b'{"capacity": 5, "colour": "blue"}')

    assert rules == QueueRules(capacity=5)


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b'"x"', b'{"capacity": -1}', b"\xff"])
def test_what_are_no_rules_is_an_error(text: bytes) -> None:
    """The ledger goes on with those it has."""
    with pytest.raises((ValueError, TypeError, AttributeError)):
        QueueRules.from_json(text)


def test_segments_are_shown_by_the_hundred_unless_told_otherwise() -> None:
    """`state` uses the size of the segments on disk if it is set."""
    assert QueueRules().segment_size == 100
    assert QueueRules(segment_items=7).segment_size == 7


def test_the_backoff_is_that_of_the_rules() -> None:
    """In microseconds."""
    backoff = QueueRules(backoff_base=0.5, backoff_cap=2, backoff_jitter=0.25).backoff

    assert (backoff.base_us, backoff.cap_us, backoff.jitter) == (500_000, 2_000_000, 0.25)


def test_rules_are_values() -> None:
    """Equal if they say the same, changed only into others."""
    rules = QueueRules(capacity=3)

    assert rules == QueueRules(capacity=3)
    assert replace(rules, capacity=4) != rules
    assert json.loads(rules.to_json())["capacity"] == 3
