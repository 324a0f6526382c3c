"""A disk that fails when it is told to, as a real one does when it is full or dying."""

import errno
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal, get_args

from segue.errors import InvalidArgument
from segue.log.disk import Disk
from segue.values import dataclass

Operation = Literal[
    "open_to_read",
    "open_to_write",
    "close",
    "size",
    "read_at",
    "write_at",
    "send",
    "resize",
    "map_to_read",
    "map_to_write",
    "sync_data",
    "names",
    "file_bytes",
    "is_same_file",
    "make_directory",
    "rename",
    "unlink",
    "make_fifo",
    "sync_directory",
    "lock",
    "try_lock",
    "unlock",
]
"""What can fail: every method of `Disk` that asks the operating system and may be refused."""

OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    at_call: int
    operation: Operation | None
    error: int
    lasting: bool
    after_bytes: int


class FaultyDisk(Disk):
    """Does everything a `Disk` does and counts it, until the call comes that is to fail.

        disk = FaultyDisk()
        log = Log("data", disk=disk)
        disk.fail(call=2, operation="sync_data", error=errno.EIO)
        log.append(b"one")
        log.append(b"two")   # raises StorageFailed

    A call that fails has done nothing, with two exceptions: `write_at` may first write some bytes,
    and `close` closes, as on Linux. Stores into a mapping are not calls and cannot fail. Safe from
    any thread. To break another kind of disk, name it second: `class Both(FaultyDisk, Other)`.
    """

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: Counter[Operation] = Counter()
        self._fault: _Fault | None = None
        self._failed: list[Operation] = []

    # What the test says and asks -------------------------------------------------------------

    def fail(
        self,
        *,
        call: int = 1,
        operation: Operation | None = None,
        error: int = errno.EIO,
        lasting: bool = False,
        after_bytes: int = 0,
    ) -> None:
        """Make the `call`-th call from now on fail with OSError(`error`).

        Only calls of `operation` count, if it is given. `lasting`: that call and all later ones
        of the kind. `after_bytes`: a failing `write_at` first writes up to so many bytes. Takes
        the place of any fault set before.
        """
        if operation is not None and operation not in OPERATIONS:
            raise InvalidArgument(f"{operation!r} is none of {', '.join(OPERATIONS)}")
        if call < 1 or after_bytes < 0:
            raise InvalidArgument("call counts from 1 and after_bytes from 0")
        with self._counting:
            self._fault = _Fault(
                at_call=self._count(operation) + call,
                operation=operation,
                error=error,
                lasting=lasting,
                after_bytes=after_bytes,
            )

    def heal(self) -> None:
        """Let every call succeed from now on."""
        with self._counting:
            self._fault = None

    @property
    def calls(self) -> int:
        """How many calls there were, failed ones included."""
        with self._counting:
            return self._count(None)

    @property
    def counts(self) -> Mapping[Operation, int]:
        """How many calls there were of each operation that was called."""
        with self._counting:
            return dict(self._counts)

    @property
    def failed(self) -> list[Operation]:
        """The calls that were made to fail, in order."""
        with self._counting:
            return list(self._failed)

    def _count(self, operation: Operation | None) -> int:
        return self._counts.total() if operation is None else self._counts[operation]

    def _error(self, operation: Operation) -> tuple[OSError, int] | None:
        """Count a call; return the error it must raise and how many bytes to write before."""
        with self._counting:
            self._counts[operation] += 1
            fault = self._fault
            if fault is None or fault.operation not in (None, operation):
                return None
            number = self._count(fault.operation)
            if number < fault.at_call or (number > fault.at_call and not fault.lasting):
                return None
            self._failed.append(operation)
            text = f"{errno.errorcode.get(fault.error, fault.error)} injected into {operation}"
            return OSError(fault.error, text), fault.after_bytes

    def _check(self, operation: Operation) -> None:
        failure = self._error(operation)
        if failure is not None:
            raise failure[0]

    # What a disk does ------------------------------------------------------------------------

    def open_to_read(self, path: Path) -> int:
        self._check("open_to_read")
        return super().open_to_read(path)

    def open_to_write(self, path: Path, *, create: bool = False) -> int:
        self._check("open_to_write")
        return super().open_to_write(path, create=create)

    def close(self, fd: int) -> None:
        super().close(fd)
        self._check("close")

    def size(self, fd: int) -> int:
        self._check("size")
        return super().size(fd)

    def read_at(self, fd: int, count_bytes: int, position: int) -> bytes:
        self._check("read_at")
        return super().read_at(fd, count_bytes, position)

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> None:
        failure = self._error("write_at")
        if failure is None:
            super().write_at(fd, data, position)
            return
        error, after_bytes = failure
        if after_bytes:
            super().write_at(fd, data[:after_bytes], position)
        raise error

    def send(self, fd: int, target: int, count_bytes: int, position: int) -> int:
        self._check("send")
        return super().send(fd, target, count_bytes, position)

    def resize(self, fd: int, size_bytes: int) -> None:
        self._check("resize")
        super().resize(fd, size_bytes)

    def map_to_read(self, fd: int, size_bytes: int) -> mmap.mmap:
        self._check("map_to_read")
        return super().map_to_read(fd, size_bytes)

    def map_to_write(self, fd: int, size_bytes: int) -> mmap.mmap:
        self._check("map_to_write")
        return super().map_to_write(fd, size_bytes)

    def sync_data(self, fd: int) -> None:
        self._check("sync_data")
        super().sync_data(fd)

    def names(self, directory: Path) -> list[str]:
        self._check("names")
        return super().names(directory)

    def file_bytes(self, path: Path) -> int:
        self._check("file_bytes")
        return super().file_bytes(path)

    def is_same_file(self, fd: int, path: Path) -> bool:
        self._check("is_same_file")
        return super().is_same_file(fd, path)

    def make_directory(self, path: Path) -> None:
        self._check("make_directory")
        super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._check("unlink")
        super().unlink(path)

    def make_fifo(self, path: Path) -> None:
        self._check("make_fifo")
        super().make_fifo(path)

    def sync_directory(self, path: Path) -> None:
        self._check("sync_directory")
        super().sync_directory(path)

    def lock(self, fd: int, *, shared: bool = False) -> None:
        self._check("lock")
        super().lock(fd, shared=shared)

    def locker(self, fd: int) -> tuple[Callable[[], None], Callable[[], None]]:
        return partial(self.lock, fd), partial(self.unlock, fd)

    def try_lock(self, fd: int, *, shared: bool = False, timeout_seconds: float = 0.0) -> bool:
        self._check("try_lock")
        return super().try_lock(fd, shared=shared, timeout_seconds=timeout_seconds)

    def unlock(self, fd: int) -> None:
        self._check("unlock")
        super().unlock(fd)
