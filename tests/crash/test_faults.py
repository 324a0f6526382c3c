"""What a log does when the operating system refuses: every call fails once, in every sync mode.

One script opens, appends, rolls, flushes, commits, cleans up, repairs, trims and closes. It runs
once for each call it makes, with that call failing. Whatever happens, the caller gets a SegueError
and never a false success, nothing stays open, and a healthy disk finds all that was acknowledged.
"""

import contextlib
import errno
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from segue import Log
from segue.errors import SegueError, StorageError, StorageFailed
from segue.log.options import SyncName
from segue.testing import OPERATIONS, FaultyDisk, Operation
from tests.crash.fault_script import (
    SEGMENT_BYTES,
    SEGMENT_ITEMS,
    BrokenDisk,
    CallListingDisk,
    Fault,
    Script,
    Setting,
    check_with_a_healthy_disk,
)
from tests.crash.replay import TORTURE, new_seed

# Letting go of a lock cannot fail, short of a descriptor that was never open. The others are not
# called in the life of a log that nobody copies: who does so tests them.
UNCALLED: Final = frozenset(("unlock", "send", "is_same_file"))
FAILING: Final = tuple(operation for operation in OPERATIONS if operation not in UNCALLED)
FILLING: Final[tuple[Operation, ...]] = (
    *("open_to_write", "write_at", "resize", "sync_data"),
    *("make_directory", "make_fifo", "rename", "sync_directory"),
)
"""What may find the disk full."""


SETTINGS: Final = (
    Setting(sync="always"),
    Setting(sync="always", exclusive=True),
    Setting(sync="interval", mapped=True),
    Setting(sync="interval", exclusive=True),
    Setting(sync="os", mapped=True, exclusive=True),
    Setting(sync="os"),
)
READING: Final = frozenset(
    (
        *("open_to_read", "close", "size", "read_at", "map_to_read", "names", "file_bytes"),
        *("lock", "try_lock"),
    )
)
"""What is done alike in every sync mode, so that one of them will do."""
FAULTS: Final = (
    *(Fault(operation=operation, error=errno.EIO) for operation in FAILING),
    *(Fault(operation=operation, error=errno.ENOSPC) for operation in FILLING),
    Fault(operation="write_at", error=errno.ENOSPC, after_bytes=10),
    Fault(operation="write_at", error=errno.EIO, after_bytes=100),
    Fault(operation="sync_data", error=errno.EIO, lasting=True),
    Fault(operation="write_at", error=errno.EDQUOT, lasting=True),
)
SHORT_STEP: Final = 3
OTHER_CALLS_MAX: Final = 25
EIO_ONCE: Final = frozenset(Fault(operation=each, error=errno.EIO) for each in FAILING)


def is_worth_it(setting: Setting, fault: Fault) -> bool:
    """Report whether a short run tries a case: each fault in some settings, and each setting."""
    if fault.operation in READING:
        return setting is SETTINGS[0]
    step = SHORT_STEP if fault in EIO_ONCE else 2 * SHORT_STEP
    return (SETTINGS.index(setting) - FAULTS.index(fault)) % step == 0


CASES: Final = [
    (setting, fault)
    for setting in SETTINGS
    for fault in FAULTS
    if TORTURE or is_worth_it(setting, fault)
]
GROUP_FAULTS: Final = (
    Fault(operation="open_to_write", error=errno.ENOSPC, lasting=True),
    Fault(operation="lock", error=errno.ENOLCK),
    Fault(operation="sync_data", error=errno.EIO),
    Fault(operation="write_at", error=errno.EIO),
    Fault(operation="write_at", error=errno.ENOSPC, after_bytes=10),
)


@pytest.fixture(scope="session")
def damaged_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three segments, the second with a damaged record: something to repair."""
    path = tmp_path_factory.mktemp("damaged") / "log"
    with Log(path, segment_items=SEGMENT_ITEMS, segment_bytes=SEGMENT_BYTES, sync="os") as log:
        for number in range(10):
            log.append(b"before %d " % number * 10)
        position = log.segments()[1].path.stat().st_size - 4096
        with log.segments()[1].path.open("r+b") as file:
            file.seek(position + 5)
            file.write(b"?")
    return path


@pytest.mark.parametrize(("setting", "fault"), CASES, ids=str)
def test_a_failing_call_is_reported_as_what_it_is_and_costs_nothing_acknowledged(
    scratch: Path, damaged_log: Path, setting: Setting, fault: Fault
) -> None:
    """C8: typed errors, no false success, nothing left open, and the log goes on afterwards.

    A short run has the first call fail of those that come from the same place in the code; they
    differ in nothing but what the log holds by then. The long run also draws some of the others.
    """
    wrong: dict[str, int] = {}
    calls = calls_worth_failing(scratch / "calls", damaged_log, setting, fault)
    for call in calls:
        path = scratch / str(call)
        shutil.copytree(damaged_log, path)
        disk = BrokenDisk(mapped=setting.mapped)
        fault.set_up(disk, call)
        script = Script(path, disk, setting)
        script.play()
        disk.heal()
        try:
            check_with_a_healthy_disk(path, script)
        except SegueError as error:
            script.wrong.append(f"healthy disk: {error!r}")
        if not disk.failed:
            script.wrong.append("nothing failed")
        for each in script.wrong:
            wrong.setdefault(each, call)
        shutil.rmtree(path)

    assert wrong == {}
    assert calls


def calls_worth_failing(path: Path, log: Path, setting: Setting, fault: Fault) -> list[int]:
    """Return the numbers of the calls that are to fail, one run each."""
    shutil.copytree(log, path)
    disk = CallListingDisk(mapped=setting.mapped)
    script = Script(path, disk, setting)
    script.play()
    check_with_a_healthy_disk(path, script)
    shutil.rmtree(path)
    assert script.wrong == []
    calls = disk.one_of_each(fault.operation)
    if TORTURE:
        others = sorted(set(range(1, disk.counts[fault.operation] + 1)) - set(calls))
        calls += random.Random(new_seed()).sample(others, min(OTHER_CALLS_MAX, len(others)))
    return calls


class SlowDisk(BrokenDisk):
    """Takes so long to sync that the appends of other threads gather behind it."""

    def sync_data(self, fd: int) -> None:
        threading.Event().wait(0.001)
        super().sync_data(fd)


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
@pytest.mark.parametrize("fault", GROUP_FAULTS, ids=str)
def test_threads_that_share_a_failing_commit_are_each_told_the_truth(
    scratch: Path, fault: Fault, *, exclusive: bool
) -> None:
    """Whoever led it, an append that returned is there, and one that met a full disk is not."""
    wrong: dict[str, int] = {}
    for call in range(1, 13, 1 if TORTURE else 2):
        path = scratch / str(call)
        disk = SlowDisk(mapped=False)
        script = Script(path, disk, Setting(sync="always", exclusive=exclusive))
        log = script.open()
        fault.set_up(disk, call)
        threads = [
            threading.Thread(target=script.append_many_times, args=(log, b"%d" % number))
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        disk.heal()
        script.adopt(log)
        script.close()
        check_with_a_healthy_disk(path, script)
        for each in script.wrong:
            wrong.setdefault(each, call)

    assert wrong == {}


class Interrupted(BaseException):
    """What a signal may raise anywhere."""


class InterruptingClock:
    """Interrupts whoever asks for the time when it is told to; otherwise time stands still."""

    def __init__(self) -> None:
        self.interrupts = threading.Semaphore(0)

    def __call__(self) -> int:
        if self.interrupts.acquire(blocking=False):
            raise Interrupted
        return 1


def test_threads_whose_leader_is_interrupted_hear_no_success(scratch: Path) -> None:
    """Their appends were never tried, so an offset would be a lie."""
    clock = InterruptingClock()
    given: list[int] = []

    def append(log: Log) -> None:
        for _ in range(20):
            with contextlib.suppress(SegueError, Interrupted):
                given.append(log.append(b"x"))
                clock.interrupts.release()

    with Log(scratch / "log", disk=SlowDisk(mapped=False), clock=clock) as log:
        threads = [threading.Thread(target=append, args=(log,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorded = log.next_offset

    assert sorted(given) == sorted(set(given) & set(range(recorded)))


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_after_a_failed_sync_the_log_takes_nothing_until_it_is_reopened(
    scratch: Path, sync: SyncName
) -> None:
    """The system may have dropped what it could not write, so a second sync proves nothing."""
    disk = FaultyDisk()
    log = Log(scratch / "log", sync=sync, disk=disk)
    log.append(b"before")
    log.flush()
    disk.fail(operation="sync_data")
    with pytest.raises(StorageFailed):
        log.flush()
    writes: tuple[Callable[[], object], ...] = (
        *(lambda: log.append(b"x"), lambda: log.append_many([b"x"])),
        *(log.flush, log.roll),
    )
    for write in writes:
        with pytest.raises(StorageFailed):
            write()
    log.close()

    with Log(scratch / "log", sync=sync, disk=disk) as log:
        assert log.append(b"after") == 1
        assert [record.payload for record in log.records()] == [b"before", b"after"]


@pytest.mark.parametrize("act", ["append_many", "flush", "roll", "trim"])
def test_a_handle_that_cannot_catch_up_keeps_nobody_else_out(scratch: Path, act: str) -> None:
    """A lock that outlives the call that took it would stop every other process for good."""
    disk = FaultyDisk()
    with (
        Log(scratch / "log", disk=disk) as other,
        Log(scratch / "log", disk=disk) as log,  # Closed first: the other one could wait for it.
        (scratch / "log" / "lock").open("r+b") as file,
    ):
        other.append(b"one")
        other.roll()
        disk.fail(operation="open_to_write")
        acts: dict[str, Callable[[], object]] = {
            "append_many": lambda: log.append_many([b"two"]),
            "flush": log.flush,
            "roll": log.roll,
            "trim": lambda: log.trim(1),
        }
        with pytest.raises(StorageError):
            acts[act]()

        assert disk.failed == ["open_to_write"]
        assert disk.try_lock(file.fileno())
