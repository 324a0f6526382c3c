"""Giving space back: segments go when all in them is settled, and the few that are not are moved.

What is to be deleted is found out in a turn and deleted after it, so that nobody waits for it.
"""

import logging
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from segue.delivery.events import ASIDE, IN_ASIDE, Carried
from segue.delivery.keeping import kept_from
from segue.delivery.message import CARRIED, PREFIX_MASK, Key, Prefix, pack_message, unpack_prefix
from segue.errors import Damage, SegueError
from segue.log.layout import Offset
from segue.log.live import FIRST, SEGMENT
from segue.stores.file.lanes import Lane

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

logger = logging.getLogger(__name__)

TIDY_EVERY_ITEMS: Final = 256
"""How many messages are settled at most before somebody looks what can be deleted."""
PINNED_SEGMENTS_MAX: Final = 4
"""How many segments may be kept for messages that were delivered and are not settled."""
CARRY_ITEMS_MAX: Final = 1_000
"""How many messages are carried out of one segment at most; a fuller one stays."""
CARRY_SHARE: Final = 4
"""At most one in so many of a segment's messages is carried out of it."""
CARRY_SEGMENTS_MAX: Final = 8
"""How many segments are emptied in one turn."""
KEEP_LOOK_US: Final = 1_000_000
"""How often kept segments are looked at."""

Deletion = tuple[Lane, int]


class Upkeep:
    """Keeps one queue's directory small. `note` and `due` are called in a turn."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        # The first to be settled has us look: a short-lived process may settle no more.
        self._settled = TIDY_EVERY_ITEMS - 1
        self._watched: dict[int, float] = {}
        self._looked_us: dict[Lane, int] = {}
        self.is_due = False

    def note(self, lane: int, last_offset: int, count: int) -> None:
        """Take note that messages up to `last_offset` were settled."""
        self._settled += count
        if self._settled >= TIDY_EVERY_ITEMS or last_offset >= self._watched.get(lane, math.inf):
            self.is_due = True

    def due(self) -> list[Deletion]:
        """Return what can be deleted now, after moving what must be kept."""
        self.is_due = False
        self._settled = 0
        core = self._core
        ledger = core.journal.ledger
        ledger.forget_keys(core.place.clock())
        deletions: list[Deletion] = []
        for priority in ledger.order:
            lane = core.lanes.by_priority.get(priority)
            if lane is None:
                continue
            end = lane.first_segment_end()
            if end is None:
                self._watched.pop(priority, None)
                continue
            if ledger.levels[priority].cursor < end:
                self._watched[priority] = end - 1  # Whoever settles its last message looks again.
                continue
            self._watched[priority] = math.inf
            floor = self._floor(priority, lane, end)
            if floor >= end:
                deletions.append((lane, floor))
                following = lane.log._horizon.following(Offset(floor))
                if following is not None:
                    self._watched[priority] = following - 1
        self._add_others(deletions)
        return deletions

    def _floor(self, priority: int, lane: Lane, end: int) -> int:
        """Return up to where a lane may be deleted."""
        floor = self._core.journal.ledger.floor(priority)
        if floor < end and self._is_pinned(priority, lane):
            floor = self._carry_lane(priority, lane)
        return floor if floor < end else self._kept_from(lane, floor)

    def _kept_from(self, lane: Lane, floor: int) -> int:
        """Return up to where a log may be deleted that is settled up to `floor`."""
        core = self._core
        rules = core.journal.ledger.rules
        if not rules.keeps_settled:
            return floor
        ticks_us = core.place.ticks()
        if ticks_us - self._looked_us.get(lane, -KEEP_LOOK_US) < KEEP_LOOK_US:
            return 0
        self._looked_us[lane] = ticks_us
        infos = [info for info in lane.log.segments() if info.first_offset is not None]
        # A segment's last message is no younger than the segment after it.
        segments = [
            (info.first_offset + info.count, info.size_bytes, following.created_us)
            for info, following in pairwise(infos)
            if info.first_offset is not None
        ]
        return kept_from(segments, floor=floor, rules=rules, now_us=core.place.clock())

    def _is_pinned(self, priority: int, lane: Lane) -> bool:
        ledger = self._core.journal.ledger
        if ledger.rules.keeps_settled:
            return False
        delivered = lane.log._segment_of(Offset(ledger.levels[priority].cursor))
        return delivered - lane.words[FIRST] > PINNED_SEGMENTS_MAX

    def _carry_lane(self, priority: int, lane: Lane) -> int:
        """Move what is not settled out of the oldest segments and return the new floor."""
        ledger = self._core.journal.ledger
        for _ in range(CARRY_SEGMENTS_MAX):
            floor = ledger.floor(priority)
            end = lane.log._horizon.following(Offset(floor))
            if end is None or end > ledger.levels[priority].cursor:
                break
            offsets = ledger.outstanding_before(priority, end)
            segment = lane.log._segment_of(Offset(floor))
            try:
                first = lane.log._horizon.catalog.header(segment).first_offset
            except (Damage, FileNotFoundError):
                break  # Its messages cannot be read: they are given up when they are delivered.
            if not _is_worth_carrying(len(offsets), end - first):
                break
            for offset in offsets:
                self._carry(Key(priority, offset))
        return ledger.floor(priority)

    def _carry(self, key: Key) -> None:
        """Copy one message to the log aside and note where it lies now."""
        core = self._core
        try:
            record = core.record_of(key)
        except SegueError as error:
            logger.warning("cannot be carried queue=%s message=%s reason=%s", core.name, key, error)
            return
        prefix, body = unpack_prefix(record.payload, record.attr)
        carried: Prefix = {
            **prefix,
            "t": prefix.get("t", record.time_us),
            "f": key.lane,
            "o": key.offset,
        }
        payload, attr = pack_message(body, carried)
        flags = record.attr & ~PREFIX_MASK | CARRIED
        aside = core.lane_in_turn(ASIDE)
        at = aside.append(payload, attr=attr & PREFIX_MASK | flags)
        if core.place.is_durable:
            aside.log.writer.sync(at + 1)  # Before the ledger says that it is there.
        core.journal.write(Carried(key.lane, key.offset, at))

    def _add_others(self, deletions: list[Deletion]) -> None:
        """Add what can be deleted of the messages aside and the dead letters."""
        core = self._core
        ledger = core.journal.ledger
        if ledger.has_aside:
            aside = core.lanes.aside
            end = aside.first_segment_end()
            if end is not None:
                floor = ledger.aside_floor()
                if floor < end and aside.words[SEGMENT] - aside.words[FIRST] > PINNED_SEGMENTS_MAX:
                    self._carry_aside(end)
                    floor = ledger.aside_floor()
                if floor >= end and (floor := self._kept_from(aside, floor)) >= end:
                    deletions.append((aside, floor))
        if core.lanes.has_dead:
            dead = core.lanes.dead
            end = dead.first_segment_end()
            if end is not None and (floor := ledger.dead_floor(dead.end)) >= end:
                deletions.append((dead, floor))

    def _carry_aside(self, end: int) -> None:
        """Move what waits in the oldest segment aside to the end of the same log."""
        ledger = self._core.journal.ledger
        waiting = [
            Key(ASIDE, offset)
            for offset in ledger.aside
            if offset < end and Key(ASIDE, offset) not in ledger.places
        ]
        moved = [
            key for key, (where, at) in ledger.places.items() if where == IN_ASIDE and at < end
        ]
        size = end - self._core.lanes.aside.log.first_offset
        if _is_worth_carrying(len(waiting) + len(moved), size):
            for key in waiting + moved:
                self._carry(key)

    def run(self, deletions: list[Deletion]) -> None:
        """Delete, outside the turn. What fails is tried again another time."""
        if not deletions:
            return
        core = self._core
        try:
            if core.place.is_durable:
                # What says where messages have gone must outlast where they were.
                core.journal.sync()
            for lane, offset in deletions:
                lane.trim(offset)
        except SegueError as error:
            logger.warning("segments not deleted queue=%s reason=%s", core.name, error)


def _is_worth_carrying(count: int, size: int) -> bool:
    """Tell whether few of a segment's messages hold it: to copy most of it would free nothing."""
    return count <= CARRY_ITEMS_MAX and count * CARRY_SHARE <= max(size, CARRY_SHARE)
