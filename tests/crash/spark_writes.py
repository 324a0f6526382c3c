"""Writes as Spark makes them, without Spark: tasks that stage their rows, a driver that commits.

Everything is done through a disk that a test hands in, so that each step can fail, kill or be
recorded. `evidence_of` says what is then found.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Literal
from unittest.mock import patch

import pyarrow as pa

import segue
from segue import QueueRules, Store
from segue.delivery.topic_rules import TopicRules
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.spark.options import WriteOptions
from segue.spark.sink.commit import Committer
from segue.spark.sink.staging import Stage, staging_path
from segue.stores.file import writes
from segue.stores.file.store import FileStore
from segue.stores.file.writes import StagedFile, WriteId
from segue.stores.opening import open_directory

Kind = Literal["topic", "queue"]

NAME: Final = "orders"
PARTITIONS: Final = 2
PRIORITIES: Final = 2
QUERY: Final = "query 1"
TASKS: Final = 2
ROWS: Final = 16
"""Of each batch."""
EVERYTHING: Final = 10_000
WARM: Final = pa.array([b""])
"""Made once: the first array of a process takes a second, and that in each that is killed."""
DONE_NAMES: Final = frozenset({"lock"})
TOPIC_RULES: Final = TopicRules(segment_bytes=16 * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where writes go."""

    root: Path
    kind: Kind
    sync: SyncName = "always"

    @property
    def options(self) -> WriteOptions:
        """What Spark would be given."""
        return WriteOptions(url=str(self.root), kind=self.kind, name=NAME, sync=self.sync)

    def open(self, disk: Disk | None = None) -> Store:
        """Open the store."""
        return segue.open(self.root, sync=self.sync, disk=disk)

    def make(self) -> None:
        """Have an empty topic or queue."""
        with self.open() as store:
            if self.kind == "topic":
                store.topic(NAME, partitions=PARTITIONS, rules=TOPIC_RULES)
            else:
                store.queue(NAME, QueueRules(lease_ttl=600))


class DiskStage(Stage):
    """A task that works on a given disk."""

    def __init__(self, target: Target, write: WriteId, disk: Disk) -> None:
        super().__init__(target.options, write, PARTITIONS)
        self._disk = disk


class DiskCommitter(Committer):
    """A driver that works on a given disk."""

    def __init__(self, target: Target, disk: Disk) -> None:
        super().__init__(target.options)
        self._disk = disk

    def _store(self) -> FileStore:
        options = self._options
        return open_directory(Path(options.url), sync=options.sync, create=False, disk=self._disk)


@contextmanager
def removing_by(disk: Disk) -> Iterator[None]:
    """Let directories be removed file by file, through a disk."""

    def remove(path: Path, *, ignore_errors: bool) -> None:
        assert ignore_errors
        try:
            for name in disk.names(path):
                disk.unlink(path / name)
            os.rmdir(path)  # noqa: PTH106 - as what it stands for does.
        except OSError:
            return

    with patch.object(writes, "shutil", SimpleNamespace(rmtree=remove)):
        yield


# What is written -----------------------------------------------------------------------------


def batch_id(batch: int) -> WriteId:
    """Return what a batch of the query is known by."""
    return WriteId(query=QUERY, batch=batch)


def values_of(batch: int) -> list[str]:
    """Return the values of a batch, each one there is only once."""
    return [f"{batch}.{row}" for row in range(ROWS)]


def rows_of(kind: Kind, batch: int, rows: Sequence[int]) -> pa.RecordBatch:
    """Return rows of a batch."""
    values = pa.array([f"{batch}.{row}" for row in rows], pa.string())
    if kind == "topic":
        partitions = [row % PARTITIONS if row % 4 < PARTITIONS else None for row in rows]
        keys = [f"k{row % 5}".encode() for row in rows]
        return pa.record_batch(
            {
                "key": pa.array(keys, pa.binary()),
                "value": values,
                "partition": pa.array(partitions, pa.int32()),
            }
        )
    # Of a queue there are plain messages, urgent ones, ones that wait aside, and ones with keys.
    return pa.record_batch(
        {
            "value": values,
            "priority": pa.array([row % PRIORITIES for row in rows], pa.int32()),
            "delay": pa.array([0.000001 if row % 4 == 3 else None for row in rows], pa.float64()),
            "key": pa.array(
                [f"{batch} {row}" if row % 8 == 5 else None for row in rows], pa.string()
            ),
        }
    )


def same_cut(kind: Kind, batch: int) -> list[list[pa.RecordBatch]]:
    """Return the rows of a batch as its tasks have them the first time."""
    half = ROWS // TASKS
    return [[rows_of(kind, batch, range(task * half, (task + 1) * half))] for task in range(TASKS)]


def other_cut(kind: Kind, batch: int) -> list[list[pa.RecordBatch]]:
    """Return the same rows among other tasks, in another order."""
    rows = list(reversed(range(ROWS)))
    return [
        [rows_of(kind, batch, rows[:3]), rows_of(kind, batch, rows[3:5])],
        [rows_of(kind, batch, rows[5:12])],
        [rows_of(kind, batch, rows[12:])],
    ]


# What is done --------------------------------------------------------------------------------


def stage(
    target: Target, write: WriteId, tasks: Sequence[Sequence[pa.RecordBatch]], disk: Disk
) -> list[StagedFile]:
    """Let each task write its rows aside."""
    return [file for rows in tasks for file in DiskStage(target, write, disk).write(rows)]


def write_batch(
    target: Target, batch: int, disk: Disk | None = None, *, is_other_cut: bool = False
) -> bool:
    """Write a batch as Spark does, also one that Spark repeats."""
    disk = disk or Disk()
    cut = other_cut if is_other_cut else same_cut
    with removing_by(disk):
        committer = DiskCommitter(target, disk)
        committer.recover()
        files = stage(target, batch_id(batch), cut(target.kind, batch), disk)
        return committer.commit(batch_id(batch), files)


def leave_list(target: Target, batch: int) -> None:
    """Have a batch written up to its list: it is to happen, and nothing of it has."""
    disk = Disk()
    committer = DiskCommitter(target, disk)
    files = stage(target, batch_id(batch), same_cut(target.kind, batch), disk)
    with committer._alone():
        committer._write_list(batch_id(batch), files)


# What is found -------------------------------------------------------------------------------


def found_in(target: Target, disk: Disk | None = None) -> Counter[str]:
    """Return all values that are there; a queue is left as it is."""
    with target.open(disk) as store:
        if target.kind == "topic":
            return Counter(
                "" if record.value is None else record.value.decode()
                for record in store.topic(NAME).records()
            )
        return Counter(message.text for message in store.queue(NAME).peek(EVERYTHING))


def expected(*batches: int) -> Counter[str]:
    """Return what is there when these batches have been written."""
    return Counter(value for batch in batches for value in values_of(batch))


def groups_of(target: Target) -> Mapping[tuple[int, int], set[str]]:
    """Return the values of each partition by the task that would have written them."""
    groups: dict[tuple[int, int], set[str]] = {}
    with target.open() as store:
        for record in store.topic(NAME).records():
            assert record.value is not None
            batch, _, row = record.value.decode().partition(".")
            task = int(batch) * TASKS + int(row) // (ROWS // TASKS)
            groups.setdefault((task, record.partition), set()).add(record.value.decode())
    return groups


def left_behind(target: Target) -> list[str]:
    """Return what is still prepared, though nothing is under way."""
    path = staging_path(target.options)
    if not path.exists():
        return []
    return [
        entry.name
        for entry in sorted(path.iterdir())
        if entry.name not in DONE_NAMES and entry.suffix not in {".done", ".tmp"}
    ]


def check_repeated(target: Target, batch: int, *, is_other_cut: bool) -> None:
    """Repeat a batch of which anything may have happened; it and the next are then there once."""
    write_batch(target, batch, is_other_cut=is_other_cut)
    whole = range(batch + 1)
    assert found_in(target) == expected(*whole)
    assert left_behind(target) == []
    assert not write_batch(target, batch, is_other_cut=not is_other_cut), "it was done twice"
    assert write_batch(target, batch + 1)
    assert found_in(target) == expected(*whole, batch + 1)
    assert left_behind(target) == []
