"""Whether the server gets anything done: a thread asks the store, again and again.

That a process is there says little. What is told here is when the store last answered.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Literal

import msgspec

LOOK_SECONDS: Final = 1.0
SHARE: Final = 20
"""Looking takes at most one part in so many of the time."""
LATE_SECONDS: Final = 10.0
"""How old the last good look may be."""
JOIN_SECONDS: Final = 1.0
SPARE_DESCRIPTORS: Final = 16
"""How many files there must be room for: to open a queue takes about so many."""

logger = logging.getLogger(__name__)

Status = Literal["ok", "stuck", "failing", "ending"]


class Health(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the server is."""

    status: Status
    """`stuck`: the store does not answer. `failing`: it answers with errors, or has to be opened
    anew after one."""
    since_look_seconds: float | None = None
    """How long ago the store last answered."""
    look_seconds: float | None = None
    """How long it took."""
    loop_lag_seconds: float = msgspec.field(default=0.0)
    """How late the event loop was of late."""
    reason: str | None = None


class Watchdog:
    """Looks at a store from a thread of its own. Safe from any thread."""

    def __init__(
        self, look: Callable[[], object], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._monotonic = monotonic
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = monotonic()
        self._under_way_since: float | None = None
        self._last_good: float | None = None
        self._look_seconds: float | None = None
        self._reason: str | None = None
        self._is_worn = False
        self._has_failed = False
        self.loop_lag_seconds = 0.0
        self.also: Callable[[], bool] = lambda: False
        """Whether something else is stuck: requests that get no thread."""

    def begin(self) -> None:
        """Start looking."""
        self._began = self._monotonic()
        self._thread = threading.Thread(target=self._run, name="segue-watchdog", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop looking. A look that does not come back is not waited for."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self._ending.is_set():
            taken = self.look()
            self._ending.wait(max(LOOK_SECONDS, taken * SHARE))

    def look(self) -> float:
        """Look once; return how long it took."""
        begun = self._under_way_since = self._monotonic()
        reason = None
        try:
            self._is_worn = not has_descriptors()
            self._look()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what there is to tell
            if self._reason is None:
                logger.warning("the store fails reason=%r", error)
            # Everybody may ask how the server is, and need not learn where its store is.
            reason = f"the store fails with {type(error).__name__}; the log says more"
        ended = self._monotonic()
        if self._is_worn:
            if self._reason is None:
                logger.warning("there are no descriptors left to open files with")
            reason = "there are no descriptors left to open files with"
        elif reason is None:
            self._look_seconds = ended - begun
            self._last_good = ended
        self._reason = reason
        self._under_way_since = None
        return ended - begun

    def note_failure(self) -> None:
        """Take note that a write failed, after which the store takes no more before it is reopened.

        That is for good: nobody else can say what is on the device.
        """
        self._has_failed = True

    # What it saw ---------------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Whether to start anew may help: asking again would not."""
        since = self._under_way_since
        return (
            self._has_failed
            or self.also()
            or (since is not None and self._monotonic() - since > LATE_SECONDS)
            or (self._is_worn and self._is_late(self._monotonic()))
        )

    def _is_late(self, now: float) -> bool:
        last = self._last_good
        return now - (self._began if last is None else last) > LATE_SECONDS

    def health(self) -> Health:
        """Tell how the server is."""
        now = self._monotonic()
        last = self._last_good
        is_late = self._is_late(now)
        status: Status = "ok" if not is_late else "stuck" if self._reason is None else "failing"
        reason = self._reason
        if self._has_failed:
            status, reason = "failing", "a write failed; the store has to be opened anew"
        if self.also():
            status = "stuck"
        return Health(
            status=status,
            since_look_seconds=None if last is None else round(now - last, 3),
            look_seconds=None if self._look_seconds is None else round(self._look_seconds, 6),
            loop_lag_seconds=round(self.loop_lag_seconds, 6),
            reason="the store does not answer" if status == "stuck" else reason,
        )


def has_descriptors() -> bool:
    """Tell whether there is room for the files that the next request may open."""
    with ExitStack() as closing:
        try:
            for _ in range(SPARE_DESCRIPTORS // 2):
                for end in os.pipe():
                    closing.callback(os.close, end)
        except OSError:
            return False
    return True
