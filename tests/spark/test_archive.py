"""The job archive, and archive and live records as one table: everything once, whatever happens."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import segue
from segue.errors import (
    CorruptManifest,
    InvalidArgument,
    LogLocked,
    LogNotFound,
    OffsetTrimmed,
    TopicNotFound,
)
from segue.spark import table
from segue.spark.jobs import archive as job
from segue.spark.jobs.archive import ArchiveReport, archive
from segue.spark.jobs.histories import TopicHistory
from segue.spark.jobs.manifests import Archive
from segue.stores.opening import open_directory

SEGMENT_BYTES = 16 << 10
BIG = b"x" * 400
Rows = Counter[tuple[int, int, bytes | None]]


@pytest.fixture
def to(scratch: Path) -> Path:
    """A directory for an archive, which nobody has made yet."""
    return scratch / "an archive [1] 5%"


def make(path: Path, partitions: int = 2) -> None:
    with segue.open(path) as store:
        store.topic(
            "orders", partitions=partitions, rules=segue.TopicRules(segment_bytes=SEGMENT_BYTES)
        )


def fill(path: Path, names: Iterable[str]) -> None:
    with segue.open(path, sync="os") as store:
        topic = store.topic("orders")
        topic.append_many(
            [segue.Event(value=f"{name} ".encode() + BIG, key=name.encode()) for name in names]
        )


def held(path: Path) -> Rows:
    """What the topic holds now."""
    with segue.open(path) as store:
        return Counter(
            (record.partition, record.offset, record.value)
            for record in store.topic("orders").records()
        )


def archived(to: Path) -> Rows:
    """What is in the files of an archive, by any reader of Parquet."""
    rows: Rows = Counter()
    for path in to.glob("date=*/*.parquet"):
        read = pyarrow.parquet.ParquetFile(path).read(["partition", "offset", "value"])
        rows.update((row["partition"], row["offset"], row["value"]) for row in read.to_pylist())
    return rows


def shown(spark: SparkSession, path: Path, to: Path | None) -> Rows:
    """What the table of both has."""
    rows = table(
        spark,
        str(path),
        "orders",
        archive=None if to is None else str(to),
        columns=["partition", "offset", "value"],
    )
    return Counter((row.partition, row.offset, bytes(row.value)) for row in rows.collect())


def run(spark: SparkSession, path: Path, to: Path, *, clean: bool = False) -> ArchiveReport:
    return archive(spark, str(path), topic="orders", to=str(to), clean=clean)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


# Topics ----------------------------------------------------------------------------------------


def test_each_run_archives_what_came_since_the_last(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    """Two runs with growth in between, partitions among it, and one with nothing to do."""
    make(store_path)
    fill(store_path, names("a", 100))
    first = run(spark, store_path, to)
    with segue.open(store_path) as store:
        store.topic("orders").grow(4)
    fill(store_path, names("b", 100))
    second = run(spark, store_path, to)
    third = run(spark, store_path, to)

    assert (first.run, first.records) == (1, 100)
    assert (second.run, second.records) == (2, 100)
    assert set(second.ranges) == {"0", "1", "2", "3"}
    assert all(second.ranges[label][0] == stop for label, (_, stop) in first.ranges.items())
    assert (third.run, third.records, third.files, third.ranges) == (None, 0, 0, {})
    assert first.size_bytes == sum(path.stat().st_size for path in to.glob("date=*/000001-*"))
    assert archived(to) == held(store_path)


def test_an_archive_has_all_that_a_record_has(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    """By date in UTC, whatever the session's time zone; tombstones and headers among it."""
    late = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
    make(store_path, partitions=1)
    with segue.open(store_path) as store:
        topic = store.topic("orders")
        topic.append(b"one", key=b"k", headers={"h": "v"}, timestamp=late)
        topic.append(None, key=b"k", timestamp=late + timedelta(hours=1))
        topic.append(b"old", timestamp=datetime(1969, 12, 31, 12, tzinfo=UTC))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        run(spark, store_path, to)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))

    rows = sorted(
        (
            row
            for path in to.glob("date=*/*.parquet")
            for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()
        ),
        key=lambda row: row["offset"],
    )
    assert sorted(path.name for path in to.glob("date=*")) == [
        "date=1969-12-31",
        "date=2026-01-31",
        "date=2026-02-01",
    ]
    assert rows[0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": late,
        "key": b"k",
        "value": b"one",
        "headers": [{"key": "h", "value": b"v"}],
    }
    assert (rows[1]["value"], rows[2]["key"]) == (None, None)


def test_archive_and_topic_are_one_table_also_once_retention_has_deleted(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    """Every record once: archived and deleted, archived and still there, and live."""
    make(store_path)
    before = shown(spark, store_path, to)
    fill(store_path, names("a", 300))
    all_of_it = held(store_path)
    unarchived = shown(spark, store_path, to)
    report = run(spark, store_path, to, clean=True)
    with segue.open(store_path) as store:
        store.topic("orders").grow(3)
    fill(store_path, names("b", 50))
    all_of_it |= held(store_path)

    assert before == Counter()
    assert len(unarchived) == 300
    assert report.freed_segments > 0
    assert report.freed_bytes > 0
    assert min(offset for partition, offset, _ in held(store_path) if partition == 0) > 0
    assert shown(spark, store_path, to) == all_of_it
    assert set(all_of_it.values()) == {1}


def test_the_table_has_the_columns_that_are_asked_for(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    make(store_path, partitions=1)
    fill(store_path, ["a"])
    run(spark, store_path, to)
    fill(store_path, ["b"])
    chosen = table(spark, str(store_path), "orders", archive=str(to), columns=["offset", "key"])
    usual = table(spark, str(store_path), "orders", archive=str(to))

    assert chosen.columns == ["offset", "key"]
    assert sorted((row.offset, bytes(row.key)) for row in chosen.collect()) == [
        (0, b"a"),
        (1, b"b"),
    ]
    assert usual.columns == ["key", "value", "topic", "partition", "offset", "timestamp"]
    with pytest.raises(InvalidArgument, match="there is no column nope"):
        table(spark, str(store_path), "orders", columns=["nope"])


def test_retention_waits_for_the_archive(spark: SparkSession, store_path: Path, to: Path) -> None:
    """The reader is at what is archived, never ahead."""
    make(store_path)
    fill(store_path, names("a", 200))
    report = run(spark, store_path, to)
    fill(store_path, names("b", 200))

    with segue.open(store_path) as store:
        topic = store.topic("orders")
        topic.clean()
        lags = {lag.partition: lag for lag in topic.readers()["archive"]}
    assert {str(each): lag.committed for each, lag in lags.items()} == {
        label: stop for label, (_, stop) in report.ranges.items()
    }
    assert all(lag.trimmed == 0 for lag in lags.values())


def test_until_leaves_what_came_later(spark: SparkSession, store_path: Path, to: Path) -> None:
    make(store_path, partitions=1)
    fill(store_path, names("a", 5))
    past = datetime.now(UTC) - timedelta(hours=1)
    early = archive(spark, str(store_path), topic="orders", to=str(to), until=past)
    all_of_it = archive(
        spark, str(store_path), topic="orders", to=str(to), until=past + timedelta(hours=2)
    )

    assert (early.run, all_of_it.records) == (None, 5)
    with pytest.raises(InvalidArgument, match="time zone"):
        archive(spark, str(store_path), topic="orders", to=str(to), until=past.replace(tzinfo=None))


# Kills -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a killed process would be to itself."""


@pytest.mark.parametrize(
    ("owner", "step", "has_happened"),
    [
        (job, "_write", False),
        (Archive, "take_in", False),
        (Archive, "add", True),
        (TopicHistory, "follow", True),
        (TopicHistory, "clean", True),
    ],
)
def test_a_run_that_is_killed_after_any_step_leaves_no_duplicate_and_no_gap(
    spark: SparkSession,
    store_path: Path,
    to: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    step: str,
    has_happened: bool,
) -> None:
    """The next run goes on, and what was left of the files is gone."""
    make(store_path)
    fill(store_path, names("a", 150))
    all_of_it = held(store_path)
    with monkeypatch.context() as patched:
        original = getattr(owner, step)

        def killed(*arguments: object, **named: object) -> object:
            original(*arguments, **named)
            raise Killed

        patched.setattr(owner, step, killed)
        with pytest.raises(Killed):
            run(spark, store_path, to, clean=True)
    seen = shown(spark, store_path, to)
    fill(store_path, names("b", 10))
    all_of_it |= held(store_path)
    second = run(spark, store_path, to, clean=True)

    assert len(seen) == 150
    assert set(seen.values()) == {1}
    assert second.records == (10 if has_happened else 160)
    assert archived(to) == all_of_it
    assert shown(spark, store_path, to) == all_of_it


def test_a_run_killed_before_its_manifest_does_not_move_the_reader(
    spark: SparkSession, store_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that retention cannot delete what is in no archive."""
    make(store_path)
    fill(store_path, names("a", 150))

    def killed(place: Archive, manifest: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "add", killed)
        with pytest.raises(Killed):
            run(spark, store_path, to)

    with segue.open(store_path) as store:
        topic = store.topic("orders")
        assert topic.clean().count == 0
        assert [lag.committed for lag in topic.readers()["archive"]] == [0, 0]


# Refusals --------------------------------------------------------------------------------------


def test_a_second_run_at_the_same_time_is_refused(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    make(store_path)
    fill(store_path, ["a"])

    with Archive(to).alone(), pytest.raises(LogLocked, match="another run"):
        run(spark, store_path, to)
    assert run(spark, store_path, to).records == 1


def test_two_archives_do_not_share_a_reader(
    spark: SparkSession, store_path: Path, to: Path, scratch: Path
) -> None:
    """Else retention would delete for one what the other has not archived."""
    make(store_path, partitions=1)
    fill(store_path, ["a"])
    run(spark, store_path, to)
    other = str(scratch / "other")

    with pytest.raises(InvalidArgument, match="a reader of its own"):
        archive(spark, str(store_path), topic="orders", to=other)
    report = archive(spark, str(store_path), topic="orders", to=other, reader="other")
    assert report.records == 1


def test_an_archive_is_of_one_topic(spark: SparkSession, store_path: Path, to: Path) -> None:
    make(store_path, partitions=1)
    fill(store_path, ["a"])
    run(spark, store_path, to)
    with segue.open(store_path) as store:
        store.topic("others", partitions=1)

    with pytest.raises(InvalidArgument, match="archive of topic orders, not of topic others"):
        archive(spark, str(store_path), topic="others", to=str(to))
    with pytest.raises(InvalidArgument, match="archive of topic orders"):
        table(spark, str(store_path), "others", archive=str(to))


def test_what_retention_deleted_before_it_was_archived_is_an_error(
    spark: SparkSession, store_path: Path, to: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the job unless it may go on, and of a table that is to be whole."""
    make(store_path, partitions=1)
    fill(store_path, names("a", 50))
    run(spark, store_path, to)
    fill(store_path, names("b", 300))
    with segue.open(store_path) as store:
        store.topic("orders").clean(keep_bytes=SEGMENT_BYTES)
    left = len(held(store_path))

    with pytest.raises(OffsetTrimmed):
        run(spark, store_path, to)
    with pytest.raises(OffsetTrimmed):
        table(spark, str(store_path), "orders", archive=str(to))
    report = archive(spark, str(store_path), topic="orders", to=str(to), skip_trimmed=True)
    assert report.records == left
    assert "has been trimmed" in caplog.text


def test_what_is_not_there_is_said_and_nothing_is_made(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    with pytest.raises(LogNotFound):
        run(spark, store_path, to)
    make(store_path)
    with pytest.raises(TopicNotFound):
        archive(spark, str(store_path), topic="nope", to=str(to))
    with pytest.raises(InvalidArgument, match="there is no queue nope"):
        archive(spark, str(store_path), queue="nope", to=str(to))
    with pytest.raises(InvalidArgument, match="a topic or a queue"):
        archive(spark, str(store_path), to=str(to))
    with pytest.raises(TopicNotFound):
        table(spark, str(store_path), "nope")
    assert not to.exists()


def test_a_manifest_that_is_missing_or_damaged_is_an_error(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    """Rather than a table without some of its records."""
    make(store_path, partitions=1)
    for name in "ab":
        fill(store_path, [name])
        run(spark, store_path, to)
    manifest = to / "_segue" / "000001.json"
    kept = manifest.read_text()
    manifest.unlink()

    with pytest.raises(CorruptManifest, match="missing"):
        table(spark, str(store_path), "orders", archive=str(to))
    manifest.write_text(kept.replace("orders", "0rders"))
    with pytest.raises(CorruptManifest, match="checksum"):
        run(spark, store_path, to)


# Queues ----------------------------------------------------------------------------------------


def ids(to: Path) -> Counter[str]:
    return Counter(
        row["message_id"]
        for path in to.glob("date=*/*.parquet")
        for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()
    )


def test_of_a_queue_what_is_settled_is_archived_and_the_rest_later(
    spark: SparkSession, store_path: Path, to: Path
) -> None:
    """Once each, in whatever order they are settled: leased, delayed and dead ones wait."""
    past = datetime.now(UTC) - timedelta(hours=1)
    with segue.open(store_path, sync="os") as store:
        queue = store.queue("jobs", rules=segue.QueueRules(keep_seconds=3600))
        pushed = [queue.push(f"{number}".encode()) for number in range(20)]
        pushed.append(queue.push(b"urgent", priority=3, key="k", headers={"h": "v"}))
        jobs = queue.lease_many(11, ttl=3600)
        queue.ack_many(jobs[:8])
        queue.nack(jobs[8], outcome="dead")
        queue.nack(jobs[9], delay=3600)
        nothing = archive(spark, str(store_path), queue="jobs", to=str(to), until=past)
        first = archive(spark, str(store_path), queue="jobs", to=str(to))
        after_first = ids(to)
        queue.ack(jobs[10])
        queue.discard()
        queue.ack_many(queue.lease_many(3, ttl=3600))
        second = archive(spark, str(store_path), queue="jobs", to=str(to))
        third = archive(spark, str(store_path), queue="jobs", to=str(to))
        settled = {job.id for job in (*jobs[:9], jobs[10])}

    assert len(pushed) == 21
    assert nothing.run is None
    assert after_first == Counter(job.id for job in jobs[:8])
    assert (first.records, second.records, third.run) == (8, 5, None)
    assert set(ids(to).values()) == {1}
    assert settled <= set(ids(to))
    assert jobs[9].id not in ids(to)


def test_what_a_queue_deletes_while_it_is_archived_is_an_error(
    spark: SparkSession, store_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has not happened, and the next one takes what is left."""
    with open_directory(store_path, sync="os") as store:
        rules = segue.QueueRules(keep_seconds=3600, segment_items=10)
        queue = store.queue("jobs", rules=rules)
        queue.push_many([b"job"] * 105)
        queue.pop_many(95)

        def written(*arguments: object) -> None:
            store._queue_core("jobs").lane(0).trim(50)

        with monkeypatch.context() as patched:
            patched.setattr(job, "_write", written)
            with pytest.raises(OffsetTrimmed):
                archive(spark, str(store_path), queue="jobs", to=str(to))
        report = archive(spark, str(store_path), queue="jobs", to=str(to))

    assert (report.run, report.records, report.ranges) == (1, 45, {"0": (50, 95)})


def test_cleaning_is_not_for_queues(spark: SparkSession, store_path: Path, to: Path) -> None:
    with pytest.raises(InvalidArgument, match="by its own rules"):
        archive(spark, str(store_path), queue="jobs", to=str(to), clean=True)
