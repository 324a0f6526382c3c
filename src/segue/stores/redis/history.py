"""What a queue still keeps of what was pushed to it, and pushing it once more."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final, cast

from segue.delivery.events import ASIDE
from segue.delivery.message import Key, Message, MessageId
from segue.delivery.priority import Priority, priority_from
from segue.errors import Damage, InvalidArgument
from segue.log.options import Duration
from segue.stores.redis.inspection import Inspection, Scan
from segue.stores.redis.items import (
    Parcel,
    key_from_wire,
    message_of,
    parcel_again,
    prefix_of,
    record_of,
    wire_id,
)
from segue.stores.redis.letters import Ask

BATCH: Final = 100
"""How many messages one call looks at."""

Bound = int | datetime | None
Push = Callable[[list[Parcel], Duration | None], list[MessageId]]
Kept = Callable[[int, int], Iterator[int]]
"""Yields the offsets of a lane's settled messages that are kept, from one on."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class History:
    """Reads what a queue keeps, lane by lane."""

    def __init__(
        self, inspection: Inspection, look: Ask, push: Push, *, scan: Scan, kept: Kept
    ) -> None:
        self._inspection = inspection
        self._look = look
        self._push = push
        self._scan = scan
        self._kept = kept

    def messages(self, priority: Priority | None, start: Bound, stop: Bound) -> Iterator[Message]:
        """Yield messages in order of priority, then of pushing; last those pushed with a delay."""
        for key, level, item in self._items(priority, start, stop):
            yield message_of(key, item, priority=level, attempt=1)

    def _items(
        self, priority: Priority | None, start: Bound, stop: Bound
    ) -> Iterator[tuple[Key, int, bytes]]:
        """Yield where each message was pushed, its priority and its item."""
        has_offset = type(start) is int or type(stop) is int
        if priority is None and has_offset:
            raise InvalidArgument("an offset means something only within a priority: give one")
        wanted = None if priority is None else priority_from(priority)
        lanes = self._inspection.lanes()
        touched = {*self._scan("touched"), *self._scan("letters")}
        for lane, (fresh, end) in lanes.items():
            if has_offset if lane == ASIDE else wanted not in (None, lane):
                continue
            first = max(0, start) if isinstance(start, int) else 0
            last = min(end, stop) if isinstance(stop, int) else end
            known = sorted(key.offset for key in touched if key.lane == lane)
            offsets = heapq.merge(known, self._kept(lane, first), range(max(first, fresh), last))
            keys = (Key(lane, offset) for offset in _unique(offsets) if first <= offset < last)
            for key, level, item in self._found(keys):
                if wanted in (None, level) and _is_between(item, start, stop):
                    yield key, level, item

    def _found(self, keys: Iterator[Key]) -> Iterator[tuple[Key, int, bytes]]:
        """Yield those of the messages that are still there and can be read."""
        while page := [wire_id(*key) for key in islice(keys, BATCH)]:
            answer = cast("list[object]", self._look("items", *page))
            for place in range(0, len(answer), 3):
                name, level, item = cast("tuple[bytes, int, bytes]", answer[place : place + 3])
                try:
                    prefix, _ = prefix_of(item)
                except Damage:
                    continue
                yield key_from_wire(name), prefix.get("p", 0) if level < 0 else level, item

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt."""
        # Up to where each lane ends now: what is pushed again must not be read again.
        items = self._items(priority, start, stop)
        pushed = 0
        while batch := list(islice(items, BATCH)):
            self._push([parcel_again(level, item) for _, level, item in batch], 0)
            pushed += len(batch)
        return pushed


def _unique(offsets: Iterable[int]) -> Iterator[int]:
    """Yield sorted offsets once each."""
    last = -1
    for offset in offsets:
        if offset != last:
            yield offset
        last = offset


def _is_between(item: bytes, start: Bound, stop: Bound) -> bool:
    """Tell whether a message was pushed between two moments, where moments are asked for."""
    time_us = record_of(item)[0]
    return not (
        (isinstance(start, datetime) and time_us < _microseconds(start))
        or (isinstance(stop, datetime) and time_us >= _microseconds(stop))
    )


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return (moment - _EPOCH) // _EPOCH.resolution
