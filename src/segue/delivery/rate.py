"""How many messages may be delivered now, by a rate: one number is all that is remembered.

That number is when the next message would be due if all came at their time. Who delivers moves it
on by an interval for each message; it may be ahead of now by as many intervals as the burst allows.
Times are nanoseconds since the machine started.
"""

from typing import Final

from segue.values import dataclass

SECOND_NS: Final = 1_000_000_000
RATE_MIN: Final = 1 / (7 * 86_400)
"""One a week."""
RATE_MAX: Final = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many messages a second, and so many of them at once after a rest."""

    per_second: float
    burst: int

    @property
    def interval_ns(self) -> int:
        """How far apart messages come when they come one by one."""
        return max(1, round(SECOND_NS / self.per_second))

    def allowed(self, *, due_ns: int, now_ns: int) -> int:
        """Return how many may be delivered now."""
        latest_ns = now_ns + (self.burst - 1) * self.interval_ns
        return max(0, (latest_ns - self._due_ns(due_ns, now_ns)) // self.interval_ns + 1)

    def after(self, count: int, *, due_ns: int, now_ns: int) -> int:
        """Return what is to be remembered once `count` were delivered."""
        return self._due_ns(due_ns, now_ns) + count * self.interval_ns

    def wait_ns(self, *, due_ns: int, now_ns: int) -> int:
        """Return how long it takes until one more may be delivered; 0 if it may be now."""
        latest_ns = now_ns + (self.burst - 1) * self.interval_ns
        return max(0, self._due_ns(due_ns, now_ns) - latest_ns)

    def _due_ns(self, due_ns: int, now_ns: int) -> int:
        """Return when the next is due; what nobody can have meant counts as now."""
        if not now_ns < due_ns <= now_ns + self.burst * self.interval_ns:
            return now_ns
        return due_ns
