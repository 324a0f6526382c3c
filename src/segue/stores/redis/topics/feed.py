"""Reading several partitions: by turns, merged by time, or as columns."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from segue.delivery.topic_record import TopicRecord, unpack_record
from segue.errors import SegueError
from segue.extras import extra
from segue.log.record import Record
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.stretch import Stretch
from segue.stores.redis.topics.waiting import NO_WAIT, Wait
from segue.stores.topic_reading import Budget, in_turn, merged_by_time

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_RECORDS: Final = 1024
"""How many records of a partition one call brings, unless more were asked for."""
FETCH_RECORDS_MAX: Final = 65_536
FETCH_BYTES_MAX: Final = 1 << 20
"""How many bytes of payload one call brings, but for a batch that is larger."""


class Lane:
    """A place in one partition, and what was read there and not handed out yet."""

    __slots__ = ("_records", "offset", "stretch")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.stretch: Stretch | None = None
        self._records: list[Record] | None = None

    @property
    def ahead(self) -> Stretch | None:
        """What was read ahead, if the place is in it."""
        stretch = self.stretch
        if stretch is not None and stretch.first_offset <= self.offset < stretch.stop:
            return stretch
        return None

    def put(self, stretch: Stretch | None) -> None:
        """Keep what was read."""
        self.stretch, self._records = stretch, None

    def records(self, stretch: Stretch, count_max: int) -> tuple[list[Record], int]:
        """Return what is left of the stretch, and the place behind it.

        What was removed behind the last record is passed over with it.
        """
        if self._records is None:
            self._records = stretch.records()
        start = bisect_left(self._records, self.offset, key=attrgetter("offset"))
        found = self._records[start : start + count_max]
        is_all = start + len(found) == len(self._records)
        return found, stretch.stop if is_all else found[-1].offset + 1


class Feed:
    """A place in each of some partitions. For one thread at a time.

    It keeps nothing from being deleted: that is what saved places are for.
    """

    def __init__(self, core: TopicCore, offsets: Mapping[int, int]) -> None:
        self._core = core
        self._lanes = {partition: Lane(offset) for partition, offset in offsets.items()}
        self._turn = 0

    def add(self, partition: int, offset: int) -> None:
        """Read this partition, too, or go on elsewhere in it."""
        self._lanes[partition] = Lane(offset)

    def move(self, partition: int, offset: int) -> None:
        """Go on elsewhere, in what was read ahead if it is there."""
        self._lanes[partition].offset = offset

    def drop(self, partition: int) -> None:
        """Read this partition no more."""
        self._lanes.pop(partition, None)

    @property
    def position(self) -> dict[int, int]:
        """The offset of the next record, by partition."""
        return {partition: lane.offset for partition, lane in self._lanes.items()}

    @property
    def bases(self) -> list[str]:
        """What the keys of the partitions begin with."""
        return [self._core.partition(number).base for number in in_turn(self._lanes, self._turn)]

    def _read(self, partition: int, lane: Lane, count: int, wait: Wait = NO_WAIT) -> Stretch | None:
        """Return a stretch with the place of a lane in it, None at the end."""
        ahead = lane.ahead
        if ahead is not None:
            return ahead
        found = self._core.partition(partition).read(
            lane.offset,
            records_max=min(max(count, FETCH_RECORDS), FETCH_RECORDS_MAX),
            bytes_max=FETCH_BYTES_MAX,
            waiter=wait.waiter,
            wait_us=wait.step_us,
        )
        self._core.saw_version(found.version)
        lane.put(found.stretch)
        return found.stretch

    # Records -------------------------------------------------------------------------------

    def fetch(
        self, max_records: int, max_bytes: int | None, wait: Wait = NO_WAIT
    ) -> list[TopicRecord]:
        """Return the next records, from as many partitions as it takes, each in its turn.

        What cannot be read is told once all before it has been returned.
        """
        self._core.require_open()
        budget = Budget(max_records, max_bytes)
        records: list[TopicRecord] = []
        for partition in in_turn(self._lanes, self._turn):
            try:
                for found in self._pieces(partition, budget, wait):
                    records += [unpack_record(partition, record) for record in found]
            except SegueError:
                if records:
                    self._turn = partition  # Told next time, before anything else.
                    return records
                raise
            if budget.is_spent:
                self._turn = partition + 1
                break
        return records

    def _pieces(self, partition: int, budget: Budget, wait: Wait) -> Iterator[list[Record]]:
        """Yield what one partition has within the budget, and go on behind it."""
        lane = self._lanes[partition]
        while not budget.is_spent:
            stretch = self._read(partition, lane, budget.records_left, wait)
            if stretch is None:
                return
            found, after = lane.records(stretch, budget.records_left)
            within = budget.take(found)
            if len(within) == len(found):
                lane.offset = after
            elif within:
                lane.offset = within[-1].offset + 1
            if within:
                yield within

    def merged(self, stops: Mapping[int, int]) -> Iterator[TopicRecord]:
        """Yield what lies before `stops`, ordered by timestamp as far as the partitions are."""
        self._core.require_open()
        return merged_by_time(
            self._one(partition, stops[partition]) for partition in sorted(self._lanes)
        )

    def _one(self, partition: int, stop: int) -> Iterator[TopicRecord]:
        lane = self._lanes[partition]
        while lane.offset < stop:
            self._core.require_open()
            stretch = self._read(partition, lane, FETCH_RECORDS)
            if stretch is None:
                return
            records, lane.offset = lane.records(stretch, stretch.stop - stretch.first_offset)
            for record in records:
                if record.offset >= stop:
                    return
                yield unpack_record(partition, record)

    # Columns -------------------------------------------------------------------------------

    def fetch_table(
        self, max_records: int, max_bytes: int | None, wait: Wait = NO_WAIT
    ) -> "pa.Table":
        """Return the next records as a table."""
        with extra("columns", needed_by="a topic as a table"):
            import pyarrow as pa

            from segue.stores.topic_columns import SCHEMA

        budget = Budget(max_records, max_bytes)
        tables: list[pa.Table] = []
        for partition in in_turn(self._lanes, self._turn):
            try:
                tables.extend(self.tables(partition, None, budget, wait))
            except SegueError:
                if tables:
                    self._turn = partition
                    break
                raise
            if budget.is_spent:
                self._turn = partition + 1
                break
        return pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def tables(
        self, partition: int, stop: int | None, budget: Budget, wait: Wait = NO_WAIT
    ) -> "Iterator[pa.Table]":
        """Yield what one partition has before `stop` and within the budget, as tables."""
        with extra("columns", needed_by="a topic as a table"):
            from segue.stores.topic_columns import rows_within, table_of

        lane = self._lanes[partition]
        while not budget.is_spent and (stop is None or lane.offset < stop):
            self._core.require_open()
            stretch = self._read(partition, lane, budget.records_left, wait)
            if stretch is None:
                return
            columns = stretch.columns(lane.offset, min(stretch.stop, stop or stretch.stop))
            rows, size_bytes = rows_within(columns, budget.bytes_left, at_least_one=budget.is_whole)
            fit = min(rows, budget.records_left)
            budget.spend(fit, size_bytes)
            after = stretch.stop
            if fit < len(columns):
                after = int(columns.offset[fit])
                if rows < len(columns) and fit == rows:
                    budget.bytes_left = 0
            if fit:
                yield table_of(partition, columns).slice(0, fit)
            # Only now: what was not handed over is read again.
            lane.offset = after

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._lanes.clear()
