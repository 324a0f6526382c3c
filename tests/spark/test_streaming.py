"""Streams: replayable batches within their limits, and a reader that retention follows."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import LongType, StructField, StructType

import segue
from segue import QueueRules, TopicRules
from segue.errors import OffsetNotWritten, OffsetTrimmed
from segue.spark.options import read_options
from segue.spark.planning import Task
from segue.spark.streaming import StreamReader
from tests.contract.topic_support import SMALL_SEGMENT_BYTES, committed, fill_segments
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.unit.support import no_descriptor_left_open

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES)
OFFSET = StructType([StructField("offset", LongType())])
Told = dict[str, dict[str, int]]


class Seconds:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(scratch: Path) -> Iterator[segue.Store]:
    with segue.open(scratch / "store", sync="os") as opened:
        yield opened


# The reader alone ----------------------------------------------------------------------------

MakeReader = Callable[..., StreamReader]


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
def reader(scratch: Path, seconds: Seconds) -> Iterator[MakeReader]:
    """Makes readers as Spark does on the driver; all are stopped at the end."""
    made: list[StreamReader] = []

    def make(what: str = "topic", name: str = "orders", **options: str) -> StreamReader:
        given = {"url": str(scratch / "store"), what: name, "sync": "os", **options}
        if what in {"topic", "topics"}:
            given.setdefault("reader", "copy")
        read = StreamReader(read_options(given, is_stream=True), OFFSET, seconds=seconds)
        made.append(read)
        return read

    yield make
    for each in made:
        each.stop()


def step(reader: StreamReader, start: Told) -> Told:
    """Return where the next batch ends, as Spark asks for it."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def offsets_of(reader: StreamReader, start: Told, end: Told) -> list[tuple[str, int]]:
    """Return the partition and offset of every row between two offsets, as tasks read them."""
    rows = []
    for task in reader.partitions(start, end):
        copy = pickle.loads(pickle.dumps((reader, task)))
        assert isinstance(copy[1], Task)
        for range_ in copy[1].ranges:
            alone = Task([range_], passes_deleted=False, passes_damage=False, allows_network=False)
            for batch in copy[0].read(alone):
                rows += [(range_.label.number, row["offset"]) for row in batch.to_pylist()]
    return rows


class TestWhereAStreamBegins:
    def test_a_new_stream_begins_with_what_comes_next(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """Unless it is told otherwise; a queue's and a ring's with what is there."""
        store.topic("orders").append_many([b"0", b"1"])
        store.queue("jobs").push(b"0")
        ring = store.ring("recent", capacity=4)
        ring.enqueue(b"0")

        assert reader().initialOffset() == {"orders": {"0": 2}}
        assert reader("queue", "jobs").initialOffset() == {"jobs": {"0": 0}}
        assert reader("ring", "recent").initialOffset() == {"recent": {"0": 0}}

    def test_it_is_asked_again_and_says_the_same(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """Also after a restart: the reader remembers what was the latest then."""
        topic = store.topic("orders")
        topic.append(b"0")
        first = reader()
        assert first.initialOffset() == {"orders": {"0": 1}}
        topic.append(b"1")

        assert first.initialOffset() == {"orders": {"0": 1}}
        first.stop()
        assert reader().initialOffset() == {"orders": {"0": 1}}

    @pytest.mark.parametrize(
        ("option", "value", "expected"),
        [
            ("startingOffsets", "earliest", {"0": 0, "1": 0}),
            ("startingOffsets", '{"1": 2}', {"0": 0, "1": 2}),
            ("startingOffsets", '{"orders": {"0": -1, "1": -2}}', {"0": 3, "1": 0}),
            ("startingTimestamp", "2020-01-01T00:00:00Z", {"0": 0, "1": 0}),
            ("startingTimestamp", "2099-01-01T00:00:00Z", {"0": 3, "1": 3}),
        ],
    )
    def test_where_it_is_told(
        self,
        store: segue.Store,
        reader: MakeReader,
        option: str,
        value: str,
        expected: dict[str, int],
    ) -> None:
        """By offsets or by time; and there the reader stands."""
        topic = store.topic("orders", partitions=2)
        for number in range(6):
            topic.append(b"x", partition=number % 2)

        assert reader(**{option: value}).initialOffset() == {"orders": expected}
        assert committed(topic.readers()["copy"]) == {
            int(number): offset for number, offset in expected.items()
        }

    def test_partitions_and_topics_are_chosen(self, store: segue.Store, reader: MakeReader) -> None:
        """Only what is read is registered."""
        for name in ("shop-a", "shop-b", "other"):
            topic = store.topic(name, partitions=2)
            topic.append(b"x", partition=0)
            topic.append(b"x", partition=1)
        some = reader("topics", "shop-.*", partitions="1", startingOffsets="earliest")

        assert some.initialOffset() == {"shop-a": {"1": 0}, "shop-b": {"1": 0}}
        assert list(store.topic("shop-a").readers()) == ["copy"]
        assert list(store.topic("other").readers()) == []


class TestHowFarABatchGoes:
    @pytest.fixture
    def topic(self, store: segue.Store) -> segue.Topic:
        """A topic with 90 records in one partition and 10 in the other, 10 bytes each."""
        topic = store.topic("orders", partitions=2)
        for number in range(100):
            topic.append(b"x" * 10, partition=int(number >= 90))
        return topic

    def test_without_a_limit_it_takes_all(self, topic: segue.Topic, reader: MakeReader) -> None:
        """Whatever there is when it is asked."""
        all_ = reader(startingOffsets="earliest")

        assert isinstance(all_.getDefaultReadLimit(), ReadAllAvailable)
        assert step(all_, all_.initialOffset()) == {"orders": {"0": 90, "1": 10}}
        assert all_.reportLatestOffset() == {"orders": {"0": 90, "1": 10}}

    def test_the_limit_is_shared_in_proportion(
        self, topic: segue.Topic, reader: MakeReader
    ) -> None:
        """Nobody starves: a strand that lags has at least one record."""
        ten = reader(startingOffsets="earliest", maxOffsetsPerTrigger="10")
        two = reader(startingOffsets="earliest", maxOffsetsPerTrigger="2")

        assert isinstance(ten.getDefaultReadLimit(), ReadMaxRows)
        assert step(ten, ten.initialOffset()) == {"orders": {"0": 9, "1": 1}}
        assert step(two, two.initialOffset()) == {"orders": {"0": 1, "1": 1}}

    def test_bytes_are_a_limit_too(self, topic: segue.Topic, reader: MakeReader) -> None:
        """Of payload; one record is always taken, however large it is."""
        some = reader(startingOffsets="earliest", maxBytesPerTrigger="200")
        least = reader(startingOffsets="earliest", maxBytesPerTrigger="1")

        assert isinstance(some.getDefaultReadLimit(), ReadMaxBytes)
        end = step(some, some.initialOffset())
        assert end == {"orders": {"0": 18, "1": 2}}
        assert step(least, least.initialOffset()) == {"orders": {"0": 1, "1": 1}}

    def test_batches_of_any_limit_add_up_to_all(
        self, topic: segue.Topic, reader: MakeReader
    ) -> None:
        """Each record in one batch, and a batch that is repeated has the same rows."""
        some = reader(
            startingOffsets="earliest", maxOffsetsPerTrigger="30", maxBytesPerTrigger="250"
        )
        start = some.initialOffset()
        rows: list[tuple[str, int]] = []
        while (end := step(some, start)) != start:
            batch = offsets_of(some, start, end)
            assert 0 < len(batch) <= 25
            assert offsets_of(some, start, end) == batch
            rows += batch
            start = end

        assert sorted(rows) == sorted([("0", n) for n in range(90)] + [("1", n) for n in range(10)])

    def test_a_batch_waits_for_enough_records_but_not_for_ever(
        self, topic: segue.Topic, reader: MakeReader, seconds: Seconds
    ) -> None:
        """Until there are as many as wanted, or the longest delay is over."""
        patient = reader(
            startingOffsets="earliest", minOffsetsPerTrigger="101", maxTriggerDelay="30s"
        )
        assert isinstance(patient.getDefaultReadLimit(), ReadMinRows)
        start = patient.initialOffset()
        assert step(patient, start) == start
        seconds.now = 29
        assert step(patient, start) == start
        seconds.now = 30
        end = step(patient, start)
        assert end == {"orders": {"0": 90, "1": 10}}

        topic.append(b"x", partition=0)
        seconds.now = 45
        assert step(patient, end) == end, "the delay counts from the last batch"
        topic.append_many([segue.Event(value=b"x", partition=1)] * 100)
        assert step(patient, end) == {"orders": {"0": 91, "1": 110}}

    def test_a_run_of_what_there_is_ends_there(
        self, topic: segue.Topic, reader: MakeReader
    ) -> None:
        """It waits for nothing, and takes nothing that came after it began."""
        now = reader(startingOffsets="earliest", minOffsetsPerTrigger="500")
        now.prepareForTriggerAvailableNow()
        topic.append(b"x", partition=0)
        topic.grow(3)
        topic.append(b"x", partition=2)

        end = step(now, now.initialOffset())
        assert {number: end["orders"][number] for number in "01"} == {"0": 90, "1": 10}
        assert end["orders"].get("2", 0) == 0

    def test_partitions_that_are_added_are_read_from_their_beginning(
        self, topic: segue.Topic, reader: MakeReader
    ) -> None:
        """Also by a stream that began with the latest."""
        some = reader()
        start = some.initialOffset()
        topic.grow(3)
        topic.append(b"x", partition=2)
        end = step(some, start)

        assert end == {"orders": {"0": 90, "1": 10, "2": 1}}
        assert offsets_of(some, start, end) == [("2", 0)]


def test_a_queue_its_dead_letters_and_a_ring_are_streams(
    store: segue.Store, reader: MakeReader
) -> None:
    """Each message and each entry is a row once, also a message that dies later."""
    queue = store.queue("jobs", QueueRules(keep_seconds=3600))
    queue.push_many([b"0", b"1"])
    ring = store.ring("recent", capacity=8)
    ring.enqueue(b"0")
    streams = {
        what: reader(what, name)
        for what, name in {"queue": "jobs", "dead_letters": "jobs", "ring": "recent"}.items()
    }
    starts = {what: stream.initialOffset() for what, stream in streams.items()}

    def batch(what: str) -> list[tuple[str, int]]:
        start, starts[what] = starts[what], step(streams[what], starts[what])
        return offsets_of(streams[what], start, starts[what])

    assert batch("queue") == [("0", 0), ("0", 1)]
    assert batch("ring") == [("0", 0)]
    assert batch("dead_letters") == []
    queue.nack(queue.lease(ttl=3600), outcome="dead", reason="broken")
    queue.push(b"2")
    ring.enqueue(b"1")

    assert batch("dead_letters") == [("dead", 0)]
    assert batch("ring") == [("0", 1)]
    assert batch("queue") == [("0", 2)], "a message that dies is not a row a second time"


class TestLoss:
    def test_what_is_gone_is_told_or_passed(self, store: segue.Store, reader: MakeReader) -> None:
        """By a limit of retention: the only way a registered reader loses anything."""
        topic = store.topic("orders", rules=SMALL)
        fill_segments(topic, 4, 4, 4)
        strict = reader(startingOffsets="earliest")
        tolerant = reader(failOnDataLoss="false")
        start = strict.initialOffset()
        topic.clean(lag_max=2)
        end = step(strict, start)
        assert end == {"orders": {"0": 12}}

        with pytest.raises(OffsetTrimmed, match="offset 0 of partition 0"):
            strict.partitions(start, end)
        first = topic.offsets("earliest")[0]
        assert first > 0
        assert offsets_of(tolerant, start, end) == [("0", each) for each in range(first, 12)]

    def test_what_a_power_cut_took_back_is_told(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """An offset beyond the end was read once, and is something else when it comes again."""
        store.topic("orders").append_many([b"0", b"1"])
        beyond = {"orders": {"0": 5}}
        with pytest.raises(OffsetNotWritten, match="offset 5"):
            step(reader(), beyond)

        assert step(reader(failOnDataLoss="false"), beyond) == {"orders": {"0": 2}}

    def test_retention_deletes_nothing_that_the_stream_needs(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """The reader stands where Spark has committed, and holds everything behind it."""
        topic = store.topic("orders", rules=SMALL)
        fill_segments(topic, 4, 4, 4)
        some = reader(startingOffsets="earliest", maxOffsetsPerTrigger="5")
        start = some.initialOffset()
        middle = step(some, start)
        end = step(some, middle)
        assert topic.clean().count == 0
        some.commit(middle)
        assert committed(topic.readers()["copy"]) == {0: 5}
        topic.clean()

        assert topic.offsets("earliest")[0] == 4
        assert len(offsets_of(some, middle, end)) == 5

    def test_a_reader_that_was_removed_is_registered_again(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """A restart goes on from the checkpoint, and holds what it needs from then on."""
        topic = store.topic("orders")
        topic.append_many([b"0", b"1", b"2"])
        topic.remove_reader("copy")
        some = reader()
        start = {"orders": {"0": 1}}
        end = step(some, start)

        assert offsets_of(some, start, end) == [("0", 1), ("0", 2)]
        assert "copy" in topic.readers()
        some.commit(end)
        assert committed(topic.readers()["copy"]) == {0: 3}


def test_a_stream_that_is_stopped_lets_go_of_every_file(store: segue.Store, scratch: Path) -> None:
    """Also twice; and what travels to tasks holds none."""
    store.topic("orders").append(b"x")
    store.queue("jobs").push(b"x")
    with no_descriptor_left_open():
        for what in ({"topic": "orders", "reader": "copy"}, {"queue": "jobs"}):
            options = read_options({"url": str(scratch / "store"), **what}, is_stream=True)
            some = StreamReader(options, OFFSET)
            start = some.initialOffset()
            some.partitions(start, step(some, start))
            pickle.loads(pickle.dumps(some)).stop()
            some.stop()
            some.stop()


# Through Spark -------------------------------------------------------------------------------

Batches = list[list[Any]]


class Stream:
    """A query that takes what there is, again and again, with one checkpoint."""

    def __init__(self, spark: "SparkSession", scratch: Path) -> None:
        self.spark = spark
        self.scratch = scratch

    def run(self, schema: str = "offset BIGINT", **options: str) -> Batches:
        """Run to the end of what there is now; return the first column of each batch's rows."""
        batches: Batches = []

        def take(rows: "DataFrame", _: int) -> None:
            batches.append(sorted(row[0] for row in rows.collect()))

        given = {"url": str(self.scratch / "store"), "sync": "os", **options}
        if "topic" in given or "topics" in given:
            given.setdefault("reader", "copy")
        query = (
            self.spark.readStream.format("segue")
            .schema(schema)
            .options(**given)
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.scratch / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(SPARK_LIMIT_SECONDS)
        finally:
            query.stop()
        return batches


@pytest.fixture
def stream(spark: "SparkSession", scratch: Path) -> Stream:
    return Stream(spark, scratch)


def test_a_stream_goes_on_from_its_checkpoint(stream: Stream, store: segue.Store) -> None:
    """In batches within the limit, over partitions that were added and another schema.

    The reader is one batch behind, and what retention leaves is enough to go on.
    """
    topic = store.topic("orders", rules=SMALL)
    fill_segments(topic, 4, 4)
    first = stream.run(topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger="3")

    assert first == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert committed(topic.readers()["copy"]) == {0: 6}

    topic.clean()
    topic.grow(2)
    topic.append(b"new", partition=1)
    topic.append(b"old", partition=0)
    second = stream.run("value BINARY", topic="orders")

    assert [sorted(map(bytes, batch)) for batch in second] == [[b"new", b"old"]]
    assert stream.run(topic="orders") == []


@pytest.mark.long
def test_a_stream_over_a_queue_its_dead_letters_or_a_ring(
    spark: "SparkSession", store: segue.Store, scratch: Path
) -> None:
    """Each message is a row once it is there, each entry too."""
    queue = store.queue("jobs", QueueRules(keep_seconds=3600))
    queue.push_many([b"0", b"1"])
    ring = store.ring("recent", capacity=8)
    ring.enqueue(b"0")
    streams = {}
    for what, name in {"queue": "jobs", "dead_letters": "jobs", "ring": "recent"}.items():
        (scratch / what).mkdir()
        (scratch / what / "store").symlink_to(scratch / "store")
        streams[what] = (Stream(spark, scratch / what), {what: name})

    def run(what: str) -> list[list[bytes]]:
        found, options = streams[what]
        return [list(map(bytes, batch)) for batch in found.run("value BINARY", **options)]

    assert run("queue") == [[b"0", b"1"]]
    assert run("ring") == [[b"0"]]
    job = queue.lease(ttl=3600)
    queue.nack(job, outcome="dead", reason="broken")
    queue.push(b"2")
    ring.enqueue(b"1")

    assert run("dead_letters") == [[b"0"]]
    assert run("ring") == [[b"1"]]
    assert run("queue") == [[b"2"]], "a message that dies is not told a second time"


def test_a_stream_that_lost_records_fails_unless_it_may(stream: Stream, store: segue.Store) -> None:
    """The error of the query names what is gone; afterwards it goes on with what is left."""
    topic = store.topic("orders", rules=SMALL)
    fill_segments(topic, 2)
    assert stream.run(topic="orders", startingOffsets="earliest") == [[0, 1]]
    fill_segments(topic, 4, 4, 4)
    topic.clean(lag_max=1)
    first = topic.offsets("earliest")[0]
    assert first > 2

    with pytest.raises(PySparkException, match="has been trimmed"):
        stream.run(topic="orders")
    assert stream.run(topic="orders", failOnDataLoss="false") == [list(range(first, 14))]


def test_a_stream_without_a_name_is_refused(stream: Stream, store: segue.Store) -> None:
    """With how to give it one."""
    store.topic("orders").append(b"x")
    frame = stream.spark.readStream.format("segue").option("url", str(stream.scratch / "store"))
    with pytest.raises(PySparkException, match='option\\("reader"'):
        frame.option("topic", "orders").load().writeStream.format("noop").option(
            "checkpointLocation", str(stream.scratch / "checkpoint")
        ).trigger(availableNow=True).start().awaitTermination(SPARK_LIMIT_SECONDS)
