"""Whether the server gets anything done: a thread asks the store, again and again.

That a process is there says little. What is told here is when the store last answered.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

LOOK_SECONDS: Final = 1.0
SHARE: Final = 20
"""Looking takes at most one part in so many of the time."""
LATE_SECONDS: Final = 10.0
"""How old the last good look may be."""
JOIN_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)

Status = Literal["ok", "stuck", "failing", "ending"]


class Health(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the server is."""

    status: Status
    """`stuck`: the store does not answer. `failing`: it answers with errors."""
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
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what there is to tell
            if self._reason is None:
                logger.warning("the store fails reason=%r", error)
            # Everybody may ask how the server is, and need not learn where its store is.
            self._reason = f"the store fails with {type(error).__name__}; the log says more"
            taken = self._monotonic() - begun
        else:
            ended = self._monotonic()
            taken = self._look_seconds = ended - begun
            self._last_good = ended
            self._reason = None
        self._under_way_since = None
        return taken

    # What it saw ---------------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Whether a look has been under way for too long: asking again would not help."""
        since = self._under_way_since
        return self.also() or (since is not None and self._monotonic() - since > LATE_SECONDS)

    def health(self) -> Health:
        """Tell how the server is."""
        now = self._monotonic()
        last = self._last_good
        is_late = now - (self._began if last is None else last) > LATE_SECONDS
        status: Status = "ok" if not is_late else "stuck" if self._reason is None else "failing"
        if self.also():
            status = "stuck"
        return Health(
            status=status,
            since_look_seconds=None if last is None else round(now - last, 3),
            look_seconds=None if self._look_seconds is None else round(self._look_seconds, 6),
            loop_lag_seconds=round(self.loop_lag_seconds, 6),
            reason="the store does not answer" if status == "stuck" else self._reason,
        )
