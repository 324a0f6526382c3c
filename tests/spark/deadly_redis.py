"""A source and sink over a server whose processes die where they are told to.

Run as a program it is the driver of `test_redis_exactly_once.py`: it copies what a topic has to
another in several batches, and ends; unless it is killed before.
"""

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from segue.spark.options import write_options
from segue.spark.session import session
from segue.spark.sink.server import ServerCommitter, ServerStage
from segue.stores.redis.staging import TopicTarget, Writes
from tests.spark.deadly_source import STEP, DeadlySource, DeadlyWriter, _make_deadly

FORMAT: Final = "deadly_redis"
SOURCE: Final = "source"
SINK: Final = "sink"
ROWS_PER_BATCH: Final = 40

if os.environ.get(STEP):
    _make_deadly(ServerStage, "_flush", "a block is put aside")
    _make_deadly(Writes, "list_", "the list")
    _make_deadly(TopicTarget, "adopt", "an adoption")
    _make_deadly(Writes, "finish", "the note")
    _make_deadly(ServerCommitter, "_finish", "the finish")


class DeadlyRedisWriter(DeadlyWriter):
    """Unpickled wherever it is used, and so brings this module along."""


class DeadlyRedisSource(DeadlySource):
    """The connector, with processes that die."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(  # noqa: N802 - Spark's own name.
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return DeadlyRedisWriter(write_options(self.options), schema, overwrite=overwrite)


def run(root: Path, url: str, rows_per_task: int) -> None:
    """Copy what is new from the source to the sink, each task with so many rows."""
    spark = session(
        "exactly-once",
        "local[2,4]",
        config={
            "spark.local.dir": str(root / "local"),
            "spark.log.level": "OFF",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.dataSource.register(DeadlyRedisSource)
    query = (
        spark.readStream.format(FORMAT)
        .options(url=url, topic=SOURCE, reader="copy", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH))
        .option("maxRecordsPerPartition", str(rows_per_task))
        .load()
        .select("key", "value")
        .writeStream.format(FORMAT)
        .options(url=url, topic=SINK)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    # Not as __main__: what is pickled must be found again by the name of its module.
    from tests.spark import deadly_redis

    deadly_redis.run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
