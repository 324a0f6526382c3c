"""A driver of its own for `test_cluster.py`: it reads, writes and streams through a cluster.

What it asks of Spark is what it would ask on one machine. It prints the sizes of its batches.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.spark import session
from tests.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SOURCE: Final = "source"
WRITTEN: Final = "written"
STREAMED: Final = "streamed"
TASKS: Final = 2
OFFSETS_PER_BATCH: Final = 500


def signed(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Yield rows with the name of who has worked on them as their key: its directory."""
    import pyarrow as pa

    name = "/".join(Path.cwd().parts[-3:]).encode()
    for batch in batches:
        names = pa.array([name] * len(batch), pa.binary())
        yield pa.RecordBatch.from_arrays([names, batch.column("value")], ["key", "value"])


def run(url: str, store: str, root: str) -> None:
    """Copy the source as a batch, and then as a stream."""
    spark = session(
        "cluster",
        url,
        config={
            "spark.cores.max": "2",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.executor.memory": "1g",
            "spark.log.level": "ERROR",
            # Nothing begins before both workers are there, so that both get something to do.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{LIMIT_SECONDS:.0f}s",
            "spark.sql.warehouse.dir": f"{root}/warehouse",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )

    def signed_rows(rows: "DataFrame") -> "DataFrame":
        return rows.select("value").mapInArrow(signed, "key BINARY, value BINARY")

    place = {"url": store, "topic": SOURCE, "minPartitions": str(TASKS)}
    rows = spark.read.format("segue").options(**place).load()
    signed_rows(rows).write.format("segue").mode("append").options(url=store, topic=WRITTEN).save()
    stream = (
        spark.readStream.format("segue")
        .options(**place, reader="cluster", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_BATCH)
        .load()
    )
    query = (
        signed_rows(stream)
        .writeStream.format("segue")
        .options(url=store, topic=STREAMED, checkpointLocation=f"{root}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [progress.numInputRows for progress in query.recentProgress]
    os.write(sys.stdout.fileno(), json.dumps({"batches": batches}).encode() + b"\n")
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:])
