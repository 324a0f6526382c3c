"""What is at the path: a store, a log, nothing yet; and whether this Segue knows its format."""

import tomllib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.survey import STORE_FILE
from segue.log.layout import segment_id

NAME: Final = "store"
FILE_BYTES_MAX: Final = 64 * 1024
"""What is read of the file that says the format: it has one line."""


class Thing(Enum):
    """What a path leads to."""

    NOTHING = "nothing"
    FILE = "file"
    STORE = "store"
    LOG = "log"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What is at a path."""

    path: str
    thing: Thing
    format_text: bytes = b""
    """What the store says of itself."""
    above: str = ""
    """The directory that is looked at instead, where there is nothing."""


def store_check(facts: StoreFacts, *, format_known: int) -> Check:
    """Return whether there is a store that this Segue can open."""
    if facts.thing is Thing.NOTHING:
        return warn(
            NAME,
            f"there is nothing at {facts.path}; looked at {facts.above} instead",
            "nothing, if it is to be made there: the first push does",
        )
    if facts.thing is Thing.FILE:
        return fail(NAME, f"{facts.path} is a file", "name a directory")
    if facts.thing is Thing.LOG:
        return ok(NAME, f"{facts.path} is a log")
    if facts.thing is Thing.DIRECTORY:
        return info(NAME, f"no store at {facts.path}; the first push makes one")
    return _format_check(facts, format_known)


def _format_check(facts: StoreFacts, known: int) -> Check:
    where = f"{facts.path}/{STORE_FILE}"
    try:
        found = tomllib.loads(facts.format_text.decode()).get("format")
    except ValueError as error:  # Bytes that are no text are one, too.
        return fail(
            NAME,
            f"{where} makes no sense: {error}",
            f"if nothing else is damaged, it has one line: format = {known}",
        )
    if found == known:
        return ok(NAME, f"a store of format {known}")
    if isinstance(found, int) and found > known:
        return fail(
            NAME, f"format {found}, and this Segue knows {known}", "a newer Segue: pip install -U"
        )
    return fail(
        NAME,
        f"{where} says format {found!r}, and this Segue knows {known}",
        f"if nothing else is damaged, it has one line: format = {known}",
    )


def look_at_store(path: Path, place: Path) -> StoreFacts:
    """Return what is at `path`; `place` is the nearest directory. Raises OSError."""
    if not path.exists():
        return StoreFacts(path=str(path), thing=Thing.NOTHING, above=str(place))
    if not path.is_dir():
        return StoreFacts(path=str(path), thing=Thing.FILE)
    if (path / STORE_FILE).exists():
        with (path / STORE_FILE).open("rb") as file:
            text = file.read(FILE_BYTES_MAX)
        return StoreFacts(path=str(path), thing=Thing.STORE, format_text=text)
    is_log = any(segment_id(entry.name) is not None for entry in path.iterdir())
    return StoreFacts(path=str(path), thing=Thing.LOG if is_log else Thing.DIRECTORY)


def nearest_directory(path: Path) -> Path:
    """Return the directory itself, or the closest one above that is there."""
    place = path.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    return place
