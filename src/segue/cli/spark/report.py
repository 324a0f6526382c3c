"""`segue spark report`: how topics and queues have been doing, as tables and a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.spark.running import MASTER_DEFAULT, ConfigOption, MasterOption, spark_session
from segue.cli.store_arguments import StoreDirectoryArgument

if TYPE_CHECKING:
    from segue.spark.jobs.report import Report


def report(
    path: StoreDirectoryArgument,
    to: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="Where the report is written.", show_default=False
        ),
    ],
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Only this topic.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only this queue.", show_default=False)
    ] = None,
    master: MasterOption = MASTER_DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write how topics and queues have been doing: Parquet tables and one HTML page.

    Throughput over time, how long messages waited and were worked on (p50, p90, p99, max), how
    often they were tried and how that ended, what dead letters died of, and what waits. Times are
    known since the last checkpoints of a queue's ledger; the page says since when. The page,
    report.html, needs nothing else and no network. What an earlier report left is replaced.

    Prints where the page is, how long a period of its plots is, a line for each table (name,
    directory) and one for each queue (name, times known since).

    \b
    Examples:
      segue spark report data /tmp/report
      segue spark report data /tmp/report --queue mail
    """
    with spark_session(master, config, doing=f"reporting on {path}") as spark:
        from segue.spark.jobs.report import report as run

        written = run(spark, path, queue=queue, topic=topic, to=to)
    _show(written, as_json=as_json)


def _show(report: "Report", *, as_json: bool) -> None:
    show(
        Facts(items=((Column("page"), str(report.page)), (Column("period"), report.period))),
        Rows(
            name="tables",
            mark="table",
            columns=(Column("table"), Column("directory")),
            rows=[(name, str(directory)) for name, directory in report.tables.items()],
        ),
        Rows(
            name="queues",
            mark="queue",
            columns=(Column("queue"), Column("since", Kind.TIME)),
            rows=[
                (name, round(since.timestamp() * 1_000_000)) for name, since in report.since.items()
            ],
        ),
        as_json=as_json,
    )
