"""`segue tail`: the last records, and those that come."""

import select
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from segue.cli.arguments import (
    JsonOption,
    LimitOption,
    LogArgument,
    NullOption,
    OffsetsOption,
    SkipDamageOption,
)
from segue.cli.parsing import duration
from segue.cli.payloads import payload_writer
from segue.log import Log, Reader, Record
from segue.log.reader import FETCH_ITEMS_MAX

RECORDS_DEFAULT: Final = 10
LOOK_SECONDS: Final = 0.5
"""How often a silent tail looks whether anyone still reads its output."""


def tail(
    path: LogArgument,
    *,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--count",
            metavar="N",
            min=0,
            help="Begin with the last N records.",
            show_default=str(RECORDS_DEFAULT),
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for records to come.")
    ] = True,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=duration,
            help="End when no record comes for so long.",
            show_default=False,
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Resume from this named reader's position, and commit what was printed.",
            show_default=False,
        ),
    ] = None,
    limit: LimitOption = None,
    skip_damage: SkipDamageOption = False,
    offsets: OffsetsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the last records, then those that come.

    One record per line, until Ctrl-C. That is the usual end and gives exit code 130; --timeout,
    --limit and --no-follow end with 0.

    With --reader it begins where that reader last committed, or at the earliest record, and
    commits whatever has been handed to the output: a record is printed again after a crash rather
    than lost. This opens the log to write, so it needs permission to, and no exclusive owner.

    \b
    Examples:
      segue tail jobs -n 0 --json
      segue tail jobs --reader audit --no-follow >> audit.txt
    """
    if reader is not None and count is not None:
        raise typer.BadParameter("a reader begins where it left off", param_hint="-n")
    with (
        Log(path, read_only=reader is None, create=False) as log,
        _open_reader(log, reader, count, skip_damage=skip_damage) as source,
        payload_writer(as_json=as_json, offsets=offsets, null=null) as writer,
    ):
        for records in _arriving(source, limit=limit, timeout_seconds=timeout if follow else 0):
            for record in records:
                writer.write(record)
            writer.flush()
            if reader is not None:
                source.commit()


def _open_reader(log: Log, name: str | None, count: int | None, *, skip_damage: bool) -> Reader:
    on_damage: Final = "skip" if skip_damage else "raise"
    if name is not None:
        return log.reader(name, on_damage=on_damage)
    wanted = RECORDS_DEFAULT if count is None else count
    start = max(log.first_offset, log.next_offset - wanted)
    # In a log open to read a reader is a place and no more: its name is written nowhere.
    return log.reader("tail", start, on_damage=on_damage)


def _arriving(
    reader: Reader, *, limit: int | None, timeout_seconds: float | None
) -> Iterator[list[Record]]:
    """Yield records as they come, until none comes for `timeout_seconds`.

    Raises BrokenPipeError once nobody reads the output, also while there is nothing to print.
    """
    left = limit
    last_came = time.monotonic()
    while left is None or left > 0:
        pause = LOOK_SECONDS
        if timeout_seconds is not None:
            pause = min(pause, max(0.0, last_came + timeout_seconds - time.monotonic()))
        count_max = FETCH_ITEMS_MAX if left is None else min(left, FETCH_ITEMS_MAX)
        records = reader.read(count_max, timeout=pause)
        if records:
            yield records
            last_came = time.monotonic()
            left = None if left is None else left - len(records)
        elif pause == 0:
            return
        elif not _output_is_read():
            raise BrokenPipeError


def _output_is_read() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # No events asked for: only errors are told.
    return not poll.poll(0)
