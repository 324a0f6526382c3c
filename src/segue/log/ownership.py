"""The locks of one process on one log, and the live page they guard.

Two files, two questions. `lock`: who may append now? Held for a moment by whoever does, for life
by an exclusive owner. `live`: is anyone there? Held, shared, by every process that has the log open
to write; whoever gets it alone finds the log as the last one left it and recovers it.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from segue.errors import LogLocked, StorageFailed
from segue.log.disk import Disk
from segue.log.live import FAILED, STATE, Live

LOCK_FILENAME: Final = "lock"


class Ownership:
    """Holds the append lock from the start; `settle` gives it back where it is shared."""

    def __init__(
        self, directory: Path, disk: Disk, *, shared: bool, timeout_seconds: float
    ) -> None:
        """Take the locks. Raises LogLocked, StorageFailed."""
        self._disk = disk
        self._shared = shared
        with ExitStack() as undo:
            self._fd = disk.open_to_write(directory / LOCK_FILENAME, create=True)
            undo.callback(disk.close, self._fd)
            if not disk.try_lock(self._fd, timeout_seconds=timeout_seconds):
                raise LogLocked(f"{directory} is held by another owner")
            self.live = Live(directory, disk, read_only=False)
            undo.callback(self.live.close)
            self.is_alone = disk.try_lock(self.live.fd)
            """Whether no other process has the log open to write."""
            if not self.is_alone:
                self._join(directory)
            undo.pop_all()
        self.lock, self.unlock = disk.locker(self._fd)

    def _join(self, directory: Path) -> None:
        if not self._shared or not self._disk.try_lock(self.live.fd, shared=True):
            raise LogLocked(f"{directory} is open in another process")
        if not self.live.is_current():
            raise LogLocked(f"{directory} is open in another process that cannot be followed")
        if self.live.words[STATE] == FAILED:
            raise StorageFailed(f"{directory}: a write failed; every process must close it first")

    def settle(self) -> None:
        """Let others in, if they are wanted: the log is in order now."""
        if self._shared:
            if self.is_alone:
                self._disk.lock(self.live.fd, shared=True)
            self.unlock()

    def close(self) -> None:
        """Let go of everything."""
        with ExitStack() as closing:
            closing.callback(self._disk.close, self._fd)
            closing.callback(self.live.close)
            # By hand: a child forked meanwhile, or a mapping, may hold the files open.
            closing.callback(self._disk.unlock, self._fd)
            closing.callback(self._disk.unlock, self.live.fd)

    def abandon(self) -> None:
        """In a forked child: drop what is the parent's. Closing, unlike unlocking, leaves it be."""
        self._disk.close(self._fd)
        self.live.close()
