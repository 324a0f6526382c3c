"""Waking readers that wait: a word says that someone waits, a named pipe wakes them.

A waiter makes a FIFO of its own in `wake/`, raises the word, looks once more and sleeps on the
pipe. Whoever publishes looks at the word and, if it is raised, lowers it and writes one byte into
every FIFO there. Nobody runs while nothing happens, except who may not write the word, a log
opened to read: that one looks every `POLL_SECONDS`. The word is no lock: a waiter also looks again
every `LOOK_AGAIN_SECONDS`, so a wake-up lost between two processors costs that much at most.
"""

import contextlib
import os
import select
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from segue.log.disk import Disk
from segue.log.live import WAITING, Live

DIRECTORY: Final = "wake"
LOOK_AGAIN_SECONDS: Final = 0.25
POLL_SECONDS: Final = 0.01
"""How often a waiter looks that cannot make a FIFO, as on a read-only directory."""

_numbers = count()


class Waiter:
    """Sleeps until a condition holds. One per waiting reader; not for two threads at once."""

    def __init__(self, directory: Path, live: Live | None, disk: Disk) -> None:
        self._disk = disk
        self._words = live.words if live is not None else None
        self._fd = -1
        self._poll = select.poll()
        self._process = os.getpid()
        self._path = directory / DIRECTORY / f"{self._process}-{next(_numbers)}"
        # ValueError: closed by another thread just now; the condition says what follows.
        with contextlib.suppress(OSError, ValueError):
            if self._words is not None and not self._words.readonly:
                self._open_pipe()

    def _open_pipe(self) -> None:
        self._disk.make_directory(self._path.parent)
        # Under a hidden name until it is open: a pipe nobody holds open is cleared away.
        hidden = self._path.with_name("." + self._path.name)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(hidden)  # Left by a process that had our number before us.
        self._disk.make_fifo(hidden)
        # Open for both: with a writer of its own the pipe never reports end of file.
        self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._fd, select.POLLIN)
        self._disk.rename(hidden, self._path)

    def wait(self, condition: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Return True once `condition` holds, False if it does not within `timeout_seconds`."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            if self._fd >= 0 and self._words is not None:
                with contextlib.suppress(ValueError):  # Closed: the condition says what follows.
                    self._words[WAITING] = 1
            if condition():
                return True
            pause = LOOK_AGAIN_SECONDS if self._fd >= 0 else POLL_SECONDS
            if deadline is not None:
                pause = min(pause, deadline - time.monotonic())
                if pause <= 0:
                    return False
            self._sleep(pause)

    def _sleep(self, seconds: float) -> None:
        if self._fd < 0:
            time.sleep(seconds)
        elif self._poll.poll(max(1, seconds * 1000)):
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 4096)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._process == os.getpid():  # In a forked child it is the parent's, who waits on.
                with contextlib.suppress(OSError):
                    self._disk.unlink(self._path)


class Bell:
    """Wakes the waiters of one log. Logs that are awaited together share one."""

    __slots__ = ("_directory", "_disk", "_live", "words")

    def __init__(self, directory: Path, live: Live, disk: Disk) -> None:
        self._directory = directory
        self._live = live
        self._disk = disk
        self.words = live.words

    def ring(self) -> None:
        """Wake whoever waits; costs nothing where nobody does."""
        try:
            if self.words[WAITING]:
                wake_all(self._directory, self._live, self._disk)
        except (ValueError, OSError):
            # Closed by another thread just now, or no way to wake them: the record is safe, and
            # who waits looks again before long.
            pass

    def waiter(self) -> Waiter:
        """Return what sleeps until the bell rings."""
        return Waiter(self._directory, self._live, self._disk)


def wake_all(directory: Path, live: Live, disk: Disk) -> None:
    """Wake every waiter of the log; clear away the pipes of those that died."""
    live.words[WAITING] = 0
    pipes = directory / DIRECTORY
    for name in disk.names(pipes):
        if name.startswith("."):
            continue
        path = pipes / name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # Nobody has it open any longer (ENXIO), or it is gone.
            with contextlib.suppress(OSError):
                disk.unlink(path)
            continue
        try:
            with contextlib.suppress(OSError):
                os.write(fd, b"!")
        finally:
            os.close(fd)
