"""Sets of offsets, kept as runs: a million neighbours take the room of two numbers."""

from bisect import bisect_right
from collections.abc import Iterator


class OffsetRanges:
    """A set of offsets. Costs as much as it has gaps."""

    __slots__ = ("_starts", "_stops", "count")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._stops[place]

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.runs():
            yield from range(start, stop)

    def runs(self, start: int = 0, count_max: int | None = None) -> list[tuple[int, int]]:
        """Return the runs as (start, stop), in order: those that reach beyond `start`, whole.

        With `count_max` the first of them, which costs no more for all there are.
        """
        place = bisect_right(self._stops, start)
        last = None if count_max is None else place + count_max
        return list(zip(self._starts[place:last], self._stops[place:last], strict=True))

    @property
    def first(self) -> int | None:
        """The lowest offset there is."""
        return self._starts[0] if self._starts else None

    @property
    def last(self) -> int | None:
        """The highest offset there is."""
        return self._stops[-1] - 1 if self._stops else None

    def copy(self) -> "OffsetRanges":
        """Return the same offsets, which stay as they are."""
        ranges = OffsetRanges()
        ranges._starts, ranges._stops = self._starts.copy(), self._stops.copy()
        ranges.count = self.count
        return ranges

    def add(self, start: int, stop: int) -> None:
        """Take in the offsets from `start` up to `stop`."""
        if start >= stop:
            return
        self.remove(start, stop)
        place = bisect_right(self._starts, start)
        self._starts.insert(place, start)
        self._stops.insert(place, stop)
        self.count += stop - start
        self._join(place)
        self._join(place - 1)

    def _join(self, place: int) -> None:
        if 0 <= place < len(self._starts) - 1 and self._stops[place] == self._starts[place + 1]:
            self._stops[place] = self._stops.pop(place + 1)
            del self._starts[place + 1]

    def remove(self, start: int, stop: int) -> None:
        """Take out the offsets from `start` up to `stop` that are there."""
        if start >= stop:
            return
        place = max(0, bisect_right(self._starts, start) - 1)
        while place < len(self._starts) and self._starts[place] < stop:
            first, last = self._starts[place], self._stops[place]
            if last <= start:
                place += 1
                continue
            pieces = [(first, start)] * (first < start) + [(stop, last)] * (stop < last)
            self.count -= min(last, stop) - max(first, start)
            self._starts[place : place + 1] = [piece[0] for piece in pieces]
            self._stops[place : place + 1] = [piece[1] for piece in pieces]
            place += len(pieces)
