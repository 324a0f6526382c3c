"""The clock and the disks that `segue.testing` ships."""

import errno
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from segue import Log
from segue.errors import InvalidArgument, StorageFailed, StorageFull
from segue.testing import OPERATIONS, FaultyDisk, ManualClock, Operation, RecordingDisk
from tests.unit.support import failing_cases

STATES = 60
"""How many states of one power cut are looked at, so that each kind turns up."""


# ManualClock -----------------------------------------------------------------------------------


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    """Time is the test's to give, in microseconds."""
    clock = ManualClock(1_000)
    before = clock(), clock()
    returned = clock.advance(seconds=1.5, ms=0.25)

    assert before == (1_000, 1_000)
    assert returned == clock() == 1_501_250


def test_a_manual_clock_can_step_back() -> None:
    """Wall clocks do, and a log must keep its order all the same."""
    clock = ManualClock(5_000_000)
    clock.advance(seconds=-2)

    assert clock() == 3_000_000


def test_a_manual_clock_loses_no_step_of_any_thread() -> None:
    """Advancing is one step, whoever else advances at the time."""
    clock = ManualClock(0)

    def advance() -> None:
        for _ in range(1_000):
            clock.advance(ms=1)

    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clock() == 4_000_000


def test_a_log_takes_its_times_from_a_manual_clock(tmp_path: Path) -> None:
    """It is a clock as `Log` wants one."""
    clock = ManualClock()
    with Log(tmp_path / "log", clock=clock, sync="os") as log:
        log.append(b"first")
        clock.advance(seconds=60)
        log.append(b"second")

        assert log.read(1).time_us - log.read(0).time_us == 60_000_000


# FaultyDisk ------------------------------------------------------------------------------------


def test_a_faulty_disk_is_a_healthy_one_that_counts_until_told_otherwise(tmp_path: Path) -> None:
    """Nothing fails by itself."""
    disk = FaultyDisk()
    with Log(tmp_path / "log", disk=disk) as log:
        log.append(b"one")

    assert disk.failed == []
    assert disk.calls == sum(disk.counts.values())
    assert disk.counts["sync_data"] >= 2


def test_the_call_named_by_its_number_fails_and_the_next_one_does_not(tmp_path: Path) -> None:
    """Calls are counted from the moment the fault was set, over all operations."""
    disk = FaultyDisk()
    disk.names(tmp_path)
    disk.fail(call=2, error=errno.EDQUOT)
    disk.names(tmp_path)
    with pytest.raises(OSError, match="EDQUOT injected into file_bytes") as caught:
        disk.file_bytes(tmp_path)
    disk.names(tmp_path)

    assert caught.value.errno == errno.EDQUOT
    assert disk.failed == ["file_bytes"]
    assert disk.calls == 4


def test_only_calls_of_the_named_operation_count(tmp_path: Path) -> None:
    """The second sync fails, however many writes lie between."""
    disk = FaultyDisk()
    with Log(tmp_path / "log", disk=disk) as log:
        disk.fail(call=2, operation="sync_data", error=errno.EIO)
        log.append(b"one")
        with pytest.raises(StorageFailed) as caught:
            log.append(b"two")

        assert isinstance(caught.value.__cause__, OSError)
        assert disk.failed == ["sync_data"]


def test_a_lasting_fault_fails_every_call_until_the_disk_is_healed(tmp_path: Path) -> None:
    """A full disk stays full until somebody makes room."""
    disk = FaultyDisk()
    with Log(tmp_path / "log", disk=disk, sync="os", segment_items=4) as log:
        log.append(b"one")
        disk.fail(operation="open_to_write", error=errno.ENOSPC, lasting=True)
        for _ in range(2):
            with pytest.raises(StorageFull):
                log.roll()
        disk.heal()

        assert log.roll() == 1
        assert disk.failed == ["open_to_write"] * 2


@pytest.mark.parametrize("after_bytes", [0, 3, 100])
def test_a_failing_write_may_have_written_its_first_bytes(tmp_path: Path, after_bytes: int) -> None:
    """As a disk that fills up in the middle of a write leaves them."""
    disk = FaultyDisk()
    fd = disk.open_to_write(tmp_path / "file", create=True)
    disk.fail(operation="write_at", after_bytes=after_bytes)
    with pytest.raises(OSError, match="injected"):
        disk.write_at(fd, b"abcdef", 0)
    disk.close(fd)

    assert (tmp_path / "file").read_bytes() == b"abcdef"[:after_bytes]


def test_a_failing_close_has_closed_all_the_same(tmp_path: Path) -> None:
    """On Linux the descriptor is gone, so closing it again could hit a stranger's."""
    disk = FaultyDisk()
    fd = disk.open_to_write(tmp_path / "file", create=True)
    disk.fail(operation="close")
    with pytest.raises(OSError, match="injected into close"):
        disk.close(fd)

    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.size(fd)


def test_every_operation_can_be_made_to_fail(tmp_path: Path) -> None:
    """Each one is counted under its own name."""

    def check(operation: Operation) -> None:
        disk = FaultyDisk()
        path = tmp_path / "file"
        path.write_bytes(b"0123456789")
        with path.open("r+b") as file:
            fd = file.fileno()
            acts: dict[Operation, Callable[[], object]] = {
                "open_to_read": lambda: disk.open_to_read(path),
                "open_to_write": lambda: disk.open_to_write(path),
                "close": lambda: disk.close(disk.open_to_read(path)),
                "size": lambda: disk.size(fd),
                "read_at": lambda: disk.read_at(fd, 1, 0),
                "write_at": lambda: disk.write_at(fd, b"x", 0),
                "send": lambda: disk.send(fd, fd, 1, 0),
                "resize": lambda: disk.resize(fd, 5),
                "map_to_read": lambda: disk.map_to_read(fd, 5),
                "map_to_write": lambda: disk.map_to_write(fd, 5),
                "sync_data": lambda: disk.sync_data(fd),
                "names": lambda: disk.names(tmp_path),
                "file_bytes": lambda: disk.file_bytes(path),
                "is_same_file": lambda: disk.is_same_file(fd, path),
                "make_directory": lambda: disk.make_directory(tmp_path / "new"),
                "rename": lambda: disk.rename(path, tmp_path / "other"),
                "unlink": lambda: disk.unlink(path),
                "make_fifo": lambda: disk.make_fifo(tmp_path / "pipe"),
                "sync_directory": lambda: disk.sync_directory(tmp_path),
                "lock": disk.locker(fd)[0],
                "try_lock": lambda: disk.try_lock(fd),
                "unlock": disk.locker(fd)[1],
            }
            disk.fail(operation=operation)
            with pytest.raises(OSError, match=f"EIO injected into {operation}"):
                acts[operation]()

        assert disk.failed == [operation]
        assert path.read_bytes() == b"0123456789"

    assert failing_cases(check, OPERATIONS) == []


def test_a_fault_that_can_never_happen_is_refused() -> None:
    """A misspelt operation would make a test pass that tests nothing."""
    disk = FaultyDisk()
    with pytest.raises(InvalidArgument, match="none of"):
        disk.fail(operation="fsync")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="counts from 1"):
        disk.fail(call=0)


# RecordingDisk ---------------------------------------------------------------------------------


class Machine:
    """A directory with one recorded disk, and the states a power cut may leave of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.root.mkdir()
        (self.root / "old").write_bytes(b"o" * 2_000)
        self.disk = RecordingDisk(self.root)
        self._tmp_path = tmp_path
        self._numbers = count()

    def create(self, name: str, data: bytes = b"", *, sync: bool = False) -> None:
        fd = self.disk.open_to_write(self.root / name, create=True)
        self.disk.write_at(fd, data, 0)
        if sync:
            self.disk.sync_data(fd)
        self.disk.close(fd)

    def states(self, moment: int | None = None) -> list[dict[str, bytes | None]]:
        """Return what may be left, as names and contents; directories hold None."""
        found = []
        for seed in range(STATES):
            target = self._tmp_path / str(next(self._numbers))
            cut_at = self.disk.moment if moment is None else moment
            self.disk.after_power_cut(target, cut_at, Random(seed))
            found.append(
                {
                    str(path.relative_to(target)): path.read_bytes() if path.is_file() else None
                    for path in target.rglob("*")
                }
            )
        return found


class NamelessDirectories(RecordingDisk):
    """Forgets to sync the root, so that what is made in it has no name for good."""

    def sync_directory(self, path: Path) -> None:
        if path.name != "root":
            super().sync_directory(path)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_was_there_before_the_recording_is_never_lost(machine: Machine) -> None:
    """The root as it is found counts as synced."""
    machine.create("new")

    assert all(state["old"] == b"o" * 2_000 for state in machine.states())


def test_a_file_and_its_name_are_safe_once_both_are_synced(machine: Machine) -> None:
    """Two syncs, and then every state has it whole."""
    machine.create("file", b"f" * 3_000, sync=True)
    machine.disk.sync_directory(machine.root)

    assert all(state["file"] == b"f" * 3_000 for state in machine.states())


def test_syncing_a_file_does_not_keep_its_name(machine: Machine) -> None:
    """POSIX says so, and some file systems mean it; if the name is there, so are the bytes."""
    machine.create("file", b"f" * 3_000, sync=True)
    kinds = {state.get("file") for state in machine.states()}

    assert kinds == {None, b"f" * 3_000}


def test_an_unsynced_write_is_kept_lost_or_torn_by_sectors(machine: Machine) -> None:
    """Each sector is the old one or the new one, and never a mix."""
    fd = machine.disk.open_to_write(machine.root / "old")
    machine.disk.write_at(fd, b"n" * 1_500, 100)
    machine.disk.close(fd)
    kinds = set()
    for state in machine.states():
        data = state["old"]
        assert data is not None
        sectors = data[100:512], data[512:1024], data[1024:1536], data[1536:1600]
        assert all(len(set(sector)) == 1 for sector in sectors)
        assert set(data[:100] + data[1600:]) == set(b"o")
        kinds.add(tuple(sector[:1] for sector in sectors))

    assert {(b"o",) * 4, (b"n",) * 4} < kinds


def test_later_writes_may_survive_earlier_ones(machine: Machine) -> None:
    """The device writes in the order it likes."""
    fd = machine.disk.open_to_write(machine.root / "old")
    machine.disk.write_at(fd, b"1", 0)
    machine.disk.write_at(fd, b"2", 1_000)
    machine.disk.close(fd)
    kinds = {(state["old"] or b"")[0:1001:1000] for state in machine.states()}

    assert kinds == {b"oo", b"1o", b"o2", b"12"}


def test_a_size_is_as_uncertain_as_the_bytes(machine: Machine) -> None:
    """Until the file is synced, growing and shrinking may both be lost."""
    fd = machine.disk.open_to_write(machine.root / "old")
    machine.disk.resize(fd, 500)
    machine.disk.resize(fd, 4_000)
    kinds = {len(state["old"] or b"") for state in machine.states()}
    machine.disk.sync_data(fd)
    machine.disk.close(fd)

    assert kinds == {500, 2_000, 4_000}
    assert {state["old"] for state in machine.states()} == {b"o" * 500 + bytes(3_500)}


def test_a_rename_is_one_step(machine: Machine) -> None:
    """The name stands for the old file or the new one, and never for none."""
    machine.create("old.tmp", b"new", sync=True)
    machine.disk.sync_directory(machine.root)
    machine.disk.rename(machine.root / "old.tmp", machine.root / "old")
    kinds = {(state["old"], state.get("old.tmp")) for state in machine.states()}

    assert kinds == {(b"o" * 2_000, b"new"), (b"new", None)}


def test_a_rename_across_directories_is_safe_once_either_is_synced(machine: Machine) -> None:
    """It is one step, so half of it cannot be safe."""
    machine.disk.make_directory(machine.root / "aside")
    machine.disk.rename(machine.root / "old", machine.root / "aside" / "old")
    before = {("old" in state, "aside/old" in state) for state in machine.states()}
    machine.disk.sync_directory(machine.root / "aside")
    after = {("old" in state, "aside/old" in state) for state in machine.states()}

    assert before == {(True, False), (False, True)}
    assert after == {(False, True)}


def test_a_file_removed_comes_back_until_its_directory_is_synced(machine: Machine) -> None:
    """Whatever became of other names in it."""
    machine.create("other", sync=True)
    machine.disk.unlink(machine.root / "old")
    before = {("old" in state, "other" in state) for state in machine.states()}
    machine.disk.sync_directory(machine.root)
    after = {("old" in state, "other" in state) for state in machine.states()}

    assert before == {(True, True), (True, False), (False, True), (False, False)}
    assert after == {(False, True)}


def test_a_lost_directory_takes_along_what_is_in_it(machine: Machine) -> None:
    """Syncs inside do not help while the directory has no name."""
    disk = NamelessDirectories(machine.root)
    machine.disk = disk
    disk.make_directory(machine.root / "box")
    machine.create("box/file", b"safe", sync=True)
    disk.sync_directory(machine.root / "box")
    before = {("box" in state, state.get("box/file")) for state in machine.states()}
    RecordingDisk.sync_directory(disk, machine.root)
    after = {("box" in state, state.get("box/file")) for state in machine.states()}

    assert before == {(False, None), (True, b"safe")}
    assert after == {(True, b"safe")}


def test_a_mapped_file_is_left_absent_zeroed_random_or_stale(machine: Machine) -> None:
    """Nobody recorded what was stored into it, so nothing can be promised."""
    fd = machine.disk.open_to_write(machine.root / "old")
    with machine.disk.map_to_write(fd, 8) as mapping:
        mapping[:8] = b"newer..."
        machine.disk.sync_data(fd)
    machine.disk.close(fd)
    states = [state.get("old") for state in machine.states()]
    known = {None, bytes(2_000), b"o" * 2_000, b"newer..." + b"o" * 1_992}

    assert known < set(states)
    assert set(states) - known, "some hold noise"


def test_any_moment_can_be_gone_back_to(machine: Machine) -> None:
    """Each is what was recorded by then, in whatever order they are asked for."""
    machine.create("file", b"one", sync=True)
    machine.disk.sync_directory(machine.root)
    first = machine.disk.moment
    machine.disk.unlink(machine.root / "file")
    machine.disk.sync_directory(machine.root)
    sizes = [len(machine.states(moment)[0]) for moment in (machine.disk.moment, first, 0)]

    assert sizes == [1, 2, 1]
    with pytest.raises(InvalidArgument, match="no moment"):
        machine.states(machine.disk.moment + 1)


def test_the_same_randomness_builds_the_same_state(machine: Machine, tmp_path: Path) -> None:
    """A failing run is a seed."""
    for number in range(8):
        machine.create(f"file{number}", b"x" * 700 * number)
    for target in ("a", "b"):
        machine.disk.after_power_cut(tmp_path / target, machine.disk.moment, Random(7))
    trees = [
        {path.name: path.read_bytes() for path in (tmp_path / target).iterdir()}
        for target in ("a", "b")
    ]

    assert trees[0] == trees[1]


def test_a_machine_after_a_power_cut_has_another_boot_id(machine: Machine, tmp_path: Path) -> None:
    """Or a log would believe the live words of before."""
    after = machine.disk.after_power_cut(tmp_path / "after", machine.disk.moment, Random(0))

    assert after.boot_id() != machine.disk.boot_id()
    assert after.moment == 0


def test_a_target_that_holds_something_is_refused(machine: Machine, tmp_path: Path) -> None:
    """Two states in one directory are none."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    with pytest.raises(InvalidArgument, match="not empty"):
        machine.disk.after_power_cut(tmp_path / "full", 0, Random(0))


def test_what_happens_outside_the_root_is_not_recorded(machine: Machine, tmp_path: Path) -> None:
    """It is performed as by any disk."""
    fd = machine.disk.open_to_write(tmp_path / "outside", create=True)
    machine.disk.write_at(fd, b"data", 0)
    machine.disk.sync_data(fd)
    machine.disk.close(fd)
    machine.disk.rename(tmp_path / "outside", tmp_path / "moved")
    machine.disk.sync_directory(tmp_path)

    assert machine.disk.moment == 0
    assert (tmp_path / "moved").read_bytes() == b"data"


def test_an_appended_record_is_found_after_a_power_cut(tmp_path: Path) -> None:
    """The two disks fit the log: this is how they are meant to be used."""
    root = tmp_path / "root"
    root.mkdir()
    disk = RecordingDisk(root)
    with Log(root / "log", disk=disk) as log:
        log.append(b"one")
        moment = disk.moment
        log.append(b"two")
    after = disk.after_power_cut(tmp_path / "after", moment, Random(1))

    with Log(tmp_path / "after" / "log", disk=after) as log:
        assert [record.payload for record in log.records()][:1] == [b"one"]
