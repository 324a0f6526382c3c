"""How topics and queues have been doing: tables as Parquet, and one HTML page of them.

Throughput and depth come from the records themselves; waits, runs and retries from the ledgers of
queues, which keep what happened only since their last checkpoints.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark calls it
from pyspark.sql.window import Window

from segue.delivery.events import ASIDE, LEASED, SETTLED, Cause, How
from segue.errors import InvalidArgument, LogNotFound, TopicNotFound
from segue.spark.jobs.ledger import BURIED, DELIVERIES, ENDS, EVENT, POPPED, RETURNED, ledger_tasks
from segue.spark.jobs.report_sections import Tables, page_of
from segue.spark.jobs.running import spark_directory
from segue.spark.jobs.tasks import rows_of
from segue.spark.jobs.triage import pattern_of
from segue.spark.places import require_directory
from segue.spark.reading import read_task
from segue.stores.opening import directory_of, open_directory
from segue.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAGE: Final = "report.html"
PERIODS_MAX: Final = 400
"""With more of them, periods are longer."""
PERIODS: Final = {60: "minute", 3600: "hour", 86_400: "day"}
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ACCURACY: Final = 10_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where a report is, and what it goes by."""

    page: Path
    tables: Mapping[str, Path]
    period: str
    """minute, hour or day."""
    since: Mapping[str, datetime]
    """From when on the ledger of each queue tells waits, runs and retries."""


def report(
    spark: "SparkSession",
    url: str | os.PathLike[str],
    *,
    queue: str | None = None,
    topic: str | None = None,
    to: str | os.PathLike[str],
    allow_network: bool = False,
) -> Report:
    """Write a report of a queue, a topic, or all there are, into the directory `to`.

    What an earlier report left there is replaced. Raises LogNotFound, TopicNotFound, and
    InvalidArgument if something else is there.
    """
    require_directory(os.fspath(url), "a report")
    root = directory_of(url).absolute()
    target = directory_of(to).absolute()
    topics, queues = _chosen(root, topic, queue, allow_network=allow_network)
    _require_own(target)
    source = _Source(spark, root, allow_network=allow_network)
    with _kept(source.flows(topics, queues)) as flows:
        width_seconds = _width(flows)
        tasks, since_us = ledger_tasks(root, queues, allow_network=allow_network)
        with _kept(_deliveries(rows_of(spark, tasks, read_task, EVENT))) as deliveries:
            times = _times(deliveries, source.pushed(queues))
            frames = {
                "throughput": _throughput(flows, width_seconds),
                "depth": _depth(flows),
                "times": _percentiles(times, "queue", "what"),
                "times_by_period": _percentiles(
                    times.withColumn("period", _period(F.col("time_us") / 1e6, width_seconds)),
                    "queue",
                    "what",
                    "period",
                ),
                "attempts": deliveries.groupBy("queue", "attempt").agg(
                    F.count("*").alias("deliveries")
                ),
                "outcomes": _outcomes(deliveries, width_seconds),
                "deaths": _deaths(source.letters(queues), width_seconds),
            }
            tables = {name: _written(frame, target / name) for name, frame in frames.items()}
    since = {name: _EPOCH + timedelta(microseconds=moment) for name, moment in since_us.items()}
    page = target / PAGE
    page.write_text(
        page_of(
            _read_back(tables),
            store=str(root),
            period=PERIODS[width_seconds],
            width_seconds=width_seconds,
            queues=queues,
            since=since,
        ),
        encoding="utf-8",
    )
    return Report(page=page, tables=tables, period=PERIODS[width_seconds], since=since)


def _chosen(
    root: Path, topic: str | None, queue: str | None, *, allow_network: bool
) -> tuple[list[str], list[str]]:
    """Return the topics and queues that are meant, all of them if none is."""
    with open_directory(root, create=False, allow_network=allow_network) as store:
        topics, queues = store.topics(), store.queues()
    if topic is not None and topic not in topics:
        raise TopicNotFound(name=topic)
    if queue is not None and queue not in queues:
        raise LogNotFound(f"there is no queue {queue} in {root}")
    if topic is None and queue is None:
        return topics, queues
    return [topic] if topic is not None else [], [queue] if queue is not None else []


def _require_own(target: Path) -> None:
    """Raise InvalidArgument rather than replace what is no report."""
    if target.exists() and any(target.iterdir()) and not (target / PAGE).exists():
        raise InvalidArgument(f"{target} holds something else: give a directory of its own")
    target.mkdir(parents=True, exist_ok=True)


# What there is to read -------------------------------------------------------------------------


class _Source:
    """The tables of a store, with the columns that a report needs."""

    def __init__(self, spark: "SparkSession", root: Path, *, allow_network: bool) -> None:
        self._spark = spark
        self._root = root
        self._allow_network = allow_network

    def flows(self, topics: Sequence[str], queues: Sequence[str]) -> "DataFrame":
        """Return how many records came in which minute, those of queues by state and priority."""
        minute = F.floor(F.unix_seconds("timestamp") / 60).alias("minute")
        columns = ("kind", "name", "priority", "state")
        frames = [
            self._all(
                "topics",
                ["|".join(map(re.escape, topics))] if topics else [],
                "topic STRING, timestamp TIMESTAMP",
            ).selectExpr(
                "'topic' AS kind",
                "topic AS name",
                "CAST(NULL AS INT) AS priority",
                "CAST(NULL AS STRING) AS state",
                "timestamp",
            ),
            self._all(
                "queue", queues, "queue STRING, priority INT, state STRING, timestamp TIMESTAMP"
            ).selectExpr("'queue' AS kind", "queue AS name", "priority", "state", "timestamp"),
        ]
        return (
            frames[0]
            .unionByName(frames[1])
            .groupBy(*columns, minute)
            .agg(F.count("*").alias("records"))
        )

    def pushed(self, queues: Sequence[str]) -> "DataFrame":
        """Return when each message was pushed that is still there."""
        return self._all("queue", queues, "queue STRING, message_id STRING, timestamp TIMESTAMP")

    def letters(self, queues: Sequence[str]) -> "DataFrame":
        """Return what dead letters died of, and when."""
        return self._all(
            "dead_letters", queues, "queue STRING, cause STRING, reason STRING, died TIMESTAMP"
        )

    def _all(self, kind: str, names: Sequence[str], schema: str) -> "DataFrame":
        frames = [self._one(kind, name, schema) for name in names]
        if not frames:
            return self._spark.createDataFrame([], schema)
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _one(self, kind: str, name: str, schema: str) -> "DataFrame":
        return (
            self._spark.read.format("segue")
            .option("url", str(self._root))
            .option(kind, name)
            .option("failOnDataLoss", "false")
            .option("allowNetwork", str(self._allow_network).lower())
            .schema(schema)
            .load()
        )


@contextmanager
def _kept(frame: "DataFrame") -> Iterator["DataFrame"]:
    """Have a table made once for all that is made of it."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


# Tables ----------------------------------------------------------------------------------------


def _width(flows: "DataFrame") -> int:
    """Return how long a period is, so that there are not too many of them."""
    row = flows.agg(F.max("minute") - F.min("minute")).head()
    span_seconds = 60 * (0 if row is None or row[0] is None else int(row[0]))
    fitting = [width for width in PERIODS if span_seconds / width < PERIODS_MAX]
    return min(fitting, default=max(PERIODS))


def _period(seconds: "Column", width_seconds: int) -> "Column":
    return F.timestamp_seconds(F.floor(seconds / width_seconds) * width_seconds)


def _throughput(flows: "DataFrame", width_seconds: int) -> "DataFrame":
    period = _period(F.col("minute") * 60, width_seconds).alias("period")
    return flows.groupBy("kind", "name", period).agg(F.sum("records").alias("records"))


def _depth(flows: "DataFrame") -> "DataFrame":
    return (
        flows.where("kind = 'queue' AND state <> 'settled'")
        .groupBy(F.col("name").alias("queue"), "priority", "state")
        .agg(F.sum("records").alias("messages"))
    )


def _deliveries(events: "DataFrame") -> "DataFrame":
    """Return every delivery, with what came of it: by the order of events, whatever their token."""
    line = Window.partitionBy("queue", "lane", "offset").orderBy("place")
    ended = F.lead("what").over(line), F.lead("how").over(line), F.lead("time_us").over(line)
    later = F.when(F.col("lane") == ASIDE, F.lit("later")).otherwise(F.col("lane").cast("string"))
    followed = events.withColumns(
        {
            "message_id": F.concat_ws("-", later, F.col("offset").cast("string")),
            "outcome": F.when(F.col("what") == POPPED, F.lit("popped")).otherwise(
                _outcome(ended[0], ended[1])
            ),
            "ended_us": F.when(F.col("what") == POPPED, F.col("time_us")).when(
                ended[0].isin(*ENDS), ended[2]
            ),
        }
    )
    return followed.where(F.col("what").isin(*DELIVERIES)).select(
        "queue", "message_id", "what", "attempt", "time_us", "ended_us", "outcome"
    )


def _outcome(what: "Column", how: "Column") -> "Column":
    """Return in a word how a lease ended, null if it has not."""
    words = {(SETTLED, each.value): each.name.lower() for each in How}
    words |= {(RETURNED, each.value): each.name.lower() for each in Cause}
    outcome = F.when(what == BURIED, F.lit("dead"))
    for (kind, number), word in words.items():
        outcome = outcome.when((what == kind) & (how == number), F.lit(word))
    return outcome


def _times(deliveries: "DataFrame", pushed: "DataFrame") -> "DataFrame":
    """Return how long messages waited for their first delivery, and how long leases ran."""
    runs = deliveries.where((F.col("what") == LEASED) & F.col("ended_us").isNotNull()).select(
        "queue",
        F.lit("run").alias("what"),
        "time_us",
        ((F.col("ended_us") - F.col("time_us")) / 1e6).alias("seconds"),
    )
    waits = (
        deliveries.where("attempt = 1")
        .join(pushed, ["queue", "message_id"])
        .select(
            "queue",
            F.lit("wait").alias("what"),
            "time_us",
            ((F.col("time_us") - F.unix_micros("timestamp")) / 1e6).alias("seconds"),
        )
    )
    return runs.unionByName(waits).withColumn("seconds", F.greatest("seconds", F.lit(0.0)))


def _percentiles(times: "DataFrame", *by: str) -> "DataFrame":
    found = F.percentile_approx("seconds", list(PERCENTILES.values()), ACCURACY)
    return (
        times.groupBy(*by)
        .agg(F.count("*").alias("count"), found.alias("found"), F.max("seconds").alias("max"))
        .select(
            *by,
            "count",
            *(F.col("found")[place].alias(name) for place, name in enumerate(PERCENTILES)),
            "max",
        )
    )


def _outcomes(deliveries: "DataFrame", width_seconds: int) -> "DataFrame":
    period = _period(F.col("ended_us") / 1e6, width_seconds).alias("period")
    return (
        deliveries.where("outcome IS NOT NULL")
        .groupBy("queue", period, "outcome")
        .agg(F.count("*").alias("messages"))
    )


def _deaths(letters: "DataFrame", width_seconds: int) -> "DataFrame":
    period = _period(F.unix_seconds("died"), width_seconds).alias("period")
    pattern = pattern_of(F.coalesce(F.col("reason"), F.lit("")))
    return (
        letters.withColumn("pattern", pattern)
        .groupBy("queue", period, "cause", "pattern")
        .agg(F.count("*").alias("letters"))
    )


# Out -------------------------------------------------------------------------------------------


def _written(frame: "DataFrame", path: Path) -> Path:
    """Write a table, sorted: all of them are small."""
    sorted_ = frame.repartition(1).sortWithinPartitions(*frame.columns)
    sorted_.write.mode("overwrite").parquet(spark_directory(path))
    return path


def _read_back(tables: Mapping[str, Path]) -> Tables:
    """Return what was written, periods as seconds since 1970."""
    found = {}
    for name, path in tables.items():
        found[name] = pyarrow.parquet.read_table(path).to_pylist()
        for row in found[name]:
            if "period" in row:
                row["period"] = int(row["period"].replace(tzinfo=UTC).timestamp())
    return found
