"""What is read and written in bulk: strands of topics, queues and rings, and writes put aside."""

from typing import Annotated

from msgspec import Meta

from segue.stores.http.wire.base import Answer, Count, Integer, Wire


class TouchedJson(Answer):
    """Messages that were touched and are not settled, column by column."""

    at: list[Integer]
    lane: list[Integer]
    offset: list[Integer]
    priority: list[Integer]
    state: list[Integer]
    attempt: list[Integer]
    not_before_us: list[Integer]
    cause: list[str | None]
    reason: list[str | None]


class PortraitJson(Answer):
    """What is to be said of the messages in one log of a queue."""

    lane: Integer | None
    """None for the log of dead letters."""
    cursor: Integer
    touched: TouchedJson
    hidden: list[Integer]
    hidden_state: list[Integer]
    dead: list[tuple[Integer, Integer]]


class StrandJson(Answer):
    """A sequence of offsets that can be read."""

    number: Annotated[str, Meta(pattern="^([0-9]{1,18}|later|dead)$")]
    """The partition or the lane; `later` and `dead` are a queue's other logs."""
    first: Count
    end: Count
    extents: list[tuple[Count, Count, Count]]
    """Where it can be parted well: from, to, and how many bytes lie there."""
    place: Count | None = None
    """Where the reader stands that was asked for."""
    portrait: PortraitJson | None = None
    """How its messages stand, where those that are sent do not say it themselves."""


class Strands(Answer):
    """What there is to read, all of one moment."""

    strands: list[StrandJson]


class PlacesAt(Answer):
    """The first offset of each strand at some moment or later."""

    places: dict[str, Count]


class BehindJson(Answer):
    """What lies beyond an offset of a partition."""

    partition: Count
    offset: Count
    records: Count
    size_bytes: Count
    seconds: float


class Behinds(Answer):
    """The same of several partitions."""

    partitions: list[BehindJson]


class Beyond(Wire):
    """Offsets, by partition."""

    offsets: dict[int, int]


# Writing ---------------------------------------------------------------------------------------


class StagedJson(Wire):
    """A segment that was sent and waits to be adopted."""

    id: str
    number: int
    """Its partition or lane; -1 for messages that have keys."""
    count: int
    size_bytes: int
    longest_bytes: int = 0


class Commit(Wire):
    """Have a write happen."""

    query: str
    segments: list[StagedJson]
    batch: int | None = None
    is_repeatable: bool = True


class Committed(Answer):
    """Whether it happened now; False if it had before."""

    is_new: bool


class Ready(Answer):
    """What is written to, and how."""

    partitions: Count
    """0 for a queue."""
    record_bytes_max: Count


class IsDone(Answer):
    """Whether a write has happened."""

    is_done: bool
