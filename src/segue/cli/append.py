"""`segue append`: lines or files into records."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from segue.cli.arguments import JsonOption, LogArgument
from segue.cli.lines import batches
from segue.cli.output import is_terminal, show_json, show_line
from segue.cli.payloads import NEWLINE, NUL
from segue.cli.survey import limits_of
from segue.errors import RecordTooLarge
from segue.log import Log
from segue.log.layout import SegmentHeader
from segue.log.options import Sync

BATCH_LINES_DEFAULT: Final = 1000


class _Appended:
    """Counts what was appended, to say so at the end, whatever the end is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = 0
        self._first = self._last = -1

    def add(self, first_offset: int, count: int) -> None:
        if not self._records:
            self._first = first_offset
        self._last = first_offset + count - 1
        self._records += count

    def show(self, *, as_json: bool) -> None:
        if as_json:
            first, last = (self._first, self._last) if self._records else (None, None)
            show_json(
                {
                    "path": str(self._path),
                    "records": self._records,
                    "first_offset": first,
                    "last_offset": last,
                }
            )
        elif not is_terminal():
            if self._records:
                show_line(f"{self._first}\t{self._last}\t{self._records}")
        elif self._records:
            show_line(f"appended {self._records:,}: offsets {self._first} to {self._last}")
        else:
            show_line("appended nothing")


def append(
    path: LogArgument,
    *,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="Append this whole file as one record instead; may be repeated.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Append at most N lines at once.")
    ] = BATCH_LINES_DEFAULT,
    null: Annotated[bool, typer.Option("--null", "-0", help="Lines end with NUL.")] = False,
    sync: Annotated[
        Sync, typer.Option(help="When records reach the device: at once, soon, or some time.")
    ] = Sync.ALWAYS,
    as_json: JsonOption = False,
) -> None:
    """Append each line of standard input as a record. Makes the log if there is none.

    Lines may hold any bytes; the newline is not part of the record, and a last line without one
    counts. Lines that are there together are appended as one batch, all or nothing even if the
    power fails; a line never waits for others that may come later.

    Prints the first offset, the last one and the number of records. Other writers may have
    appended in between.

    \b
    Examples:
      journalctl -f | segue append journal --sync interval
      segue append photos --file cat.jpg --file dog.jpg
      find . -print0 | segue append names --null
    """
    with Log(path, sync=sync.value) as log:
        limits = limits_of(log)
        assert limits is not None  # Opening to write has made sure of a segment.
        appended = _Appended(path)
        try:
            if files:
                sources = _files(files, limits)
            else:
                sources = batches(
                    sys.stdin.fileno(),
                    NUL if null else NEWLINE,
                    lines_max=min(batch, limits.items_max),
                    batch_bytes_max=limits.payload_bytes_max,
                )
            for payloads in sources:
                appended.add(log.append_many(payloads), len(payloads))
        finally:
            appended.show(as_json=as_json)


def _files(paths: list[Path], limits: SegmentHeader) -> Iterator[list[bytes]]:
    size_bytes_max = limits.payload_bytes_max
    for path in paths:
        with path.open("rb") as file:
            # No more than could fit: what looks like a file may never end.
            payload = file.read(size_bytes_max + 1)
        if len(payload) > size_bytes_max:
            size_bytes = max(path.stat().st_size, len(payload))
            raise RecordTooLarge(size_bytes=size_bytes, size_bytes_max=size_bytes_max)
        yield [payload]
