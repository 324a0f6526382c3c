"""Segue on Spark: topics, queues, rings and dead letters as DataFrames and streams.

    from segue.spark import session
    spark = session()
    orders = spark.read.format("segue").option("url", "data").option("topic", "orders").load()

Needs the extra `spark`.
"""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError('Spark is not installed: pip install "segue[spark]"', name="pyspark")

from segue.spark.lag import LagListener
from segue.spark.session import session
from segue.spark.source import SegueDataSource, register
from segue.spark.table import table
from segue.spark.tasks import tasks

__all__ = ["LagListener", "SegueDataSource", "register", "session", "table", "tasks"]
