"""Reading topics without a name: what there is, page by page or as one stream, and what comes."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, cast

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
from segue.server.arrow import pieces_of, require_arrow, table_reply
from segue.server.asgi import Gone
from segue.server.call import Call
from segue.server.holding import held_for, hold
from segue.server.reading import PAGE_BYTES_MAX, Reading
from segue.server.refusal import Refused
from segue.server.routes.topics import TOPIC, topic_of
from segue.server.routing import EVENT_STREAM, LiveStream, Reply, Role, Route, Stream
from segue.server.streams import NDJSON, lines_of
from segue.stores.http.problems import problem_of
from segue.stores.http.wire.numbers import whole_number
from segue.stores.http.wire.starts import (
    Limit,
    StartJson,
    start_in_words,
    start_without_resume,
    words_of_places,
)
from segue.stores.http.wire.topics import (
    ARROW,
    PAGE_RECORDS_MAX,
    Bounds,
    Follow,
    Followed,
    Opened,
    Page,
    Read,
    Span,
    record_json,
)
from segue.stores.topic_contract import Start, Topic

if TYPE_CHECKING:
    import pyarrow as pa

READING_SECONDS: Final = 300.0
"""How long a place in what is read is held for who does not ask for more."""
PAGE_RECORDS_FIRST: Final = 2
FOLLOW_RECORDS: Final = 1024
BEAT_SECONDS: Final = 15.0
"""How often a stream on which nothing happens shows that it is alive."""
PLACES_PER_EVENT_MAX: Final = 64
"""With more partitions than this only the last of several events at once says where it is."""

_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to read: starts as `earliest`, `17`, `0:17,1:3` or `time_us:…`, partitions as `0,2`."""

    start: str | None = None
    stop: str | None = None
    partitions: str | None = None
    max_records: Limit | None = None
    max_bytes: Limit | None = None


class Next(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page is asked for, and how much may be on it."""

    number: Limit
    count: Limit = PAGE_RECORDS_MAX


# From where to where -------------------------------------------------------------------------


def span_of(topic: Topic, start: Start, stop: Start | None, partitions: list[int] | None) -> Span:
    """Return what bounds stand for now: nothing if the topic is not there."""
    stops = topic.offsets("latest" if stop is None else stop, partitions=partitions)
    if isinstance(stop, Mapping) and not stops.keys() <= stop.keys():
        ends = topic.offsets("latest", partitions=partitions)
        stops = {each: stops[each] if each in stop else end for each, end in ends.items()}
    starts = topic.offsets(start, partitions=partitions)
    # Only what was there at first: partitions may be added while we look.
    return Span(start={each: starts[each] for each in stops}, stop=dict(stops))


def _start(said: StartJson | None) -> Start | None:
    return None if said is None else start_without_resume(said)


def bounds(call: Call) -> Span:
    """Tell what bounds stand for in each partition."""
    body, topic = call.body(Bounds), topic_of(call)
    if body.is_required:
        _require(call, topic)
    return span_of(topic, start_without_resume(body.start), _start(body.stop), body.partitions)


def _require(call: Call, topic: Topic) -> None:
    if topic.name not in call.store.topics():
        raise TopicNotFound(name=call.names[0])


# Page by page ----------------------------------------------------------------------------------


def open_reading(call: Call) -> Opened:
    """Begin to read: the first records, and under which session there are more."""
    body, topic = call.body(Read), topic_of(call)
    start = start_without_resume(body.start)
    read = topic.records
    if body.as_tables:
        require_arrow()
        read = cast("Callable[..., Iterator[TopicRecord]]", topic.tables)
    found = read(
        start,
        partitions=body.partitions,
        stop=_start(body.stop),
        max_records=body.max_records,
        max_bytes=body.max_bytes,
    )
    reading = Reading(call.names[0], found)
    page = Page(records=[], is_last=False)
    try:
        if not body.as_tables:
            page = reading.page(1, PAGE_RECORDS_FIRST)
    except BaseException:
        reading.close()
        raise
    if page.is_last or len(page.records) == body.max_records:
        reading.close()
        return Opened(session=None, records=page.records)
    return Opened(session=hold(call, reading, READING_SECONDS), records=page.records)


def next_page(call: Call) -> Page:
    """Tell more records."""
    asked = call.query(Next)
    return held_for(call, Reading).page(asked.number, min(asked.count, PAGE_RECORDS_MAX))


def next_table(call: Call) -> Reply | None:
    """Tell more records, as a table."""
    table = held_for(call, Reading).table(call.query(Next).number)
    return None if table is None else table_reply(table)


def end_reading(call: Call) -> None:
    """Let go of a place in what was read."""
    holding.end(call, Reading)


# What comes --------------------------------------------------------------------------------------


def came(
    topic: Topic, position: Mapping[int, int], partitions: list[int] | None
) -> tuple[list[TopicRecord], dict[int, int]]:
    """Return what lies behind some places, and the places behind that."""
    after = dict(position)
    records: list[TopicRecord] = []
    size_bytes = 0
    following = topic.follow(after, partitions=partitions, timeout=0)
    try:
        for record in islice(following, FOLLOW_RECORDS):
            records.append(record)
            after[record.partition] = record.offset + 1
            size_bytes += len(record.key or b"") + len(record.value or b"")
            if size_bytes >= PAGE_BYTES_MAX:
                break
    except SegueError:
        if not records:
            raise  # Else the next look tells it: what came before it is not lost.
    finally:
        getattr(following, "close", lambda: None)()
    return records, after


def _is_nothing(found: tuple[list[TopicRecord], dict[int, int]]) -> bool:
    return not found[0]


async def follow(call: Call) -> Followed:
    """Tell what comes from some places on, waiting for it."""
    body = call.body(Follow)
    look = partial(came, topic_of(call), body.position, body.partitions)
    records, after = await call.desk.waiting.ask_again(call, look, body.wait, _is_nothing)
    return Followed(records=[record_json(record) for record in records], position=after)


async def _live(call: Call, start: Start, partitions: list[int] | None) -> LiveStream:
    topic = topic_of(call)

    def begin() -> dict[int, int]:
        _require(call, topic)
        return span_of(topic, start, None, partitions).start

    position = await call.in_thread(begin)
    return LiveStream(media_type=EVENT_STREAM, pieces=_events(call, topic, position, partitions))


async def _events(
    call: Call, topic: Topic, position: dict[int, int], partitions: list[int] | None
) -> AsyncIterator[bytes]:
    """Yield what comes, as Server-Sent Events whose ids are places to go on from."""
    # An id of its own: who is cut off before the first event goes on from here.
    yield b"id: %b\n\n" % words_of_places(position).encode()
    waiting = call.desk.waiting
    while not call.is_gone() and not waiting.is_closed:
        look = partial(came, topic, position, partitions)
        try:
            records, after = await waiting.ask_again(call, look, BEAT_SECONDS, _is_nothing)
        except (Gone, Refused):  # Who has left, or is let in no more, is told nothing more.
            return
        except SegueError as error:
            yield b"event: problem\ndata: %b\n\n" % problem_of(error).to_json()
            return
        yield _as_events(records, position) if records else b": alive\n\n"
        position = after


def _as_events(records: list[TopicRecord], position: dict[int, int]) -> bytes:
    pieces = []
    places = dict(position)
    for number, record in enumerate(records, start=1):
        places[record.partition] = record.offset + 1
        if len(places) <= PLACES_PER_EVENT_MAX or number == len(records):
            pieces.append(b"id: %b\n" % words_of_places(places).encode())
        pieces.append(b"data: %b\n\n" % _encode(record_json(record)))
    return b"".join(pieces)


# As one stream -----------------------------------------------------------------------------------


async def read(call: Call) -> Stream | LiveStream:
    """Tell what there is as lines or as Arrow, or what comes as events: as `Accept` says."""
    asked = call.query(Asked)
    accept = call.headers.get(b"accept", b"").decode("latin-1")
    partitions = None if asked.partitions is None else _numbers(asked.partitions)
    start = start_without_resume(start_in_words(asked.start or "earliest"))
    if EVENT_STREAM in accept:
        said = call.headers.get(b"last-event-id", b"").decode("latin-1") or asked.start or "latest"
        return await _live(call, start_without_resume(start_in_words(said)), partitions)
    stop = None if asked.stop is None else start_without_resume(start_in_words(asked.stop))
    topic = topic_of(call)
    if ARROW in accept:
        await call.in_thread(require_arrow)
        found = cast("Callable[..., Iterator[pa.Table]]", topic.tables)
        return Stream(media_type=ARROW, pieces=pieces_of(await _begun(call, found, start, stop)))
    lines = lines_of(map(record_json, await _begun(call, topic.records, start, stop)))
    return Stream(media_type=NDJSON, pieces=lines)


async def _begun(
    call: Call, begin: "Callable[..., Iterator[T]]", start: Start, stop: Start | None
) -> "Iterator[T]":
    asked = call.query(Asked)
    partitions = None if asked.partitions is None else _numbers(asked.partitions)
    return await call.in_thread(
        partial(
            begin,
            start,
            partitions=partitions,
            stop=stop,
            max_records=asked.max_records,
            max_bytes=asked.max_bytes,
        )
    )


def _numbers(text: str) -> list[int]:
    return [whole_number(word, what="a partition") for word in text.split(",") if word]


_BEGINNING: Final = (InvalidArgument, InvalidName, OffsetNotWritten, OffsetTrimmed)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{TOPIC}/records",
        summary="Tell what there is as lines or as Arrow, or what comes as events",
        role=Role.READ,
        about="topics",
        handle_async=read,
        query=Asked,
        gives=(NDJSON, ARROW, EVENT_STREAM),
        errors=(*_BEGINNING, TopicNotFound),
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/bounds",
        summary="Tell which offsets a start and a stop stand for",
        role=Role.READ,
        about="topics",
        handle=bounds,
        body=Bounds,
        answer=Span,
        errors=(*_BEGINNING, TopicNotFound),
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/follow",
        summary="Tell what comes from some places on, waiting for it",
        role=Role.READ,
        about="topics",
        handle_async=follow,
        body=Follow,
        answer=Followed,
        errors=(*_BEGINNING, TopicNotFound),
    ),
    Route(
        method="POST",
        path=f"{TOPIC}/reads",
        summary="Begin to read page by page",
        role=Role.READ,
        about="topics",
        handle=open_reading,
        body=Read,
        answer=Opened,
        errors=_BEGINNING,
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/reads/{{session}}",
        summary="Tell the next page of what is read, or the last one again",
        role=Role.READ,
        about="topics",
        handle=next_page,
        query=Next,
        answer=Page,
        errors=(*_BEGINNING, SessionGone),
    ),
    Route(
        method="GET",
        path=f"{TOPIC}/reads/{{session}}/table",
        summary="Tell the next page of what is read as a table; 204 if there is none",
        role=Role.READ,
        about="topics",
        handle=next_table,
        query=Next,
        gives=(ARROW,),
        errors=(*_BEGINNING, SessionGone),
        statuses=(204,),
    ),
    Route(
        method="DELETE",
        path=f"{TOPIC}/reads/{{session}}",
        summary="Let go of a place in what was read",
        role=Role.READ,
        about="topics",
        handle=end_reading,
        errors=(InvalidName,),
    ),
)
