"""A declarative pipeline over topics: a table of orders, totals, and large orders as they come.

In a copy of the directory above this one, with `pyspark[pipelines]` installed:

    sed -i "s|/srv/orders|$PWD|" spark-pipeline.yml
    segue topic create data large
    echo '{"customer": "ada", "amount": 30}' | segue topic append data orders
    spark-pipelines run

Run it again after more orders have come: it takes only those.
"""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions

STORE = str(Path("data").resolve())  # the pipeline's own directory; on a cluster, a shared one

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every order, once; Spark keeps its place, and retention of the topic follows it."""
    return (
        spark.readStream.format("segue")
        .options(url=STORE, topic="orders", reader="pipeline", startingOffsets="earliest")
        .option("valueFormat", "json")
        .schema("value STRUCT<customer: STRING, amount: DOUBLE>, timestamp TIMESTAMP")
        .load()
        .select("value.*", "timestamp")
    )


@dp.materialized_view
def totals() -> DataFrame:
    """What each customer has ordered so far."""
    return (
        spark.read.table("orders")
        .groupBy("customer")
        .agg(functions.count("*").alias("orders"), functions.sum("amount").alias("amount"))
    )


dp.create_sink("large", "segue", {"url": STORE, "topic": "large"})


@dp.append_flow(target="large")
def large_orders() -> DataFrame:
    """Orders that somebody should look at, in a topic of their own."""
    return (
        spark.readStream.table("orders")
        .where("amount >= 20")
        .selectExpr("customer AS key", "to_json(struct(*)) AS value")
    )
