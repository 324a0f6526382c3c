"""Running one script over and over, killed at another call each time."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.crash.channel import Report
from tests.crash.children import DONE
from tests.crash.killing_disk import KillPoint, each_kill_point
from tests.crash.processes import KILLED, Child
from tests.crash.replay import naming

Start = Callable[[Path, KillPoint | None], Child]
"""Starts the script on the log at a path, to be killed at a point or to come to its end."""
Check = Callable[[Path, list[Report]], None]
"""Looks at what the script left at a path, given what it reported."""


def kill_everywhere(
    directory: Path, start: Start, check: Check, *, template: Path | None = None
) -> int:
    """Kill the script at each of its calls in turn, check each time; return how many kills.

    Each run has a log of its own: a copy of `template`, or none yet.
    """

    def is_killed_at(point: KillPoint) -> bool:
        path = directory / "log"
        if template is not None:
            shutil.copytree(template, path)
        with naming(point):
            killed, reports = ended(start(path, point))
            check(path, reports)
        shutil.rmtree(path)
        return killed

    return each_kill_point(is_killed_at)


def ended(child: Child) -> tuple[bool, list[Report]]:
    """Join `child`; return whether it was killed, and what it reported."""
    with child:
        reports = child.read_rest()
        code = child.join()
    assert code in {0, KILLED}, f"the child failed with exit code {code}; see its traceback"
    assert code == KILLED or reports[-1] == DONE
    return code == KILLED, reports


def finish(child: Child) -> None:
    """Join `child`, which must come to its end alive."""
    killed, _ = ended(child)
    assert not killed
