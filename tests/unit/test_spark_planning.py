"""Which task reads what: no offset twice, none left out, and tasks of even size."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import InvalidArgument, OffsetNotWritten, OffsetTrimmed
from segue.log import Log
from segue.log.columns import Columns
from segue.log.horizon import Extent
from segue.log.layout import Offset
from segue.spark.options import Kind, ReadOptions
from segue.spark.planning import (
    RECORD_COST_BYTES,
    TASK_COST_BYTES,
    Ends,
    Task,
    batch_offsets,
    checked_starts,
    plan,
    resolve,
)
from segue.spark.strands import Label, Strand
from segue.spark.streaming import told, untold

START = datetime(2026, 1, 1, tzinfo=UTC)


class MadeUpLog:
    """A log of segments that say where they begin, and records of one size, one a second."""

    def __init__(self, first: int, counts: list[int], record_bytes: int) -> None:
        self.firsts = [first]
        for count in counts:
            self.firsts.append(self.firsts[-1] + count)
        self.next_offset = self.firsts[-1]
        self.record_bytes = record_bytes

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        borders = [start, *[each for each in self.firsts if start < each < stop], stop]
        for low, high in pairwise(sorted(set(borders))):
            yield Extent(Offset(low), Offset(high), (high - low) * self.record_bytes)

    def offset_at(self, moment: datetime) -> int:
        return max(self.firsts[0], -((START - moment) // timedelta(seconds=1)))


class MadeUpDecoder:
    """Knows which part of a log it is for."""

    def __init__(self, start: int = 0, stop: int = 1 << 62) -> None:
        self.start, self.stop = start, stop

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def within(self, start: int, stop: int) -> "MadeUpDecoder":
        return MadeUpDecoder(start, stop)


def strand(
    number: int | str = 0,
    *,
    first: int = 0,
    counts: list[int] | None = None,
    record_bytes: int = 100,
    name: str = "orders",
) -> Strand:
    log = MadeUpLog(first, counts or [10], record_bytes)
    return Strand(
        label=Label(name, str(number)),
        path=Path(f"{name}/partition_{number}"),
        first=first,
        end=log.next_offset,
        decoder=MadeUpDecoder(),
        log=cast("Log", log),
    )


def by_label(*strands: Strand) -> dict[Label, Strand]:
    return {each.label: each for each in strands}


def options(**settings: object) -> ReadOptions:
    return ReadOptions(url="data", kind="topic", name="orders", **settings)  # type: ignore[arg-type]


def whole(strands: dict[Label, Strand]) -> dict[Label, tuple[int, int]]:
    return {label: (each.first, each.end) for label, each in strands.items()}


def ranges_of(tasks: list[Task]) -> list[tuple[Label, int, int]]:
    return [(each.label, each.start, each.stop) for task in tasks for each in task.ranges]


def record_count(task: Task) -> int:
    return sum(each.stop - each.start for each in task.ranges)


# Offsets -------------------------------------------------------------------------------------


class TestOffsets:
    def test_ends_are_those_of_each_strand(self) -> None:
        """Where it begins, and where its next record would be."""
        strands = by_label(strand(0, first=3, counts=[4]), strand(1, counts=[9]))

        assert list(resolve("earliest", strands, missing=-2).values()) == [3, 0]
        assert list(resolve("latest", strands, missing=-2).values()) == [7, 9]

    def test_offsets_are_given_by_partition_or_by_name(self) -> None:
        """-2 and -1 are the ends; what is not named has what is usual for the option."""
        strands = by_label(*[strand(number, first=2, counts=[8]) for number in range(4)])

        given_ = {"0": 5, "1": -2, "2": -1}
        assert list(resolve({"": given_}, strands, missing=-1).values()) == [5, 2, 10, 10]
        assert list(resolve({"orders": given_}, strands, missing=-2).values()) == [5, 2, 10, 2]

    def test_offsets_of_strands_that_are_not_there_are_refused(self) -> None:
        """The error lists those that are."""
        strands = by_label(strand(0), strand(1))
        with pytest.raises(InvalidArgument, match="no orders/7; there are orders/0, orders/1"):
            resolve({"": {"7": 0}}, strands, missing=-2)
        with pytest.raises(InvalidArgument, match="no bills/0"):
            resolve({"bills": {"0": 0}}, strands, missing=-2)

    def test_offsets_of_several_topics_need_their_names(self) -> None:
        """A partition's number alone would mean two of them."""
        strands = by_label(strand(0), strand(0, name="bills"))
        with pytest.raises(InvalidArgument, match="need their names"):
            resolve({"": {"0": 0}}, strands, missing=-2)

        both = {"orders": {"0": 1}, "bills": {"0": 2}}
        assert list(resolve(both, strands, missing=-2).values()) == [1, 2]

    def test_a_time_is_the_first_record_from_then_on(self) -> None:
        """The end, if there is none that late."""
        strands = by_label(strand(0, counts=[10]))

        at = START + timedelta(seconds=4)
        assert list(resolve(at, strands, missing=-2).values()) == [4]
        assert list(resolve(START + timedelta(days=1), strands, missing=-2).values()) == [10]

    def test_a_batch_reads_from_start_to_end(self) -> None:
        """Everything, unless it is told otherwise."""
        strands = by_label(strand(0, first=2, counts=[8]))
        label = Label("orders", "0")

        assert batch_offsets(options(), strands) == {label: (2, 10)}
        chosen = options(start={"": {"0": 4}}, end={"": {"0": 9}})
        assert batch_offsets(chosen, strands) == {label: (4, 9)}

    @pytest.mark.parametrize("loses", [True, False])
    def test_an_end_that_is_not_written_is_refused(self, loses: bool) -> None:
        """Nothing is lost: it has not been there yet."""
        strands = by_label(strand(0, counts=[10]))
        with pytest.raises(OffsetNotWritten, match="11"):
            batch_offsets(options(end={"": {"0": 11}}, fails_on_data_loss=loses), strands)

    def test_a_start_that_is_gone_is_data_loss(self) -> None:
        """It names the partition and what there is."""
        strands = by_label(strand(0), strand(1, first=5, counts=[5]))
        starts = {Label("orders", "0"): 0, Label("orders", "1"): 3}
        with pytest.raises(OffsetTrimmed, match=r"offset 3 of partition 1 .* earliest is 5"):
            checked_starts(options(), strands, starts)

        tolerant = options(fails_on_data_loss=False)
        assert list(checked_starts(tolerant, strands, starts).values()) == [0, 5]

    def test_a_start_beyond_the_end_is_data_loss(self) -> None:
        """What was there is not there any more."""
        strands = by_label(strand(0, counts=[10]))
        starts = {Label("orders", "0"): 12}
        with pytest.raises(OffsetNotWritten, match="12"):
            checked_starts(options(), strands, starts)

        tolerant = options(fails_on_data_loss=False)
        assert list(checked_starts(tolerant, strands, starts).values()) == [10]

    @given(
        st.dictionaries(
            st.builds(Label, st.text(min_size=1, max_size=5), st.integers(0, 30).map(str)),
            st.integers(0, 1 << 62),
        )
    )
    def test_offsets_of_a_stream_come_back_as_they_were(self, offsets: dict[Label, int]) -> None:
        """Spark keeps them as JSON in the checkpoint."""
        assert untold(told(offsets)) == offsets


# Tasks ---------------------------------------------------------------------------------------


@st.composite
def given_strands(draw: st.DrawFn) -> dict[Label, Strand]:
    count = draw(st.integers(1, 5))
    return by_label(
        *[
            strand(
                number,
                first=draw(st.integers(0, 50)),
                counts=draw(st.lists(st.integers(0, 400), min_size=1, max_size=6)),
                record_bytes=draw(st.integers(0, 5_000)),
            )
            for number in range(count)
        ]
    )


@st.composite
def given_ends(draw: st.DrawFn, strands: dict[Label, Strand]) -> Ends:
    ends = {}
    for label, each in strands.items():
        start = draw(st.integers(each.first, each.end))
        ends[label] = (start, draw(st.integers(start, each.end)))
    return ends


def total_of(ends: Ends) -> int:
    return sum(stop - start for start, stop in ends.values())


@given(st.data(), st.integers(1, 20), st.none() | st.integers(1, 300))
def test_every_offset_is_read_by_one_task_in_order(
    data: st.DataObject, least: int, most: int | None
) -> None:
    """Laid end to end, the ranges of a strand are what was asked for, and nothing else."""
    strands = data.draw(given_strands())
    ends = data.draw(given_ends(strands))
    tasks = plan(options(min_partitions=least, records_max=most), strands, ends)

    found: dict[Label, list[tuple[int, int]]] = {label: [] for label in strands}
    for label, start, stop in ranges_of(tasks):
        assert start < stop
        found[label].append((start, stop))
    for label, (start, stop) in ends.items():
        covered = [offset for low, high in found[label] for offset in range(low, high)]
        assert covered == list(range(start, stop))
    assert all(task.ranges for task in tasks)


@given(st.data(), st.integers(1, 20), st.integers(1, 300))
def test_no_task_has_more_records_than_it_may(data: st.DataObject, least: int, most: int) -> None:
    """The limit holds over all ranges of a task together."""
    strands = data.draw(given_strands())
    ends = data.draw(given_ends(strands))
    tasks = plan(options(min_partitions=least, records_max=most), strands, ends)

    assert all(record_count(task) <= most for task in tasks)


@given(st.data(), st.integers(1, 20), st.none() | st.integers(1, 300))
def test_there_are_as_many_tasks_as_are_wanted(
    data: st.DataObject, least: int, most: int | None
) -> None:
    """If there are as many records, however they lie in segments."""
    strands = data.draw(given_strands())
    ends = data.draw(given_ends(strands))
    tasks = plan(options(min_partitions=least, records_max=most), strands, ends)

    assert len(tasks) >= min(least, total_of(ends))


def test_ten_segments_make_six_tasks() -> None:
    """Segments that go two by two into a task are parted all the same."""
    strands = by_label(strand(0, counts=[100] * 10))

    assert len(plan(options(min_partitions=6), strands, whole(strands))) == 6


@given(st.data(), st.integers(1, 20), st.none() | st.integers(1, 300))
def test_ranges_of_a_task_are_joined_where_they_touch(
    data: st.DataObject, least: int, most: int | None
) -> None:
    """A task opens each log once."""
    strands = data.draw(given_strands())
    tasks = plan(options(min_partitions=least, records_max=most), strands, whole(strands))

    for task in tasks:
        labels = [each.label for each in task.ranges]
        assert len(set(labels)) == len(labels)


@given(
    st.integers(1, 30),
    st.integers(30, 2_000),
    st.integers(0, 5_000),
)
def test_one_segment_makes_as_many_tasks_as_are_wanted_all_of_one_size(
    least: int, count: int, record_bytes: int
) -> None:
    """To a record."""
    strands = by_label(strand(0, counts=[count], record_bytes=record_bytes))
    tasks = plan(options(min_partitions=least), strands, whole(strands))
    sizes = [record_count(task) for task in tasks]

    assert len(tasks) >= least
    assert max(sizes) <= 2 * (min(sizes) + 1)


@given(st.data(), st.integers(1, 20))
def test_tasks_are_even(data: st.DataObject, least: int) -> None:
    """None costs more than about twice what it would if all were equal, or than one record."""
    strands = data.draw(given_strands())
    ends = whole(strands)
    tasks = plan(options(min_partitions=least), strands, ends)

    def cost(task: Task) -> float:
        return sum(
            (each.stop - each.start)
            * (RECORD_COST_BYTES + cast("MadeUpLog", strands[each.label].log).record_bytes)
            for each in task.ranges
        )

    if tasks:
        equal = sum(map(cost, tasks)) / least
        assert max(map(cost, tasks)) <= 2 * max(equal, 5_000 + RECORD_COST_BYTES)


class TestTasks:
    def test_nothing_to_read_is_no_task(self) -> None:
        """Neither of an empty strand nor of an empty range."""
        strands = by_label(strand(0, counts=[0]), strand(1))

        assert plan(options(), strands, {Label("orders", "1"): (4, 4)}) == []
        assert plan(options(min_partitions=9), {}, {}) == []

    def test_an_end_before_the_start_is_no_task(self) -> None:
        """Nothing lies between them."""
        strands = by_label(strand(0))

        assert plan(options(), strands, {Label("orders", "0"): (7, 3)}) == []

    def test_small_strands_share_a_task(self) -> None:
        """A task costs more than to read a few records."""
        strands = by_label(*[strand(number) for number in range(50)])

        assert len(plan(options(), strands, whole(strands))) == 1

    def test_large_logs_are_read_by_several_tasks(self) -> None:
        """A task reads about so many bytes, cut where segments end if that is even."""
        per_segment = 1_000
        record_bytes = TASK_COST_BYTES // per_segment - RECORD_COST_BYTES
        strands = by_label(strand(0, counts=[per_segment] * 5, record_bytes=record_bytes))
        tasks = plan(options(), strands, whole(strands))

        assert [(start, stop) for _, start, stop in ranges_of(tasks)] == [
            (number * per_segment, (number + 1) * per_segment) for number in range(5)
        ]

    def test_a_decoder_knows_only_its_part(self) -> None:
        """What travels to a task is no larger than what it reads."""
        strands = by_label(strand(0, counts=[100]))
        tasks = plan(options(min_partitions=4), strands, whole(strands))

        for task in tasks:
            for each in task.ranges:
                assert isinstance(each.decoder, MadeUpDecoder)
                assert (each.decoder.start, each.decoder.stop) == (each.start, each.stop)

    def test_a_task_travels_to_where_it_is_read(self) -> None:
        """It says what it reads, also in Spark's logs, and how."""
        strands = by_label(strand(0), strand(1))
        tolerant = options(fails_on_data_loss=False, allows_network=True)
        task = plan(tolerant, strands, whole(strands))[0]
        copy = pickle.loads(pickle.dumps(task))

        assert repr(copy) == "Task(orders/0 0-10, orders/1 0-10)"
        assert copy.passes_deleted
        assert copy.passes_damage
        assert copy.allows_network

    @pytest.mark.parametrize("kind", ["topic", "queue", "ring"])
    @pytest.mark.parametrize("is_snapshot", [True, False])
    def test_a_snapshot_of_what_moves_on_passes_what_is_deleted_meanwhile(
        self, kind: Kind, is_snapshot: bool
    ) -> None:
        """It was settled or overwritten; from a topic, and from a stream, it is lost."""
        strands = by_label(strand(0))
        read = ReadOptions(url="data", kind=kind, name="orders")
        task = plan(read, strands, whole(strands), is_snapshot=is_snapshot)[0]

        assert task.passes_deleted is (is_snapshot and kind != "topic")
        assert not task.passes_damage
