"""Producers: appending again what may have been appended before, without ever duplicating it.

Only one process at a time can use a producer's name, so what was appended under it is known from
memory; on opening, and whenever an append ended in doubt, from the partition itself. With how many
partitions each sequence number was routed is kept, too: a repetition goes where the first try
went, also if partitions were added in between.

producers/<name>/lock          locked by whoever uses the name
producers/<name>/routes.json   from which sequence number on there were how many partitions
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, cast

from segue.delivery.message import Body
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import (
    Appended,
    Event,
    Origin,
    key_bytes,
    producer_number,
)
from segue.errors import CorruptManifest, ProducerBusy, StoreClosed
from segue.log.layout import checked_name
from segue.stores.file.claims import claim
from segue.stores.file.documents import number, read_document, write_document
from segue.stores.file.topics.appending import append_batch, require_room
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins
from segue.stores.producer_base import ProducerBase, checked_sequence
from segue.stores.topic_events import Packed, events_from, packed

FORMAT: Final = 1


class FileProducer(ProducerBase):
    """A producer with a name."""

    def __init__(self, core: TopicCore, name: str) -> None:
        self.name = name
        self._core = core
        self._number = producer_number(checked_name(name))
        core.existing()
        path = core.path / PRODUCERS / name
        held = claim(path / "lock", core.place.disk)
        if held is None:
            raise ProducerBusy(name=name)
        self._claim = held
        self._path = path / "routes.json"
        self._last: dict[int, int] = {}
        self._highest: int | None = None
        try:
            self._routes = self._read_routes()
        except BaseException:
            held.release()
            raise
        core.users.add(self)

    # Appending -----------------------------------------------------------------------------

    def append_many(
        self, events: Iterable[Event | Body], *, first_sequence: int | None = None
    ) -> list[Appended | None]:
        """Append events with consecutive sequence numbers, those that are not there already."""
        self._require_open()
        sequence = checked_sequence(
            self.last_sequence() + 1 if first_sequence is None else first_sequence
        )
        self._follow_growth()
        results: list[Appended | None] = []
        batches: dict[int, list[tuple[int, Packed]]] = {}
        for place, event in enumerate(events_from(events)):
            key = key_bytes(event.key)
            record = packed(event, key, Origin(self._number, sequence + place))
            partition = self._partition(event, key, sequence + place)
            results.append(None)
            if sequence + place > self._last_in(partition):
                batches.setdefault(partition, []).append((place, record))
        require_room(
            self._core,
            {number: [record for _, record in batch] for number, batch in batches.items()},
        )
        highest, self._highest = self._highest, None
        for partition, batch in batches.items():
            # Not known until it is: an interrupted append is looked up before the next.
            del self._last[partition]
            offsets = append_batch(self._core, partition, [record for _, record in batch])
            self._last[partition] = sequence + batch[-1][0]
            for (place, _), offset in zip(batch, offsets, strict=True):
                results[place] = Appended(partition, offset)
        if highest is not None:
            self._highest = max(highest, sequence + len(results) - 1) if results else highest
        return results

    # Routing -------------------------------------------------------------------------------

    def _partition(self, event: Event, key: bytes | None, sequence: int) -> int:
        if event.partition is not None:
            return self._core.check(event.partition)
        at = bisect_right(self._routes, sequence, key=lambda route: route[0])
        partitions = self._routes[max(0, at - 1)][1]
        return sequence % partitions if key is None else partition_of(key, partitions)

    def _follow_growth(self) -> None:
        """Note, before it is used, from which sequence number on there are more partitions."""
        partitions = self._core.existing().partitions
        if not self._routes or self._routes[-1][1] != partitions:
            first = self.last_sequence() + 1 if self._routes else 0
            self._routes.append((first, partitions))
            values = {"format": FORMAT, "routes": [list(route) for route in self._routes]}
            write_document(self._path, values, self._core.place.disk, sync=True)

    def _read_routes(self) -> list[tuple[int, int]]:
        values = read_document(self._path, self._core.place.disk, format_=FORMAT)
        if values is None:
            return []
        try:
            routes = cast("Any", values["routes"])
            return [(number(first), number(partitions) or 1) for first, partitions in routes]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptManifest(path=self._path, reason=f"it makes no sense: {error}") from error

    # What is there -------------------------------------------------------------------------

    def last_sequence(self, partition: int | None = None) -> int:
        """Return the highest number of a partition, or of all; -1 if there is none."""
        self._require_open()
        if partition is not None:
            return self._last_in(self._core.check(partition))
        if self._highest is None:
            self._highest = max(map(self._last_in, self._core.numbers()), default=-1)
        return self._highest

    def _last_in(self, partition: int) -> int:
        last = self._last.get(partition)
        if last is None:
            with current_origins(self._core.log(partition), self._core.place.disk) as origins:
                last = self._last[partition] = origins.last_sequence(self._number)
        return last

    def _require_open(self) -> None:
        self._core.require_open()
        if not self._claim.is_held:
            raise StoreClosed(f"producer {self.name} is closed")

    def close(self) -> None:
        """Let others use the name."""
        self._claim.release()
