"""`segue spark archive` and `replay`: answers, errors, exit codes; and the session they run in."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import segue
from segue.cli.exits import ExitCode
from segue.cli.spark import running
from segue.errors import CorruptRecord, InvalidArgument, OffsetTrimmed, SegueError
from segue.spark.jobs.manifests import Archive
from segue.spark.jobs.running import segue_error
from tests.integration.cli_support import COMMAND, Answer, ask
from tests.waiting import wait_until


@pytest.fixture
def store(store_path: Path) -> Path:
    """A store with a topic of one partition and a queue."""
    with segue.open(store_path) as opened:
        opened.topic("orders", partitions=1).append_many([b"a", b"b", b"c"])
        opened.queue("jobs", rules=segue.QueueRules(keep_seconds=3600)).push(b"job")
        opened.queue("jobs").pop()
    return store_path


def spark_verb(verb: str, *words: str | Path) -> Answer:
    return ask("spark", verb, *words)


def test_archive_tells_what_it_did(spark: SparkSession, store: Path, scratch: Path) -> None:
    """As lines, and as JSON; the session that was there is used and stays."""
    to = scratch / "archive"
    first = spark_verb("archive", store, "orders", "--to", to, "--clean")
    second = spark_verb("archive", store, "orders", "--to", to, "--json")

    assert (first.code, first.err) == (0, "")
    assert ["records", "3"] in first.fields
    assert ["range", "0", "0", "3"] in first.fields
    assert (second.code, second.err) == (0, "")
    assert (second.json["run"], second.json["records"], second.json["ranges"]) == (None, 0, [])
    assert spark.range(3).count() == 3


def test_archive_takes_the_settled_messages_of_a_queue(
    spark: SparkSession, store: Path, scratch: Path
) -> None:
    answer = spark_verb("archive", store, "jobs", "--queue", "--to", scratch / "jobs", "--json")

    assert (answer.code, answer.err) == (0, "")
    assert answer.json["records"] == 1
    assert answer.json_rows["ranges"] == [{"priority": "0", "from": 0, "up_to": 1}]


def test_replay_tells_what_it_did_and_does_it_once(
    spark: SparkSession, store: Path, scratch: Path
) -> None:
    path = scratch / "more.csv"
    path.write_text("id,name\n1,x\n2,y\n")
    words = (path, store, "--topic", "orders", "--key", "id", "--once", "more")
    first = spark_verb("replay", *words)
    second = spark_verb("replay", *words, "--json")

    assert (first.code, first.err) == (0, "")
    assert ["records", "2"] in first.fields
    assert ["column", "key", "id"] in first.fields
    assert (second.json["records"], second.json["is_new"]) == (0, False)
    with segue.open(store) as opened:
        assert {record.key for record in opened.topic("orders").records()} == {None, b"1", b"2"}


def test_errors_have_their_exit_codes(spark: SparkSession, store: Path, scratch: Path) -> None:
    """Also those that come out of a task."""
    to, path = scratch / "archive", scratch / "rows.jsonl"
    path.write_text('{"value": "x", "partition": 7}\n')
    with Archive(to).alone():
        busy = spark_verb("archive", store, "orders", "--to", to)
    unfit = spark_verb("replay", path, store, "--topic", "orders", "--json")
    column = spark_verb("replay", path, store, "--topic", "orders", "--key", "nope")

    assert (busy.code, busy.err) == (
        ExitCode.LOCKED,
        f"segue: another run is archiving to {to}\n",
    )
    assert unfit.code == ExitCode.USAGE
    assert unfit.err == (
        '{"error": "InvalidArgument", "message": "there is no partition 7, only 1"}\n'
    )
    assert (column.code, column.err) == (
        ExitCode.USAGE,
        "segue: there is no column nope; there are partition, value\n",
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("archive", "STORE", "nope", "--to", "TO"), ExitCode.NOT_FOUND),
        (("archive", "STORE", "nope", "--queue", "--to", "TO"), ExitCode.NOT_FOUND),
        (("archive", "TO", "orders", "--to", "TO"), ExitCode.NOT_FOUND),
        (("archive", "STORE", "orders"), ExitCode.USAGE),
        (("archive", "STORE", "orders", "--to", "TO", "--until", "soon"), ExitCode.USAGE),
        (("archive", "STORE", "orders", "--to", "TO", "--config", "nope"), ExitCode.USAGE),
        (("replay", "TO", "STORE", "--topic", "orders"), ExitCode.NOT_FOUND),
        (("replay", "STORE", "STORE", "--topic", "nope"), ExitCode.NOT_FOUND),
        (("replay", "STORE", "STORE", "--queue", "nope"), ExitCode.NOT_FOUND),
        (("replay", "STORE", "STORE"), ExitCode.USAGE),
        (("replay", "STORE", "STORE", "--topic", "orders", "--queue", "jobs"), ExitCode.USAGE),
    ],
)
def test_what_can_be_told_without_spark_is(
    store: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: ExitCode,
) -> None:
    """Starting it takes long; nothing is made either."""

    def no_session(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(running, "_started", no_session)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    to = scratch / "archive"
    places = {"STORE": store, "TO": to}
    answer = spark_verb(words[0], *(places.get(word, word) for word in words[1:]))

    assert answer.code == code
    assert len(answer.err.splitlines()) == 1
    assert not to.exists()


def test_without_the_extra_it_says_what_to_install(store: Path, scratch: Path) -> None:
    """In one line, as any error."""
    without = (
        "import sys; sys.modules['pyspark'] = None; "
        "from segue.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ("spark", "archive", str(store), "orders", "--to", str(scratch / "archive"))
    ended = subprocess.run(
        [sys.executable, "-c", without, *words], capture_output=True, text=True, check=False
    )

    assert ended.returncode == ExitCode.STORAGE
    assert ended.stderr == 'segue: Spark needs pyspark: pip install "segue[spark]"\n'


@pytest.mark.long
def test_a_session_of_its_own_says_nothing_and_ends_with_the_verb(
    store: Path, scratch: Path
) -> None:
    """Not even when a task fails: Spark's log is not what a pipe wants to read."""
    path = scratch / "rows.jsonl"
    path.write_text('{"value": "x", "partition": 7}\n')
    ended = subprocess.run(
        [*COMMAND, "spark", "replay", str(path), str(store), "--topic", "orders"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(scratch / "local")},
    )

    assert ended.stderr == "segue: there is no partition 7, only 1\n"
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, "")


def test_what_spark_says_as_it_starts_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def noisy(*_: object, config: dict[str, str]) -> dict[str, str]:
        os.write(2, b"WARN NativeCodeLoader\n")
        return config

    monkeypatch.setattr(sys.modules["segue.spark.session"], "session", noisy)
    config: object = running._started("local[1]", {})
    os.write(2, b"said afterwards\n")

    assert capfd.readouterr().err == "said afterwards\n"
    assert isinstance(config, dict)
    assert config["spark.log.level"] == "ERROR"


def test_a_bar_follows_the_tasks_that_are_done(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal; it never runs back, and never past its end."""
    steps: list[int] = []

    @contextmanager
    def recorded(doing: str, total: int) -> Iterator[Callable[[int], None]]:
        assert (doing, total) == ("counting", running.BAR_STEPS)
        yield steps.append

    monkeypatch.setattr(running, "progress", recorded)
    monkeypatch.setattr(running, "POLL_SECONDS", 0.005)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with running.spark_session("local[2]", ["spark.sql.shuffle.partitions=3"], doing="counting"):
        spark.range(100, numPartitions=5).selectExpr("sum(hash(id))").collect()
        wait_until(lambda: steps, "a step of the bar")
    spark.conf.set("spark.sql.shuffle.partitions", "2")

    assert steps
    assert all(step > 0 for step in steps)
    assert sum(steps) <= running.LAST_STEP


# What becomes of Spark's errors ----------------------------------------------------------------


def test_the_bottom_of_an_error_is_what_is_raised() -> None:
    """Of its class if it is ours, whatever that class is made with."""
    trace = (
        "[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in read\n'
        "{}\n SQLSTATE: 38000\n\tat org.apache.spark.Whatever(Whatever.scala:1)\n"
    )
    trimmed = segue_error(Exception(trace.format("segue.errors.OffsetTrimmed: offset 3 is gone")))
    corrupt = segue_error(Exception(trace.format("segue.errors.CorruptRecord: damaged: at byte 7")))
    other = segue_error(Exception(trace.format("ValueError: no: such value")))
    java = segue_error(
        Exception(
            "o1.save\n: org.SparkException: Job aborted\nCaused by: java.io.IOException: full"
        )
    )

    assert (type(trimmed), str(trimmed)) == (OffsetTrimmed, "offset 3 is gone")
    assert (type(corrupt), str(corrupt)) == (CorruptRecord, "damaged: at byte 7")
    assert (type(other), str(other)) == (SegueError, "ValueError: no: such value")
    assert str(java) == "IOException: full"
    assert not isinstance(java, InvalidArgument)
