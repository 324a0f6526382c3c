"""The job replay: files to topics and queues, all of them or none, and once if asked."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import segue
from segue.errors import InvalidArgument, LogNotFound, SegueError, TopicNotFound
from segue.spark.jobs.archive import archive
from segue.spark.jobs.manifests import Archive
from segue.spark.jobs.replay import replay

MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def store(store_path: Path) -> str:
    """A store with a topic of two partitions and a queue."""
    with segue.open(store_path) as opened:
        opened.topic("orders", partitions=2)
        opened.queue("jobs").push(b"first")
        opened.queue("jobs").pop()
    return str(store_path)


def records(store: str, name: str = "orders") -> list[segue.TopicRecord]:
    with segue.open(store) as opened:
        return list(opened.topic(name).records())


def messages(store: str) -> list[segue.Message]:
    with segue.open(store) as opened:
        return opened.queue("jobs").pop_many(1000)


def lines(path: Path, *rows: Mapping[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# Topics ----------------------------------------------------------------------------------------


def test_columns_of_parquet_are_taken_as_they_are(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    """Key, value, headers, partition and timestamp; what a record has no place for is left out."""
    path = scratch / "orders [1].parquet"
    pyarrow.parquet.write_table(
        pa.table(
            {
                "key": pa.array([b"a", None]),
                "value": pa.array([b"\xff", None]),
                "partition": pa.array([1, 1], pa.int64()),
                "timestamp": pa.array([MOMENT, MOMENT], pa.timestamp("us", tz="UTC")),
                "headers": pa.array([[("h", "v")], []], pa.map_(pa.string(), pa.string())),
                "more": pa.array([1, 2]),
            }
        ),
        path,
    )
    report = replay(spark, str(path), url=store, topic="orders")

    found = records(store)
    assert (report.records, report.is_new, set(report.columns)) == (
        2,
        True,
        {"key", "value", "partition", "timestamp", "headers"},
    )
    assert [(each.key, each.value, each.partition, each.timestamp) for each in found] == [
        (b"a", b"\xff", 1, MOMENT),
        (None, None, 1, MOMENT),
    ]
    assert dict(found[0].headers) == {"h": "v"}


def test_rows_of_json_without_a_value_become_json(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    """The key and the timestamp are columns of the user's choice."""
    path = lines(
        scratch / "orders.jsonl",
        {"id": 7, "at": "2026-01-31T12:00:00Z", "lines": [{"item": "x"}]},
        {"id": 8, "at": "2026-01-31T12:00:00Z", "value.of": "y"},
    )
    report = replay(
        spark, path, url=store, topic="orders", columns={"key": "id", "timestamp": "at"}
    )

    found = {record.key: record for record in records(store)}
    assert report.columns["value"] == "to_json(struct(*))"
    assert json.loads(found[b"7"].value or b"") == {
        "id": 7,
        "at": "2026-01-31T12:00:00Z",
        "lines": [{"item": "x"}],
    }
    assert json.loads(found[b"8"].value or b"")["value.of"] == "y"
    assert found[b"7"].timestamp == MOMENT


def test_json_with_a_value_may_be_one_list_and_have_headers(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    path = scratch / "list.json"
    path.write_text(
        json.dumps(
            [
                {"value": {"a": 1}, "key": "k", "headers": {"x": "1", "y": "2"}},
                {"value": {"a": 2}, "key": "l", "headers": {"x": "1"}},
            ],
            indent=2,
        )
    )
    replay(spark, str(path), url=store, topic="orders")

    found = {record.key: record for record in records(store)}
    assert found[b"k"].value == b'{"a":1}'
    assert (dict(found[b"k"].headers), dict(found[b"l"].headers)) == (
        {"x": "1", "y": "2"},
        {"x": "1"},
    )


def test_csv_has_a_line_of_names(spark: SparkSession, store: str, scratch: Path) -> None:
    """Quotes may hold anything; what is a number or a time there is read as one."""
    path = scratch / "orders.csv"
    path.write_text('value,partition,timestamp\n"a, ""b""\nc",1,2026-01-31T12:00:00Z\nd,0,\n')
    replay(spark, str(path), url=store, topic="orders")

    found = {record.partition: record for record in records(store)}
    assert found[1].value == b'a, "b"\nc'
    assert found[1].timestamp == MOMENT
    assert found[0].value == b"d"


def test_a_name_makes_two_runs_count_once(spark: SparkSession, store: str, scratch: Path) -> None:
    """Without one each run writes again."""
    path = lines(scratch / "orders.json", *({"id": number} for number in range(30)))
    first = replay(spark, path, url=store, topic="orders", write_id="january")
    second = replay(spark, path, url=store, topic="orders", write_id="january")
    third = replay(spark, path, url=store, topic="orders", limit=5)

    assert (first.records, first.is_new) == (30, True)
    assert (second.records, second.is_new) == (0, False)
    assert (third.records, third.is_new) == (5, True)
    assert len(records(store)) == 35


def test_of_an_archive_only_what_counts_is_replayed(
    spark: SparkSession, store: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run left in the directory is not."""
    to = str(scratch / "archive")
    with segue.open(store) as opened:
        opened.topic("again", partitions=1)
        opened.topic("orders").append(b"one", key=b"k", headers={"h": "v"}, partition=1)
    archive(spark, store, topic="orders", to=to)
    with segue.open(store) as opened:
        opened.topic("orders").append(b"two")

    def killed(place: Archive, manifest: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, store, topic="orders", to=to)
    with pytest.raises(InvalidArgument, match="there is no partition 1"):
        replay(spark, to, url=store, topic="again")
    report = replay(spark, to, url=store, topic="again", by_key=True)

    (found,) = records(store, "again")
    assert len(list(Path(to).glob("date=*/*.parquet"))) == 2
    assert report.records == 1
    assert (found.key, found.value, dict(found.headers)) == (b"k", b"one", {"h": "v"})


# Queues ----------------------------------------------------------------------------------------


def test_a_queue_takes_priorities_delays_and_keys(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    path = lines(
        scratch / "jobs.ndjson",
        {"value": "low", "priority": 3},
        {"value": "high", "priority": 0, "key": "k"},
        {"value": "later", "delay": 3600},
    )
    report = replay(spark, path, url=store, queue="jobs")

    taken = messages(store)
    assert report.records == 3
    assert [(each.body, each.priority, each.key) for each in taken] == [
        (b"high", 0, "k"),
        (b"low", 3, None),
    ]
    with segue.open(store) as opened:
        assert opened.queue("jobs").count().delayed == 1


def test_a_directory_of_files_goes_to_a_queue_once(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    directory = scratch / "jobs"
    directory.mkdir()
    (directory / "_SUCCESS").write_text("")
    for number in range(2):
        lines(directory / f"{number}.json", {"job": number, "urgency": 1})
    for _ in range(2):
        replay(
            spark,
            str(directory),
            url=store,
            queue="jobs",
            columns={"priority": "urgency"},
            write_id="jobs",
        )

    assert Counter((json.loads(each.body)["job"], each.priority) for each in messages(store)) == {
        (0, 1): 1,
        (1, 1): 1,
    }


# Refusals --------------------------------------------------------------------------------------


def test_what_cannot_be_replayed_is_said_and_nothing_is_written(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    good = lines(scratch / "good.json", {"id": 1})
    broken = scratch / "broken.json"
    broken.write_text('{"id": 1}\n{"id": \n')
    wrong = scratch / "wrong.parquet"
    wrong.write_bytes(b"this is no parquet at all")
    uneven = scratch / "uneven.csv"
    uneven.write_text("id,name\n1,x\n2\n")
    text = scratch / "notes.txt"
    text.write_text("hello\n")

    with pytest.raises(FileNotFoundError):
        replay(spark, str(scratch / "nope.json"), url=store, topic="orders")
    with pytest.raises(TopicNotFound):
        replay(spark, good, url=store, topic="nope")
    with pytest.raises(InvalidArgument, match="there is no queue nope"):
        replay(spark, good, url=store, queue="nope")
    with pytest.raises(LogNotFound):
        replay(spark, good, url=str(scratch / "nowhere"), topic="orders")
    with pytest.raises(InvalidArgument, match="there is no column nope; there are id"):
        replay(spark, good, url=store, topic="orders", columns={"key": "nope"})
    with pytest.raises(InvalidArgument, match="a topic has no priority"):
        replay(spark, good, url=store, topic="orders", columns={"priority": "id"})
    with pytest.raises(InvalidArgument, match="cannot tell from its name"):
        replay(spark, str(text), url=store, topic="orders")
    with pytest.raises(InvalidArgument, match="a topic or a queue"):
        replay(spark, good, url=store)
    with pytest.raises(InvalidArgument, match="json cannot be read as json"):
        replay(spark, str(broken), url=store, topic="orders")
    with pytest.raises(SegueError, match="CSV"):
        replay(spark, str(uneven), url=store, topic="orders")
    with pytest.raises(InvalidArgument, match="not a Parquet file"):
        replay(spark, str(wrong), url=store, topic="orders")
    assert records(store) == []
    assert not (scratch / "nowhere").exists()


def test_a_row_that_does_not_fit_stops_all_of_them(
    spark: SparkSession, store: str, scratch: Path
) -> None:
    """Also the rows of other files: a replay is whole or it is not."""
    path = lines(scratch / "orders.json", {"value": "good"}, {"value": "bad", "partition": 9})

    with pytest.raises(InvalidArgument, match="there is no partition 9"):
        replay(spark, path, url=store, topic="orders")
    assert records(store) == []
