"""`segue cat`: the records that are there."""

from itertools import islice
from typing import Annotated

import typer

from segue.cli.arguments import (
    JsonOption,
    LimitOption,
    LogArgument,
    NullOption,
    OffsetsOption,
    SkipDamageOption,
    start_from,
)
from segue.cli.payloads import payload_writer
from segue.log import Log


def cat(
    path: LogArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: earliest, latest, an offset or an ISO 8601 time.",
        ),
    ] = "earliest",
    stop: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="OFFSET",
            min=0,
            help="Where to end: the first offset not printed.",
            show_default=False,
        ),
    ] = None,
    limit: LimitOption = None,
    skip_damage: SkipDamageOption = False,
    offsets: OffsetsOption = False,
    null: NullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print the records that are there, one per line, as they are.

    A time without a zone is local; the first record not older than it is the first one printed.
    With --json each line is an object with offset, time, attr and payload; a payload that is not
    UTF-8 is in payload_base64 instead. Ends at the end of the log: 'segue tail' waits for more.

    \b
    Examples:
      segue cat jobs --from 100 --to 200
      segue cat jobs --from 2026-01-31T08:00:00Z --json | jq .payload
    """
    begin = start_from(start)
    with (
        Log(path, read_only=True) as log,
        payload_writer(as_json=as_json, offsets=offsets, null=null) as writer,
    ):
        records = log.records(begin, stop=stop, on_damage="skip" if skip_damage else "raise")
        for record in islice(records, limit):
            writer.write(record)
