"""The tasks for huey, on Valkey or in SQLite.

It takes a task for good before running it. Done: nothing waits, and the last task, which the only
worker thread took last, has run.
"""

import os
from typing import Final, NoReturn

from huey import RedisHuey, SqliteHuey

from benchmarks.task_apps import marks

_STORE: Final = os.environ["BENCH_STORE"]

if _STORE.startswith("redis:"):
    huey = RedisHuey("bench", url=_STORE)
else:
    huey = SqliteHuey("bench", filename=_STORE, fsync=os.environ["BENCH_SYNC"] == "always")
gate = huey.task()(marks.wait_at_gate)
stamp = huey.task()(marks.note_pickup)
last = huey.task()(marks.note_last)


@huey.task()  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


def send_gate() -> None:
    """Send one task that waits at the gate."""
    gate()


def send_stamp(sent_ns: int) -> None:
    """Send one task that notes its pickup."""
    stamp(sent_ns)


def send_each(count: int) -> None:
    """Send as many tasks one by one."""
    for _ in range(count - 1):
        noop()
    last()


def send_batch(count: int) -> NoReturn:
    """Raise NotImplementedError."""
    raise NotImplementedError("it has no batches: map sends one by one")


def left() -> int:
    """Return how many tasks are not done, or just 1 before the last one has run."""
    return int(huey.pending_count()) if marks.last_seen() else 1
