"""A thread that syncs a while after something was written: sync mode "interval"."""

import logging
import threading
from collections.abc import Callable

from segue.errors import SegueError

logger = logging.getLogger(__name__)


class Flusher:
    """Calls `sync` within `interval_seconds` after a `wake`. Sleeps while nothing is written."""

    def __init__(self, sync: Callable[[], None], interval_seconds: float) -> None:
        self._sync = sync
        self._interval_seconds = interval_seconds
        self._written = threading.Event()
        self._stopping = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Note that something was written. The caller holds no lock that `sync` takes."""
        if not self._written.is_set():
            self._written.set()
            with self._starting:
                if self._thread is None and not self._stopping.is_set():
                    self._thread = threading.Thread(
                        target=self._run, name="segue-sync", daemon=True
                    )
                    self._thread.start()

    def _run(self) -> None:
        while True:
            self._written.wait()
            self._stopping.wait(self._interval_seconds)
            # Cleared before the sync: what is written during it is for the next one. And before
            # looking whether to stop: a stop that comes later sets it again.
            self._written.clear()
            if self._stopping.is_set():
                return
            try:
                self._sync()
            except SegueError:
                # The log has stopped itself and says so to whoever writes next.
                logger.exception("background sync failed")
                return

    def stop(self) -> None:
        """End the thread. What is not synced is left to the caller."""
        with self._starting:
            self._stopping.set()
        self._written.set()
        if self._thread is not None:
            self._thread.join()
