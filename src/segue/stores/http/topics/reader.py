"""Named readers of a topic."""

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from segue.delivery.topic_record import TopicRecord
from segue.errors import SessionGone
from segue.stores.http.calls import path_of
from segue.stores.http.topics.polling import Poller
from segue.stores.http.wire.starts import StartJson, partitions_json, start_json
from segue.stores.http.wire.topic_reports import Lags
from segue.stores.http.wire.topics import (
    Offsets,
    OpenReader,
    Poll,
    Polled,
    Position,
    ReaderSession,
    Seek,
)
from segue.stores.topic_contract import Lag, Partitions, ReaderStart
from segue.stores.topic_manifest import reader_mark
from segue.stores.topic_reading import check_offsets

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore

T = TypeVar("T")


class HttpTopicReader(Poller):
    """A reader with a name, whose place is kept."""

    def __init__(
        self,
        store: "HttpStore",
        topic: str,
        name: str,
        start: ReaderStart,
        partitions: Partitions,
    ) -> None:
        path = path_of("topics", topic, "readers", reader_mark(name), "sessions")
        super().__init__(store, f"reader {name}", path)
        self.name = name
        self._partitions = partitions_json(partitions)
        self._seeks = 0
        self._position = {}
        self._open(start_json(start, may_resume=True))

    def _open(self, start: StartJson) -> None:
        body = OpenReader(start=start, partitions=self._partitions)
        answer = self._calls.post(self._sessions, body, ReaderSession)
        self._session = answer.session
        self._there = answer.position
        # What we know is where we are: the saved place may be far behind.
        self._position = {**answer.position, **self._position}

    def _come_back(self) -> None:
        self._open("resume")

    def _again(self, ask: Callable[[], T]) -> T:
        """Return what `ask` does, also if the session is gone."""
        try:
            return ask()
        except SessionGone:
            self._require_open()
            self._come_back()
            return ask()

    # Reading -------------------------------------------------------------------------------

    def _asked(self, max_records: int, max_bytes: int | None) -> Poll:
        return Poll(max_records=max_records, max_bytes=max_bytes, moves=self._moves())

    def _heard(self, polled: Polled) -> bool:
        del polled
        return False

    def __iter__(self) -> Iterator[TopicRecord]:
        """Yield what is there one by one, so that `position` is always that of the next record."""
        while records := self.poll():
            seeks, after = self._seeks, self.position
            for record in reversed(records):
                self._position[record.partition] = record.offset
            for record in records:
                self._position[record.partition] = record.offset + 1
                yield record
                self._require_open()
                if self._seeks != seeks:
                    break  # The consumer went elsewhere.
            else:
                self._position |= after

    def seek(self, start: ReaderStart) -> None:
        """Go to another place; `commit` makes it the saved one."""
        self._require_open()
        body = Seek(start=start_json(start, may_resume=True))

        def ask() -> dict[int, int]:
            there = self._there
            with self._in_doubt():
                found = self._calls.post(f"{self._path}/seek", body, Position).position
            self._there = there
            return found

        found = self._again(ask)
        if isinstance(start, Mapping):
            # The others are where they are: here, which need not be where the server has them.
            found = {
                partition: offset
                for partition, offset in found.items()
                if partition in start or partition not in self._position
            }
        self._seeks += 1
        self._position |= found
        self._there = {**self._there, **found}

    # The saved place -----------------------------------------------------------------------

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Save `offsets`, or the current position, as the place to resume from."""
        self._require_open()
        places = self._position if offsets is None else offsets
        check_offsets(places)
        body = Offsets(offsets=dict(places))
        self._again(lambda: self._calls.tell(f"{self._path}/commit", body))

    def lag(self) -> list[Lag]:
        """Return how far the reader is behind, by what it committed."""
        self._require_open()
        answer = self._again(lambda: self._calls.get(f"{self._path}/lag", Lags))
        return [each.lag() for each in answer.lag]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
