"""The life of a task as one table. Workers live by it, and tests hold them to it."""

from enum import Enum
from typing import Final


class State(Enum):
    """Where a task stands."""

    PENDING = "pending"
    """It waits for a worker."""
    SCHEDULED = "scheduled"
    """It waits for its time."""
    PROCESSING = "processing"
    """A worker is at it."""
    RETRYING = "retrying"
    """It failed, or its worker died, and will be tried again."""
    COMPLETED = "completed"
    DEAD_LETTER = "dead_letter"
    """It failed for good, and is kept."""
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({State.COMPLETED, State.DEAD_LETTER, State.CANCELLED})
"""What nothing follows, but a dead letter that is brought back."""

_P, _S, _W = State.PENDING, State.SCHEDULED, State.PROCESSING
_R, _C, _D, _X = State.RETRYING, State.COMPLETED, State.DEAD_LETTER, State.CANCELLED

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    _S: frozenset({_P, _W, _X, _D}),
    _P: frozenset({_W, _X, _D}),
    _W: frozenset({_C, _R, _D, _X, _P}),
    _R: frozenset({_W, _X, _D}),
    _C: frozenset(),
    _D: frozenset({_R, _W}),
    _X: frozenset(),
}
"""What may follow. From processing back to pending: its worker was told to stop and gave it back.
Dead without a try: its time to live was over, or its worker died too often."""


def may_follow(before: State, after: State) -> bool:
    """Tell whether a task may go from one state to another."""
    return after in TRANSITIONS[before]
