"""What there is to read behind a Segue server, as it tells it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import field
from datetime import datetime
from pathlib import Path

import numpy as np

from segue.errors import InvalidArgument
from segue.log.horizon import Extent
from segue.log.layout import Offset
from segue.spark.decoding import Decoder, MessageDecoder, RingDecoder, TopicDecoder, Wanted
from segue.spark.options import ReadOptions
from segue.spark.servers.messages import PageDecoder
from segue.spark.sources import ServerSource
from segue.spark.strands import DEAD, LATER, Label, Shelf
from segue.stores.file.portrait import LogPortrait, Touched
from segue.stores.http.bulk import Bulk
from segue.stores.http.sense import making_sense, nonsense
from segue.stores.http.store import HttpStore
from segue.stores.http.wire.bulk import PortraitJson, StrandJson
from segue.stores.opening import open_http
from segue.values import dataclass


def open_http_shelf(options: ReadOptions, wanted: Wanted, *, is_stream: bool) -> Shelf:
    """Return what the options ask for. Raises StoreUnavailable, AccessDenied."""
    return _Shelf(open_http(options.url, token=options.token), options, wanted, is_stream=is_stream)


@dataclass(kw_only=True)
class _Strand:
    """A partition of a topic, a log of a queue, or a ring."""

    label: Label
    source: ServerSource
    decoder: Decoder
    told: StrandJson = field(repr=False)
    place_at: Callable[[datetime], int] = field(repr=False)

    @property
    def first(self) -> int:
        return self.told.first

    @property
    def end(self) -> int:
        return self.told.end

    def offset_at(self, moment: datetime) -> int:
        return min(self.place_at(moment), self.end)

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield the parts there are; a part of one has its share of the bytes."""
        for first, end, size_bytes in self.told.extents:
            low, high = max(start, first), min(stop, end)
            if low < high:
                share = size_bytes * (high - low) // (end - first)
                yield Extent(Offset(low), Offset(high), share)

    def place_of(self, reader: str) -> int | None:
        return self.told.place


class _Shelf:
    """What a server tells of topics, a queue or a ring, as often as it is asked."""

    def __init__(
        self, store: HttpStore, options: ReadOptions, wanted: Wanted, *, is_stream: bool
    ) -> None:
        self._store = store
        self._options = options
        self._wanted = wanted
        self._is_stream = is_stream

    def names(self) -> list[str]:
        """Return the topics that are meant and exist, or the queue or ring."""
        if not self._options.is_pattern:
            return [self._options.name]
        pattern = re.compile(self._options.name)
        return [name for name in self._store.topics() if pattern.fullmatch(name)]

    def strands(self) -> dict[Label, _Strand]:
        found = {}
        for name in self.names():
            bulk = Bulk(self._store.calls, self._options.kind, name)
            told = bulk.strands(is_stream=self._is_stream, reader=self._options.reader)
            self._check_partitions(name, len(told))
            for each in told:
                with making_sense():
                    if self._is_chosen(each.number):
                        strand = self._strand(Label(name, each.number), each, bulk)
                        found[strand.label] = strand
        return found

    def _check_partitions(self, name: str, count: int) -> None:
        wanted = self._options.partitions
        if wanted is not None and max(wanted) >= count:
            raise InvalidArgument(f"topic {name} has no partition {max(wanted)}, only {count}")

    def _is_chosen(self, number: str) -> bool:
        options = self._options
        if number in (LATER, DEAD):
            return True
        chosen = options.partitions if options.kind == "topic" else options.priorities
        return chosen is None or int(number) in chosen

    def _strand(self, label: Label, told: StrandJson, bulk: Bulk) -> _Strand:
        options = self._options
        return _Strand(
            label=label,
            source=ServerSource(
                url=options.url, token=options.token, kind=options.kind, name=label.name, number=0
            ),
            decoder=self._decoder(label, told),
            told=told,
            place_at=lambda moment: bulk.places_at(moment).get(label.number, told.end),
        )

    def _decoder(self, label: Label, told: StrandJson) -> Decoder:
        options = self._options
        if options.kind == "topic":
            return TopicDecoder(wanted=self._wanted, topic=label.name, partition=int(label.number))
        if options.kind == "ring":
            return RingDecoder(wanted=self._wanted, ring=label.name)
        is_letters = options.kind == "dead_letters"
        if told.portrait is None:
            return PageDecoder(
                wanted=self._wanted,
                queue=label.name,
                is_letters=is_letters,
                priorities=options.priorities,
            )
        return MessageDecoder(
            wanted=self._wanted,
            queue=label.name,
            portrait=_portrait(told, told.portrait),
            is_letters=is_letters,
            is_stream=self._is_stream,
            priorities=options.priorities,
        )

    def close(self) -> None:
        self._store.close()


def _portrait(strand: StrandJson, told: PortraitJson) -> LogPortrait:
    """Return how the messages of a log stand, as if the log were here."""

    def ints(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, dtype=np.int64)

    touched = told.touched
    counts = {len(getattr(touched, name)) for name in touched.__struct_fields__}
    if len(counts) > 1 or len(told.hidden) != len(told.hidden_state):
        raise nonsense("columns of different lengths")
    return LogPortrait(
        path=Path(strand.number),  # Nothing is read by it.
        lane=told.lane,
        first=strand.first,
        end=strand.end,
        cursor=told.cursor,
        touched=Touched(
            at=ints(touched.at),
            lane=ints(touched.lane),
            offset=ints(touched.offset),
            priority=ints(touched.priority),
            state=ints(touched.state),
            attempt=ints(touched.attempt),
            not_before_us=ints(touched.not_before_us),
            cause=touched.cause,
            reason=touched.reason,
        ),
        hidden=ints(told.hidden),
        hidden_state=ints(told.hidden_state),
        dead=told.dead,
    )
