"""`segue tail`: the last records, and those that come."""

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
from segue.cli.following import Limit, arriving
from segue.cli.parsing import duration
from segue.cli.payloads import payload_writer
from segue.log import Log, Reader

RECORDS_DEFAULT: Final = 10


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
        wanted = Limit(limit)
        for records in arriving(
            lambda count_max, pause: source.read(count_max, timeout=pause),
            wanted,
            timeout_seconds=timeout if follow else 0,
        ):
            for record in records:
                writer.write(record)
            writer.flush()
            wanted.took(len(records))
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
