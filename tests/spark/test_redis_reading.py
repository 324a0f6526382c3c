"""Batch reads from a server: the same tables as from a directory with the same in it."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import segue
from segue import Event, Item, QueueRules, Store, TopicRules
from tests.contract.topic_support import SMALL_SEGMENT_BYTES
from tests.spark.redis_support import fresh_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[Any, ...]]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
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


class TestTables:
    @pytest.mark.parametrize(
        ("schema", "options"),
        [
            (None, {"topic": "shop-orders", "partitions": "1"}),
            (RECORD, {"topics": "shop-.*"}),
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
            (QUEUE, {"queue": "jobs"}),
            (QUEUE, {"queue": "jobs", "priority": "1", "minPartitions": "4"}),
            (QUEUE, {"dead_letters": "jobs"}),
            ("value BINARY, ring STRING, offset BIGINT", {"ring": "recent"}),
            ("value BINARY, offset BIGINT", {"ring": "recent", "startingOffsets": '{"0": 5}'}),
        ],
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
