"""Named readers of a topic."""

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from segue.delivery.topic_record import TopicRecord
from segue.errors import InvalidArgument, StoreClosed
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.places import lag_of, resolved, save_places
from segue.stores.redis.topics.polling import Poller
from segue.stores.redis.topics.waiting import Wait
from segue.stores.topic_contract import Lag, Partitions, ReaderStart
from segue.stores.topic_manifest import reader_mark
from segue.stores.topic_reading import check_offsets, check_start, start_in


class RedisTopicReader(Poller):
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
        self._partitions = core.chosen(partitions)
        if start != "resume":
            resolved(core, start, self._partitions)  # All of them, before any is registered.
        self._read(self._registered(start, self._partitions))
        self._follow_growth(len(core.numbers()))  # What was added meanwhile.

    def _registered(self, start: ReaderStart, partitions: Iterable[int]) -> dict[int, int]:
        """Return where to begin, which nothing is deleted after from here on."""
        places = {}
        for partition in partitions:
            begin = "earliest" if start == "resume" else start_in(start, partition)
            door = self._core.partition(partition)
            place = door.register(self._mark, begin, keeps=start == "resume")
            assert place is not None, "only a group's place has a token"
            places[partition] = place
        return places

    def _read(self, places: Mapping[int, int]) -> None:
        for partition, place in places.items():
            self._feed.add(partition, place)

    # Reading -------------------------------------------------------------------------------

    def _prepare(self, wait: Wait) -> None:
        """Take in partitions that were added, if all are meant."""
        del wait
        self._require_open()
        manifest = self._core.known()
        self._follow_growth(0 if manifest is None else manifest.partitions)

    def _follow_growth(self, partitions: int) -> None:
        if self._grows and partitions > len(self._partitions):
            added = range(len(self._partitions), partitions)
            self._read(self._registered("resume", added))
            self._partitions = list(range(partitions))

    def __iter__(self) -> Iterator[TopicRecord]:
        """Yield what is there one by one, so that `position` is always that of the next record."""
        while records := self.poll():
            moves, after = self._moves, self._feed.position
            for record in reversed(records):
                self._feed.move(record.partition, record.offset)
            for record in records:
                self._feed.move(record.partition, record.offset + 1)
                yield record
                self._require_open()
                if self._moves != moves:
                    break  # The consumer went elsewhere.
            else:
                for partition, offset in after.items():
                    self._feed.move(partition, offset)

    @property
    def position(self) -> Mapping[int, int]:
        """The offset of the next record, by partition."""
        return self._feed.position

    def seek(self, start: ReaderStart) -> None:
        """Go to another place; `commit` makes it the saved one."""
        self._require_open()
        self._follow_growth(len(self._core.numbers()))
        if start == "resume":
            places = self._registered(start, self._partitions)
        elif isinstance(start, Mapping):
            check_start(self._core, start, self._partitions)
            if not start.keys() <= set(self._partitions):
                raise InvalidArgument(f"reader {self.name} reads {self._partitions} only: {start}")
            places = resolved(self._core, start, start.keys())
        else:
            places = resolved(self._core, start, self._partitions)
        self._moves += 1
        self._read(places)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
