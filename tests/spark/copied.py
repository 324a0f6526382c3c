"""A stream that copies a topic while processes are killed, and the check that nothing is lost."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pyspark.errors import PySparkException

import segue
from segue import Event
from tests.crash.queue_story import check_logs
from tests.redis_server import shared_server
from tests.spark.deadly_redis import DeadlyRedisSource
from tests.spark.deadly_source import (
    KILL_FILE,
    READER,
    SINK,
    SOURCE,
    DeadlySource,
    Kill,
    calls_of,
    copy,
    plan_kills,
)
from tests.spark.processes import SPARK_LIMIT_SECONDS, run
from tests.spark.redis_support import namespace_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS: Final = 2
TASK_ROWS: Final = (7, 25, 12)
"""Rows of a task, in turn: a batch that is repeated is split into other tasks."""
ROWS_MAX: Final = 10_000

Kind = Literal["topic", "queue"]


class Copied:
    """A store, a checkpoint, and the queries that use them one after the other."""

    def __init__(self, root: Path, *, kind: Kind = "topic", url: str | None = None) -> None:
        self.root = root
        self.url = str(root / "store") if url is None else url
        self.kind = kind
        self._runs = 0
        self._rows = 0
        with segue.open(self.url, sync="os") as store:
            store.topic(SOURCE, partitions=PARTITIONS)
            if kind == "topic":
                store.topic(SINK, partitions=PARTITIONS)
            else:
                store.queue(SINK)

    def append(self, count: int) -> None:
        """Add rows to the source. Each value occurs twice, so a repeated row cannot hide."""
        with segue.open(self.url, sync="os") as store:
            numbers = range(self._rows, self._rows + count)
            store.topic(SOURCE).append_many(
                [
                    Event(value=f"{number // 2}", key=f"{number % 7}" if number % 3 else None)
                    for number in numbers
                ]
            )
        self._rows += count

    def run_driver(
        self, kill: Kill | None = None, *, worker_kill: Kill | None = None
    ) -> tuple[int, str]:
        """Run a driver of its own to its end, or to its death. Returns exit code and output.

        Spark runs the task of a killed worker again.
        """
        file = self.root / "kill"
        plan_kills(file, all_die=kill, one_dies=worker_kill)
        command = (sys.executable, "-m", "tests.spark.stream_driver")
        code, output = run(
            self.root / "driver.log",
            (*command, str(self.root), self.url, self.kind, str(self._rows_per_task())),
            {**os.environ, KILL_FILE: str(file)},
        )
        if worker_kill is not None:
            assert calls_of(file, worker_kill[0]) > worker_kill[1], "no task was run again"
        return code, output[-4000:]

    def run_here(self, spark: "SparkSession", kill: Kill | None = None) -> bool:
        """Run a query of the shared session to its end, or until a kill makes it fail.

        Only one Python process of Spark dies, never the driver. Returns whether it succeeded.
        """
        file = Path(os.environ[KILL_FILE])
        plan_kills(file, one_dies=kill)
        query = copy(
            spark,
            DeadlyRedisSource if self.url.startswith("redis:") else DeadlySource,
            url=self.url,
            kind=self.kind,
            checkpoint=self.root / "checkpoint",
            rows_per_task=self._rows_per_task(),
        )
        try:
            with suppress(PySparkException):
                assert query.awaitTermination(SPARK_LIMIT_SECONDS)
            return query.exception() is None
        finally:
            query.stop()
            file.unlink()

    def _rows_per_task(self) -> int:
        self._runs += 1
        return TASK_ROWS[self._runs % len(TASK_ROWS)]

    def source(self) -> Counter[bytes]:
        """Return the values of the source."""
        with segue.open(self.url, sync="os") as store:
            return Counter(_values(store.topic(SOURCE).records()))

    def sink(self) -> Counter[bytes]:
        """Return the values of the sink."""
        with segue.open(self.url, sync="os") as store:
            if self.kind == "topic":
                return Counter(_values(store.topic(SINK).records()))
            return Counter(message.body for message in store.queue(SINK).peek(ROWS_MAX))

    def check(self) -> None:
        """Assert what holds after every kill."""
        extra = self.sink() - self.source()
        assert not extra, f"{extra.total()} rows too many"
        self._check_reader()

    def check_end(self) -> None:
        """Assert what holds after the last query has succeeded."""
        self.check()
        assert self.sink() == self.source()
        if self.url.startswith("redis:"):
            client = shared_server().client()
            assert not list(client.scan_iter(f"{namespace_of(self.url)}:*:writes"))
            return
        check_logs(Path(self.url))
        staged = Path(self.url) / "staging" / f"{self.kind}.{SINK}"
        left = [path.name for path in staged.iterdir() if not path.name.endswith(".tmp")]
        assert sorted(Path(name).suffix or name for name in left) == [".done", "lock"], left

    def _check_reader(self) -> None:
        """Assert that the reader is never ahead of what the checkpoint has committed."""
        committed = committed_offsets(self.root / "checkpoint")
        with segue.open(self.url, sync="os") as store:
            lags = store.topic(SOURCE).readers().get(READER, [])
        for lag in lags:
            assert lag.committed <= committed.get(lag.partition, 0), (lags, committed)


def _values(records: Iterable[segue.TopicRecord]) -> Iterator[bytes]:
    for record in records:
        assert record.value is not None
        yield record.value


def committed_offsets(checkpoint: Path) -> dict[int, int]:
    """Return the end of the last batch that the checkpoint has committed."""
    batches = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdecimal()]
    if not batches:
        return {}
    lines = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()
    offsets = json.loads(lines[2])[SOURCE]
    return {int(partition): int(offset) for partition, offset in offsets.items()}
