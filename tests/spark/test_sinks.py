"""Sinks: whole DataFrames and streams into topics and queues, all of it once or nothing."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import segue
from segue import TopicRecord
from segue.errors import InvalidArgument
from segue.spark.options import write_options
from segue.spark.sink.writers import BatchWriter
from tests.spark.processes import SPARK_LIMIT_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3


class Sink:
    """Writes to a store, and shows what it holds then."""

    def __init__(self, spark: "SparkSession", path: Path, store: segue.Store) -> None:
        self.spark = spark
        self.path = path
        self.store = store
        self.topic = store.topic("orders", partitions=PARTITIONS)
        self.queue = store.queue("jobs")

    def frame(self, *columns: str, count: int = 6, tasks: int = 2) -> "DataFrame":
        """Return rows made of the numbers 0, 1, 2 …, as `id`."""
        return self.spark.range(0, count, 1, tasks).selectExpr(*columns)

    def write(self, rows: "DataFrame", mode: str = "append", **options: str) -> None:
        given = {"url": str(self.path), "sync": "os", **options}
        rows.write.format("segue").options(**given).mode(mode).save()

    def refuse(self, rows: "DataFrame", mode: str = "append", **options: str) -> str:
        """Return what the user is told of a write that fails, which leaves nothing behind.

        It has one task. Another that was still at it when the write was given up would leave what
        it wrote aside to a later commit.
        """
        before = self.contents()
        with pytest.raises(PySparkException) as caught:
            self.write(rows.coalesce(1), mode, **options)
        assert self.contents() == before, "something was written"
        assert self.staged() == [], "something was left aside"
        return str(caught.value)

    def contents(self) -> tuple[list[TopicRecord], int]:
        return self.records(), self.queue.count().total

    def records(self) -> list[TopicRecord]:
        return list(self.topic.records())

    def staged(self) -> list[str]:
        """Return the segments that lie aside."""
        return [path.name for path in (self.path / "staging").rglob("*.q")]


@pytest.fixture
def sink(spark: "SparkSession", scratch: Path) -> Iterator[Sink]:
    path = scratch / "store"
    with segue.open(path, sync="os") as store:
        yield Sink(spark, path, store)


class TestTopics:
    def test_rows_become_records(self, sink: Sink) -> None:
        """Key, value, headers, time; a row without a value is a tombstone."""
        before = datetime.now(UTC)
        sink.write(
            sink.frame(
                "IF(id = 5, NULL, concat('v', id)) AS value",
                "IF(id = 4, NULL, CAST(concat('k', id) AS BINARY)) AS key",
                "IF(id = 3, NULL, map('n', concat('h', id))) AS headers",
                "IF(id = 2, NULL, timestamp_seconds(id)) AS timestamp",
            ),
            topic="orders",
        )
        found = {record.key: record for record in sink.records()}

        assert len(found) == 6
        assert {key: record.value for key, record in found.items()} == {
            b"k0": b"v0",
            b"k1": b"v1",
            b"k2": b"v2",
            b"k3": b"v3",
            None: b"v4",
            b"k5": None,
        }
        assert dict(found[b"k1"].headers) == {"n": "h1"}
        assert dict(found[b"k3"].headers) == {}
        assert found[b"k1"].timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert before <= found[b"k2"].timestamp <= datetime.now(UTC)
        assert sink.staged() == []

    def test_a_key_goes_where_the_topic_itself_would_put_it(self, sink: Sink) -> None:
        """Whoever wrote it; and a partition that is given counts more."""
        by_key = {}
        for number in range(20):
            placed = sink.topic.append(b"by hand", key=f"ключ{number}")
            by_key[f"ключ{number}".encode()] = placed.partition
        keys = "concat('ключ', id) AS key"
        sink.write(sink.frame(keys, "'hashed' AS value", count=20), topic="orders")
        sink.write(
            sink.frame(
                keys, "'told' AS value", "IF(id = 0, NULL, CAST(id % 3 AS INT)) AS partition"
            ),
            topic="orders",
        )

        for record in sink.records():
            assert record.key is not None
            number = int(record.key.decode().removeprefix("ключ"))
            if record.value == b"told" and number:
                assert record.partition == number % 3
            else:
                assert record.partition == by_key[record.key]

    def test_headers_of_a_read_can_be_written(self, sink: Sink) -> None:
        """As the source gives them: a list of names and bytes."""
        sink.topic.append(b"v", key=b"k", headers={"a": "1", "ü": ""}, timestamp=5)
        rows = (
            sink.spark.read.format("segue")
            .options(url=str(sink.path), topic="orders", includeHeaders="true")
            .load()
            .select("key", "value", "headers", "timestamp")
        )
        sink.write(rows, topic="orders")
        one, other = sink.records()

        assert (one.key, one.value, one.headers, one.timestamp_us) == (
            other.key,
            other.value,
            other.headers,
            other.timestamp_us,
        )
        assert dict(other.headers) == {"a": "1", "ü": ""}

    def test_a_write_with_an_id_counts_once(self, sink: Sink) -> None:
        """However often it is tried, and whatever it would write the second time."""
        rows = sink.frame("CAST(id AS STRING) AS value")
        for _ in range(2):
            sink.write(rows, topic="orders", writeId="day-1")
        sink.write(sink.frame("'other' AS value"), topic="orders", writeId="day-1")
        assert len(sink.records()) == 6
        sink.write(rows, topic="orders", writeId="day-2")

        assert Counter(record.value for record in sink.records()) == {
            b"%d" % number: 2 for number in range(6)
        }
        assert sink.staged() == []

    def test_a_topic_that_is_not_there_is_made(self, sink: Sink) -> None:
        """As its first append would make it."""
        sink.write(sink.frame("'v' AS value", count=1), topic="new")

        assert sink.store.topics() == ["new", "orders"]
        assert [record.value for record in sink.store.topic("new").records()] == [b"v"]

    def test_no_rows_are_no_records(self, sink: Sink) -> None:
        """Also if some tasks have rows and others none."""
        sink.write(sink.frame("CAST(id AS STRING) AS value", count=0), topic="orders")
        assert sink.records() == []
        sink.write(sink.frame("CAST(id AS STRING) AS value", tasks=4, count=1), topic="orders")

        assert [record.value for record in sink.records()] == [b"0"]


class TestQueues:
    def test_rows_become_messages(self, sink: Sink) -> None:
        """Priority, delay, headers; a key that was pushed before is not pushed again."""
        sink.queue.push(b"first", key="k0")
        sink.write(
            sink.frame(
                "CAST(id AS STRING) AS value",
                "CAST(id % 2 AS INT) AS priority",
                "IF(id = 3, 3600.5D, NULL) AS delay",
                "IF(id IN (0, 1), concat('k', id), NULL) AS key",
                "IF(id = 4, map('h', 'v'), NULL) AS headers",
            ),
            queue="jobs",
        )
        found = {message.body: message for message in sink.queue.peek(100)}
        counts = sink.queue.count()

        assert set(found) == {b"first", b"1", b"2", b"4", b"5"}
        assert (counts.ready, counts.delayed) == (5, 1)
        assert {body: message.priority for body, message in found.items()} == {
            b"first": 0,
            b"1": 1,
            b"2": 0,
            b"4": 0,
            b"5": 1,
        }
        assert found[b"1"].key == "k1"
        assert dict(found[b"4"].headers) == {"h": "v"}
        assert sink.staged() == []

    def test_a_write_with_an_id_counts_once(self, sink: Sink) -> None:
        """A queue remembers it as a topic does."""
        rows = sink.frame("CAST(id AS STRING) AS value", "CAST(id % 2 AS INT) AS priority")
        for _ in range(2):
            sink.write(rows, queue="jobs", writeId="day-1")

        assert sorted(message.body for message in sink.queue.peek(100)) == [
            b"%d" % number for number in range(6)
        ]


class TestNothingHappens:
    @pytest.mark.parametrize(
        ("kind", "columns", "said"),
        [
            ("topic", ["'v' AS value", "id"], "takes the columns value, key, headers"),
            ("topic", ["id AS value"], "column value of a topic cannot be bigint"),
            ("topic", ["'k' AS key"], "there must be a column value"),
            (
                "topic",
                ["'v' AS value", "id AS partition"],
                "column partition of a topic cannot be bigint",
            ),
            (
                "topic",
                ["'v' AS value", "array('h') AS headers"],
                "column headers of a topic cannot be",
            ),
            ("topic", ["'v' AS value", "1 AS priority"], "not priority"),
            (
                "queue",
                ["'v' AS value", "binary('k') AS key"],
                "column key of a queue cannot be binary",
            ),
            ("queue", ["'v' AS value", "1 AS partition"], "not partition"),
        ],
    )
    def test_columns_that_do_not_fit_are_refused(
        self, sink: Sink, kind: str, columns: list[str], said: str
    ) -> None:
        """Before any task begins: by the writer that Spark makes on the driver."""
        name = "orders" if kind == "topic" else "jobs"
        options = write_options({"url": str(sink.path), kind: name})
        with pytest.raises(InvalidArgument) as caught:
            BatchWriter(options, sink.frame(*columns).schema, overwrite=False)
        assert said in str(caught.value)

    def test_spark_shows_why_columns_are_refused(self, sink: Sink) -> None:
        """The error of the writer becomes one of the query, and nothing is written."""
        rows = sink.frame("'v' AS value", "id")

        assert "takes the columns value, key, headers" in sink.refuse(rows, topic="orders")

    @pytest.mark.parametrize(
        ("kind", "column", "said"),
        [
            ("topic", "CAST(id AS INT) AS partition", "only 3"),
            ("topic", "IF(id = 5, repeat('k', 1048577), 'k') AS key", "at most 1048576"),
            ("queue", "IF(id = 5, -1, 0) AS priority", "a priority is"),
            ("queue", "IF(id = 5, -1, 0) AS delay", "delay"),
        ],
    )
    def test_a_bad_row_undoes_the_whole_write(
        self, sink: Sink, kind: str, column: str, said: str
    ) -> None:
        """Those before it are not written either."""
        name = "orders" if kind == "topic" else "jobs"
        rows = sink.frame("CAST(id AS STRING) AS value", column)

        assert said in sink.refuse(rows, **{kind: name})

    @pytest.mark.parametrize("kind", ["topic", "queue"])
    def test_a_task_that_fails_leaves_nothing(self, sink: Sink, kind: str) -> None:
        """Not even what it had written aside; and nothing is written of what other tasks did."""
        rows = sink.frame("IF(id = 5, raise_error('no more'), CAST(id AS STRING)) AS value")
        name = "orders" if kind == "topic" else "jobs"
        before = sink.contents()

        assert "no more" in sink.refuse(rows, **{kind: name})
        with pytest.raises(PySparkException, match="no more"):
            sink.write(rows, **{kind: name})
        assert sink.contents() == before

    def test_nothing_is_overwritten(self, sink: Sink) -> None:
        """A store is only ever appended to."""
        rows = sink.frame("'v' AS value")

        assert "only ever appended" in sink.refuse(rows, "overwrite", topic="orders")

    def test_an_id_means_nothing_to_a_stream(self, sink: Sink, scratch: Path) -> None:
        """It knows its batches itself."""
        sink.store.topic("source").append(b"v")
        rows = sink.spark.readStream.format("segue").options(
            url=str(sink.path), topic="source", reader="copy", startingOffsets="earliest"
        )
        with pytest.raises(PySparkException, match="writeId is for batches"):
            rows.load().select("value").writeStream.format("segue").options(
                url=str(sink.path),
                topic="orders",
                writeId="w",
                checkpointLocation=str(scratch / "checkpoint"),
            ).trigger(availableNow=True).start().awaitTermination(SPARK_LIMIT_SECONDS)
        assert sink.records() == []


def test_a_stream_from_topic_to_topic_copies_each_row_once(sink: Sink, scratch: Path) -> None:
    """Over restarts, with keys in the order they had."""
    source = sink.store.topic("source", partitions=2)
    for number in range(30):
        source.append(b"%d" % number, key=f"k{number % 5}")

    def copy() -> None:
        place = {"url": str(sink.path), "sync": "os"}
        query = (
            sink.spark.readStream.format("segue")
            .options(**place, topic="source", reader="copy", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", "20")
            .load()
            .select("key", "value")
            .writeStream.format("segue")
            .options(**place, topic="orders", checkpointLocation=str(scratch / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SPARK_LIMIT_SECONDS)

    copy()
    source.append(b"30", key="k0")
    copy()

    found = sink.records()
    assert sorted(int(record.value or b"") for record in found) == list(range(31))
    for key in range(5):
        numbers = [int(each.value or b"") for each in found if each.key == b"k%d" % key]
        assert numbers == sorted(numbers)
    assert sink.staged() == []
