"""Processes stopped as by SIGSTOP at a moment at which they stand in nobody's way.

Whoever is stopped inside a store's lock keeps everybody out until it goes on: that is what a lock
is, and not what these tests are about.

python -m tests.crash.stopping pid
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from segue.log import live
from segue.log.ownership import LOCK_FILENAME
from tests.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]


def stop(pid: int) -> None:
    """Stop a process between two of its turns with a log. Raises NotInTime if there is none."""
    wait_until(lambda: _stop_outside_a_turn(pid), f"process {pid} unlocks its logs")


def _stop_outside_a_turn(pid: int) -> bool:
    """Stop a process. Continue it and return False if it holds the lock of a log."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _is_stopped(pid), f"process {pid} stops")
    if _holds_a_log(pid):
        os.kill(pid, signal.SIGCONT)
        return False
    return True


def wait_until_stopped(pid: int) -> None:
    """Return as soon as a process has stopped by `stop_here`, so that it can be continued."""
    wait_until(lambda: _is_stopped(pid) and not _holds_a_log(pid), f"process {pid} stops")


def wait_until_blocked_by_lock(pid: int) -> None:
    """Return as soon as a process waits for a file lock that another process holds."""
    wait_until(lambda: _is_blocked(pid), f"process {pid} waits for a lock")


def _is_blocked(pid: int) -> bool:
    waiting = [
        line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    ]
    return any(fields[5] == str(pid) for fields in waiting)


def stop_here() -> None:
    """Stop this process while this thread is at this very step, whatever the others are at."""
    subprocess.run([sys.executable, "-m", __name__, str(os.getpid())], cwd=_ROOT, check=True)


def _is_stopped(pid: int) -> bool:
    """Tell whether every thread of a process has stopped."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all(_state(thread) in "TZX" for thread in threads)


def _state(thread: Path) -> str:
    # Behind the name, which is in brackets and may hold anything.
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def _holds_a_log(pid: int) -> bool:
    """Tell whether a process is in the middle of a turn with a log."""
    held = {
        int(place.rpartition(":")[2])
        for _, kind, _, mode, owner, place, *_ in map(str.split, _lines_of_locks())
        if (kind, mode, owner) == ("FLOCK", "WRITE", str(pid))
    }
    opened = (_opened(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return any(number in held for path, number in opened if _is_of_a_log(path))


def _lines_of_locks() -> list[str]:
    # Who waits for a lock has a line, too, with an arrow in front of the kind.
    return [line for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]


def _is_of_a_log(path: Path) -> bool:
    # Names that somebody has for life, such as a producer's, are locks of that name, too.
    return path.name == LOCK_FILENAME and path.with_name(live.FILENAME).exists()


def _opened(fd: Path) -> tuple[Path, int]:
    return fd.readlink(), fd.stat().st_ino


if __name__ == "__main__":
    stop(int(sys.argv[1]))
