"""Which segments hold what, and what keeps them, of everything a directory has.

From headers alone (`log/outline.py`): nothing is made by looking, and no payload is read. Of a
queue or ring that cannot be opened its segments are told all the same, but not what keeps them.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from segue.errors import CorruptManifest, UnsupportedFormat
from segue.log.inventory import SegmentInfo
from segue.log.outline import HEADERS_READ_MAX, Outline
from segue.log.outlines import Outlines
from segue.stores.file.core import QueueCore
from segue.stores.file.place import Place
from segue.stores.file.ring_core import RingCore
from segue.stores.file.ring_opening import ENTRIES, LEDGER
from segue.stores.file.segment_pins import QueueFacts, RingFacts, pins_in_lane, pins_in_ring
from segue.stores.file.topics.looking import DirectoryTopicLooks
from segue.values import dataclass

logger = logging.getLogger(__name__)

SEGMENTS_SHOWN_MAX: Final = HEADERS_READ_MAX
"""How many segments of one log are told, the newest."""
SEGMENTS_TOLD_MAX: Final = 20_000
"""How many segments are told at once, of all logs together; who comes first has them."""
LOGS_SHOWN_MAX: Final = 256
"""How many lanes or partitions are told of."""


class SegmentState(Enum):
    """What is the matter with a segment."""

    ACTIVE = "active"
    """It takes records."""
    SEALED = "sealed"
    QUARANTINED = "quarantined"
    """Recovery or repair has set it aside."""
    UNREADABLE = "unreadable"
    """Its header says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSegment:
    """One segment."""

    id: int
    state: SegmentState
    pinned_by: str
    """What keeps it; empty if nothing does, or if it holds what was not delivered yet."""
    first_offset: int | None
    count: int
    size_bytes: int
    created_us: int | None
    last_us: int | None
    """When its last record was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedLog:
    """One log and its segments, oldest first."""

    name: str
    first_offset: int
    next_offset: int
    size_bytes: int
    segments: list[MappedSegment]
    more: int
    """How many older segments there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMap:
    """All logs of a queue, topic or ring."""

    logs: list[MappedLog] = field(default_factory=list)
    more_logs: int = 0
    """How many lanes or partitions are not told of."""


Pins = Callable[[Outline, list[SegmentInfo]], list[str]]
"""Returns in words what keeps each of these segments, which are in order."""


class _Drawing:
    """A map as it grows."""

    def __init__(self, outlines: Outlines) -> None:
        self._outlines = outlines
        self._left = SEGMENTS_TOLD_MAX
        self.logs: list[MappedLog] = []

    def add(self, name: str, path: Path, pins_of: Pins | None = None) -> None:
        """Tell of the log at `path`, if there is one."""
        with self._outlines.look(path) as outline:
            if outline is None:
                return
            infos, more = outline.newest(min(SEGMENTS_SHOWN_MAX, self._left))
            pins = [""] * len(infos) if pins_of is None else pins_of(outline, infos)
            self._left -= len(infos)
            segments = [*_aside(outline), *_mapped(outline, infos, pins)]
            self.logs.append(
                MappedLog(
                    name=name,
                    first_offset=outline.first_offset,
                    next_offset=outline.next_offset,
                    size_bytes=outline.size_bytes,
                    segments=sorted(segments, key=lambda each: each.id),
                    more=more,
                )
            )


def _aside(outline: Outline) -> Iterator[MappedSegment]:
    for info in outline.quarantined():
        yield _segment(info, SegmentState.QUARANTINED, count=info.count)


def _mapped(outline: Outline, infos: list[SegmentInfo], pins: list[str]) -> Iterator[MappedSegment]:
    if not infos:
        return
    last = infos[-1].id
    # What was never sealed ends where the next one begins, or with the log.
    begins = [*(info.first_offset for info in infos[1:]), outline.next_offset]
    for info, pinned_by, following in zip(infos, pins, begins, strict=True):
        count = info.count
        if info.first_offset is None:
            state = SegmentState.UNREADABLE
        elif info.sealed or info.id != last:
            state = SegmentState.SEALED
            if following is not None:
                count = min(count, max(0, following - info.first_offset))
        else:
            state = SegmentState.ACTIVE
        last_us = info.last_us
        if state is SegmentState.ACTIVE and count:
            last_us = outline.time_of(outline.next_offset - 1)
        yield _segment(info, state, count=count, pinned_by=pinned_by, last_us=last_us)


def _segment(
    info: SegmentInfo,
    state: SegmentState,
    *,
    count: int,
    pinned_by: str = "",
    last_us: int | None = None,
) -> MappedSegment:
    return MappedSegment(
        id=info.id,
        state=state,
        pinned_by=pinned_by,
        first_offset=info.first_offset,
        count=count,
        size_bytes=info.size_bytes,
        created_us=None if info.first_offset is None else info.created_us,
        last_us=info.last_us if last_us is None else last_us,
    )


def queue_map(path: Path, place: Place, outlines: Outlines, core: QueueCore | None) -> SegmentMap:
    """Return the map of the queue at `path`; `core` is None if it cannot be opened."""
    facts = None if core is None else QueueFacts.of(core)
    drawing = _Drawing(outlines)
    names = place.disk.names(path / "lanes")
    priorities = sorted(int(name) for name in names if name.isdecimal())
    for priority in priorities[:LOGS_SHOWN_MAX]:
        pins = None if facts is None else partial(_lane_pins, facts, priority)
        drawing.add(f"lane {priority}", path / "lanes" / str(priority), pins)
    for name, directory in (("later", "aside"), ("dead letters", "dead"), ("ledger", "ledger")):
        drawing.add(name, path / directory)
    return SegmentMap(logs=drawing.logs, more_logs=max(0, len(priorities) - LOGS_SHOWN_MAX))


def _lane_pins(
    facts: QueueFacts, priority: int, outline: Outline, infos: list[SegmentInfo]
) -> list[str]:
    del outline
    return pins_in_lane(facts, priority, infos)


def topic_map(looks: DirectoryTopicLooks) -> SegmentMap:
    """Return the map of a topic; without a manifest that can be read not what keeps anything.

    Raises TopicNotFound.
    """
    try:
        numbers = looks.numbers()
        pins: Pins | None = partial(looks.pins, looks.rules)
    except (CorruptManifest, UnsupportedFormat) as error:
        logger.warning("no manifest topic=%s reason=%s", looks.name, error)
        numbers, pins = looks.numbers_on_disk(), None
    drawing = _Drawing(looks.outlines)
    for number in numbers[:LOGS_SHOWN_MAX]:
        drawing.add(f"partition {number}", looks.path_of(number), pins)
    return SegmentMap(logs=drawing.logs, more_logs=max(0, len(numbers) - LOGS_SHOWN_MAX))


def ring_map(path: Path, outlines: Outlines, core: RingCore | None) -> SegmentMap:
    """Return the map of the ring at `path`; `core` is None if it cannot be opened."""
    facts = None if core is None else RingFacts.of(core)
    drawing = _Drawing(outlines)
    drawing.add(ENTRIES, path / ENTRIES, None if facts is None else partial(_ring_pins, facts))
    drawing.add(LEDGER, path / LEDGER)
    return SegmentMap(logs=drawing.logs)


def _ring_pins(facts: RingFacts, outline: Outline, infos: list[SegmentInfo]) -> list[str]:
    del outline
    return pins_in_ring(facts, infos)
