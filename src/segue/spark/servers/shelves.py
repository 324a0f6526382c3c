"""What there is to read on a Redis server. Sizes are asked for, records are not."""

import re
from collections.abc import Iterator
from dataclasses import field
from datetime import datetime

from segue.delivery.events import ASIDE
from segue.errors import InvalidArgument, TopicNotFound
from segue.log.horizon import Extent
from segue.spark.decoding import Decoder, RingDecoder, TopicDecoder, Wanted
from segue.spark.options import ReadOptions
from segue.spark.servers.messages import PageDecoder
from segue.spark.sources import ServerSource
from segue.spark.strands import DEAD, LATER, Label, Shelf
from segue.stores.opening import open_redis
from segue.stores.redis.store import RedisStore
from segue.stores.redis.table_places import Places, entries_of, extents_of, lanes_of, letters_of
from segue.stores.redis.tables import QueueTable
from segue.stores.redis.topics.partition import Partition, Survey
from segue.values import dataclass


def open_redis_shelf(options: ReadOptions, wanted: Wanted) -> Shelf:
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
        return extents_of(self.survey, start, stop)

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
    """A lane, dead letters, a ring."""

    label: Label
    source: ServerSource
    decoder: Decoder
    places: Places = field(repr=False)

    @property
    def first(self) -> int:
        return self.places.first

    @property
    def end(self) -> int:
        return self.places.end

    def offset_at(self, moment: datetime) -> int:
        return self.places.offset_at(moment)

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        return self.places.extents(start, stop)

    def place_of(self, reader: str) -> int | None:
        return None


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
        if self._options.kind == "dead_letters":
            strands = [self._strand(DEAD, 0, letters_of(self._table))]
        else:
            chosen = self._options.priorities
            strands = [
                self._strand(LATER if lane == ASIDE else str(lane), lane, places)
                for lane, places in lanes_of(self._table).items()
                if lane == ASIDE or chosen is None or lane in chosen
            ]
        return {strand.label: strand for strand in strands}

    def _strand(self, number: str, lane: int, places: Places) -> _PlacesStrand:
        options = self._options
        return _PlacesStrand(
            label=Label(options.name, number),
            source=self._source(options.name, lane),
            decoder=PageDecoder(
                wanted=self._wanted,
                queue=options.name,
                is_letters=options.kind == "dead_letters",
                priorities=options.priorities,
            ),
            places=places,
        )


class _RingShelf(_Shelf):
    """The entries of a ring that are not overwritten."""

    def strands(self) -> dict[Label, _PlacesStrand]:
        name = self._options.name
        label = Label(name, "0")
        return {
            label: _PlacesStrand(
                label=label,
                source=self._source(name, 0),
                decoder=RingDecoder(wanted=self._wanted, ring=name),
                places=entries_of(self._store, name),
            )
        }
