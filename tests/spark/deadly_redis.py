"""The Spark source and sink of `deadly_source.py`, for a store in Redis."""

from typing import Final

from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from segue.spark.options import write_options
from segue.spark.sink.server import ServerCommitter, ServerStage
from segue.stores.redis.staging import TopicTarget, Writes
from tests.spark.deadly_source import DeadlySource, DeadlyWriter, make_deadly

FORMAT: Final = "deadly_redis"

make_deadly(ServerStage, "_flush", "a block is put aside")
make_deadly(Writes, "list_", "the list")
make_deadly(TopicTarget, "adopt", "an adoption")
make_deadly(Writes, "finish", "the note")
make_deadly(ServerCommitter, "_finish", "the finish")


class DeadlyRedisWriter(DeadlyWriter):
    """Its unpickling imports this module in every process that uses it."""


class DeadlyRedisSource(DeadlySource):
    """The connector, with processes that die."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(  # noqa: N802 - Spark's own name.
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return DeadlyRedisWriter(write_options(self.options), schema, overwrite=overwrite)
