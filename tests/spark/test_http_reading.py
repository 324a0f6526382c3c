"""Batch reads through a server: the same tables as from the store behind it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import segue
from segue import Event, QueueRules
from segue.errors import (
    AccessDenied,
    CorruptRecord,
    InvalidArgument,
    OffsetNotWritten,
    OffsetTrimmed,
    RingNotFound,
    StorageError,
    TopicNotFound,
)
from segue.log.columns import Columns
from segue.server.bulk_files import FileTables
from segue.server.tokens import add_token, make_token
from segue.spark.options import WriteOptions, read_options
from segue.spark.sink.http import HttpCommitter, send_rows
from segue.stores import column_pieces
from segue.stores.file.writes import WriteId
from segue.stores.passing import Passing
from tests.conftest import TORTURE
from tests.integration.cli_support import flip_byte
from tests.spark.http_support import read_rows, served, served_directory
from tests.spark.redis_support import fresh_url
from tests.spark.test_redis_reading import SMALL, _moment_between, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = ["key", "value", "queue", "priority", "offset", "message_id", "state", "attempt", "cause"]
QUEUE += ["reason", "headers", "timestamp", "not_before", "expires", "died"]
RECORD = ["key", "value", "topic", "partition", "offset", "headers", "timestamp"]
TABLES = [
    (None, {"topic": "shop-orders", "partitions": "1"}),
    (RECORD, {"topics": "shop-.*"}),
    (RECORD, {"topic": "shop-orders", "minPartitions": "7"}),
    (["offset"], {"topic": "shop-orders", "maxRecordsPerPartition": "100"}),
    (RECORD, {"topic": "shop-orders", "startingOffsets": '{"0": 100, "1": -2}'}),
    (RECORD, {"topic": "shop-orders", "endingOffsets": '{"0": 17, "1": 3}'}),
    (RECORD, {"topic": "empty"}),
    (None, {"topic": "shop-bills", "valueFormat": "string"}),
    (QUEUE, {"queue": "jobs"}),
    (QUEUE, {"queue": "jobs", "priority": "1", "minPartitions": "4"}),
    (QUEUE, {"dead_letters": "jobs"}),
    (None, {"ring": "recent"}),
    (None, {"ring": "recent", "startingOffsets": '{"0": 5}'}),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server, and the directory behind it; no test changes what they hold."""
    path = tmp_path_factory.mktemp("reading") / "store"
    with segue.open(path, sync="os") as store:
        fill(store)
    with served_directory(path) as url:
        yield url, str(path)


@pytest.fixture(scope="module")
def redis_places() -> Iterator[tuple[str, str]]:
    """The same with Redis behind the server."""
    behind = fresh_url()
    with segue.open(behind) as store:
        fill(store)
        with served(store) as url:
            yield url, behind


class TestTables:
    @pytest.mark.parametrize(("columns", "options"), TABLES)
    def test_a_server_has_the_rows_of_the_directory_behind_it(
        self, places: tuple[str, str], columns: list[str] | None, options: dict[str, str]
    ) -> None:
        """Every column of whatever is read, and whichever part of it."""
        found, expected = (read_rows(each, columns, **options) for each in places)

        assert found == expected
        assert found or options["topic"] == "empty"

    @pytest.mark.parametrize(("columns", "options"), TABLES)
    def test_a_server_has_the_rows_of_the_redis_behind_it(
        self, redis_places: tuple[str, str], columns: list[str] | None, options: dict[str, str]
    ) -> None:
        """What stands before it need not know what holds it."""
        found, expected = (read_rows(each, columns, **options) for each in redis_places)

        assert found == expected
        assert found or options["topic"] == "empty"

    def test_spark_reads_through_a_server(
        self, spark: "SparkSession", places: tuple[str, str]
    ) -> None:
        """Topics and queues, dead letters and rings. Every task sends requests of its own."""
        tables = [("topic", "shop-orders"), ("queue", "jobs")]
        if TORTURE:
            tables += [("dead_letters", "jobs"), ("ring", "recent")]
        for what, name in tables:
            counts = [
                spark.read.format("segue")
                .options(url=each, minPartitions="2", **{what: name})
                .load()
                .selectExpr("sum(hash(*))", "count(*)")
                .collect()
                for each in places
            ]
            assert counts[0] == counts[1], what

    def test_headers_are_bytes_as_they_were_written(self, scratch: Path) -> None:
        """Also such as are no text."""
        with segue.open(scratch / "store", sync="os") as store:
            store.topic("orders")
        with served_directory(scratch / "store") as url:
            kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
            headers = pa.array([[{"key": "a", "value": b"\xff\0"}]], kind)
            rows = pa.record_batch({"value": [b"x"], "headers": headers})
            options, once = WriteOptions(url=url, kind="topic", name="orders"), WriteId(query="x")
            files = send_rows(options, once, [rows], partitions=1, record_bytes_max=1 << 20)
            HttpCommitter(options).commit(once, files)
            found = read_rows(url, ["value", "headers"], topic="orders")

        assert found == [(b"x", [{"key": "a", "value": b"\xff\0"}])]


class TestRanges:
    def test_a_range_of_time_is_a_range_of_offsets(self, scratch: Path) -> None:
        """For topics, queues and rings."""
        with served_directory(scratch / "store") as url, segue.open(url) as store:
            topic, queue = store.topic("orders"), store.queue("jobs")
            ring = store.ring("recent", capacity=100)
            topic.append_many([b"0", b"1"])
            queue.push_many([b"0", b"1"])
            ring.enqueue(b"0")
            middle = _moment_between().isoformat()
            topic.append_many([b"2", b"3"])
            queue.push_many([b"2", b"3"])
            ring.enqueue(b"1")

            for what, early, late in (
                ({"topic": "orders"}, [0, 1], [2, 3]),
                ({"queue": "jobs"}, [0, 1], [2, 3]),
                ({"ring": "recent"}, [0], [1]),
            ):
                before = read_rows(url, ["offset"], endingTimestamp=middle, **what)
                after = read_rows(url, ["offset"], startingTimestamp=middle, **what)
                assert [row[0] for row in before] == early, what
                assert [row[0] for row in after] == late, what

    def test_a_batch_begins_where_a_reader_stands(self, scratch: Path) -> None:
        """And does not move it."""
        with served_directory(scratch / "store") as url, segue.open(url) as store:
            topic = store.topic("orders")
            topic.append_many([b"%d" % number for number in range(10)])
            with topic.reader("copy", "earliest") as reader:
                reader.commit({0: 7})

            assert read_rows(url, ["offset"], topic="orders", reader="copy") == [(7,), (8,), (9,)]
            assert [lag.committed for lag in topic.readers()["copy"]] == [7]

    def test_what_is_gone_is_an_error_or_passed_over(self, scratch: Path) -> None:
        """As failOnDataLoss has it; the error is the one of a directory."""
        with served_directory(scratch / "store") as url, segue.open(url) as store:
            topic = store.topic("orders", rules=SMALL)
            topic.append_many([Event(value=b"x" * 1000)] * 200)
            topic.clean(keep_bytes=1)
            first = topic.offsets("earliest")[0]
            start = {"topic": "orders", "startingOffsets": '{"0": 0}'}
            with pytest.raises(OffsetTrimmed) as caught:
                read_rows(url, ["offset"], **start)
            rest = read_rows(url, ["offset"], failOnDataLoss="false", **start)

        assert first > 0
        assert caught.value.earliest == first
        assert len(rest) == 200 - first

    def test_what_is_deleted_after_planning_has_its_error_from_the_server(
        self, scratch: Path
    ) -> None:
        """With the offset and the partition."""
        from segue.stores.http.bulk import Bulk
        from segue.stores.opening import open_http

        with served_directory(scratch / "store") as url, open_http(url) as store:
            topic = store.topic("orders", rules=SMALL)
            topic.append_many([Event(value=b"x" * 1000)] * 200)
            topic.clean(keep_bytes=1)
            bulk = Bulk(store.calls, "topic", "orders")
            with pytest.raises(OffsetTrimmed) as caught:
                list(bulk.stretches(3, 9, Passing(name="orders", number="0")))

        assert (caught.value.offset, caught.value.partition) == (3, 0)

    def test_what_is_damaged_is_an_error_or_passed_over(self, scratch: Path) -> None:
        """The server passes over it: it knows where the next good record is."""
        path = scratch / "store"
        with segue.open(path, sync="os") as store:
            topic = store.topic("orders")
            for number in range(10):
                topic.append(b"number %d" % number)
        (segment,) = (path / "topics" / "orders" / "partition_0").glob("*.q")
        flip_byte(segment, b"number 4")
        with served_directory(path) as url:
            with pytest.raises(CorruptRecord):
                read_rows(url, ["offset"], topic="orders")
            rest = read_rows(url, ["offset"], topic="orders", failOnDataLoss="false")

        assert [row[0] for row in rest] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


class TestBreakingOff:
    def test_what_breaks_off_is_read_on_from_there(
        self, places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each record once, however often the server fails in the middle."""
        real = FileTables.stretches
        failures = iter(range(3))

        def stretches(
            self: FileTables, kind: str, start: int, stop: int, passing: Passing
        ) -> Iterator[Columns]:
            fails = next(failures, None) is not None
            for count, found in enumerate(real(self, kind, start, stop, passing)):  # type: ignore[arg-type]
                if fails and count == 2:
                    raise StorageError("the disk is gone for a moment")
                yield found

        monkeypatch.setattr(column_pieces, "BATCH_ROWS_MAX", 25)
        monkeypatch.setattr(FileTables, "stretches", stretches)
        found = read_rows(places[0], ["offset"], topic="shop-orders", partitions="0")

        assert next(failures, None) is None
        assert [row[0] for row in sorted(found)] == list(range(505))

    def test_a_server_that_began_anew_meanwhile_is_read_on(self, scratch: Path) -> None:
        """The plan holds: it says offsets, and the server keeps nothing in between."""
        path = scratch / "store"
        with segue.open(path, sync="os") as store:
            store.topic("orders", partitions=2).append_many(
                [Event(value=b"%d" % number, partition=number % 2) for number in range(100)]
            )
        from segue.spark.reading import BatchReader
        from segue.spark.schema import default_schema

        with served_directory(path) as url:
            options = read_options({"url": url, "topic": "orders"}, is_stream=False)
            reader = BatchReader(options, default_schema(options))
            tasks = reader.partitions()
        with served_directory(path, port=int(url.rpartition(":")[2])):
            rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))

        assert rows == 100


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"topic": "none"}, TopicNotFound),
            ({"queue": "none"}, InvalidArgument),
            ({"ring": "none"}, RingNotFound),
            ({"topic": "shop-orders", "partitions": "7"}, InvalidArgument),
            ({"topic": "shop-orders", "sync": "os"}, InvalidArgument),
            ({"topic": "shop-orders", "endingOffsets": '{"0": 99999}'}, OffsetNotWritten),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, places: tuple[str, str], options: dict[str, str], error: type[Exception]
    ) -> None:
        """With the error that a directory has for it."""
        with pytest.raises(error):
            read_rows(places[0], **options)

    def test_a_token_is_for_servers_alone(self, places: tuple[str, str]) -> None:
        with pytest.raises(InvalidArgument, match="http://"):
            read_rows(places[1], topic="shop-orders", token="segue_x")

    def test_a_token_lets_tasks_in_and_is_never_shown(
        self, spark: "SparkSession", scratch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Given as an option, or by the driver's environment; plans do not have it."""
        monkeypatch.delenv("SEGUE_TOKEN", raising=False)
        tokens = scratch / "tokens.toml"
        token, secret = make_token(
            name="spark", roles=["read"], names=["orders"], now_us=0, expires_us=None
        )
        add_token(tokens, token)
        with segue.open(scratch / "store", sync="os") as store:
            store.topic("orders").append_many([b"0", b"1"])
            store.topic("bills").append_many([b"0"])
        with served_directory(scratch / "store", tokens=tokens) as url:
            with pytest.raises(AccessDenied):
                read_rows(url, topic="orders")
            with pytest.raises(AccessDenied, match="bills"):
                read_rows(url, topic="bills", token=secret)
            asked = {"url": url, "topic": "orders", "token": secret}
            frame = spark.read.format("segue").options(**asked).load()
            plan = str(frame._jdf.queryExecution().toString())
            monkeypatch.setenv("SEGUE_TOKEN", secret)
            by_environment = read_rows(url, topic="orders")

            assert frame.count() == len(by_environment) == 2
        assert secret not in plan
        assert secret not in repr(read_options(asked, is_stream=False))


def test_moments_of_messages_are_those_of_the_store(scratch: Path) -> None:
    """When a message is due is told as it was set."""
    before = datetime.now(UTC)
    with served_directory(scratch / "store") as url, segue.open(url) as store:
        store.queue("jobs", QueueRules()).push(b"later", delay=3600)
        ((due,),) = read_rows(url, ["not_before"], queue="jobs")

    assert before <= due - timedelta(hours=1) <= datetime.now(UTC)
