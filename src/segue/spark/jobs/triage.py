"""Dead letters by what they died of, and what is done about those that are chosen.

Numbers, ids, paths and quotations are left out of reasons, so that a million letters that say the
same of different orders are one group: one that has the same words everywhere in Segue.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark calls it

from segue.delivery import reasons
from segue.delivery.message import DeadLetter
from segue.errors import InvalidArgument, LogNotFound
from segue.spark.places import open_place, place_options
from segue.stores.contract import RedriveReport

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from segue.stores.contract import Queue

_T = TypeVar("_T")

GROUP_DIGITS: Final = 8
EXAMPLE_BYTES_MAX: Final = 1000


def dead_letters(
    spark: "SparkSession", url: str | os.PathLike[str], queue: str, *, allow_network: bool = False
) -> "DataFrame":
    """Return the dead letters of a queue, each with its `pattern` and its `group`."""
    letters = (
        spark.read.format("segue")
        .options(**place_options(os.fspath(url), allow_network=allow_network))
        .option("dead_letters", queue)
        .load()
    )
    pattern = pattern_of(F.coalesce(F.col("reason"), F.lit("")))
    cause = F.coalesce(F.col("cause"), F.lit(""))
    digest = F.sha2(F.concat_ws("\n", cause, pattern), 256)
    return letters.withColumns({"pattern": pattern, "group": F.substring(digest, 1, GROUP_DIGITS)})


def dead_letter_groups(
    spark: "SparkSession", url: str | os.PathLike[str], queue: str, *, allow_network: bool = False
) -> "DataFrame":
    """Return the groups of a queue's dead letters, the largest first.

    A group is named by what it died of, so that its name is the same tomorrow. Its example is the
    letter that died last.
    """
    return groups_of(dead_letters(spark, url, queue, allow_network=allow_network))


def groups_of(letters: "DataFrame") -> "DataFrame":
    """Return the groups of some of the letters that `dead_letters` returned."""
    example = F.struct("died", "offset", "message_id", "reason", "value")
    return (
        letters.groupBy("group", "cause", "pattern")
        .agg(
            F.count("*").alias("count"),
            F.min("died").alias("first_died"),
            F.max("died").alias("last_died"),
            F.max(example).alias("example"),
        )
        .select(
            "group",
            "cause",
            "pattern",
            "count",
            "first_died",
            "last_died",
            F.col("example.message_id").alias("example_id"),
            F.col("example.reason").alias("example_reason"),
            F.substring(F.col("example.value"), 1, EXAMPLE_BYTES_MAX).alias("example_value"),
        )
        .orderBy(F.desc("count"), "group")
    )


def pattern_of(reason: "Column") -> "Column":
    """Return what reasons have in common, as the dashboard and `segue queue dead` say it."""
    return F.udf(reasons.pattern_of, "string", useArrow=False)(reason)  # Which needs no pandas.


def redrive(
    spark: "SparkSession",
    url: str | os.PathLike[str],
    queue: str,
    letters: "DataFrame | str",
    *,
    rate: float | None = None,
    dry_run: bool = False,
    allow_network: bool = False,
) -> RedriveReport:
    """Bring exactly these dead letters back to the front of their priority, and say how many.

    `letters` has a column `message_id`, or `offset` among the dead letters, or is a condition in
    SQL on the columns of `dead_letters`. What died no more, or was redriven meanwhile, is passed
    over. Raises InvalidArgument, LogNotFound.
    """
    where = _choice(spark, url, queue, letters, allow_network=allow_network)
    return _with_queue(
        url,
        queue,
        lambda found: found.redrive(where=where, rate=rate, dry_run=dry_run),
        allow_network=allow_network,
    )


def discard(
    spark: "SparkSession",
    url: str | os.PathLike[str],
    queue: str,
    letters: "DataFrame | str",
    *,
    dry_run: bool = False,
    allow_network: bool = False,
) -> int:
    """Drop exactly these dead letters for good and return how many, or how many it would be.

    `letters` is what `redrive` takes. Raises InvalidArgument, LogNotFound.
    """
    where = _choice(spark, url, queue, letters, allow_network=allow_network)

    def drop(found: "Queue") -> int:
        if dry_run:
            return found.redrive(where=where, dry_run=True).matched
        return found.discard(where=where)

    return _with_queue(url, queue, drop, allow_network=allow_network)


def choice_of(letters: "DataFrame") -> Callable[[DeadLetter], bool]:
    """Return what says yes to these letters and no others; it holds their ids in memory.

    Raises InvalidArgument if there is no column to go by.
    """
    # By id first: in a table of the whole queue the offset is another one.
    for column in ("message_id", "offset"):
        if column in letters.columns:
            break
    else:
        raise InvalidArgument(
            "letters need a column message_id, or offset among the dead letters; "
            f"there are {', '.join(letters.columns)}"
        )
    chosen = {row[0] for row in letters.select(column).distinct().toLocalIterator()}
    if column == "message_id":
        return lambda letter: letter.message.id in chosen
    return lambda letter: letter.number in chosen


def _choice(
    spark: "SparkSession",
    url: str | os.PathLike[str],
    queue: str,
    letters: "DataFrame | str",
    *,
    allow_network: bool,
) -> Callable[[DeadLetter], bool]:
    if isinstance(letters, str):
        letters = dead_letters(spark, url, queue, allow_network=allow_network).where(letters)
    return choice_of(letters)


def _with_queue(
    url: str | os.PathLike[str],
    name: str,
    act: "Callable[[Queue], _T]",
    *,
    allow_network: bool,
) -> _T:
    with open_place(os.fspath(url), allow_network=allow_network) as store:
        if name not in store.queues():
            raise LogNotFound(f"there is no queue {name} in {store.url}")
        return act(store.queue(name))
