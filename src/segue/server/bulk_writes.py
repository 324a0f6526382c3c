"""Writes that clients put aside in the store behind the server, to happen all at once."""

import contextlib
import re
from pathlib import Path
from typing import Final

from segue.delivery.events import ASIDE
from segue.delivery.priority import PRIORITY_MAX
from segue.errors import (
    Damage,
    InvalidArgument,
    SegueError,
    StorageError,
    UnsupportedFormat,
)
from segue.log.disk import storage_errors
from segue.log.layout import SEGMENT_BYTES_MAX
from segue.log.staging import read_staged
from segue.stores.file.adopting import check_keyed, check_marked, require_fit
from segue.stores.file.store import FileStore
from segue.stores.file.topics.adopting import check_staged
from segue.stores.file.writes import KEYED, Kind, StagedFile, WriteId, Writes
from segue.stores.http.wire.bulk import Ready

_WRITE: Final = re.compile(r"[0-9a-f]{32}(-[0-9]{1,19})?", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


def check_write(name: str) -> str:
    """Return what a write is called. Raises InvalidArgument."""
    if _WRITE.fullmatch(name) is None:
        raise InvalidArgument("a write is called by the digest of its query, and its batch")
    return name


def check_id(name: str) -> str:
    """Return what a segment is called. Raises InvalidArgument."""
    if _ID.fullmatch(name) is None:
        raise InvalidArgument(f"a segment is called by 32 hexadecimal digits, not {name[:40]!r}")
    return name


class StoreWrites(Writes):
    """Makes writes to one topic or queue happen, whose segments came over the line.

    What came is believed no more than anything else: nothing is listed that could not be adopted.
    """

    def __init__(self, store: FileStore, kind: Kind, name: str) -> None:
        place = store.place
        super().__init__(place.root, kind, name, disk=place.disk, sync=place.is_durable)
        self._opened = store

    def _store(self) -> contextlib.AbstractContextManager[FileStore]:
        return contextlib.nullcontext(self._opened)

    def ready(self) -> Ready:
        """Have unfinished writes finished, and tell what is written to; it is made if need be."""
        partitions, record_bytes_max = self.prepare()
        return Ready(partitions=partitions, record_bytes_max=record_bytes_max)

    def keep(self, write: str, id_: str, data: bytes, *, position: int, is_last: bool) -> None:
        """Keep a part of a segment; with the last one, all of it is checked and kept for good.

        Parts may come again, and do no more then. Raises StorageError, and InvalidArgument also if
        what came is no sound segment.
        """
        directory = self._path / check_write(write)
        path = directory / f"{check_id(id_)}.q"
        if not 0 <= position <= SEGMENT_BYTES_MAX - len(data):
            raise InvalidArgument(f"a segment has no byte {position}")
        if self._disk.exists(path):
            return
        unfinished = path.with_suffix(".tmp")
        with storage_errors(f"keeping {path}"):
            if not self._disk.exists(directory):
                self._disk.make_directory(directory)
            fd = self._disk.open_to_write(unfinished, create=True)
            try:
                self._disk.write_at(fd, data, position)
                if is_last:
                    # An earlier try may have gone further.
                    self._disk.resize(fd, position + len(data))
                    if self._sync:
                        self._disk.sync_data(fd)
            finally:
                self._disk.close(fd)
            if is_last:
                self._finish_keeping(unfinished, path)

    def _finish_keeping(self, unfinished: Path, path: Path) -> None:
        try:
            read_staged(unfinished, self._disk).close()
            self._disk.rename(unfinished, path)
        except FileNotFoundError:
            if not self._disk.exists(path):  # Else another try of the same was faster.
                raise StorageError(f"{path} is gone: the write was aborted") from None
        except SegueError as error:
            with contextlib.suppress(OSError):
                self._disk.unlink(unfinished)
            if not isinstance(error, Damage | InvalidArgument | UnsupportedFormat):
                raise
            # Not ours: whoever sent it can do something about it.
            reason = str(error).replace(str(unfinished), "it")
            raise InvalidArgument(f"what was sent is no sound segment: {reason}") from error
        if self._sync:
            self._disk.sync_directory(path.parent)

    def _check(self, store: FileStore, write: WriteId, files: list[StagedFile]) -> None:
        """Raise before the write is listed if it could never be finished."""
        for file in files:
            check_id(file.id)
        super()._check(store, write, files)
        if len({file.id for file in files}) < len(files):
            raise InvalidArgument("a segment is listed twice")
        for file in files:
            self._check_file(store, write, file)

    def _check_file(self, store: FileStore, write: WriteId, file: StagedFile) -> None:
        path = self._path / write.directory / f"{file.id}.q"
        try:
            staged = read_staged(path, self._disk)
        except FileNotFoundError:
            raise StorageError(f"{path} is gone: the write was aborted") from None
        with staged:
            if staged.count != file.count:
                raise InvalidArgument(f"{file.id} holds {staged.count} records, not {file.count}")
            if self._kind == "topic":
                store.topic(self._name)._core.check(file.number)
                check_staged(staged, file.id, path)
                return
            if file.number not in (ASIDE, KEYED) and not 0 <= file.number <= PRIORITY_MAX:
                raise InvalidArgument(f"there is no priority {file.number}")
            # Of any lane: they hold the same.
            log = store._queue_core(self._name).lane(0).log
            require_fit(log, ASIDE if file.number in (ASIDE, KEYED) else 0, staged.batches)
            if file.number == KEYED:
                check_keyed(staged)
            else:
                check_marked(staged, file.id, path)
