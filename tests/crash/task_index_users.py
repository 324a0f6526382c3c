"""Processes that take events into the index of tasks, and are killed there."""

import os
import signal
from pathlib import Path

from segue.tasks import index
from segue.tasks.index_rows import Row
from tests.crash.channel import Channel
from tests.crash.task_apps import Tasks

READY = "ready"


def catch_up_and_die(_: Channel, root: Path, batch_events: int, records: int) -> None:
    """Be killed after so many records, in the middle of a transaction or at the end of one."""
    original = index._values
    left = [records]

    def values(row: Row) -> tuple[object, ...]:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return original(row)

    vars(index).update({"_values": values, "BATCH_EVENTS": batch_events})
    Tasks(root).app.desk.index.catch_up()
    os.kill(os.getpid(), signal.SIGKILL)


def catch_up_for_ever(channel: Channel, root: Path, batch_events: int) -> None:
    """Take in events as they come, until killed; whatever goes wrong is reported."""
    vars(index).update({"BATCH_EVENTS": batch_events})
    tasks = Tasks(root)
    channel.report(READY)
    while not channel.has_order():  # It ends with the test, too.
        tasks.app.desk.index.catch_up()
