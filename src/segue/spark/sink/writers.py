"""Writing a batch, and a stream: what Spark calls, in tasks and on the driver."""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from segue.errors import InvalidArgument
from segue.spark.options import WriteOptions
from segue.spark.sink.commit import Committer
from segue.spark.sink.rows import check_columns
from segue.spark.sink.staging import Stage
from segue.stores.file.writes import StagedFile, WriteId
from segue.stores.http.address import is_http
from segue.stores.redis.address import is_redis
from segue.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.spark.sink.http import HttpCommitter
    from segue.spark.sink.server import ServerCommitter

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""Where Spark tells a task which batch of which query it works on."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    write: WriteId
    files: list[StagedFile]


class _Writer:
    """What both have in common."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument("a store is only ever appended to: mode('append')")
        check_columns(schema, options.kind)
        self._options = options
        self._partitions, self._record_bytes_max = _ready(options)

    def stage(self, rows: "Iterator[pa.RecordBatch]", write: WriteId) -> Staged:
        """Write the rows of a task aside."""
        if is_http(self._options.url):
            from segue.spark.sink.http import send_rows

            files = send_rows(
                self._options,
                write,
                rows,
                partitions=self._partitions,
                record_bytes_max=self._record_bytes_max,
            )
            return Staged(write, files)
        if is_redis(self._options.url):
            from segue.spark.sink.server import ServerStage

            return Staged(write, ServerStage(self._options, write, self._partitions).write(rows))
        stage = Stage(self._options, write, self._partitions, self._record_bytes_max)
        return Staged(write, stage.write(rows))


def _ready(options: WriteOptions) -> tuple[int, int]:
    """Have what is written to be there, and unfinished writes finished.

    Return its partitions, and how large a record may be.
    """
    if is_http(options.url):
        from segue.spark.sink.http import writing

        with writing(options) as writes:
            ready = writes.ready()
        return ready.partitions, ready.record_bytes_max
    if is_redis(options.url):
        from segue.spark.sink.server import opened

        with opened(options) as (_, target):
            partitions, record_bytes_max = target.partitions, target.block.record_bytes_max
        committer(options).recover()
        return partitions, record_bytes_max
    return Committer(options).prepare()


def named_write(write_id: str) -> WriteId:
    """Return the batch that `writeId` names, however often it is tried."""
    return WriteId(query=f"write {write_id}")


def committer(options: WriteOptions) -> "Committer | HttpCommitter | ServerCommitter":
    """Return what makes writes happen where the options say."""
    if is_http(options.url):
        from segue.spark.sink.http import HttpCommitter

        return HttpCommitter(options)
    if is_redis(options.url):
        from segue.spark.sink.server import ServerCommitter

        return ServerCommitter(options)
    return Committer(options)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: all of it, or nothing."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._writer = _Writer(options, schema, overwrite=overwrite)
        self._options = options
        self._write = (
            WriteId(query=f"write {uuid.uuid4().hex}", is_repeatable=False)
            if options.write_id is None
            else named_write(options.write_id)
        )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write the rows of a task aside."""
        return self._writer.stage(iterator, self._write)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Adopt what all tasks wrote."""
        committer(self._options).commit(self._write, _files(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing."""
        committer(self._options).abort(self._write)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream exactly once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.write_id is not None:
            raise InvalidArgument("writeId is for batches: a stream knows its batches itself")
        self._writer = _Writer(options, schema, overwrite=overwrite)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write the rows of a task aside."""
        return self._writer.stage(iterator, _current_batch())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Adopt what all tasks wrote, unless this batch has been before."""
        writes = [message.write for message in messages if isinstance(message, Staged)]
        if writes:
            committer(self._options).commit(writes[0], _files(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave nothing of a batch that has not happened."""
        for message in messages:
            if isinstance(message, Staged):
                committer(self._options).abort(message.write)
                return


def _current_batch() -> WriteId:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    batch = None if context is None else context.getLocalProperty(BATCH)
    if query is None or batch is None:
        raise InvalidArgument("this task belongs to no batch of a stream")
    return WriteId(query=f"query {query}", batch=int(batch))


def _files(messages: list[WriterCommitMessage | None]) -> list[StagedFile]:
    return [file for message in messages if isinstance(message, Staged) for file in message.files]
