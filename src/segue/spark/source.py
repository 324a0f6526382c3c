"""The door for Spark: `format("segue")`.

Spark imports this where it looks for sources, so nothing here may fail to import: whatever needs
more than PySpark is imported when it is used.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SegueDataSource(DataSource):
    """Topics, queues, rings and dead letters of a Segue store as tables and streams.

    Read with one of `topic`, `topics` (a regular expression), `queue`, `dead_letters` or `ring`,
    and `url`, the store, a directory or a server (redis://…, or http://… with a `token`):

        spark.read.format("segue").option("url", "data").option("topic", "orders").load()

    Where: startingOffsets, endingOffsets (earliest, latest, JSON), startingTimestamp,
    endingTimestamp, partitions, priority. How: valueFormat (binary, string, json),
    includeHeaders, minPartitions, maxRecordsPerPartition, failOnDataLoss. Streams: reader,
    maxOffsetsPerTrigger, maxBytesPerTrigger, minOffsetsPerTrigger, maxTriggerDelay.

    Write with `topic` or `queue`: columns value, key, headers, and partition and timestamp or
    priority and delay. `writeId` makes a batch that is written twice count once.

    docs/spark.md says all of it.
    """

    @classmethod
    def name(cls) -> str:
        """Return what comes after `format`."""
        return "segue"

    def schema(self) -> StructType:
        """Return the columns of who asks for none in particular."""
        from segue.spark.options import read_options
        from segue.spark.schema import default_schema

        return default_schema(read_options(self.options, is_stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        from segue.spark.options import read_options
        from segue.spark.reading import BatchReader
        from segue.spark.schema import check_schema

        options = read_options(self.options, is_stream=False)
        check_schema(schema, options)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream."""
        from segue.spark.options import read_options
        from segue.spark.schema import check_schema
        from segue.spark.streaming import StreamReader

        options = read_options(self.options, is_stream=True)
        check_schema(schema, options)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch."""
        from segue.spark.options import write_options
        from segue.spark.sink.writers import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes a stream."""
        from segue.spark.options import write_options
        from segue.spark.sink.writers import StreamWriter

        return StreamWriter(write_options(self.options), schema, overwrite=overwrite)


def register(spark: "SparkSession") -> None:
    """Make `format("segue")` known to a session."""
    spark.dataSource.register(SegueDataSource)
