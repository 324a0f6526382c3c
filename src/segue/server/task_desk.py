"""What answers for tasks: one for a server, opened by who asks first.

Tasks are an extra. Where it is not installed, whoever asks is told so and the rest goes on.
"""

import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from segue.clock import Clock, system_clock
from segue.server.open_queues import may_look_into
from segue.stores.contract import Store
from segue.stores.file.store import FileStore

if TYPE_CHECKING:
    from segue.tasks.desk import Desk
    from segue.tasks.results import Watch
    from segue.tasks.scheduling import ScheduleBook
    from segue.tasks.worker.reports import SilentWorkers

PATIENCE_SECONDS: Final = 0.05
"""How long a request waits for events to be taken in. A store may come with millions of them: a
thread goes on, and answers say how many are left."""


class ExtraMissing(Exception):
    """What tasks need is not installed on the server."""


class TaskDesk:
    """The tasks of a server's store. Safe from any thread."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock: Clock = store.place.clock if isinstance(store, FileStore) else system_clock
        self.lock = threading.Lock()
        """For the book of schedules."""
        self._opening = threading.Lock()
        self._desk: Desk | None = None
        self._watch: Watch | None = None
        self._silent: SilentWorkers | None = None
        self._book: ScheduleBook | None = None

    @property
    def desk(self) -> "Desk":
        """What answers for tasks. Raises ExtraMissing."""
        with self._opening:
            if self._desk is None:
                require_tasks()
                from segue.tasks.desk import Desk

                self._desk = Desk(
                    self.store,
                    self.clock,
                    patience_seconds=PATIENCE_SECONDS,
                    may_open=partial(may_look_into, self.store),
                )
            return self._desk

    @property
    def silent(self) -> "SilentWorkers":
        """What tells of workers that are gone. Raises ExtraMissing."""
        with self._opening:
            if self._silent is None:
                require_tasks()
                from segue.tasks.worker.reports import SilentWorkers

                self._silent = SilentWorkers(self.store)
            return self._silent

    @property
    def watch(self) -> "Watch":
        """What tells that something became of a task. Raises ExtraMissing."""
        desk = self.desk
        with self._opening:
            if self._watch is None:
                from segue.tasks.results import Watch

                self._watch = Watch(desk.log)
            return self._watch

    @property
    def book(self) -> "ScheduleBook":
        """The schedules, for who has the lock. Raises ExtraMissing."""
        with self._opening:
            if self._book is None:
                require_tasks()
                from segue.tasks.scheduling import ScheduleBook

                self._book = ScheduleBook(self.store)
            return self._book

    def close(self) -> None:
        """Let go. The store stays open."""
        with self._opening:
            desk, watch = self._desk, self._watch
            self._desk = self._watch = None
        if watch is not None:
            watch.close()
        if desk is not None:
            desk.close()


def require_tasks() -> None:
    """Raise ExtraMissing unless what tasks need is installed."""
    try:
        import segue.tasks  # noqa: F401 - only whether it can be
    except ModuleNotFoundError as error:
        raise ExtraMissing(str(error)) from error
