"""Beyond one machine: a master and two workers of Spark's own cluster manager, and a driver."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Event
from segue.spark.java import java_home
from tests.spark.cluster_driver import OFFSETS_PER_BATCH, SOURCE, STREAMED, WRITTEN
from tests.spark.deadly_source import kill_session, session_pids

ROWS: Final = 1_000
PARTITIONS: Final = 4
START_SECONDS_MAX: Final = 60
DRIVER_SECONDS_MAX: Final = 220
WORKERS: Final = 2
MASTER_URL: Final = re.compile(r"spark://127\.0\.0\.1:\d+")


@contextlib.contextmanager
def started(log: Path, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program that ends with the block, whatever it has started with it."""
    home = java_home(os.environ)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false -XX:TieredStopAtLevel=1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(log.parent / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({} if home is None else {"JAVA_HOME": str(home)}),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        while session_pids(process.pid):
            kill_session(process.pid)
        process.wait()


def spark_class() -> str:
    """Return the program that starts parts of Spark, as pip installs it."""
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def said(log: Path, pattern: re.Pattern[str], count: int = 1) -> list[str]:
    """Wait until a program has said something so many times, and return it."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        found = pattern.findall(log.read_text(errors="replace"))
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{pattern.pattern!r} is not in {log.read_text(errors='replace')[-4000:]}")


@pytest.fixture
def cluster(scratch: Path) -> Iterator[str]:
    """The URL of a master with two workers, on this machine but as strangers to one another."""
    package = "org.apache.spark.deploy"
    place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    log = scratch / "master.log"
    with contextlib.ExitStack() as parts:
        parts.enter_context(started(log, spark_class(), f"{package}.master.Master", *place))
        url = said(log, MASTER_URL)[0]
        for number in range(WORKERS):
            directory = scratch / f"worker_{number}"
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory))
            parts.enter_context(
                started(
                    scratch / f"worker_{number}.log",
                    *(spark_class(), f"{package}.worker.Worker", *place, *options, url),
                )
            )
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
    log = scratch / "driver.log"
    command = (sys.executable, "-m", "tests.spark.cluster_driver")
    with started(log, *command, cluster, str(store_path), str(scratch)) as driver:
        code = driver.wait(DRIVER_SECONDS_MAX)

    text = log.read_text(errors="replace")
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
