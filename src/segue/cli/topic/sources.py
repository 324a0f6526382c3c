"""Where `topic cat` and `tail` get records: on their own, as a named reader, or in a group."""

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from segue.cli import stderr
from segue.errors import OffsetTrimmed, PartitionLost, SegueError

if TYPE_CHECKING:
    from segue.delivery.topic_record import TopicRecord
    from segue.stores.topic_contract import Member, Topic, TopicReader


class Source(Protocol):
    """Gives records, and knows how far it is."""

    def fetch(self, count_max: int, pause_seconds: float) -> Sequence["TopicRecord"]:
        """Return the next records; wait so long for the first of them. Raises OffsetTrimmed."""

    def skip(self, error: OffsetTrimmed) -> None:
        """Go on behind what is gone."""

    def commit(self) -> None:
        """Save the place behind what was fetched, if there is anybody to save it for."""


class Stored:
    """What lies between two places, several partitions in the order of time."""

    def __init__(
        self,
        topic: "Topic",
        start: Mapping[int, int],
        stop: Mapping[int, int],
        *,
        reader: "TopicReader | None" = None,
    ) -> None:
        """Read `start` to `stop`, by partition; `reader` is who it is committed for."""
        self._topic = topic
        self._reader = reader
        self._read(start, stop)

    def _read(self, start: Mapping[int, int], stop: Mapping[int, int]) -> None:
        self._position, self._stop = dict(start), dict(stop)
        self._is_over = False
        self._records: Iterator[TopicRecord] | None = None

    def _opened(self) -> Iterator["TopicRecord"]:
        return self._topic.records(self._position, stop=self._stop, partitions=list(self._stop))

    def fetch(self, count_max: int, pause_seconds: float) -> Sequence["TopicRecord"]:
        """Return the next records. There is nothing to wait for. Raises OffsetTrimmed."""
        self._records = self._records or self._opened()
        found: list[TopicRecord] = []
        try:
            for record in islice(self._records, count_max):
                found.append(record)
                self._position[record.partition] = record.offset + 1
        except SegueError:
            self._records = None
            if not found:
                raise
            return found  # What is wrong is met again, and told, once these are printed.
        if len(found) < count_max:
            self._is_over = True
            for partition, offset in self._stop.items():
                self._position[partition] = max(offset, self._position.get(partition, 0))
        return found

    def skip(self, error: OffsetTrimmed) -> None:
        """Go on behind what is gone."""
        assert error.partition is not None
        self._read({**self._position, error.partition: error.earliest}, self._stop)

    def commit(self) -> None:
        """Save the place behind what was fetched, if it is a reader's."""
        if self._reader is not None:
            self._reader.commit(self._position)


class Following(Stored):
    """What there is from a place on, then what comes."""

    def __init__(
        self,
        topic: "Topic",
        start: Mapping[int, int],
        partitions: Sequence[int] | None,
        *,
        last: int | None = None,
    ) -> None:
        """Begin at `start`, of that with no more than the `last` records.

        Partitions that are added later are read, too, if no `partitions` are given.
        """
        self._partitions = partitions
        super().__init__(topic, start, self._ends(topic))
        if last is not None:
            # What is wrong there is told once all before it is printed.
            with contextlib.suppress(SegueError):
                self._records = iter(deque(self._opened(), maxlen=last))

    def _ends(self, topic: "Topic") -> dict[int, int]:
        ends = topic.offsets("latest")
        return {
            partition: offset
            for partition, offset in ends.items()
            if self._partitions is None or partition in self._partitions
        }

    def fetch(self, count_max: int, pause_seconds: float) -> Sequence["TopicRecord"]:
        """Return the next records; wait so long for the first of them. Raises OffsetTrimmed."""
        if self._is_over:
            if not self._has_more(pause_seconds):
                return []
            self._read(self._position, self._ends(self._topic))
        return super().fetch(count_max, pause_seconds)

    def _has_more(self, pause_seconds: float) -> bool:
        if self._ends(self._topic) != self._position:
            return True
        coming = self._topic.follow(
            self._position, partitions=self._partitions, timeout=pause_seconds
        )
        return next(coming, None) is not None


class Named:
    """What a named reader has not read yet, then what comes."""

    def __init__(self, reader: "TopicReader") -> None:
        self._reader = reader

    def fetch(self, count_max: int, pause_seconds: float) -> Sequence["TopicRecord"]:
        """Return the next records; wait so long for the first of them. Raises OffsetTrimmed."""
        return self._reader.poll(count_max, timeout=pause_seconds)

    def skip(self, error: OffsetTrimmed) -> None:
        """Go on behind what is gone."""
        assert error.partition is not None
        self._reader.seek({**self._reader.position, error.partition: error.earliest})

    def commit(self) -> None:
        """Save the place behind what was fetched."""
        self._reader.commit()


class Shared:
    """A member's share of what its group has not read yet, then what comes."""

    def __init__(self, member: "Member", *, as_json: bool) -> None:
        self._member = member
        self._as_json = as_json

    def fetch(self, count_max: int, pause_seconds: float) -> Sequence["TopicRecord"]:
        """Return the next records; wait so long for the first of them. Raises OffsetTrimmed."""
        return self._member.poll(count_max, timeout=pause_seconds)

    def skip(self, error: OffsetTrimmed) -> None:
        """Go on behind what is gone."""
        assert error.partition is not None
        with contextlib.suppress(PartitionLost):  # Then it is for somebody else to do.
            self._member.seek({error.partition: error.earliest})

    def commit(self) -> None:
        """Save the place behind what was fetched, where that is still ours to do."""
        try:
            self._member.commit()
        except PartitionLost as error:
            # Whoever has them now prints again what we printed: at least once.
            stderr.warn(error, as_json=self._as_json)


class PastGaps:
    """A source that goes on behind what retention has deleted, with a warning."""

    def __init__(self, source: Source, *, as_json: bool) -> None:
        self._source = source
        self._as_json = as_json
        self.skip = source.skip
        self.commit = source.commit

    def fetch(self, count_max: int, pause_seconds: float) -> Sequence["TopicRecord"]:
        """Return the next records that are left; wait so long for the first of them."""
        while True:
            try:
                return self._source.fetch(count_max, pause_seconds)
            except OffsetTrimmed as error:
                stderr.warn(error, as_json=self._as_json)
                self._source.skip(error)
