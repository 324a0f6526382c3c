"""What the logs of a store tell without being opened: headers, places of readers, newest times.

No payload is read, nothing is locked or made, and however many logs there are, it ends in time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from segue.cli.doctor.running import in_words
from segue.cli.survey import find_logs, is_store, quarantined
from segue.cli.topic_findings import topic_findings
from segue.errors import CorruptSegment, SegueError, UnsupportedFormat
from segue.log.catalog import list_segments, read_page
from segue.log.disk import Disk
from segue.log.layout import Offset, segment_id
from segue.log.live import FAILED, STATE, Live
from segue.log.live import FILENAME as LIVE
from segue.log.outlines import Outlines

LOGS_MAX: Final = 5_000
HEADERS_MAX: Final = 20_000
LOOKING_SECONDS_MAX: Final = 4.0
"""Where one of them is reached the look ends, and says so."""
PROBLEMS_MAX: Final = 100


@dataclass(slots=True, kw_only=True)
class Logs:
    """What was found. Filled while looking, read afterwards."""

    count: int = 0
    segments: int = 0
    problems: list[str] = field(default_factory=list)
    """What cannot be read, each with its file."""
    newer: list[str] = field(default_factory=list)
    """Segments of a format that a later Segue has written."""
    stopped: list[str] = field(default_factory=list)
    """Logs in which a write failed and that take no more until all have closed them."""
    quarantined: int = 0
    newest_us: int | None = None
    newest_path: str = ""
    segment_bytes: int = 0
    """Of the largest segment."""
    live_files: dict[int, str] = field(default_factory=dict)
    """The inodes of what every process that writes to a log has locked, each with the log."""
    is_partial: bool = False
    """Whether there are more than were looked at."""


def look_at_logs(path: Path, *, now: Callable[[], float] = time.monotonic) -> Logs:
    """Return what the logs at `path` tell; none unless it is a store or a log. Raises OSError."""
    found = Logs()
    deadline = now() + LOOKING_SECONDS_MAX
    disk = Disk()
    with closing(Outlines(disk)) as outlines:
        for log in _logs_at(path, found):
            if found.count >= LOGS_MAX or found.segments >= HEADERS_MAX or now() > deadline:
                found.is_partial = True
                return found
            found.count += 1
            _look_at_log(log, found, disk, outlines)
    if is_store(path):
        for finding in islice(topic_findings(path), PROBLEMS_MAX):
            found.problems.append(f"{finding.path}: {finding.problem}")
            if now() > deadline:
                found.is_partial = True
                break
    return found


def _logs_at(path: Path, found: Logs) -> Iterator[Path]:
    # Not below any other directory: that may be a whole disk.
    if is_store(path):
        yield from find_logs(path, lambda error: found.problems.append(in_words(error)))
    elif path.is_dir() and any(segment_id(entry.name) is not None for entry in path.iterdir()):
        yield path


def _look_at_log(path: Path, found: Logs, disk: Disk, outlines: Outlines) -> None:
    for look in (_look_at_headers, _look_at_live, _look_at_quarantine):
        try:
            look(path, found, disk)
        except (SegueError, OSError, ValueError) as error:
            found.problems.append(in_words(error))
    # What is damaged was told by the headers: here it only has no time.
    with suppress(SegueError, OSError, ValueError, LookupError), outlines.look(path) as outline:
        if outline is None:
            return
        for name, place in outline.positions().items():
            if place is None:
                found.problems.append(f"{path}: the place of reader {name} cannot be read")
        newest_us = outline.time_of(outline.next_offset - 1)
        if newest_us is not None and newest_us > (found.newest_us or 0):
            found.newest_us, found.newest_path = newest_us, str(path)


def _look_at_headers(path: Path, found: Logs, disk: Disk) -> None:
    expected: Offset | None = None
    ids = list_segments(path, disk)
    for id_ in ids[-max(1, HEADERS_MAX - found.segments) :]:
        found.segments += 1
        try:
            header, summary = read_page(path, id_, disk)
        except FileNotFoundError:
            expected = None  # Somebody has just deleted it, as they may.
            continue
        except CorruptSegment as error:
            found.problems.append(f"{error.path}: {error.reason}")
            expected = None
            continue
        except UnsupportedFormat as error:
            found.newer.append(in_words(error))
            expected = None
            continue
        if expected is not None and header.first_offset > expected:
            missing = header.first_offset - expected
            found.problems.append(f"{path}: {missing} records before segment {id_} are missing")
        expected = None if summary is None else Offset(header.first_offset + summary.count)
        found.segment_bytes = max(found.segment_bytes, header.bytes_max)


def _look_at_live(path: Path, found: Logs, disk: Disk) -> None:
    if not (path / LIVE).exists():
        return
    found.live_files[(path / LIVE).stat().st_ino] = str(path)
    with closing(Live(path, disk, read_only=True)) as live:
        if live.is_current() and live.words[STATE] == FAILED:
            found.stopped.append(str(path))


def _look_at_quarantine(path: Path, found: Logs, _: Disk) -> None:
    found.quarantined += len(quarantined(path))
