"""Sinks through a server: all of a write once or nothing, whoever repeats it and whenever."""

import io
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pytest

import segue
from segue import QueueRules, Store
from segue.errors import (
    AccessDenied,
    CorruptSegment,
    InvalidArgument,
    QueueFull,
    StorageError,
    UnsupportedFormat,
    UnsupportedServer,
)
from segue.server.bulk_writes import StoreWrites
from segue.server.tokens import RoleName, add_token, make_token
from segue.spark.options import WriteOptions
from segue.spark.sink.http import HttpCommitter, send_rows, writing
from segue.stores.file.writes import COMMIT, StagedFile, WriteId
from segue.stores.http import bulk
from tests.integration.cli_support import COMMAND
from tests.ports import free_port
from tests.redis_server import LOOPBACK
from tests.spark.http_support import served, served_directory
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.spark.redis_support import fresh_url
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Kind = Literal["topic", "queue"]
PARTITIONS: Final = 3
RECORD_BYTES_MAX: Final = 1 << 20


class Sink:
    """Writes through a server as tasks and a driver do, without Spark."""

    def __init__(self, url: str, store: Store, path: Path, kind: Kind) -> None:
        self.url = url
        self.kind = kind
        self.store = store
        self.topic = store.topic("orders", partitions=PARTITIONS)
        self.queue = store.queue("jobs")
        self.name = "orders" if kind == "topic" else "jobs"
        self.options = WriteOptions(url=url, kind=kind, name=self.name)
        self.staging = path / "staging" / f"{kind}.{self.name}"

    def stage(self, write: WriteId, values: list[bytes], *, tasks: int = 2) -> list[StagedFile]:
        """Have tasks put the values aside."""
        files = []
        for task in range(tasks):
            rows = pa.record_batch({"value": pa.array(values[task::tasks], pa.binary())})
            files += send_rows(
                self.options,
                write,
                [rows],
                partitions=PARTITIONS,
                record_bytes_max=RECORD_BYTES_MAX,
            )
        return files

    def commit(self, write: WriteId, files: list[StagedFile]) -> bool:
        return HttpCommitter(self.options).commit(write, files)

    def held(self) -> list[bytes]:
        """Return what has been written, sorted."""
        if self.kind == "topic":
            return sorted(record.value or b"" for record in self.topic.records())
        return sorted(message.body for message in self.queue.peek(1000))

    def aside(self) -> list[str]:
        """Return the segments and lists that lie aside."""
        names = [path.name for path in self.staging.rglob("*")]
        return [name for name in names if name.endswith((".q", ".tmp", COMMIT))]


@pytest.fixture(params=["topic", "queue"])
def sink(scratch: Path, request: pytest.FixtureRequest) -> Iterator[Sink]:
    path = scratch / "store"
    with served_directory(path) as url, segue.open(url) as store:
        yield Sink(url, store, path, request.param)


def batch(number: int) -> WriteId:
    return WriteId(query="query 1", batch=number)


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%03d" % number for number in range(start, stop)]


class TestExactlyOnce:
    def test_a_write_happens_once_by_its_name(self, sink: Sink) -> None:
        """However often it is repeated, also with other segments; nothing is left aside."""
        first = sink.stage(batch(0), numbers(0, 10))
        assert sink.held() == []
        assert sink.commit(batch(0), first)
        assert not sink.commit(batch(0), first)
        assert not sink.commit(batch(0), sink.stage(batch(0), numbers(0, 10), tasks=3))
        assert sink.commit(batch(1), sink.stage(batch(1), numbers(10, 20)))

        assert sink.held() == numbers(0, 20)
        assert sink.aside() == []
        assert HttpCommitter(sink.options).is_done(batch(1))
        assert not HttpCommitter(sink.options).is_done(batch(2))

    def test_drivers_that_commit_at_the_same_time_write_once(self, sink: Sink) -> None:
        """One of them has done it; the others are told that it had happened."""
        tries = [sink.stage(batch(0), numbers(0, 10)) for _ in range(4)]
        with ThreadPoolExecutor(len(tries)) as pool:
            found = list(pool.map(lambda files: sink.commit(batch(0), files), tries))

        assert sorted(found) == [False, False, False, True]
        assert sink.held() == numbers(0, 10)

    @pytest.mark.parametrize("step", ["_finish", "_adopt", "_note_done", "_drop"])
    def test_a_server_that_dies_in_a_commit_finishes_it_when_asked_again(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        """Once it was listed it happens, whoever comes next; and once."""
        files = sink.stage(batch(0), numbers(0, 10))

        def die(*_: object) -> None:
            raise InvalidArgument("as if killed")

        with monkeypatch.context() as patched:
            patched.setattr(StoreWrites, step, die)
            with pytest.raises(InvalidArgument, match="as if killed"):
                sink.commit(batch(0), files)
        with writing(sink.options) as target:
            target.ready()

        assert sink.held() == numbers(0, 10)
        assert not sink.commit(batch(0), files)
        assert sink.held() == numbers(0, 10)

    def test_what_is_given_up_leaves_nothing(self, sink: Sink) -> None:
        """And what has happened stays."""
        files = sink.stage(batch(0), numbers(0, 10))
        HttpCommitter(sink.options).abort(batch(0))
        assert sink.aside() == []
        with pytest.raises(StorageError, match="aborted"):
            sink.commit(batch(0), files)
        sink.commit(batch(0), sink.stage(batch(0), numbers(0, 5)))
        HttpCommitter(sink.options).abort(batch(0))

        assert sink.held() == numbers(0, 5)

    def test_a_segment_may_be_sent_twice_and_part_by_part(
        self, sink: Sink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer to the first may have been lost."""
        monkeypatch.setattr(bulk, "PART_BYTES", 1000)
        files = sink.stage(batch(0), numbers(0, 9), tasks=1)
        path = sink.staging / batch(0).directory / f"{files[0].id}.q"
        with writing(sink.options) as target, path.open("rb") as file:
            target.put(batch(0), files[0].id, file)
            assert path.stat().st_size > bulk.PART_BYTES
        assert sorted(sink.aside()) == sorted(f"{each.id}.q" for each in files)

        assert sink.commit(batch(0), files)
        assert sink.held() == numbers(0, 9)


class TestRefusals:
    def test_a_damaged_segment_is_not_kept(self, sink: Sink) -> None:
        """Its checksums are looked at before the server says that it has it."""
        file = sink.stage(batch(0), numbers(0, 10), tasks=1)[0]
        data = bytearray((sink.staging / batch(0).directory / f"{file.id}.q").read_bytes())
        place = data.index(b"00")
        data[place] ^= 1
        before = sink.aside()
        with writing(sink.options) as target:
            for broken in (bytes(data), bytes(data[:5000]), b"", b"nonsense" * 1000):
                with pytest.raises((CorruptSegment, InvalidArgument, UnsupportedFormat)):
                    target.put(batch(0), "f" * 32, io.BytesIO(broken))

        assert sink.aside() == before

    @pytest.mark.parametrize(
        "changes",
        [
            {"number": 1 << 40},
            {"number": -1},
            {"number": -5},
            {"count": 1},
            {"id": "../../../segue.toml"},
            {"id": "0" * 32},
        ],
    )
    def test_nothing_is_listed_that_could_not_be_adopted(
        self, sink: Sink, changes: dict[str, object]
    ) -> None:
        """Else nobody could ever finish it."""
        file = sink.stage(batch(0), numbers(0, 9), tasks=1)[0]
        values = {name: getattr(file, name) for name in StagedFile.__slots__} | changes
        with pytest.raises((InvalidArgument, StorageError)):
            sink.commit(batch(0), [StagedFile(**values)])
        assert not [name for name in sink.aside() if name.endswith(COMMIT)]

        assert sink.held() == []

    def test_names_that_are_none_are_refused(self, sink: Sink) -> None:
        """They become paths in the store."""
        with writing(sink.options) as target:
            for write, id_ in (("..", "0" * 32), ("0" * 32, ".."), ("0" * 32, "x")):
                named = WriteId(query="q")
                with pytest.raises(InvalidArgument):
                    target._calls.fetch("PUT", f"{target._path}/{write}/{id_}", b"x")
                assert named.directory

    def test_writing_takes_the_role_to_produce(
        self, scratch: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And nothing more; who may only read changes nothing."""
        monkeypatch.delenv("SEGUE_TOKEN", raising=False)
        tokens = scratch / "tokens.json"
        secrets: list[str] = []
        roles: tuple[RoleName, ...] = ("produce", "read")
        for role in roles:
            token, secret = make_token(
                name=role, roles=[role], names=["orders"], now_us=0, expires_us=None
            )
            add_token(tokens, token)
            secrets.append(secret)
        with segue.open(scratch / "store", sync="os") as store:
            store.topic("orders", partitions=PARTITIONS)
        with served_directory(scratch / "store", tokens=tokens) as url:
            rows = [pa.record_batch({"value": pa.array(numbers(0, 3), pa.binary())})]
            for secret, name, may in (
                (secrets[0], "orders", True),
                (secrets[0], "bills", False),
                (secrets[1], "orders", False),
            ):
                options = WriteOptions(url=url, token=secret, kind="topic", name=name)
                with suppress(AccessDenied):
                    send_rows(
                        options, batch(0), rows, partitions=1, record_bytes_max=RECORD_BYTES_MAX
                    )
                    assert may
                with nullcontext() if may else pytest.raises(AccessDenied):
                    HttpCommitter(options).commit(batch(0), [])

    def test_a_full_queue_takes_all_or_nothing(self, scratch: Path) -> None:
        """And the segments can be committed once there is room."""
        with served_directory(scratch / "store") as url, segue.open(url) as store:
            sink = Sink(url, store, scratch / "store", "queue")
            sink.queue.configure(QueueRules(capacity=10))
            sink.queue.push_many([b"x"] * 5)
            files = sink.stage(batch(0), numbers(0, 6))
            with pytest.raises(QueueFull):
                sink.commit(batch(0), files)
            sink.queue.pop_many(5)

            assert sink.commit(batch(0), files)
            assert sink.held() == numbers(0, 6)

    def test_a_server_in_front_of_redis_says_that_it_cannot(self) -> None:
        """Whoever reaches it writes to Redis by its own URL."""
        with segue.open(fresh_url()) as store, served(store) as url:
            store.topic("orders")
            options = WriteOptions(url=url, kind="topic", name="orders")
            with pytest.raises(UnsupportedServer), writing(options) as target:
                target.ready()


class TestSpark:
    def test_a_table_is_written_once_under_its_name(
        self, spark: "SparkSession", scratch: Path
    ) -> None:
        """To a topic and to a queue, with keys, priorities and headers."""
        with served_directory(scratch / "store") as url, segue.open(url) as store:
            topic, queue = store.topic("orders", partitions=2), store.queue("jobs")
            rows = spark.range(100).selectExpr(
                "cast(id as string) as value", "cast(id % 7 as string) as key"
            )
            for _ in range(2):
                sink = rows.write.format("segue").options(url=url, topic="orders", writeId="w")
                sink.mode("append").save()
            urgent = spark.range(10).selectExpr(
                "cast(id as string) as value", "cast(id % 2 as int) as priority"
            )
            urgent.write.format("segue").options(url=url, queue="jobs").mode("append").save()

            found = sorted(int(record.value or b"") for record in topic.records())
            assert found == list(range(100))
            bodies = [int(message.body) for message in queue.peek(100)]
            assert sorted(bodies) == list(range(10))
            assert {each % 2 for each in bodies[:5]} == {0}

    @pytest.mark.long
    def test_a_stream_copies_each_record_once_although_its_server_is_killed(
        self, spark: "SparkSession", scratch: Path
    ) -> None:
        """In the middle of a run, and between two: it goes on where it was."""
        path, checkpoint, port = scratch / "store", scratch / "checkpoint", free_port()
        with segue.open(path, sync="os") as store:
            store.topic("orders", partitions=2).append_many(numbers(0, 100))
            store.topic("copy", partitions=2)
        url = f"http://{LOOPBACK}:{port}?retry={SPARK_LIMIT_SECONDS}"

        def start() -> "StreamingQuery":
            rows = spark.readStream.format("segue").options(
                url=url,
                topic="orders",
                reader="copier",
                startingOffsets="earliest",
                maxOffsetsPerTrigger="25",
            )
            return (
                rows.load()
                .select("value", "key")
                .writeStream.format("segue")
                .options(url=url, topic="copy", checkpointLocation=str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )

        with serving(path, port) as server:
            query = start()
            wait_until(lambda: list(checkpoint.glob("commits/[0-9]*")), "a committed batch")
            server.kill()
            server.wait()
        with serving(path, port):
            assert query.awaitTermination(SPARK_LIMIT_SECONDS)
            with segue.open(url) as store:
                first = [record.value or b"" for record in store.topic("copy").records()]
                store.topic("orders").append_many(numbers(100, 110))
            assert start().awaitTermination(SPARK_LIMIT_SECONDS)
            with segue.open(url) as store:
                second = [record.value or b"" for record in store.topic("copy").records()]
                lags = store.topic("orders").readers()["copier"]

        assert sorted(first) == numbers(0, 100)
        assert sorted(second) == numbers(0, 110)
        assert sum(lag.committed for lag in lags) >= 100
        assert not list((path / "staging").rglob("*.q"))


@contextmanager
def serving(path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own."""
    words = [*COMMAND, "serve", str(path), "--port", str(port)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
