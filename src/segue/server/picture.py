"""What is seen of a store at one look: of each queue, of its workers and of its disk. Pure."""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from segue.server.flow import Flow, Standing
from segue.server.task_flow import Crew
from segue.values import dataclass

NOT_YET: Final = "not looked at yet"
"""The problem of a queue that nobody has looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A queue as it was last seen."""

    name: str
    standing: Standing | None = None
    flow: Flow | None = None
    """What happened between the last two looks at it; None until there are two."""
    flow_seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Of the device that a directory is on."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The whole store as it was last seen."""

    number: int = 0
    """Grows with every look."""
    at_us: int
    """When the last look was finished; of what is known before the first one is, when it was told.
    """
    rows: tuple[Row, ...] = ()
    """By name. Some may be of a look that is under way."""
    others: tuple[str, ...] = ()
    """Queues that are not looked at: there are too many."""
    is_whole: bool = False
    """Whether every queue was looked at, or cannot be."""
    crew: Crew | None = None
    """None where the extra `tasks` is not installed."""
    disk: DiskSpace | None = None
    """None unless the store is a directory."""
    topic_bytes: Mapping[str, int] = field(default_factory=dict)
    """What topics take up on that disk."""
    syncs: int | None = None
    """How often the store synced since the server started, where that is counted."""
    syncs_per_second: float | None = None
