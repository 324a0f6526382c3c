"""A topic on a disk that is full or failing: a call of its life fails, and nothing is lost by it.

A full disk is an error before anything has happened: the same store goes on once there is space.
After any other failure the outcome of the call is open, and a store opened anew goes on.
"""

import contextlib
import errno
import gc
import random
import shutil
from pathlib import Path
from typing import Final

import pytest

from segue import Event, Store
from segue.errors import SegueError, StorageError, StorageFull
from segue.log.options import SyncName
from segue.testing import FaultyDisk, ManualClock, Operation
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.topic_evidence import (
    Told,
    check_goes_on,
    snapshot_of,
)
from tests.crash.topic_story import (
    GROUP,
    PARTITIONS,
    RULES,
    START_US,
    STORY,
    TOPIC,
    TTL,
    Life,
    name_of,
    open_store,
    play,
)

CALLS: Final = 30 if TORTURE else 1
"""How many calls of each operation are made to fail, in each sync mode."""
FILLING: Final[tuple[Operation, ...]] = (
    *("open_to_write", "write_at", "resize", "sync_data"),
    *("make_directory", "rename", "sync_directory"),
)
FAILING: Final[tuple[Operation, ...]] = (
    *FILLING,
    *("open_to_read", "read_at", "size", "map_to_read", "map_to_write", "names", "file_bytes"),
    *("is_same_file", "unlink", "lock", "try_lock"),
)
FAULTS: Final = (
    *((operation, errno.ENOSPC) for operation in FILLING),
    *((operation, errno.EIO) for operation in FAILING),
)


LARGE_BYTES: Final = 3_500
"""Of what a segment of the story holds one, but not two."""
_FILES: Final = Path("/proc/self/fd")


class Disk(FaultyDisk):
    """Writes every record by a call, which can fail."""

    stores_mapped = False


class Trial:
    """One story on one disk, up to the call that fails."""

    def __init__(self, root: Path, sync: SyncName, told: Told) -> None:
        self._root = root
        self._sync = sync
        self._told = told
        self._clock = ManualClock(START_US)
        self._tokens: set[int] = set()
        self.disk = Disk()
        self.done = 0
        self.life: Life | None = None

    def _open(self) -> Store:
        return open_store(self._root, self._sync, disk=self.disk, clock=self._clock)

    def play(self) -> SegueError | None:
        """Play the story and return the error that ended it."""

        def tell(done: int) -> None:
            self.done = done

        try:
            self.life = Life(self._open(), self._told.foreign)
            play(self.life, tell)
        except SegueError as error:
            # Without what led to it, which may hold files open.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            return error
        return None

    def check(self, error: SegueError | None) -> None:
        """Hold what is there to what the story says, on a disk that works again."""
        self.disk.heal()
        assert error is None or isinstance(error, StorageError), repr(error)
        tokens = set() if self.life is None else self.life.tokens
        under_way = error is not None and self.done < len(STORY)
        if isinstance(error, StorageFull) and self.life is not None:
            self.life.close()
            found = snapshot_of(self.life.store, self._root)
            self._told.check(found, self.done, under_way=under_way)
            check_goes_on(self.life.store, self._told.foreign, found, tokens)
        self.close()
        if not isinstance(error, StorageFull):
            with self._open() as store:
                found = snapshot_of(store, self._root)
                self._told.check(found, self.done, under_way=under_way)
                check_goes_on(store, self._told.foreign, found, tokens)
        check_logs(self._root)

    def close(self) -> None:
        """Let go of everything, as far as that is possible."""
        self.disk.heal()
        if self.life is not None:
            self.life.close()
            with contextlib.suppress(StorageError):
                self.life.store.close()


def calls_of(root: Path, sync: SyncName, told: Told) -> dict[Operation, int]:
    """Return how often the story calls each operation."""
    trial = Trial(root, sync, told)
    assert trial.play() is None
    counts = dict(trial.disk.counts)
    trial.close()
    shutil.rmtree(root)
    return counts


def left_open(before: int) -> int:
    """Return how many files are open that were not before."""
    count = len(list(_FILES.iterdir())) - before
    if count > 0:
        gc.collect()  # An exception may hold what held a file.
        count = len(list(_FILES.iterdir())) - before
    return max(0, count)


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_call_that_fails_loses_nothing_and_the_topic_goes_on(
    scratch: Path, sync: SyncName
) -> None:
    """A full disk has stopped nobody; after another failure a reopened store goes on.

    Whoever fails lets go of all it had, and says what it was by an error of the family.
    """
    seed = new_seed()
    told = Told(scratch, sync)
    counts = calls_of(scratch / "calls", sync, told)
    wrong: dict[str, str] = {}
    gc.collect()
    files = left_open(0)
    for operation, error in FAULTS:
        calls = counts.get(operation, 0)
        chance = random.Random(f"{seed} {sync} {operation} {error}")
        for call in sorted(chance.sample(range(1, calls + 1), min(CALLS, calls))):
            root = scratch / "store"
            trial = Trial(root, sync, told)
            trial.disk.fail(call=call, operation=operation, error=error)
            case = f"{errno.errorcode[error]} at call {call} of {operation}"
            with naming_seed(seed), naming(case):
                failure = trial.play()
                case += f" in {name_of(trial.done)}: {failure!r}"
                try:
                    trial.check(failure)
                    assert not left_open(files), "files were left open"
                except (AssertionError, SegueError) as problem:
                    wrong[case] = f"{type(problem).__name__} {problem}"
                    trial.close()
                    files = left_open(0)
            shutil.rmtree(root, ignore_errors=True)

    assert wrong == {}, f"repeat with SEGUE_SEED={seed}"


@pytest.mark.parametrize("sync", ["always", "os"])
def test_an_append_over_several_partitions_that_finds_the_disk_full_has_appended_nothing(
    scratch: Path, sync: SyncName
) -> None:
    """StorageFull says that nothing was written: who tries again must not append twice."""
    disk = Disk()
    large = b"x" * LARGE_BYTES
    with open_store(scratch, sync, disk=disk) as store:
        topic = store.topic(TOPIC, partitions=PARTITIONS, rules=RULES)
        topic.append("small", partition=0)
        topic.append(large, partition=1)  # Another does not fit beside it.
        before = topic.offsets()
        events = [Event(value="again", partition=0), Event(value=large, partition=1)]
        disk.fail(operation="open_to_write", error=errno.ENOSPC, lasting=True)
        with pytest.raises(StorageFull):
            topic.append_many(events)
        disk.heal()

        assert topic.offsets() == before
        topic.append_many(events)
        assert topic.offsets() == {0: 2, 1: 2}


@pytest.mark.parametrize("operation", ["open_to_read", "open_to_write", "lock", "rename"])
def test_a_join_that_fails_keeps_nothing_from_who_joins_next(
    scratch: Path, operation: Operation
) -> None:
    """Not even until its ttl is over, and whoever holds on to the error."""
    disk = Disk()
    with open_store(scratch, "os", disk=disk) as store:
        topic = store.topic(TOPIC, partitions=PARTITIONS, rules=RULES)
        topic.append("first")
        for call in range(1, 20):
            group = topic.group(f"{GROUP}{call}")
            disk.fail(call=call, operation=operation, error=errno.EIO)
            failure: StorageError | None = None
            try:
                group.join(ttl=TTL).close()
            except StorageError as error:
                failure = error
            disk.heal()
            with naming(f"call {call}: {failure!r}"), group.join(ttl=TTL) as member:
                assert len(member.assignment) == PARTITIONS
