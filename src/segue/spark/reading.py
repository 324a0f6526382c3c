"""Reading a batch, and what every task does, of a batch or a stream."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segue.log import Log
from segue.spark.decoding import Wanted
from segue.spark.options import ReadOptions
from segue.spark.places import open_server
from segue.spark.planning import Task, batch_offsets, plan
from segue.spark.strands import opened_shelf
from segue.stores.file.stretches import stretches
from segue.stores.passing import Passing

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.spark.places import ServerStore


class BatchReader(DataSourceReader):
    """Reads what there was when the read was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = Wanted(schema=schema, value_format=options.value_format)

    def partitions(self) -> Sequence[InputPartition]:
        with opened_shelf(self._options, self._wanted) as shelf:
            strands = shelf.strands()
            options = self._options
            ends = batch_offsets(options, strands)
            return plan(options, strands, ends, is_snapshot=True)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_task(partition)


def read_task(task: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a task."""
    if not isinstance(task, Task):
        return  # Where there is nothing to read, Spark has a partition of its own.
    with ExitStack() as closing:
        stores: dict[str, ServerStore] = {}
        for each in task.ranges:
            passing = Passing(
                name=each.label.name,
                number=each.label.number,
                deleted=task.passes_deleted,
                damaged=task.passes_damage,
            )
            if isinstance(each.source, str):
                with Log(each.source, read_only=True, allow_network=task.allows_network) as log:
                    for columns in stretches(log, each.start, each.stop, passing):
                        yield from each.decoder.batches(columns)
                continue
            from segue.spark.servers.reading import server_stretches

            url = each.source.url
            if url not in stores:
                stores[url] = open_server(url, token=each.source.token)
                closing.callback(stores[url].close)
            for columns in server_stretches(stores[url], each, passing):
                yield from each.decoder.batches(columns)
