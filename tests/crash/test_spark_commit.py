"""Writes of Spark: killed, failing or without power at any call, and repeated as Spark does."""

import errno
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NoReturn
from unittest.mock import patch

import pytest

from segue.errors import StorageError
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.stores.file import writes
from segue.stores.file.writes import COMMIT, WriteId
from segue.testing import FaultyDisk, Operation, RecordingDisk
from tests.crash.channel import Channel
from tests.crash.children import DONE
from tests.crash.kill_runs import ended
from tests.crash.killing_disk import KillingDisk, KillPoint, Moment
from tests.crash.processes import ForkServer
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.spark_writes import (
    QUERY,
    DiskCommitter,
    Kind,
    Target,
    batch_id,
    check_repeated,
    expected,
    found_in,
    groups_of,
    leave_list,
    other_cut,
    removing_by,
    same_cut,
    stage,
    write_batch,
)

POINTS: Final = 120 if TORTURE else 4
"""How many are tried of each act, in each setting."""

CUTS: Final = 300 if TORTURE else 8
"""How often the power fails in one recorded write, in each setting."""
CALLS: Final = 30 if TORTURE else 1
"""How many calls of each operation are made to fail, in each setting."""
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


class SparkDisk(KillingDisk):
    """Writes every record by a call, also where it would be stored in a mapping."""

    stores_mapped = False


# Acts, each with what was there before -------------------------------------------------------


def write(target: Target, disk: Disk) -> None:
    write_batch(target, 1, disk)


def prepare_write(target: Target) -> None:
    write_batch(target, 0)


def recover(target: Target, disk: Disk) -> None:
    with removing_by(disk):
        DiskCommitter(target, disk).recover()


def prepare_recovery(target: Target) -> None:
    write_batch(target, 0)
    leave_list(target, 1)


def abort(target: Target, disk: Disk) -> None:
    with removing_by(disk):
        DiskCommitter(target, disk).abort(batch_id(1))


def prepare_abort(target: Target) -> None:
    write_batch(target, 0)
    stage(target, batch_id(1), same_cut(target.kind, 1), Disk())


ACTS: Final[dict[str, tuple[Callable[[Target], None], Callable[[Target, Disk], None]]]] = {
    "write": (prepare_write, write),
    "recover": (prepare_recovery, recover),
    "abort": (prepare_abort, abort),
}


def act_and_report(channel: Channel, target: Target, act: str, point: KillPoint | None) -> None:
    """Do it, and report each call if nobody is to be killed."""
    disk = SparkDisk(point)
    ACTS[act][1](target, disk)
    if point is None:
        for operation in disk.trace:
            channel.report(operation)
    channel.report(DONE)


def test_a_list_is_gone_before_the_segments_are_removed(scratch: Path) -> None:
    """Nothing says that a write that is not repeated is done: it would never be finished."""
    target = Target(root=scratch / "store", kind="topic")
    target.make()
    once = WriteId(query="once", is_repeatable=False)
    files = stage(target, once, same_cut(target.kind, 1), Disk())

    def killed(*_: object, **_more: object) -> NoReturn:
        raise KeyboardInterrupt

    with (
        patch.object(writes, "shutil", SimpleNamespace(rmtree=killed)),
        pytest.raises(KeyboardInterrupt),
    ):
        DiskCommitter(target, Disk()).commit(once, files)

    assert list(target.root.rglob(f"*{COMMIT}")) == []
    assert found_in(target) == expected(1)


def points_of(operations: list[str]) -> list[KillPoint]:
    """Return every place to be killed at."""
    numbers: dict[str, int] = {}
    points = []
    for operation in operations:
        numbers[operation] = numbers.get(operation, 0) + 1
        points += [
            KillPoint(operation=operation, number=numbers[operation], moment=moment)
            for moment in Moment
            if moment is not Moment.WITHIN or operation == "write_at"
        ]
    return points


@pytest.mark.parametrize(
    ("act", "sync"),
    [("write", "always"), ("write", "os"), ("recover", "always"), ("abort", "always")],
)
@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_a_write_killed_at_any_call_and_repeated_is_there_once(
    scratch: Path, forks: ForkServer, kind: Kind, sync: SyncName, act: str
) -> None:
    """However the rows are cut the second time; and of a segment all is seen, or nothing."""
    template = Target(root=scratch / "template", kind=kind, sync=sync)
    template.make()
    ACTS[act][0](template)
    target = Target(root=scratch / "store", kind=kind, sync=sync)
    shutil.copytree(template.root, target.root)
    _, reports = ended(forks.start(act_and_report, target, act, None))
    points = points_of([str(report) for report in reports[:-1]])
    write_batch(target, 1)
    whole = groups_of(target) if kind == "topic" else {}
    seed = new_seed()
    chance = random.Random(f"{seed} {kind} {sync} {act}")
    kills = 0
    for point in chance.sample(points, len(points)):
        if kills == POINTS:
            break
        killed = False
        for is_other_cut in (False, True) if TORTURE else (chance.random() < 0.5,):
            shutil.rmtree(target.root)
            shutil.copytree(template.root, target.root)
            with naming_seed(seed), naming(point):
                killed, _ = ended(forks.start(act_and_report, target, act, point))
                check_seen(target, whole)
                check_repeated(target, 1, is_other_cut=is_other_cut)
                check_logs(target.root)
        kills += killed

    # Not every run makes all calls of the first one.
    assert kills >= min(POINTS, len(points) * 0.9)


def check_seen(target: Target, whole: object) -> None:
    """Assert that readers see each value once at most, and of a segment all or nothing."""
    found = found_in(target)
    assert not found - expected(0, 1)
    assert not expected(0) - found
    if target.kind == "topic":
        assert isinstance(whole, dict)
        for group, values in groups_of(target).items():
            assert values == whole[group], f"{group} is there in part"


# Disks that fail -----------------------------------------------------------------------------


class FailingDisk(FaultyDisk):
    """Writes every record by a call, which can fail."""

    stores_mapped = False


@pytest.mark.parametrize(
    ("kind", "sync"),
    list(product(("topic", "queue"), ("always", "os")))
    if TORTURE
    else [("topic", "os"), ("queue", "always")],
)
def test_a_write_that_fails_at_any_call_says_so_and_can_be_repeated(
    scratch: Path, kind: Kind, sync: SyncName
) -> None:
    """A disk that is full or fails is an error of the family; repeated, the rows are there once."""
    template = Target(root=scratch / "template", kind=kind, sync=sync)
    template.make()
    prepare_abort(template)  # The first try of batch 1 was killed and has left its segments.
    target = Target(root=scratch / "store", kind=kind, sync=sync)
    shutil.copytree(template.root, target.root)
    disk = FailingDisk()
    write_batch(target, 1, disk)
    counts = disk.counts
    seed = new_seed()
    chance = random.Random(f"{seed} {kind} {sync}")
    failures = 0
    for operation, error in FAULTS:
        calls = counts.get(operation, 0)
        for call in chance.sample(range(1, calls + 1), min(CALLS, calls)):
            shutil.rmtree(target.root)
            shutil.copytree(template.root, target.root)
            case = f"{errno.errorcode[error]} at call {call} of {operation}"
            with naming_seed(seed), naming(case):
                failures += has_failed(target, operation, call, error)
                check_seen_once(target)
                check_repeated(target, 1, is_other_cut=chance.random() < 0.5)
                check_logs(target.root)

    assert failures


def has_failed(target: Target, operation: Operation, call: int, error: int) -> bool:
    """Write on a disk of which one call fails; tell whether that was said."""
    disk = FailingDisk()
    disk.fail(call=call, operation=operation, error=error)
    try:
        write_batch(target, 1, disk)
    except StorageError:
        return True
    return False


def check_seen_once(target: Target) -> None:
    """Assert that nothing is there twice, and nothing is gone that was there before."""
    found = found_in(target)
    assert not found - expected(0, 1)
    assert not expected(0) - found


# Power that fails ----------------------------------------------------------------------------


def write_rows(target: Target, write: WriteId, disk: RecordingDisk, *, other: bool) -> bool:
    """Write the rows of batch 0 as Spark does, also if it repeats them."""
    with removing_by(disk):
        committer = DiskCommitter(target, disk)
        committer.recover()
        cut = (other_cut if other else same_cut)(target.kind, 0)
        return committer.commit(write, stage(target, write, cut, disk))


@pytest.mark.parametrize("is_repeatable", [True, False])
@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_a_power_cut_at_any_moment_of_a_write_leaves_all_or_nothing_of_it(
    scratch: Path, kind: Kind, is_repeatable: bool
) -> None:
    """With sync "always". Repeated it is there once; what returned is there for good."""
    before = Target(root=scratch / "0", kind=kind)
    before.make()
    disk = RecordingDisk(before.root)
    write = WriteId(query=QUERY, batch=0 if is_repeatable else None, is_repeatable=is_repeatable)
    assert write_rows(before, write, disk, other=False)
    seed = new_seed()
    chance = random.Random(f"{seed} {kind} {is_repeatable}")
    for number in range(CUTS):
        moment = disk.moment if number % 8 == 0 else chance.randint(0, disk.moment)
        target = Target(root=scratch / "1", kind=kind)
        with naming_seed(seed), naming(f"cut at {moment} of {disk.moment}"):
            after = disk.after_power_cut(target.root, moment, random.Random(chance.random()))
            recover(target, after)
            found = found_in(target, after)
            assert found in ((expected(0),) if moment == disk.moment else (expected(), expected(0)))
            if is_repeatable:
                write_rows(target, write, after, other=True)
                assert found_in(target, after) == expected(0)
                assert not write_rows(target, write, after, other=False)
            check_logs(target.root / f"{kind}s", disk=after)
        shutil.rmtree(target.root)
