"""Named readers of topics: where they stand, and reading on from there."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from segue.delivery.topic_record import TopicRecord
from segue.errors import (
    InvalidArgument,
    InvalidName,
    OffsetNotWritten,
    OffsetTrimmed,
    SegueError,
    SessionGone,
    TopicNotFound,
)
from segue.server import holding
from segue.server.arrow import require_arrow, table_reply
from segue.server.call import Call
from segue.server.holding import Held, held_for, hold
from segue.server.routes.topics import ASKING, TOPIC, topic_of
from segue.server.routing import Reply, Role, Route
from segue.stores.http.wire.queues import Removed
from segue.stores.http.wire.starts import start_from
from segue.stores.http.wire.topic_reports import LagJson, Lags, Readers
from segue.stores.http.wire.topics import (
    ARROW,
    Offsets,
    OpenReader,
    Poll,
    Polled,
    Position,
    ReaderSession,
    Seek,
    record_json,
)
from segue.stores.topic_contract import TopicReader

if TYPE_CHECKING:
    import pyarrow as pa

READER_SECONDS: Final = 300.0
"""How long a reader is held for whoever does not call."""
POLL_BYTES_MAX: Final = 16 << 20
"""How much one poll returns at most, but for one record that is larger."""

encode = msgspec.json.Encoder().encode


def bytes_max(asked: int | None) -> int:
    """Return how many bytes a poll may return."""
    return POLL_BYTES_MAX if asked is None else min(asked, POLL_BYTES_MAX)


class HeldReader(Held):
    """A reader that is open."""

    kind = "reader"

    def __init__(self, reader: TopicReader) -> None:
        super().__init__(reader.name, reader.close)
        self.reader = reader

    def poll(self, asked: Poll) -> Polled:
        """Return the next records, without waiting for any."""
        with self.turn():
            self._move(asked)
            records = self.reader.poll(asked.max_records, max_bytes=bytes_max(asked.max_bytes))
            return self._polled(records)

    def poll_table(self, asked: Poll) -> "tuple[pa.Table, Polled]":
        """Return the next records as a table, without waiting for any."""
        with self.turn():
            self._move(asked)
            table = self.reader.poll_table(asked.max_records, max_bytes=bytes_max(asked.max_bytes))
            return table, self._polled([])

    def _polled(self, records: list[TopicRecord]) -> Polled:
        return Polled(
            position=dict(self.reader.position), records=[record_json(each) for each in records]
        )

    def _move(self, asked: Poll) -> None:
        """Go on where the client is, once for each request."""
        moves, asked.moves = asked.moves, None
        if moves:
            move(self.reader, moves)


def move(reader: TopicReader, moves: Mapping[int, int]) -> None:
    """Go to places, in all partitions where that can be; then raise what kept the first other."""
    failure: SegueError | None = None
    for partition, offset in moves.items():
        try:
            reader.seek({partition: offset})
        except (OffsetTrimmed, OffsetNotWritten) as error:
            failure = failure or error
    if failure is not None:
        raise failure


# Knowing and forgetting them -----------------------------------------------------------------


def readers(call: Call) -> Readers:
    """List readers, and how far each is behind."""
    found = topic_of(call).readers()
    return Readers(
        readers={name: [LagJson.of(each) for each in lags] for name, lags in found.items()}
    )


def remove(call: Call) -> Removed:
    """Forget a reader."""
    return Removed(removed=topic_of(call).remove_reader(call.names[1]))


# Reading on ------------------------------------------------------------------------------------


def open_(call: Call) -> ReaderSession:
    """Open a reader."""
    body = call.body(OpenReader)
    reader = topic_of(call).reader(
        call.names[1], start_from(body.start), partitions=body.partitions
    )
    position = dict(reader.position)
    return ReaderSession(session=hold(call, HeldReader(reader), READER_SECONDS), position=position)


async def poll(call: Call) -> Polled | Reply:
    """Tell the next records, waiting for one."""
    asked = call.body(Poll)
    held = await call.in_thread(partial(held_for, call, HeldReader))
    waiting = call.desk.waiting
    if ARROW in call.headers.get(b"accept", b"").decode("latin-1"):
        await call.in_thread(require_arrow)
        table, state = await waiting.ask_again(
            call, partial(held.poll_table, asked), asked.wait, lambda found: not len(found[0])
        )
        return table_reply(table, encode(state))
    return await waiting.ask_again(
        call, partial(held.poll, asked), asked.wait, lambda polled: not polled.records
    )


def seek(call: Call) -> Position:
    """Go to another place."""
    held = held_for(call, HeldReader)
    with held.turn():
        held.reader.seek(start_from(call.body(Seek).start))
        return Position(position=dict(held.reader.position))


def commit(call: Call) -> None:
    """Save places to resume from."""
    held = held_for(call, HeldReader)
    with held.turn():
        held.reader.commit(call.body(Offsets).offsets)


def lag(call: Call) -> Lags:
    """Tell how far a reader is behind."""
    held = held_for(call, HeldReader)
    with held.turn():
        return Lags(lag=[LagJson.of(each) for each in held.reader.lag()])


def close(call: Call) -> None:
    """Close a reader, without committing."""
    holding.end(call, HeldReader)


_READERS: Final = f"{TOPIC}/readers"
_SESSIONS: Final = f"{_READERS}/{{reader}}/sessions"
_SESSION: Final = f"{_SESSIONS}/{{session}}"
_READING: Final = (InvalidArgument, InvalidName, SessionGone, OffsetNotWritten, OffsetTrimmed)

ROUTES: Final = (
    Route(
        method="GET",
        path=_READERS,
        summary="List the readers there are, and how far each is behind",
        role=Role.READ,
        about="readers",
        handle=readers,
        answer=Readers,
        errors=ASKING,
    ),
    Route(
        method="DELETE",
        path=f"{_READERS}/{{reader}}",
        summary="Forget a reader, so that it holds nothing back",
        role=Role.ADMIN,
        about="readers",
        handle=remove,
        answer=Removed,
        errors=ASKING,
    ),
    Route(
        method="POST",
        path=_SESSIONS,
        summary="Open a reader, registering it",
        role=Role.CONSUME,
        about="readers",
        handle=open_,
        body=OpenReader,
        answer=ReaderSession,
        errors=(*ASKING, TopicNotFound, OffsetNotWritten, OffsetTrimmed),
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/poll",
        summary="Tell the next records, waiting for one; as a table if that is accepted",
        role=Role.CONSUME,
        about="readers",
        handle_async=poll,
        body=Poll,
        answer=Polled,
        gives=(ARROW,),
        errors=_READING,
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/seek",
        summary="Go to another place",
        role=Role.CONSUME,
        about="readers",
        handle=seek,
        body=Seek,
        answer=Position,
        errors=_READING,
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/commit",
        summary="Save places to resume from",
        role=Role.CONSUME,
        about="readers",
        handle=commit,
        body=Offsets,
        errors=_READING,
    ),
    Route(
        method="GET",
        path=f"{_SESSION}/lag",
        summary="Tell how far a reader is behind, by what it committed",
        role=Role.CONSUME,
        about="readers",
        handle=lag,
        answer=Lags,
        errors=(*ASKING, SessionGone),
    ),
    Route(
        method="DELETE",
        path=_SESSION,
        summary="Close a reader, without committing",
        role=Role.CONSUME,
        about="readers",
        handle=close,
        errors=ASKING,
    ),
)
