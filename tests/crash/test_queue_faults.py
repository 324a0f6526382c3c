"""A queue on a disk that is full or failing: a call of its life fails, and nothing is lost by it.

A full disk is an error before anything has happened: the same store goes on once there is space.
After any other failure the outcome of the call is open, and a store opened anew goes on.
"""

import contextlib
import errno
import random
import shutil
import threading
from pathlib import Path
from typing import Final

import pytest

from segue import Item, Queue, QueueRules, Store
from segue.errors import SegueError, StorageError, StorageFailed, StorageFull
from segue.log.disk import Disk as RealDisk
from segue.log.options import SyncName
from segue.testing import FaultyDisk, ManualClock, Operation
from tests.crash.queue_story import (
    CHECKPOINT_EVENTS,
    LEDGER_KEPT_BYTES,
    QUEUE,
    START_US,
    STORY,
    TIDY_EVERY_ITEMS,
    Held,
    allowed,
    check_drained,
    drain,
    examine,
    open_store,
    play,
)
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.waiting import LIMIT_SECONDS

CALLS: Final = 60 if TORTURE else 3
"""How many calls of each operation are made to fail, in each sync mode."""
FILLING: Final[tuple[Operation, ...]] = (
    *("open_to_write", "write_at", "resize", "sync_data"),
    *("make_directory", "rename", "sync_directory"),
)
FAILING: Final[tuple[Operation, ...]] = (
    *FILLING,
    *("open_to_read", "map_to_read", "map_to_write", "names", "unlink", "lock", "try_lock"),
)
FAULTS: Final = (
    *((operation, errno.ENOSPC) for operation in FILLING),
    *((operation, errno.EIO) for operation in FAILING),
)


class Disk(FaultyDisk):
    """Writes every record by a call, which can fail."""

    stores_mapped = False


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checkpoints, carries and deletions often."""
    monkeypatch.setattr("segue.stores.file.journal.CHECKPOINT_EVENTS", CHECKPOINT_EVENTS)
    monkeypatch.setattr("segue.stores.file.journal.LEDGER_KEPT_BYTES", LEDGER_KEPT_BYTES)
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", TIDY_EVERY_ITEMS)


class Life:
    """One story on one disk, up to the call that fails."""

    def __init__(self, root: Path, sync: SyncName) -> None:
        self._root = root
        self._sync = sync
        self.disk = Disk()
        self.clock = ManualClock(START_US)
        self.done = 0
        self.receipts: set[str] = set()
        self.store: Store | None = None

    def _open(self, clock: ManualClock) -> Store:
        return open_store(self._root, self._sync, disk=self.disk, clock=clock)

    def play(self) -> SegueError | None:
        """Play the story and return the error that ended it."""

        def tell(done: int, held: Held) -> None:
            self.done = done
            self.receipts.update(job.receipt for job in held.values())

        try:
            self.store = self._open(self.clock)
            play(self.store.queue(QUEUE), tell)
        except SegueError as error:
            return error
        return None

    def check(self, error: SegueError | None) -> None:
        """Hold what is there to what the story says, on a disk that works again."""
        self.disk.heal()
        receipts = sorted(self.receipts)
        if isinstance(error, StorageFull) and self.store is not None:
            queue = self.store.queue(QUEUE)
            expected = allowed(self.done, under_way=False, forgetful=False)
            check_drained(queue, self.clock, expected, receipts)
            self.store.close()
            return
        assert error is None or isinstance(error, StorageError), repr(error)
        if self.store is not None:
            with contextlib.suppress(StorageError):
                self.store.close()
        if error is not None and self.done == len(STORY):
            error = None
        expected = allowed(self.done, under_way=error is not None, forgetful=False)
        examine(self._open, expected, receipts)


def calls_of(root: Path, sync: SyncName, operation: Operation) -> int:
    """Return how often the story calls `operation`."""
    life = Life(root, sync)
    assert life.play() is None
    assert life.store is not None
    life.store.close()
    shutil.rmtree(root)
    return life.disk.counts.get(operation, 0)


def cases() -> list[tuple[Operation, int, SyncName]]:
    """Return each fault with both sync modes, in a short run with one of them by turns."""
    syncs: tuple[SyncName, ...] = ("always", "os")
    return [
        (operation, error, sync)
        for number, (operation, error) in enumerate(FAULTS)
        for sync in (syncs if TORTURE else syncs[number % 2 :][:1])
    ]


@pytest.mark.parametrize(
    ("operation", "error", "sync"),
    cases(),
    ids=[f"{name}-{errno.errorcode[code]}-{sync}" for name, code, sync in cases()],
)
def test_a_call_that_fails_loses_nothing_and_the_queue_goes_on(
    scratch: Path, sync: SyncName, operation: Operation, error: int
) -> None:
    """C8: a full disk has changed nothing; after another failure a reopened store goes on."""
    seed = new_seed()
    chance = random.Random(f"{seed} {sync} {operation} {error}")
    calls = calls_of(scratch / "calls", sync, operation)
    wrong: dict[str, str] = {}
    for call in sorted(chance.sample(range(1, calls + 1), min(CALLS, calls))):
        root = scratch / "store"
        life = Life(root, sync)
        life.disk.fail(call=call, operation=operation, error=error)
        with naming_seed(seed), naming(f"call {call} of {operation}"):
            failure = life.play()
            step = STORY[min(life.done, len(STORY) - 1)].name
            try:
                life.check(failure)
            except (AssertionError, SegueError) as problem:
                wrong[f"call {call} in {step}: {failure!r}"] = f"{type(problem).__name__} {problem}"
                with contextlib.suppress(SegueError):
                    if life.store is not None:
                        life.store.close()
        shutil.rmtree(root, ignore_errors=True)

    assert wrong == {}, f"repeat with SEGUE_SEED={seed}"


class FullDisk(RealDisk):
    """Has room for nothing new while it is full: no file, no byte written ahead."""

    def __init__(self) -> None:
        self.is_full = False

    def open_to_write(self, path: Path, *, create: bool = False) -> int:
        if self.is_full and create and not path.exists():
            raise OSError(errno.ENOSPC, "full")
        return super().open_to_write(path, create=create)

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> None:
        if self.is_full and not bytes(data).strip(b"\0"):
            raise OSError(errno.ENOSPC, "full")
        super().write_at(fd, data, position)


@pytest.mark.parametrize("sync", ["always", "os"])
def test_messages_flow_again_as_soon_as_there_is_space(scratch: Path, sync: SyncName) -> None:
    """A disk that stays full refuses new messages, and costs nothing that was there before.

    What waits is delivered and settled meanwhile, as far as the ledger has space of its own.
    """
    disk = FullDisk()
    clock = ManualClock(START_US)
    with open_store(scratch, sync, disk=disk, clock=clock) as store:
        queue = store.queue(QUEUE, QueueRules(segment_items=4))
        pushed = [f"message {number}" for number in range(10)]
        for body in pushed:
            queue.push(body)
        jobs = queue.lease_many(3, ttl=60)
        disk.is_full = True
        with contextlib.suppress(StorageFull):
            for number in range(10, 200):
                queue.push(f"message {number}")
                pushed.append(f"message {number}")
        for _ in range(3):
            with pytest.raises(StorageFull):
                queue.push("too much")
            with pytest.raises(StorageFull):
                queue.push("too much and too late", delay=10)
            with pytest.raises(StorageFull):
                queue.push("too much of another kind", priority=7)
        assert queue.count().total == len(pushed)
        with contextlib.suppress(StorageFull):
            jobs[0].ack()
        disk.is_full = False
        queue.push("last")
        queue.push("last but later", delay=10)
        clock.advance(seconds=61)

        bodies = [job.text for job in drain(queue)]
        assert sorted(bodies) == sorted([*pushed[jobs[0].is_settled :], "last", "last but later"])
        assert queue.count().total == 0


def test_a_push_over_several_priorities_that_finds_the_disk_full_has_pushed_nothing(
    scratch: Path,
) -> None:
    """StorageFull says that nothing was written: who tries again must not push anything twice."""
    disk = FullDisk()
    with open_store(scratch, "os", disk=disk) as store:
        queue = store.queue(QUEUE, QueueRules(segment_items=4))
        for number in range(4):
            queue.push(f"full {number}", priority=1)
        queue.push("room", priority=0)
        items = [Item(body="first", priority=0), Item(body="second", priority=1)]
        disk.is_full = True
        with pytest.raises(StorageFull):
            queue.push_many(items)
        disk.is_full = False
        queue.push_many(items)

        bodies = [job.text for job in drain(queue)]
        assert bodies.count("first") == 1
        assert bodies.count("second") == 1


TURNS: Final[tuple[Operation, ...]] = ("write_at", "lock", "open_to_write", "resize")


@pytest.mark.parametrize("operation", TURNS)
def test_a_failed_turn_keeps_nobody_out(scratch: Path, operation: Operation) -> None:
    """Whatever goes wrong in a turn, other threads still have theirs."""
    for call in range(1, 12):
        disk = Disk()
        root = scratch / str(call)
        store = open_store(root, "os", disk=disk)
        queue = store.queue(QUEUE, QueueRules(segment_items=4))
        queue.push_many(["one", "two", "three"])
        disk.fail(call=call, operation=operation, error=errno.EIO)
        with contextlib.suppress(StorageError):
            for job in queue.lease_many(2, ttl=60):
                queue.ack(job)
        disk.heal()
        other = threading.Thread(target=_look, args=(queue,), daemon=True)
        other.start()
        other.join(LIMIT_SECONDS)

        assert not other.is_alive(), f"stuck after call {call} of {operation} failed"
        with contextlib.suppress(StorageFailed):
            store.close()


def _look(queue: Queue) -> None:
    with contextlib.suppress(StorageError):
        queue.count()
