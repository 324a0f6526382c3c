"""Files that are locked while somebody works, or while somebody lives."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from segue.log.disk import Disk, storage_errors

_claims: "weakref.WeakSet[Claim]" = weakref.WeakSet()


class Claim:
    """A locked file. The lock ends when it is let go, dropped, or its process dies."""

    def __init__(self, path: Path, disk: Disk, fd: int) -> None:
        self._path = path
        self._disk = disk
        self._fd = fd
        _claims.add(self)

    @property
    def is_held(self) -> bool:
        """Whether it is still ours; never in a forked child."""
        return self._fd >= 0

    def write(self, data: bytes) -> None:
        """Let others read `data` in the file."""
        with storage_errors(f"writing {self._path}"):
            self._disk.write_at(self._fd, data, 0)

    def release(self, *, remove: bool = False) -> None:
        """Let go, and remove the file if it is asked for. Letting go twice is allowed."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with storage_errors(f"releasing {self._path}"):
            try:
                if remove:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(self._path)
                # By hand: a child forked meanwhile may hold the file open.
                self._disk.unlock(fd)
            finally:
                self._disk.close(fd)

    def abandon(self) -> None:
        """In a forked child: drop what is the parent's. Closing, unlike unlocking, leaves it be."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def __del__(self) -> None:
        with suppress(Exception):
            self.release()


def claim(path: Path, disk: Disk) -> Claim | None:
    """Lock the file at `path`, made if need be, or return None if somebody else has it."""
    with storage_errors(f"locking {path}"):
        disk.make_directory(path.parent)
        fd = disk.open_to_write(path, create=True)
        try:
            is_ours = disk.try_lock(fd)
        except BaseException:
            disk.close(fd)
            raise
        if not is_ours:
            disk.close(fd)
            return None
    return Claim(path, disk, fd)


def is_claimed(path: Path, disk: Disk) -> bool:
    """Tell whether somebody has the file at `path` locked."""
    with storage_errors(f"looking at {path}"):
        try:
            fd = disk.open_to_read(path)
        except FileNotFoundError:
            return False
        try:
            if not disk.try_lock(fd, shared=True):
                return True
            disk.unlock(fd)
            return False
        finally:
            disk.close(fd)


@contextmanager
def locked(path: Path, disk: Disk) -> Iterator[None]:
    """Hold the lock of the file at `path`, made if need be, waiting for it."""
    with storage_errors(f"locking {path}"):
        disk.make_directory(path.parent)
        fd = disk.open_to_write(path, create=True)
    here = os.getpid()
    try:
        with storage_errors(f"locking {path}"):
            disk.lock(fd)
        yield
    finally:
        with storage_errors(f"unlocking {path}"):
            try:
                if os.getpid() == here:
                    disk.unlock(fd)
            finally:
                disk.close(fd)


def _after_fork_in_child() -> None:
    for claimed in list(_claims):
        claimed.abandon()
    _claims.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
