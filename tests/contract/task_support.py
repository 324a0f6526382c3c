"""What the tests of tasks share: Apps on a clock to turn, and workers that come to an end."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from segue import Log
from segue.delivery.message import DeadLetter
from segue.delivery.retry import Backoff
from segue.log.options import SyncName
from segue.tasks import App, Worker
from segue.tasks.events import TaskEvent
from segue.tasks.worker import Kind, supply
from segue.tasks.worker import worker as workers
from segue.testing import ManualClock
from tests.contract.worlds import FileWorld, HttpWorld, RedisWorld
from tests.waiting import LIMIT_SECONDS

AT_ONCE: Final = Backoff(base_us=0, cap_us=0, jitter=0)
"""Failed tasks are tried again without a wait."""
TIMED: Final = Backoff(jitter=0)
"""The documented waits, to the microsecond."""

TaskWorld = FileWorld | RedisWorld | HttpWorld
TASK_WORLDS: Final[dict[str, Callable[[Path], TaskWorld]]] = {
    "file": partial(FileWorld, sync="os"),
    "redis": RedisWorld,
    "http": HttpWorld,
}
"""Where the contract of tasks is tested. When a file is synced is no matter to them."""


def url_of(world: TaskWorld) -> str:
    """Return what an App calls the store of a world."""
    return str(world.root) if isinstance(world, FileWorld) else world.url


def manual_app(url: str | os.PathLike[str], clock: ManualClock, *, sync: SyncName = "os") -> App:
    """Return an App that goes by a clock to turn."""
    return App(url, sync=sync, clock=clock, ticks=clock.ticks)


class BurstWorker(Worker):
    """A worker for `burst=True` that looks often whether something is left."""

    def run(self) -> None:
        """Run tasks until none is left."""
        with (
            patch.object(workers, "TICK_SECONDS", 0.005),
            patch.object(supply, "WAIT_SECONDS", 0.02),
        ):
            super().run()


def work(
    app: App, *, kind: Kind = "thread", size: int = 1, queues: list[str] | None = None
) -> None:
    """Run what is there, here and now, until nothing is left that could run."""
    BurstWorker(app, burst=True, kind=kind, min_size=size, queues=queues, drain=LIMIT_SECONDS).run()


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """Have a worker at work while the block lasts; what it cannot survive is raised at its end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the right thread.
            errors.append(error)

    thread = threading.Thread(target=run, name="test-worker", daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop(now=True)
        thread.join(LIMIT_SECONDS)
    assert not thread.is_alive(), "the worker does not stop"
    if errors:
        raise errors[0]


def events_of(app: App, task_id: str) -> list[TaskEvent]:
    """Return all that was said of a task, oldest first."""
    return [event for _, event in app.log.read(0) if event.id == task_id]


def happenings(app: App, task_id: str) -> list[str]:
    """Return what happened to a task, oldest first."""
    return [event.happened for event in events_of(app, task_id)]


def letters(app: App, queue: str = "default") -> list[DeadLetter]:
    """Return the dead letters of a queue."""
    return list(app.store.queue(queue).dead_letters())


def check_intact(root: Path) -> None:
    """Verify every log that a store has left behind."""
    for path in {segment.parent for segment in root.rglob("*.q")}:
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == [], path
