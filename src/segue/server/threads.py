"""The threads that ask the store, where that may take a while: few, and shared out fairly.

One queue whose disk or lock hangs does not stop the others: it has some of the threads and some of
the places in the line before them, and never all.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from segue.server.health import LATE_SECONDS
from segue.server.refusal import Refused

THREADS_MAX: Final = 32
THREADS_PER_NAME_MAX: Final = 24
"""How many of them work for one queue, topic, ring or lock."""
PENDING_MAX: Final = 2_000
"""How many requests may wait for a thread, or have one, before others are sent away."""
PENDING_PER_NAME_MAX: Final = 1_500
"""How many of them are about one queue, topic, ring or lock: there is room for the others."""
ENDING_SECONDS: Final = 2.0
"""How long the end waits for what threads are doing."""
LOOK_SECONDS: Final = 0.005

T = TypeVar("T")


class _Turn(asyncio.Semaphore):
    """The threads that are for one name, and how many requests are about it."""

    pending = 0


class Threads:
    """Runs steps in threads. For the event loop alone, but `is_stuck`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="segue-serve")
        self.pending = 0
        """How many steps are not over."""
        self._handed_over = 0
        """How many of them wait for nothing but one of the threads, or have one."""
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
        self._last_step = time.monotonic()

    async def run(self, step: Callable[[], T], name: str = "") -> T:
        """Return what `step` returns, which is about `name`. Raises Refused if too many wait."""
        turn = self._turns.get(name)
        if turn is None:
            turn = _Turn(THREADS_PER_NAME_MAX if name else THREADS_MAX)
            self._turns[name] = turn
        if self.pending >= PENDING_MAX or (name and turn.pending >= PENDING_PER_NAME_MAX):
            raise Refused(503, "overloaded", "too many requests are under way", retry=1)
        if not self._is_crowded():
            self._last_step = time.monotonic()
        self.pending += 1
        turn.pending += 1
        try:
            async with turn:
                return await self._run(step)
        finally:
            self.pending -= 1
            turn.pending -= 1

    async def _run(self, step: Callable[[], T]) -> T:
        self._handed_over += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, step)
        finally:
            self._handed_over -= 1
            self._last_step = time.monotonic()

    def _is_crowded(self) -> bool:
        """Tell whether requests wait: for a thread, or for their turn to ask for one."""
        return self.pending > min(self._handed_over, THREADS_MAX)

    def is_stuck(self) -> bool:
        """Tell whether requests wait for threads, and none of these has done anything of late."""
        return self._is_crowded() and time.monotonic() - self._last_step > LATE_SECONDS

    def close(self) -> None:
        """Begin nothing any more, and give what is under way a moment."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + ENDING_SECONDS
        while self.pending and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
