"""`segue spark triage`: dead letters by what they died of, and what is done about them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import NotFound
from segue.cli.output import Column, Facts, Kind, Rows, Value, show
from segue.cli.spark.running import MASTER_DEFAULT, ConfigOption, MasterOption, spark_session
from segue.cli.store_arguments import (
    QueueArgument,
    StoreArgument,
    YesOption,
    ask_first,
    opened_queue,
    require_yes,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from segue.delivery.message import DeadLetter

GROUPS_MAX: Final = 1000
"""How many groups are shown; there are more only if something else tells letters apart."""

_COLUMNS: Final = (
    Column("group"),
    Column("cause"),
    Column("count", Kind.COUNT),
    Column("first_died", Kind.TIME),
    Column("last_died", Kind.TIME),
    Column("pattern"),
    Column("example_id"),
    Column("example_value"),
)


def triage(
    url: StoreArgument,
    name: QueueArgument,
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="GROUP...", help="Only these groups.", show_default=False),
    ] = None,
    *,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only letters for which this holds.", show_default=False),
    ] = None,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Bring the letters back to be delivered again.")
    ] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Drop the letters for good.")] = False,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Bring back at most so many a second.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the letters that are meant.")
    ] = False,
    yes: YesOption = False,
    master: MasterOption = MASTER_DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group the dead letters of a queue by what they died of; redrive or discard some of them.

    Letters are of one group if they have the same cause, and the same reason once numbers, ids,
    times, paths and quotations are left out. A group has the same name whenever it is asked for.

    Prints the groups, the largest first, each with the letter that died last as an example. With
    --redrive or --discard it prints how many letters were meant, and for how many it was done.
    Those need a GROUP or --where, which may name all columns of dead letters and 'pattern';
    --where true means all letters. Before letters are dropped it asks; without a terminal --yes or
    --dry-run is needed.

    \b
    Examples:
      segue spark triage data mail
      segue spark triage data mail 5f0c9a1e --redrive --rate 100
      segue spark triage data mail --where "attempt > 3 AND reason LIKE '%address%'" --discard
    """
    if redrive and discard:
        raise typer.BadParameter("it is --redrive or --discard, not both")
    if (redrive or discard) and not groups and where is None:
        raise typer.BadParameter("of which letters? Name a GROUP, or give --where")
    if discard and not dry_run:
        require_yes(yes, as_json=as_json)
    with spark_session(master, config, doing=f"reading the dead letters of {name}") as spark:
        letters = _chosen(spark, url, name, groups or [], where)
        if not redrive and not discard:
            rows = _rows(letters)
        else:
            from segue.spark.jobs.triage import choice_of

            choice = choice_of(letters)
    if redrive:
        _redrive(url, name, choice, rate=rate, dry_run=dry_run, as_json=as_json)
    elif discard:
        _discard(url, name, choice, yes=yes, dry_run=dry_run, as_json=as_json)
    else:
        show(Rows(name="groups", columns=_COLUMNS, rows=rows), as_json=as_json)


def _chosen(
    spark: "SparkSession", url: str, name: str, groups: list[str], where: str | None
) -> "DataFrame":
    from segue.spark.jobs.triage import dead_letters

    letters = dead_letters(spark, url, name)
    if groups:
        there = {row[0] for row in letters.select("group").distinct().collect()}
        if missing := sorted(set(groups) - there):
            raise NotFound(f"there is no group {', '.join(missing)} of dead letters in {name}")
        letters = letters.where(letters["group"].isin(groups))
    return letters if where is None else letters.where(where)


def _rows(letters: "DataFrame") -> list[tuple[Value, ...]]:
    from pyspark.sql.functions import unix_micros

    from segue.spark.jobs.triage import groups_of

    found = groups_of(letters).limit(GROUPS_MAX)
    shown = found.withColumns(
        {moment: unix_micros(found[moment]) for moment in ("first_died", "last_died")}
    )
    return [
        (
            row["group"],
            row["cause"],
            row["count"],
            row["first_died"],
            row["last_died"],
            row["pattern"],
            row["example_id"],
            bytes(row["example_value"]).decode(errors="backslashreplace"),
        )
        for row in shown.collect()
    ]


def _redrive(
    url: str,
    name: str,
    choice: "Callable[[DeadLetter], bool]",
    *,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    with opened_queue(url, name) as queue:
        report = queue.redrive(where=choice, rate=rate, dry_run=dry_run)
    _show_done(report.matched, "redriven", report.redriven, as_json=as_json)


def _discard(
    url: str,
    name: str,
    choice: "Callable[[DeadLetter], bool]",
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    with opened_queue(url, name) as queue:
        matched = queue.redrive(where=choice, dry_run=True).matched
        discarded = 0
        if matched and not dry_run:
            ask_first(f"Drop {matched:,} dead letters of {name} for good?", yes=yes)
            discarded = queue.discard(where=choice)
    _show_done(matched, "discarded", discarded, as_json=as_json)


def _show_done(matched: int, what: str, count: int, *, as_json: bool) -> None:
    show(
        Facts(items=((Column("matched", Kind.COUNT), matched), (Column(what, Kind.COUNT), count))),
        as_json=as_json,
    )
