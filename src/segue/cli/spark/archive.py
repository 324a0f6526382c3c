"""`segue spark archive`: a topic, or what a queue is done with, to Parquet."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, Rows, show
from segue.cli.places import directory
from segue.cli.spark.running import MASTER_DEFAULT, ConfigOption, MasterOption, spark_session
from segue.cli.store_arguments import StoreArgument, SyncOption, opened_queue
from segue.cli.topic.arguments import opened_topic, start_from
from segue.log.options import Sync

READER_DEFAULT = "archive"


def archive(
    url: StoreArgument,
    name: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="The name of the topic, or with --queue of the queue.",
            show_default=False,
        ),
    ],
    *,
    to: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The directory of the archive.", show_default=False),
    ],
    queue: Annotated[
        bool, typer.Option("--queue", help="Archive a queue: what is settled.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only what was appended before: an ISO 8601 time, or how long ago as in 1d.",
            show_default=False,
        ),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Then delete the segments that may go.")
    ] = False,
    reader: Annotated[
        str, typer.Option(metavar="NAME", help="The reader that retention waits for.")
    ] = READER_DEFAULT,
    skip_trimmed: Annotated[
        bool,
        typer.Option(
            "--skip-trimmed", help="Go on past what retention deleted before, with a warning."
        ),
    ] = False,
    sync: SyncOption = Sync.ALWAYS,
    master: MasterOption = MASTER_DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Archive what came since the last run, to Parquet files by date.

    Run it as often as you like: each run takes what is new, and interrupted at any moment, the
    next one goes on so that every record is in the archive once. Who reads the archive goes by
    its manifests, as segue.spark.table and 'segue spark replay' do.

    The place is kept as a reader of the topic, which follows behind the files: retention may delete
    what is archived, and not before. --clean has it do so at once.

    Of a queue only what is settled is archived, for as long as its rule --keep has it stay.

    Prints the number of the run, how many records, files and bytes were written, how many segments
    were deleted, and a line for each range of offsets (partition or priority, from, up to).

    \b
    Examples:
      segue spark archive data orders --to archive/orders
      segue spark archive data orders --to archive/orders --until 1d --clean
      segue spark archive data jobs --queue --to archive/jobs
    """
    # Before Spark is started, which takes long.
    moment = None if until is None else _moment(until)
    if queue:
        directory(url)
    with opened_queue(url, name) if queue else opened_topic(url, name):
        pass
    with spark_session(master, config, doing=f"archiving {name}") as spark:
        from segue.spark.jobs.archive import archive as run

        report = run(
            spark,
            url,
            topic=None if queue else name,
            queue=name if queue else None,
            to=str(to),
            until=moment,
            clean=clean,
            reader=reader,
            skip_trimmed=skip_trimmed,
            sync=sync.value,
        )
    show(
        Facts(
            items=[
                (Column("run", Kind.COUNT), report.run),
                (Column("records", Kind.COUNT), report.records),
                (Column("files", Kind.COUNT), report.files),
                (Column("size_bytes", Kind.SIZE), report.size_bytes),
                (Column("freed_segments", Kind.COUNT), report.freed_segments),
                (Column("freed_bytes", Kind.SIZE), report.freed_bytes),
                (Column("run_seconds", Kind.SECONDS), round(report.seconds, 3)),
            ]
        ),
        Rows(
            name="ranges",
            mark="range",
            columns=(
                Column("priority" if queue else "partition"),
                Column("from", Kind.COUNT),
                Column("up_to", Kind.COUNT),
            ),
            rows=[(label, start, stop) for label, (start, stop) in report.ranges.items()],
        ),
        as_json=as_json,
    )


def _moment(text: str) -> datetime:
    moment = start_from(text, "--until")
    if not isinstance(moment, datetime):
        raise typer.BadParameter(f"{text!r} is no time", param_hint="--until")
    return moment
