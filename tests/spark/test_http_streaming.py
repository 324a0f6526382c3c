"""Streams through a server: replayable batches, a reader that is kept, and how far behind it is."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import segue
from segue import Event
from segue.spark.lag import lag_behind
from segue.spark.options import read_options
from segue.spark.planning import Task
from segue.spark.streaming import StreamReader, Told
from tests.spark.http_support import served, served_directory
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.spark.redis_support import fresh_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OFFSET = StructType([StructField("offset", LongType())])
STATE = StructType([StructField("message_id", StringType()), StructField("state", StringType())])
MakeReader = Callable[..., StreamReader]


@pytest.fixture
def url(scratch: Path) -> Iterator[str]:
    with served_directory(scratch / "store") as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[segue.Store]:
    with segue.open(url) as opened:
        yield opened


@pytest.fixture
def reader(url: str) -> Iterator[MakeReader]:
    """Makes readers as Spark does on the driver; all are stopped at the end."""
    made: list[StreamReader] = []

    def make(
        what: str = "topic", name: str = "orders", schema: StructType = OFFSET, **options: str
    ) -> StreamReader:
        given = {"url": url, what: name, **options}
        if what == "topic":
            given.setdefault("reader", "copy")
        read = StreamReader(read_options(given, is_stream=True), schema)
        made.append(read)
        return read

    yield make
    for each in made:
        each.stop()


def step(reader: StreamReader, start: Told) -> Told:
    """Return where the next batch ends, as Spark asks for it."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def rows_of(reader: StreamReader, start: Told, end: Told) -> list[tuple[object, ...]]:
    """Return every row between two offsets, as tasks read them."""
    rows: list[tuple[object, ...]] = []
    for task in reader.partitions(start, end):
        copy, part = pickle.loads(pickle.dumps((reader, task)))
        assert isinstance(part, Task)
        for batch in copy.read(part):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(rows)


def fill(topic: segue.Topic, count: int, partitions: int = 1) -> None:
    topic.append_many([Event(value=b"%d" % n, partition=n % partitions) for n in range(count)])


def test_a_new_stream_begins_with_what_comes_next_and_remembers_it(
    store: segue.Store, reader: MakeReader
) -> None:
    """Also after a restart before its first batch."""
    topic = store.topic("orders")
    fill(topic, 3)
    first = reader()
    assert first.initialOffset() == {"orders": {"0": 3}}
    first.stop()
    fill(topic, 2)

    assert reader().initialOffset() == {"orders": {"0": 3}}


def test_batches_are_within_their_limits_and_can_be_replayed(
    store: segue.Store, reader: MakeReader
) -> None:
    """What lies between two offsets is the same each time, whatever came since."""
    topic = store.topic("orders", partitions=2)
    fill(topic, 100, partitions=2)
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="30")
    start = stream.initialOffset()
    end = step(stream, start)
    rows = rows_of(stream, start, end)
    fill(topic, 10)

    assert 28 <= len(rows) <= 30
    assert rows_of(stream, start, end) == rows
    assert rows_of(reader(), start, end) == rows


def test_the_reader_follows_what_is_committed(store: segue.Store, reader: MakeReader) -> None:
    """Retention waits for it, and others see it."""
    topic = store.topic("orders")
    fill(topic, 10)
    stream = reader(startingOffsets="earliest")
    start = stream.initialOffset()
    stream.partitions(start, {"orders": {"0": 6}})
    stream.commit({"orders": {"0": 6}})

    (lag,) = topic.readers()["copy"]
    assert (lag.committed, lag.next_offset) == (6, 10)


def test_a_stream_of_a_queue_tells_each_message_once_where_it_was_pushed(
    store: segue.Store, reader: MakeReader
) -> None:
    """Also one that died since; its state is that of the moment."""
    queue = store.queue("jobs")
    queue.push_many([b"%d" % number for number in range(5)])
    stream = reader("queue", "jobs", STATE)
    start = stream.initialOffset()
    end = step(stream, start)
    before = rows_of(stream, start, end)
    queue.nack(queue.lease(), outcome="dead")
    after = rows_of(stream, start, end)

    assert [row[1] for row in before] == ["ready"] * 5
    assert [row[0] for row in after] == [row[0] for row in before]
    assert step(stream, end) == end


def test_a_stream_of_a_ring_tells_its_entries(store: segue.Store, reader: MakeReader) -> None:
    """From the oldest there is."""
    ring = store.ring("recent", capacity=4, entries_per_segment=2)
    for number in range(6):
        ring.enqueue(b"%d" % number, overwrite_if_full=True)
    stream = reader("ring", "recent")
    start = stream.initialOffset()

    assert rows_of(stream, start, step(stream, start)) == [(2,), (3,), (4,), (5,)]


def test_spark_streams_through_a_server_each_record_once(
    spark: "SparkSession", url: str, store: segue.Store, scratch: Path
) -> None:
    """In batches within their limit, and the second run continues after the first."""
    topic = store.topic("orders", partitions=2)
    copied = store.topic("copied", partitions=2)
    batches = []
    for count in (20, 4):
        fill(topic, count, partitions=2)
        query = (
            spark.readStream.format("segue")
            .options(url=url, topic="orders", reader="copy", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", 12)
            .load()
            .select("value")
            .writeStream.format("segue")
            .options(url=url, topic="copied", checkpointLocation=str(scratch / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SPARK_LIMIT_SECONDS)
        batches.append([progress["numInputRows"] for progress in query.recentProgress])

    assert [sum(run) for run in batches] == [20, 4]
    assert max(batches[0]) <= 12
    assert sorted(int(record.value or b"") for record in copied.records()) == sorted(
        [*range(20), *range(4)]
    )


@pytest.mark.parametrize("behind", ["directory", "redis"])
def test_how_far_a_stream_is_behind_is_told(behind: str, scratch: Path) -> None:
    """In records, bytes and seconds; what is not there is left out."""
    where = fresh_url() if behind == "redis" else scratch / "store"
    with segue.open(where) as store, served(store) as url:
        store.topic("orders", partitions=2).append_many([Event(value=b"x" * 100, partition=0)] * 10)
        offsets = {"orders": {"0": 4, "1": 0, "7": 0}, "none": {"0": 0}}
        first, *others = lag_behind(url, offsets)

    assert (first.partition, first.records) == (0, 6)
    assert [(other.partition, other.records) for other in others] in ([], [(1, 0)])
    assert first.size_bytes >= 600
    assert first.seconds >= 0
