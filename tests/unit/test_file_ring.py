"""What rings and locks do in a directory: its files, damage to them, and disks that refuse."""

import errno
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue import Log
from segue.delivery import lock as lock_rules
from segue.delivery import ring as ring_rules
from segue.delivery.lock import Acquired, LockState, Released
from segue.delivery.ring import RingState
from segue.delivery.ring_events import (
    Booted,
    Commit,
    Created,
    Event,
    GroupAdded,
    Locked,
    Taken,
    decode_event,
    encode_event,
    pack_entry,
)
from segue.errors import (
    CorruptRecord,
    CorruptSegment,
    LockBusy,
    RingFull,
    RingNotFound,
    StorageFailed,
    StorageFull,
)
from segue.log import segment
from segue.log.options import SyncName
from segue.stores.contract import Ring
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from segue.testing import FaultyDisk, ManualClock
from tests.unit.support import flip_bit, segment_path, slot_position

FEW_RECORDS = 8


@pytest.fixture(autouse=True)
def often_and_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checkpoints after every few records, and one look at damage: nobody writes meanwhile."""
    monkeypatch.setattr(ring_rules, "UNSAVED_RECORDS_MAX", FEW_RECORDS)
    monkeypatch.setattr(lock_rules, "UNSAVED_RECORDS_MAX", FEW_RECORDS)
    monkeypatch.setattr(segment, "SETTLE_SECONDS", 0)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def ring_in(store: FileStore) -> Ring:
    return store.ring("bus", capacity=12, entries_per_segment=3)


def segments_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.q"))


def damage_first_record(path: Path) -> None:
    """Flip a bit in the slot of a segment's first record."""
    flip_bit(path, slot_position(0))


# Files -------------------------------------------------------------------------------------


def test_a_ring_that_is_not_there_leaves_no_directory(scratch: Path) -> None:
    with open_directory(scratch) as store:
        with pytest.raises(RingNotFound):
            store.ring("bus", mode="open")
        store.lock("leader").holder()

    assert [path.name for path in scratch.iterdir()] == ["segue.toml"]


def test_a_ring_whose_maker_was_killed_half_way_does_not_exist_and_can_be_made(
    scratch: Path,
) -> None:
    Log(scratch / "rings" / "bus" / "ledger").close()
    with open_directory(scratch) as store:
        assert store.rings() == []
        with pytest.raises(RingNotFound):
            store.ring("bus", mode="open")
        ring = store.ring("bus", capacity=3, mode="create")
        ring.enqueue(b"a")

        assert store.rings() == ["bus"]


def test_what_left_a_ring_is_deleted(scratch: Path) -> None:
    with open_directory(scratch, sync="os") as store:
        ring = ring_in(store)
        for number in range(200):
            ring.enqueue(b"%d" % number, overwrite_if_full=True)

        entries = segments_of(scratch / "rings" / "bus" / "entries")
        assert len(entries) <= (12 + 2 * FEW_RECORDS) // 3 + 3
        assert len(segments_of(scratch / "rings" / "bus" / "ledger")) == 2
        assert ring.info().count == 12


def test_a_segment_holds_as_many_entries_as_it_was_told(scratch: Path) -> None:
    with open_directory(scratch, sync="os") as store:
        ring = ring_in(store)
        for number in range(7):
            ring.enqueue(b"%d" % number)
        with ring.transaction() as transaction:
            for number in range(5):
                transaction.enqueue(b"%d" % number)

        with Log(scratch / "rings" / "bus" / "entries", read_only=True) as entries:
            counts = [info.count for info in entries.segments()]
        assert counts == [3, 3, 1, 5]


def test_a_lock_takes_up_two_small_segments_at_most(scratch: Path) -> None:
    with open_directory(scratch, sync="os") as store:
        lock = store.lock("leader")
        for _ in range(50):
            lock.acquire(wait=0).release()

        assert len(segments_of(scratch / "locks" / "leader")) == 2


def test_exclusive_stores_have_rings_and_locks_too(scratch: Path) -> None:
    with open_directory(scratch, exclusive=True) as store:
        ring = ring_in(store)
        for number in range(30):
            ring.enqueue(b"%d" % number, overwrite_if_full=True)
        with store.lock("leader"), ring.transaction() as transaction:
            transaction.dequeue()

        assert (ring.info().head_offset, ring.info().tail_offset) == (19, 30)


# Processes that died -----------------------------------------------------------------------


def test_a_commit_whose_process_died_before_it_was_seen_counts_at_the_next_turn(
    scratch: Path,
) -> None:
    """Written, not yet synced and shown: whoever comes next must see it before it decides."""
    with open_directory(scratch) as store, open_directory(scratch) as dying:
        ring = ring_in(store)
        ring_in(dying)
        payload, attr = pack_entry(
            Commit(token=1, txn_id="dying", count=1, taken=()), b"written and not shown"
        )
        entries = dying._rings["bus"]._entries.writer
        entries.begin()
        entries.put(payload, attr)
        entries.end(wrote=False)

        assert ring.info().tail_offset == 0
        assert ring.enqueue(b"after it") == 1
        assert ring.outcome("dying") is not None


# Damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["os", "always"])
def test_a_damaged_checkpoint_costs_nothing(scratch: Path, sync: SyncName) -> None:
    with open_directory(scratch, sync=sync) as store:
        ring = ring_in(store)
        ring.add_group("audit")
        for number in range(40):
            ring.enqueue(b"%d" % number, number, overwrite_if_full=True)
            ring.dequeue(f"out {number}")
        before = ring.info()
        outcomes = [ring.outcome(number) for number in range(40)]
    last = segments_of(scratch / "rings" / "bus" / "ledger")[-1]
    # Something must follow it, or it would pass for a torn tail.
    with open_directory(scratch, sync=sync) as store:
        ring_in(store).add_group("later")
        ring_in(store).remove_group("later")
    damage_first_record(last)
    with open_directory(scratch, sync=sync) as store:
        after = ring_in(store)

        assert after.info().groups == before.groups
        assert after.info().tail_offset == before.tail_offset
        assert after.info().token > before.token
        assert [after.outcome(number) for number in range(40)] == outcomes


def test_a_ledger_that_tells_nothing_is_reported_and_not_written_over(scratch: Path) -> None:
    with open_directory(scratch) as store:
        ring = ring_in(store)
        ring.enqueue(b"kept")
        ring.dequeue()
    damage_first_record(segment_path(scratch / "rings" / "bus" / "ledger", 0))

    with open_directory(scratch) as store, pytest.raises(CorruptSegment):
        store.ring("bus", capacity=12)


def test_a_damaged_entry_is_reported_by_get_and_passed_over_by_dequeue(scratch: Path) -> None:
    """C6: one flipped bit is reported and costs its own batch only."""
    with open_directory(scratch) as store:
        for number in range(6):
            ring_in(store).enqueue(b"%d" % number)
    damage_first_record(segment_path(scratch / "rings" / "bus" / "entries", 0))
    with open_directory(scratch) as store:
        ring = ring_in(store)
        with pytest.raises(CorruptRecord):
            ring.get(0)
        first = ring.dequeue()
        with ring.transaction() as transaction:
            second = transaction.dequeue()

        assert first is not None
        assert second is not None
        assert (first.body, second.body) == (b"1", b"2")


def test_a_ring_full_of_damage_does_not_stay_full(scratch: Path) -> None:
    with open_directory(scratch) as store:
        ring = store.ring("bus", capacity=1, entries_per_segment=1)
        ring.enqueue(b"lost")
        ring.dequeue()
        ring.enqueue(b"lost, too")
        ring.add_group("audit")  # Has nothing to do with it.
        ring.remove_group("audit")
    damage_first_record(segment_path(scratch / "rings" / "bus" / "entries", 1))
    with Log(scratch / "rings" / "bus" / "entries", segment_items=10_000) as entries:
        entries.roll()  # So that the damage is no torn tail.
    with open_directory(scratch) as store:
        ring = store.ring("bus")
        assert (ring.info().head_offset, ring.info().tail_offset) == (1, 2)
        with pytest.raises(RingFull):
            ring.enqueue(b"too much")

        assert ring.dequeue() is None
        assert ring.enqueue(b"fits") == 2


def test_tokens_of_a_lock_grow_over_damage(scratch: Path) -> None:
    """Whatever could not be read may have given a token."""
    with open_directory(scratch) as store:
        for _ in range(3):
            held = store.lock("leader").acquire(wait=0)
            held.release()
    flip_bit(segment_path(scratch / "locks" / "leader", 0), slot_position(4))

    with open_directory(scratch) as store:
        assert store.lock("leader").acquire(wait=0).token > held.token


def test_a_holder_outlives_damage_to_what_came_before(scratch: Path) -> None:
    clock = ManualClock()
    with open_directory(scratch, clock=clock, ticks=clock.ticks) as store:
        lock = store.lock("leader", ttl=10)
        lock.acquire(wait=0).release()
        held = lock.acquire(wait=0)
        for _ in range(3 * FEW_RECORDS):
            held.renew()
    damage_first_record(segments_of(scratch / "locks" / "leader")[0])
    with open_directory(scratch, clock=clock, ticks=clock.ticks) as store:
        with pytest.raises(LockBusy):
            store.lock("leader").acquire(wait=0)
        holder = store.lock("leader").holder()

        assert holder is not None
        assert holder[1] == held.token


# Disks that refuse -------------------------------------------------------------------------


def test_a_full_disk_refuses_an_entry_and_loses_none(scratch: Path) -> None:
    disk = FaultyDisk()
    with open_directory(scratch, disk=disk) as store:
        ring = ring_in(store)
        ring.enqueue(b"first")
        disk.fail(error=errno.ENOSPC, operation="write_at", lasting=True)
        with pytest.raises((StorageFull, StorageFailed)):
            ring.enqueue(b"too much")
        disk.heal()
    with open_directory(scratch) as store:
        bodies = []
        while (entry := ring_in(store).dequeue()) is not None:
            bodies.append(entry.body)

        assert bodies[0] == b"first"
        assert set(bodies[1:]) <= {b"too much"}


def test_a_commit_that_met_a_full_disk_can_be_tried_again(scratch: Path) -> None:
    """A new segment does not fit; then there is room again."""
    disk = FaultyDisk()
    with open_directory(scratch, sync="os", disk=disk) as store:
        ring = ring_in(store)
        for number in range(3):
            ring.enqueue(b"%d" % number)
        transaction = ring.transaction(ttl=60)
        transaction.dequeue()
        transaction.enqueue(b"again")
        disk.fail(error=errno.ENOSPC, operation="resize")
        with pytest.raises(StorageFull):
            transaction.commit()
        before = ring.info()
        transaction.commit()

        assert (before.head_offset, before.tail_offset) == (0, 3)
        assert (ring.info().head_offset, ring.info().tail_offset) == (1, 4)


def test_a_checkpoint_that_does_not_fit_fails_nobody(scratch: Path) -> None:
    disk = FaultyDisk()
    with open_directory(scratch, sync="os", disk=disk) as store:
        ring = ring_in(store)
        ring.enqueue(b"a")
        disk.fail(error=errno.ENOSPC, operation="resize", lasting=True)
        for _ in range(2 * FEW_RECORDS):
            ring.transaction().abort()
        assert ring.dequeue() is not None
        disk.heal()
        ring.enqueue(b"b")

        assert len(segments_of(scratch / "rings" / "bus" / "ledger")) == 2


def test_a_failed_sync_is_told_and_stops_the_ring_until_it_is_opened_again(scratch: Path) -> None:
    """C8: storage errors stop the writer, never lie."""
    disk = FaultyDisk()
    store = open_directory(scratch, disk=disk)
    ring = ring_in(store)
    ring.enqueue(b"kept")
    disk.fail(error=errno.EIO, operation="sync_data", lasting=True)
    with pytest.raises(StorageFailed):
        ring.enqueue(b"unknown")
    disk.heal()
    with pytest.raises(StorageFailed):
        ring.enqueue(b"refused")
    store.close()
    with open_directory(scratch) as again:
        entry = ring_in(again).dequeue()

        assert entry is not None
        assert entry.body == b"kept"


def test_a_lock_whose_sync_failed_was_not_acquired(scratch: Path) -> None:
    disk = FaultyDisk()
    store = open_directory(scratch, sync="os", disk=disk)
    lock = store.lock("leader")
    held = lock.acquire(wait=0)
    held.release()
    disk.fail(error=errno.EIO, operation="sync_data", lasting=True)
    with pytest.raises(StorageFailed):
        lock.acquire(wait=0)
    disk.heal()
    with pytest.raises(StorageFailed):
        lock.acquire(wait=0)
    store.close()
    shutil.rmtree(scratch / "locks")


# The rules by themselves -------------------------------------------------------------------


def test_events_come_back_as_they_were_written() -> None:
    taken = Taken(group="default", id=0, start=1, stop=3)
    events: list[Event] = [
        Created(capacity=12, entries_per_segment=3, boot=5),
        Booted(token=1 << 40, boot=6, tail=7),
        Locked(token=2, txn_id="t", since_us=1, deadline_us=2, boot=3),
        GroupAdded(name="audit", id=4, head=5),
        Commit(token=9, txn_id="\ud800", count=2, taken=(taken,)),
    ]

    assert [decode_event(encode_event(event)) for event in events] == events


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", b"[]", b"7", b"\xff", b'["new kind",1]', b'["locked"]', b'["locked","x"]', b"[1]"],
)
def test_what_makes_no_sense_is_no_event(payload: bytes) -> None:
    """A record of a later version must not stop this one."""
    assert decode_event(payload) is None
    assert lock_rules.decode_event(payload) is None


def test_events_of_a_later_version_may_say_more() -> None:
    assert decode_event(b'["unlocked",7,"and more"]') is not None


def test_the_order_of_the_two_logs_does_not_matter() -> None:
    """What the ledger says and what stands before entries may be taken in in any order."""
    created = Created(capacity=4, entries_per_segment=2, boot=1)
    locked = Locked(token=2, txn_id="slow", since_us=0, deadline_us=9, boot=1)
    first = Commit(token=1, txn_id="first", count=1, taken=())
    taken = Taken(group="default", id=0, start=0, stop=1)
    breaking = Commit(token=3, txn_id="breaking", count=1, taken=(taken,))
    ledger_first, entries_first = RingState(first_offset=0), RingState(first_offset=0)
    ledger_first.apply(created, offset=0)
    ledger_first.apply(locked, offset=1)
    for state in (entries_first, ledger_first):
        state.apply_entry(first, offset=0, size_bytes=1)
        state.apply_entry(breaking, offset=1, size_bytes=1)
    entries_first.apply(created, offset=0)
    entries_first.apply(locked, offset=1)

    for state in (ledger_first, entries_first):
        assert (state.lock(), state.token, state.tail) == (None, 3, 2)
        assert state.heads() == {"default": 1}
        assert state.outcome("breaking") is not None


def test_a_restored_lock_remembers_a_token_beyond_its_holders() -> None:
    state = LockState()
    held = Acquired(token=3, owner="ann", since_us=0, deadline_us=10, boot=1)
    state.apply(held, offset=0, attr=0)
    state.pass_over(4)
    restored = LockState()
    for number, event in enumerate(state.snapshot()):
        restored.apply(event, offset=number, attr=0)

    assert state.snapshot() == [Released(token=7), held]
    assert (restored.token, restored.holder(now_us=5, boot=1)) == (7, held)
