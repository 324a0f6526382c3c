"""Which file system a path is on, as the system's table of mounts tells it. Pure."""

import re
from pathlib import Path
from typing import Final

from segue.values import dataclass

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_FIELDS_BEFORE: Final = 6
_FIELDS_AFTER: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the table."""

    device: tuple[int, int]
    """Major and minor number, as locks are listed with."""
    point: str
    kind: str
    """Such as "ext4"."""
    source: str
    options: frozenset[str]
    """Of the mount and of the file system together."""


def mount_of(path: Path, table: str) -> Mount | None:
    """Return where an absolute path lies, links resolved; None if the table does not say."""
    found: Mount | None = None
    for line in table.splitlines():
        mount = _mount_from(line)
        # Of two on the same directory the later one hides the other.
        if mount is not None and path.is_relative_to(mount.point):
            found = mount if found is None or len(mount.point) >= len(found.point) else found
    return found


def _mount_from(line: str) -> Mount | None:
    before, _, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if len(fields) < _FIELDS_BEFORE or len(rest) < _FIELDS_AFTER:
        return None
    major, _, minor = fields[2].partition(":")
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    return Mount(
        device=(int(major), int(minor)),
        point=_unescaped(fields[4]),
        kind=rest[0],
        source=_unescaped(rest[1]),
        options=frozenset((*fields[5].split(","), *rest[2].split(","))),
    )


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
