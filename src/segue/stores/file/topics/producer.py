"""Producers: appending again what may have been appended before, without ever duplicating it.

Only one process at a time can use a producer's name, so what was appended under it is known from
memory; on opening, and whenever an append ended in doubt, from the partition itself.
"""

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from segue.delivery.message import Body
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import (
    SEQUENCE_MAX,
    Appended,
    Event,
    Key,
    Moment,
    Origin,
    key_bytes,
    producer_number,
)
from segue.errors import InvalidArgument, ProducerBusy, StoreClosed
from segue.log.disk import storage_errors
from segue.log.layout import checked_name
from segue.stores.file.topics.appending import Packed, append_batch, check_sizes, event_from, packed
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins


class FileProducer:
    """A producer with a name."""

    def __init__(self, core: TopicCore, name: str) -> None:
        self.name = name
        self._core = core
        self._number = producer_number(checked_name(name))
        self._last: dict[int, int] = {}
        core.existing()
        self._fd = self._lock()

    def _lock(self) -> int:
        disk, path = self._core.place.disk, self._core.path / PRODUCERS / self.name
        with storage_errors(f"opening producer {self.name}"):
            disk.make_directory(path.parent)
            fd = disk.open_to_write(path, create=True)
            if not disk.try_lock(fd):
                disk.close(fd)
                raise ProducerBusy(name=self.name)
        self._pid = os.getpid()
        return fd

    # Appending -----------------------------------------------------------------------------

    def append(
        self,
        value: Body | None,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        timestamp: Moment | None = None,
        partition: int | None = None,
        sequence: int | None = None,
    ) -> Appended | None:
        """Append a record, or return None if it is there already."""
        event = Event(
            value=value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )
        return self.append_many([event], first_sequence=sequence)[0]

    def append_many(
        self, events: Iterable[Event | Body], *, first_sequence: int | None = None
    ) -> list[Appended | None]:
        """Append events with consecutive sequence numbers, those that are not there already."""
        self._require_open()
        sequence = self._checked(first_sequence)
        results: list[Appended | None] = []
        batches: dict[int, list[tuple[int, int, Packed]]] = {}
        for place, item in enumerate(events):
            event = event_from(item)
            key = key_bytes(event.key)
            record = packed(event, key, Origin(self._number, sequence + place))
            partition = self._partition(event, key, sequence + place)
            results.append(None)
            if sequence + place > self._last_in(partition):
                batch = batches.setdefault(partition, [])
                batch.append((place, sequence + place, record))
        for partition, batch in batches.items():
            check_sizes(self._core.log(partition), [record for _, _, record in batch])
        for partition, batch in batches.items():
            # Not known until it is: an interrupted append is looked up before the next.
            del self._last[partition]
            offsets = append_batch(self._core, partition, [record for _, _, record in batch])
            self._last[partition] = batch[-1][1]
            for (place, _, _), offset in zip(batch, offsets, strict=True):
                results[place] = Appended(partition, offset)
        return results

    def _checked(self, sequence: int | None) -> int:
        if sequence is None:
            return self.last_sequence() + 1
        if type(sequence) is not int or not 0 <= sequence <= SEQUENCE_MAX:
            raise InvalidArgument(f"sequence must be a whole number, not negative: {sequence!r}")
        return sequence

    def _partition(self, event: Event, key: bytes | None, sequence: int) -> int:
        if event.partition is not None:
            return self._core.check(event.partition)
        partitions = self._core.existing().partitions
        return sequence % partitions if key is None else partition_of(key, partitions)

    # What is there -------------------------------------------------------------------------

    def last_sequence(self, partition: int | None = None) -> int:
        """Return the highest number of a partition, or of all; -1 if there is none."""
        self._require_open()
        if partition is not None:
            return self._last_in(self._core.check(partition))
        return max(map(self._last_in, self._core.numbers()), default=-1)

    def _last_in(self, partition: int) -> int:
        last = self._last.get(partition)
        if last is None:
            with current_origins(self._core.log(partition), self._core.place.disk) as origins:
                last = self._last[partition] = origins.last_sequence(self._number)
        return last

    def _require_open(self) -> None:
        self._core.require_open()
        if self._fd < 0 or self._pid != os.getpid():
            raise StoreClosed(f"producer {self.name} is closed")

    def close(self) -> None:
        """Let others use the name."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._core.place.disk.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
