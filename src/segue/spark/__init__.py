"""Segue on Spark: topics, queues, rings and dead letters as DataFrames and streams.

    from segue.spark import session
    spark = session()
    orders = spark.read.format("segue").option("url", "data").option("topic", "orders").load()

Needs the extra `spark`.
"""

from segue.extras import require

# ruff: noqa: E402 - what follows cannot be imported without the extra.
require("spark", needed_by="Spark")

from segue.spark.lag import LagListener
from segue.spark.session import session
from segue.spark.source import SegueDataSource, register
from segue.spark.table import table
from segue.spark.tasks import tasks

__all__ = ["LagListener", "SegueDataSource", "register", "session", "table", "tasks"]
