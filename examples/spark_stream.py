"""A stream on Spark: orders are cleaned into a topic and kept as Parquet, each of them once.

Both streams are stopped and go on from their checkpoints, as they would after a crash.
"""

import json
from typing import TYPE_CHECKING

import segue
from segue.spark import session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ORDER = "STRUCT<customer: STRING, item: STRING, amount: DOUBLE>"

spark = session("orders", config={"spark.log.level": "ERROR", "spark.ui.enabled": "false"})


def take_orders(lines: list[str]) -> None:
    """Append orders as they come from the shop, some of them broken."""
    with segue.open("data") as store:
        store.topic("clean", partitions=2)
        orders = store.topic("orders", partitions=2)
        orders.append_many([segue.Event(value=line) for line in lines])


def order(customer: str, item: str, amount: float) -> str:
    """Return an order as the shop writes it."""
    return json.dumps({"customer": customer, "item": item, "amount": amount})


def clean() -> "StreamingQuery":
    """Copy what is an order to the topic `clean`, by customer. Each batch is there as a whole."""
    orders = (
        spark.readStream.format("segue")
        .options(url="data", topic="orders", reader="clean", startingOffsets="earliest")
        .option("valueFormat", "json")  # parsed by Arrow, inside the source
        .schema(f"value {ORDER}, timestamp TIMESTAMP")  # and nothing else is read
        .load()
    )
    return (
        orders.where("value.customer IS NOT NULL AND value.amount > 0")
        .selectExpr("value.customer AS key", "to_json(value) AS value", "timestamp")
        .writeStream.format("segue")
        .queryName("clean")
        .options(url="data", topic="clean", checkpointLocation="checkpoints/clean")
        .trigger(availableNow=True)  # all there is; without it the stream never ends
        .start()
    )


def keep() -> "StreamingQuery":
    """Copy the clean orders to Parquet, a directory for each customer."""
    orders = (
        spark.readStream.format("segue")
        .options(url="data", topic="clean", reader="parquet", startingOffsets="earliest")
        .option("valueFormat", "json")
        .schema(f"value {ORDER}, partition INT, offset BIGINT, timestamp TIMESTAMP")
        .load()
    )
    return (
        orders.select("value.*", "partition", "offset", "timestamp")
        .writeStream.format("parquet")
        .queryName("parquet")
        .partitionBy("customer")
        .options(path="orders.parquet", checkpointLocation="checkpoints/parquet")
        .trigger(availableNow=True)
        .start()
    )


def run() -> None:
    """Run both streams until they have taken all there is."""
    for start in (clean, keep):
        query = start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        print(f"  {query.name} has taken {rows}")


take_orders([order("ada", "apples", 3.5), order("bob", "pears", 4.0), "no order at all"])
print("first run")
run()
take_orders([order("ada", "figs", 6.0), order("eve", "nothing", -1.0)])
print("second run, from the checkpoints")
run()

kept = spark.read.parquet("orders.parquet").orderBy("customer", "item")
for row in kept.collect():
    print(row["customer"], row["item"], row["amount"])
with segue.open("data") as store:
    print("clean holds", sum(1 for _ in store.topic("clean").records()), "orders")
