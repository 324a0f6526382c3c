"""Beyond one machine: a master and two workers of Spark's own cluster manager, and a driver."""

import contextlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Event
from segue.spark.java import java_home
from tests.spark.cluster_driver import OFFSETS_PER_BATCH, SOURCE, STREAMED, WRITTEN
from tests.spark.processes import run, started
from tests.waiting import wait_until

ROWS: Final = 1_000
PARTITIONS: Final = 4
WORKERS: Final = 2
MASTER_URL: Final = re.compile(r"spark://127\.0\.0\.1:\d+")

# Six JVMs. No limit for the whole test: every wait has one.
pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


def environment(root: Path) -> dict[str, str]:
    """Return the environment of every part of the cluster."""
    home = java_home(os.environ)
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:TieredStopAtLevel=1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(root / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({} if home is None else {"JAVA_HOME": str(home)}),
    }


def spark_class() -> str:
    """Return the program that starts parts of Spark, as pip installs it."""
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def said(log: Path, pattern: re.Pattern[str], count: int = 1) -> list[str]:
    """Wait until a log matches a pattern `count` times, and return the matches."""

    def found() -> list[str]:
        return pattern.findall(log.read_text(errors="replace"))

    wait_until(lambda: len(found()) >= count, f"{pattern.pattern!r} in {log}")
    return found()


@pytest.fixture
def cluster(scratch: Path) -> Iterator[str]:
    """The URL of a master with two workers, on this machine but as strangers to one another."""
    package = "org.apache.spark.deploy"
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    log = scratch / "master.log"
    with contextlib.ExitStack() as parts:
        master = (spark_class(), f"{package}.master.Master", *place)
        parts.enter_context(started(log, master, environment(scratch)))
        url = said(log, MASTER_URL)[0]
        for number in range(WORKERS):
            directory = scratch / f"worker_{number}"
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory))
            worker = (spark_class(), f"{package}.worker.Worker", *place, *options, url)
            worker_log = scratch / f"worker_{number}.log"
            parts.enter_context(started(worker_log, worker, environment(scratch)))
        said(log, re.compile("Registering worker"), WORKERS)
        yield url


def test_a_cluster_reads_writes_and_streams_with_the_code_of_one_machine(
    cluster: str, scratch: Path, store_path: Path
) -> None:
    """Every row once, as a batch and as a stream, and both workers have had their part."""
    with segue.open(store_path, sync="os") as store:
        for name in (SOURCE, WRITTEN, STREAMED):
            store.topic(name, partitions=PARTITIONS)
        events = [Event(value=f"{number // 2}", key=f"{number}") for number in range(ROWS)]
        store.topic(SOURCE).append_many(events)
    command = (sys.executable, "-m", "tests.spark.cluster_driver")
    code, text = run(
        scratch / "driver.log",
        (*command, cluster, str(store_path), str(scratch)),
        environment(scratch),
    )

    assert code == 0, text[-4000:]
    found = json.loads(next(line for line in text.splitlines() if line.startswith('{"batches"')))
    assert sum(found["batches"]) == ROWS
    assert max(found["batches"]) <= OFFSETS_PER_BATCH
    with segue.open(store_path, sync="os") as store:
        expected = Counter(event.value for event in events)
        for name in (WRITTEN, STREAMED):
            records = list(store.topic(name).records())
            values = Counter((record.value or b"").decode() for record in records)
            assert values == expected, name
            writers = {(record.key or b"").decode() for record in records}
            assert len(writers) == WORKERS, name
