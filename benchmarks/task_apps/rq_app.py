"""The tasks for RQ. Done: none waits, is on its way to a worker, or is registered as started.

Each job has a result by then, which RQ writes in the step that takes it from that register.
The worker names this module as its settings, so it is imported once, not by every fork.
"""

import os
from typing import Final

import redis
from rq import Queue
from rq.registry import StartedJobRegistry

from benchmarks.task_apps import marks

BATCH_TASKS: Final = 1000
REDIS_URL: Final = os.environ["BENCH_STORE"]

_client = redis.Redis.from_url(REDIS_URL)
_queue = Queue("default", connection=_client)
_started_key = StartedJobRegistry(queue=_queue).key


def noop() -> None:
    """Do nothing."""


def send_gate() -> None:
    """Send one task that waits at the gate."""
    _queue.enqueue(marks.wait_at_gate, job_timeout=marks.GATE_SECONDS_MAX)


def send_stamp(sent_ns: int) -> None:
    """Send one task that notes its pickup."""
    _queue.enqueue(marks.note_pickup, sent_ns)


def send_each(count: int) -> None:
    """Send as many tasks one by one."""
    for _ in range(count):
        _queue.enqueue(noop)


def send_batch(count: int) -> None:
    """Send as many tasks in batches, each a pipeline."""
    for first in range(0, count, BATCH_TASKS):
        size = min(BATCH_TASKS, count - first)
        _queue.enqueue_many([Queue.prepare_data(noop) for _ in range(size)])


def left() -> int:
    """Return how many tasks are not done."""
    with _client.pipeline() as pipeline:  # One transaction: a job on its way is not overlooked.
        pipeline.llen(_queue.key)
        pipeline.llen(_queue.intermediate_queue_key)
        pipeline.zcard(_started_key)
        return sum(pipeline.execute())
