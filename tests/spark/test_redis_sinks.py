"""Sinks to a server: all of a write once or nothing, whoever is killed and whenever."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructField, StructType

import segue
from segue import QueueRules, TopicRules
from segue.errors import QueueFull, StorageError
from segue.spark.options import WriteOptions, read_options
from segue.spark.reading import BatchReader
from segue.spark.sink.server import ServerCommitter, ServerStage
from segue.stores.file.writes import StagedFile, WriteId
from segue.stores.redis.staging import KEPT_MS, QueueTarget, TopicTarget, Writes
from tests.redis_cluster import LASTING, RedisCluster
from tests.redis_server import shared_server
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.spark.redis_support import fresh_url, namespace_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 3
DAY_MS: Final = 24 * 3600 * 1000


class Sink:
    """Writes to a store, and shows what it holds then."""

    def __init__(self, url: str, store: segue.Store) -> None:
        self.url = url
        self.store = store
        self.topic = store.topic("orders", partitions=PARTITIONS)
        self.queue = store.queue("jobs")

    def keys(self, pattern: str) -> list[str]:
        """Return keys of the store on the server."""
        names = shared_server().client().scan_iter(f"{namespace_of(self.url)}:{pattern}")
        return sorted(name.decode() for name in names)

    def staged(self) -> list[str]:
        """Return what lies aside."""
        return [*self.keys("*:staged_*"), *self.keys("*:staging_*")]

    def values(self) -> list[bytes]:
        """Return the values of the topic, sorted."""
        return sorted(record.value or b"" for record in self.topic.records())


@pytest.fixture
def sink() -> Iterator[Sink]:
    url = fresh_url()
    with segue.open(url) as store:
        yield Sink(url, store)


# The protocol alone --------------------------------------------------------------------------


class Killed(BaseException):
    """A driver that is no more."""


class Writer:
    """Writes as tasks and a driver do, without Spark."""

    def __init__(self, sink: Sink, kind: str) -> None:
        name = "orders" if kind == "topic" else "jobs"
        self.sink = sink
        self.kind = kind
        self.options = WriteOptions(url=sink.url, kind=kind, name=name)  # type: ignore[arg-type]

    def stage(self, write: WriteId, values: list[bytes], *, tasks: int = 2) -> list[StagedFile]:
        """Have tasks put the values aside."""
        files = []
        for task in range(tasks):
            rows = pa.record_batch({"value": values[task::tasks]})
            if self.kind == "topic":
                keys = [b"k%d" % (int(value) % 7) for value in values[task::tasks]]
                rows = rows.append_column("key", pa.array(keys))
            files += ServerStage(self.options, write, PARTITIONS).write([rows])
        return files

    def commit(self, write: WriteId, files: list[StagedFile]) -> bool:
        return ServerCommitter(self.options).commit(write, files)

    def owner_of(self, step: str) -> object:
        """Return the class that a step of the driver is a method of."""
        target = TopicTarget if self.kind == "topic" else QueueTarget
        return next(each for each in (Writes, ServerCommitter, target) if hasattr(each, step))

    def held(self) -> list[bytes]:
        """Return what has been written, sorted."""
        if self.kind == "topic":
            return self.sink.values()
        return sorted(message.body for message in self.sink.queue.peek(10_000))


@pytest.fixture(params=["topic", "queue"])
def writer(sink: Sink, request: pytest.FixtureRequest) -> Writer:
    return Writer(sink, request.param)


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, call: int) -> None:
    """Have the driver die before a step; after the last call there is the step before it."""
    real: Callable[..., object] = getattr(owner, name)
    calls = iter(range(1, 1000))

    def step(*args: object, **kwargs: object) -> object:
        if next(calls) == call:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, step)


STEPS: Final[list[tuple[str, int, bool]]] = [
    ("list_", 1, False),
    ("_finish", 1, True),
    ("_adopt", 1, True),
    ("adopt", 1, True),
    ("adopt", 2, True),
    ("finish", 1, True),
    ("forget", 1, True),
]
"""Where drivers are killed, and whether the write has happened then."""


class TestExactlyOnce:
    def test_a_write_happens_once_by_its_name(self, writer: Writer) -> None:
        """However often it is repeated; nothing of the others is left aside."""
        write = WriteId(query="write nightly")
        assert writer.commit(write, writer.stage(write, numbers(0, 40)))
        assert not writer.commit(write, writer.stage(write, numbers(0, 40), tasks=3))

        assert writer.held() == sorted(numbers(0, 40))
        assert ServerCommitter(writer.options).is_done(write)
        assert writer.sink.staged() == []
        assert writer.sink.keys("*:adopted") == []

    def test_a_batch_that_is_not_above_the_last_one_is_dropped(self, writer: Writer) -> None:
        """A stream is known by its query and its batches."""
        for batch in (0, 1, 0, 1, 2):
            write = WriteId(query="query 1", batch=batch)
            writer.commit(write, writer.stage(write, numbers(batch * 10, batch * 10 + 10)))

        assert writer.held() == sorted(numbers(0, 30))

    @pytest.mark.parametrize(("name", "call", "has_happened"), STEPS)
    @pytest.mark.parametrize("finisher", ["the same query", "another writer"])
    def test_a_killed_driver_has_written_all_or_nothing(
        self,
        writer: Writer,
        monkeypatch: pytest.MonkeyPatch,
        *,
        name: str,
        call: int,
        has_happened: bool,
        finisher: str,
    ) -> None:
        """The list is the moment; from then on whoever comes finishes it, once."""
        write = WriteId(query="query 1", batch=7)
        files = writer.stage(write, numbers(0, 30))
        with monkeypatch.context() as patch:
            kill_at(patch, writer.owner_of(name), name, call=call)
            with pytest.raises(Killed):
                writer.commit(write, files)
        if finisher == "another writer":
            other = WriteId(query="write other", is_repeatable=False)
            writer.commit(other, writer.stage(other, numbers(100, 101)))
            expected = numbers(100, 101) + (numbers(0, 30) if has_happened else [])
            assert writer.held() == sorted(expected)
        # Cut in another way the second time, and with other rows: it is the first that counts.
        again = numbers(0, 30) if not has_happened else numbers(0, 29)
        writer.commit(write, writer.stage(write, again, tasks=3))

        held = [value for value in writer.held() if value != b"100"]
        assert held == sorted(numbers(0, 30))
        assert writer.sink.staged() == []
        assert writer.sink.keys("*:writes") == []

    def test_two_drivers_that_finish_the_same_write_put_it_there_once(
        self, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One stalls after each step, and the other overtakes it."""
        write = WriteId(query="query 1", batch=1)
        files = writer.stage(write, numbers(0, 30))
        owner = TopicTarget if writer.kind == "topic" else QueueTarget
        real = owner.adopt
        is_first = True

        def overtaken(self: TopicTarget, number: int, name: str) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                ServerCommitter(writer.options).recover()
            real(self, number, name)  # type: ignore[arg-type]

        monkeypatch.setattr(owner, "adopt", overtaken)
        assert writer.commit(write, files)

        assert writer.held() == sorted(numbers(0, 30))

    def test_an_aborted_write_leaves_nothing(self, writer: Writer) -> None:
        """Also of tasks that nobody told the driver of."""
        write = WriteId(query="write x")
        writer.stage(write, numbers(0, 30))
        ServerCommitter(writer.options).abort(write)

        assert writer.sink.staged() == []
        assert writer.held() == []

    def test_a_task_that_fails_leaves_nothing(self, writer: Writer) -> None:
        """What it had put aside is dropped at once, and its announcement with the write."""
        write = WriteId(query="write x")

        def rows() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"value": [b"x" * 1000] * 6000})
            raise RuntimeError("a bug of the user's")

        with pytest.raises(RuntimeError):
            ServerStage(writer.options, write, PARTITIONS).write(rows())

        assert writer.sink.keys("*:staged_*") == []

    def test_what_lies_aside_goes_by_itself(self, writer: Writer) -> None:
        """After a week; and not once its write is listed."""
        writer.stage(WriteId(query="write x"), numbers(0, 30))
        client = shared_server().client()
        left_ms = [client.pttl(key) for key in writer.sink.staged()]

        assert left_ms
        assert all(KEPT_MS - DAY_MS < left <= KEPT_MS for left in left_ms)

    def test_what_is_listed_is_kept_until_it_is_adopted(
        self, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A committed write is not lost because nobody came for a week."""
        write = WriteId(query="write x")
        files = writer.stage(write, numbers(0, 30))
        with monkeypatch.context() as patch:
            kill_at(patch, ServerCommitter, "_adopt", call=1)
            with pytest.raises(Killed):
                writer.commit(write, files)

        client = shared_server().client()
        assert {client.pttl(key) for key in writer.sink.keys("*:staged_*")} == {-1}

    def test_a_write_whose_blocks_are_gone_is_not_listed(self, writer: Writer) -> None:
        """An abort that came first is not overtaken by a late commit."""
        write = WriteId(query="write x")
        files = writer.stage(write, numbers(0, 30))
        ServerCommitter(writer.options).abort(write)

        with pytest.raises(StorageError):
            writer.commit(write, files)
        assert writer.sink.keys("*:writes") == []

    def test_a_write_that_is_aborted_while_it_is_checked_does_not_happen(
        self, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even if the one that aborts tries it again meanwhile: only what is there is listed."""
        write = WriteId(query="query 1", batch=1)
        files = writer.stage(write, numbers(0, 30))
        real = ServerCommitter._check
        again: list[StagedFile] = []

        def overtaken(self: ServerCommitter, *args: object) -> None:
            real(self, *args)  # type: ignore[arg-type]
            if not again:
                ServerCommitter(writer.options).abort(write)
                again.extend(writer.stage(write, numbers(0, 30), tasks=1))

        monkeypatch.setattr(ServerCommitter, "_check", overtaken)
        with pytest.raises(StorageError):
            writer.commit(write, files)

        assert writer.commit(write, again)
        assert writer.held() == sorted(numbers(0, 30))

    @pytest.mark.long
    def test_large_writes_are_adopted_in_blocks(self, writer: Writer) -> None:
        """Each block is one call, and has an end in records and in bytes."""
        write = WriteId(query="write x")
        rows = pa.record_batch({"value": [b"%05d" % n + b"x" * 1000 for n in range(9_000)]})
        files = ServerStage(writer.options, write, PARTITIONS).write([rows])
        writer.commit(write, files)

        assert len(files) >= 3
        assert all(file.count <= 5000 and file.size_bytes <= 4 << 20 for file in files)
        assert [value[:5] for value in writer.held()] == [b"%05d" % n for n in range(9_000)]

    def test_rows_that_do_not_fit_a_capacity_are_refused_before_any_is_pushed(
        self, sink: Sink
    ) -> None:
        """As QueueFull, which leaves no list behind."""
        sink.queue.configure(QueueRules(capacity=20))
        writer = Writer(sink, "queue")
        write = WriteId(query="write x")

        with pytest.raises(QueueFull):
            writer.commit(write, writer.stage(write, numbers(0, 30)))
        assert sink.queue.count().total == 0
        assert sink.keys("*:writes") == []

    def test_rows_of_a_queue_keep_every_field(self, sink: Sink) -> None:
        """Priority, delay, key and headers. A key that comes twice counts once."""
        rows = pa.record_batch(
            {
                "value": [b"0", b"1", b"2", b"3", b"4"],
                "priority": pa.array([0, 2, 1, 1, 0], pa.int32()),
                "delay": pa.array([None, None, None, None, 3600.0]),
                "key": pa.array([None, None, "same", "same", None]),
                "headers": pa.array(
                    [[("a", "b")], None, None, None, None], pa.map_(pa.string(), pa.string())
                ),
            }
        )
        options, write = Writer(sink, "queue").options, WriteId(query="write x")
        ServerCommitter(options).commit(write, ServerStage(options, write, 0).write([rows]))
        counts = sink.queue.count()
        found = {
            message.body: (message.priority, message.key, dict(message.headers))
            for message in sink.queue.peek(10)
        }

        assert (counts.ready, counts.delayed) == (3, 1)
        assert found == {b"0": (0, None, {"a": "b"}), b"1": (2, None, {}), b"2": (1, "same", {})}

    def test_the_order_of_a_task_is_kept_and_segments_obey_the_rules(self, sink: Sink) -> None:
        """Small blocks are appended to the segment there is, large ones become their own."""
        sink.topic.configure(TopicRules(segment_bytes=256 * 1024))
        options = WriteOptions(url=sink.url, kind="topic", name="orders")
        for size in (10, 2000):
            write = WriteId(query=f"write {size}")
            rows = pa.record_batch(
                {
                    "value": [b"%06d" % n + b"x" * size for n in range(1000)],
                    "partition": pa.array([1] * 1000, pa.int32()),
                }
            )
            files = ServerStage(options, write, PARTITIONS).write([rows])
            ServerCommitter(options).commit(write, files)
        found = [(record.value or b"")[:6] for record in sink.topic.records(partitions=[1])]

        assert found == [b"%06d" % n for n in range(1000)] * 2
        assert all(file.size_bytes <= 256 * 1024 for file in files)


# Through Spark -------------------------------------------------------------------------------


def write(sink: Sink, rows: "DataFrame", **options: str) -> None:
    rows.write.format("segue").mode("append").options(url=sink.url, **options).save()


class TestBatches:
    @pytest.mark.long
    def test_rows_become_the_records_a_directory_would_have(
        self, spark: "SparkSession", sink: Sink, tmp_path: Path
    ) -> None:
        """Key, value, headers, time, partition; a row without a value is a tombstone."""
        rows = spark.range(0, 60, 1, 2).selectExpr(
            "IF(id = 5, NULL, concat('v', id)) AS value",
            "CAST(concat('k', id) AS BINARY) AS key",
            "IF(id = 3, NULL, map('n', concat('h', id))) AS headers",
            "IF(id = 2, NULL, timestamp_seconds(id)) AS timestamp",
            "IF(id = 1, CAST(2 AS INT), NULL) AS partition",
        )
        path = str(tmp_path / "store")
        with segue.open(path, sync="os") as store:
            store.topic("orders", partitions=PARTITIONS)
            rows.write.format("segue").mode("append").options(url=path, topic="orders").save()
            expected = sorted(map(_said, store.topic("orders").records()))
        write(sink, rows, topic="orders")

        assert [_said(each)[:-1] for each in sorted(sink.topic.records(), key=_said)] == [
            each[:-1] for each in expected
        ]

    @pytest.mark.long
    def test_rows_become_messages(self, spark: "SparkSession", sink: Sink) -> None:
        """Priorities, delays, headers; a key that comes twice counts once."""
        rows = spark.range(0, 100, 1, 2).selectExpr(
            "CAST(id AS STRING) AS value",
            "CAST(id % 3 AS INT) AS priority",
            "IF(id % 10 = 0, 3600.0, NULL) AS delay",
            "IF(id % 25 = 7, 'same', NULL) AS key",
            "IF(id % 2 = 0, map('a', 'b'), NULL) AS headers",
        )
        write(sink, rows, queue="jobs")
        counts = sink.queue.count()
        messages = sink.queue.peek(100)

        assert (counts.delayed, counts.ready) == (10, 87)
        assert Counter(message.priority for message in messages)[0] in (29, 30, 31)
        assert sum(message.key == "same" for message in messages) == 1
        assert all((int(m.body) % 2 == 0) == bool(m.headers) for m in messages)

    @pytest.mark.long
    def test_a_write_with_a_name_counts_once(self, spark: "SparkSession", sink: Sink) -> None:
        """As often as the job is run."""
        for _ in range(2):
            write(
                sink,
                spark.range(50).selectExpr("CAST(id AS STRING) AS value"),
                topic="orders",
                writeId="nightly",
            )

        assert sink.values() == sorted(numbers(0, 50))
        assert sink.staged() == []

    @pytest.mark.long
    def test_a_write_that_fails_leaves_nothing_that_stays(
        self, spark: "SparkSession", sink: Sink
    ) -> None:
        """Spark tells the driver, which drops what other tasks have put aside.

        One that is still at it may put its share aside later; that goes when its time is over.
        """
        rows = spark.range(0, 40, 1, 2).selectExpr(
            "IF(id = 39, CAST(raise_error('bad') AS STRING), CAST(id AS STRING)) AS value"
        )
        with pytest.raises(PySparkException):
            write(sink, rows, topic="orders")
        client = shared_server().client()

        assert sink.values() == []
        assert -1 not in [client.pttl(key) for key in sink.staged()], "kept for ever"

    @pytest.mark.long
    def test_options_of_a_directory_are_refused(self, spark: "SparkSession", sink: Sink) -> None:
        """The URL says what a server does."""
        rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value")

        with pytest.raises(PySparkException, match="sync means nothing for a server"):
            write(sink, rows, topic="orders", sync="os")


def _said(record: segue.TopicRecord) -> tuple[object, ...]:
    is_given = record.value != b"v2"
    return (
        record.key,
        record.value or b"",
        record.partition,
        tuple(dict(record.headers).items()),
        record.timestamp_us if is_given else 0,
        record.offset,
    )


class TestStreams:
    @pytest.mark.parametrize("kind", ["topic", pytest.param("queue", marks=pytest.mark.long)])
    def test_a_stream_is_copied_once_over_restarts(
        self, spark: "SparkSession", sink: Sink, tmp_path: Path, kind: str
    ) -> None:
        """From a topic of the server to another, or to a queue: each record once."""
        name = "orders" if kind == "topic" else "jobs"
        source = sink.store.topic("source", partitions=2)
        for run in range(2):
            source.append_many(numbers(run * 20, run * 20 + 20))
            query = (
                spark.readStream.format("segue")
                .options(url=sink.url, topic="source", reader="copy", startingOffsets="earliest")
                .option("maxOffsetsPerTrigger", 12)
                .load()
                .select("value")
                .writeStream.format("segue")
                .options(**{"url": sink.url, kind: name})
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(SPARK_LIMIT_SECONDS)

        assert Writer(sink, kind).held() == sorted(numbers(0, 40))
        assert sink.staged() == []


@pytest.mark.long
class TestClusters:
    def test_a_cluster_is_written_and_read(self, tmp_path: Path) -> None:
        """Partitions are on different nodes; what belongs together is on one."""
        with RedisCluster(tmp_path, LASTING) as cluster, segue.open(cluster.url) as store:
            sink = Sink(cluster.url, store)
            for kind in ("topic", "queue"):
                writer = Writer(sink, kind)
                for batch in range(2):
                    write = WriteId(query="query 1", batch=batch)
                    values = numbers(batch * 50, batch * 50 + 50)
                    assert writer.commit(write, writer.stage(write, values))
                name = writer.options.name
                given = read_options({"url": cluster.url, kind: name}, is_stream=False)
                reader = BatchReader(given, StructType([StructField("value", BinaryType())]))
                rows = [
                    row["value"]
                    for task in reader.partitions()
                    for batch in reader.read(task)
                    for row in batch.to_pylist()
                ]

                assert sorted(rows) == writer.held() == sorted(numbers(0, 100))
