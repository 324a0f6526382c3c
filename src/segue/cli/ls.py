"""`segue ls`: which logs there are."""

from pathlib import Path
from typing import Annotated, Final

import typer

from segue.cli import places, stderr
from segue.cli.arguments import JsonOption
from segue.cli.exits import ExitCode, exit_code_of
from segue.cli.holdings import Holdings
from segue.cli.output import Column, Kind, Rows, Value, is_terminal, show, show_line
from segue.cli.store_arguments import opened_store
from segue.cli.survey import find_logs, is_store, reader_names
from segue.errors import SegueError
from segue.log import Log

_COLUMNS: Final = (
    Column("log"),
    Column("next_offset", Kind.COUNT),
    Column("records", Kind.COUNT),
    Column("segments", Kind.COUNT),
    Column("size_bytes", Kind.SIZE),
    Column("readers", Kind.COUNT),
    Column("problem"),
)


def ls(
    url: Annotated[
        str,
        typer.Argument(
            metavar="DIR|STORE",
            parser=places.store_url,
            help="Where to look: a directory, or the URL of a server.",
            show_default=False,
        ),
    ] = ".",
    as_json: JsonOption = False,
) -> None:
    """List the logs at and below a directory, or what a store holds, there or on a server.

    A store's queues, topics, rings and locks are listed each with how it stands. Elsewhere a log is
    a directory that holds segment files, such as 000000000.q. Sizes are what a log takes up on the
    device. A log that cannot be opened is listed with its problem, and the exit code is that of the
    first such problem.

    \b
    Examples:
      segue ls /var/lib/myapp
      segue ls redis://localhost
      segue ls http://localhost:8000
    """
    directory = Path(url)
    if places.is_server(url) or is_store(directory):
        _list_store(url, as_json=as_json)
    code = ExitCode.OK
    rows: list[tuple[Value, ...]] = []
    for path in find_logs(directory, lambda error: stderr.warn(error, as_json=as_json)):
        try:
            rows.append(_row(path))
        except SegueError as error:
            rows.append((str(path), None, None, None, None, None, str(error)))
            code = code or exit_code_of(error)
    if not rows and is_terminal() and not as_json:
        show_line(f"no logs in {directory}")
    show(Rows(name="logs", columns=_COLUMNS, rows=rows), as_json=as_json)
    raise typer.Exit(code)


def _list_store(url: str, *, as_json: bool) -> None:
    with opened_store(url) as store:
        holdings = Holdings(store, marks=True)
        sections = holdings.queues(), holdings.topics(), holdings.rings(), holdings.locks()
    if not any(section.rows for section in sections) and is_terminal() and not as_json:
        show_line(f"nothing in {places.without_passwords(url)}")
    show(*sections, as_json=as_json)
    raise typer.Exit(holdings.code)


def _row(path: Path) -> tuple[Value, ...]:
    with Log(path, read_only=True) as log:
        return (
            str(path),
            log.next_offset,
            len(log),
            len(log.segments()),
            log.size_bytes,
            len(reader_names(path)),
            None,
        )
