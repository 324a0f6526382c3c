"""Which segments may go. Pure rules: takes what is there and a time, returns ids.

Without limits the rule is: whatever every reader has left behind, and nothing while there is no
reader. The limits are asked for explicitly, apply to readers as well, and whoever falls behind
them is told by OffsetTrimmed.
"""

from collections.abc import Sequence

from segue.errors import InvalidArgument
from segue.log.layout import Offset, SegmentId
from segue.log.positions import SavedPosition
from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Caps that delete what readers may still want. None: no such cap."""

    age_us_max: int | None = None
    """Segments whose last record is older than this go."""
    bytes_max: int | None = None
    """The oldest segments go until the log takes up no more than this."""
    lag_max: int | None = None
    """A reader further behind than this holds back no more than this many records."""

    def __post_init__(self) -> None:
        for name in ("age_us_max", "bytes_max", "lag_max"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidArgument(f"{name} must not be negative: {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What retention needs to know of a segment that is not the active one."""

    id: SegmentId
    end_offset: Offset
    """The offset after its last record."""
    size_bytes: int
    last_time_us: int


def segments_to_delete(
    segments: Sequence[SegmentFacts],
    readers: Sequence[SavedPosition],
    limits: RetentionLimits,
    *,
    active_bytes: int,
    next_offset: Offset,
    now_us: int,
) -> list[SegmentId]:
    """Return the ids that may go: the oldest ones, without a gap. `segments` is in order."""
    count = min(
        (_passed_by(reader, segments, limits, next_offset) for reader in readers), default=0
    )
    if limits.age_us_max is not None:
        while count < len(segments) and now_us - segments[count].last_time_us > limits.age_us_max:
            count += 1
    if limits.bytes_max is not None:
        held = active_bytes + sum(segment.size_bytes for segment in segments[count:])
        while count < len(segments) and held > limits.bytes_max:
            held -= segments[count].size_bytes
            count += 1
    return [segment.id for segment in segments[:count]]


def _passed_by(
    reader: SavedPosition,
    segments: Sequence[SegmentFacts],
    limits: RetentionLimits,
    next_offset: Offset,
) -> int:
    """Count the segments a reader has left behind, or would have if it kept to the lag cap."""
    return sum(1 for segment in segments if has_left(reader, segment, limits, next_offset))


def has_left(
    reader: SavedPosition, segment: SegmentFacts, limits: RetentionLimits, next_offset: Offset
) -> bool:
    """Tell whether a reader has left a segment behind, or would have if it kept to the lag cap."""
    if limits.lag_max is not None and next_offset - reader.offset > limits.lag_max:
        return segment.end_offset <= next_offset - limits.lag_max
    return _is_behind(segment, reader)


def _is_behind(segment: SegmentFacts, reader: SavedPosition) -> bool:
    """Tell whether a reader has left a segment: it is in a later one, or at its very end."""
    if segment.id == reader.segment:
        return segment.end_offset == reader.offset
    return segment.id < reader.segment
