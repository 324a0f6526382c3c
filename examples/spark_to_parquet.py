"""A stream from a topic to Parquet, every order once, although its query fails on the way.

The first version of the query cannot read an order of its second batch, and dies of it. It is
mended and goes on from its checkpoint, and once more when other orders have come. What was written
of the batch that failed counts for nothing: Spark keeps a list of the files that do.

    python examples/spark_to_parquet.py

It prints how many orders each run has taken, and fails unless all are there, once.
"""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

import segue
from segue.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS_PER_BATCH = 40
FIRST_TRY = "CAST(value.price AS DOUBLE)"
MENDED = "TRY_CAST(value.price AS DOUBLE)"


def take_orders(place: Path, numbers: range) -> None:
    """Append orders as the shop writes them. The price of number 60 is no number."""
    prices = {number: "free" if number == 60 else f"{number}.50" for number in numbers}
    with segue.open(place / "store") as store:
        store.topic("orders", partitions=2).append_many(
            [json.dumps({"id": number, "price": price}) for number, price in prices.items()]
        )


def write(spark: "SparkSession", place: Path, price: str) -> str:
    """Copy what is new to Parquet, and return what came of it."""
    orders = (
        spark.readStream.format("segue")
        .options(url=f"{place}/store", topic="orders", startingOffsets="earliest")
        .options(reader="parquet")  # its name in Segue: retention waits for it, lag is by it
        .options(valueFormat="json", maxOffsetsPerTrigger=ORDERS_PER_BATCH)
        .schema("value STRUCT<id: BIGINT, price: STRING>, partition INT, offset BIGINT")
        .load()
    )
    query = (
        orders.selectExpr("value.id", f"{price} AS price", "partition", "offset")
        .writeStream.format("parquet")
        .options(path=f"{place}/orders.parquet", checkpointLocation=f"{place}/checkpoint")
        .trigger(availableNow=True)  # all there is; without it the stream never ends
        .start()
    )
    outcome = "done"
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if "CAST_INVALID_INPUT" not in str(error):
            raise
        outcome = "failed: a price is no number"
    taken = [progress.numInputRows for progress in query.recentProgress]
    return f"{sum(taken)} orders in {len(taken)} batches, {outcome}"


def main(place: Path) -> None:
    """Write, fail, mend, go on, and look at what is there."""
    quiet = {"spark.log.level": "OFF", "spark.ui.enabled": "false"}  # it fails on purpose
    spark = session("orders", config={**quiet, "spark.ui.showConsoleProgress": "false"})
    take_orders(place, range(100))
    print("first try:", write(spark, place, FIRST_TRY))
    print("mended:   ", write(spark, place, MENDED))
    take_orders(place, range(100, 150))
    print("later:    ", write(spark, place, MENDED))

    rows = spark.read.parquet(f"{place}/orders.parquet").collect()
    places = {(row["partition"], row["offset"]) for row in rows}
    unread = [row["id"] for row in rows if row["price"] is None]
    print(f"{len(rows)} rows of {len(places)} orders; without a price: {unread}")
    if sorted(row["id"] for row in rows) != list(range(150)) or len(places) != len(rows):
        raise SystemExit("orders were lost, or written twice")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="segue-example-") as directory:
        main(Path(directory))
