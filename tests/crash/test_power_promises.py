"""Power cuts right after a call whose effect must last, one test per promise.

Random power cuts find these only by luck; here the power fails at the one moment that matters.
"""

from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

from segue import QueueRules
from segue.log.staging import Batch
from segue.stores.contract import Store
from segue.stores.opening import open_directory
from segue.testing import ManualClock, RecordingDisk
from tests.crash.replay import naming
from tests.crash.workload import SEGMENT_ITEMS, Setting

SEEDS: Final = 10
STAGED_BATCHES: Final = 4
STAGED_BYTES: Final = 700


def opened(path: Path, disk: RecordingDisk, clock: ManualClock) -> Store:
    """Open a store that syncs by itself only once a minute."""
    return open_directory(
        path / "data", sync_interval_ms=60_000, disk=disk, clock=clock, ticks=clock.ticks
    )


def test_message_popped_with_sync_always_stays_popped(scratch: Path) -> None:
    before = scratch / "before"
    before.mkdir()
    disk, clock = RecordingDisk(before), ManualClock()
    with opened(before, disk, clock) as store:
        queue = store.queue("jobs")
        queue.push_many([b"0", b"1", b"2"])
        assert queue.pop() is not None
        moment = disk.moment

    for seed in range(SEEDS):
        after = scratch / f"after {seed}"
        restarted = disk.after_power_cut(after, moment, Random(seed))
        with opened(after, restarted, clock) as store:
            assert [each.body for each in store.queue("jobs").pop_many(9)] == [b"1", b"2"]


def test_rules_and_pause_survive(scratch: Path) -> None:
    before = scratch / "before"
    before.mkdir()
    disk, clock = RecordingDisk(before), ManualClock()
    with opened(before, disk, clock) as store:
        queue = store.queue("jobs")
        queue.push(b"0")
        queue.configure(QueueRules(capacity=7))
        ruled = disk.moment
        queue.pause()
        paused = disk.moment

    for seed in range(SEEDS):
        for moment in (ruled, paused):
            after = scratch / f"after {moment} {seed}"
            restarted = disk.after_power_cut(after, moment, Random(seed))
            with opened(after, restarted, clock) as store:
                queue = store.queue("jobs")
                assert queue.rules.capacity == 7
                assert queue.stats().paused is (moment == paused)


def test_acks_outlast_the_segments_that_they_made_room_for(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that has forgotten an ack still has the message, or it would count what is gone."""
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", 4)
    before = scratch / "before"
    before.mkdir()
    disk, clock = RecordingDisk(before), ManualClock()
    with opened(before, disk, clock) as store:
        queue = store.queue("jobs", QueueRules(segment_items=4))
        queue.push_many([b"%d" % number for number in range(24)])
        for _ in range(3):
            queue.ack_many(queue.lease_many(6))
        moment = disk.moment

    for seed in range(SEEDS):
        after = scratch / f"after {seed}"
        restarted = disk.after_power_cut(after, moment, Random(seed))
        with naming(f"seed {seed}"), opened(after, restarted, clock) as store:
            queue = store.queue("jobs")
            assert queue.count().ready == len(queue.peek(24))


def test_staged_batches_survive_all_or_none(scratch: Path) -> None:
    setting = Setting(sync="always")
    batches = [
        Batch(
            lengths=np.full(SEGMENT_ITEMS, STAGED_BYTES, np.uint32),
            attrs=np.zeros(SEGMENT_ITEMS, np.uint64),
            data=memoryview(Random(number).randbytes(STAGED_BYTES * SEGMENT_ITEMS)),
        )
        for number in range(STAGED_BATCHES)
    ]
    records = STAGED_BATCHES * SEGMENT_ITEMS
    root = scratch / "before"
    root.mkdir()
    disk = RecordingDisk(root)
    with setting.open(root / "log", disk=disk) as log:
        log.append(b"before")
        begun = disk.moment
        writer = log.writer
        with writer.mutex:
            try:
                writer.begin()
                offset = writer.put_staged(batches)
            finally:
                writer.end(wrote=True)
        end = disk.moment
        writer.sync(offset + records)
        assert len(log.segments()) == 2

    for moment in range(begun, end + 1):
        for seed in range(3):
            with naming(f"cut at {moment} of {end}, seed {seed}"):
                target = scratch / f"after {moment} {seed}"
                after = disk.after_power_cut(target, moment, Random(seed))
                with setting.open(target / "log", disk=after) as log:
                    assert len(list(log.records())) in {1, 1 + records}
