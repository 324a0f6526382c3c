"""How a task names what it reads on a server."""

from dataclasses import field
from typing import Literal

from segue.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSource:
    """A partition of a topic, a lane of a queue, its dead letters, or a ring, on a server."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    """What a Segue server lets us in by."""
    kind: Literal["topic", "queue", "dead_letters", "ring"]
    name: str
    number: int
    """The partition, or the lane."""
