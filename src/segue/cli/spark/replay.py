"""`segue spark replay`: Parquet, JSON and CSV files to a topic or queue."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.arguments import JsonOption, LimitOption
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.spark.running import MASTER_DEFAULT, ConfigOption, MasterOption, spark_session
from segue.cli.store_arguments import StoreArgument, SyncOption, opened_queue
from segue.cli.topic.arguments import opened_topic
from segue.log.options import Sync


class FileFormat(Enum):
    """What files hold."""

    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


def replay(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A file, a directory of files or an archive.", show_default=False
        ),
    ],
    url: StoreArgument,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="NAME", help="The topic to write to.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The queue to write to.", show_default=False)
    ] = None,
    format_: Annotated[
        FileFormat | None,
        typer.Option(
            "--format", help="What is in it; told from its name unless given.", show_default=False
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What becomes the value.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What becomes the key.", show_default=False),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What becomes the timestamp.", show_default=False),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="What becomes the priority.", show_default=False),
    ] = None,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Leave partitions out: keys say where to.")
    ] = False,
    limit: LimitOption = None,
    once: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write nothing if a run of this name has written before.",
            show_default=False,
        ),
    ] = None,
    sync: SyncOption = Sync.ALWAYS,
    master: MasterOption = MASTER_DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the rows of Parquet, JSON or CSV files to a topic or queue, all of them or none.

    If the files have a column value, it is written with what there is of key, headers, partition
    and timestamp, or for a queue of key, headers, priority and delay; other columns are left out.
    If they have none, the whole row becomes JSON in the value. Of an archive only what its
    manifests list is read.

    Each run writes everything again. With --once only the first run of a name that succeeds writes,
    however often it is repeated: use a name for one input only.

    Prints how many records were written, whether that was new, and a line for each column of the
    records (column, from which column or expression).

    \b
    Examples:
      segue spark replay archive/orders data --topic orders-again --once restore-1
      segue spark replay customers.csv data --topic customers --key id
      segue spark replay jobs.jsonl data --queue jobs --priority urgency
    """
    if (topic is None) == (queue is None):
        raise typer.BadParameter("give one of --topic and --queue", param_hint="--topic")
    if not source.exists():
        raise FileNotFoundError(2, "no such file or directory", str(source))
    # Before Spark is started, which takes long.
    with opened_topic(url, topic) if topic is not None else opened_queue(url, queue or ""):
        pass
    chosen = {"value": value, "key": key, "timestamp": timestamp, "priority": priority}
    with spark_session(master, config, doing=f"replaying {source.name}") as spark:
        from segue.spark.jobs.replay import replay as run

        report = run(
            spark,
            str(source),
            url=url,
            topic=topic,
            queue=queue,
            format=None if format_ is None else format_.value,
            columns={target: name for target, name in chosen.items() if name is not None},
            by_key=by_key,
            limit=limit,
            write_id=once,
            sync=sync.value,
        )
    show(
        Facts(
            items=[
                (Column("records", Kind.COUNT), report.records),
                (Column("is_new"), report.is_new),
                (Column("run_seconds", Kind.SECONDS), round(report.seconds, 3)),
            ]
        ),
        Rows(
            name="columns",
            mark="column",
            columns=(Column("column"), Column("from")),
            rows=list(report.columns.items()),
        ),
        as_json=as_json,
    )
