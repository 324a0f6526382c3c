"""What people write on a command line and programs take as numbers: one parser for each kind."""

import math
import re
from typing import Final, cast

import typer

from segue.delivery.priority import Priority, priority_from
from segue.errors import InvalidArgument

FOREVER: Final = "forever"
NONE: Final = "none"

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES: Final = {
    "": 1,
    "B": 1,
    **dict.fromkeys(("K", "KiB"), 1 << 10),
    **dict.fromkeys(("M", "MiB"), 1 << 20),
    **dict.fromkeys(("G", "GiB"), 1 << 30),
    **dict.fromkeys(("T", "TiB"), 1 << 40),
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([A-Za-z]*)", re.ASCII)


def duration(text: str | float) -> float:
    """Return the seconds that 90, 1.5, 250ms, 30s, 5m, 2h or 7d stand for."""
    seconds = _quantity(str(text), _SECONDS)
    if seconds is None or not math.isfinite(seconds):
        raise typer.BadParameter(f"{text!r} is no duration such as 90, 1.5, 250ms, 30s, 5m, 2h, 7d")
    return seconds


def waiting_time(text: str | float) -> float:
    """Return the seconds of a duration, and infinity for "forever"."""
    return math.inf if text in {FOREVER, math.inf} else duration(text)


def wait_from(seconds: float) -> float | None:
    """Return a waiting time as stores take it: None is for as long as it takes."""
    return None if math.isinf(seconds) else seconds


def size(text: str | int) -> int:
    """Return the bytes that 4096, 64KiB, 1.5GiB or 1G stand for."""
    size_bytes = _quantity(str(text), _BYTES)
    if size_bytes is None:
        raise typer.BadParameter(f"{text!r} is no size such as 4096, 64KiB, 10MiB, 2GiB")
    return int(size_bytes)


def priority(text: str | int) -> int:
    """Return the number of a priority, given as a number or a name."""
    given = int(text) if str(text).isascii() and str(text).isdigit() else text
    try:
        return priority_from(cast("Priority", given))
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None


def headers(texts: list[str] | None) -> dict[str, str] | None:
    """Return the headers that several "name=value" stand for."""
    pairs = [text.partition("=") for text in texts or ()]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise typer.BadParameter(f"{name!r} is not name=value", param_hint="--header")
    return {name: value for name, _, value in pairs} or None


def _quantity(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        return None
    return float(match[1]) * units[match[2]]
