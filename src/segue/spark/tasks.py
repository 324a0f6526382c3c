"""What became of tasks, as a table: derived from the events that workers append.

`segue.spark` has it, so what needs more than PySpark is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TASKS_TOPIC: Final = "segue.tasks"  # As segue.tasks.events has it, which is of another extra.

_TEXTS: Final = ("task", "worker", "error", "traceback", "result", "args", "schedule")
_TIMES: Final = {"pushed": "pushed_us", "started": "started_us", "due": "due_us"}


def tasks(spark: "SparkSession", url: str, *, events: bool = False) -> "DataFrame":
    """Return the tasks of a store as their last events have them; with `events`, every event.

    Columns: id, queue, task, state, at, attempt, pushed, started, due, worker, error, traceback,
    result and args as JSON, schedule, offset. What no worker has taken yet, or has for a moment
    only, is not among them: the queue's own table has it. Raises TopicNotFound.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    from segue.spark.places import absolute

    read = spark.read.format("segue").option("url", absolute(url))
    rows = (
        read.option("topic", TASKS_TOPIC)
        .option("valueFormat", "string")
        .schema("value string, offset long")
        .load()
    )
    rows = rows.select(
        _field("id").alias("id"),
        sql.split(_field("id"), "/")[0].alias("queue"),
        *(_field(name).alias(name) for name in _TEXTS[:1]),
        _field("happened").alias("state"),
        _moment("at_us").alias("at"),
        sql.coalesce(_field("attempt").cast("int"), sql.lit(0)).alias("attempt"),
        *(_moment(field).alias(name) for name, field in _TIMES.items()),
        *(_field(name).alias(name) for name in _TEXTS[1:]),
        "offset",
    )
    if events:
        return rows
    # Who says something late of an earlier attempt is not heard: its lease was lost.
    # And a queue that was removed and made anew gives its ids again, to what is pushed later.
    latest = Window.partitionBy("id").orderBy(
        sql.desc("pushed"), sql.desc("attempt"), sql.desc("offset")
    )
    return (
        rows.where(sql.col("state") != "progress")
        .withColumn("rank", sql.row_number().over(latest))
        .where("rank = 1")
        .drop("rank")
        .withColumn(
            "state",
            sql.when(sql.col("state") == "lost", "retrying").otherwise(sql.col("state")),
        )
    )


def _field(name: str) -> "Column":
    from pyspark.sql import functions as sql

    return sql.get_json_object("value", f"$.{name}")


def _moment(name: str) -> "Column":
    from pyspark.sql import functions as sql

    return sql.timestamp_micros(_field(name).cast("long"))
