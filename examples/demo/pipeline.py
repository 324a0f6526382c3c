"""The Spark driver of the demo: a program of its own, which may be killed and started again.

    python -m examples.demo.pipeline STORE DIRECTORY RECORDS_A_BATCH

Each step ends where it ended before, so it can be run any number of times. What it has done it
says on standard output, a line of JSON each; what came of it stands in DIRECTORY/result.json.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark calls it

import segue
from examples.demo.outcome import ARCHIVE, CLEAN, FATES, RESULT, REVENUE, Result
from examples.demo.producers import TOPIC
from segue.spark import session, table
from segue.spark.jobs.archive import archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LOOK_SECONDS: Final = 0.1
RECORDS_MAX: Final = 100_000
"""In a batch of the streams that nobody kills."""

SOCKET_PATH_BYTES_MAX: Final = 107
SOCKET_NAME: Final = "/.00000000-0000-0000-0000-000000000000.sock"
"""What Spark calls a socket, which it has in the temporary directory."""

_ORDER: Final = "STRUCT<order: STRING, customer: STRING, item: STRING, cents: BIGINT>"


def main(store: str, directory: str, batch: int) -> None:
    """Run all steps, and write down what came of them."""
    root = Path(directory)
    spark = session(
        "demo",
        "local[2]",
        config={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # It lives for seconds.
            "spark.log.level": "OFF",
            "spark.python.unix.domain.socket.enabled": str(_has_room_for_sockets()).lower(),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
        },
    )
    steps = Steps(spark, store, root, batch)
    steps.clean()
    steps.sum_by_the_hour()
    steps.join_with_dead_letters()
    result = steps.archive_and_free()
    (root / RESULT).write_text(json.dumps(asdict(result)))
    spark.stop()


class Steps:
    """The steps over one store, with their checkpoints and results in one directory."""

    def __init__(self, spark: "SparkSession", store: str, root: Path, batch: int) -> None:
        self._spark = spark
        self._store = store
        self._root = root
        self._batch = batch

    def clean(self) -> None:
        """Copy what is an order to the topic `clean`, exactly once, whoever is killed."""
        orders = (
            self._stream(TOPIC, reader=CLEAN, batch=self._batch)
            .where("value.order IS NOT NULL OR value.item = 'closing time'")
            .selectExpr("value.customer AS key", "to_json(value) AS value", "timestamp")
        )
        self._run(CLEAN, orders.writeStream.format("segue").options(url=self._store, topic=CLEAN))

    def sum_by_the_hour(self) -> None:
        """Write what an hour earned with an item to the topic `revenue`, when the hour is over."""
        sums = (
            self._stream(CLEAN, reader=REVENUE)
            .withWatermark("timestamp", "10 minutes")
            .groupBy(F.window("timestamp", "1 hour"), F.col("value.item").alias("item"))
            .agg(F.sum("value.cents").alias("cents"))
            .select(F.unix_timestamp("window.start").alias("hour"), "item", "cents")
            .selectExpr("item AS key", "to_json(struct(hour, item, cents)) AS value")
        )
        self._run(REVENUE, sums.writeStream.format("segue").options(url=self._store, topic=REVENUE))

    def join_with_dead_letters(self) -> None:
        """Keep every order as Parquet, with what its dead letter says if it has one."""
        letters = (
            self._spark.read.format("segue")
            .options(url=self._store, dead_letters="default", valueFormat="json")
            .schema(f"value STRUCT<args: {_ORDER}>, cause STRING, reason STRING, attempt INT")
            .load()
            .selectExpr("value.args.order AS order", "cause", "reason", "attempt")
        )
        fates = (
            self._stream(CLEAN, reader=FATES)
            .where("value.order IS NOT NULL")
            .select("value.*", "timestamp")
            .join(letters, "order", "left")
            .withColumn("fate", F.when(F.col("cause").isNull(), "sold").otherwise("dead"))
        )
        path = str(self._root / "fates.parquet")
        self._run(FATES, fates.writeStream.format("parquet").option("path", path))

    def archive_and_free(self) -> Result:
        """Archive the topic, let retention free its segments, and tell what came of everything."""
        before = self._segments()
        to = str(self._root / "archive")
        report = archive(self._spark, self._store, topic=TOPIC, to=to, clean=True)
        _say(ARCHIVE, report.records, is_over=True)
        after = self._segments()
        kept = self._spark.read.parquet(str(self._root / "fates.parquet"))
        fates = {row["fate"]: row["count"] for row in kept.groupBy("fate").count().collect()}
        dead = kept.where("fate = 'dead'").groupBy("reason").agg(F.sum("cents").alias("cents"))
        whole = table(self._spark, self._store, TOPIC, archive=to, columns=["offset"])
        with segue.open(self._store) as store:
            clean = [json.loads(record.value or b"") for record in store.topic(CLEAN).records()]
            sums = [json.loads(record.value or b"") for record in store.topic(REVENUE).records()]
        return Result(
            clean=sum("order" in order for order in clean),
            revenue=[(each["hour"], each["item"], each["cents"]) for each in sums],
            kept=kept.count(),
            kept_once=kept.select("order").distinct().count(),
            fates=fates,
            dead_cents={row["reason"]: row["cents"] for row in dead.collect()},
            archived=report.records,
            in_table=whole.count(),
            segments_before=before[0],
            segments_after=after[0],
            freed_bytes=before[1] - after[1],
        )

    def _stream(self, topic: str, *, reader: str, batch: int = RECORDS_MAX) -> "DataFrame":
        return (
            self._spark.readStream.format("segue")
            .options(url=self._store, topic=topic, reader=reader, startingOffsets="earliest")
            .options(valueFormat="json", maxOffsetsPerTrigger=batch)
            .schema(f"value {_ORDER}, timestamp TIMESTAMP")
            .load()
        )

    def _run(self, name: str, writer: "DataStreamWriter") -> None:
        """Run a stream until it has taken all there is, telling after each batch how far it is."""
        query = (
            writer.queryName(name)
            .option("checkpointLocation", str(self._root / "checkpoints" / name))
            .trigger(availableNow=True)
            .start()
        )
        while query.isActive:
            _say(name, _rows(query))
            time.sleep(LOOK_SECONDS)
        query.awaitTermination()
        _say(name, _rows(query), is_over=True)

    def _segments(self) -> tuple[int, int]:
        """Return how many segments the topic of orders has, and their bytes."""
        paths = list(Path(self._store).glob(f"topics/{TOPIC}/partition_*/*.q"))
        return len(paths), sum(path.stat().st_blocks * 512 for path in paths)


def _has_room_for_sockets() -> bool:
    """Tell whether Spark and its Python workers can meet at a path; if not, they use ports."""
    return len(os.fsencode(tempfile.gettempdir() + SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX


def _rows(query: "StreamingQuery") -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def _say(step: str, rows: int, *, is_over: bool = False) -> None:
    print(json.dumps({"step": step, "rows": rows, "is_over": is_over}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
