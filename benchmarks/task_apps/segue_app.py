"""The tasks for Segue, embedded. Done: the queue holds no message, waiting or leased."""

import asyncio
import os
from typing import Final

import segue
from benchmarks.task_apps import marks

BATCH_TASKS: Final = 1000
ASYNC_LOOK_SECONDS: Final = 0.002

app = segue.App(
    os.environ["BENCH_STORE"], sync="always" if os.environ["BENCH_SYNC"] == "always" else "os"
)


@app.task(retries=0)
def noop() -> None:
    """Do nothing."""


@app.task(retries=0, timeout=marks.GATE_SECONDS_MAX)
def gate() -> None:
    """Wait at the gate."""
    marks.wait_at_gate()


@app.task(retries=0)
def stamp(sent_ns: int) -> None:
    """Note the pickup."""
    marks.note_pickup(sent_ns)


@app.task(retries=0)
async def noop_async() -> None:
    """Do nothing, in an event loop."""


@app.task(retries=0, timeout=marks.GATE_SECONDS_MAX)
async def gate_async() -> None:
    """Wait at the gate, and keep no other slot of the event loop waiting."""
    marks.arrive()
    while not marks.gate_is_open():
        await asyncio.sleep(ASYNC_LOOK_SECONDS)


@app.task(retries=0)
async def stamp_async(sent_ns: int) -> None:
    """Note the pickup, in an event loop."""
    marks.note_pickup(sent_ns)


_ASYNC: Final = os.environ["BENCH_KIND"] == "async"
_noop = noop_async if _ASYNC else noop
_gate = gate_async if _ASYNC else gate
_stamp = stamp_async if _ASYNC else stamp


def send_gate() -> None:
    """Send one task that waits at the gate."""
    _gate.enqueue()


def send_stamp(sent_ns: int) -> None:
    """Send one task that notes its pickup."""
    _stamp.enqueue(sent_ns)


def send_each(count: int) -> None:
    """Send as many tasks one by one."""
    for _ in range(count):
        _noop.enqueue()


def send_batch(count: int) -> None:
    """Send as many tasks in batches."""
    for first in range(0, count, BATCH_TASKS):
        _noop.starmap([()] * min(BATCH_TASKS, count - first))


def left() -> int:
    """Return how many tasks are not done. Raises RuntimeError if one was given up."""
    count = app.store.queue("default").count()
    if count.dead:
        raise RuntimeError(f"{count.dead} tasks failed")
    return count.total
