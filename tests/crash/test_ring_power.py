"""Rings and locks on a machine whose power is cut at any moment."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from segue.delivery import lock as lock_rules
from segue.delivery import ring as ring_rules
from segue.errors import RingFull, RingNotFound
from segue.log import options as log_options
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.stores.contract import Ring
from segue.stores.file import lock_core, ring_opening
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from segue.testing import ManualClock, RecordingDisk
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed

STORIES: Final = 25 if TORTURE else 1
STEPS: Final = 60
CUTS: Final = 60
"""For each story."""
CAPACITY: Final = 6
SEGMENT_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What was known to have happened when the disk had seen `moment` changes."""

    moment: int
    tail: int = 0
    head: int = 0
    bodies: tuple[bytes, ...] = ()
    ring_token: int = -1
    """-1 before the ring was made."""
    lock_token: int = 0


@pytest.fixture(autouse=True)
def small_and_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and deletions after every few steps, in segments that are quick to copy."""
    monkeypatch.setattr(ring_rules, "UNSAVED_RECORDS_MAX", 9)
    monkeypatch.setattr(lock_rules, "UNSAVED_RECORDS_MAX", 5)
    monkeypatch.setattr(log_options, "SEGMENT_BYTES_DEFAULT", SEGMENT_BYTES)
    monkeypatch.setattr(ring_opening, "SEGMENT_BYTES_DEFAULT", SEGMENT_BYTES)
    monkeypatch.setattr(ring_opening, "TRANSACTION_ENTRIES_MAX", 50)
    monkeypatch.setattr(lock_core, "SEGMENT_BYTES", SEGMENT_BYTES)


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_power_cut_takes_back_no_token_and_with_sync_always_nothing_that_returned(
    scratch: Path, sync: SyncName
) -> None:
    """C1, C5: what was told is kept, and no token is ever given twice."""
    seed = new_seed()
    with naming_seed(seed):
        for story in range(STORIES):
            chance = random.Random(f"{seed} {story} {sync}")
            root = scratch / f"{story}"
            root.mkdir()
            disk = RecordingDisk(root)
            facts = _live(root / "data", disk, sync, chance)
            for cut in range(CUTS):
                moment = chance.randrange(disk.moment + 1)
                known = max(
                    (fact for fact in facts if fact.moment <= moment), key=lambda fact: fact.moment
                )
                after = scratch / f"{story}-{cut}"
                with naming(f"story {story}, cut {cut} at {moment} of {disk.moment}, {known}"):
                    _check(after / "data", disk.after_power_cut(after, moment, chance), sync, known)


def _live(path: Path, disk: Disk, sync: SyncName, chance: random.Random) -> list[Fact]:
    """Use a ring and a lock at random and return what was known after each step."""
    assert isinstance(disk, RecordingDisk)
    facts = [Fact(moment=0)]
    store = _open(path, disk, sync)
    ring = store.ring("bus", capacity=CAPACITY, entries_per_segment=2)
    lock_token = 0
    bodies: list[bytes] = []
    for step in range(STEPS):
        if chance.random() < 0.1:
            store.close()
            store = _open(path, disk, sync)
            ring = store.ring("bus")
        elif chance.random() < 0.2:
            held = store.lock("leader", ttl=10).acquire(wait=0)
            lock_token = held.token
            held.release()
        else:
            _step_at_random(ring, b"%d" % step, chance, bodies)
        info = ring.info()
        facts.append(
            Fact(
                moment=disk.moment,
                tail=info.tail_offset,
                head=info.head_offset,
                bodies=tuple(bodies),
                ring_token=info.token,
                lock_token=lock_token,
            )
        )
    store.close()
    return facts


def _step_at_random(ring: Ring, body: bytes, chance: random.Random, bodies: list[bytes]) -> None:
    """Make one of the steps there are; add to `bodies` what was enqueued."""
    overwrite = chance.random() < 0.5

    def transact() -> None:
        with ring.transaction() as transaction:
            transaction.dequeue()
            added = [body + b" first", body + b" second"]
            for each in added:
                transaction.enqueue(each, overwrite_if_full=True)
        bodies.extend(added)

    def enqueue() -> None:
        ring.enqueue(body, overwrite_if_full=overwrite)
        bodies.append(body)

    steps: list[Callable[[], object]] = [transact, enqueue, enqueue, ring.dequeue]
    with suppress(RingFull):
        chance.choice(steps)()


def _check(path: Path, disk: Disk, sync: SyncName, known: Fact) -> None:
    with _open(path, disk, sync) as store:
        assert store.lock("leader").acquire(wait=0).token > known.lock_token
        try:
            ring = store.ring("bus", mode="open")
        except RingNotFound:
            assert known.ring_token < 0
            return
        info = ring.info()
        if sync == "always":
            assert info.tail_offset >= known.tail
            assert info.head_offset >= known.head
        assert 0 <= info.count <= CAPACITY
        if sync == "always":
            for offset in range(info.head_offset, info.tail_offset):
                entry = ring.get(offset)
                assert entry is not None
                assert offset >= known.tail or entry.body == known.bodies[offset]
        assert ring.enqueue(b"goes on", overwrite_if_full=True, wait=0) == info.tail_offset
        last = ring.get(info.tail_offset)
        assert last is not None
        assert last.body == b"goes on"
        assert ring.info().token > known.ring_token


def _open(path: Path, disk: Disk, sync: SyncName) -> FileStore:
    clock = ManualClock()
    return open_directory(path, sync=sync, clock=clock, ticks=clock.ticks, disk=disk)
