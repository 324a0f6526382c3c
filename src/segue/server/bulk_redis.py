"""Topics, queues and rings of a Redis store by columns."""

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Final

from segue.clock import Clock
from segue.delivery.events import ASIDE
from segue.errors import InvalidArgument, TopicNotFound
from segue.log.columns import Columns
from segue.server.bulk import DEAD, LATER, Kind, Look, in_few, partition_from
from segue.stores.column_pieces import pieces
from segue.stores.http.wire.bulk import BehindJson, StrandJson
from segue.stores.http.wire.numbers import whole_number
from segue.stores.passing import Passing
from segue.stores.redis.behind import behind
from segue.stores.redis.store import RedisStore
from segue.stores.redis.stretches import entry_stretches, message_stretches, record_stretches
from segue.stores.redis.table_places import Places, entries_of, extents_of, lanes_of, letters_of
from segue.stores.redis.tables import QueueTable, RingTable
from segue.stores.redis.topics.core import TopicCore

_RING: Final = "0"


class RedisTables:
    """Reads a store on a Redis server. Safe from any thread."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def strands(self, kind: Kind, name: str, look: Look) -> list[StrandJson]:
        """Return what there is to read. Raises TopicNotFound, RingNotFound, InvalidArgument."""
        if kind == "topic":
            core = self._topic(name)
            return [self._partition(core, number, look.reader) for number in core.numbers()]
        return [
            StrandJson(
                number=number,
                first=places.first,
                end=places.end,
                extents=in_few(places.extents(places.first, places.end)),
            )
            for number, places in self._places(kind, name).items()
        ]

    def _topic(self, name: str) -> TopicCore:
        core = self._store.topic(name)._core
        if core.manifest is None:
            raise TopicNotFound(name=name)
        return core

    def _partition(self, core: TopicCore, number: int, reader: str | None) -> StrandJson:
        survey = core.partition(number).survey()
        place = None if reader is None else survey.places.get(reader)
        return StrandJson(
            number=str(number),
            first=survey.first_offset,
            end=survey.next_offset,
            extents=in_few(extents_of(survey, survey.first_offset, survey.next_offset)),
            place=None if place is None else min(place, survey.next_offset),
        )

    def _table(self, name: str) -> QueueTable:
        if name not in self._store.queues():
            raise InvalidArgument(f"there is no queue {name}")
        return QueueTable(self._store, name)

    def _places(self, kind: Kind, name: str) -> dict[str, Places]:
        if kind == "ring":
            return {_RING: entries_of(self._store, name)}
        table = self._table(name)
        if kind == "dead_letters":
            return {DEAD: letters_of(table)}
        return {
            LATER if lane == ASIDE else str(lane): places
            for lane, places in lanes_of(table).items()
        }

    def places_at(self, kind: Kind, name: str, moment: datetime) -> dict[str, int]:
        """Return the first offset of each strand at `moment` or later."""
        if kind == "topic":
            core = self._topic(name)
            return {str(each): core.partition(each).resolve(moment) for each in core.numbers()}
        return {
            number: places.offset_at(moment) for number, places in self._places(kind, name).items()
        }

    def behind(self, name: str, offsets: dict[int, int], clock: Clock) -> Iterator[BehindJson]:
        """Yield what lies beyond offsets of a topic, in the partitions there are."""
        del clock  # The server's is everybody's.
        for each in behind(self._store, name, offsets):
            yield BehindJson(
                partition=each.partition,
                offset=each.offset,
                records=each.records,
                size_bytes=each.size_bytes,
                seconds=each.seconds,
            )

    def stretches(self, kind: Kind, start: int, stop: int, passing: Passing) -> Iterator[Columns]:
        """Yield what lies between two offsets of a strand."""
        name, number = passing.name, passing.number
        if kind == "topic":
            core = self._topic(name)
            partition = core.partition(partition_from(number, len(core.numbers())))
            return _in_pieces(record_stretches(partition, start, stop, passing))
        if kind == "ring":
            self._store.ring(name, mode="open")
            return _in_pieces(entry_stretches(RingTable(self._store, name), start, stop))
        table = self._table(name)
        if kind == "dead_letters":
            return message_stretches(table.letters(start, stop), passing)
        lane = ASIDE if number == LATER else whole_number(number, what="a strand")
        return message_stretches(table.rows(lane, start, stop), passing)


def _in_pieces(found: Iterator[Columns]) -> Iterator[Columns]:
    return chain.from_iterable(map(pieces, found))
