"""Which processes have the logs open to write: every one of them holds a lock on `live`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from segue.cli.doctor.check import Check, info

NAME: Final = "processes"
LOCK_TABLE: Final = Path("/proc/locks")
SHOWN_MAX: Final = 8
_FIELDS: Final = 6
_WAITING: Final = "->"

DeviceInode = tuple[int, int, int]
"""A file as the table of locks has it: major, minor, and its own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has logs open to write."""

    pid: int
    logs: int
    is_exclusive: bool
    """Whether it keeps others out of one of them."""


def holders_from(table: str, files: Mapping[DeviceInode, str]) -> list[Holder]:
    """Return who holds a lock on one of `files`, by the system's table of locks."""
    held: dict[int, dict[str, bool]] = {}
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < _FIELDS or fields[1] != "FLOCK" or _WAITING in fields:
            continue
        log = files.get(_file_from(fields[5]))
        if log is not None and fields[4].lstrip("-").isdecimal():
            logs = held.setdefault(int(fields[4]), {})
            logs[log] = logs.get(log, False) or fields[3] == "WRITE"
    return [
        Holder(pid=pid, logs=len(logs), is_exclusive=any(logs.values()))
        for pid, logs in sorted(held.items())
    ]


def _file_from(text: str) -> DeviceInode:
    major, minor, inode = (*text.split(":"), "", "", "")[:3]
    try:
        return int(major, 16), int(minor, 16), int(inode)
    except ValueError:
        return -1, -1, -1


def holders_check(holders: list[Holder] | None, *, name_of: Callable[[int], str]) -> Check:
    """Return who is at it; None stands for a system that does not tell."""
    if holders is None:
        return info(NAME, "the system does not tell who holds which lock")
    if not holders:
        return info(NAME, "nobody has it open to write")
    shown = [
        f"{name_of(each.pid)} ({each.logs} {'logs' if each.logs != 1 else 'log'}"
        f"{', exclusively' if each.is_exclusive else ''})"
        for each in holders[:SHOWN_MAX]
    ]
    more = len(holders) - len(shown)
    rest = f" and {more} more" if more else ""
    return info(NAME, f"open to write in {', '.join(shown)}{rest}")


def look_at_holders(files: Mapping[DeviceInode, str]) -> list[Holder] | None:
    """Return who has the logs open to write; None where the system does not tell."""
    try:
        return holders_from(LOCK_TABLE.read_text(), files)
    except OSError:
        return None


def process_name(pid: int) -> str:
    """Return how to tell a process from others."""
    if pid <= 0:
        return "a process of another container"
    try:
        called = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"{pid}, whose child has it"  # A lock outlives who took it, in those it has forked.
    return f"{pid} {called}"
