"""What every queue is allowed, as it is answered."""

from segue.stores.http.wire.base import Answer, Count
from segue.stores.http.wire.rules import QueueRulesJson


class LimitsRow(Answer):
    """One queue: its rules, and how much of them is used up."""

    name: str
    rules: QueueRulesJson
    paused: bool = False
    leased: Count = 0
    capacity_used: float | None = None
    """From 0 to 1 and beyond; None if the queue takes any number."""
    problem: str = ""


class LimitsRows(Answer):
    """Queues by name."""

    queues: list[LimitsRow]
    next: str | None
    """The `after` of the next page; None if there is none. A page may have fewer than asked for."""
