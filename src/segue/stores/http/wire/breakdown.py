"""What a queue is made of, as it is answered."""

from segue.stores.http.wire.base import Answer, Count


class KeyShare(Answer):
    """Messages with one key."""

    key: str
    """Their group, or else what they are deduplicated by."""
    count: Count
    share: float
    """Of all that waits."""


class TaskShare(Answer):
    """Messages that are calls of one task."""

    task: str
    count: Count
    share: float


class CauseCount(Answer):
    """Dead letters that died of one cause."""

    cause: str
    count: Count


class ReturnedCount(Answer):
    """Messages that wait again, and came back for the same reason."""

    reason: str
    """What their reasons have in common; "(no reason)" if none was given."""
    count: Count


class Breakdown(Answer):
    """What waits in a queue, ready or delayed, judged by some of it."""

    sampled: Count
    """How many messages were looked at."""
    of: Count
    """How many there are."""
    is_exact: bool
    """Whether those are all; else counts are estimated."""
    keys: list[KeyShare]
    tasks: list[TaskShare]
    causes: list[CauseCount]
    """Dead letters, as far as they are counted."""
    returned: list[ReturnedCount]
