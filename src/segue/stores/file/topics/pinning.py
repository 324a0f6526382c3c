"""What keeps the segments of a partition: who reads there, or a rule. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from segue.delivery.topic_rules import TopicRules
from segue.log.layout import Offset, SegmentId
from segue.log.options import microseconds_from
from segue.log.positions import SavedPosition
from segue.log.retention import RetentionLimits, SegmentFacts, has_left, segments_to_delete
from segue.stores.topic_looks import and_others, holder

EVERYTHING: Final = SavedPosition(SegmentId(0), Offset(0))
"""What a place protects that cannot be read."""


class Pins:
    """The oldest sealed segments of a partition: how many may go, and what keeps the others."""

    def __init__(
        self,
        facts: Sequence[SegmentFacts],
        positions: Mapping[str, SavedPosition | None],
        rules: TopicRules,
        *,
        other_bytes: int,
        next_offset: Offset,
        now_us: int,
    ) -> None:
        """`other_bytes` is what the segments take up that are not among `facts`."""
        limits = RetentionLimits(
            age_us_max=microseconds_from(rules.keep_seconds, name="keep_seconds"),
            bytes_max=rules.keep_bytes,
            lag_max=rules.lag_max,
        )
        places = {mark: saved or EVERYTHING for mark, saved in positions.items()}
        self._rules = rules
        self._marks = sorted(places, key=lambda mark: (places[mark].offset, mark))
        """Whoever stands furthest back first."""
        self._passed = [
            bisect_left(
                facts,
                True,
                key=lambda fact: not has_left(places[mark], fact, limits, next_offset),
            )
            for mark in self._marks
        ]
        """How many segments each of them has left behind, in the same order."""
        self.deletable = len(
            segments_to_delete(
                facts,
                list(places.values()),
                limits,
                active_bytes=other_bytes,
                next_offset=next_offset,
                now_us=now_us,
            )
        )
        """How many may go."""

    def furthest_of(self, index: int) -> str:
        """Return who stands furthest back and so keeps a segment; empty if nobody does."""
        return holder(self._marks[0]) if self._count(index) else ""

    def of(self, index: int) -> str:
        """Return who or what keeps a segment, in words; empty if it may go."""
        count = self._count(index)
        if count:
            return and_others(holder(self._marks[0]), count)
        return "" if index < self.deletable else self._rule()

    def _count(self, index: int) -> int:
        """Return how many keep a segment."""
        return 0 if index < self.deletable else bisect_right(self._passed, index)

    def _rule(self) -> str:
        rules = self._rules
        names = [
            name for name in ("keep_seconds", "keep_bytes") if getattr(rules, name) is not None
        ]
        if not names:
            return "nobody reads it, and no rule lets it go"
        return f"the rule{'s' * (len(names) > 1)} {' and '.join(names)}"
