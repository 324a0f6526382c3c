"""`segue spark audit`: a whole store checked by many tasks at once."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.output import Column, Kind, Rows, show
from segue.cli.spark.running import MASTER_DEFAULT, ConfigOption, MasterOption, spark_session
from segue.cli.store_arguments import StoreDirectoryArgument

if TYPE_CHECKING:
    from segue.spark.jobs.audit import AuditReport

_FOUND: Final = (
    Column("kind"),
    Column("name"),
    Column("state"),
    Column("logs", Kind.COUNT),
    Column("segments", Kind.COUNT),
    Column("records", Kind.COUNT),
    Column("payload_bytes", Kind.SIZE),
    Column("corrupt", Kind.COUNT),
    Column("gaps", Kind.COUNT),
    Column("missing", Kind.COUNT),
    Column("duplicates", Kind.COUNT),
    Column("disorder", Kind.COUNT),
)
_DAMAGE: Final = (
    Column("kind"),
    Column("name"),
    Column("file"),
    Column("first_offset", Kind.COUNT),
    Column("last_offset", Kind.COUNT),
    Column("problem"),
)


def audit(
    path: StoreDirectoryArgument,
    *,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only this topic; may be repeated.",
            show_default=False,
        ),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            metavar="QUEUE",
            help="Only this queue; may be repeated.",
            show_default=False,
        ),
    ] = None,
    master: MasterOption = MASTER_DEFAULT,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every byte of a store, by many tasks at once. Changes nothing.

    Finds what 'segue verify' finds in segments, and counts what is missing between them, offsets
    and records of producers that are there twice, and records that are older than the one of the
    same key before them. That disorder is no damage: events may come late.

    Prints a line for each topic, queue, ring and lock, and one for each thing that is damaged
    (kind, name, file, first and last offset, problem). The exit code is 0 if nothing is damaged
    and 1 if something is.

    \b
    Examples:
      segue spark audit data
      segue spark audit data --topic orders --topic mail --json
    """
    with spark_session(master, config, doing=f"auditing {path}") as spark:
        from segue.spark.jobs.audit import audit as run

        report = run(spark, path, topics=topics, queues=queues)
    show(_found(report), _damage(report), as_json=as_json)
    if report.is_damaged:
        raise typer.Exit(ExitCode.DAMAGE_FOUND)


def _found(report: "AuditReport") -> Rows:
    rows = [
        (
            each.kind,
            each.name,
            "damaged" if each.is_damaged else "intact",
            each.logs,
            each.segments,
            each.records,
            each.payload_bytes,
            each.corrupt,
            each.gaps,
            each.missing,
            each.duplicates,
            each.disorder,
        )
        for each in report.found
    ]
    return Rows(name="found", mark="found", columns=_FOUND, rows=rows)


def _damage(report: "AuditReport") -> Rows:
    rows = [
        (each.kind, each.name, each.path, each.first_offset, each.last_offset, each.problem)
        for each in report.findings
    ]
    return Rows(name="damage", mark="damage", columns=_DAMAGE, rows=rows)
