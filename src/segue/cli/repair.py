"""`segue repair`: damage set aside, so that reading goes on past it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from segue.cli.arguments import JsonOption, LogArgument
from segue.cli.exits import ExitCode
from segue.cli.findings import Check, check_log, findings_rows
from segue.cli.output import Column, Facts, Kind, Rows, Section, Value, show
from segue.cli.survey import quarantined
from segue.log import Log


def repair(
    path: LogArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what is damaged and what would be done.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Set damaged records aside so that reading goes on past them.

    Checks everything first, as 'segue verify' does, and shows what a repair would do. Intact
    records stay where they are, offsets do not change and damaged records read as removed. What
    is replaced is kept in the log's directory 'quarantine'. A reader whose position is damaged
    starts over from the earliest record.

    Asks before anything is changed; without a terminal --yes is needed. The exit code is 1 if
    damage is left: after --dry-run, after a "no", or where a repair could not do it all.

    \b
    Examples:
      segue repair jobs --dry-run
      segue repair jobs --yes
    """
    asks = sys.stdin.isatty() and not as_json
    if not (asks or yes or dry_run):
        raise typer.BadParameter(
            "without a terminal to ask on it takes --yes or --dry-run", param_hint="--yes"
        )
    with Log(path, read_only=True) as log:
        check = check_log(log)
    found = findings_rows(check.findings, with_remedies=True)
    if not as_json:
        show(found, as_json=False)
        sys.stdout.flush()  # Before the question, and before anything is changed.
    done: list[Section] = []
    if check.findings and not dry_run and (yes or typer.confirm("Repair?", err=True)):
        done, check = _repair(path)
    state = Facts(items=[(Column("state"), check.state)])
    if as_json:
        show(found, *done, state, as_json=True)
    else:
        show(*done, state, as_json=False)
    if check.findings:
        raise typer.Exit(ExitCode.DAMAGE_FOUND)


def _repair(path: Path) -> tuple[list[Section], Check]:
    """Repair the log and return what was done, and how it is now."""
    before = quarantined(path)
    with Log(path, create=False) as log:
        report = log.repair()
    with Log(path, read_only=True) as log:
        check = check_log(log)
    # Compared and not taken from the report: opening may have set something aside before.
    kept = [str(file) for file in quarantined(path) if file not in before]
    return [
        Facts(items=[(Column("removed_records", Kind.COUNT), report.removed_records)]),
        _one_column("segments", "segment", Column("id", Kind.COUNT), report.segments),
        _one_column("readers", "reader", Column("name"), report.readers),
        _one_column("quarantined", "quarantined", Column("file"), kept),
    ], check


def _one_column(name: str, mark: str, column: Column, values: Sequence[Value]) -> Rows:
    return Rows(name=name, mark=mark, columns=[column], rows=[(value,) for value in values])
