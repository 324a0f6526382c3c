"""The operating system, in one class: the only place that syncs, locks, maps and renames.

Everything above asks a `Disk`, so a test can hand in one that fails, records or kills the process
(`segue.testing`). The one exception is deliberate: stores into a mapping this class handed out.
"""

import errno
import fcntl
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

from segue.errors import StorageError, StorageFailed, StorageFull
from segue.log.mounts import mount_of

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
LOCK_POLL_SECONDS: Final = 0.005
COPY_BYTES_MAX: Final = 1 << 20
"""How much is copied at a time where the system does not send by itself."""
NAMES_SETTLE_NS: Final = 2_000_000_000
"""File systems tell times apart that lie so far from each other, the coarsest of them."""

MOUNT_TABLE: Final = Path("/proc/self/mountinfo")

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Among them a file opened to append; on some systems everything that is no socket.
_NOT_SENDABLE: Final = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.ENOTSUP, errno.EOPNOTSUPP}
)
_NETWORK_FILE_SYSTEMS: Final = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.glusterfs", "fuse.sshfs"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs"),
        *("smb3", "smbfs", "vboxsf"),
    )
)
# There an overwritten block is written elsewhere, so space written ahead is no promise and a
# mapped store could meet a full disk as SIGBUS.
_COPY_ON_WRITE_FILE_SYSTEMS: Final = frozenset({"bcachefs", "btrfs", "zfs"})


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn an operating system's error into a StorageError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise storage_error(doing, error) from error


def storage_error(doing: str, error: OSError) -> StorageError:
    """Return the error that says what was being done when the system refused."""
    kind = StorageFull if error.errno in _FULL else StorageError
    return kind(f"{doing}: {error.strerror or error}")


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turn an error of reading `path` into a StorageError; that it is missing is no such error."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(f"reading {path}", error) from error


@contextmanager
def storage_failures(doing: str) -> Iterator[None]:
    """Turn an operating system's error into StorageFailed: what is on disk is now unknown."""
    try:
        yield
    except OSError as error:
        raise storage_failed(doing, error) from error


def storage_failed(doing: str, error: OSError) -> StorageFailed:
    """Return the error that stops a log."""
    return StorageFailed(
        f"{doing}: {error.strerror or error}; the log takes no more writes until it is reopened"
    )


class Disk:
    """Files as the log needs them. Raises OSError as the system does; safe from any thread."""

    stores_mapped = True
    """Whether writes may go through a mapping; otherwise every byte passes `write_at`."""

    # Files ---------------------------------------------------------------------------------

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_to_write(self, path: Path, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read_at(self, fd: int, count_bytes: int, position: int) -> bytes:
        """Return up to `count_bytes`; fewer only where the file ends."""
        pieces = []
        while count_bytes > 0:
            piece = os.pread(fd, count_bytes, position)
            if not piece:
                break
            pieces.append(piece)
            count_bytes -= len(piece)
            position += len(piece)
        return b"".join(pieces)

    def read_file(self, path: Path, count_bytes: int | None = None, *, position: int = 0) -> bytes:
        """Return up to `count_bytes` of the file at `path`, or all it has."""
        fd = self.open_to_read(path)
        try:
            wanted = self.size(fd) if count_bytes is None else count_bytes
            return self.read_at(fd, wanted, position)
        finally:
            self.close(fd)

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write all of `data`, or raise."""
        written = os.pwrite(fd, data, position)
        while written < len(data):
            rest = memoryview(data)[written:]
            count = os.pwrite(fd, rest, position + written)
            if count == 0:
                raise OSError(errno.EIO, "the device takes no more bytes")
            written += count

    def send(self, fd: int, target: int, count_bytes: int, position: int) -> int:
        """Send bytes of a file on to another file, pipe or socket; return how many were.

        They may be fewer than `count_bytes`, and are none only where the file ends.
        """
        try:
            return os.sendfile(target, fd, position, count_bytes)
        except OSError as error:
            if error.errno not in _NOT_SENDABLE:
                raise
        return os.write(target, os.pread(fd, min(count_bytes, COPY_BYTES_MAX), position))

    def resize(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def map_to_read(self, fd: int, size_bytes: int) -> mmap.mmap:
        return mmap.mmap(fd, size_bytes, access=mmap.ACCESS_READ)

    def map_to_write(self, fd: int, size_bytes: int) -> mmap.mmap:
        return mmap.mmap(fd, size_bytes, access=mmap.ACCESS_WRITE)

    def sync_data(self, fd: int) -> None:
        """Return once the file's bytes are on the device."""
        if sys.platform == "darwin":  # pragma: no cover - fsync there stops at the drive's cache
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    # Names ---------------------------------------------------------------------------------

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted; none if it does not exist."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def names_as_of(self, directory: Path) -> int:
        """Return a number that changes with the names in `directory`; 0 if it may not yet.

        They may have changed so lately that the next change is not told from this one; or there
        is no such directory.
        """
        try:
            changed_ns = os.stat(directory).st_mtime_ns
        except FileNotFoundError:
            return 0
        return changed_ns if time.time_ns() - changed_ns > NAMES_SETTLE_NS else 0

    def file_bytes(self, path: Path) -> int:
        """Return what the file takes up on the device."""
        return os.stat(path).st_blocks * 512

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def is_same_file(self, fd: int, path: Path) -> bool:
        """Tell whether `path` leads to the file that is open as `fd`."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            return False

    def make_directory(self, path: Path) -> None:
        """Create `path` and what leads to it, each synced into its parent."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            try:
                os.mkdir(directory, DIRECTORY_MODE)
            except FileExistsError:
                continue
            self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_fifo(self, path: Path) -> None:
        os.mkfifo(path, FILE_MODE)

    def sync_directory(self, path: Path) -> None:
        """Return once the names in `path` are on the device.

        A new file can survive a crash without its name; this is what keeps the name.
        """
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Make `path` hold `data`: after a crash it holds the old bytes or these, never a mix.

        Without `sync` that is so if the process is killed; a power cut may leave anything.
        """
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}.tmp")
        try:
            fd = self.open_to_write(temporary, create=True)
            try:
                self.write_at(fd, data, 0)
                if sync:
                    self.sync_data(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                self.unlink(temporary)
            raise

    # Locks ---------------------------------------------------------------------------------

    def lock(self, fd: int, *, shared: bool = False) -> None:
        """Take the file's lock, waiting for it. Held per opening, so by one thread at a time."""
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    def locker(self, fd: int) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what locks and what unlocks the file, without a call in between."""
        return partial(fcntl.flock, fd, fcntl.LOCK_EX), partial(fcntl.flock, fd, fcntl.LOCK_UN)

    def try_lock(self, fd: int, *, shared: bool = False, timeout_seconds: float = 0.0) -> bool:
        """Take the file's lock within `timeout_seconds` and tell whether it was had."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(LOCK_POLL_SECONDS)

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    # The machine ---------------------------------------------------------------------------

    def boot_id(self) -> int:
        """Return a number that changes when the machine restarts, or 0 if it cannot be known."""
        try:
            text = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
        except OSError:
            return 0
        return crc32(text) << 32 | crc32(text[::-1]) | 1

    def file_system(self, path: Path) -> str:
        """Return the type of the file system under `path`, such as "ext4", or "" if unknown."""
        path = path.absolute()
        while not path.exists():
            path = path.parent
        device = os.stat(path).st_dev
        wanted = f" {os.major(device)}:{os.minor(device)} "
        try:
            table = MOUNT_TABLE.read_text(errors="surrogateescape")
        except OSError:
            return ""
        for line in reversed(table.splitlines()):
            before, _, after = line.partition(" - ")
            if wanted in before:
                return after.split()[0]
        # On btrfs files have a device of their own, which the table does not know.
        mount = mount_of(path.resolve(), table)
        return "" if mount is None else mount.kind

    def is_network_file_system(self, path: Path) -> bool:
        return self.file_system(path) in _NETWORK_FILE_SYSTEMS

    def may_store_mapped(self, path: Path) -> bool:
        """Tell whether space written ahead under `path` makes a mapped store safe."""
        return self.stores_mapped and self.file_system(path) not in _COPY_ON_WRITE_FILE_SYSTEMS
