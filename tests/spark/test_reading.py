"""Batch reads: every kind of table through Spark, and what happens when something is wrong."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import segue
from segue import Event, Item, QueueRules, TopicRules
from segue.errors import SegueError
from segue.log import Log
from tests.contract.topic_support import SMALL_SEGMENT_BYTES
from tests.spark.http_support import read_rows
from tests.unit.support import flip_bit, slot_position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[Any, ...]]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SMALL = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES)


class Table:
    """Reads tables of one store."""

    def __init__(self, spark: "SparkSession", path: Path) -> None:
        self.spark = spark
        self.path = path

    def frame(self, schema: str | None = None, **options: str) -> "DataFrame":
        reader = self.spark.read.format("segue").option("url", str(self.path)).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def rows(self, schema: str | None = None, **options: str) -> Rows:
        return [tuple(row) for row in self.frame(schema, **options).collect()]

    def offsets(self, **options: str) -> list[int]:
        return sorted(row[0] for row in self.rows("offset BIGINT", **options))

    def error(self, schema: str | None = None, **options: str) -> str:
        """Return what the user is told."""
        with pytest.raises(PySparkException) as caught:
            self.rows(schema, **options)
        return str(caught.value)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of everything, which no test changes."""
    path = tmp_path_factory.mktemp("reading") / "store"
    with segue.open(path, sync="os") as store:
        orders = store.topic("shop-orders", partitions=2)
        for number in range(10):
            orders.append(
                b'{"id": %d, "name": "n%d"}' % (number, number),
                key=f"k{number}",
                headers={"source": f"s{number}"},
                timestamp=BEGIN + timedelta(seconds=number),
                partition=number % 2,
            )
        store.topic("shop-bills").append_many([b"bill 0", Event(value=None, key="k"), b"\xff"])
        store.topic("empty", partitions=3)
        queue = store.queue("jobs", QueueRules(keep_seconds=3600))
        queue.push_many([Item(body=b"%d" % number, priority=number % 2) for number in range(8)])
        queue.push(b"later", delay=3600, priority=1)
        jobs = queue.lease_many(3, ttl=3600)
        queue.nack(jobs[0], outcome="dead", reason="broken")
        queue.ack(jobs[1])
        ring = store.ring("recent", capacity=8, entries_per_segment=4)
        for number in range(10):
            ring.enqueue(b"%d" % number, overwrite_if_full=True)
    return path


@pytest.fixture(scope="module")
def table(spark: "SparkSession", shared: Path) -> Table:
    return Table(spark, shared)


class TestTables:
    def test_a_topic_is_a_table(self, table: Table) -> None:
        """All columns but the headers, found without registering anything."""
        found = table.frame(topic="shop-orders")

        assert found.columns == ["key", "value", "topic", "partition", "offset", "timestamp"]
        rows = sorted(found.collect(), key=lambda row: bytes(row.key))
        assert [bytes(row.key) for row in rows] == [b"k%d" % number for number in range(10)]
        assert [(row.partition, row.offset) for row in rows] == [divmod_(n) for n in range(10)]
        assert {row.topic for row in rows} == {"shop-orders"}
        assert rows[3].timestamp.astimezone(UTC) == BEGIN + timedelta(seconds=3)

    def test_only_the_columns_of_the_schema_are_made_in_its_order(self, table: Table) -> None:
        """The schema is the column pruning."""
        found = table.frame("offset BIGINT, partition INT", topic="shop-orders")

        assert found.columns == ["offset", "partition"]
        assert sorted(map(tuple, found.collect())) == sorted(divmod_(n)[::-1] for n in range(10))

    def test_headers_are_there_if_they_are_asked_for(self, table: Table) -> None:
        """By the option, or by the schema."""
        by_option = table.frame(topic="shop-orders", includeHeaders="true")
        schema = "offset BIGINT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
        by_schema = table.rows(schema, topic="shop-orders", partitions="1")

        assert "headers" in by_option.columns
        assert [(row[1][0].key, bytes(row[1][0].value)) for row in sorted(by_schema)] == [
            ("source", b"s%d" % number) for number in (1, 3, 5, 7, 9)
        ]

    def test_values_are_text_or_what_their_json_says(self, table: Table) -> None:
        """Parsed inside the source; what is no JSON is null."""
        texts = table.rows("value STRING", topic="shop-bills", valueFormat="string")
        objects = table.frame(
            "value STRUCT<id: BIGINT, name: STRING>, offset BIGINT",
            topics="shop-.*",
            valueFormat="json",
        )

        assert texts == [("bill 0",), (None,), ("\N{REPLACEMENT CHARACTER}",)]
        assert objects.where("value.id = 7").select("value.name").collect()[0][0] == "n7"
        assert objects.where("value IS NULL").count() == 3

    def test_topics_are_chosen_by_a_pattern(self, table: Table) -> None:
        """Those whose whole name matches."""
        found = table.frame("topic STRING", topics="shop-.*").groupBy("topic").count().collect()

        assert sorted(map(tuple, found)) == [("shop-bills", 3), ("shop-orders", 10)]

    def test_a_queue_is_a_table_of_messages_in_every_state(self, table: Table) -> None:
        """Each of them once, also the settled ones that are still kept."""
        found = table.frame(queue="jobs")
        states = dict(map(tuple, found.groupBy("state").count().collect()))
        dead = found.where("state = 'dead'").collect()[0]

        assert states == {"ready": 5, "delayed": 1, "leased": 1, "dead": 1, "settled": 1}
        assert (bytes(dead.value), dead.reason, dead.cause) == (b"0", "broken", "dead")
        assert (dead.message_id, dead.attempt) == ("0-0", 1)

    def test_dead_letters_are_a_table(self, table: Table) -> None:
        """Of their own, with why and when they died."""
        rows = table.frame(dead_letters="jobs").collect()

        assert [(row.message_id, row.reason) for row in rows] == [("0-0", "broken")]
        assert rows[0].died is not None

    def test_a_ring_is_a_table(self, table: Table) -> None:
        """Of what is not overwritten."""
        rows = table.rows("value BINARY, offset BIGINT, ring STRING", ring="recent")

        assert [(bytes(value), offset) for value, offset, _ in rows] == [
            (b"%d" % number, number) for number in range(2, 10)
        ]

    def test_a_view_in_sql(self, table: Table) -> None:
        """Options are given as SQL has them, in any case."""
        spark = table.spark
        spark.sql(
            "CREATE OR REPLACE TEMP VIEW shop_orders USING segue "
            f"OPTIONS (url '{table.path}', topic 'shop-orders', STARTINGOFFSETS 'earliest')"
        )
        try:
            assert spark.sql("SELECT max(offset) FROM shop_orders").collect()[0][0] == 4
        finally:
            spark.catalog.dropTempView("shop_orders")


def divmod_(number: int) -> tuple[int, int]:
    """Return the partition and offset of an order."""
    return number % 2, number // 2


class TestRanges:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"startingOffsets": '{"0": 3}', "partitions": "0"}, [3, 4]),
            ({"startingOffsets": '{"0": 3}'}, [0, 1, 2, 3, 3, 4, 4]),
            ({"startingOffsets": '{"shop-orders": {"0": 4, "1": -1}}'}, [4]),
            ({"endingOffsets": '{"0": 1, "1": -2}'}, [0]),
            ({"startingOffsets": '{"0": 2, "1": 2}', "endingOffsets": '{"0":4,"1":3}'}, [2, 2, 3]),
            ({"partitions": "1"}, [0, 1, 2, 3, 4]),
            ({"startingTimestamp": "2020-01-01T00:00:00Z", "partitions": "1"}, [0, 1, 2, 3, 4]),
        ],
    )
    def test_offsets_times_and_partitions(
        self, table: Table, options: dict[str, str], expected: list[int]
    ) -> None:
        """From the start up to, not including, the end; times are those of appending.

        Read as tasks do, but without Spark, which passes the options on as they are.
        """
        found = read_rows(str(table.path), ["offset"], topic="shop-orders", **options)

        assert [offset for (offset,) in found] == expected

    def test_messages_are_chosen_by_priority(self, table: Table) -> None:
        """Also those that are delayed or dead."""
        rows = table.rows("value BINARY, priority INT", queue="jobs", priority="1")

        assert sorted(bytes(value) for value, _ in rows) == [b"1", b"3", b"5", b"7", b"later"]
        assert {priority for _, priority in rows} == {1}

    def test_messages_are_chosen_by_offset(self, table: Table) -> None:
        """By priority; what was pushed with a delay, and the dead, have offsets of their own."""
        rows = table.rows(
            "value BINARY",
            queue="jobs",
            startingOffsets='{"0": 3, "1": -1, "later": -1, "dead": -1}',
        )

        assert [bytes(value) for (value,) in rows] == [b"6"]

    def test_tasks_are_as_many_as_are_asked_for(self, table: Table) -> None:
        """Whatever they are, the rows are the same."""
        frame = table.frame("offset BIGINT", topic="shop-orders", minPartitions="4")
        single = table.frame("offset BIGINT", topic="shop-orders", maxRecordsPerPartition="1")

        assert frame.rdd.getNumPartitions() >= 4
        assert single.rdd.getNumPartitions() == 10
        assert sorted(frame.collect()) == sorted(single.collect())

    def test_one_frame_with_two_filters_gives_the_rows_of_each(self, table: Table) -> None:
        """A filter of one plan never reaches another."""
        frame = table.frame("offset BIGINT, partition INT", topic="shop-orders")
        low, high = frame.where("offset = 1"), frame.where("offset = 3")

        assert low.count() == 2
        assert frame.count() == 10
        assert sorted(row[0] for row in low.union(high).collect()) == [1, 1, 3, 3]


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"topic": "nothing"}, "nothing"),
            ({"queue": "nothing"}, "there is no queue nothing; there are jobs"),
            ({"dead_letters": "nothing"}, "there is no queue nothing"),
            ({"ring": "nothing"}, "nothing"),
            ({"topic": "shop-orders", "partitions": "5"}, "has no partition 5, only 2"),
            ({"topic": "shop-orders", "startingOffsets": '{"9": 0}'}, "no shop-orders/9"),
            ({"topic": "shop-orders", "endingOffsets": '{"0": 99}'}, "has not been written"),
            ({"topic": "shop-orders", "startingOffsets": '{"0": 99}'}, "has not been written"),
            ({"topic": "shop-orders", "valueFormat": "json"}, "needs a schema"),
            ({"topic": "shop-orders", "startOffsets": "1"}, "there are allowNetwork"),
            ({"topic": "shop-orders", "queue": "jobs"}, "exactly one of"),
            ({"topic": "shop-orders", "maxBytesPerTrigger": "5"}, "no option here"),
            ({"topic": "shop-orders", "reader": "unknown"}, "there is no reader unknown"),
        ],
    )
    def test_the_error_says_what_is_wrong(
        self, table: Table, options: dict[str, str], said: str
    ) -> None:
        """In words that name what was given and what there is."""
        with pytest.raises(SegueError) as caught:
            read_rows(str(table.path), **options)
        assert said in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"topic": "shop-orders", "startOffsets": "1"}, "there are allowNetwork"),
            ({"topic": "shop-orders", "endingOffsets": '{"0": 99}'}, "has not been written"),
        ],
    )
    def test_spark_shows_the_error(self, table: Table, options: dict[str, str], said: str) -> None:
        """An error of the options, and one of the plan."""
        assert said in table.error(**options)

    def test_a_store_that_is_not_there_is_not_made(
        self, spark: "SparkSession", scratch: Path
    ) -> None:
        """Reading leaves no trace."""
        assert "there is no store at" in Table(spark, scratch / "nothing").error(topic="a")
        assert not (scratch / "nothing").exists()

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            ("offset INT", "offset is bigint, not int"),
            ("id BIGINT", "there is no column id; there are key, value"),
            ("value STRING", "with valueFormat binary the column value is binary"),
        ],
    )
    def test_a_schema_that_does_not_fit_is_refused(
        self, table: Table, schema: str, said: str
    ) -> None:
        """Before a single record is read."""
        assert said in table.error(schema, topic="shop-orders")


@pytest.fixture
def small(scratch: Path) -> Iterator[segue.Topic]:
    """A topic of three sealed segments of four records, and one more that takes records."""
    with segue.open(scratch / "store", sync="os") as store:
        topic = store.topic("orders", rules=SMALL)
        for number in range(14):
            topic.append(b"%d" % number)
            if number % 4 == 3:
                topic.roll()
        yield topic


@pytest.fixture
def orders(spark: "SparkSession", scratch: Path) -> Table:
    return Table(spark, scratch / "store")


class TestLoss:
    def test_what_retention_deleted_is_an_error_unless_it_may_be_lost(
        self, orders: Table, small: segue.Topic
    ) -> None:
        """`earliest` is what is left, an offset that is gone is named."""
        small.clean(keep_bytes=SMALL_SEGMENT_BYTES)
        first = small.offsets("earliest")[0]
        assert first > 0

        assert orders.offsets(topic="orders") == list(range(first, 14))
        start = '{"0": 1}'
        said = orders.error(topic="orders", startingOffsets=start)
        assert f"offset 1 of partition 0 has been trimmed: earliest is {first}" in said
        assert orders.offsets(
            topic="orders", startingOffsets=start, failOnDataLoss="false"
        ) == list(range(first, 14))

    def test_what_retention_deletes_after_the_plan_is_an_error_unless_it_may_be_lost(
        self, orders: Table, small: segue.Topic
    ) -> None:
        """The rows that were planned are all there, or their loss is told."""
        strict = orders.frame("offset BIGINT", topic="orders")
        tolerant = orders.frame("offset BIGINT", topic="orders", failOnDataLoss="false")
        assert strict.rdd.getNumPartitions() == tolerant.rdd.getNumPartitions() == 1
        small.clean(keep_bytes=SMALL_SEGMENT_BYTES)
        first = small.offsets("earliest")[0]

        with pytest.raises(PySparkException, match="has been trimmed"):
            strict.collect()
        assert [row[0] for row in tolerant.collect()] == list(range(first, 14))

    def test_a_corrupt_batch_is_named_and_passed_over_only_if_it_may_be_lost(
        self, orders: Table, small: segue.Topic, scratch: Path
    ) -> None:
        """The error names the file and the offsets; everything else is read."""
        path = scratch / "store" / "topics" / "orders" / "partition_0"
        with Log(path, read_only=True) as log:
            second = log.segments()[1]
        flip_bit(path / f"{second.id:09d}.q", slot_position(1) + 2)

        said = orders.error(topic="orders")
        assert f"{second.id:09d}.q" in said
        assert "5" in said
        left = orders.offsets(topic="orders", failOnDataLoss="false")
        assert left == [offset for offset in range(14) if offset != 5]


class TestSnapshots:
    def test_a_read_shows_what_there_was_when_it_was_planned(
        self, orders: Table, small: segue.Topic
    ) -> None:
        """Writers go on meanwhile; whoever loads again sees what they wrote."""
        stop = threading.Event()
        count = 0

        def write() -> None:
            nonlocal count
            while not stop.is_set():
                small.append(b"more")
                count += 1
                stop.wait(0.002)

        frame = orders.frame("offset BIGINT", topic="orders", minPartitions="3")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            planned = [frame.count() for _ in range(2)]
        finally:
            stop.set()
            writer.join()

        assert len(set(planned)) == 1
        assert 14 <= planned[0] <= 14 + count
        assert sorted(row[0] for row in frame.collect()) == list(range(planned[0]))
        assert orders.offsets(topic="orders") == list(range(14 + count))

    def test_a_batch_begins_where_a_reader_stands(self, orders: Table, small: segue.Topic) -> None:
        """Reading moves it nowhere."""
        with small.reader("copy") as reader:
            reader.commit({0: 11})

        assert orders.offsets(topic="orders", reader="copy") == [11, 12, 13]
        assert orders.offsets(topic="orders", reader="copy") == [11, 12, 13]
