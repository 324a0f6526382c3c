"""Named readers of a topic."""

from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from segue.delivery.topic_record import TopicRecord
from segue.errors import InvalidArgument, SegueError, StoreClosed
from segue.log.layout import Offset
from segue.stores.file.topics import marks
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.places import resolve_in, resolved
from segue.stores.file.topics.polling import Poller
from segue.stores.topic_contract import Lag, Partitions, ReaderStart
from segue.stores.topic_manifest import reader_mark
from segue.stores.topic_reading import check_offsets, check_start, start_in


class FileTopicReader(Poller):
    """A reader with a name, whose place is kept."""

    def __init__(
        self, core: TopicCore, name: str, start: ReaderStart, partitions: Partitions
    ) -> None:
        super().__init__(core)
        self.name = name
        self._mark = reader_mark(name)
        self._grows = partitions is None
        self._closed = False
        self._moves = 0
        with core.locked():
            self._partitions = core.chosen(partitions)
            if start != "resume":
                resolved(core, start, self._partitions)  # All of them, before any is registered.
            for partition, place in self._registered(start).items():
                self._feed.add(partition, place)

    def _registered(self, start: ReaderStart) -> dict[int, Offset]:
        """Return where to begin, which nothing is deleted after from here on."""
        places = {}
        for partition in self._partitions:
            log = self._core.log(partition)
            place = marks.saved(log, self._mark) if start == "resume" else None
            if place is None:
                begin = start_in("earliest" if start == "resume" else start, partition)
                place = marks.register(log, self._mark, partial(resolve_in, log, partition, begin))
            places[partition] = place
        return places

    # Reading -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Take in partitions that were added, if all are meant."""
        self._require_open()
        if self._grows and len(self._core.numbers()) != len(self._partitions):
            self._partitions = list(self._core.numbers())
            for partition, place in self._registered("resume").items():
                if partition not in self._feed.position:
                    self._feed.add(partition, place)

    def __iter__(self) -> Iterator[TopicRecord]:
        """Yield what is there one by one, so that `position` is always that of the next record."""
        while records := self.poll():
            moves, after = self._moves, self._feed.position
            for record in reversed(records):
                self._feed.add(record.partition, Offset(record.offset))
            for record in records:
                self._feed.add(record.partition, Offset(record.offset + 1))
                yield record
                self._require_open()
                if self._moves != moves:
                    break  # The consumer went elsewhere.
            else:
                for partition, offset in after.items():
                    self._feed.add(partition, Offset(offset))

    @property
    def position(self) -> Mapping[int, int]:
        """The offset of the next record, by partition."""
        return self._feed.position

    def seek(self, start: ReaderStart) -> None:
        """Go to another place; `commit` makes it the saved one."""
        self._prepare()
        if start == "resume":
            places = self._registered(start)
        elif isinstance(start, Mapping):
            check_start(self._core, start, self._partitions)
            if not start.keys() <= set(self._partitions):
                raise InvalidArgument(f"reader {self.name} reads {self._partitions} only: {start}")
            places = resolved(self._core, start, start.keys())
        else:
            places = resolved(self._core, start, self._partitions)
        self._moves += 1
        for partition, place in places.items():
            self._feed.add(partition, place)

    # The saved place -----------------------------------------------------------------------

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the current position, as the place to resume from."""
        self._require_open()
        places = self._feed.position if offsets is None else offsets
        check_offsets(places)
        for partition in places:
            self._core.check(partition)
        save_places(self._core, self._mark, places)

    def lag(self) -> list[Lag]:
        """Return how far the reader is behind, by what it committed."""
        self._require_open()
        return lag_of(self._core, self._mark)

    def _require_open(self) -> None:
        self._core.require_open()
        if self._closed:
            raise StoreClosed(f"reader {self.name} is closed")

    def close(self) -> None:
        """Let go of the topic. Does not commit."""
        self._closed = True
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def save_places(core: TopicCore, mark: str, places: Mapping[int, int]) -> None:
    """Save places, all that can be; then raise what kept the first other from it."""
    failure: SegueError | None = None
    for partition, offset in places.items():
        log = core.log(partition)
        try:
            marks.save(log, mark, partial(resolve_in, log, partition, offset))
        except SegueError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def lag_of(core: TopicCore, mark: str) -> list[Lag]:
    """Return how far the reader or group with this mark is behind, by partition."""
    now_us = core.place.clock()
    found = []
    for partition in core.numbers():
        log = core.log(partition)
        committed = marks.saved(log, mark)
        if committed is None:
            continue
        time_us = log.time_of(committed)
        found.append(
            Lag(
                partition=partition,
                committed=committed,
                next_offset=log.next_offset,
                size_bytes=log.bytes_from(committed),
                seconds=0.0 if time_us is None else max(0, now_us - time_us) / 1_000_000,
                trimmed=max(0, log.first_offset - committed),
            )
        )
    return found
