"""Writes that are prepared aside and then happen: all of one, and once.

    staging/<kind>.<name>/<write>/<id>.q    one write's segments; nobody reads them there
    staging/<kind>.<name>/<write>.commit    the write is to happen: what is listed will be adopted
    staging/<kind>.<name>/<query>.done      the last batch of a query, or a write, that has happened

The write happens with one step, when its list of segments gets the name `….commit`. Whoever is
killed after that has written: the next to come, be it the same query or another writer, adopts what
is listed and not yet there. Whoever is killed before has written nothing. So a batch that is
repeated after a crash is either finished from the list of its first try or done anew, and never
both, even if its rows were cut in another way the second time.
"""

import contextlib
import logging
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, cast

from segue.delivery.events import ASIDE
from segue.errors import CorruptManifest, RecordTooLarge, SegueError, StorageError
from segue.log.disk import Disk, storage_errors
from segue.log.layout import SEGMENT_BYTES_MAX
from segue.stores.file.adopting import (
    adopt_messages,
    check_space,
    chunk_keys,
    forget_adoptions,
    push_keyed,
)
from segue.stores.file.claims import locked
from segue.stores.file.documents import number, read_document, write_document
from segue.stores.file.store import FileStore
from segue.stores.file.topics.adopting import adopt_staged
from segue.values import dataclass

logger = logging.getLogger(__name__)

STAGING: Final = "staging"
KEYED: Final = -1
"""The number of what is pushed one by one, because its key must be looked at."""
Kind = Literal["topic", "queue"]

FORMAT: Final = 1
COMMIT: Final = ".commit"
DONE: Final = ".done"
LOCK: Final = "lock"
ADOPTERS_MAX: Final = 4
MARK_BYTES_MAX: Final = 1024
"""What the first record of a segment says of its adoption, at most."""
ORPHAN_SECONDS: Final = 7 * 24 * 3600
"""When what a killed task left is taken for nobody's: longer than any write takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A segment that waits to be adopted."""

    id: str
    """Its name, and the key under which it is adopted."""
    number: int
    """Its partition, or its lane."""
    count: int
    size_bytes: int
    longest_bytes: int = 0
    """Of its records, the longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteId:
    """Names a write: a batch of a query, or a write of its own."""

    query: str
    batch: int | None = None
    is_repeatable: bool = True
    """Whether somebody may try the same write again, so that it must be remembered."""

    @property
    def digest(self) -> str:
        """Names the query, as a file can be called."""
        return blake2b(self.query.encode(), digest_size=16).hexdigest()

    @property
    def directory(self) -> str:
        """Where the write's segments lie."""
        return self.digest if self.batch is None else f"{self.digest}-{self.batch}"


def staging_path(root: Path, kind: Kind, name: str) -> Path:
    """Return where writes to a topic or queue of the store at `root` are prepared."""
    return root / STAGING / f"{kind}.{name}"


class Writes(ABC):
    """Makes writes to one topic or queue happen."""

    def __init__(self, root: Path, kind: Kind, name: str, *, disk: Disk, sync: bool) -> None:
        self._kind = kind
        self._name = name
        self._disk = disk
        self._sync = sync
        self._path = staging_path(root, kind, name)

    @abstractmethod
    def _store(self) -> AbstractContextManager[FileStore]:
        """Give the store for as long as it is needed."""

    def prepare(self) -> tuple[int, int]:
        """Have what is written to be there, and finish what others have left unfinished.

        Return how many partitions it has, 0 of a queue, and how large a record may be.
        """
        with self._store() as store:
            if self._kind == "topic":
                partitions = store.topic(self._name)._core.existing().partitions
                record_bytes_max = SEGMENT_BYTES_MAX
            else:
                store.queue(self._name)
                lane = store._queue_core(self._name).lane(0)
                partitions, record_bytes_max = 0, lane.log.writer.new_segment_bytes_max
        self.recover()
        return partitions, record_bytes_max - MARK_BYTES_MAX

    def commit(self, write: WriteId, files: Iterable[StagedFile]) -> bool:
        """Have the write happen; False if it had happened before, and `files` are dropped."""
        listed = list(files)
        with self._store() as store, self._alone():
            self._finish_listed(store, write)
            if self._is_done(write):
                self._drop(write.directory)
                return False
            if listed:
                self._check(store, write, listed)
                self._write_list(write, listed)
            try:
                self._finish(store, write, listed)
            except SegueError:
                logger.error(
                    "the write is listed and will be finished by the next one; repeat it only "
                    "under the same name query=%s batch=%s",
                    write.query,
                    write.batch,
                )
                raise
            self._drop_orphans()
            return True

    def abort(self, write: WriteId) -> None:
        """Leave nothing of a write that is not to happen. One that has happened stays."""
        self.give_up(write.directory)

    def give_up(self, directory: str) -> None:
        """The same, of a write by where its segments lie."""
        if not self._disk.exists(self._path):
            return
        with self._alone():
            if not self._disk.exists(self._path / f"{directory}{COMMIT}"):
                self._drop(directory)

    def recover(self) -> None:
        """Finish what others have left unfinished."""
        if self._disk.exists(self._path) and self._pending():
            with self._store() as store, self._alone():
                self._finish_listed(store, None)

    def is_done(self, write: WriteId) -> bool:
        """Tell whether the write has happened."""
        return self._disk.exists(self._path) and self._is_done(write)

    # Steps ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with storage_errors(f"creating {self._path}"):
            self._disk.make_directory(self._path)
        with locked(self._path / LOCK, self._disk):
            yield

    def _pending(self) -> list[Path]:
        with storage_errors(f"listing {self._path}"):
            names = self._disk.names(self._path)
        return [self._path / name for name in sorted(names) if name.endswith(COMMIT)]

    def _finish_listed(self, store: FileStore, current: WriteId | None) -> None:
        """Finish what was listed and left. What cannot be is an error for its own query only."""
        for path in self._pending():
            try:
                write, files = self._read_list(path)
                logger.warning("finishing a write query=%s batch=%s", write.query, write.batch)
                self._finish(store, write, files)
            except (SegueError, FileNotFoundError) as error:
                # By its name: the list may be what is damaged.
                if current is not None and path.name.startswith(current.digest):
                    raise
                logger.error("not finished path=%s reason=%s", path, error)

    def _listed_ids(self) -> set[str] | None:
        """Return the segments of all writes that are not finished; None if not all can be told."""
        try:
            return {file.id for path in self._pending() for file in self._read_list(path)[1]}
        except SegueError:
            return None

    def _check(self, store: FileStore, write: WriteId, files: list[StagedFile]) -> None:
        """Raise before the write is listed if it could never be finished."""
        directory = self._path / write.directory
        for file in files:
            if not self._disk.exists(directory / f"{file.id}.q"):
                raise StorageError(f"{directory / file.id}.q is gone: the write was aborted")
        if self._kind == "queue":
            store.queue(self._name)
            core = store._queue_core(self._name)
            longest = max(file.longest_bytes for file in files)
            most = core.lane(0).log.writer.new_segment_bytes_max
            if longest > most:
                raise RecordTooLarge(size_bytes=longest, size_bytes_max=most)
            with core.turn():
                check_space(core, sum(file.count for file in files))

    def _finish(self, store: FileStore, write: WriteId, files: list[StagedFile]) -> None:
        """Have a write that is listed happen, and be remembered."""
        if not self._is_done(write):
            self._adopt(store, write, files)
            self._note_done(write)
        self._drop(write.directory)
        if self._kind == "queue":
            # Only now: while there is a list somebody may go by it once more.
            core = store._queue_core(self._name)
            forget_adoptions(core, [key for file in files for key in _adoption_keys(file)])

    def _write_list(self, write: WriteId, files: list[StagedFile]) -> None:
        values: dict[str, object] = {
            "format": FORMAT,
            "query": write.query,
            "batch": write.batch,
            "is_repeatable": write.is_repeatable,
            "files": [[file.id, file.number, file.count, file.size_bytes] for file in files],
        }
        write_document(
            self._path / f"{write.directory}{COMMIT}", values, self._disk, sync=self._sync
        )

    def _read_list(self, path: Path) -> tuple[WriteId, list[StagedFile]]:
        values = read_document(path, self._disk, format_=FORMAT)
        try:
            if values is None:
                raise ValueError("it is gone")
            batch = values["batch"]
            write = WriteId(
                query=str(values["query"]),
                batch=None if batch is None else number(batch),
                is_repeatable=bool(values["is_repeatable"]),
            )
            files = [
                StagedFile(
                    id=str(id_), number=int(place), count=number(count), size_bytes=number(size)
                )
                for id_, place, count, size in cast("list[list[Any]]", values["files"])
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptManifest(path=path, reason=f"it makes no sense: {error}") from error
        return write, files

    def _adopt(self, store: FileStore, write: WriteId, files: list[StagedFile]) -> None:
        """Adopt what is listed and not yet there: partitions side by side, each in order."""
        directory = self._path / write.directory
        if not files:
            return
        by_number: dict[int, list[StagedFile]] = {}
        for file in files:
            by_number.setdefault(file.number, []).append(file)
        if self._kind == "queue":
            self._push(store, directory, by_number)
            return
        core = store.topic(self._name)._core
        listed = self._listed_ids()

        def adopt(partition: int) -> None:
            for file in by_number[partition]:
                path = directory / f"{file.id}.q"
                adopt_staged(core, path, partition=partition, key=file.id, unfinished=listed)

        with ThreadPoolExecutor(max_workers=min(ADOPTERS_MAX, len(by_number))) as pool:
            list(pool.map(adopt, sorted(by_number)))

    def _push(
        self, store: FileStore, directory: Path, by_number: dict[int, list[StagedFile]]
    ) -> None:
        store.queue(self._name)
        core = store._queue_core(self._name)
        for lane in sorted(by_number, key=lambda each: (each == ASIDE, each)):
            for file in by_number[lane]:
                path = directory / f"{file.id}.q"
                if lane == KEYED:
                    push_keyed(core, path, key=file.id)
                else:
                    adopt_messages(core, path, lane=lane, key=file.id)

    # What has happened ---------------------------------------------------------------------

    def _is_done(self, write: WriteId) -> bool:
        values = read_document(self._path / f"{write.digest}{DONE}", self._disk, format_=FORMAT)
        if values is None or values.get("query") != write.query:
            return False
        last = values.get("batch")
        return write.batch is None or (isinstance(last, int) and write.batch <= last)

    def _note_done(self, write: WriteId) -> None:
        if not write.is_repeatable:
            return
        values: dict[str, object] = {
            "format": FORMAT,
            "query": write.query,
            "batch": write.batch,
        }
        write_document(self._path / f"{write.digest}{DONE}", values, self._disk, sync=self._sync)

    def _drop(self, directory: str) -> None:
        """Remove the list first: without it nobody looks for the segments."""
        with storage_errors(f"removing {self._path / directory}"):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path / f"{directory}{COMMIT}")
                if self._sync:
                    # A list that came back after a power cut would be finished once more.
                    self._disk.sync_directory(self._path)
            shutil.rmtree(self._path / directory, ignore_errors=True)

    def _drop_orphans(self) -> None:
        """Remove what killed tasks left long ago, and nobody has listed."""
        before = time.time() - ORPHAN_SECONDS
        for path in self._path.iterdir():
            with contextlib.suppress(OSError):
                is_listed = (self._path / f"{path.name}{COMMIT}").exists()
                if is_listed or path.stat().st_mtime >= before:
                    continue
                if path.is_dir():
                    logger.warning("removing what a killed write left path=%s", path)
                    shutil.rmtree(path, ignore_errors=True)
                elif path.suffix == ".tmp":
                    path.unlink()


def _adoption_keys(file: StagedFile) -> list[str]:
    """Return the keys under which the queue remembers a segment."""
    return chunk_keys(file.id, file.count) if file.number == KEYED else [file.id]
