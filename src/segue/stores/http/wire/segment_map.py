"""Which segments hold what, as it is answered."""

from typing import Literal

from segue.stores.http.wire.base import Answer, Count, Integer

State = Literal["active", "sealed", "quarantined", "unreadable"]


class SegmentJson(Answer):
    """One segment, by its header alone."""

    id: Count
    state: State
    is_pinned: bool
    pinned_by: str
    """What keeps it, in words."""
    first_offset: Count | None
    """None if the header cannot be read."""
    count: Count
    size_bytes: Count
    created_us: Integer | None
    last_us: Integer | None
    """When its last record was appended; None if it has none, or cannot be read."""


class LogJson(Answer):
    """One log and its segments, oldest first."""

    name: str
    first_offset: Count
    next_offset: Count
    size_bytes: Count
    segments: list[SegmentJson]
    more: Count
    """How many older segments there are."""


class SegmentMapJson(Answer):
    """The logs of a queue, topic or ring."""

    is_known: bool
    """Whether the store is a directory, and so has segments to tell of."""
    logs: list[LogJson]
    more_logs: Count = 0
    """How many lanes or partitions are left out."""
