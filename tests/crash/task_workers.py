"""Workers as processes of their own, some with a way to die built in.

python -m tests.crash.task_workers kind size lease_seconds
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, cast

from segue.errors import StorageFailed, StorageFull
from segue.tasks import Worker, scheduling
from segue.tasks.events import EventLog, TaskEvent
from segue.tasks.scheduling import ScheduleBook, ScheduleState
from segue.tasks.worker import Kind, keeper, settler
from segue.tasks.worker.keeper import Keeper
from segue.tasks.worker.runs import Run
from tests.crash.channel import Channel
from tests.crash.stopping import stop_here
from tests.crash.task_apps import WORKER_VARIABLE, Beats, Tasks, app
from tests.waiting import LIMIT_SECONDS

SIZE: Final = 2
LOCK_SECONDS: Final = 1.0
TICK_SECONDS: Final = 0.1
FULL_PAUSE_SECONDS: Final = 0.05
BEATS_PER_LEASE: Final = 36_000
"""Leases are renewed at every tick of the keeper, 0.1 s."""
STOPS: Final = "stops"

Append = Callable[[EventLog, Iterable[TaskEvent]], None]


def main(words: list[str]) -> None:
    """Work until told to stop, or killed."""
    kind, size, lease_seconds = words
    Worker(
        app,
        kind=cast("Kind", kind),
        min_size=int(size),
        lease_ttl=float(lease_seconds),
        drain=LIMIT_SECONDS,
        name=os.environ[WORKER_VARIABLE],
    ).run()


def _worker(tasks: Tasks, name: str, lease_seconds: float, *, limit: int | None = None) -> Worker:
    os.environ[WORKER_VARIABLE] = name
    return Worker(
        tasks.app,
        min_size=SIZE,
        lease_ttl=lease_seconds,
        limit=limit,
        drain=LIMIT_SECONDS,
        name=name,
    )


def _end_when_told(channel: Channel, worker: Worker) -> None:
    """Stop the worker once there is an order."""

    def wait() -> None:
        channel.wait_until_told()
        worker.stop()

    threading.Thread(target=wait, daemon=True).start()


def _replace_append(append: Append) -> None:
    setattr(EventLog, "append", append)  # noqa: B010 - a method in place of a method


def work(channel: Channel, root: Path, name: str, lease_seconds: float) -> None:
    """Work until told to stop."""
    tasks = Tasks(root)
    worker = _worker(tasks, name, lease_seconds)
    _end_when_told(channel, worker)
    worker.run()
    tasks.app.close()


def work_limited(_: Channel, root: Path, name: str, lease_seconds: float, limit: int) -> None:
    """Work on so many tasks. All time that the worker measures follows the shared clock."""
    tasks = Tasks(root)
    ticks = tasks.app.ticks
    setattr(time, "monotonic", lambda: ticks() / 1_000_000)  # noqa: B010 - a function for another
    _worker(tasks, name, lease_seconds, limit=limit).run()
    tasks.app.close()


def work_and_die_before_the_ack(_: Channel, root: Path, name: str, lease_seconds: float) -> None:
    """Be killed once a result is an event, and its message not yet acked."""
    original = EventLog.append

    def append(self: EventLog, events: Iterable[TaskEvent]) -> None:
        said = list(events)
        original(self, said)
        if any(event.happened in {"completed", "dead_letter"} for event in said):
            os.kill(os.getpid(), signal.SIGKILL)

    _replace_append(append)
    _worker(Tasks(root), name, lease_seconds).run()


def work_and_stop_before_the_event(
    channel: Channel, root: Path, name: str, lease_seconds: float
) -> None:
    """Stop, as by SIGSTOP, where the lease was seen to be held and nothing is said yet."""
    original = EventLog.append

    def append(self: EventLog, events: Iterable[TaskEvent]) -> None:
        said = list(events)
        if any(event.happened == "completed" for event in said):
            channel.report(STOPS)
            stop_here()
        original(self, said)

    _replace_append(append)
    tasks = Tasks(root)
    _worker(tasks, name, lease_seconds, limit=1).run()
    tasks.app.close()


def work_on_a_full_disk(channel: Channel, root: Path, name: str, lease_seconds: float) -> None:
    """Have no room for events until told. Report the id of each task whose lease is renewed."""
    original = EventLog.append
    renew = Keeper._renew

    def append(self: EventLog, events: Iterable[TaskEvent]) -> None:
        if not channel.has_order():
            raise StorageFull("no space left on device")
        original(self, events)

    def renew_and_report(self: Keeper, run: Run) -> None:
        renew(self, run)
        channel.report(run.id)

    _replace_append(append)
    setattr(Keeper, "_renew", renew_and_report)  # noqa: B010 - a method in place of a method
    vars(keeper)["BEATS_PER_TTL"] = BEATS_PER_LEASE
    vars(settler)["FULL_PAUSE_SECONDS"] = FULL_PAUSE_SECONDS
    tasks = Tasks(root)
    _worker(tasks, name, lease_seconds, limit=SIZE).run()
    tasks.app.close()


def work_on_a_broken_disk(channel: Channel, root: Path, name: str, lease_seconds: float) -> None:
    """Have no event appended, ever; report what the worker ends with."""

    def append(self: EventLog, events: Iterable[TaskEvent]) -> None:
        raise StorageFailed("input/output error")

    _replace_append(append)
    tasks = Tasks(root)
    try:
        _worker(tasks, name, lease_seconds).run()
    except StorageFailed as error:
        channel.report(str(error))
    tasks.app.close()


def _hurry() -> None:
    """Have schedules looked at often, and taken over soon: moments of these tests are short."""
    vars(scheduling).update({"LOCK_SECONDS": LOCK_SECONDS, "TICK_SECONDS": TICK_SECONDS})


def beat(channel: Channel, root: Path, name: str, lease_seconds: float) -> None:
    """Work on schedules until told to stop."""
    _hurry()
    tasks = Beats(root)
    worker = _worker(tasks, name, lease_seconds)
    _end_when_told(channel, worker)
    worker.run()
    tasks.app.close()


def beat_and_die_before_the_note(_: Channel, root: Path, name: str, lease_seconds: float) -> None:
    """Be killed once something has fired, and before that is noted."""
    _hurry()
    original = ScheduleBook.note

    def note(self: ScheduleBook, state: ScheduleState) -> None:
        if state.fired:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, state)

    setattr(ScheduleBook, "note", note)  # noqa: B010 - a method in place of a method
    _worker(Beats(root), name, lease_seconds).run()


def beat_and_stop_before_the_note(
    channel: Channel, root: Path, name: str, lease_seconds: float
) -> None:
    """Stop, as by SIGSTOP, once something has fired and before that is noted; then go on."""
    _hurry()
    original = ScheduleBook.note
    stops = [STOPS]

    def note(self: ScheduleBook, state: ScheduleState) -> None:
        if state.fired and stops:
            channel.report(stops.pop())
            stop_here()
        original(self, state)

    setattr(ScheduleBook, "note", note)  # noqa: B010 - as above
    tasks = Beats(root)
    worker = _worker(tasks, name, lease_seconds)
    _end_when_told(channel, worker)
    worker.run()
    tasks.app.close()


if __name__ == "__main__":
    main(sys.argv[1:])
