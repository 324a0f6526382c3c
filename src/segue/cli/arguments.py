"""Arguments that several verbs share, and what they mean."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from segue.cli import places
from segue.log import Start

LogArgument = Annotated[
    Path,
    typer.Argument(
        metavar="LOG",
        parser=places.directory,
        help="The directory of the log.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
OffsetsOption = Annotated[
    bool, typer.Option("--offsets", help="Put the offset and a tab before each record.")
]
NullOption = Annotated[bool, typer.Option("--null", "-0", help="End each record with NUL.")]
SkipDamageOption = Annotated[
    bool, typer.Option("--skip-damage", help="Go on past damaged records, with a warning.")
]
LimitOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="End after N records.", show_default=False),
]


def start_from(text: str, hint: str = "--from") -> Start:
    """Return the place that `earliest`, `latest`, an offset or an ISO 8601 time stands for."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        # In UTC from here on, where a time beyond what a clock can show is found out.
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither earliest nor latest, an offset or an ISO 8601 time",
            param_hint=hint,
        ) from None
