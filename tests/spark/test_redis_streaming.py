"""Streams from a server: replayable batches within their limits, and a reader that is kept."""

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StructField, StructType

import segue
from segue import Event, TopicRules
from segue.errors import OffsetTrimmed
from segue.spark import LagListener
from segue.spark.lag import lag_behind
from segue.spark.options import read_options
from segue.spark.planning import Task
from segue.spark.streaming import StreamReader
from tests.contract.topic_support import SMALL_SEGMENT_BYTES
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.spark.redis_support import fresh_url
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES)
OFFSET = StructType([StructField("offset", LongType())])
Told = dict[str, dict[str, int]]
MakeReader = Callable[..., StreamReader]


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def store(url: str) -> Iterator[segue.Store]:
    with segue.open(url) as opened:
        yield opened


@pytest.fixture
def reader(url: str) -> Iterator[MakeReader]:
    """Makes readers as Spark does on the driver; all are stopped at the end."""
    made: list[StreamReader] = []

    def make(what: str = "topic", name: str = "orders", **options: str) -> StreamReader:
        given = {"url": url, what: name, **options}
        if what in {"topic", "topics"}:
            given.setdefault("reader", "copy")
        read = StreamReader(read_options(given, is_stream=True), OFFSET)
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


def fill(topic: segue.Topic, count: int, partitions: int = 1) -> None:
    topic.append_many([Event(value=b"%d" % n, partition=n % partitions) for n in range(count)])


class TestTopics:
    def test_a_new_stream_begins_with_what_comes_next_and_remembers_it(
        self, store: segue.Store, reader: MakeReader
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
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """What lies between two offsets is the same each time, whatever came since."""
        topic = store.topic("orders", partitions=2)
        fill(topic, 100, partitions=2)
        stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="30")
        start = stream.initialOffset()
        end = step(stream, start)
        rows = offsets_of(stream, start, end)
        fill(topic, 10)

        assert 28 <= len(rows) <= 30
        assert offsets_of(stream, start, end) == rows
        assert offsets_of(reader(), start, end) == rows

    def test_bytes_limit_a_batch_as_well(self, store: segue.Store, reader: MakeReader) -> None:
        """About so many, at least a record."""
        topic = store.topic("orders", rules=SMALL)
        topic.append_many([b"x" * 1000] * 100)
        stream = reader(startingOffsets="earliest", maxBytesPerTrigger="10000")
        start = stream.initialOffset()

        assert 8 <= step(stream, start)["orders"]["0"] <= 12

    def test_the_reader_follows_what_is_committed(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """Retention waits for it, and others see it."""
        topic = store.topic("orders")
        fill(topic, 10)
        stream = reader(startingOffsets="earliest")
        start = stream.initialOffset()
        stream.partitions(start, {"orders": {"0": 6}})
        stream.commit({"orders": {"0": 6}})

        (lag,) = topic.readers()["copy"]
        assert (lag.committed, lag.next_offset) == (6, 10)

    def test_added_partitions_and_topics_are_read_from_their_beginning(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """With a pattern, topics that are added, too."""
        topic = store.topic("orders-1")
        fill(topic, 5)
        stream = reader("topics", "orders-.*")
        start = stream.initialOffset()
        topic.grow(2)
        topic.append(b"new", partition=1)
        store.topic("orders-2").append(b"new")
        end = step(stream, start)

        assert end == {"orders-1": {"0": 5, "1": 1}, "orders-2": {"0": 1}}
        assert offsets_of(stream, start, end) == [("1", 0), ("0", 0)]

    def test_what_retention_deleted_is_told(self, store: segue.Store, reader: MakeReader) -> None:
        """By OffsetTrimmed with the partition; or passed over, if that is allowed."""
        topic = store.topic("orders", rules=TopicRules(segment_bytes=SMALL_SEGMENT_BYTES))
        stream = reader(startingOffsets="earliest")
        start = stream.initialOffset()
        topic.append_many([b"x" * 1000] * 500)
        end = step(stream, start)
        topic.configure(TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, keep_bytes=100_000))
        topic.remove_reader("copy")
        topic.clean()

        with pytest.raises(OffsetTrimmed) as caught:
            stream.partitions(start, end)
        assert (caught.value.partition, caught.value.offset) == (0, 0)
        tolerant = reader(reader="other", failOnDataLoss="false")
        rows = offsets_of(tolerant, start, end)
        assert rows[0][1] == caught.value.earliest
        assert rows[-1][1] == 499


class TestQueuesAndRings:
    def test_a_queue_is_told_as_it_is_pushed(self, store: segue.Store, reader: MakeReader) -> None:
        """Each message once, also those that somebody has by now, or that died."""
        queue = store.queue("jobs")
        queue.push_many([b"0", b"1", b"2"])
        stream = reader("queue", "jobs")
        start = stream.initialOffset()
        end = step(stream, start)
        assert (start, end) == ({"jobs": {"0": 0}}, {"jobs": {"0": 3}})
        jobs = queue.lease_many(2, ttl=60)
        queue.nack(jobs[0], outcome="dead")
        queue.push(b"3")
        queue.push(b"later", delay=60)
        last = step(stream, end)

        assert offsets_of(stream, start, end) == [("0", 0), ("0", 1), ("0", 2)]
        assert last == {"jobs": {"0": 4, "later": 1}}
        assert offsets_of(stream, end, last) == [("0", 3), ("later", 0)]

    def test_settled_messages_are_no_data_loss(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """A server forgets what is settled at once: the stream has what is there."""
        queue = store.queue("jobs")
        queue.push_many([b"%d" % n for n in range(10)])
        stream = reader("queue", "jobs")
        start = stream.initialOffset()
        end = step(stream, start)
        queue.pop_many(4)

        assert [offset for _, offset in offsets_of(stream, start, end)] == [4, 5, 6, 7, 8, 9]

    def test_a_ring_and_dead_letters_are_streams(
        self, store: segue.Store, reader: MakeReader
    ) -> None:
        """From what is there, on."""
        ring = store.ring("recent", capacity=4)
        queue = store.queue("jobs")
        queue.push_many([b"0", b"1"])
        entries, letters = reader("ring", "recent"), reader("dead_letters", "jobs")
        starts = entries.initialOffset(), letters.initialOffset()
        ring.enqueue(b"0")
        for job in queue.lease_many(2):
            queue.nack(job, outcome="dead")

        for stream, start, name in zip(
            (entries, letters), starts, (("0", [0]), ("dead", [0, 1])), strict=True
        ):
            rows = offsets_of(stream, start, step(stream, start))
            assert rows == [(name[0], offset) for offset in name[1]]


class TestLag:
    def test_lag_is_known_in_records_bytes_and_seconds(self, url: str, store: segue.Store) -> None:
        """From the facts of segments, and when the first record behind came."""
        topic = store.topic("orders", partitions=2)
        before = time.time()
        topic.append_many([Event(value=b"x" * 100, partition=0)] * 10)
        lags = lag_behind(url, {"orders": {"0": 4, "1": 0}, "none": {"0": 3}})

        assert [(lag.partition, lag.records, lag.size_bytes) for lag in lags] == [
            (0, 6, 600),
            (1, 0, 0),
        ]
        assert 0 <= lags[0].seconds <= time.time() - before

    @pytest.mark.long
    def test_a_stream_through_spark_and_its_lag(
        self, spark: "SparkSession", url: str, store: segue.Store, tmp_path: Path
    ) -> None:
        """In as many batches as its limit makes, each record once, over a restart."""
        topic = store.topic("orders", partitions=2)
        listener = LagListener(url)
        spark.streams.addListener(listener)
        taken = []
        for _ in range(2):
            fill(topic, 20, partitions=2)
            query = (
                spark.readStream.format("segue")
                .options(url=url, topic="orders", reader="copy", startingOffsets="earliest")
                .option("maxOffsetsPerTrigger", 10)
                .load()
                .writeStream.format("noop")
                .queryName("copied")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(SPARK_LIMIT_SECONDS)
            taken.append(sum(progress["numInputRows"] for progress in query.recentProgress))
        # Spark tells its listeners some time later.
        wait_until(lambda: not listener.lags["copied"].records, "no lag", ignoring=(KeyError,))
        spark.streams.removeListener(listener)

        assert taken == [20, 20]
        assert {lag.committed for lag in topic.readers()["copy"]} <= {15, 16, 20}
