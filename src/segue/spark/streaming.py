"""Reading a stream: offsets that can be replayed, limits for each trigger, a place that is kept.

An offset of the stream is the offset of every strand: `{"orders": {"0": 17, "1": 4}}`. What lies
between two of them in a topic never changes, so a batch that Spark repeats after a crash has the
same rows. In a queue the messages are the same, and their state is that of the moment.

A stream of a topic is a named reader of it. The reader's place follows what Spark has committed,
one batch behind, so retention never deletes what Spark still needs.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from segue.errors import OffsetOutOfRange
from segue.log.layout import Offset
from segue.spark.decoding import Wanted
from segue.spark.options import EARLIEST, ReadOptions, Where
from segue.spark.places import open_place
from segue.spark.planning import Offsets, checked_starts, plan, resolve
from segue.spark.reading import read_task
from segue.spark.strands import AnyStrand, Label, Shelf, open_shelf
from segue.stores.topic_contract import TopicReader

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

Told = dict[str, dict[str, int]]
"""An offset of a stream as Spark keeps it."""


def told(offsets: Offsets) -> Told:
    """Return offsets as Spark keeps them."""
    by_name: Told = {}
    for label, offset in sorted(offsets.items()):
        by_name.setdefault(label.name, {})[label.number] = offset
    return by_name


def untold(offsets: Told) -> Offsets:
    """Return what `told` was given."""
    return {
        Label(name, number): int(offset)
        for name, numbers in offsets.items()
        for number, offset in numbers.items()
    }


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes, batch by batch."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._wanted = Wanted(schema=schema, value_format=options.value_format)
        self._seconds = seconds
        self._shelf: Shelf | None = None
        self._marks: _Marks | None = None
        self._initial: Told | None = None
        self._last_end: Offsets | None = None
        """Where a run that takes only what there is now ends."""
        self._last_trigger = seconds()

    def __getstate__(self) -> dict[str, object]:
        """Leave what is open behind: tasks get a copy, and open what they need themselves."""
        return {**self.__dict__, "_shelf": None, "_marks": None}

    def _strands(self) -> Mapping[Label, AnyStrand]:
        if self._shelf is None:
            self._shelf = open_shelf(self._options, self._wanted, is_stream=True)
        return self._shelf.strands()

    @property
    def _reader_marks(self) -> "_Marks | None":
        """The places of the reader; None for what has no readers."""
        if self._marks is None and self._options.reader is not None:
            self._marks = _Marks(self._options)
        return self._marks

    # Where to begin ------------------------------------------------------------------------

    def initialOffset(self) -> Told:
        """Return where a new query begins.

        Spark asks again while the first batch has not been committed, also after a restart. A
        topic's reader remembers; for what has no readers it is remembered until then.
        """
        if self._initial is None:
            strands = self._strands()
            usual: Where = "latest" if self._options.kind == "topic" else "earliest"
            where = self._options.start or usual
            starts = resolve(where, strands, missing=EARLIEST)
            if self._reader_marks is not None:
                assert self._shelf is not None
                starts = self._reader_marks.begin(self._shelf.names(), starts)
                starts = {label: place for label, place in starts.items() if label in strands}
            self._initial = told(starts)
        return self._initial

    # How far to go -------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first limit there is; `latestOffset` keeps to all of them."""
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take only what there is now, in as many batches as the limits make of it."""
        self._last_end = {label: strand.end for label, strand in self._strands().items()}

    def latestOffset(self, start: Told, limit: ReadLimit) -> Told:
        """Return where the next batch ends."""
        strands = self._strands()
        starts = untold(start)
        ends = {
            label: max(
                strand.end if self._last_end is None else self._last_end.get(label, 0),
                starts.get(label, 0),
            )
            for label, strand in strands.items()
        }
        for label, place in starts.items():
            ends.setdefault(label, place)  # What is not there now is not forgotten.
            strand = strands.get(label)
            if strand is not None and place > strand.end:
                # A power cut took back what was read: what comes next there is new.
                ends[label] = checked_starts(self._options, {label: strand}, {label: place})[label]
        if isinstance(limit, ReadAllAvailable):
            return told(ends)
        lags = {
            label: max(0, ends[label] - self._begin(label, starts, strands)) for label in strands
        }
        if self._waits_for_more(sum(lags.values())):
            return start
        if sum(lags.values()):
            self._last_trigger = self._seconds()
        return told(ends | self._limited(strands, lags, starts))

    def _begin(self, label: Label, starts: Offsets, strands: Mapping[Label, AnyStrand]) -> int:
        """Return where a strand is read from; one that was added since, from its beginning."""
        strand = strands[label]
        return min(max(starts.get(label, 0), strand.first), strand.end)

    def _waits_for_more(self, lag: int) -> bool:
        least = self._options.offsets_per_trigger_min
        if least is None or lag >= least or self._last_end is not None:
            return False
        waited = self._seconds() - self._last_trigger
        return waited < self._options.trigger_delay_max.total_seconds()

    def _limited(
        self, strands: Mapping[Label, AnyStrand], lags: dict[Label, int], starts: Offsets
    ) -> Offsets:
        """Return ends within the limits, each strand with a share in proportion to its lag."""
        records_max = self._options.offsets_per_trigger_max
        bytes_max = self._options.bytes_per_trigger_max
        total = sum(lags.values())
        limited = {}
        for label, lag in lags.items():
            begin = self._begin(label, starts, strands)
            take = lag
            if records_max is not None and total > records_max:
                take = min(take, max(1, lag * records_max // total))
            if bytes_max is not None and take:
                share = bytes_max * lag // total
                take = _records_within(strands[label], begin, take, share)
            place = min(starts.get(label, 0), strands[label].end)
            limited[label] = max(begin + take if lag else place, place)
        return limited

    def reportLatestOffset(self) -> Told:
        """Return where the data ends now, for the progress of the query."""
        return told({label: strand.end for label, strand in self._strands().items()})

    # Batches -------------------------------------------------------------------------------

    def partitions(self, start: Told, end: Told) -> Sequence[InputPartition]:
        """Return the tasks that read from one offset of the stream to another."""
        strands = self._strands()
        if self._reader_marks is not None:
            assert self._shelf is not None
            self._reader_marks.follow(self._shelf.names())
        starts, stops = untold(start), untold(end)
        missing = [label for label, stop in stops.items() if label not in strands and stop > 0]
        if missing and self._options.fails_on_data_loss:
            raise OffsetOutOfRange(offset=stops[missing[0]], earliest=0, latest=0)
        there = {label: stop for label, stop in stops.items() if label in strands}
        begins = checked_starts(
            self._options, strands, {label: starts.get(label, 0) for label in there}
        )
        # The end, too, may lie beyond what a power cut has left.
        there = checked_starts(self._options, strands, there, is_end=True)
        return plan(
            self._options,
            strands,
            {label: (begin, there[label]) for label, begin in begins.items()},
            is_snapshot=False,
        )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of a task."""
        return read_task(partition)

    def commit(self, end: Told) -> None:
        """Let the reader follow: everything before `end` is done with."""
        if self._reader_marks is not None:
            self._reader_marks.commit(end)

    def stop(self) -> None:
        """Let go of everything."""
        if self._marks is not None:
            self._marks.close()
            self._marks = None
        if self._shelf is not None:
            self._shelf.close()
            self._shelf = None


def _records_within(strand: AnyStrand, begin: int, most: int, bytes_max: int) -> int:
    """Return how many of `most` records have no more than so many bytes; at least one."""
    left = bytes_max
    for extent in strand.extents(begin, begin + most):
        if extent.size_bytes > left:
            low, high = extent.start, extent.stop
            while low < high:
                middle = (low + high + 1) // 2
                if _bytes_between(strand, extent.start, middle) <= left:
                    low = Offset(middle)
                else:
                    high = Offset(middle - 1)
            return max(1, low - begin)
        left -= extent.size_bytes
    return most


def _bytes_between(strand: AnyStrand, start: int, stop: int) -> int:
    return sum(extent.size_bytes for extent in strand.extents(start, stop))


class _Marks:
    """The reader of each topic of a stream."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.reader is not None
        self._name = options.reader
        self._has_start = options.start is not None
        self._partitions = None if options.partitions is None else sorted(options.partitions)
        self._store = open_place(
            options.url,
            sync=options.sync,
            allow_network=options.allows_network,
            token=options.token,
        )
        self._readers: dict[str, TopicReader] = {}

    def begin(self, names: list[str], starts: Offsets) -> Offsets:
        """Return where the reader stands; one that is new stands where it is to begin."""
        places: Offsets = {}
        for name in names:
            topic = self._store.topic(name)
            if name not in self._readers:
                given = {
                    int(label.number): start
                    for label, start in starts.items()
                    if label.name == name
                }
                known = {lag.partition for lag in topic.readers().get(self._name, ())}
                if known and self._has_start:
                    logger.warning(
                        "starting offsets are for new readers; this one goes on where it stands "
                        "reader=%s topic=%s",
                        self._name,
                        name,
                    )
                # Also those that a first try was killed before it came to.
                new = {each: start for each, start in given.items() if each not in known}
                if new:
                    topic.reader(self._name, new, partitions=sorted(new)).close()
                self._readers[name] = topic.reader(
                    self._name, "resume", partitions=self._partitions
                )
            for partition, place in self._readers[name].position.items():
                places[Label(name, str(partition))] = place
        return places

    def follow(self, names: list[str]) -> None:
        """Register the reader wherever it is not: after a restart, or if topics were added."""
        for name in names:
            if name not in self._readers:
                self._readers[name] = self._store.topic(name).reader(
                    self._name, "resume", partitions=self._partitions
                )

    def commit(self, end: Told) -> None:
        self.follow(list(end))
        for name, offsets in end.items():
            try:
                self._readers[name].commit({int(each): offset for each, offset in offsets.items()})
            except OffsetOutOfRange as error:
                # Gone by a limit of retention; the next batch says so if it needs it.
                logger.warning("place not kept reader=%s topic=%s: %s", self._name, name, error)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._store.close()
