"""Whether we may use the files, and whether who uses them next to us can."""

import os
import pwd
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from segue.cli.doctor.check import Check, fail, ok, warn

NAME: Final = "permissions"
ENTRIES_MAX: Final = 20_000
LOOKING_SECONDS_MAX: Final = 4.0


@dataclass(slots=True, kw_only=True)
class PermissionFacts:
    """Who we are and whose things are. Filled while looking, read afterwards."""

    path: str
    user: int
    """Our number."""
    may_make: bool
    """Whether we may make files in the directory itself."""
    is_there: bool = True
    """Whether it is the store's directory, and not the one above where it would be made."""
    refused: list[str] = field(default_factory=list)
    """What we may not read or write."""
    owners: Counter[int] = field(default_factory=Counter)
    """How many files and directories belong to whom."""
    is_open_to_all: bool = False
    """Whether anybody on the machine may write to the directory."""


def permission_check(facts: PermissionFacts, *, name_of: Callable[[int], str]) -> Check:
    """Return whether we may use it, and whether that is a good idea."""
    us = name_of(facts.user)
    if not facts.may_make:
        what = "" if facts.is_there else ", where the store would be made"
        return fail(
            NAME,
            f"{us} may not write to {facts.path}{what}",
            "run as its owner, or chown; 'cat', 'tail', 'info' and 'verify' of logs only read",
        )
    if facts.refused:
        more = len(facts.refused) - 1
        rest = f" and {more:,} more" if more else ""
        return fail(
            NAME,
            f"{us} may not read and write {facts.refused[0]}{rest}",
            f"run as its owner, or chown -R {us} {facts.path}",
        )
    if len(facts.owners) > 1:
        counts = ", ".join(f"{n:,} of {name_of(uid)}" for uid, n in facts.owners.most_common())
        return warn(
            NAME,
            f"files of several owners: {counts}; each may use only their own",
            f"one user for all, and chown -R to it of {facts.path}",
        )
    others = [uid for uid in facts.owners if uid != facts.user]
    if facts.is_there and others:
        return warn(
            NAME,
            f"all of it is {name_of(others[0])}'s: what {us} makes there, {name_of(others[0])} "
            "cannot open",
            f"run as {name_of(others[0])}",
        )
    if facts.is_there and facts.is_open_to_all:
        return warn(NAME, f"anybody may write to {facts.path}", f"chmod o-w {facts.path}")
    return ok(NAME, f"{us} may read and write {facts.path}")


def look_at_permissions(
    path: Path, *, place: Path, is_ours: bool, now: Callable[[], float] = time.monotonic
) -> PermissionFacts:
    """Return what we may do at `place`; with `is_ours` also with what is in it. Raises OSError."""
    status = place.stat()
    facts = PermissionFacts(
        path=str(place if place != path.absolute() else path),
        user=os.geteuid(),
        may_make=_may(place, os.R_OK | os.W_OK | os.X_OK),
        is_there=place == path.absolute(),
        is_open_to_all=bool(status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX),
    )
    if not is_ours:
        return facts
    facts.owners[status.st_uid] += 1
    deadline = now() + LOOKING_SECONDS_MAX
    for number, entry in enumerate(_entries(place)):
        if number >= ENTRIES_MAX or now() > deadline:
            break
        facts.owners[entry.stat(follow_symlinks=False).st_uid] += 1
        mode = os.R_OK | os.W_OK | (os.X_OK if entry.is_dir(follow_symlinks=False) else 0)
        if not _may(Path(entry.path), mode):
            facts.refused.append(entry.path)
    return facts


def _entries(root: Path) -> Iterator["os.DirEntry[str]"]:
    """Yield what is below a directory, as far as we are let in and as it is still there."""
    waiting = [str(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry
        except OSError:
            continue


def _may(path: Path, mode: int) -> bool:
    is_effective = os.access in os.supports_effective_ids
    # What somebody has just deleted is nothing that we may not use.
    return os.access(path, mode, effective_ids=is_effective) or not os.path.lexists(path)


def user_name(number: int) -> str:
    """Return what a user is called, or the number of one that the machine does not know."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
