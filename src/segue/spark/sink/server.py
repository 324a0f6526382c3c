"""Writing to a server: tasks put blocks aside there, and the driver has them adopted.

The commit is a list that gets its name in one step, as in a directory. There is no lock: whoever
finds a list adopts its blocks in their order, each of which goes in once however many do that.
"""

import contextlib
import json
import logging
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.delivery.events import ASIDE
from segue.errors import CorruptManifest, LogNotFound, RecordTooLarge, SegueError, StorageError
from segue.log.staging import Batch
from segue.spark.options import WriteOptions
from segue.spark.sink.rows import TopicRows, message_batches
from segue.stores.file.writes import StagedFile, WriteId
from segue.stores.opening import open_redis
from segue.stores.redis.staging import (
    KEPT_MS,
    BlockGone,
    QueueTarget,
    Target,
    TopicTarget,
    Writes,
    by_number,
    parted,
)
from segue.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.stores.redis.store import RedisStore

logger = logging.getLogger(__name__)

FORMAT: Final = 1
ADOPTERS_MAX: Final = 4
LISTING_TRIES: Final = 10
"""How often a write waits for others of its query that happen at the same time."""
TASK_BYTES_MAX: Final = 64 << 20
"""How much of all partitions together a task holds before it puts the largest aside."""
SLOT_BYTES: Final = 64
"""What a record counts beside its payload, in memory."""


@contextlib.contextmanager
def opened(options: WriteOptions) -> Iterator[tuple["RedisStore", Target]]:
    """Give the store and what is written to. Raises LogNotFound, StoreUnavailable."""
    with open_redis(options.url, create=False) as store:
        yield store, _target(store, options)


def _target(store: "RedisStore", options: WriteOptions) -> Target:
    if options.kind == "topic":
        return TopicTarget(store, options.name)
    return QueueTarget(store, options.name)


@dataclass(slots=True)
class _Waiting:
    """Batches for one partition or lane that are not aside yet."""

    batches: list[Batch] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0


class ServerStage:
    """Puts the rows of one task aside."""

    def __init__(self, options: WriteOptions, write: WriteId, partitions: int) -> None:
        self._options = options
        self._write = write
        self._rows = TopicRows(partitions=max(1, partitions), turn=uuid.uuid4().int % 4096)
        self._waiting: dict[int, _Waiting] = {}
        self._files: list[StagedFile] = []

    def write(self, batches: "Iterable[pa.RecordBatch]") -> list[StagedFile]:
        """Put all rows aside and return the blocks they are in; if it fails, none is left."""
        some = (rows for rows in batches if rows.num_rows)
        first = next(some, None)
        if first is None:
            return []
        with opened(self._options) as (_, target):
            try:
                for rows in chain([first], some):
                    for number, batch in self._laid_out(rows):
                        for part in parted(batch, target.block):
                            self._add(target, number, part)
                for number in list(self._waiting):
                    self._flush(target, number)
            except BaseException:
                with contextlib.suppress(SegueError):
                    target.unstage(_names(self._files))
                raise
        return self._files

    def _laid_out(self, rows: "pa.RecordBatch") -> Iterator[tuple[int, Batch]]:
        if self._options.kind == "topic":
            return self._rows.batches(rows)
        # Delays are counted from when the messages are pushed, by the clock of the server.
        return message_batches(rows, now_us=0)

    def _add(self, target: Target, number: int, batch: Batch) -> None:
        size = target.block
        longest = int(batch.lengths.max())
        if longest > size.record_bytes_max:
            raise RecordTooLarge(size_bytes=longest, size_bytes_max=size.record_bytes_max)
        waiting = self._waiting.get(number)
        if waiting is not None and (
            waiting.records + len(batch) > size.records_max
            or waiting.size_bytes + len(batch.data) > size.bytes_max
        ):
            self._flush(target, number)
        waiting = self._waiting.setdefault(number, _Waiting())
        waiting.batches.append(batch)
        waiting.records += len(batch)
        waiting.size_bytes += len(batch.data)
        if sum(_memory(each) for each in self._waiting.values()) >= TASK_BYTES_MAX:
            self._flush(target, max(self._waiting, key=lambda each: _memory(self._waiting[each])))

    def _flush(self, target: Target, number: int) -> None:
        waiting = self._waiting.pop(number)
        file = StagedFile(
            id=uuid.uuid4().hex,
            number=number,
            count=waiting.records,
            size_bytes=waiting.size_bytes,
            longest_bytes=max(int(batch.lengths.max()) for batch in waiting.batches),
        )
        # Announced first: what a killed task leaves is found when its write is done with.
        target.writes.announce(self._write.directory, number, file.id)
        self._files.append(file)
        target.stage(number, file.id, waiting.batches)


def _memory(waiting: _Waiting) -> int:
    return waiting.size_bytes + waiting.records * SLOT_BYTES


class ServerCommitter:
    """Makes writes to one topic or queue on a server happen."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def commit(self, write: WriteId, files: Iterable[StagedFile]) -> bool:
        """Have the write happen; False if it had happened before, and `files` are dropped."""
        listed = list(files)
        with opened(self._options) as (_, target):
            if not self._list(target, write, listed):
                self._drop(target, write)
                return False
            try:
                self._finish(target, write, listed)
            except SegueError:
                logger.error(
                    "the write is listed and will be finished by the next one; repeat it only "
                    "under the same name query=%s batch=%s",
                    write.query,
                    write.batch,
                )
                raise
            return True

    def abort(self, write: WriteId) -> None:
        """Leave nothing of a write that is not to happen. One that has happened stays."""
        with opened(self._options) as (_, target):
            self._drop(target, write)

    def recover(self) -> None:
        """Finish what others have left unfinished."""
        with opened(self._options) as (_, target):
            self._finish_listed(target, None)

    def is_done(self, write: WriteId) -> bool:
        """Tell whether the write has happened."""
        options = self._options
        with contextlib.suppress(LogNotFound), open_redis(options.url, create=False) as store:
            writes = Writes(store, store.base(options.kind, options.name))
            return writes.is_done(write.digest, write.batch)
        return False

    # Steps ---------------------------------------------------------------------------------

    def _list(self, target: Target, write: WriteId, files: list[StagedFile]) -> bool:
        """Have the write happen; False if it had before."""
        for _ in range(LISTING_TRIES):
            self._finish_listed(target, write)
            if target.writes.is_done(write.digest, write.batch):
                return False
            if not files:
                return True
            self._check(target, files)
            text = _list_of(write, files)
            said = target.writes.list_(
                write.directory, write.digest, write.batch, text, _names(files)
            )
            if said == "withdrawn":
                raise StorageError("the write was aborted before it could happen")
            if said != "pending":
                return said == "listed"
        raise StorageError(f"other writes of {write.query} were under way all the time")

    def _check(self, target: Target, files: list[StagedFile]) -> None:
        """Raise before the write is listed if it could never be finished."""
        if target.hold(_names(files), kept_ms=KEPT_MS):
            raise StorageError("what was put aside is gone: the write was aborted")
        target.require_room(sum(file.count for file in files))

    def _finish_listed(self, target: Target, current: WriteId | None) -> None:
        """Finish what was listed and left. What cannot be is an error for its own query only."""
        for name, text in target.writes.pending().items():
            try:
                write, files = _read_list(name, text)
                logger.warning("finishing a write query=%s batch=%s", write.query, write.batch)
                self._finish(target, write, files)
            except SegueError as error:
                if current is not None and name.startswith(current.digest):
                    raise
                logger.error("not finished write=%s reason=%s", name, error)

    def _finish(self, target: Target, write: WriteId, files: list[StagedFile]) -> None:
        """Have a write that is listed be in its place, and remembered."""
        names = _names(files)
        target.hold(names, kept_ms=0)  # From now on it must not be forgotten.
        try:
            self._adopt(target, names)
        except BlockGone:
            if target.writes.is_pending(write.directory):
                raise
            return  # Somebody else has finished it meanwhile.
        self._drop_others(target, write, names)
        target.writes.finish(
            write.directory, write.digest, write.batch, is_repeatable=write.is_repeatable
        )
        # Only now: while there is a list somebody may go by it once more.
        target.forget(names)

    def _adopt(self, target: Target, names: dict[int, list[str]]) -> None:
        """Adopt what is listed and not yet there: partitions side by side, each in order."""

        def adopt(number: int) -> None:
            for name in names[number]:
                target.adopt(number, name)

        if self._options.kind == "queue":
            for number in sorted(names, key=lambda each: (each == ASIDE, each)):
                adopt(number)
        elif names:
            with ThreadPoolExecutor(max_workers=min(ADOPTERS_MAX, len(names))) as pool:
                list(pool.map(adopt, sorted(names)))

    def _drop_others(self, target: Target, write: WriteId, names: dict[int, list[str]]) -> None:
        """Drop what tasks of the write put aside that failed, or were repeated."""
        known = {name for some in names.values() for name in some}
        others = target.writes.announced(write.directory)
        target.unstage(
            {
                number: [each for each in some if each not in known]
                for number, some in others.items()
            }
        )

    def _drop(self, target: Target, write: WriteId) -> None:
        target.unstage(target.writes.withdraw(write.directory))


def _names(files: Iterable[StagedFile]) -> dict[int, list[str]]:
    return by_number((file.number, file.id) for file in files)


def _list_of(write: WriteId, files: list[StagedFile]) -> str:
    return json.dumps(
        {
            "format": FORMAT,
            "query": write.query,
            "batch": write.batch,
            "is_repeatable": write.is_repeatable,
            "files": [[file.id, file.number, file.count, file.size_bytes] for file in files],
        },
        separators=(",", ":"),
    )


def _read_list(name: str, text: str) -> tuple[WriteId, list[StagedFile]]:
    try:
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r}")
        batch = values["batch"]
        write = WriteId(
            query=str(values["query"]),
            batch=None if batch is None else int(batch),
            is_repeatable=bool(values["is_repeatable"]),
        )
        if write.directory != name:
            raise ValueError("it is of another write")
        files = [
            StagedFile(id=str(id_), number=int(place), count=int(count), size_bytes=int(size))
            for id_, place, count, size in values["files"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptManifest(path=Path(name), reason=f"it makes no sense: {error}") from error
    return write, files
