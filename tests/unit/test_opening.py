"""Opening a log: options, locks, file modes, and where it may lie."""

import math
import os
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from segue import Log
from segue.errors import (
    InvalidArgument,
    LogLocked,
    StorageError,
    UnsupportedFileSystem,
    UnsupportedFormat,
)
from segue.log.disk import Disk
from segue.log.layout import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from segue.log.options import SyncName
from tests.unit.support import (
    SMALL_SEGMENT_BYTES,
    contents,
    failing_cases,
    fill,
    no_descriptor_left_open,
    offsets,
    payloads,
    segment_path,
    small_log,
)

invalid: dict[str, Callable[[Path], Log]] = {
    "sync": lambda path: Log(path, sync="never"),  # type: ignore[arg-type]
    "sync_interval_ms 0": lambda path: Log(path, sync_interval_ms=0),
    "sync_interval_ms large": lambda path: Log(path, sync_interval_ms=60_001),
    "sync_interval_ms text": lambda path: Log(path, sync_interval_ms="5"),  # type: ignore[arg-type]
    "segment_bytes small": lambda path: Log(path, segment_bytes=SEGMENT_BYTES_MIN - 1),
    "segment_bytes large": lambda path: Log(path, segment_bytes=SEGMENT_BYTES_MAX + 1),
    "segment_bytes negative": lambda path: Log(path, segment_bytes=-1),
    "segment_bytes float": lambda path: Log(path, segment_bytes=1e6),  # type: ignore[arg-type]
    "segment_bytes text": lambda path: Log(path, segment_bytes="1M"),  # type: ignore[arg-type]
    "segment_items 0": lambda path: Log(path, segment_items=0),
    "segment_items bool": lambda path: Log(path, segment_items=True),
    "segment_items large": lambda path: Log(path, segment_items=1 << 24),
    "items and bytes": lambda path: Log(path, segment_bytes=65_536, segment_items=2_000),
    "items alone": lambda path: Log(path, segment_items=1_000_000),
    "segment_age 0": lambda path: Log(path, segment_age=0),
    "segment_age negative": lambda path: Log(path, segment_age=timedelta(seconds=-1)),
    "segment_age text": lambda path: Log(path, segment_age="1h"),  # type: ignore[arg-type]
    "segment_age nan": lambda path: Log(path, segment_age=math.nan),
    "segment_age endless": lambda path: Log(path, segment_age=math.inf),
    "lock_timeout text": lambda path: Log(path, lock_timeout="5"),  # type: ignore[arg-type]
    "lock_timeout nan": lambda path: Log(path, lock_timeout=math.nan),
}


def test_options_are_checked_before_anything_is_touched(directory: Path) -> None:
    """A mistake is told as one, and not even the directory is made."""

    def check(make: Callable[[Path], Log]) -> None:
        with no_descriptor_left_open(), pytest.raises(InvalidArgument):
            make(directory)

        assert not directory.exists()

    assert failing_cases(check, invalid) == []


def test_limits_that_do_not_fit_an_existing_log_are_refused(directory: Path) -> None:
    """Items that leave no room in the segments the log has; the log stays as it is."""
    with small_log(directory) as log:
        fill(log, 3)
    before = contents(directory)
    with no_descriptor_left_open(), pytest.raises(InvalidArgument):
        Log(directory, segment_items=300)

    assert contents(directory) == before
    with small_log(directory) as log:
        assert log.next_offset == 3


def test_the_smallest_segment_there_may_be_takes_a_record(directory: Path) -> None:
    """A limit that is documented can be used."""
    with Log(directory, segment_bytes=SEGMENT_BYTES_MIN, segment_items=1, sync="os") as log:
        log.append(b"x")

        assert payloads(log.records()) == [b"x"]


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_a_log_may_be_reopened_in_any_way(directory: Path, sync: SyncName, exclusive: bool) -> None:
    """How it was written before does not matter to whoever opens it next."""
    for before, was_exclusive in (("always", True), ("interval", False), ("os", True)):
        with small_log(directory, sync=before, exclusive=was_exclusive) as log:  # type: ignore[arg-type]
            log.append_many([b"a", b"b"])
        with small_log(directory, sync=sync, exclusive=exclusive) as log:
            log.append(b"c")

    with Log(directory, read_only=True) as log:
        assert payloads(log.records()) == [b"a", b"b", b"c"] * 3


def test_everything_is_for_the_owner_alone(directory: Path) -> None:
    """Directories 0700 and files 0600, whatever the umask would allow."""
    before = os.umask(0)
    try:
        with Log(directory / "a" / "b", segment_bytes=SMALL_SEGMENT_BYTES, segment_items=2) as log:
            fill(log, 5)
            log.reader("r").close()
            log.wait(99, timeout=0.01)
            log.repair()
    finally:
        os.umask(before)

    modes = {
        path.relative_to(directory.parent): stat.S_IMODE(path.stat().st_mode)
        for path in [directory, *directory.rglob("*")]
    }
    assert {path: mode for path, mode in modes.items() if mode not in (0o700, 0o600)} == {}
    assert all(
        (mode == 0o700) == (directory.parent / path).is_dir() for path, mode in modes.items()
    )


# Locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_an_exclusive_owner_keeps_other_writers_out(directory: Path, exclusive: bool) -> None:
    """They are told after their timeout, and nothing is left open."""
    with small_log(directory, exclusive=True) as log:
        fill(log, 1)
        with no_descriptor_left_open(), pytest.raises(LogLocked):
            Log(directory, exclusive=exclusive, lock_timeout=0.01)
        fill(log, 1)
    with small_log(directory, exclusive=exclusive) as log:
        assert log.next_offset == 2


def test_a_shared_log_cannot_become_exclusive(directory: Path) -> None:
    """As long as anybody else has it open to write."""
    with small_log(directory) as log:
        with no_descriptor_left_open(), pytest.raises(LogLocked):
            Log(directory, exclusive=True, lock_timeout=0)
        with Log(directory, lock_timeout=0, sync="os") as other:
            other.append(b"shared")
        fill(log, 1)
    with small_log(directory, exclusive=True) as log:
        assert log.next_offset == 2


# Places --------------------------------------------------------------------------------------


class Mounted(Disk):
    """A disk that says it is of some type."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def file_system(self, path: Path) -> str:
        return self.kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_network_file_system_is_refused(directory: Path, kind: str, read_only: bool) -> None:
    """Locks and mapped files cannot be trusted there; the error says which, nothing is made."""
    with pytest.raises(UnsupportedFileSystem, match=kind):
        Log(directory, read_only=read_only, disk=Mounted(kind))
    assert not directory.exists()


def test_a_network_file_system_may_be_insisted_on(directory: Path) -> None:
    """At the caller's own risk."""
    with Log(directory, allow_network=True, disk=Mounted("nfs4"), sync="os") as log:
        assert log.append(b"x") == 0


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "btrfs", "zfs", ""])
@pytest.mark.parametrize("sync", ["interval", "os"])
def test_local_file_systems_are_fine(directory: Path, kind: str, sync: SyncName) -> None:
    """Also those where a mapped store is not safe: they are written to instead."""
    with small_log(directory, sync=sync, disk=Mounted(kind)) as log:
        written = fill(log, 10)
        log.append_many([b"a", b"b"])

        assert payloads(log.records()) == [*written, b"a", b"b"]


def test_a_path_that_is_a_file_is_refused(scratch: Path) -> None:
    """By a typed error that names it; the file stays."""
    path = scratch / "file"
    path.write_bytes(b"mine")
    for read_only in (False, True):
        with no_descriptor_left_open(), pytest.raises(StorageError, match="file"):
            Log(path, read_only=read_only)

    assert path.read_bytes() == b"mine"


def test_a_path_may_be_text(directory: Path) -> None:
    """Or anything that stands for a path."""
    with Log(str(directory), sync="os") as log:
        log.append(b"x")
        assert log.path == directory
    with Log(directory, sync="os") as log:
        assert offsets(log.records()) == [0]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_of_a_newer_format_is_left_alone(scratch: Path, read_only: bool) -> None:
    """Nothing is guessed about bytes of another version, and nothing is set aside."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 3)
    write_newer_version(segment_path(directory, 0))
    before = contents(directory)
    with (
        no_descriptor_left_open(),
        pytest.raises(UnsupportedFormat),
        Log(directory, read_only=read_only, sync="os") as log,
    ):
        list(log.records())  # Who only reads looks at a segment when it is needed.

    assert contents(directory) == before


def write_newer_version(path: Path) -> None:
    """Raise the version in both copies of a segment's header, checksums included."""
    from zlib import crc32

    body_bytes = 56
    page = bytearray(path.read_bytes())
    for copy in (0, 2048):
        page[copy + 8] += 1
        body = bytes(page[copy : copy + body_bytes])
        page[copy + body_bytes : copy + body_bytes + 4] = crc32(body).to_bytes(4, "little")
    path.write_bytes(page)
