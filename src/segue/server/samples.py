"""What is recorded of a store every few seconds: a record of the topic `segue.history` each.

A sample has only the queues that changed since the one before; a whole one has all, so that reading
may begin there. Anybody may append to a topic: what is no sample is passed over.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from segue.delivery.topic_record import MOMENT_US_MAX
from segue.delivery.topic_rules import TopicRules
from segue.log.layout import NAME_CHARACTERS_MAX
from segue.server.flow import Standing

HISTORY_TOPIC: Final = "segue.history"
KEEP_SECONDS: Final = 8 * 86_400.0
KEEP_BYTES: Final = 256 << 20
SEGMENT_SECONDS: Final = 86_400.0
SEGMENT_BYTES: Final = 4 << 20
RULES: Final = TopicRules(
    keep_seconds=KEEP_SECONDS,
    keep_bytes=KEEP_BYTES,
    segment_seconds=SEGMENT_SECONDS,
    segment_bytes=SEGMENT_BYTES,
)
SAMPLE_BYTES_MAX: Final = 1 << 20
"""What a sample takes up at most: longer records are none."""
QUEUES_SAMPLED_MAX: Final = 2_500
"""How many queues a sample has, or says to be gone: some more than are ever looked at."""
COUNT_MAX: Final = (1 << 53) - 1
"""Beyond that a number is not exact for everybody who reads JSON."""
AMOUNT_MAX: Final = 1e12

_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Moment = Annotated[int, Meta(ge=0, le=MOMENT_US_MAX)]
_Amount = Annotated[float, Meta(ge=0, le=AMOUNT_MAX)]
_Name = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]


class QueueSample(msgspec.Struct, array_like=True, frozen=True):
    """A queue at one moment, as a list."""

    ready: _Count
    delayed: _Count
    leased: _Count
    dead: _Count
    came: _Count
    """How many messages ever came, went out and failed: these numbers grow."""
    went: _Count
    failed: _Count
    size_bytes: _Count
    oldest_seconds: _Amount | None = None

    @classmethod
    def of(cls, standing: Standing) -> "QueueSample":
        """Return what is recorded of a queue."""
        oldest = standing.oldest_seconds
        return cls(*standing.numbers, None if oldest is None else round(oldest, 3))

    def is_like(self, other: "QueueSample | None") -> bool:
        """Tell whether nothing happened in between: that what is oldest gets older is nothing."""
        return other is not None and (
            self.came == other.came
            and self.went == other.went
            and self.failed == other.failed
            and self.ready == other.ready
            and self.delayed == other.delayed
            and self.leased == other.leased
            and self.dead == other.dead
            and self.size_bytes == other.size_bytes
        )


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The store at one moment."""

    is_whole: bool = False
    """Whether all queues are in it. The first field, so that it can be told from the first bytes.
    """
    at_us: _Moment
    since_us: _Moment | None = None
    """Until when the sample before it still held: what is told here happened after that. None if
    that is not known, as at the start of a server."""
    queues: Annotated[dict[_Name, QueueSample], Meta(max_length=QUEUES_SAMPLED_MAX)] = {}
    """Those that changed, or all of them."""
    gone: Annotated[list[_Name], Meta(max_length=QUEUES_SAMPLED_MAX)] = []
    """Queues that are not there any more."""
    wait_ms: tuple[_Amount, _Amount] | None = None
    """How long tasks that ended since had waited, by the median and the 99th percentile."""
    run_ms: tuple[_Amount, _Amount] | None = None
    """How long they ran."""
    syncs_per_second: _Amount | None = None
    free_bytes: _Count | None = None

    @property
    def has_news(self) -> bool:
        """Whether anything happened that is worth recording."""
        return bool(self.queues or self.gone)


_WHOLE: Final = b'{"is_whole":true'

encoded = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Sample).decode


def is_whole(value: bytes) -> bool:
    """Tell whether a record is a whole sample, without reading it."""
    return value.startswith(_WHOLE)


def sample_of(value: bytes | None) -> Sample | None:
    """Return the sample that a record is; None if it is something else."""
    if value is None or len(value) > SAMPLE_BYTES_MAX:
        return None
    try:
        return _decode(value)
    except (ValueError, RecursionError):
        return None
