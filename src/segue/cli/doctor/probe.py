"""The one file that is written: records appended and synced, timed, and always removed."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from segue.log.disk import FILE_MODE, Disk

SYNCS_MAX: Final = 64
SYNCS_SECONDS_MAX: Final = 2.0
"""Whichever comes first; a sync that has begun is waited for."""
SYNCS_MIN: Final = 3
RECORD_BYTES: Final = 4096
LETTING_GO_SECONDS: Final = 1.0
"""How long a sync that hangs is waited for before its file is removed below it."""
PREFIX: Final = ".segue-doctor-"


class Probe:
    """A file to be timed. `remove` from any thread leaves nothing behind, whatever it is at."""

    def __init__(
        self, *, disk: Disk | None = None, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._disk = disk or Disk()
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._is_over = False
        self._ended = threading.Event()

    def time_syncs(self, directory: Path) -> tuple[float, ...]:
        """Return how many microseconds each append with its sync took. Raises OSError."""
        path = directory / f"{PREFIX}{os.getpid()}-{time.monotonic_ns()}.tmp"
        with self._lock:
            if self._is_over:
                return ()
            # Not unlinked at once: some file systems do not sync what has no name.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            self._path = path
        try:
            return self._timed(fd)
        finally:
            os.close(fd)
            self._unlink()
            self._ended.set()

    def _timed(self, fd: int) -> tuple[float, ...]:
        page = os.urandom(RECORD_BYTES)
        took_us: list[float] = []
        begun = self._now_ns()
        for number in range(SYNCS_MAX + 1):
            before = self._now_ns()
            self._disk.write_at(fd, page, number * RECORD_BYTES)
            self._disk.sync_data(fd)
            after = self._now_ns()
            if number:  # The first one also makes the file.
                took_us.append((after - before) / 1000)
            is_late = after - begun > SYNCS_SECONDS_MAX * 1e9
            if self._is_over or (is_late and len(took_us) >= SYNCS_MIN):
                break
        return tuple(took_us)

    def _unlink(self) -> None:
        with self._lock:
            path, self._path = self._path, None
        if path is not None:
            with suppress(FileNotFoundError):
                path.unlink()

    def remove(self) -> None:
        """See that the file is gone and is not made again."""
        with self._lock:
            self._is_over = True
            is_there = self._path is not None
        if is_there and not self._ended.wait(LETTING_GO_SECONDS):
            with suppress(OSError):
                self._unlink()
