"""What the tasks of every peer do, and how the benchmark sees that they did it.

Marks are files in a directory, because a file costs every peer the same and no peer's server
anything. A *gate* is a task that waits until the benchmark lets it pass: who holds all slots of a
worker at gates can enqueue without anything being consumed, and then start the clock.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(os.environ.get("BENCH_MARKS", "."))
_GATE: Final = DIRECTORY / "gate"
_ARRIVALS: Final = DIRECTORY / "arrivals"
_PICKUPS: Final = DIRECTORY / "pickups"
_LAST: Final = DIRECTORY / "last"
GATE_SECONDS_MAX: Final = 3600
"""For peers that cut tasks short."""


def wait_at_gate() -> None:
    """Say that a slot of the worker is here, and keep it until the gate opens."""
    arrive()
    with _GATE.open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)


def arrive() -> None:
    """Say that a slot of the worker is here."""
    _add_line(_ARRIVALS, "here")


def gate_is_open() -> bool:
    """Whether there is nothing to wait for; for who must not block."""
    with _GATE.open("rb") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def note_pickup(sent_ns: int) -> None:
    """Note how long ago this task was sent."""
    _add_line(_PICKUPS, str(time.time_ns() - sent_ns))


def note_last() -> None:
    """Say that the last task runs; for peers that forget a task before they run it."""
    _LAST.touch()


@contextmanager
def closed_gate() -> Iterator[None]:
    """Keep everybody who comes to the gate; it opens at the end, or when this process dies."""
    _ARRIVALS.unlink(missing_ok=True)
    with _GATE.open("wb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


def arrivals() -> int:
    """Return how many came to the gate since it was closed."""
    return len(_lines(_ARRIVALS))


def forget_last() -> None:
    """Make `last_seen` wait for another last task."""
    _LAST.unlink(missing_ok=True)


def last_seen() -> bool:
    """Whether the last task ran."""
    return _LAST.exists()


def pickups_ns() -> list[int]:
    """Return what all tasks noted."""
    return [int(line) for line in _lines(_PICKUPS)]


def _add_line(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
