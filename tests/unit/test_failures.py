"""What must hold when something goes wrong in between: bugs that a second reading found."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from segue import Log
from segue.errors import StorageFailed
from segue.log.commit_queue import CommitQueue, Request
from segue.log.disk import Disk
from segue.log.layout import Offset
from segue.log.live import FAILED, READY, STATE
from segue.log.options import SyncName
from segue.testing import FaultyDisk
from tests.unit.support import (
    RestartedMachine,
    destroy_header,
    fill,
    flip_bit,
    offsets,
    payloads,
    segment_path,
    slot_position,
    small_log,
)
from tests.waiting import LIMIT_SECONDS


class SlowFailingDisk(Disk):
    """Its next sync waits to be let go and then fails, once."""

    def __init__(self) -> None:
        self.is_armed = False
        self.started = threading.Event()
        self.may_fail = threading.Event()

    def sync_data(self, fd: int) -> None:
        if not self.is_armed:
            return super().sync_data(fd)
        self.is_armed = False
        self.started.set()
        self.may_fail.wait(timeout=LIMIT_SECONDS)
        raise OSError(errno.EIO, "injected")


@pytest.mark.parametrize(
    "act", [Log.flush, Log.roll, lambda log: log.trim(99)], ids=["flush", "roll", "trim"]
)
def test_whoever_waits_behind_a_failing_sync_is_refused(
    directory: Path, act: Callable[[Log], object]
) -> None:
    """The system reports a failed sync once; the next one would be a false success."""
    disk = SlowFailingDisk()
    log = Log(directory, sync="interval", sync_interval_ms=1, disk=disk)
    log.append(b"old")
    log.roll()
    disk.is_armed = True
    log.append(b"new")
    assert disk.started.wait(timeout=LIMIT_SECONDS)
    outcome: list[object] = []

    def wait_behind() -> None:
        try:
            outcome.append(act(log))
        except StorageFailed:
            outcome.append("refused")

    thread = threading.Thread(target=wait_behind)
    thread.start()
    disk.may_fail.set()
    thread.join(timeout=LIMIT_SECONDS)

    assert outcome == ["refused"]
    with pytest.raises(StorageFailed):
        log.append(b"more")
    log.close()


def test_an_append_is_not_acknowledged_after_another_process_failed(directory: Path) -> None:
    """Neither where there is room nor where a new segment would have to be made."""
    with small_log(directory) as log, small_log(directory) as other:
        fill(log, 4)
        assert other._appender is not None
        other._appender.live.words[STATE] = FAILED
        with pytest.raises(StorageFailed):
            log.append(b"would need a new segment")
        assert log.next_offset == 4
        other._appender.live.words[STATE] = READY  # So that the other can be closed in peace.


def test_a_newest_record_that_may_have_rotted_is_kept_in_quarantine(directory: Path) -> None:
    """After a restart nothing tells it from a torn write, so it is cut, but not destroyed."""
    log = Log(directory)
    fill(log, 10)
    contents = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    log.close()
    for name, data in contents.items():
        (directory / name).write_bytes(data)
    flip_bit(segment_path(directory, 0), slot_position(9))
    with Log(directory, disk=RestartedMachine()) as log:
        assert log.next_offset == 9

    (copy,) = (directory / "quarantine").iterdir()
    assert b"record 9" in copy.read_bytes()


def test_offsets_of_a_last_segment_without_a_header_are_not_given_out_again(
    scratch: Path,
) -> None:
    """The hint says how many records were synced in it."""
    directory = scratch / "log"
    with small_log(directory, sync="always") as log:
        fill(log, 7)
    destroy_header(segment_path(directory, 1))
    with small_log(directory, sync="always", disk=RestartedMachine()) as log:
        assert log.append(b"next") == 7
        assert offsets(log.records(on_damage="skip")) == [0, 1, 2, 3, 7]


def test_a_flipped_bit_in_a_time_does_not_move_the_clock(scratch: Path) -> None:
    """Damage costs its own batch, not the dates of all that follow."""
    directory = scratch / "log"
    with small_log(directory) as log:
        fill(log, 2)
        time_us = log.read(1).time_us
    flip_bit(segment_path(directory, 0), slot_position(1) + 6, 5)
    with small_log(directory) as log:
        log.append(b"next")

        assert log.read(2).time_us - time_us < 3_600_000_000


class Interrupted(BaseException):
    """What a signal may raise anywhere."""


def test_an_interrupted_leader_leaves_its_place_to_others() -> None:
    """Nobody waits for ever for a thread that has gone."""

    def commit(requests: list[Request]) -> None:
        if requests[0].data == b"interrupt":
            raise Interrupted
        for request in requests:
            request.offset, request.is_committed = Offset(5), True

    queue = CommitQueue(commit)
    with pytest.raises(Interrupted):
        queue.submit(Request((9,), b"interrupt", None))
    assert queue.lead_alone()
    queue.hand_over()

    assert queue.submit(Request((1,), b"x", None)) == 5


def test_attrs_that_change_while_they_are_read_do_no_harm(directory: Path) -> None:
    """They are taken over before they are looked at."""
    attrs: list[int] = [1, 2]

    class Shrinking(int):
        def __index__(self) -> int:
            attrs.clear()
            return 7

    attrs[0] = Shrinking(7)
    with small_log(directory) as log:
        log.append_many([b"a", b"b"], attrs=attrs)

        assert [record.attr for record in log.records()] == [7, 2]


class InterruptedDisk(Disk):
    """Its next rename does not happen, because a signal handler raises just before it."""

    def __init__(self) -> None:
        self.is_armed = False

    def rename(self, source: Path, target: Path) -> None:
        if self.is_armed:
            self.is_armed = False
            raise Interrupted
        super().rename(source, target)


@pytest.mark.parametrize(
    "append",
    [lambda log: log.append(b"after"), lambda log: log.append_many([b"after"])],
    ids=["append", "append_many"],
)
@pytest.mark.parametrize("sync", ["always", "interval"])
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_what_is_appended_after_an_interrupted_roll_is_kept(
    directory: Path, append: Callable[[Log], int], sync: SyncName, *, exclusive: bool
) -> None:
    """By then the old segment may be sealed: nothing behind its end would ever be read."""
    disk = InterruptedDisk()
    with Log(directory, sync=sync, exclusive=exclusive, disk=disk) as log:
        log.append(b"before")
        disk.is_armed = True
        with pytest.raises(Interrupted):
            log.roll()
        append(log)
        log.flush()
        seen = payloads(log.records())
    with Log(directory) as log:
        assert payloads(log.records()) == seen == [b"before", b"after"]


class LateInterruptDisk(FaultyDisk):
    """A signal handler raises as soon as a lock is had, for the so-manieth time."""

    def __init__(self) -> None:
        super().__init__()
        self.locks_left = -1

    def lock(self, fd: int, *, shared: bool = False) -> None:
        super().lock(fd, shared=shared)
        self.locks_left -= 1
        if not self.locks_left:
            raise Interrupted


@pytest.mark.parametrize("lock", [1, 2], ids=["to append", "to publish"])
def test_a_lock_that_an_interrupt_struck_upon_is_not_kept(directory: Path, lock: int) -> None:
    """Others would wait for it for as long as the process lives."""
    disk = LateInterruptDisk()
    with Log(directory, disk=disk) as log:
        log.append(b"before")
        disk.locks_left = lock
        with pytest.raises(Interrupted):
            log.append(b"interrupted")
        with Log(directory, lock_timeout=0) as other:
            other.append(b"after")

            assert payloads(other.records())[-1] == b"after"


class FleetingDisk(Disk):
    """A file called so is gone as soon as it was listed: somebody else was at it, too."""

    def __init__(self) -> None:
        self.fleeting = ""

    def names(self, directory: Path) -> list[str]:
        names = super().names(directory)
        if self.fleeting in names:
            (directory / self.fleeting).unlink()
        return names


@pytest.mark.parametrize("name", ["wake/4711-0", "readers/one.meta.4711-1.tmp"])
def test_what_others_clear_away_does_not_keep_a_log_from_opening(
    directory: Path, name: str
) -> None:
    """Threads of who closed it just now may still wake up and delete what is theirs."""
    with Log(directory) as log:
        log.append(b"record")
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    disk = FleetingDisk()
    disk.fleeting = path.name
    with Log(directory, disk=disk) as log:
        assert payloads(log.records()) == [b"record"]


def test_a_reader_that_is_removed_meanwhile_does_not_stop_a_deletion(directory: Path) -> None:
    """It holds nothing back: neither its own place nor anybody else's segments."""
    disk = FleetingDisk()
    with small_log(directory, disk=disk) as log:
        fill(log, 10)
        for name in ("here", "leaving"):
            log.reader(name, "latest").close()
        disk.fleeting = "leaving.meta"

        assert log.trim(4) == [0]
