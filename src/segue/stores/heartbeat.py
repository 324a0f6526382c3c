"""Keeping leases and locks alive while their holders work: one thread for all of a store's."""

import contextlib
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

from segue.errors import LeaseLost, LockLost, LogClosed, SegueError, StoreClosed

logger = logging.getLogger(__name__)

BEATS_PER_TTL: Final = 3
"""How often a lease is renewed before it would end: two beats may be late."""
LOOK_SECONDS: Final = 0.5
"""How soon what was dropped is given back."""


class Pulse:
    """One thing that is kept alive. `beat` renews it; the error that says it is lost is kept."""

    __slots__ = ("_beat", "error", "every_seconds", "is_stopped")

    def __init__(self, beat: Callable[[], None], ttl_seconds: float) -> None:
        self._beat = beat
        self.every_seconds = ttl_seconds / BEATS_PER_TTL
        self.error: SegueError | None = None
        self.is_stopped = False

    def stop(self) -> None:
        """Renew it no more. A beat that is under way may still happen."""
        self.is_stopped = True

    def run(self) -> None:
        """Renew it once; stop if that cannot be."""
        try:
            self._beat()
        except (LeaseLost, LockLost, StoreClosed, LogClosed) as error:
            if not self.is_stopped:
                logger.warning("lost while at work reason=%s", error)
            self.error = error
            self.is_stopped = True
        except Exception as error:  # noqa: BLE001 - one failed beat ends neither this nor others.
            logger.warning("not renewed, will be tried again reason=%r", error)


class Heartbeat:
    """Runs pulses on time, in a thread of its own that exists while there are any."""

    def __init__(self, *, side_by_side: int = 1) -> None:
        """With `side_by_side`, so many beats may be under way: one that hangs holds up no other."""
        self._side_by_side = side_by_side
        self._closed = False
        self.dropped: deque[Callable[[], None]] = deque()
        """What to call soon. Appending takes no lock, so a finalizer may do it."""
        self.begin()

    def begin(self) -> None:
        """Have nothing to renew. After a fork what was renewed, and by whom, is the parent's."""
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Pulse]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._crew: ThreadPoolExecutor | None = None
        if self._side_by_side > 1:
            self._crew = ThreadPoolExecutor(self._side_by_side, thread_name_prefix="segue-beat")

    def start(self, beat: Callable[[], None], ttl_seconds: float) -> Pulse:
        """Call `beat` several times per `ttl_seconds` until the pulse is stopped."""
        pulse = Pulse(beat, ttl_seconds)
        self._expect(pulse)
        return pulse

    def _expect(self, pulse: Pulse) -> None:
        """Have the next beat happen when it is due."""
        with self._changed:
            if self._closed or pulse.is_stopped:
                return
            due = time.monotonic() + pulse.every_seconds
            heapq.heappush(self._due, (due, next(self._numbers), pulse))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="segue-heartbeat", daemon=True
                )
                self._thread.start()
            else:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                pulse = self._next()
                if pulse is None and not self.dropped:
                    self._thread = None
                    return
            while self.dropped:
                _call(self.dropped.popleft())
            if pulse is None:
                continue
            if self._crew is None:
                self._beat(pulse)
            else:
                with contextlib.suppress(RuntimeError):  # Closed meanwhile.
                    self._crew.submit(self._beat, pulse)

    def _beat(self, pulse: Pulse) -> None:
        pulse.run()
        self._expect(pulse)

    def _next(self) -> Pulse | None:
        """Wait for the next pulse that is due, or for something dropped; None if none is left."""
        while not self._closed and not self.dropped:
            while self._due and self._due[0][2].is_stopped:
                heapq.heappop(self._due)
            if not self._due:
                return None
            pause = self._due[0][0] - time.monotonic()
            if pause <= 0:
                return heapq.heappop(self._due)[2]
            self._changed.wait(min(pause, LOOK_SECONDS))
        return None

    def close(self) -> None:
        """Renew nothing any more."""
        with self._changed:
            self._closed = True
            self._due.clear()
            thread = self._thread
            self._changed.notify()
        if self._crew is not None:
            self._crew.shutdown(wait=False, cancel_futures=True)
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):
                thread.join()


def _call(give_back: Callable[[], None]) -> None:
    try:
        give_back()
    except SegueError:
        return  # Lost or closed: then it comes back anyway.
    except Exception:
        logger.exception("what was dropped could not be given back")
