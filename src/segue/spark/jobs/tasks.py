"""Pieces of work as a DataFrame: one Spark task for each, in their order.

By a data source of our own, for `mapInArrow` would have users install pandas, and planning there
would send every piece to every task.
"""

import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "segue_work"
WORK: Final = "work"

Piece = TypeVar("Piece")
_Read = Callable[[object], "Iterator[pa.RecordBatch]"]


def rows_of(
    spark: "SparkSession",
    pieces: Sequence[Piece],
    read: "Callable[[Piece], Iterator[pa.RecordBatch]]",
    schema: StructType,
) -> "DataFrame":
    """Return what `read` yields of each piece; both must be such as pickle takes."""
    spark.dataSource.register(_WorkSource)
    work = base64.b64encode(pickle.dumps((list(pieces), read))).decode("ascii")
    return spark.read.format(NAME).schema(schema).option(WORK, work).load()


def packed(
    weighed: Iterable[tuple[Piece, int]], weight_max: int, count_max: int
) -> list[list[Piece]]:
    """Return neighbours together, as many as weigh no more than that, and at most so many."""
    groups: list[list[Piece]] = []
    weight = 0
    for piece, added in weighed:
        if not groups or weight + added > weight_max or len(groups[-1]) >= count_max:
            groups.append([])
            weight = 0
        groups[-1].append(piece)
        weight += added
    return groups


class _Work(InputPartition):
    def __init__(self, piece: object, read: _Read) -> None:
        self.piece = piece
        self.read = read


class _WorkReader(DataSourceReader):
    def __init__(self, work: str) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        pieces, read = cast(
            "tuple[list[object], _Read]", pickle.loads(base64.b64decode(self._work))
        )
        return [_Work(piece, read) for piece in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Where there are no pieces Spark has one task all the same, with nothing to do.
        return partition.read(partition.piece) if isinstance(partition, _Work) else iter(())


class _WorkSource(DataSource):
    """What `rows_of` reads; of no use to anybody else."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        return _WorkReader(self.options[WORK])
