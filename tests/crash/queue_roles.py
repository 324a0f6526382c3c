"""What single processes do to a queue in tests that tell them step by step."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

import segue
from segue import Job, Queue
from segue.errors import LeaseLost, QueueEmpty
from segue.log.options import SyncName
from segue.stores.file import journal
from tests.crash.channel import Channel

QUEUE: Final = "jobs"
POISON: Final = b"poison"
READY: Final = "ready"
DONE: Final = "done"
REFUSED: Final = "refused"
STEPS_MAX: Final = 100_000


def open_queue(root: Path, *, checkpoint_events: int | None = None) -> Queue:
    """Open the queue of a child process; the process's end closes it."""
    if checkpoint_events is not None:
        vars(journal)["CHECKPOINT_EVENTS"] = checkpoint_events
        vars(journal)["LEDGER_KEPT_BYTES"] = 0
    return segue.open(root, sync="os").queue(QUEUE)


def work_until_poisoned(channel: Channel, root: Path, ttl: float) -> None:
    """Ack everything, and report it; the poison kills us."""
    queue = open_queue(root)
    for _ in range(STEPS_MAX):
        job = queue.lease(ttl=ttl, wait=None)
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


def wait_for_a_message(channel: Channel, root: Path, seconds: float) -> None:
    """Wait in a lease; report when it came (monotonic µs), its attempt and its body."""
    queue = open_queue(root)
    queue.count()
    channel.report(READY)
    try:
        job = queue.lease(ttl=30, wait=seconds)
    except QueueEmpty:
        channel.report([0, 0])
        return
    channel.report([time.monotonic_ns() // 1000, job.attempt])
    channel.report(job.text)
    job.ack()


def hold_the_turn(channel: Channel, root: Path) -> None:
    """Begin a turn and never end it."""
    store = segue.open(root, sync="os")
    store.queue(QUEUE).count()
    core = vars(store)["_queues"][QUEUE]
    with core.turn():
        channel.report(READY)
        time.sleep(60)


def hold_a_lane(channel: Channel, root: Path) -> None:
    """Take the lock of a lane, as a push does, and never let go."""
    store = segue.open(root, sync="os")
    queue = store.queue(QUEUE)
    queue.push(b"mine")
    core = vars(store)["_queues"][QUEUE]
    core.lanes.by_priority[0].log.writer.begin()
    channel.report(READY)
    time.sleep(60)


def work_long(channel: Channel, root: Path, ttl: float, seconds: float) -> None:
    """Hold a message for many times its lease, with a thread that leaves the processor to nobody.

    Report its attempt and whether the lease was there to the end.
    """
    queue = open_queue(root)
    over = threading.Event()

    def burn() -> None:
        number = 0
        while not over.is_set():
            number = (number * 31 + 7) % 1_000_003

    burner = threading.Thread(target=burn)
    outcome = DONE
    try:
        with queue.lease(ttl=ttl, wait=5) as job:
            channel.report(job.receipt)
            burner.start()
            end = time.monotonic() + seconds
            number = 0
            while time.monotonic() < end:
                number = (number * 31 + 7) % 1_000_003
            over.set()
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


def consume_all(channel: Channel, root: Path, idle_seconds: float, batch: int) -> None:
    """Lease and ack until nothing comes for a while; report each message, `batch` at a time."""
    queue = open_queue(root, checkpoint_events=100)
    while jobs := queue.lease_many(batch, ttl=30, wait=idle_seconds):
        queue.ack_many(jobs)
        channel.report([f"{job.id} {job.attempt} {job.text}" for job in jobs])
    channel.report(DONE)


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
