"""How much comes and goes: what two looks at a queue tell. Pure: no clock, no store.

Nobody counts what is pushed. But what came is what is still held and what is gone, and both are
counted: so it is a number that only grows, as those of what went out and what failed are.
"""

from collections.abc import Iterable
from typing import Final

from segue.stores.contract import QueueStats
from segue.values import dataclass

OUT: Final = ("acked", "popped")
"""Totals of what was done with, as it was meant to be."""
GONE: Final = (*OUT, "purged", "discarded", "outlived", "dropped", "lost", "damaged")
"""Totals of what a queue no longer holds, by how that came."""
FAILED: Final = ("failed", "expired", "buried")
"""Totals of deliveries that came to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A queue at one moment."""

    ready: int
    delayed: int
    leased: int
    dead: int
    came: int
    """How many messages ever came, as far as the queue knows."""
    went: int
    """How many went out as they were meant to."""
    failed: int
    """How often a delivery came to nothing."""
    size_bytes: int
    oldest_seconds: float | None = None
    """How long the message that would be leased next has waited."""
    is_paused: bool = False

    @property
    def numbers(self) -> tuple[int, int, int, int, int, int, int, int]:
        """All that changes only when something happens."""
        counts = self.ready, self.delayed, self.leased, self.dead
        return (*counts, self.came, self.went, self.failed, self.size_bytes)


def standing_of(stats: QueueStats) -> Standing:
    """Return what counts of a queue's stats."""
    counts = stats.counts
    held = counts.ready + counts.delayed + counts.leased + counts.dead
    return Standing(
        ready=counts.ready,
        delayed=counts.delayed,
        leased=counts.leased,
        dead=counts.dead,
        came=held + _total(stats, GONE),
        went=_total(stats, OUT),
        failed=_total(stats, FAILED),
        size_bytes=stats.size_bytes,
        oldest_seconds=stats.oldest_ready_seconds,
        is_paused=stats.paused,
    )


def _total(stats: QueueStats, names: Iterable[str]) -> int:
    return sum(stats.totals.get(name, 0) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What happened between two looks, never less than nothing.

    Numbers go back where a queue was removed and made anew, and then say nothing.
    """

    came: int
    went: int
    failed: int

    @classmethod
    def between(cls, before: Standing, now: Standing) -> "Flow":
        """Return what happened to a queue from one moment to another."""
        return cls(
            came=max(0, now.came - before.came),
            went=max(0, now.went - before.went),
            failed=max(0, now.failed - before.failed),
        )


def per_second(count: int, seconds: float) -> float:
    """Return a rate as it is told."""
    return round(count / seconds, 3)
