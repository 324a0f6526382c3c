"""What the connector is measured beside: sources of the same API that read nothing from a store."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from segue.delivery.topic_record import unpack_record
from segue.log import Log

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 1 << 16


class ConstantSource(DataSource):
    """Yields the same Arrow batch again and again: what the API can carry at best."""

    @classmethod
    def name(cls) -> str:
        return "constant_arrow"

    def schema(self) -> str:
        return "value BINARY"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Constant(self.options)


class _Constant(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"])
        self._tasks = int(options["tasks"])
        self._size_bytes = int(options["bytes"])

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        values = pa.array([b"x" * self._size_bytes] * BATCH_ROWS, pa.binary())
        batch = pa.RecordBatch.from_arrays([values], names=["value"])
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS


class TupleSource(DataSource):
    """Yields the records of logs as Python tuples, one by one."""

    @classmethod
    def name(cls) -> str:
        return "python_tuples"

    def schema(self) -> str:
        return "value BINARY"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Tuples(self.options)


class _Tuples(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._paths = options["paths"].split(":")
        self._tasks = int(options["tasks"])

    def partitions(self) -> Sequence[InputPartition]:
        tasks = max(1, self._tasks // len(self._paths))
        found = []
        for path in self._paths:
            with Log(path, read_only=True) as log:
                end = int(log.next_offset)
            borders = [end * part // tasks for part in range(tasks + 1)]
            found += [InputPartition((path, start, stop)) for start, stop in pairwise(borders)]
        return found

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes | None]]:
        path, start, stop = partition.value
        with Log(path, read_only=True) as log:
            for record in log.records(start, stop=stop):
                if record.attr:
                    yield (unpack_record(0, record).value,)
                else:
                    yield (record.payload,)
