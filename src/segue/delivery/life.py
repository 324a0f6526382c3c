"""The life of a message as one table. The ledger lives by it, docs/delivery.md shows it."""

from enum import Enum
from typing import Final


class State(Enum):
    """Where a message stands."""

    READY = "ready"
    """It can be leased."""
    DELAYED = "delayed"
    """It can be leased later: it was pushed so, or it failed and waits for its next try."""
    LEASED = "leased"
    """Somebody is at work on it."""
    DEAD = "dead"
    """It is kept, and delivered no more."""
    SETTLED = "settled"
    """It is done with."""


class Happening(Enum):
    """What leads from one state to another."""

    DUE = "due"
    LEASED = "leased"
    POPPED = "popped"
    ACKED = "acked"
    EXTENDED = "extended"
    RELEASED = "released"
    FAILED = "failed"
    EXPIRED = "expired"
    BURIED = "buried"
    OUTLIVED = "outlived"
    DROPPED = "dropped"
    PURGED = "purged"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    LOST = "lost"
    """It cannot be read: damaged, or taken back by a power cut."""


_R, _Y, _L, _D, _S = State.READY, State.DELAYED, State.LEASED, State.DEAD, State.SETTLED

TRANSITIONS: Final[dict[tuple[State, Happening], frozenset[State]]] = {
    (_Y, Happening.DUE): frozenset({_R}),
    (_R, Happening.LEASED): frozenset({_L}),
    (_R, Happening.POPPED): frozenset({_S}),
    (_R, Happening.OUTLIVED): frozenset({_D, _S}),
    (_R, Happening.DROPPED): frozenset({_S}),
    (_R, Happening.PURGED): frozenset({_S}),
    (_Y, Happening.PURGED): frozenset({_S}),
    (_L, Happening.ACKED): frozenset({_S}),
    (_L, Happening.EXTENDED): frozenset({_L}),
    (_L, Happening.RELEASED): frozenset({_R, _Y}),
    (_L, Happening.FAILED): frozenset({_R, _Y, _D}),
    (_L, Happening.EXPIRED): frozenset({_R, _D}),
    (_L, Happening.BURIED): frozenset({_D}),
    (_D, Happening.REDRIVEN): frozenset({_R}),
    (_D, Happening.DISCARDED): frozenset({_S}),
    (_R, Happening.LOST): frozenset({_S}),
    (_L, Happening.LOST): frozenset({_S}),
}
"""What may follow: anything that is not here cannot happen."""
