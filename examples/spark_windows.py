"""State on Spark: sums by the hour over a stream, and a rule that remembers each customer."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Row, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import segue
from segue.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

spark = session(
    "windows",
    config={
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKS,  # what transformWithState needs
        "spark.ui.enabled": "false",
    },
)


def take_orders(orders: list[tuple[int, str, float]]) -> None:
    """Append orders: the minute of the day, who, and how much."""
    with segue.open("data") as store:
        store.topic("sales").append_many(
            [
                segue.Event(
                    key=customer,
                    value=json.dumps({"amount": amount}),
                    timestamp=MIDNIGHT + timedelta(minutes=minute),
                )
                for minute, customer, amount in orders
            ]
        )


def orders(reader: str) -> "DataFrame":
    """Return the stream of orders, four at a time."""
    return (
        spark.readStream.format("segue")
        .options(url="data", topic="sales", reader=reader, startingOffsets="earliest")
        .options(valueFormat="json", maxOffsetsPerTrigger=4)
        .schema("key BINARY, value STRUCT<amount: DOUBLE>, timestamp TIMESTAMP")
        .load()
        .selectExpr("string(key) AS customer", "value.amount", "timestamp")
    )


def sum_by_the_hour() -> None:
    """Write the sum of an hour to a topic, once it is certain that nothing is missing."""
    hours = (
        orders("hours")
        .withWatermark("timestamp", "30 minutes")  # an order may be late by so much
        .groupBy(functions.window("timestamp", "1 hour"))
        .agg(functions.sum("amount").alias("amount"))
        .select("window.start", "amount")
        .selectExpr("date_format(start, 'HH:mm') AS key", "to_json(struct(*)) AS value")
    )
    hours.writeStream.format("segue").outputMode("append").options(
        url="data", topic="hours", checkpointLocation="checkpoints/hours"
    ).trigger(availableNow=True).start().awaitTermination()


class Regulars(StatefulProcessor):
    """Greets a customer at every third order, however far apart and across restarts."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep a count and a sum for each customer."""
        self._totals = handle.getValueState("totals", "orders INT, amount DOUBLE")

    def handleInputRows(  # noqa: N802 (Spark calls it so)
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803 (and its arguments)
    ) -> Iterator[Row]:
        """Count the orders of a customer in this batch."""
        count, amount = self._totals.get() or (0, 0.0)
        for row in rows:
            count, amount = count + 1, amount + row["amount"]
            if count % 3 == 0:
                yield Row(customer=key[0], orders=count, amount=amount)
        self._totals.update((count, amount))


def greet_regulars() -> None:
    """Push a message to a queue for every customer who deserves one."""
    regulars = (
        orders("regulars")
        .groupBy("customer")
        .transformWithState(
            Regulars(), "customer STRING, orders INT, amount DOUBLE", "append", "none"
        )
    )
    regulars.selectExpr("customer AS key", "string(orders) AS value").writeStream.format(
        "segue"
    ).options(url="data", queue="greetings", checkpointLocation="checkpoints/regulars").trigger(
        availableNow=True
    ).start().awaitTermination()


with segue.open("data") as store:
    store.topic("hours", partitions=1)
    store.topic("sales", partitions=1)

take_orders([(5, "ada", 1), (50, "bob", 2), (70, "ada", 4), (55, "bob", 8)])  # the last one late
take_orders([(80, "ada", 16), (130, "eve", 32), (59, "bob", 64), (200, "ada", 128)])
sum_by_the_hour()
greet_regulars()

with segue.open("data") as store:
    for record in store.topic("hours").records():
        print("hour", record.key, record.value)
    for message in store.queue("greetings").peek(count=10):
        print("greet", message.key, "at order", message.body)
