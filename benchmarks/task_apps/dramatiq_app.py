"""The tasks for dramatiq. Done: its hash of messages, where each stays until its ack, is empty."""

import os
from typing import Final

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from benchmarks.task_apps import marks

BATCH_TASKS: Final = 1000
_STORE: Final = os.environ["BENCH_STORE"]

broker = RedisBroker(url=_STORE)  # type: ignore[no-untyped-call]
dramatiq.set_broker(broker)
gate = dramatiq.actor(time_limit=marks.GATE_SECONDS_MAX * 1000)(marks.wait_at_gate)
stamp = dramatiq.actor(marks.note_pickup)


@dramatiq.actor
def noop() -> None:
    """Do nothing."""


_client = redis.Redis.from_url(_STORE)


def send_gate() -> None:
    """Send one task that waits at the gate."""
    gate.send()


def send_stamp(sent_ns: int) -> None:
    """Send one task that notes its pickup."""
    stamp.send(sent_ns)


def send_each(count: int) -> None:
    """Send as many tasks one by one."""
    for _ in range(count):
        noop.send()


def send_batch(count: int) -> None:
    """Send as many tasks in groups, which it sends one by one."""
    for first in range(0, count, BATCH_TASKS):
        size = min(BATCH_TASKS, count - first)
        group = dramatiq.group(noop.message() for _ in range(size))  # type: ignore[no-untyped-call]
        group.run()  # type: ignore[no-untyped-call]


def left() -> int:
    """Return how many tasks are not done."""
    return int(_client.hlen("dramatiq:default.msgs"))
