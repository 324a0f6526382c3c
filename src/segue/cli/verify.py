"""`segue verify`: whether every byte is as it was written."""

from pathlib import Path
from typing import Annotated, Final

import typer

from segue.cli import places
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode
from segue.cli.findings import check_log, findings_rows
from segue.cli.output import Column, Kind, Rows, show
from segue.cli.survey import is_store, logs_at
from segue.cli.topic_findings import topic_findings
from segue.log import Log

_COLUMNS: Final = (
    Column("log"),
    Column("state"),
    Column("records", Kind.COUNT),
    Column("removed", Kind.COUNT),
    Column("segments", Kind.COUNT),
    Column("readers", Kind.COUNT),
    Column("payload_bytes", Kind.SIZE),
)


def verify(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG|STORE...",
            parser=places.store_url,
            help="The logs and stores to check: directories, or URLs of servers.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check every byte of logs and of their readers' positions. Changes nothing.

    Of a store all logs are checked, and what its topics have beside them. The exit code is 0 if all
    is intact and 1 if anything is damaged; 'segue repair' sets damage of a log aside. Records are
    counted intact, with those removed on purpose among them. On a server every queue is checked for
    what contradicts itself; of a Segue server it is the store behind it that can be checked.

    \b
    Example:
      segue verify jobs events && echo intact
    """
    servers = [url for url in urls if places.is_server(url)]
    paths = [Path(url) for url in urls if not places.is_server(url)]
    for url in servers:
        # Imported here, and below: only who has a server to ask needs it.
        from segue.cli.server import require_auditable

        require_auditable(url)
    # All are found before the first is checked: a misspelt name shows at once.
    logs = [log for path in paths for log in logs_at(path)]
    checks = []
    for place in logs:
        with Log(place, read_only=True) as log:
            checks.append(check_log(log))
    overview = Rows(
        name="logs",
        mark="log",
        columns=_COLUMNS,
        rows=[
            (
                str(check.path),
                check.state,
                check.records,
                check.removed,
                check.segments,
                check.readers,
                check.payload_bytes,
            )
            for check in checks
        ],
    )
    findings = [finding for check in checks for finding in check.findings]
    for store in filter(is_store, paths):
        findings += topic_findings(store)
    sections = [overview]
    if servers:
        from segue.cli.server import audit, audit_findings, audit_rows

        audits = {url: audit(url) for url in servers}
        sections.append(audit_rows(audits))
        findings += audit_findings(audits)
    show(*sections, findings_rows(findings, with_remedies=False), as_json=as_json)
    if findings:
        raise typer.Exit(ExitCode.DAMAGE_FOUND)
