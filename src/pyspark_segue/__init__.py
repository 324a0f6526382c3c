"""Makes `format("segue")` known: Spark imports top-level modules of this kind by their name."""

from segue.spark.source import SegueDataSource as DefaultSource

__all__ = ["DefaultSource"]
