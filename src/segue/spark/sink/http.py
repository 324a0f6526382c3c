"""Writing behind a Segue server: tasks send sealed segments, and the driver has them adopted.

A task writes each segment to a directory of its own first, and sends it from there. The server
checks it before it says that it has it, and adopts all that a write lists in one step, and once:
what a killed task sent goes when its write happens or is given up.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from segue.log.disk import storage_errors
from segue.spark.options import WriteOptions
from segue.spark.sink.staging import Stage
from segue.stores.file.writes import StagedFile, WriteId
from segue.stores.http.bulk import Writing
from segue.stores.opening import open_http

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def writing(options: WriteOptions) -> Iterator[Writing]:
    """Give what writes to a topic or queue. Raises StoreUnavailable, AccessDenied."""
    with open_http(options.url, token=options.token) as store:
        yield Writing(store.calls, options.kind, options.name)


def send_rows(
    options: WriteOptions,
    write: WriteId,
    rows: "Iterable[pa.RecordBatch]",
    *,
    partitions: int,
    record_bytes_max: int,
) -> list[StagedFile]:
    """Put the rows of a task aside on the server, and return the segments they are in."""
    with (
        tempfile.TemporaryDirectory(prefix="segue-") as directory,
        writing(options) as target,
    ):
        stage = _SendingStage(options, write, partitions, record_bytes_max, Path(directory), target)
        return stage.write(rows)


class _SendingStage(Stage):
    """Writes segments in a directory of its own and sends each as soon as it is there."""

    def __init__(
        self,
        options: WriteOptions,
        write: WriteId,
        partitions: int,
        record_bytes_max: int,
        path: Path,
        target: Writing,
    ) -> None:
        super().__init__(options, write, partitions, record_bytes_max, path=path)
        self._sync = False  # What lies here need not outlive us.
        self._write = write
        self._target = target

    def _has_written(self, id_: str) -> None:
        path = self._path / f"{id_}.q"
        # What the server refuses may be an OSError, too, and is none of this disk's.
        with storage_errors(f"reading {path}"):
            file = path.open("rb")
        with file:
            self._target.put(self._write, id_, file)
        with storage_errors(f"removing {path}"):
            path.unlink()


class HttpCommitter:
    """Makes writes to one topic or queue behind a server happen."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def commit(self, write: WriteId, files: Iterable[StagedFile]) -> bool:
        """Have the write happen; False if it had happened before, and `files` are dropped."""
        with writing(self._options) as target:
            return target.commit(write, files)

    def abort(self, write: WriteId) -> None:
        """Leave nothing of a write that is not to happen. One that has happened stays."""
        with writing(self._options) as target:
            target.abort(write)

    def recover(self) -> None:
        """Finish what others have left unfinished."""
        with writing(self._options) as target:
            target.ready()

    def is_done(self, write: WriteId) -> bool:
        """Tell whether the write has happened."""
        with writing(self._options) as target:
            return target.is_done(write)
