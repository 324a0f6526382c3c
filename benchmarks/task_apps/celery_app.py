"""The tasks for Celery, acknowledged late, results ignored. Done: none waits or is unacknowledged.

It takes 64 tasks ahead instead of 4, as its manual advises for short ones.
"""

import os
from typing import Final

import redis
from celery import Celery, group

from benchmarks.task_apps import marks

BATCH_TASKS: Final = 1000
_STORE: Final = os.environ["BENCH_STORE"]

app = Celery("bench", broker=_STORE)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
)
gate = app.task(name="gate")(marks.wait_at_gate)
stamp = app.task(name="stamp")(marks.note_pickup)


@app.task(name="noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


_client = redis.Redis.from_url(_STORE)


def send_gate() -> None:
    """Send one task that waits at the gate."""
    gate.delay()


def send_stamp(sent_ns: int) -> None:
    """Send one task that notes its pickup."""
    stamp.delay(sent_ns)


def send_each(count: int) -> None:
    """Send as many tasks one by one."""
    for _ in range(count):
        noop.delay()


def send_batch(count: int) -> None:
    """Send as many tasks in groups, which it sends one by one."""
    for first in range(0, count, BATCH_TASKS):
        size = min(BATCH_TASKS, count - first)
        group(noop.s() for _ in range(size)).apply_async()


def left() -> int:
    """Return how many tasks are not done."""
    with _client.pipeline() as pipeline:
        pipeline.llen("celery")
        pipeline.hlen("unacked")
        return sum(pipeline.execute())
