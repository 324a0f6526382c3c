"""Archived history and live records of a topic as one table.

`segue.spark` has it, so what needs more than PySpark is imported when it is used.
"""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from segue.errors import InvalidArgument, OffsetTrimmed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table(
    spark: "SparkSession",
    url: str,
    topic: str,
    *,
    archive: str | None = None,
    columns: Sequence[str] | None = None,
) -> "DataFrame":
    """Return every record of a topic once: from its archive, and from the topic what came since.

    `archive` is the directory that the job of this name writes to; there may be nothing in it yet.
    Only `columns` are read; without them it is all but headers, as the source has them. The table
    is of this moment: who wants what comes later asks again.

    Raises OffsetTrimmed if records are gone that were never archived, TopicNotFound,
    InvalidArgument, LogNotFound, CorruptManifest.
    """
    from segue.spark.jobs.manifests import Archive
    from segue.spark.places import absolute
    from segue.stores.opening import directory_of

    schema = _schema(columns)
    history = None if archive is None else Archive(directory_of(archive))
    manifests = [] if history is None else history.manifests("topic", topic)
    ends = manifests[-1].ends if manifests else {}
    ranges = _live(url, topic, ends, is_whole=history is not None)
    parts = []
    if history is not None and (paths := history.paths(manifests)):
        parts.append(spark.read.schema(schema).parquet(*paths))
    if ranges:
        options = {
            "url": absolute(url),
            "topic": topic,
            "partitions": ",".join(ranges),
            "startingOffsets": json.dumps({each: start for each, (start, _) in ranges.items()}),
            "endingOffsets": json.dumps({each: stop for each, (_, stop) in ranges.items()}),
        }
        parts.append(spark.read.format("segue").schema(schema).options(**options).load())
    if not parts:
        return spark.createDataFrame([], schema)
    return reduce(lambda one, other: one.unionByName(other), parts)


def _schema(columns: Sequence[str] | None) -> StructType:
    from segue.spark.schema import COLUMNS, HEADERS

    known = COLUMNS["topic"]
    chosen = [name for name in known if name != HEADERS] if columns is None else columns
    for name in chosen:
        if name not in known:
            raise InvalidArgument(f"there is no column {name}; there are {', '.join(known)}")
    return StructType([StructField(name, known[name]) for name in chosen])


def _live(
    url: str, name: str, ends: Mapping[str, int], *, is_whole: bool
) -> dict[str, tuple[int, int]]:
    """Return from where to where each partition is read that has anything to read."""
    from segue.spark.jobs.histories import require_there
    from segue.spark.places import open_place

    with open_place(url) as store:
        require_there(store, "topic", name)
        topic = store.topic(name)
        firsts, nexts = topic.offsets("earliest"), topic.offsets("latest")
    ranges = {}
    for partition, first in firsts.items():
        start, stop = ends.get(str(partition), 0), nexts[partition]
        if start < first:
            if is_whole:
                raise OffsetTrimmed(offset=start, earliest=first, latest=stop, partition=partition)
            start = first
        if start < stop:
            ranges[str(partition)] = (start, stop)
    return ranges
