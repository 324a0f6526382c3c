"""How long a call may still wait, in steps that one request may take."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from segue.errors import ConnectionsBusy
from segue.log.options import Duration
from segue.stores.arguments import duration_us

STEP_SECONDS: Final = 20.0
"""How long one request waits: what stands between us and the server may cut longer silences off."""
BUSY_SECONDS: Final = 0.1
"""How often who finds no connection to wait on looks without waiting."""

A = TypeVar("A")


class Patience:
    """How long to wait, from now on."""

    def __init__(self, wait: Duration | None, *, name: str = "wait") -> None:
        wait_us = duration_us(wait, name=name)
        self._deadline = None if wait_us is None else time.monotonic() + wait_us / 1_000_000

    @property
    def step(self) -> float:
        """How long the next request may wait."""
        if self._deadline is None:
            return STEP_SECONDS
        return max(0.0, min(STEP_SECONDS, self._deadline - time.monotonic()))

    @property
    def is_over(self) -> bool:
        """Whether it is time to come back with nothing."""
        return self._deadline is not None and time.monotonic() >= self._deadline


def waited(patience: Patience, ask: Callable[[float], A]) -> A:
    """Return what is answered to who waits; who got no connection to wait on looks now.

    All the others who wait may have theirs for as long as they wait.
    """
    step = patience.step
    begun = time.monotonic()
    try:
        return ask(step)
    except ConnectionsBusy:
        if not step:
            raise
        # Not at once again and again, where nobody waits for connections by what the address says.
        time.sleep(max(0.0, min(step, BUSY_SECONDS) - (time.monotonic() - begun)))
        return ask(0)


def seconds(duration: Duration | None, *, name: str) -> float | None:
    """Return a duration as it is sent. Raises InvalidArgument."""
    length_us = duration_us(duration, name=name)
    return None if length_us is None else length_us / 1_000_000
