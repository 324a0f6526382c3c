"""Topics, queues and rings behind a server by columns, and writes that are put aside there."""

import io
import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import pyarrow as pa

from segue.errors import StoreUnavailable, UnsupportedServer
from segue.log.columns import Columns
from segue.log.record import microseconds
from segue.stores.http.calls import LONG_SECONDS, Calls, Query, path_of
from segue.stores.http.sense import making_sense, nonsense
from segue.stores.http.wire.bulk import (
    BehindJson,
    Behinds,
    Beyond,
    Commit,
    Committed,
    IsDone,
    PlacesAt,
    Ready,
    StagedJson,
    StrandJson,
    Strands,
)
from segue.stores.message_pages import (
    MESSAGE_SCHEMA,
    RECORD_SCHEMA,
    MessagePage,
    columns_of_batch,
)
from segue.stores.passing import Passing

if TYPE_CHECKING:
    from segue.stores.file.writes import StagedFile, WriteId

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 10
"""How often a range is asked for again from where it broke off, without a record in between."""
PIECE_BYTES: Final = 1 << 16
PART_BYTES: Final = 8 << 20
"""How much of a segment goes in one request."""

Kind = Literal["topic", "queue", "dead_letters", "ring"]

_PATHS: Final = {
    "topic": ("topics", ""),
    "queue": ("queues", ""),
    "dead_letters": ("queues", "/dead-letters"),
    "ring": ("rings", ""),
}


class Bulk:
    """Reads one topic, queue or ring by columns. Safe from any thread."""

    def __init__(self, calls: Calls, kind: Kind, name: str) -> None:
        self._calls = calls
        self._kind = kind
        of, below = _PATHS[kind]
        self._path = f"{path_of(of, name)}{below}/bulk"

    def strands(self, *, is_stream: bool = False, reader: str | None = None) -> list[StrandJson]:
        """Return what there is to read. Raises TopicNotFound, RingNotFound, InvalidArgument."""
        query = {"is_stream": "true" if is_stream else None, "reader": reader}
        return self._calls.get(self._path, Strands, query=query).strands

    def places_at(self, moment: datetime) -> dict[str, int]:
        """Return the first offset of each strand that came at `moment` or later."""
        query = {"moment_us": microseconds(moment)}
        return self._calls.get(f"{self._path}/places", PlacesAt, query=query).places

    def behind(self, offsets: dict[int, int]) -> list[BehindJson]:
        """Return what lies beyond offsets of a topic's partitions, of those there are."""
        body = Beyond(offsets=offsets)
        return self._calls.post(f"{self._path}/behind", body, Behinds).partitions

    def stretches(self, start: int, stop: int, passing: Passing) -> Iterator[Columns]:
        """Yield what lies between two offsets of a strand, asking again where it breaks off.

        Raises OffsetTrimmed, OffsetNotWritten, Damage unless that is to be passed over.
        """
        tries = 0
        while start < stop:
            before = start
            try:
                with closing(self._stretches(start, stop, passing)) as found:
                    for columns in found:
                        yield columns
                        start = self._after(columns)
                return
            except StoreUnavailable as error:
                tries = 1 if start > before else tries + 1
                if tries > TRIES_MAX:
                    raise
                logger.info("read on after it broke off from=%d reason=%s", start, error)

    def _stretches(self, start: int, stop: int, passing: Passing) -> Generator[Columns, None, None]:
        query: Query = {
            "number": passing.number,
            "start": start,
            "stop": stop,
            "passes_deleted": "true" if passing.deleted else None,
            "passes_damage": "true" if passing.damaged else None,
        }
        with self._calls.asked("GET", f"{self._path}/columns", query=query) as response:
            is_whole = False
            for batch in _batches(response):
                if batch.num_rows:
                    yield _columns(batch)
                else:
                    is_whole = True  # The last one is empty: it says that nothing went wrong.
            if not is_whole:
                raise StoreUnavailable("what was read broke off")

    def _after(self, columns: Columns) -> int:
        if self._kind == "dead_letters" and isinstance(columns, MessagePage):
            return int(columns.number[-1]) + 1
        return int(columns.offset[-1]) + 1


def _columns(batch: pa.RecordBatch) -> Columns:
    """Return what a batch holds. Raises UnsupportedServer if it cannot be what it says."""
    with making_sense():
        batch.validate()
        # Only words may be missing: whoever counts on a number would find another in its place.
        needed = [each.name for each in batch.schema if each.type != pa.string()]
        if any(batch.column(name).null_count for name in needed):
            raise nonsense("records without their numbers")
        return columns_of_batch(batch)


def _batches(response: io.RawIOBase) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an answer, which is read to its end."""
    body = io.BufferedReader(response)
    try:
        reader = pa.ipc.open_stream(body)
        if reader.schema not in (RECORD_SCHEMA, MESSAGE_SCHEMA):
            raise UnsupportedServer(f"the server sent other columns: {reader.schema.names}")
        yield from reader
    except pa.ArrowException as error:
        raise StoreUnavailable(f"what was read broke off: {error}") from error
    while body.read(PIECE_BYTES):
        continue


class Writing:
    """Writes to one topic or queue that are put aside behind a server. Safe from any thread."""

    def __init__(self, calls: Calls, kind: Literal["topic", "queue"], name: str) -> None:
        self._calls = calls
        self._path = f"{path_of(_PATHS[kind][0], name)}/writes"

    def ready(self) -> Ready:
        """Have unfinished writes finished, and return what is written to.

        Raises TopicNotFound, UnsupportedServer where nothing can be put aside.
        """
        return self._calls.post(self._path, None, Ready, takes=LONG_SECONDS)

    def put(self, write: "WriteId", id_: str, file: BinaryIO) -> None:
        """Send a segment, which is checked before this returns. Once, however often it is sent."""
        path = f"{self._path}{path_of(write.directory, id_)}"
        headers = {"Content-Type": "application/octet-stream"}
        position, piece = 0, file.read(PART_BYTES)
        while True:
            following = file.read(PART_BYTES)
            query = {"position": position, "is_last": "false" if following else "true"}
            self._calls.fetch("PUT", path, piece, query=query, headers=headers)
            if not following:
                return
            position, piece = position + len(piece), following

    def commit(self, write: "WriteId", files: "Iterable[StagedFile]") -> bool:
        """Have the write happen; False if it had happened before, and `files` are dropped."""
        body = Commit(
            query=write.query,
            batch=write.batch,
            is_repeatable=write.is_repeatable,
            segments=[
                StagedJson(
                    id=file.id,
                    number=file.number,
                    count=file.count,
                    size_bytes=file.size_bytes,
                    longest_bytes=file.longest_bytes,
                )
                for file in files
            ],
        )
        path = f"{self._path}{path_of(write.directory)}/commit"
        return self._calls.post(path, body, Committed, takes=LONG_SECONDS).is_new

    def abort(self, write: "WriteId") -> None:
        """Leave nothing of a write that is not to happen. One that has happened stays."""
        self._calls.tell(f"{self._path}{path_of(write.directory)}", method="DELETE")

    def is_done(self, write: "WriteId") -> bool:
        """Tell whether the write has happened."""
        query = {"query": write.query, "batch": write.batch}
        path = f"{self._path}{path_of(write.directory)}"
        return self._calls.get(path, IsDone, query=query).is_done
