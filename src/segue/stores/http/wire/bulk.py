"""What is read and written in bulk: strands of topics, queues and rings, and writes put aside."""

from segue.stores.http.wire.base import Answer, Wire


class TouchedJson(Answer):
    """Messages that were touched and are not settled, column by column."""

    at: list[int]
    lane: list[int]
    offset: list[int]
    priority: list[int]
    state: list[int]
    attempt: list[int]
    not_before_us: list[int]
    cause: list[str | None]
    reason: list[str | None]


class PortraitJson(Answer):
    """What is to be said of the messages in one log of a queue."""

    lane: int | None
    """None for the log of dead letters."""
    cursor: int
    touched: TouchedJson
    hidden: list[int]
    hidden_state: list[int]
    dead: list[tuple[int, int]]


class StrandJson(Answer):
    """A sequence of offsets that can be read."""

    number: str
    """The partition or the lane; `later` and `dead` are a queue's other logs."""
    first: int
    end: int
    extents: list[tuple[int, int, int]]
    """Where it can be parted well: from, to, and how many bytes lie there."""
    place: int | None = None
    """Where the reader stands that was asked for."""
    portrait: PortraitJson | None = None
    """How its messages stand, where those that are sent do not say it themselves."""


class Strands(Answer):
    """What there is to read, all of one moment."""

    strands: list[StrandJson]


class PlacesAt(Answer):
    """The first offset of each strand at some moment or later."""

    places: dict[str, int]


class BehindJson(Answer):
    """What lies beyond an offset of a partition."""

    partition: int
    offset: int
    records: int
    size_bytes: int
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

    partitions: int
    """0 for a queue."""
    record_bytes_max: int


class IsDone(Answer):
    """Whether a write has happened."""

    is_done: bool
