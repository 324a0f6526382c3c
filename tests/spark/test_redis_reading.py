"""Batch reads from a server: the same tables as from a directory with the same in it."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import segue
from segue import Event, Item, QueueRules, Store, TopicRules
from segue.spark.options import read_options
from segue.spark.reading import BatchReader
from segue.spark.schema import default_schema
from tests.contract.topic_support import SMALL_SEGMENT_BYTES
from tests.redis_server import shared_server
from tests.spark.http_support import read_rows
from tests.spark.redis_support import fresh_url, namespace_of
from tests.unit.support import failing_cases
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[Any, ...]]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "very-secret-word"
NANOSECONDS_PER_MS = 1_000_000
SMALL = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES)


class Table:
    """Reads tables of one store."""

    def __init__(self, spark: "SparkSession", url: str) -> None:
        self.spark = spark
        self.url = url

    def frame(self, schema: str | None = None, **options: str) -> "DataFrame":
        reader = self.spark.read.format("segue").option("url", self.url).options(**options)
        return (reader if schema is None else reader.schema(schema)).load()

    def rows(self, schema: str | None = None, **options: str) -> Rows:
        found = [_plain(tuple(row)) for row in self.frame(schema, **options).collect()]
        return sorted(found, key=repr)

    def error(self, schema: str | None = None, **options: str) -> str:
        """Return what the user is told."""
        with pytest.raises(PySparkException) as caught:
            self.rows(schema, **options)
        return str(caught.value)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(each) if isinstance(each, bytearray) else each for each in row)


def fill(store: Store) -> None:
    """Put something of everything in a store."""
    orders = store.topic("shop-orders", partitions=2, rules=SMALL)
    for number in range(10):
        orders.append(
            b'{"id": %d, "name": "n%d"}' % (number, number),
            key=f"k{number}",
            headers={"source": f"s{number}"},
            timestamp=BEGIN + timedelta(seconds=number),
            partition=number % 2,
        )
    orders.append_many([Event(value=b"x" * 100, partition=0)] * 500)
    store.topic("shop-bills").append_many([b"bill 0", Event(value=None, key="k"), b"\xff"])
    store.topic("empty", partitions=3)
    queue = store.queue("jobs", QueueRules(keep_seconds=3600))
    queue.push_many([Item(body=b"%d" % number, priority=number % 2) for number in range(8)])
    queue.push(b"said", headers={"a": "b"}, key="once", ttl=3600)
    queue.push(b"later", delay=3600, priority=1)
    jobs = queue.lease_many(4, ttl=3600)
    queue.nack(jobs[0], outcome="dead", reason="broken")
    queue.ack(jobs[1])
    queue.nack(jobs[2], delay=3600, reason="not yet")
    ring = store.ring("recent", capacity=8, entries_per_segment=4)
    for number in range(10):
        ring.enqueue(b"%d" % number, overwrite_if_full=True)


@pytest.fixture(scope="module")
def tables(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, Table]:
    """A server and a directory with the same in them, which no test changes."""
    path = str(tmp_path_factory.mktemp("reading") / "store")
    url = fresh_url()
    for each in (url, path):
        with segue.open(each, sync="os") as store:
            fill(store)
    return Table(spark, url), Table(spark, path)


QUEUE = (
    "key STRING, value BINARY, queue STRING, priority INT, offset BIGINT, message_id STRING, "
    "state STRING, attempt INT, cause STRING, reason STRING, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


SOME_TABLES: list[tuple[str | None, dict[str, str]]] = [
    (RECORD, {"topics": "shop-.*"}),
    (QUEUE, {"queue": "jobs"}),
]
OTHER_TABLES: list[tuple[str | None, dict[str, str]]] = [
    (None, {"topic": "shop-orders", "partitions": "1"}),
    (RECORD, {"topic": "shop-orders", "minPartitions": "7"}),
    ("offset BIGINT", {"topic": "shop-orders", "maxRecordsPerPartition": "100"}),
    (RECORD, {"topic": "shop-orders", "startingOffsets": '{"0": 100, "1": -2}'}),
    (RECORD, {"topic": "shop-orders", "endingOffsets": '{"0": 17, "1": 3}'}),
    (RECORD, {"topic": "empty"}),
    (
        "value STRUCT<id: BIGINT, name: STRING>, offset BIGINT",
        {"topics": "shop-.*", "valueFormat": "json"},
    ),
    ("value STRING", {"topic": "shop-bills", "valueFormat": "string"}),
    (QUEUE, {"queue": "jobs", "priority": "1", "minPartitions": "4"}),
    (QUEUE, {"dead_letters": "jobs"}),
    ("value BINARY, ring STRING, offset BIGINT", {"ring": "recent"}),
    ("value BINARY, offset BIGINT", {"ring": "recent", "startingOffsets": '{"0": 5}'}),
]


STEADY_COLUMNS = (
    *("key", "value", "topic", "queue", "ring", "priority", "partition"),
    *("offset", "message_id", "state"),
)
"""What is the same in both stores; times are not."""


def test_the_tasks_of_spark_read_from_a_server_what_they_read_from_a_directory(
    scratch: Path,
) -> None:
    """For every kind of table; decoding is left to the tests below."""
    path, url = str(scratch / "store"), fresh_url()
    for each in (url, path):
        with segue.open(each, sync="os") as store:
            fill(store)
            store.topic("shop-orders").reader("copy").commit({0: 3, 1: 2})

    def check(options: dict[str, str]) -> None:
        known = default_schema(read_options({"url": url, **options}, is_stream=False)).names
        columns = [name for name in STEADY_COLUMNS if name in known]
        rows = read_rows(url, columns, **options)

        assert rows == read_rows(path, columns, **options)
        assert rows or options["topic"] == "empty"

    tables = [options for _, options in (*SOME_TABLES, *OTHER_TABLES)]
    cases = [options for options in tables if "valueFormat" not in options]
    assert failing_cases(check, [*cases, {"topic": "shop-orders", "reader": "copy"}]) == []


HALVES = (
    ({"topic": "orders"}, [0, 1], [2, 3]),
    ({"queue": "jobs"}, [0, 1], [2, 3]),
    ({"ring": "recent"}, [0], [1]),
    ({"dead_letters": "jobs"}, [0], [1]),
)
"""What `fill_halves` writes: a kind of table, its offsets before the moment and after it."""


def fill_halves(url: str) -> str:
    """Fill a topic, a queue, its dead letters and a ring; return a moment amid the writes."""
    with segue.open(url) as store:
        topic, queue = store.topic("orders"), store.queue("jobs")
        ring = store.ring("recent", capacity=100)
        topic.append_many([b"0", b"1"])
        queue.push_many([b"0", b"1"])
        ring.enqueue(b"0")
        queue.nack(queue.lease_many(2)[1], outcome="dead")
        middle = _moment_between()
        topic.append_many([b"2", b"3"])
        queue.push_many([b"2", b"3"])
        ring.enqueue(b"1")
        queue.nack(queue.lease(), outcome="dead")
    return middle.isoformat()


def test_tasks_read_a_range_of_time_from_a_server() -> None:
    """For topics, queues, rings and dead letters, whose offsets are those among the letters."""
    url = fresh_url()
    middle = fill_halves(url)

    for what, early, late in HALVES:
        before = read_rows(url, ["offset"], endingTimestamp=middle, **what)
        after = read_rows(url, ["offset"], startingTimestamp=middle, **what)
        assert [row[0] for row in before] == early, what
        assert [row[0] for row in after] == late, what


def test_tasks_read_the_times_of_messages_from_a_server(scratch: Path) -> None:
    """Times differ between the stores. Which of them a message has does not."""
    columns = ["message_id", "state", "timestamp", "not_before", "expires", "died"]
    found = []
    for each in (fresh_url(), str(scratch / "store")):
        with segue.open(each, sync="os") as store:
            fill(store)
        rows = read_rows(each, columns, queue="jobs")
        found.append([(id_, state, tuple(map(bool, times))) for id_, state, *times in rows])

    assert sorted(found[0]) == sorted(found[1])
    assert {times for _, _, times in found[0]} == {
        (True, False, False, False),
        (True, True, False, False),
        (True, False, True, False),
        (True, False, False, True),
    }


@pytest.mark.parametrize("limit", ["PAGE_OFFSETS_MAX", "PAGE_BYTES_MAX"])
def test_tasks_read_every_page_from_a_server(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Of what waits, of what was delivered, of dead letters and of rings."""
    url = fresh_url()
    with segue.open(url) as store:
        queue, ring = store.queue("jobs"), store.ring("recent", capacity=20)
        queue.push_many([b"%d" % number for number in range(20)])
        for job in queue.lease_many(12, ttl=3600)[:8]:
            queue.nack(job, outcome="dead")
        for number in range(10):
            ring.enqueue(b"%d" % number)
    monkeypatch.setattr(f"segue.stores.redis.tables.{limit}", 3)

    assert [row[0] for row in read_rows(url, ["value"], queue="jobs")] == sorted(
        b"%d" % number for number in range(20)
    )
    assert len(read_rows(url, ["value"], dead_letters="jobs")) == 8
    assert len(read_rows(url, ["value"], ring="recent")) == 10


class TestTables:
    @pytest.mark.parametrize(
        ("schema", "options"),
        [*SOME_TABLES, *(pytest.param(*case, marks=pytest.mark.long) for case in OTHER_TABLES)],
    )
    def test_a_server_has_the_rows_a_directory_has(
        self, tables: tuple[Table, Table], schema: str | None, options: dict[str, str]
    ) -> None:
        """Whatever is read, and whichever part of it."""
        server, directory = tables
        found = server.rows(schema, **options)
        if schema is None:
            found, expected = (
                [row[:-1] for row in each] for each in (found, directory.rows(None, **options))
            )
        else:
            expected = directory.rows(schema, **options)

        assert found == expected
        assert found or options["topic"] == "empty"

    @pytest.mark.long
    def test_times_of_a_server_are_its_own_and_the_columns_have_them(
        self, tables: tuple[Table, Table]
    ) -> None:
        """When a message was pushed, is due, ends or died."""
        before = datetime.now(UTC) - timedelta(minutes=10)
        schema = (
            "state STRING, timestamp TIMESTAMP, not_before TIMESTAMP, died TIMESTAMP, "
            "expires TIMESTAMP, message_id STRING"
        )
        found = tables[0].frame(schema, queue="jobs").collect()
        expected = tables[1].frame(schema, queue="jobs").collect()

        def shape(rows: list[Any]) -> list[tuple[Any, ...]]:
            return sorted(
                (row.message_id, row.state, *(row[place] is None for place in (2, 3, 4)))
                for row in rows
            )

        assert shape(found) == shape(expected)
        assert all(row.timestamp.astimezone(UTC) > before for row in found)

    @pytest.mark.long
    def test_the_state_of_each_message_is_told_once(self, tables: tuple[Table, Table]) -> None:
        """Ready, delayed, leased, dead, and settled where they are kept."""
        states = [row[0] for row in tables[0].rows("state STRING", queue="jobs")]

        assert {state: states.count(state) for state in set(states)} == {
            "ready": 5,
            "leased": 1,
            "delayed": 2,
            "dead": 1,
            "settled": 1,
        }


@pytest.mark.long
class TestRanges:
    def test_a_range_of_time_is_a_range_of_offsets(self, spark: "SparkSession") -> None:
        """For topics, queues and dead letters; rings, too."""
        url = fresh_url()
        middle = fill_halves(url)
        table = Table(spark, url)

        for what, early, late in HALVES:
            before = table.rows("offset BIGINT", endingTimestamp=middle, **what)
            after = table.rows("offset BIGINT", startingTimestamp=middle, **what)
            assert [row[0] for row in before] == early, what
            assert [row[0] for row in after] == late, what

    def test_a_batch_begins_where_a_reader_stands(self, spark: "SparkSession") -> None:
        """And does not move it."""
        url = fresh_url()
        with segue.open(url) as store:
            topic = store.topic("orders")
            topic.append_many([b"%d" % number for number in range(10)])
            reader = topic.reader("copy", "earliest")
            reader.commit({0: 7})
            reader.close()
            rows = Table(spark, url).rows("offset BIGINT", topic="orders", reader="copy")

            assert rows == [(7,), (8,), (9,)]
            assert [lag.committed for lag in topic.readers()["copy"]] == [7]

    def test_few_messages_among_many_that_are_gone_are_found(self, spark: "SparkSession") -> None:
        """Without a look at every place there ever was, and in tasks of even size."""
        url = fresh_url()
        with segue.open(url) as store:
            queue = store.queue("jobs", QueueRules(lease_ttl=3600))
            kept = []
            for first in range(0, 60_000, 10_000):
                queue.push_many([b"%d" % (first + number) for number in range(10_000)])
                jobs = queue.lease_many(10_000)
                kept.append(jobs[5_000].message.id)
                queue.ack_many([job for job in jobs if job.message.id != kept[-1]])
            queue.push_many([b"new"] * 3_000)
            table = Table(spark, url)
            frame = table.frame("message_id STRING, state STRING", queue="jobs", minPartitions="3")

            assert sorted(row[0] for row in frame.collect() if row[1] == "leased") == sorted(kept)
            assert frame.where("state = 'ready'").count() == 3_000
            assert 3 <= frame.rdd.getNumPartitions() <= 9

    def test_segments_of_different_sizes_are_read_whole(self, spark: "SparkSession") -> None:
        """Also where some of the first one is gone."""
        url = fresh_url()
        with segue.open(url) as store:
            queue = store.queue("jobs")
            for size in (7, 30, 5):
                queue.configure(QueueRules(segment_items=size))
                queue.push_many([b"%d" % number for number in range(50)])
            queue.pop_many(12)
        rows = Table(spark, url).rows("offset BIGINT, value BINARY", queue="jobs")

        assert sorted(rows) == [(offset, b"%d" % (offset % 50)) for offset in range(12, 150)]

    def test_large_records_and_messages_are_read_by_pages(self, spark: "SparkSession") -> None:
        """A page has an end in bytes; what is larger is a page of its own."""
        url = fresh_url()
        sizes = [5_000_000, 10, 3_000_000, 5_500_000, 100, 2_000_000]
        with segue.open(url) as store:
            store.topic("orders").append_many([b"x" * size for size in sizes])
            store.queue("jobs").push_many([b"x" * size for size in sizes])
        table = Table(spark, url)
        for what in ({"topic": "orders"}, {"queue": "jobs"}):
            frame = table.frame("offset BIGINT, value BINARY", **what)
            found = frame.selectExpr("offset", "length(value)").collect()

            assert [row[1] for row in sorted(found)] == sizes

    def test_what_compaction_removed_is_not_there(self, spark: "SparkSession") -> None:
        """Offsets stay, and the other records keep theirs."""
        url = fresh_url()
        with segue.open(url) as store:
            topic = store.topic("orders")
            for number in range(20):
                topic.append(b"%d" % number, key=f"k{number % 5}")
            topic.roll()
            topic.append(b"last", key="k0")
            topic.compact()
            expected = [record.offset for record in topic.records()]
        rows = Table(spark, url).rows("offset BIGINT", topic="orders", minPartitions="4")

        assert sorted(row[0] for row in rows) == expected
        assert len(expected) < 20


def _moment_between() -> datetime:
    """Return a time that everything so far is before, and what follows is not."""
    _wait_for_next_millisecond()
    moment = datetime.now(UTC)
    _wait_for_next_millisecond()
    return moment


def _wait_for_next_millisecond() -> None:
    now = time.time_ns()
    wait_until(lambda: time.time_ns() > now + NANOSECONDS_PER_MS, "the next millisecond")


@pytest.mark.long
class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"topic": "none"}, "none"),
            ({"queue": "none"}, "there is no queue none; there are jobs"),
            ({"ring": "none"}, "none"),
            ({"topic": "shop-orders", "partitions": "7"}, "no partition 7"),
            ({"topic": "shop-orders", "sync": "os"}, "sync means nothing for a server"),
            ({"topic": "shop-orders", "allowNetwork": "true"}, "allowNetwork means nothing"),
            ({"topic": "shop-orders", "queue": "jobs"}, "give exactly one of"),
            ({"topic": "shop-orders", "nonsense": "1"}, "no option here: nonsense"),
            ({"topic": "shop-orders", "endingOffsets": '{"0": 99999}'}, "99999"),
            ({"queue": "jobs", "reader": "copy"}, "reader means nothing for a queue"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, tables: tuple[Table, Table], options: dict[str, str], said: str
    ) -> None:
        """In the words that a directory has for it."""
        assert said in tables[0].error(**options)

    def test_a_store_that_is_not_there_is_not_made(self, spark: "SparkSession") -> None:
        """Whoever reads creates nothing."""
        url = fresh_url()

        assert "there is no store" in Table(spark, url).error(topic="orders")
        assert not shared_server().client().keys(f"{namespace_of(url)}:*")

    def test_a_password_is_never_shown(
        self, spark: "SparkSession", caplog: pytest.LogCaptureFixture
    ) -> None:
        """Not by errors, plans, Spark's page, or what is logged; and it reaches every task."""
        url = fresh_url().replace("redis://", f"redis://default:{SECRET}@")
        with segue.open(url) as store:
            store.topic("orders").append_many([b"%d" % number for number in range(10)])
        table = Table(spark, url)
        frame = table.frame(topic="orders", minPartitions="2")
        assert frame.count() == 10
        frame.select("value").write.format("segue").mode("append").options(
            url=url, topic="orders"
        ).save()
        options = read_options({"url": url, "topic": "orders"}, is_stream=False)
        tasks = BatchReader(options, frame.schema).partitions()
        jvm: Any = spark
        page = jvm._jsparkSession.sharedState().statusStore().executionsList().mkString()
        wrong = url.replace(f":{shared_server().port}", ":1") + "&retry=0&timeout=0.1"

        for said in (
            jvm_plan(frame),
            page,
            repr(options),
            repr(tasks),
            repr([each.ranges for each in tasks]),  # type: ignore[attr-defined]
            Table(spark, wrong).error(topic="orders"),
            f"logged: {caplog.text}",
        ):
            assert said
            assert SECRET not in said

    def test_a_login_is_not_given_as_a_path(self, spark: "SparkSession") -> None:
        """Spark would show it."""
        with pytest.raises(PySparkException, match="not as path") as caught:
            spark.read.format("segue").option("topic", "a").load(f"redis://u:{SECRET}@localhost")
        assert SECRET not in str(caught.value)


def jvm_plan(frame: "DataFrame") -> str:
    """Return all that Spark says of a plan."""
    java: Any = frame
    return str(java._jdf.queryExecution().toString())
