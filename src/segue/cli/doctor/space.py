"""What is left on the file system: bytes, and files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from segue.cli.doctor.check import Check, fail, info, ok, warn
from segue.cli.text import human_size
from segue.log.layout import SEGMENT_BYTES_DEFAULT
from segue.values import dataclass

SPACE: Final = "space"
INODES: Final = "inodes"
FREE_BYTES_NEEDED: Final = 2 * SEGMENT_BYTES_DEFAULT
"""A log that rolls has two segments that take records."""
FREE_BYTES_LOW: Final = 1 << 30
FILES_NEEDED: Final = 64
"""A queue takes about ten files, and their directories."""
FILES_LOW: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """What is left for somebody who is not root."""

    free_bytes: int
    total_bytes: int
    files_free: int
    files_total: int
    """0 where the file system makes them as they are needed."""


def space_checks(facts: SpaceFacts) -> Iterator[Check]:
    """Yield whether there is room for bytes and for files."""
    found = f"{human_size(facts.free_bytes)} free of {human_size(facts.total_bytes)}"
    remedy = "make space: 'segue info STORE' shows what each log takes up"
    if not facts.total_bytes:
        yield info(SPACE, "the file system does not tell", "see for yourself")
    elif facts.free_bytes < FREE_BYTES_NEEDED:
        yield fail(SPACE, f"{found}: less than two segments", remedy)
    elif facts.free_bytes < FREE_BYTES_LOW:
        yield warn(SPACE, found, remedy)
    else:
        yield ok(SPACE, found)
    if not facts.files_total:
        yield ok(INODES, "made as they are needed")
        return
    found = f"{facts.files_free:,} free of {facts.files_total:,}"
    remedy = "remove small files, or a file system with more inodes"
    if facts.files_free < FILES_NEEDED:
        yield fail(INODES, f"{found}: too few for one queue", remedy)
    elif facts.files_free < FILES_LOW:
        yield warn(INODES, found, remedy)
    else:
        yield ok(INODES, found)


def look_at_space(place: Path) -> SpaceFacts:
    """Return what is left where a directory lies. Raises OSError."""
    found = os.statvfs(place)
    return SpaceFacts(
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        files_free=found.f_favail,
        files_total=found.f_files,
    )
