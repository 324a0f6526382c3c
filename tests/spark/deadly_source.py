"""A source and sink of Spark whose processes die where they are told to, for `stream_driver.py`.

Whatever unpickles its classes imports this module, be it the driver, a planner or a worker, and
so has the steps of the connector changed into ones that may kill. Which step it is and which
call of it, over all processes of a run, the environment says.
"""

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

if TYPE_CHECKING:
    import pyarrow as pa

STEP: Final = "SEGUE_TEST_STEP"
"""The step at which to die; empty for none."""
CALL: Final = "SEGUE_TEST_CALL"
"""Which call of it."""
COUNTER: Final = "SEGUE_TEST_COUNTER"
"""A file that grows by a byte with each call."""
ALONE: Final = "SEGUE_TEST_ALONE"
"""If set, only the process that makes the call dies, not all of the session."""
FORMAT: Final = "deadly"

_P = ParamSpec("_P")
_T = TypeVar("_T")


def reach(step: str) -> None:
    """Die if this is the call of the step that is to be the last."""
    if os.environ.get(STEP) != step:
        return
    fd = os.open(os.environ[COUNTER], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b".")
    # Where this byte went, not how long the file is: calls of other threads may have come since,
    # and the one that is to die would count itself past its number.
    calls = os.lseek(fd, 0, os.SEEK_CUR)
    os.close(fd)
    if calls == int(os.environ[CALL]):
        if os.environ.get(ALONE):
            os.kill(os.getpid(), signal.SIGKILL)
        kill_session(os.getsid(0))


def session_pids(session: int) -> list[int]:
    """Return the processes of a session, the oldest first."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.name))
    return sorted(found)


def kill_session(session: int) -> None:
    """Kill every process of a session, the caller last if it is one of them."""
    here = os.getpid()
    for pid in sorted(session_pids(session), key=lambda each: (each == here, each)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _deadly(step: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that may die before or after it has done what it does."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        reach(f"before {step}")
        result = function(*args, **kwargs)
        reach(f"after {step}")
        return result

    return call


def _make_deadly(owner: object, name: str, step: str) -> None:
    setattr(owner, name, _deadly(step, getattr(owner, name)))


if os.environ.get(STEP):
    _make_deadly(Stage, "_flush", "a segment is written aside")
    _make_deadly(writes.Writes, "_write_list", "the list")
    _make_deadly(writes, "adopt_staged", "an adoption")
    _make_deadly(writes, "adopt_messages", "an adoption")
    _make_deadly(writes.Writes, "_note_done", "the note")
    _make_deadly(writes.Writes, "_drop", "the segments are dropped")


class DeadlyReader(StreamReader):
    """Reads a stream, and may die when it is asked to."""

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
    """Writes a stream, and may die when it is asked to."""

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
