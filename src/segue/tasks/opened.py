"""What an App has opened in one process: its store, and what it asks it by."""

import os
from typing import TYPE_CHECKING

from segue.stores.contract import Queue
from segue.stores.opening import open
from segue.tasks.desk import Desk
from segue.tasks.results import Watch

if TYPE_CHECKING:
    from segue.tasks.app import App


class Opened:
    """The store of an App, open. It belongs to the process that opened it."""

    def __init__(self, app: "App") -> None:
        self.pid = os.getpid()
        self.store = open(app.url, sync=app.sync, clock=app.clock, ticks=app.ticks)
        self.queues: dict[str, Queue] = {}
        self.desk = Desk(self.store, app.clock, keep_seconds=app.result_ttl_max)
        self.watch = Watch(self.desk.log)

    def close(self) -> None:
        """Let go of everything."""
        self.watch.close()
        self.desk.close()
        self.store.close()
