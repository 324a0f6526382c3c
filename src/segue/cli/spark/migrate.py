"""`segue spark migrate`: what queues of old were exported as, of any size, into a queue."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.spark.running import MASTER_DEFAULT, ConfigOption, MasterOption, spark_session
from segue.cli.store_arguments import QueueArgument, StoreArgument

if TYPE_CHECKING:
    from segue.spark.jobs.migrate import MigrateReport


def migrate(
    url: StoreArgument,
    name: QueueArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The exported state.", show_default=False)
    ],
    *,
    write_id: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What the same write is known by; the file's content unless given.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only read and check the file.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push everything from an exported state of a queue, however large, all of it or nothing.

    Reads what 'segue import' reads: v3 (queue_0 and metadata) and v4 (queue_0_seg_0 and metadata),
    as one JSON object or as one on each line. Priorities and order are kept; items that were out
    on a lock come first in their priority. Where the metadata says something else than the
    segments, all items are pushed, the mismatch is shown and the exit code is 10. A file that is
    no such state, or has anything in it that is no JSON, is refused before anything is written.

    The same content is pushed once, however often this is run: 'repeated' says that it was there
    before. Makes the store and the queue if there is none.

    \b
    Examples:
      segue spark migrate data mail state.json --dry-run
      segue spark migrate data mail state.json
    """
    with spark_session(master, config, doing=f"migrating {file}") as spark:
        from segue.spark.jobs.migrate import migrate as run

        report = run(spark, file, url, name, write_id=write_id, dry_run=dry_run)
    _show(report, as_json=as_json)
    if report.mismatches:
        raise typer.Exit(ExitCode.MISMATCH)


def _show(report: "MigrateReport", *, as_json: bool) -> None:
    show(
        Facts(
            items=(
                (Column("format"), report.format),
                (Column("items", Kind.COUNT), report.count),
                (Column("returned", Kind.COUNT), report.returned),
                (Column("pushed", Kind.COUNT), report.pushed),
                (Column("repeated"), report.is_repeated),
            )
        ),
        Rows(
            name="priorities",
            mark="priority",
            columns=(Column("priority", Kind.COUNT), Column("items", Kind.COUNT)),
            rows=list(report.items.items()),
        ),
        Rows(
            name="mismatches",
            mark="mismatch",
            columns=(Column("key"), Column("what"), Column("stated"), Column("found")),
            rows=[(each.key, each.what, each.stated, each.found) for each in report.mismatches],
        ),
        as_json=as_json,
    )
