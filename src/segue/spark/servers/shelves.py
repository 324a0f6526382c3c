"""What there is to read on a server. Sizes are asked for, records are not."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from segue.delivery.events import ASIDE
from segue.errors import InvalidArgument, TopicNotFound
from segue.log.horizon import Extent
from segue.log.layout import Offset
from segue.log.record import microseconds
from segue.spark.decoding import Decoder, RingDecoder, TopicDecoder, Wanted
from segue.spark.options import ReadOptions
from segue.spark.servers.messages import PageDecoder
from segue.spark.sources import ServerSource
from segue.spark.strands import DEAD, LATER, Label, Shelf
from segue.stores.opening import open_redis
from segue.stores.redis.store import RedisStore
from segue.stores.redis.tables import LaneSize, QueueSize, QueueTable, RingTable, Row
from segue.stores.redis.topics.partition import Partition, Survey

NEIGHBOURS_MAX: Final = 64
"""How many places may lie between two messages that are read as if they were side by side."""
SPARSE_MIN: Final = 20_000
"""From how many places on it is asked which of them hold anything."""


def open_server_shelf(options: ReadOptions, wanted: Wanted) -> Shelf:
    """Return what the options ask for. Raises InvalidArgument, LogNotFound, TopicNotFound."""
    store = open_redis(options.url, create=False)
    try:
        if options.kind == "topic":
            return _TopicShelf(store, options, wanted)
        if options.kind == "ring":
            return _RingShelf(store, options, wanted)
        return _QueueShelf(store, options, wanted)
    except BaseException:
        store.close()
        raise


class _Shelf:
    """What all have in common."""

    def __init__(self, store: RedisStore, options: ReadOptions, wanted: Wanted) -> None:
        self._store = store
        self._options = options
        self._wanted = wanted

    def names(self) -> list[str]:
        return [self._options.name]

    def _source(self, name: str, number: int) -> ServerSource:
        options = self._options
        return ServerSource(url=options.url, kind=options.kind, name=name, number=number)

    def close(self) -> None:
        self._store.close()


# Topics ----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _PartitionStrand:
    """A partition of a topic."""

    label: Label
    source: ServerSource
    decoder: Decoder
    partition: Partition = field(repr=False)
    survey: Survey = field(repr=False)

    @property
    def first(self) -> int:
        return self.survey.first_offset

    @property
    def end(self) -> int:
        return self.survey.next_offset

    def offset_at(self, moment: datetime) -> int:
        return min(self.partition.resolve(moment), self.end)

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield the parts of segments; a part of one has its share of the bytes."""
        for facts in (*self.survey.sealed, self.survey.active):
            low, high = max(start, facts.first_offset), min(stop, facts.end_offset)
            if low < high:
                size_bytes = facts.payload_bytes * (high - low) // facts.count
                yield Extent(Offset(low), Offset(high), size_bytes)

    def place_of(self, reader: str) -> int | None:
        place = self.survey.places.get(reader)
        return None if place is None else min(place, self.end)


class _TopicShelf(_Shelf):
    """The partitions of one topic, or of all whose name matches."""

    def names(self) -> list[str]:
        """Return the topics that are meant and exist. Raises TopicNotFound."""
        if not self._options.is_pattern:
            if self._store.topic(self._options.name)._core.manifest is None:
                raise TopicNotFound(name=self._options.name)
            return [self._options.name]
        pattern = re.compile(self._options.name)
        return [name for name in self._store.topics() if pattern.fullmatch(name)]

    def strands(self) -> dict[Label, _PartitionStrand]:
        found = {}
        wanted = self._options.partitions
        for name in self.names():
            core = self._store.topic(name)._core
            numbers = core.numbers()
            if wanted is not None and not wanted <= set(numbers):
                raise InvalidArgument(
                    f"topic {name} has no partition {max(wanted)}, only {len(numbers)}"
                )
            for number in numbers:
                if wanted is None or number in wanted:
                    label = Label(name, str(number))
                    partition = core.partition(number)
                    found[label] = _PartitionStrand(
                        label=label,
                        source=self._source(name, number),
                        decoder=TopicDecoder(wanted=self._wanted, topic=name, partition=number),
                        partition=partition,
                        survey=partition.survey(),
                    )
        return found


# Queues and rings ------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _PlacesStrand:
    """Places of which not all hold something: a lane, dead letters, a ring."""

    label: Label
    source: ServerSource
    decoder: Decoder
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

    def place_of(self, reader: str) -> int | None:
        return None


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


class _QueueShelf(_Shelf):
    """The messages of a queue wherever they were pushed, or its dead letters alone."""

    def __init__(self, store: RedisStore, options: ReadOptions, wanted: Wanted) -> None:
        super().__init__(store, options, wanted)
        names = store.queues()
        if options.name not in names:
            raise InvalidArgument(
                f"there is no queue {options.name}; there are {', '.join(names) or 'none'}"
            )
        self._table = QueueTable(store, options.name)

    def strands(self) -> dict[Label, _PlacesStrand]:
        size = self._table.size()
        if self._options.kind == "dead_letters":
            strands = [self._letters(size)]
        else:
            taken = _Once(self._table.taken)
            chosen = self._options.priorities
            strands = [
                self._lane(lane, taken)
                for lane in size.lanes
                if lane.lane == ASIDE or chosen is None or lane.lane in chosen
            ]
        return {strand.label: strand for strand in strands}

    def _decoder(self) -> PageDecoder:
        options = self._options
        return PageDecoder(
            wanted=self._wanted,
            queue=options.name,
            is_letters=options.kind == "dead_letters",
            priorities=options.priorities,
        )

    def _lane(self, size: LaneSize, taken: "_Once") -> _PlacesStrand:
        lane = size.lane

        def there(start: int, stop: int) -> Sequence[int]:
            return [each for each in taken().get(lane, ()) if start <= each < stop]

        def time_at(place: int) -> int | None:
            page = next(self._table.rows(lane, place, place + 1), [])
            return next((row.time_us for row in page if isinstance(row, Row)), None)

        return _PlacesStrand(
            label=Label(self._options.name, LATER if lane == ASIDE else str(lane)),
            source=self._source(self._options.name, lane),
            decoder=self._decoder(),
            first=0,
            end=size.end,
            dense=size.fresh,
            mean_bytes=size.mean_bytes,
            there=there,
            time_at=time_at,
        )

    def _letters(self, size: QueueSize) -> _PlacesStrand:
        def there(start: int, stop: int) -> Sequence[int]:
            return list(self._table.numbers(start, stop))

        def time_at(place: int) -> int | None:
            page = next(self._table.letters(place, place + 1), [])
            return next((row.died_us for row in page if isinstance(row, Row)), None)

        return _PlacesStrand(
            label=Label(self._options.name, DEAD),
            source=self._source(self._options.name, 0),
            decoder=self._decoder(),
            first=0,
            end=size.dead_end,
            dense=size.dead_end,
            mean_bytes=max((lane.mean_bytes for lane in size.lanes), default=0),
            there=there,
            time_at=time_at,
        )


class _Once:
    """Asks when it is first wanted, and never again."""

    def __init__(self, ask: Callable[[], dict[int, list[int]]]) -> None:
        self._ask = ask
        self._found: dict[int, list[int]] | None = None

    def __call__(self) -> dict[int, list[int]]:
        if self._found is None:
            self._found = self._ask()
        return self._found


class _RingShelf(_Shelf):
    """The entries of a ring that are not overwritten."""

    def __init__(self, store: RedisStore, options: ReadOptions, wanted: Wanted) -> None:
        super().__init__(store, options, wanted)
        self._ring = store.ring(options.name, mode="open")
        self._table = RingTable(store, options.name)

    def strands(self) -> dict[Label, _PlacesStrand]:
        info = self._ring.info()
        label = Label(self._options.name, "0")

        def time_at(place: int) -> int | None:
            page = next(self._table.entries(place, place + 1), [])
            return page[0][1] if page else None

        return {
            label: _PlacesStrand(
                label=label,
                source=self._source(self._options.name, 0),
                decoder=RingDecoder(wanted=self._wanted, ring=self._options.name),
                first=info.head_offset,
                end=info.tail_offset,
                dense=info.head_offset,
                mean_bytes=self._table.mean_bytes(info.head_offset),
                there=lambda *_: (),
                time_at=time_at,
            )
        }
