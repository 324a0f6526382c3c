"""How a call that waits in one thread is told from another that it is enough.

Who makes calls in threads puts a `Hurry` in the context of each. A store that can be told looks
for it, waits for as long as it was asked to, and comes back with what there is when it is told.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final


class Hurry:
    """Tells one call to wait no longer. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], None] | None = None
        self.is_set = False

    def set(self) -> None:
        """Have the call come back."""
        with self._lock:
            self.is_set = True
            if self._interrupt is not None:
                self._interrupt()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have the block end by what `interrupt` does to it, once there is no time any more."""
        with self._lock:
            if self.is_set:
                interrupt()
            self._interrupt = interrupt
        try:
            yield
        finally:
            with self._lock:
                self._interrupt = None


HURRY: Final[ContextVar[Hurry | None]] = ContextVar("segue.hurry", default=None)
"""What the call that is being made is told by, None if nobody will."""


def can_hurry(store: object) -> bool:
    """Tell whether calls of a store look for a `Hurry`."""
    return getattr(store, "can_hurry", False) is True
