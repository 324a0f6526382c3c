"""What a task does: it writes its rows aside, as sealed segments for the driver to adopt.

A task that fails removes what it wrote. What a killed one leaves goes when its write is committed
or aborted, or with a commit a week later.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from segue.clock import system_clock
from segue.delivery.topic_record import adoption_digest, with_adoption
from segue.errors import RecordTooLarge
from segue.log.disk import Disk, storage_errors
from segue.log.layout import SEGMENT_BYTES_MAX, SLOT_BYTES
from segue.log.staging import Batch, write_staged
from segue.spark.options import WriteOptions
from segue.spark.sink.rows import TopicRows, message_batches
from segue.stores.file import writes
from segue.stores.file.adopting import marked_first
from segue.stores.file.writes import KEYED, StagedFile, WriteId
from segue.stores.opening import directory_of
from segue.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES_MAX: Final = 32 << 20
"""How much of a partition is held in memory before it becomes a segment."""
TASK_BYTES_MAX: Final = 256 << 20
"""How much of all partitions together."""


def staging_path(options: WriteOptions) -> Path:
    """Return where writes to a topic or queue are prepared."""
    return writes.staging_path(directory_of(options.url), options.kind, options.name)


@dataclass(slots=True)
class _Waiting:
    """Batches for one partition that are not on disk yet."""

    batches: list[Batch] = field(default_factory=list)
    size_bytes: int = 0


class Stage:
    """Writes the rows of one task aside."""

    def __init__(
        self,
        options: WriteOptions,
        write: WriteId,
        partitions: int,
        record_bytes_max: int = SEGMENT_BYTES_MAX,
        *,
        path: Path | None = None,
    ) -> None:
        """Write to `path`, or to where the driver adopts from."""
        self._options = options
        self._sync = options.sync != "os"
        self._record_bytes_max = record_bytes_max
        self._disk = Disk()
        self._path = path or staging_path(options) / write.directory
        self._rows = TopicRows(partitions=max(1, partitions), turn=uuid.uuid4().int % 4096)
        self._waiting: dict[int, _Waiting] = {}
        self._files: list[StagedFile] = []

    def write(self, batches: "Iterable[pa.RecordBatch]") -> list[StagedFile]:
        """Write all rows and return the segments they are in; if it fails, none is left."""
        try:
            for rows in batches:
                for number, batch in self._laid_out(rows):
                    self._add(number, batch)
            for number in list(self._waiting):
                self._flush(number)
            if self._files and self._sync:
                with storage_errors(f"syncing {self._path}"):
                    self._disk.sync_directory(self._path)
        except BaseException:
            self.discard()
            raise
        return self._files

    def _laid_out(self, rows: "pa.RecordBatch") -> Iterator[tuple[int, Batch]]:
        if self._options.kind == "topic":
            return self._rows.batches(rows)
        return message_batches(rows, now_us=system_clock())

    def _add(self, number: int, batch: Batch) -> None:
        longest = int(batch.lengths.max())
        if longest > self._record_bytes_max:
            raise RecordTooLarge(size_bytes=longest, size_bytes_max=self._record_bytes_max)
        waiting = self._waiting.setdefault(number, _Waiting())
        waiting.batches.append(batch)
        waiting.size_bytes += len(batch.data) + len(batch) * SLOT_BYTES
        if waiting.size_bytes >= FILE_BYTES_MAX:
            self._flush(number)
        elif sum(each.size_bytes for each in self._waiting.values()) >= TASK_BYTES_MAX:
            self._flush(max(self._waiting, key=lambda each: self._waiting[each].size_bytes))

    def _flush(self, number: int) -> None:
        waiting = self._waiting.pop(number)
        with storage_errors(f"creating {self._path}"):
            if not self._disk.exists(self._path):
                self._disk.make_directory(self._path)
        id_ = uuid.uuid4().hex
        batches = waiting.batches if number == KEYED else self._marked(waiting.batches, id_)
        write_staged(
            self._path / f"{id_}.q",
            batches,
            self._disk,
            time_us=system_clock(),
            sync=self._sync,
        )
        self._files.append(
            StagedFile(
                id=id_,
                number=number,
                count=sum(map(len, batches)),
                size_bytes=waiting.size_bytes,
                longest_bytes=max(int(batch.lengths.max()) for batch in batches),
            )
        )
        self._has_written(id_)

    def _has_written(self, id_: str) -> None:
        """A segment is there."""

    def _marked(self, batches: list[Batch], id_: str) -> list[Batch]:
        """Return batches whose first record says under which key they are to be adopted."""
        first = batches[0]
        if self._options.kind == "topic":
            payload, attr = with_adoption(
                bytes(first.data[: int(first.lengths[0])]),
                int(first.attrs[0]),
                adoption_digest(id_),
            )
        else:
            payload, attr = marked_first(first, id_)
        marked = Batch(
            lengths=np.array([len(payload)], dtype=np.uint32),
            attrs=np.array([attr], dtype=np.uint64),
            data=memoryview(payload),
        )
        if len(first) == 1:
            return [marked, *batches[1:]]
        rest = Batch(
            lengths=first.lengths[1:],
            attrs=first.attrs[1:],
            data=first.data[int(first.lengths[0]) :],
        )
        return [marked, rest, *batches[1:]]

    def discard(self) -> None:
        """Remove what was written."""
        for file in self._files:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path / f"{file.id}.q")
