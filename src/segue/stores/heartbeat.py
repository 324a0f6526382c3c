"""Keeping leases and locks alive while their holders work: one thread for all of a store's."""

import contextlib
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from segue.errors import LeaseLost, LockLost, LogClosed, SegueError, StoreClosed

logger = logging.getLogger(__name__)

BEATS_PER_TTL: Final = 3
"""How often a lease is renewed before it would end: two beats may be late."""
LOOK_SECONDS: Final = 0.5
"""How soon what was dropped is given back."""
GIVE_BACK_SECONDS: Final = 2.0
"""How long closing waits for what is being given back."""
IDLE_SECONDS: Final = 10.0
"""How long a thread for beats side by side waits for the next one before it ends."""


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


class Crew:
    """Calls steps side by side, in up to `size` threads that exist while there is use for them.

    They are daemons, and no pool of the standard library: those end when the main thread does,
    though others that hold leases may be at work for long.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._steps: deque[Callable[[], None]] = deque()
        self._count = 0
        self._idle = 0
        self._closed = False

    def call(self, step: Callable[[], None]) -> None:
        """Have `step` called soon; here and now if there is no thread to be had."""
        with self._changed:
            if self._idle > len(self._steps) or self._count >= self._size or self._grew():
                self._steps.append(step)
                self._changed.notify()
                return
        _call(step)

    def _grew(self) -> bool:
        try:
            threading.Thread(target=self._run, name="segue-beat", daemon=True).start()
        except RuntimeError:  # As at the interpreter's end.
            return False
        self._count += 1
        return True

    def _run(self) -> None:
        while (step := self._next()) is not None:
            _call(step)
            del step  # What it renewed is not kept alive by a thread that waits.

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to call; None, once counted out, for a thread that is to end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._steps or self._closed, IDLE_SECONDS)
            self._idle -= 1
            if self._steps:
                return self._steps.popleft()
            self._count -= 1
            return None

    def close(self) -> None:
        """Have the threads end once nothing is left to call; waits for none."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


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
        """Have nothing to renew or give back: after a fork that is the parent's."""
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Pulse]] = []
        self._numbers = count()
        self._under_way = 0
        self._giving_back = 0
        self._thread: threading.Thread | None = None
        self._crew = Crew(self._side_by_side) if self._side_by_side > 1 else None
        self.dropped.clear()

    def start(self, beat: Callable[[], None], ttl_seconds: float) -> Pulse:
        """Call `beat` several times per `ttl_seconds` until the pulse is stopped."""
        pulse = Pulse(beat, ttl_seconds)
        self._expect(pulse, time.monotonic())
        return pulse

    def run_beside(self, step: Callable[[], None]) -> None:
        """Call `step` as beats are called: beside others, or here and now if they are not."""
        if self._crew is None:
            _call(step)
        else:
            self._crew.call(step)

    def _expect(self, pulse: Pulse, last: float) -> None:
        """Have the next beat happen when it is due, counted from when the last one began."""
        with self._changed:
            if self._closed or pulse.is_stopped:
                return
            due = last + pulse.every_seconds
            heapq.heappush(self._due, (due, next(self._numbers), pulse))
            if self._thread is not None:
                self._changed.notify()
                return
            thread = threading.Thread(target=self._run, name="segue-heartbeat", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # What takes no longer than its ttl is done all the same.
                logger.warning("not renewed, there is no thread for it reason=%s", error)
            else:
                self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                pulse = self._next()
                if pulse is None and not self.dropped:
                    self._thread = None
                    return
            while self.dropped:
                give_back = self.dropped.popleft()
                if self._closed:
                    _give_back(give_back)  # Who closes waits for this thread; a crew may be gone.
                    continue
                with self._changed:
                    self._giving_back += 1
                self.run_beside(partial(self._give_back, give_back))
            if pulse is not None:
                self.run_beside(partial(self._beat, pulse))

    def _give_back(self, give_back: Callable[[], None]) -> None:
        try:
            _give_back(give_back)
        finally:
            with self._changed:
                self._giving_back -= 1
                self._changed.notify_all()

    def _beat(self, pulse: Pulse) -> None:
        began = time.monotonic()
        if not self._closed and not pulse.is_stopped:  # It may have waited for its turn.
            pulse.run()
        with self._changed:
            self._under_way -= 1
            self._expect(pulse, began)

    def _next(self) -> Pulse | None:
        """Wait for the next pulse that is due, or for something dropped; None if none is left."""
        while not self._closed and not self.dropped:
            while self._due and self._due[0][2].is_stopped:
                heapq.heappop(self._due)
            if not self._due and not self._is_needed():
                return None
            pause = self._due[0][0] - time.monotonic() if self._due else LOOK_SECONDS
            if pause <= 0:
                self._under_way += 1
                return heapq.heappop(self._due)[2]
            self._changed.wait(min(pause, LOOK_SECONDS))
        return None

    def _is_needed(self) -> bool:
        """Tell whether there may be something to renew soon that no new thread could renew.

        From when the main thread has ended on, Python 3.12 starts no thread any more.
        """
        return self._under_way > 0 or not threading.main_thread().is_alive()

    def close(self) -> None:
        """Renew nothing any more. What was dropped is given back before, unless that hangs."""
        with self._changed:
            self._closed = True
            self._due.clear()
            thread = self._thread
            self._changed.notify()
        if self._crew is not None:
            self._crew.close()
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):
                thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._giving_back, GIVE_BACK_SECONDS)


def _call(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:
        logger.exception("what was to be done beside the beats failed")


def _give_back(give_back: Callable[[], None]) -> None:
    try:
        give_back()
    except SegueError:
        return  # Lost or closed: then it comes back anyway.
    except Exception:
        logger.exception("what was dropped could not be given back")
