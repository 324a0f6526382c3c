"""Where there is something to read in queues and rings. Sizes are asked for, messages are not."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from segue.log.horizon import Extent
from segue.log.layout import Offset
from segue.log.record import microseconds
from segue.stores.redis.tables import LaneSize, QueueTable, RingTable, Row
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore
    from segue.stores.redis.topics.partition import Survey

NEIGHBOURS_MAX: Final = 64
"""How many places may lie between two messages that are read as if they were side by side."""
SPARSE_MIN: Final = 20_000
"""From how many places on it is asked which of them hold anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Places of which not all hold something: a lane, dead letters, a ring."""

    first: int
    end: int
    dense: int
    """From here on every place holds something."""
    mean_bytes: int
    there: Callable[[int, int], Sequence[int]] = field(repr=False)
    """Returns which places between two hold anything."""
    time_at: Callable[[int], int | None] = field(repr=False)
    """Returns when what is at a place came; None if there is nothing."""

    def offset_at(self, moment: datetime) -> int:
        """Return the first place whose time is `moment` or later: times grow with places."""
        time_us = microseconds(moment)
        sparse = self.there(self.first, self.dense)
        place = bisect_left(sparse, True, key=lambda each: self._is_from(each, time_us))
        if place < len(sparse):
            return sparse[place]
        rest = range(self.dense, self.end)
        place = bisect_left(rest, True, key=lambda each: self._is_from(each, time_us))
        return rest[place] if place < len(rest) else self.end

    def _is_from(self, place: int, time_us: int) -> bool:
        came_us = self.time_at(place)
        return came_us is not None and came_us >= time_us

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        sparse = (max(start, self.first), min(stop, self.dense))
        if sparse[1] - sparse[0] > SPARSE_MIN:
            for low, high in runs(self.there(*sparse)):
                yield self._extent(low, high)
        elif sparse[0] < sparse[1]:
            yield self._extent(*sparse)
        if max(start, self.dense) < stop:
            yield self._extent(max(start, self.dense), stop)

    def _extent(self, low: int, high: int) -> Extent:
        return Extent(Offset(low), Offset(high), (high - low) * self.mean_bytes)


def runs(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield stretches that hold all of `places`, which are in order, and few others."""
    low = high = -1
    for place in places:
        if low < 0:
            low = place
        elif place - high > NEIGHBOURS_MAX:
            yield low, high
            low = place
        high = place + 1
    if low >= 0:
        yield low, high


def lanes_of(table: QueueTable) -> dict[int, Places]:
    """Return the lanes of a queue as they are now."""
    taken = _Once(table.taken)
    return {size.lane: _lane(table, size, taken) for size in table.size().lanes}


def _lane(table: QueueTable, size: LaneSize, taken: "_Once") -> Places:
    lane = size.lane

    def there(start: int, stop: int) -> Sequence[int]:
        return [each for each in taken().get(lane, ()) if start <= each < stop]

    def time_at(place: int) -> int | None:
        page = next(table.rows(lane, place, place + 1), [])
        return next((row.time_us for row in page if isinstance(row, Row)), None)

    return Places(
        first=0,
        end=size.end,
        dense=size.fresh,
        mean_bytes=size.mean_bytes,
        there=there,
        time_at=time_at,
    )


def letters_of(table: QueueTable) -> Places:
    """Return the dead letters of a queue as they are now."""
    size = table.size()

    def there(start: int, stop: int) -> Sequence[int]:
        return list(table.numbers(start, stop))

    def time_at(place: int) -> int | None:
        page = next(table.letters(place, place + 1), [])
        return next((row.died_us for row in page if isinstance(row, Row)), None)

    return Places(
        first=0,
        end=size.dead_end,
        dense=size.dead_end,
        mean_bytes=max((lane.mean_bytes for lane in size.lanes), default=0),
        there=there,
        time_at=time_at,
    )


def entries_of(store: "RedisStore", name: str) -> Places:
    """Return the entries of a ring that are not overwritten now. Raises RingNotFound."""
    info = store.ring(name, mode="open").info()
    table = RingTable(store, name)

    def time_at(place: int) -> int | None:
        page = next(table.entries(place, place + 1), [])
        return page[0][1] if page else None

    return Places(
        first=info.head_offset,
        end=info.tail_offset,
        dense=info.head_offset,
        mean_bytes=table.mean_bytes(info.head_offset),
        there=lambda *_: (),
        time_at=time_at,
    )


def extents_of(survey: "Survey", start: int, stop: int) -> Iterator[Extent]:
    """Yield the parts of a partition's segments; a part of one has its share of the bytes."""
    for facts in (*survey.sealed, survey.active):
        low, high = max(start, facts.first_offset), min(stop, facts.end_offset)
        if low < high:
            size_bytes = facts.payload_bytes * (high - low) // facts.count
            yield Extent(Offset(low), Offset(high), size_bytes)


class _Once:
    """Asks when it is first wanted, and never again."""

    def __init__(self, ask: Callable[[], dict[int, list[int]]]) -> None:
        self._ask = ask
        self._found: dict[int, list[int]] | None = None

    def __call__(self) -> dict[int, list[int]]:
        if self._found is None:
            self._found = self._ask()
        return self._found
