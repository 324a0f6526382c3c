"""Waiting for something to happen on the server, without asking again and again."""

import secrets
import time
from typing import Final

from segue.log.options import Duration
from segue.stores.arguments import duration_us
from segue.stores.redis.calls import Calls

LOOK_SECONDS: Final = 1.0
"""How long a waiter blocks at most before it looks for itself: who should wake it may be gone."""
MANUAL_LOOK_SECONDS: Final = 0.02
"""The same where time is what a test says it is, and nobody knows how soon that will be."""
WAITER_BYTES: Final = 8


class Patience:
    """How long a call may still block, and the name under which the server wakes it."""

    def __init__(
        self, calls: Calls, base: str, wait: Duration | None, *, name: str = "wait"
    ) -> None:
        wait_us = duration_us(wait, name=name)
        self._calls = calls
        self._base = base
        self._deadline = None if wait_us is None else time.monotonic() + wait_us / 1_000_000
        self.waiter = "" if wait_us == 0 else secrets.token_hex(WAITER_BYTES)
        """Empty for a call that does not wait."""

    @property
    def is_over(self) -> bool:
        """Whether it is time to come back with nothing."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    @property
    def step_us(self) -> int:
        """How long the next wait lasts at most: until then the server keeps us on its list."""
        return round(self._step() * 1_000_000)

    def _step(self) -> float:
        longest = MANUAL_LOOK_SECONDS if self._calls.has_manual_clock else LOOK_SECONDS
        if self._deadline is None:
            return longest
        return max(0.0, min(longest, self._deadline - time.monotonic()))

    def wait(self, most_seconds: float | None = None) -> None:
        """Block until the server wakes us, or for as long as may be."""
        step = self._step()
        if most_seconds is not None:
            step = min(step, max(0.0, most_seconds))
        # A timeout of zero would block for ever.
        timeout = max(0.001, step)
        key = f"{self._base}:wake_{self.waiter}"
        self._calls.wait(key, "BLPOP", key, f"{timeout:.3f}", timeout=timeout)


def seconds_of(wait_us: int) -> float | None:
    """Return in how many seconds something may happen, None if nothing will by itself."""
    return None if wait_us < 0 else wait_us / 1_000_000
