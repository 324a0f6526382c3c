"""What single processes do to a queue in tests that tell them step by step."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

import segue
from segue import Job, Queue
from segue.errors import LeaseLost
from segue.log.options import SyncName
from segue.stores import heartbeat
from segue.stores.file import journal
from tests.crash.channel import Channel
from tests.crash.shared_clock import SharedClock
from tests.waiting import LIMIT_SECONDS, hang, wait_until

QUEUE: Final = "jobs"
POISON: Final = b"poison"
READY: Final = "ready"
DONE: Final = "done"
REFUSED: Final = "refused"
BEAT: Final = "beat"
STEPS_MAX: Final = 100_000
LONG_SECONDS: Final = 3_600.0
"""Time to live of a lease. It is over only if a test advances the shared clock."""
BEATS_PER_LEASE: Final = 36_000
"""Heartbeats every 0.1 s."""
POLL_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 10 * LIMIT_SECONDS
"""Longer than a test waits: a waiter that is never woken is reported as stuck."""


def clock_of(root: Path) -> SharedClock:
    """Return the clock of all processes that use the store at `root`."""
    return SharedClock(root / "clock")


def expire_leases(root: Path) -> None:
    """Let every lease of LONG_SECONDS end now."""
    clock_of(root).advance(seconds=LONG_SECONDS + 1)


def open_store(root: Path) -> segue.Store:
    """Open the store at `root` with the clock that its processes share."""
    clock = clock_of(root)
    return segue.open(root, sync="os", clock=clock, ticks=clock.ticks)


def wait_until_waiting(root: Path, pid: int) -> None:
    """Return as soon as a process waits for a message. It then has a pipe to be woken by."""
    wait_until(lambda: any(root.rglob(f"wake/{pid}-*")), f"process {pid} waits for a message")


def open_queue(root: Path, *, checkpoint_events: int | None = None) -> Queue:
    """Open the queue of a child process; the process's end closes it."""
    if checkpoint_events is not None:
        vars(journal)["CHECKPOINT_EVENTS"] = checkpoint_events
        vars(journal)["LEDGER_KEPT_BYTES"] = 0
    return open_store(root).queue(QUEUE)


def work_until_poisoned(channel: Channel, root: Path) -> None:
    """Ack everything, and report it; the poison kills us."""
    queue = open_queue(root)
    for _ in range(STEPS_MAX):
        job = queue.lease(ttl=LONG_SECONDS, wait=None)
        if job.body == POISON:
            channel.report([job.attempt])
            os.kill(os.getpid(), signal.SIGKILL)
        job.ack()
        channel.report(job.text)


def lease_and_follow_orders(channel: Channel, root: Path, ttl: float) -> None:
    """Lease one message and report its receipt; then ack it when told, and say how that went."""
    queue = open_queue(root)
    job = queue.lease(ttl=ttl, wait=None)
    channel.report(job.receipt)
    while channel.wait_for_order() == "ack":
        channel.report(_ack(job))


def _ack(job: Job) -> str:
    try:
        job.ack()
    except LeaseLost:
        return REFUSED
    return DONE


def wait_for_a_message(channel: Channel, root: Path) -> None:
    """Wait in a lease; report when it came (monotonic µs), its attempt and its body."""
    queue = open_queue(root)
    queue.count()
    channel.report(READY)
    job = queue.lease(ttl=LONG_SECONDS, wait=WAIT_SECONDS)
    channel.report([time.monotonic_ns() // 1000, job.attempt])
    channel.report(job.text)
    job.ack()


def look_when_told(channel: Channel, root: Path) -> None:
    """Open the queue and report READY; when told, count its messages and report READY again."""
    queue = open_queue(root)
    queue.count()
    channel.report(READY)
    channel.wait_for_order()
    queue.count()
    channel.report(READY)


def hold_the_turn(channel: Channel, root: Path) -> None:
    """Begin a turn and never end it."""
    store = segue.open(root, sync="os")
    store.queue(QUEUE).count()
    core = vars(store)["_queues"][QUEUE]
    with core.turn():
        channel.report(READY)
        hang()


def hold_a_lane(channel: Channel, root: Path) -> None:
    """Take the lock of a lane, as a push does, and never let go."""
    store = segue.open(root, sync="os")
    queue = store.queue(QUEUE)
    queue.push(b"mine")
    core = vars(store)["_queues"][QUEUE]
    core.lanes.by_priority[0].log.writer.begin()
    channel.report(READY)
    hang()


def work_until_told(channel: Channel, root: Path) -> None:
    """Hold a message, while a thread and this one keep the processor busy, until told to end.

    Report READY, each heartbeat as it ends, and in the end whether the lease was kept.
    """
    vars(heartbeat)["BEATS_PER_TTL"] = BEATS_PER_LEASE
    beat = heartbeat.Pulse.run

    def beat_and_report(pulse: heartbeat.Pulse) -> None:
        beat(pulse)
        channel.report(BEAT)

    setattr(heartbeat.Pulse, "run", beat_and_report)  # noqa: B010 - a method in place of a method
    queue = open_queue(root)

    over = threading.Event()

    def burn() -> None:
        number = 0
        while not over.is_set():
            number = (number * 31 + 7) % 1_000_003

    burner = threading.Thread(target=burn)
    outcome = DONE
    try:
        with queue.lease(ttl=LONG_SECONDS, wait=None):
            channel.report(READY)
            burner.start()
            while not channel.has_order():
                pass
    except LeaseLost:
        outcome = REFUSED
    over.set()
    burner.join()
    channel.report(outcome)


def push_many_one_by_one(
    channel: Channel, root: Path, name: str, count: int, priorities: list[int], sync: SyncName
) -> None:
    """Push `count` messages, over `priorities` in turn."""
    vars(journal)["CHECKPOINT_EVENTS"] = 100
    vars(journal)["LEDGER_KEPT_BYTES"] = 0
    with segue.open(root, sync=sync) as store:
        queue = store.queue(QUEUE)
        for number in range(count):
            queue.push(f"{name} {number}", priority=priorities[number % len(priorities)])
    channel.report(DONE)


def consume_until_told(channel: Channel, root: Path, batch: int) -> None:
    """Lease and ack `batch` messages at a time, and report each batch.

    Wait for an order after the first batch, so that no consumer starves, and end at the next one.
    """
    queue = open_queue(root, checkpoint_events=100)
    _consume(channel, queue, batch, wait=None)
    channel.wait_for_order()
    while not channel.has_order():
        _consume(channel, queue, batch, wait=POLL_SECONDS)
    channel.report(DONE)


def _consume(channel: Channel, queue: Queue, batch: int, *, wait: float | None) -> None:
    if jobs := queue.lease_many(batch, ttl=LONG_SECONDS, wait=wait):
        queue.ack_many(jobs)
        channel.report([f"{job.id} {job.attempt} {job.text}" for job in jobs])


def be_idle_then_consume(channel: Channel, root: Path) -> None:
    """Have the queue open and look at it once; when told, say what is there and take one."""
    queue = open_queue(root, checkpoint_events=100)
    queue.count()
    channel.report(READY)
    channel.wait_for_order()
    counts = queue.count()
    channel.report([counts.ready, counts.leased, counts.delayed, counts.dead])
    job = queue.lease(wait=0)
    channel.report(job.text)
    job.ack()
    channel.report(queue.count().total)
    channel.wait_for_order()
