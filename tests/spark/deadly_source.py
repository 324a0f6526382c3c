"""A Spark source and sink whose processes die at a planned step.

Every process that unpickles its classes imports this module: the driver, a planner or a worker.
The import replaces the steps of the connector by versions that may kill. A file says which steps
kill, and at which call. The environment variable KILL_FILE names that file.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from segue.spark.options import read_options, write_options
from segue.spark.schema import check_schema
from segue.spark.sink.staging import Stage
from segue.spark.sink.writers import StreamWriter
from segue.spark.source import SegueDataSource
from segue.spark.streaming import StreamReader, Told
from segue.stores.file import writes
from tests.spark.processes import kill_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KILL_FILE: Final = "SEGUE_TEST_KILL_FILE"
"""Environment variable with the path of the file that plans a kill."""
FORMAT: Final = "deadly"
SOURCE: Final = "source"
SINK: Final = "sink"
READER: Final = "copy"
ROWS_PER_BATCH: Final = 40

Kill = tuple[str, int]
"""The step, and which call of it kills, counted over all processes."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def plan_kills(path: Path, *, all_die: Kill | None = None, one_dies: Kill | None = None) -> None:
    """Plan the death of all processes of a session, of the one that makes a call, or of both."""
    planned = {}
    for kill, alone in ((all_die, False), (one_dies, True)):
        if kill is not None:
            planned[kill[0]] = (kill[1], alone)
            _calls_path(path, kill[0]).unlink(missing_ok=True)
    path.write_text(json.dumps(planned))


def calls_of(path: Path, step: str) -> int:
    """Return how often a step was reached that is planned to kill."""
    calls = _calls_path(path, step)
    return calls.stat().st_size if calls.exists() else 0


def _calls_path(path: Path, step: str) -> Path:
    return path.with_suffix(f".{step.replace(' ', '_')}")


def reach(step: str) -> None:
    """Die if this is the planned call of a planned step."""
    path = Path(os.environ.get(KILL_FILE, os.devnull))
    try:
        call, alone = json.loads(path.read_text())[step]
    except (FileNotFoundError, KeyError, ValueError):
        return
    fd = os.open(_calls_path(path, step), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b".")
    # Use the position of this byte, not the size of the file: another thread may have added a byte
    # since, and then no call would have the planned number.
    calls = os.lseek(fd, 0, os.SEEK_CUR)
    os.close(fd)
    if calls == call:
        if alone:
            os.kill(os.getpid(), signal.SIGKILL)
        kill_session(os.getsid(0))


def _deadly(step: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that may die before or after it does its work."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        reach(f"before {step}")
        result = function(*args, **kwargs)
        reach(f"after {step}")
        return result

    return call


def make_deadly(owner: object, name: str, step: str) -> None:
    """Replace a function by one that may die. Does nothing where no kills are planned."""
    if KILL_FILE in os.environ:
        setattr(owner, name, _deadly(step, getattr(owner, name)))


make_deadly(Stage, "_flush", "a segment is written aside")
make_deadly(writes.Writes, "_write_list", "the list")
make_deadly(writes, "adopt_staged", "an adoption")
make_deadly(writes, "adopt_messages", "an adoption")
make_deadly(writes.Writes, "_note_done", "the note")
make_deadly(writes.Writes, "_drop", "the segments are dropped")


class DeadlyReader(StreamReader):
    """Reads a stream, and may die at any call."""

    def latestOffset(self, start: Told, limit: object) -> Told:  # noqa: N802 - Spark's own name.
        reach("before the end of a batch is chosen")
        return super().latestOffset(start, limit)  # type: ignore[arg-type]

    def partitions(self, start: Told, end: Told) -> "list[object]":  # type: ignore[override]
        reach("before the plan")
        tasks = list(super().partitions(start, end))
        reach("after the plan")
        return tasks  # type: ignore[return-value]

    def commit(self, end: Told) -> None:
        reach("before the reader's commit")
        super().commit(end)
        reach("after the reader's commit")


class DeadlyWriter(StreamWriter):
    """Writes a stream, and may die at any call."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        reach("before a task")
        message = super().write(iterator)
        reach("after a task")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach("before the commit")
        super().commit(messages, batchId)
        reach("after the commit")


class DeadlySource(SegueDataSource):
    """The connector, with processes that die."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options, is_stream=True)
        check_schema(schema, options)
        return DeadlyReader(options, schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return DeadlyWriter(write_options(self.options), schema, overwrite=overwrite)


def copy(
    spark: "SparkSession",
    source: type[DeadlySource],
    *,
    url: str,
    kind: str,
    checkpoint: Path,
    rows_per_task: int,
) -> "StreamingQuery":
    """Start a query that copies what is new in the source to the sink, in several batches."""
    spark.dataSource.register(source)
    rows = (
        spark.readStream.format(source.name())
        .options(url=url, topic=SOURCE, reader=READER, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH))
        .option("maxRecordsPerPartition", str(rows_per_task))
        .load()
        .selectExpr(*(["key", "value"] if kind == "topic" else ["value"]))
    )
    return (
        rows.writeStream.format(source.name())
        .options(**{"url": url, kind: SINK, "checkpointLocation": str(checkpoint)})
        .trigger(availableNow=True)
        .start()
    )
