"""A driver of its own for `test_exactly_once.py`: a stream from one topic to a topic or queue.

It takes what there is, in several batches, and ends; unless it is killed before.
"""

import sys
import threading
import time
from pathlib import Path
from typing import Final

from segue.spark.session import session
from tests.spark.deadly_source import FORMAT, DeadlySource, reach

SOURCE: Final = "source"
SINK: Final = "sink"
READER: Final = "copy"
ROWS_PER_BATCH: Final = 40


def run(root: Path, kind: str, rows_per_task: int) -> None:
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
    spark.dataSource.register(DeadlySource)
    checkpoint = root / "checkpoint"
    for name in ("offsets", "commits"):
        threading.Thread(target=_watch, args=(checkpoint / name, name), daemon=True).start()
    rows = (
        spark.readStream.format(FORMAT)
        .option("url", str(root / "store"))
        .option("topic", SOURCE)
        .option("reader", READER)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH))
        .option("maxRecordsPerPartition", str(rows_per_task))
        .load()
        .selectExpr(*(["key", "value"] if kind == "topic" else ["value"]))
    )
    query = (
        rows.writeStream.format(FORMAT)
        .option("url", str(root / "store"))
        .option(kind, SINK)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def _watch(directory: Path, name: str) -> None:
    """Die as soon as the checkpoint holds a new file, or the beginning of one."""
    known = set(directory.iterdir()) if directory.is_dir() else set()
    while True:
        if directory.is_dir():
            for path in set(directory.iterdir()) - known:
                known.add(path)
                if path.name.isdecimal():
                    reach(f"after a file of {name}")
                elif path.name.endswith(".tmp") and ".crc" not in path.name:
                    reach(f"within a file of {name}")
        time.sleep(0.0005)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
