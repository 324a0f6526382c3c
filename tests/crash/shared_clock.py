"""Clock that the processes of one test share, so that a test can expire leases without waiting."""

import mmap
from pathlib import Path

from segue.clock import system_clock, system_ticks

_SIZE_BYTES = 8


class SharedClock:
    """Real time plus what `advance` added in any process. The file at `path` holds the sum.

    Use it as clock, and its `ticks` as ticks. A lease can be longer than any test takes, and still
    expires at the moment the test chooses.
    """

    def __init__(self, path: Path) -> None:
        with path.open("ab+") as file:
            if file.tell() < _SIZE_BYTES:
                file.truncate(_SIZE_BYTES)
            self._words = memoryview(mmap.mmap(file.fileno(), _SIZE_BYTES)).cast("q")

    def __call__(self) -> int:
        """Return the microseconds since 1970-01-01 UTC, as a `segue.clock.Clock` does."""
        return system_clock() + self._words[0]

    def ticks(self) -> int:
        """Return the microseconds that have passed, as `segue.clock.Ticks` does."""
        return system_ticks() + self._words[0]

    def advance(self, *, seconds: float) -> None:
        """Let `seconds` pass for all processes. Only one process may call this at a time."""
        self._words[0] += round(seconds * 1_000_000)
