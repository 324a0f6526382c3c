"""A driver of its own for `test_connect.py`: all it does goes through Spark Connect.

It prints what it has found, as JSON.
"""

import json
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from segue.spark import register, session
from segue.spark.lag import LagListener
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE: Final = "source"
QUEUE: Final = "jobs"
WRITTEN: Final = "written"
STREAMED: Final = "streamed"
OFFSETS_PER_BATCH: Final = 25


def start(root: str) -> "SparkSession":
    """Return a session that talks to a server of its own, on this machine."""
    return session(
        "connect",
        config={
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.local.dir": f"{root}/local",
            "spark.log.level": "ERROR",
            "spark.remote": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": f"{root}/warehouse",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        },
    )


def read(spark: "SparkSession", store: str) -> dict[str, object]:
    """Read a topic and a queue, as they are, by a view and with a schema."""
    place = {"url": store, "topic": SOURCE}
    numbers = (
        spark.read.format("segue")
        .options(**place, valueFormat="json")
        .schema("value STRUCT<n: BIGINT>")
        .load()
    )
    messages = spark.read.format("segue").options(url=store, queue=QUEUE).load()
    spark.sql(f"CREATE TEMP VIEW rows USING segue OPTIONS (url '{store}', topic '{SOURCE}')")
    return {
        "sum": numbers.selectExpr("sum(value.n)").collect()[0][0],
        "messages": [bytes(row["value"]).decode() for row in messages.collect()],
        "view": spark.sql("SELECT count(*) FROM rows").collect()[0][0],
    }


def write(spark: "SparkSession", store: str) -> None:
    """Copy a topic as a batch, twice under one name."""
    rows = spark.read.format("segue").options(url=store, topic=SOURCE).load()
    sink = {"url": store, "topic": WRITTEN, "writeId": "copy"}
    for _ in range(2):
        rows.select("key", "value").write.format("segue").mode("append").options(**sink).save()


def stream(spark: "SparkSession", store: str, root: str) -> dict[str, object]:
    """Copy a topic as a stream, with a listener, and then with a function for each batch."""
    listener = LagListener(store)
    spark.streams.addListener(listener)
    rows = (
        spark.readStream.format("segue")
        .options(url=store, topic=SOURCE, reader="connect", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_PER_BATCH)
        .load()
        .select("key", "value")
    )
    query = (
        rows.writeStream.format("segue")
        .options(url=store, topic=STREAMED, checkpointLocation=f"{root}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [progress.numInputRows for progress in query.recentProgress]
    name = str(query.id)
    wait_until(lambda: listener.lags[name].records == 0, "no lag", ignoring=(KeyError,))
    spark.streams.removeListener(listener)
    return {"batches": batches, "lag": listener.lags[name].records}


def each_batch(spark: "SparkSession", store: str, root: str) -> None:
    """Push a stream to a queue by a function, which runs where the server is."""

    def push(rows: "DataFrame", batch: int) -> None:
        sink = {"url": store, "queue": QUEUE, "writeId": f"each-{batch}"}
        rows.select("value").write.format("segue").mode("append").options(**sink).save()

    rows = (
        spark.readStream.format("segue")
        .options(url=store, topic=SOURCE, reader="each", startingOffsets="earliest")
        .load()
    )
    query = (
        rows.writeStream.foreachBatch(push)
        .option("checkpointLocation", f"{root}/checkpoint-each")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def refusal(spark: "SparkSession", store: str) -> str:
    """Return what is said to who gives an option that does not exist."""
    try:
        spark.read.format("segue").options(url=store, topic=SOURCE, tpoic="x").load().count()
    except PySparkException as error:
        return str(error)
    return ""


def run(store: str, root: str) -> None:
    """Do all of it."""
    spark = start(root)
    register(spark)  # Once more: `session` has done so.
    found: dict[str, object] = {"session": type(spark).__module__}
    found |= read(spark, store)
    write(spark, store)
    found |= stream(spark, store, root)
    if os.environ.get("SEGUE_TORTURE"):
        each_batch(spark, store, root)
    found["refusal"] = refusal(spark, store)
    try:
        _ = spark.sparkContext
    except PySparkException as error:
        found["context"] = error.getCondition()
    os.write(sys.stdout.fileno(), json.dumps(found).encode() + b"\n")
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:])
