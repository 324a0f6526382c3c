"""Which settled messages are kept for replay."""

from segue import QueueRules
from segue.delivery.keeping import kept_from

SECOND = 1_000_000
SEGMENTS = [(10 * n, 100, 10 * n * SECOND) for n in range(1, 6)]
"""Five segments of ten messages and a hundred bytes, written ten seconds apart."""


def kept(rules: QueueRules, *, floor: int = 50, now: int = 50) -> int:
    return kept_from(SEGMENTS, floor=floor, rules=rules, now_us=now * SECOND)


def test_what_is_older_may_go() -> None:
    """As old as the rule says is not older."""
    assert kept(QueueRules(keep_seconds=30)) == 10
    assert kept(QueueRules(keep_seconds=29)) == 20
    assert kept(QueueRules(keep_seconds=1_000)) == 0


def test_what_is_too_much_may_go() -> None:
    """The oldest first, until the rest fits."""
    assert kept(QueueRules(keep_bytes=500)) == 0
    assert kept(QueueRules(keep_bytes=499)) == 10
    assert kept(QueueRules(keep_bytes=200)) == 30
    assert kept(QueueRules(keep_bytes=0)) == 50


def test_with_both_rules_either_lets_go() -> None:
    """What is too old goes even if there is room, and the other way round."""
    assert kept(QueueRules(keep_seconds=30, keep_bytes=10_000)) == 10
    assert kept(QueueRules(keep_seconds=1_000, keep_bytes=250)) == 30


def test_what_is_not_settled_stays() -> None:
    """However old or large it is; only whole settled segments count."""
    assert kept(QueueRules(keep_seconds=0), floor=29, now=10_000) == 20
    assert kept(QueueRules(keep_bytes=0), floor=9) == 0
    assert kept(QueueRules(keep_bytes=100), floor=30) == 20


def test_nothing_is_kept_of_nothing() -> None:
    """No segments, nothing to go."""
    assert kept_from([], floor=0, rules=QueueRules(keep_bytes=0), now_us=0) == 0


def test_a_clock_set_back_lets_nothing_go() -> None:
    """What seems to come from the future is young."""
    assert kept(QueueRules(keep_seconds=1), now=0) == 0
