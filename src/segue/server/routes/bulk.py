"""Much at once: topics, queues and rings by columns, and writes that are put aside."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from segue.clock import system_clock
from segue.errors import (
    CorruptSegment,
    InvalidArgument,
    InvalidName,
    OffsetNotWritten,
    OffsetTrimmed,
    QueueFull,
    RecordTooLarge,
    RingNotFound,
    TopicNotFound,
    UnsupportedServer,
)
from segue.log.layout import checked_name
from segue.server.arrow import pieces_of_batches, require_arrow
from segue.server.bulk import Kind, Look
from segue.server.call import Call
from segue.server.routing import Role, Route, Stream
from segue.stores.file.store import FileStore
from segue.stores.http.wire.bulk import (
    Behinds,
    Beyond,
    Commit,
    Committed,
    IsDone,
    PlacesAt,
    Ready,
    Strands,
)
from segue.stores.http.wire.topics import ARROW
from segue.stores.passing import Passing

if TYPE_CHECKING:
    import pyarrow as pa

    from segue.server.bulk_files import FileTables
    from segue.server.bulk_redis import RedisTables
    from segue.server.bulk_writes import StoreWrites

# As segue.stores.file.writes has it, which only who has the extra `columns` can import.
WriteKind = Literal["topic", "queue"]

SEGMENT: Final = "application/octet-stream"
PART_BYTES_MAX: Final = 16 << 20
"""How much of a segment may come in one request: it is held in memory."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Moment(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A moment."""

    moment_us: int


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a strand, and what may be passed over there."""

    number: str
    start: int
    stop: int
    passes_deleted: bool = False
    passes_damage: bool = False


class Piece(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which part of a segment is sent."""

    position: int = 0
    is_last: bool = True


class Named(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A write by its names."""

    query: str
    batch: int | None = None


# Reading -----------------------------------------------------------------------------------------


def _tables(call: Call) -> "FileTables | RedisTables":
    require_arrow()
    checked_name(call.names[0])
    store = call.store
    # Imported here: only who reads by columns needs it.
    if isinstance(store, FileStore):
        from segue.server.bulk_files import FileTables

        return FileTables(store)
    from segue.server.bulk_redis import RedisTables
    from segue.stores.redis.store import RedisStore

    if not isinstance(store, RedisStore):
        raise UnsupportedServer("the store behind this server is not read by columns")
    return RedisTables(store)


def strands(kind: Kind, call: Call) -> Strands:
    """Tell what there is to read."""
    return Strands(strands=_tables(call).strands(kind, call.names[0], call.query(Look)))


def places(kind: Kind, call: Call) -> PlacesAt:
    """Tell what offset a moment is in each strand."""
    moment_us = call.query(Moment).moment_us
    try:
        moment = _EPOCH + timedelta(microseconds=moment_us)
    except OverflowError as error:
        raise InvalidArgument(f"no such time: {moment_us}") from error
    return PlacesAt(places=_tables(call).places_at(kind, call.names[0], moment))


def behind(call: Call) -> Behinds:
    """Tell what lies beyond offsets."""
    offsets = call.body(Beyond).offsets
    return Behinds(partitions=list(_tables(call).behind(call.names[0], offsets, system_clock)))


def columns(kind: Kind, call: Call) -> Stream:
    """Send what lies between two offsets of a strand."""
    part = call.query(Part)
    if part.start < 0 or part.stop < 0:
        raise InvalidArgument("offsets are not negative")
    passing = Passing(
        name=call.names[0],
        number=part.number,
        deleted=part.passes_deleted,
        damaged=part.passes_damage,
    )
    return Stream(
        media_type=ARROW, pieces=pieces_of_batches(_batches(_tables(call), kind, part, passing))
    )


def _batches(
    tables: "FileTables | RedisTables", kind: Kind, part: Part, passing: Passing
) -> "Iterator[pa.RecordBatch]":
    from segue.stores.message_pages import batch_of

    for found in tables.stretches(kind, part.start, part.stop, passing):
        yield batch_of(found)


# Writing -----------------------------------------------------------------------------------------


def _writes(kind: WriteKind, call: Call) -> "StoreWrites":
    require_arrow()
    store = call.store
    if not isinstance(store, FileStore):
        raise UnsupportedServer(
            "nothing is put aside in the store behind this server: write to it by its own URL"
        )
    # Imported here: only who writes in bulk needs it.
    from segue.server.bulk_writes import StoreWrites

    return StoreWrites(store, kind, checked_name(call.names[0]))


def ready(kind: WriteKind, call: Call) -> Ready:
    """Have unfinished writes finished, and tell what is written to."""
    return _writes(kind, call).ready()


def put(kind: WriteKind, call: Call) -> None:
    """Keep a part of a segment until its write happens."""
    piece = call.query(Piece)
    write, segment = call.names[1:]
    _writes(kind, call).keep(
        write, segment, call.data, position=piece.position, is_last=piece.is_last
    )


async def commit(kind: WriteKind, call: Call) -> Committed:
    """Have a write happen, and wake those who wait for messages."""
    await call.in_thread(require_arrow)
    from segue.server.bulk_writes import check_write
    from segue.stores.file.writes import StagedFile, WriteId

    body = call.body(Commit)
    write = WriteId(query=body.query, batch=body.batch, is_repeatable=body.is_repeatable)
    if check_write(call.names[1]) != write.directory:
        raise InvalidArgument("this write has another name")
    files = [
        StagedFile(
            id=each.id,
            number=each.number,
            count=each.count,
            size_bytes=each.size_bytes,
            longest_bytes=each.longest_bytes,
        )
        for each in body.segments
    ]
    writes = _writes(kind, call)
    is_new = await call.in_thread(partial(writes.commit, write, files))
    if kind == "queue" and is_new:
        call.desk.waiting.wake(call.names[0], sum(file.count for file in files))
    return Committed(is_new=is_new)


def is_done(kind: WriteKind, call: Call) -> IsDone:
    """Tell whether a write has happened."""
    named = call.query(Named)
    writes = _writes(kind, call)
    from segue.stores.file.writes import WriteId

    return IsDone(is_done=writes.is_done(WriteId(query=named.query, batch=named.batch)))


def abort(kind: WriteKind, call: Call) -> None:
    """Leave nothing of a write that has not happened."""
    writes = _writes(kind, call)
    from segue.server.bulk_writes import check_write

    writes.give_up(check_write(call.names[1]))


# Routes ------------------------------------------------------------------------------------------

_READING: Final = (InvalidArgument, InvalidName, UnsupportedServer)
_WRITING: Final = (InvalidArgument, InvalidName, TopicNotFound, UnsupportedServer)


def _reading(kind: Kind, path: str, about: str) -> tuple[Route, ...]:
    return (
        Route(
            method="GET",
            path=f"{path}/bulk",
            summary="Tell what there is to read by columns",
            role=Role.READ,
            about=about,
            handle=partial(strands, kind),
            query=Look,
            answer=Strands,
            errors=(*_READING, TopicNotFound, RingNotFound),
        ),
        Route(
            method="GET",
            path=f"{path}/bulk/places",
            summary="Tell which offsets came at a moment or later",
            role=Role.READ,
            about=about,
            handle=partial(places, kind),
            query=Moment,
            answer=PlacesAt,
            errors=(*_READING, TopicNotFound, RingNotFound),
        ),
        Route(
            method="GET",
            path=f"{path}/bulk/columns",
            summary="Send what lies between two offsets as Arrow; the last batch is empty",
            role=Role.READ,
            about=about,
            handle=partial(columns, kind),
            query=Part,
            gives=(ARROW,),
            errors=(*_READING, TopicNotFound, RingNotFound, OffsetTrimmed, OffsetNotWritten),
        ),
    )


def _writing(kind: WriteKind, path: str, about: str) -> tuple[Route, ...]:
    return (
        Route(
            method="POST",
            path=f"{path}/writes",
            summary="Have writes finished that were left, and tell what is written to",
            role=Role.PRODUCE,
            about=about,
            handle=partial(ready, kind),
            answer=Ready,
            errors=_WRITING,
        ),
        Route(
            method="PUT",
            path=f"{path}/writes/{{write}}/{{segment}}",
            summary="Put a sealed segment aside, whole or part by part, for when its write happens",
            role=Role.PRODUCE,
            about=about,
            handle=partial(put, kind),
            query=Piece,
            takes=SEGMENT,
            has_raw_body=True,
            body_bytes_max=PART_BYTES_MAX,
            errors=_WRITING,
        ),
        Route(
            method="POST",
            path=f"{path}/writes/{{write}}/commit",
            summary="Have a write happen: all that was put aside for it, and once",
            role=Role.PRODUCE,
            about=about,
            handle_async=partial(commit, kind),
            body=Commit,
            answer=Committed,
            errors=(*_WRITING, CorruptSegment, QueueFull, RecordTooLarge),
        ),
        Route(
            method="GET",
            path=f"{path}/writes/{{write}}",
            summary="Tell whether a write has happened",
            role=Role.PRODUCE,
            about=about,
            handle=partial(is_done, kind),
            query=Named,
            answer=IsDone,
            errors=_WRITING,
        ),
        Route(
            method="DELETE",
            path=f"{path}/writes/{{write}}",
            summary="Drop what was put aside for a write that has not happened",
            role=Role.PRODUCE,
            about=about,
            handle=partial(abort, kind),
            errors=_WRITING,
        ),
    )


ROUTES: Final = (
    *_reading("topic", "/topics/{topic}", "topics"),
    *_reading("queue", "/queues/{queue}", "queues"),
    *_reading("dead_letters", "/queues/{queue}/dead-letters", "queues"),
    *_reading("ring", "/rings/{ring}", "rings"),
    Route(
        method="POST",
        path="/topics/{topic}/bulk/behind",
        summary="Tell how much of a topic lies beyond some offsets",
        role=Role.READ,
        about="topics",
        handle=behind,
        body=Beyond,
        answer=Behinds,
        errors=(*_READING, TopicNotFound),
    ),
    *_writing("topic", "/topics/{topic}", "topics"),
    *_writing("queue", "/queues/{queue}", "queues"),
)
