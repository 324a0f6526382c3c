"""The tasks for taskiq, on a stream of Valkey, with acks, or on a list, without.

Done on the stream: none is undelivered or pending, and each is acked after it was executed. Done
on the list: it is empty, and the last task has run. That is a little early: up to a hundred run
at a time, and some that began before the last may end after it.
"""

import asyncio
import os
from functools import cache
from typing import Final

import redis
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from benchmarks.task_apps import marks

BATCH_TASKS: Final = 100
_STORE: Final = os.environ["BENCH_STORE"]
_LIST: Final = os.environ["BENCH_KIND"] == "list"

broker = ListQueueBroker(_STORE) if _LIST else RedisStreamBroker(_STORE, consumer_id="0")


@broker.task
async def gate() -> None:
    """Wait at the gate with the whole event loop: one of these holds the worker."""
    marks.wait_at_gate()


@broker.task
async def stamp(sent_ns: int) -> None:
    """Note the pickup."""
    marks.note_pickup(sent_ns)


@broker.task
async def last() -> None:
    """Say that this was the last task."""
    marks.note_last()


@broker.task
async def noop() -> None:
    """Do nothing."""


_client = redis.Redis.from_url(_STORE)
_loop = asyncio.Runner()


@cache
def _start() -> None:
    _loop.run(broker.startup())  # Only the producer's side: a worker does it in a loop of its own.


def send_gate() -> None:
    """Send one task that waits at the gate."""
    _start()
    _loop.run(gate.kiq())


def send_stamp(sent_ns: int) -> None:
    """Send one task that notes its pickup."""
    _loop.run(stamp.kiq(sent_ns))


def send_each(count: int) -> None:
    """Send as many tasks one by one."""

    async def send() -> None:
        for _ in range(count - 1):
            await noop.kiq()
        await last.kiq()

    _loop.run(send())


def send_batch(count: int) -> None:
    """Send as many tasks, a hundred at once."""

    async def send() -> None:
        for first in range(0, count - 1, BATCH_TASKS):
            size = min(BATCH_TASKS, count - 1 - first)
            await asyncio.gather(*(noop.kiq() for _ in range(size)))
        await last.kiq()

    _loop.run(send())


def left() -> int:
    """Return how many tasks are not done, or on a list just 1 before the last one has run."""
    if _LIST:
        return int(_client.llen("taskiq")) if marks.last_seen() else 1
    (group,) = _client.xinfo_groups("taskiq")
    return int(group["pending"]) + int(group["lag"])
