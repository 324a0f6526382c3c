"""Opening to read: nothing is created, locked, changed or repaired."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from segue import Log
from segue.errors import InvalidArgument, LogNotFound, LogReadOnly
from tests.unit.support import (
    RestartedMachine,
    contents,
    fill,
    flip_bit,
    offsets,
    payloads,
    segment_path,
    slot_position,
    small_log,
    traces,
)


def use(log: Log) -> None:
    """Do everything a reader can do."""
    list(log.records())
    list(log.records(on_damage="skip"))
    list(log.follow("earliest", timeout=0.01))
    list(log.verify())
    list(log.columns())
    log.segments()
    log.readers()
    log.wait(1 << 40, timeout=0.01)
    log.offset_at(datetime(2020, 1, 1, tzinfo=UTC))
    _ = (log.first_offset, log.next_offset, log.size_bytes, len(log))
    with log.reader("r") as reader:
        list(reader)
    with log.reader("unknown", "earliest") as reader:
        reader.read(timeout=0.01)


@pytest.mark.parametrize("state", ["closed", "open", "restarted", "no live file"])
def test_reading_leaves_no_trace(directory: Path, state: str) -> None:
    """Names, sizes, modes, times and bytes are the same before and after."""
    pytest.importorskip("pyarrow")
    writer = small_log(directory)
    fill(writer, 10)
    writer.reader("r", 3).close()
    if state != "open":
        writer.close()
    if state == "no live file":
        (directory / "live").unlink()
    before = (traces(directory), contents(directory))
    disk = RestartedMachine() if state == "restarted" else None
    with Log(directory, read_only=True, disk=disk) as log:
        use(log)

        assert (traces(directory), contents(directory)) == before
    assert (traces(directory), contents(directory)) == before
    writer.close()


def test_reading_a_torn_tail_leaves_it_as_it_is(scratch: Path) -> None:
    """What a crash left is looked at but not cut, before and after a restart."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 6)
    flip_bit(segment_path(directory, 1), slot_position(1))
    (directory / "000000002.q.new").write_bytes(b"left over")
    (directory / "readers").mkdir(mode=0o700)
    (directory / "readers" / "x.meta.1-1.tmp").write_bytes(b"left over")
    before = (traces(directory), contents(directory))
    for disk in (None, RestartedMachine()):
        with Log(directory, read_only=True, disk=disk) as log:
            assert offsets(log.records(on_damage="skip")) == [0, 1, 2, 3, 4]

    assert (traces(directory), contents(directory)) == before


def test_there_must_be_a_log_to_read(scratch: Path) -> None:
    """An empty or missing directory is no log, and is not made one."""
    for path in (scratch, scratch / "missing", scratch / "missing" / "too"):
        with pytest.raises(LogNotFound):
            Log(path, read_only=True)
        with pytest.raises(LogNotFound):
            Log(path, create=False)

    assert list(scratch.iterdir()) == []


def test_readers_and_writers_do_not_lock_each_other_out(directory: Path) -> None:
    """A log is read while another handle holds it exclusively, and the other way round."""
    with small_log(directory, exclusive=True) as writer:
        fill(writer, 5)
        with Log(directory, read_only=True) as log:
            assert log.next_offset == 5
            fill(writer, 5)
            assert offsets(log.records()) == list(range(10))
    with (
        Log(directory, read_only=True) as log,
        Log(directory, exclusive=True, sync="os", lock_timeout=0) as writer,
    ):
        fill(writer, 5)
        assert log.next_offset == 15


def test_a_reader_from_before_a_restart_follows_the_next_writer(directory: Path) -> None:
    """It has looked for itself while nobody wrote; then the writer's words are believed."""
    with small_log(directory) as log:
        fill(log, 5)
    with Log(directory, read_only=True, disk=RestartedMachine()) as log:
        assert offsets(log.records()) == [0, 1, 2, 3, 4]
        with small_log(directory, disk=RestartedMachine()) as writer:
            fill(writer, 5)

            assert offsets(log.records()) == list(range(10))


def test_damage_is_reported_after_a_restart_too(scratch: Path) -> None:
    """A flipped bit in what was synced is damage; it hides neither itself nor its neighbours."""
    directory = scratch / "log"
    with small_log(directory, segment_items=20, sync="always") as log:
        fill(log, 10)
    flip_bit(segment_path(directory, 0), slot_position(3))
    with Log(directory, read_only=True, disk=RestartedMachine()) as log:
        assert [audit.is_intact for audit in log.verify()] == [False]
        assert offsets(log.records(on_damage="skip")) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert log.next_offset == 10


writes: list[Callable[[Log], object]] = [
    lambda log: log.append(b"x"),
    lambda log: log.append_many([b"x"]),
    lambda log: log.append_many([]),
    lambda log: log.flush(),
    lambda log: log.roll(),
    lambda log: log.trim(0),
    lambda log: log.cleanup(),
    lambda log: log.repair(),
    lambda log: log.remove_reader("r"),
]


@pytest.mark.parametrize("write", writes, ids=range(len(writes)))
def test_writing_to_a_read_only_log_is_refused(
    directory: Path, write: Callable[[Log], object]
) -> None:
    """Every way to change something says that the handle is for reading."""
    with small_log(directory) as log:
        fill(log, 1)
    with Log(directory, read_only=True) as log:
        assert log.read_only
        with pytest.raises(LogReadOnly):
            write(log)


def test_read_only_and_exclusive_exclude_each_other(directory: Path) -> None:
    """Who only reads keeps nobody out."""
    with pytest.raises(InvalidArgument):
        Log(directory, read_only=True, exclusive=True)


def test_a_live_file_that_is_too_short_leaks_nothing(directory: Path) -> None:
    """Looking again and again for words that are not there opens no file twice."""
    with small_log(directory) as log:
        fill(log, 3)
    os.truncate(directory / "live", 100)
    with Log(directory, read_only=True) as log:
        _ = log.next_offset
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(50):
            assert log.next_offset == 3

        assert len(list(Path("/proc/self/fd").iterdir())) == before


NOBODY = 65_534

READ_AS_SOMEBODY = """
import os, sys
from segue import Log
path, user = sys.argv[1], int(sys.argv[2])
import segue.log.columns
if os.getuid() == 0:
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
assert not os.access(path, os.W_OK)
with Log(path, read_only=True) as log:
    with log.reader("r") as reader:
        assert [record.payload for record in reader] == [b"record 3", b"record 4"]
    assert not log.wait(5, timeout=0.01)
    assert all(audit.is_intact for audit in log.verify())
    assert sum(len(columns) for columns in log.columns()) == 5
try:
    Log(path)
except Exception as error:
    sys.exit(0 if type(error).__name__ == "StorageError" else repr(error))
sys.exit("opened to write")
"""


def test_a_log_one_may_only_read_can_be_read() -> None:
    """Without permission to write in the directory; opening it to write says so."""
    pytest.importorskip("pyarrow")
    # Not under pytest's directories: nobody else may look into those.
    base = Path(tempfile.mkdtemp(prefix="segue-test-"))
    directory = base / "log"
    try:
        with small_log(directory) as log:
            fill(log, 5)
            log.reader("r", 3).close()
        before = contents(directory)
        for path in [base, directory, *directory.rglob("*")]:
            if os.getuid() == 0:
                os.chown(path, NOBODY, NOBODY)
            path.chmod(0o500 if path.is_dir() else 0o400)
        outcome = subprocess.run(
            [sys.executable, "-c", READ_AS_SOMEBODY, str(directory), str(NOBODY)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert contents(directory) == before
    finally:
        for path in [base, directory]:
            path.chmod(0o700)
        shutil.rmtree(base)


def test_a_copy_of_an_open_log_can_be_read(scratch: Path) -> None:
    """A backup taken while a writer is at work holds what was published."""
    with small_log(scratch / "log") as log:
        written = fill(log, 7)
        shutil.copytree(scratch / "log", scratch / "copy")
        fill(log, 7, first=7)
    for disk in (None, RestartedMachine()):
        with Log(scratch / "copy", read_only=True, disk=disk) as copy:
            assert payloads(copy.records()) == written
