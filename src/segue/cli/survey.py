"""What can be seen of a log from outside: where logs are, their readers, limits and quarantine."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from segue.errors import CorruptPosition, Damage
from segue.log import Log, Offset
from segue.log.disk import Disk, storage_errors
from segue.log.layout import HEADER_BYTES, SegmentHeader, decode_header, segment_id
from segue.log.positions import DIRECTORY as READERS
from segue.log.positions import Positions
from segue.log.recovery import QUARANTINE
from segue.log.wake import DIRECTORY as WAKE
from segue.values import dataclass

STORE_FILE: Final = "segue.toml"
"""What makes a directory a store."""
TOPICS: Final = "topics"
"""Where a store has its topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderState:
    """Where a reader stands, or why that cannot be told."""

    name: str
    path: Path
    offset: Offset | None
    problem: str | None = None


def find_logs(root: Path, on_error: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the logs at and below `root`, sorted. Links to directories are not followed."""
    if not root.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(root))
    for directory, subdirectories, files in os.walk(root, onerror=on_error):
        subdirectories.sort()
        if any(segment_id(name) is not None for name in files):
            for name in (READERS, WAKE, QUARANTINE):
                if name in subdirectories:
                    subdirectories.remove(name)
            yield Path(directory)


def is_store(path: Path) -> bool:
    """Tell whether a directory is a store: one of queues, topics, rings and locks."""
    return (path / STORE_FILE).is_file()


def partition_path(store: Path, topic: str, partition: int) -> Path:
    """Return the log that holds one partition of a topic."""
    return store / TOPICS / topic / f"partition_{partition}"


def logs_at(path: Path) -> list[Path]:
    """Return the log at `path`, or all logs of the store there. Raises LogNotFound."""
    if is_store(path):
        return list(find_logs(path, _refuse))
    Log(path, read_only=True).close()
    return [path]


def _refuse(error: OSError) -> None:
    raise error


def reader_names(path: Path) -> list[str]:
    """Return the names of a log's readers, sorted."""
    with storage_errors(f"listing the readers of {path}"):
        return Positions(path, Disk()).names()


def reader_states(path: Path) -> Iterator[ReaderState]:
    """Yield every reader of a log; one that is damaged hides none of the others."""
    positions = Positions(path, Disk())
    for name in reader_names(path):
        place = path / READERS / f"{name}.meta"
        try:
            with storage_errors(f"reading {place}"):
                saved = positions.load(name)
        except CorruptPosition as error:
            yield ReaderState(name=name, path=error.path, offset=None, problem=error.reason)
            continue
        if saved is not None:
            yield ReaderState(name=name, path=place, offset=saved.offset)


def limits_of(log: Log) -> SegmentHeader | None:
    """Return the header of the newest segment, which says what the log takes."""
    for segment in reversed(log.segments()):
        try:
            with storage_errors(f"reading {segment.path}"), segment.path.open("rb") as file:
                return decode_header(file.read(HEADER_BYTES), path=segment.path)
        except Damage:
            continue
    return None


def quarantined(path: Path) -> list[Path]:
    """Return the files that were set aside, sorted."""
    with storage_errors(f"listing the quarantine of {path}"):
        return [path / QUARANTINE / name for name in Disk().names(path / QUARANTINE)]
