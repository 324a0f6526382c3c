"""What a queue still keeps of what was pushed to it, and pushing it once more."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final, cast

from segue.delivery.events import ASIDE
from segue.delivery.message import Key, Message, MessageId
from segue.delivery.priority import Priority, priority_from
from segue.errors import InvalidArgument
from segue.log.options import Duration
from segue.stores.redis.items import Parcel, message_of, parcel_again, prefix_of, record_of
from segue.stores.redis.letters import Ask

BATCH: Final = 100

Bound = int | datetime | None
Push = Callable[[list[Parcel], Duration | None], list[MessageId]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class History:
    """Reads what a queue keeps, lane by lane."""

    def __init__(self, look: Ask, push: Push) -> None:
        self._look = look
        self._push = push

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
        ends = self._ends()
        for lane, end in ends.items():
            if lane == ASIDE and has_offset:
                continue
            if lane != ASIDE and wanted not in (None, lane):
                continue
            for key, level, item in self._lane(lane, end, start, stop):
                if wanted in (None, level):
                    yield key, level, item

    def _ends(self) -> dict[int, int]:
        answer = cast("list[int]", self._look("lanes"))
        return dict(zip(answer[::2], answer[1::2], strict=True))

    def _lane(
        self, lane: int, end: int, start: Bound, stop: Bound
    ) -> Iterator[tuple[Key, int, bytes]]:
        first = max(0, start) if isinstance(start, int) else 0
        last = min(end, stop) if isinstance(stop, int) else end
        first_us = _microseconds(start) if isinstance(start, datetime) else None
        stop_us = _microseconds(stop) if isinstance(stop, datetime) else None
        while first < last:
            answer = cast("list[object]", self._look("history", BATCH, lane, first))
            if not answer:
                return
            for place in range(0, len(answer), 3):
                offset, level = cast("tuple[int, int]", tuple(answer[place : place + 2]))
                item = cast("bytes", answer[place + 2])
                first = offset + 1
                if offset >= last:
                    return
                if not item:
                    continue
                time_us = record_of(item)[0]
                if first_us is not None and time_us < first_us:
                    continue
                if stop_us is not None and time_us >= stop_us:
                    continue
                if level < 0:
                    level = prefix_of(item)[0].get("p", 0)
                yield Key(lane, offset), level, item

    def replay(self, priority: Priority | None, start: Bound, stop: Bound) -> int:
        """Push messages again, as they were but for their attempt."""
        # Up to where each lane ends now: what is pushed again must not be read again.
        items = self._items(priority, start, stop)
        pushed = 0
        while batch := list(islice(items, BATCH)):
            self._push([parcel_again(level, item) for _, level, item in batch], 0)
            pushed += len(batch)
        return pushed


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return (moment - _EPOCH) // (_EPOCH.resolution)
