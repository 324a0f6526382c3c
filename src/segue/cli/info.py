"""`segue info`: everything about one log that can be seen without reading it through."""

import contextlib
from pathlib import Path
from typing import Annotated, Final

import typer

from segue.cli import places
from segue.cli.arguments import JsonOption
from segue.cli.output import Column, Facts, Kind, Rows, Section, Value, show
from segue.cli.store_arguments import opened_store
from segue.cli.survey import is_store, limits_of, logs_at, quarantined, reader_states
from segue.errors import Damage
from segue.log import Log

_SEGMENT_COLUMNS: Final = (
    Column("id", Kind.COUNT),
    Column("first_offset", Kind.COUNT),
    Column("records", Kind.COUNT),
    Column("sealed"),
    Column("size_bytes", Kind.SIZE),
    Column("created", Kind.TIME),
)
_READER_COLUMNS: Final = (
    Column("name"),
    Column("offset", Kind.COUNT),
    Column("lag", Kind.COUNT),
    Column("problem"),
)


def info(
    url: Annotated[
        str,
        typer.Argument(
            metavar="LOG|STORE",
            parser=places.store_url,
            help="The directory of the log or store, or the URL of a server.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show the extent of a log, its segments and its readers.

    Of a store it shows what is in it, its logs and what they take up; on a server, which server
    that is. Also what the log takes at
    most, and what lies in its quarantine: files that recovery or repair set aside, which nothing
    reads and which may be deleted. A reader's lag is the number of records it has not committed
    yet.

    \b
    Examples:
      segue info jobs
      segue info redis://localhost
      segue info http://localhost:8000
    """
    if places.is_server(url):
        # Imported here: only who has a server to ask needs it.
        from segue.cli.server import server_facts

        show(server_facts(url), as_json=as_json)
        return
    path = Path(url)
    if is_store(path):
        show(*_store(path), as_json=as_json)
        return
    with Log(path, read_only=True) as log:
        show(_facts(log), _segments(log), _readers(log), _quarantine(log), as_json=as_json)


def _store(path: Path) -> list[Section]:
    with opened_store(str(path)) as store:
        counts = (
            (Column("queues", Kind.COUNT), len(store.queues())),
            (Column("topics", Kind.COUNT), len(store.topics())),
            (Column("rings", Kind.COUNT), len(store.rings())),
            (Column("locks", Kind.COUNT), len(store.locks())),
        )
    logs: list[tuple[Value, ...]] = []
    size_bytes = 0
    for place in logs_at(path):
        with Log(place, read_only=True) as log:
            logs.append((str(place), len(log), log.size_bytes))
            size_bytes += log.size_bytes
    facts = Facts(
        items=(
            (Column("path"), str(path)),
            *counts,
            (Column("size_bytes", Kind.SIZE), size_bytes),
        )
    )
    columns = (Column("log"), Column("records", Kind.COUNT), Column("size_bytes", Kind.SIZE))
    return [facts, Rows(name="logs", mark="log", columns=columns, rows=logs)]


def _facts(log: Log) -> Facts:
    first, stop = log.first_offset, log.next_offset
    limits = limits_of(log)
    return Facts(
        items=(
            (Column("path"), str(log.path)),
            (Column("first_offset", Kind.COUNT), first),
            (Column("next_offset", Kind.COUNT), stop),
            (Column("records", Kind.COUNT), len(log)),
            (Column("oldest", Kind.TIME), _time_at(log, first)),
            (Column("newest", Kind.TIME), _time_at(log, stop - 1)),
            (Column("size_bytes", Kind.SIZE), log.size_bytes),
            (Column("segment_bytes_max", Kind.SIZE), None if limits is None else limits.bytes_max),
            (
                Column("segment_records_max", Kind.COUNT),
                None if limits is None else limits.items_max,
            ),
            (
                Column("record_bytes_max", Kind.SIZE),
                None if limits is None else limits.payload_bytes_max,
            ),
        )
    )


def _time_at(log: Log, offset: int) -> int | None:
    """Return the time of a record, or None if it is not there, removed or damaged."""
    with contextlib.suppress(LookupError, Damage):
        return log.read(offset).time_us
    return None


def _segments(log: Log) -> Rows:
    return Rows(
        name="segments",
        mark="segment",
        columns=_SEGMENT_COLUMNS,
        rows=[
            (
                segment.id,
                segment.first_offset,
                segment.count,
                segment.sealed,
                segment.size_bytes,
                segment.created_us or None,
            )
            for segment in log.segments()
        ],
    )


def _readers(log: Log) -> Rows:
    stop = log.next_offset
    return Rows(
        name="readers",
        mark="reader",
        columns=_READER_COLUMNS,
        rows=[
            (
                reader.name,
                reader.offset,
                None if reader.offset is None else max(0, stop - reader.offset),
                reader.problem,
            )
            for reader in reader_states(log.path)
        ],
    )


def _quarantine(log: Log) -> Rows:
    return Rows(
        name="quarantine",
        mark="quarantine",
        columns=(Column("file"), Column("size_bytes", Kind.SIZE)),
        rows=[(str(path), path.stat().st_blocks * 512) for path in quarantined(log.path)],
    )
