"""What the child processes of the ring's and the lock's kill tests do.

Every body names its worker, the call it was part of and its place in that call, so whoever finds an
entry can tell what must stand next to it.
"""

import contextlib
import fcntl
import os
import random
from pathlib import Path
from typing import Final

from segue.errors import LockLost, TransactionAborted
from segue.log.options import SyncName
from segue.stores.contract import HeldLock, Ring
from segue.stores.file import store  # noqa: F401 - so that the fork server is warm: opening imports it.
from segue.stores.opening import open_directory
from tests.crash.channel import Channel

RING: Final = "bus"
CAPACITY: Final = 1_000_000
LOCK: Final = "leader"
TTL_SECONDS: Final = 0.03
"""Short: whoever is killed with the lock holds everybody up for so long."""
STEPS_MAX: Final = 4
CALLS_MAX: Final = 100_000
"""A child that nobody kills ends all the same."""
NOTHING: Final = -1
"""Reported in place of an offset where there was none."""


def body_of(worker: int, call: int, place: int, count: int) -> bytes:
    return b"%d %d %d %d" % (worker, call, place, count)


def txn_id_of(worker: int, call: int) -> str:
    return f"{worker}-{call}"


def use_ring_until_killed(channel: Channel, path: Path, sync: SyncName, worker: int) -> None:
    """Add and take, one by one and in transactions.

    Report, after each call that was committed, its number, the offset of the first entry added,
    how many were, and the offsets of those that were taken.
    """
    chance = random.Random(worker)
    ring = open_directory(path, sync=sync).ring(RING)
    for call in range(CALLS_MAX):
        count, taken = chance.randrange(STEPS_MAX), chance.randrange(STEPS_MAX)
        if chance.random() < 0.5:
            report = _single_step(ring, worker, call, adds=count > 0)
        else:
            try:
                report = _transaction(ring, worker, call, count=count, takes=taken)
            except TransactionAborted:
                continue  # Held up for so long that others took over.
        channel.report([call, *report])


def _single_step(ring: Ring, worker: int, call: int, *, adds: bool) -> list[int]:
    txn_id = txn_id_of(worker, call)
    if adds:
        return [ring.enqueue(body_of(worker, call, 0, 1), txn_id, wait=None), 1]
    entry = ring.dequeue(txn_id, wait=None)
    return [NOTHING, 0] + ([] if entry is None else [entry.offset])


def _transaction(ring: Ring, worker: int, call: int, *, count: int, takes: int) -> list[int]:
    offsets, taken = [], []
    txn_id = txn_id_of(worker, call)
    with ring.transaction(txn_id, ttl=TTL_SECONDS, wait=None) as transaction:
        for place in range(count):
            offsets.append(transaction.enqueue(body_of(worker, call, place, count)))
        for _ in range(takes):
            entry = transaction.dequeue()
            if entry is not None:
                taken.append(entry.offset)
    return [offsets[0] if offsets else NOTHING, count, *taken]


def use_lock_until_killed(channel: Channel, path: Path, sync: SyncName, witness: Path) -> None:
    """Acquire the lock again and again; report each token, or what went wrong."""
    lock = open_directory(path, sync=sync).lock(LOCK, ttl=TTL_SECONDS)
    chance = random.Random(os.getpid())
    fd = os.open(witness, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(CALLS_MAX):
        held = lock.acquire()
        channel.report(held.token)
        if not _has_it_to_itself(held, fd):
            channel.report(f"somebody else was there while {held.token} was held")
        with contextlib.suppress(LockLost):  # Held up for so long that it expired.
            if chance.random() < 0.5:
                held.renew()
            if chance.random() < 0.9:
                held.release()


def _has_it_to_itself(held: HeldLock, fd: int) -> bool:
    """Leave our token where the lock guards, as a resource with fencing would take it."""
    if _exchange(held.token, fd) > held.token:
        return not held.is_held  # Only who comes late may find a later one there.
    seen = _exchange(held.token, fd)
    return seen == held.token or not held.is_held


def _exchange(token: int, fd: int) -> int:
    """Return the highest token that was there, which ours then is if it is higher."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        found = int(os.pread(fd, 40, 0) or b"0")
        if token > found:
            os.pwrite(fd, b"%040d" % token, 0)
        return found
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
