"""How far streams are behind, in records, bytes and seconds.

Spark asks Python sources for no metrics, so this is worked out from the progress that it reports
of every batch, and from the headers of the segments that are still to be read.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from segue.clock import Clock, system_clock
from segue.errors import LogNotFound, SegueError
from segue.log import Log
from segue.spark.places import is_server
from segue.stores.file.store import TOPICS
from segue.stores.opening import directory_of
from segue.values import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a stream is behind in one partition."""

    topic: str
    partition: int
    offset: int
    """Up to where the stream has read."""
    records: int
    size_bytes: int
    seconds: float
    """How long the oldest record that is still to be read has been waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLag:
    """How far a stream is behind, after one of its batches."""

    query: str
    """Its name, or its id if it has none."""
    batch: int
    partitions: tuple[PartitionLag, ...]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    @property
    def seconds(self) -> float:
        return max((each.seconds for each in self.partitions), default=0.0)


def lag_behind(
    url: str,
    offsets: Mapping[str, Mapping[str, int]],
    *,
    allow_network: bool = False,
    clock: Clock = system_clock,
) -> list[PartitionLag]:
    """Return how much of each topic lies beyond `offsets`, which are a stream's.

    Topics and partitions that are not in the store at `url` are left out.
    """
    if is_server(url):
        from segue.spark.servers.lag import behind

        return [PartitionLag(**each._asdict()) for each in behind(url, offsets)]
    root = directory_of(url) / TOPICS
    now_us = clock()
    found = []
    for topic, numbers in offsets.items():
        for number, offset in numbers.items():
            path = root / topic / f"partition_{number}"
            with contextlib.suppress(LogNotFound, ValueError):
                log = Log(path, read_only=True, allow_network=allow_network)
                found.append(_in_partition(log, topic, int(number), int(offset), now_us))
    return found


def _in_partition(log: Log, topic: str, partition: int, offset: int, now_us: int) -> PartitionLag:
    with log:
        records = max(0, int(log.next_offset) - offset)
        time_us = log.time_of(offset) if records else None
        return PartitionLag(
            topic=topic,
            partition=partition,
            offset=offset,
            records=records,
            size_bytes=log.bytes_from(offset) if records else 0,
            seconds=0.0 if time_us is None else max(0, now_us - time_us) / 1_000_000,
        )


class LagListener(StreamingQueryListener):
    """Knows how far every stream over a store is behind, from batch to batch.

        listener = LagListener("data")
        spark.streams.addListener(listener)
        ...
        listener.lags["orders-to-parquet"].seconds

    `on_lag` is called with each new figure, from Spark's thread; what it raises is logged.
    """

    def __init__(
        self,
        url: str,
        on_lag: Callable[[StreamLag], object] | None = None,
        *,
        allow_network: bool = False,
    ) -> None:
        self._url = url
        self._allow_network = allow_network
        self._on_lag = on_lag
        self._lock = threading.Lock()
        self._lags: dict[str, StreamLag] = {}

    @property
    def lags(self) -> Mapping[str, StreamLag]:
        """The latest figure of each query, by its name or id; of one that ended its last."""
        with self._lock:
            return dict(self._lags)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Work out how far the query is behind now."""
        progress = event.progress
        partitions = [
            lag for source in progress.sources for lag in self._lag_of(_offsets(source.endOffset))
        ]
        if not partitions:
            return
        query = progress.name or str(progress.id)
        lag = StreamLag(query=query, batch=progress.batchId, partitions=tuple(partitions))
        with self._lock:
            self._lags[query] = lag
        if self._on_lag is not None:
            try:
                self._on_lag(lag)
            except Exception:
                logger.exception("on_lag failed query=%s", query)

    def _lag_of(self, offsets: Mapping[str, Mapping[str, int]]) -> Iterable[PartitionLag]:
        try:
            return lag_behind(self._url, offsets, allow_network=self._allow_network)
        except SegueError as error:
            logger.warning("lag not known: %s", error)
            return []

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep the last figure: whoever starts the query again wants to compare."""


def _offsets(text: object) -> Mapping[str, Mapping[str, int]]:
    """Return the offsets that a source reports; none if they are not of our kind."""
    try:
        said: Any = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(said, dict):
        return {}
    return {
        name: numbers
        for name, numbers in said.items()
        if isinstance(numbers, dict) and all(type(each) is int for each in numbers.values())
    }
