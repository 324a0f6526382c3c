"""How much a segment on the server takes: as much as a segment of a file by the same rules."""

from functools import lru_cache
from typing import Final

from segue.delivery.topic_rules import TopicRules
from segue.log.layout import (
    BYTES_PER_SLOT_DEFAULT,
    SEGMENT_BYTES_DEFAULT,
    payloads_position,
)
from segue.log.options import microseconds_from
from segue.values import dataclass

ROLL_BYTES_DEFAULT: Final = 1 << 20
"""When a segment is closed if no rule says so: small enough to be rewritten in one call."""
ROLL_BYTES_MAX: Final = 32 << 20
"""What a segment takes at most, whatever the rules say: compaction sends it whole."""
BATCH_BYTES_MAX: Final = 4 << 20
BATCH_RECORDS_MAX: Final = 8192
"""What one call appends at most; whoever reads gets a batch whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the segments of a topic take."""

    items_max: int
    bytes_max: int
    """Of payload."""
    record_bytes_max: int
    """One record may take more than the others of a segment do together."""
    age_us_max: int
    """After how long a segment is closed; 0 is never."""

    def overhead_bytes(self, count: int) -> int:
        """Return what a segment with `count` records counts beside payloads.

        As if it were a file: keeping so many bytes then means the same on every store, and is a
        little more than a segment takes up in the server's memory.
        """
        return payloads_position(max(self.items_max, count))


@lru_cache(maxsize=64)
def room_by(rules: TopicRules) -> Room:
    """Return what segments take by the rules."""
    roll_bytes = min(rules.segment_bytes or ROLL_BYTES_DEFAULT, ROLL_BYTES_MAX)
    items_max = max(1, roll_bytes // BYTES_PER_SLOT_DEFAULT)
    largest = max(roll_bytes, SEGMENT_BYTES_DEFAULT) if rules.segment_bytes is None else roll_bytes
    return Room(
        items_max=items_max,
        bytes_max=roll_bytes - payloads_position(items_max),
        record_bytes_max=largest - payloads_position(max(1, largest // BYTES_PER_SLOT_DEFAULT)),
        age_us_max=microseconds_from(rules.segment_seconds, name="segment_seconds") or 0,
    )
