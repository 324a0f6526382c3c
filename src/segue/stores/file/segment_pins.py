"""What keeps the segments of a queue's lanes, and of a ring: taken in a moment, then told.

A lane and a ring are deleted from their front on: what holds one segment holds all behind it.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Self

from segue.delivery.keeping import kept_from
from segue.delivery.lines import Grant, Level
from segue.delivery.message import Key
from segue.delivery.rules import QueueRules
from segue.log.inventory import SegmentInfo
from segue.stores.topic_looks import and_others
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore
    from segue.stores.file.ring_core import RingCore

OUTSTANDING_READ_MAX: Final = 10_000
"""At how many messages that are not settled one look goes, to tell which segments they keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """How far a lane was delivered, and what of that is not settled and lies there, in order."""

    cursor: int
    leased: list[int]
    waiting: list[int]
    read_upto: int
    """Beyond this nobody looked."""

    @classmethod
    def of(cls, level: Level, places: Mapping[Key, tuple[int, int]], most: int) -> Self:
        """Look at `most` messages at most, in a turn. `places` are those that were moved."""
        leased: list[int] = []
        waiting: list[int] = []
        read_upto = level.cursor
        here = (
            (offset, found)
            for offset, found in level.items.items()
            if not places or Key(level.priority, offset) not in places
        )
        for number, (offset, found) in enumerate(islice(here, most + 1)):
            if number == most:
                read_upto = min(read_upto, offset)
            else:
                (leased if isinstance(found, Grant) else waiting).append(offset)
        return cls(cursor=level.cursor, leased=leased, waiting=waiting, read_upto=read_upto)

    @property
    def floor(self) -> int:
        """The lowest offset that is not settled."""
        return min([*self.leased[:1], *self.waiting[:1], self.read_upto, self.cursor])

    def unsettled(self, start: int, stop: int) -> str:
        """Return in words what is not settled between two offsets; empty if all is."""
        words = [
            f"{count:,} {what}"
            for what, offsets in (("leased", self.leased), ("waiting", self.waiting))
            if (count := bisect_left(offsets, stop) - bisect_left(offsets, start))
        ]
        if start <= self.read_upto < min(stop, self.cursor):
            words.append("some more" if words else "messages that are not settled")
        return " and ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A queue at one moment."""

    rules: QueueRules
    lanes: Mapping[int, LaneFacts]
    now_us: int

    @classmethod
    def of(cls, core: "QueueCore") -> Self:
        """Take what has to fit together, in one turn."""
        lanes: dict[int, LaneFacts] = {}
        left = OUTSTANDING_READ_MAX
        with core.turn():
            ledger = core.ledger
            for priority, level in sorted(ledger.levels.items()):
                lane = core.lanes.by_priority.get(priority)
                if lane is None or lane.first_segment_end() is None:
                    continue  # A single segment takes records: nothing else keeps it.
                facts = LaneFacts.of(level, ledger.places, left)
                left -= len(facts.leased) + len(facts.waiting)
                lanes[priority] = facts
            return cls(rules=ledger.rules, lanes=lanes, now_us=core.place.clock())


def pins_in_lane(facts: QueueFacts, priority: int, infos: list[SegmentInfo]) -> list[str]:
    """Return in words what keeps each of a lane's segments that were delivered whole.

    Messages that are not settled, a segment before it that has such, or a rule.
    """
    lane = facts.lanes.get(priority)
    if lane is None:
        return [""] * len(infos)
    floor = lane.floor
    kept = _kept_from(facts, infos, floor)
    found: list[str] = []
    held = ""
    for info in infos:
        end = _end_of(info)
        words = ""
        if end is not None and end <= lane.cursor:
            words = lane.unsettled(end - info.count, end)
            if words:
                held = f"segment {info.id}, which comes before it"
            elif kept < end <= floor:
                words = _rule(facts.rules)
            else:
                words = held
        found.append(words)
    return found


def _end_of(info: SegmentInfo) -> int | None:
    """Return where a sealed segment ends."""
    if info.first_offset is None or not info.sealed:
        return None
    return info.first_offset + info.count


def _kept_from(facts: QueueFacts, infos: list[SegmentInfo], floor: int) -> int:
    """Return from where on the rules keep what is settled; the floor if they keep nothing."""
    if not facts.rules.keeps_settled:
        return floor
    segments = [
        (end, info.size_bytes, info.created_us if info.last_us is None else info.last_us)
        for info in infos
        if (end := _end_of(info)) is not None
    ]
    return kept_from(segments, floor=floor, rules=facts.rules, now_us=facts.now_us)


def _rule(rules: QueueRules) -> str:
    limits = ("keep_seconds", "keep_bytes")
    names = [name for name in limits if getattr(rules, name) is not None]
    return f"the rule{'s' * (len(names) > 1)} {' and '.join(names)}"


# Rings -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RingFacts:
    """A ring at one moment."""

    heads: Mapping[str, int]
    """Where each group stands."""
    needed_from: int
    """The oldest entry that the ring is restored from."""

    @classmethod
    def of(cls, core: "RingCore") -> Self:
        """Take what has to fit together."""
        with core.seeing() as state:
            return cls(heads=state.heads(), needed_from=state.needed_entries_from)


def pins_in_ring(facts: RingFacts, infos: list[SegmentInfo]) -> list[str]:
    """Return in words what keeps each segment: the group that is furthest back, if any needs it."""
    groups = sorted(facts.heads, key=lambda group: (facts.heads[group], group))
    heads = [facts.heads[group] for group in groups]
    found = []
    for info in infos:
        end = _end_of(info)
        if end is None:
            found.append("")
            continue
        count = bisect_left(heads, end)
        if count:
            found.append(and_others(f"group {groups[0]}", count))
        else:
            found.append("the next checkpoint" if end > facts.needed_from else "")
    return found
