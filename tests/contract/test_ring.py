"""Seed 001, line by line: what a ring promises on every store."""

from collections.abc import Callable

import pytest

from segue.delivery import ring as ring_state
from segue.delivery.message import Body
from segue.errors import (
    InvalidArgument,
    RingExists,
    RingFull,
    RingNotFound,
    StoreClosed,
)
from segue.stores.contract import Ring, RingMode, Store
from segue.testing import ManualClock
from tests.contract.rings import drain, fill, make_ring
from tests.contract.worlds import World


@pytest.fixture
def ring(store: Store) -> Ring:
    """Room for twelve entries, three to a segment."""
    return make_ring(store)


@pytest.fixture
def there(ring: Ring, other: Store) -> Ring:
    """The same ring in another process."""
    return other.ring(ring.name)


# Making one ------------------------------------------------------------------------------


def test_capacity_is_rounded_up_to_whole_segments(store: Store) -> None:
    """1.2.4: ten entries, three to a segment, make twelve."""
    info = store.ring("bus", capacity=10, entries_per_segment=3).info()

    assert (info.capacity, info.entries_per_segment) == (12, 3)


def test_a_hundred_entries_share_a_segment_unless_told_otherwise(store: Store) -> None:
    """1.1.18: the example's figures."""
    info = store.ring("bus", capacity=1000).info()

    assert (info.capacity, info.entries_per_segment) == (1000, 100)


def test_a_new_ring_needs_a_capacity(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="capacity"):
        store.ring("bus")

    assert store.rings() == []


def test_opening_a_ring_that_is_not_there_leaves_nothing_behind(store: Store) -> None:
    """1.1.18, 1.2.5: `Queue does not exist`, and it still does not."""
    with pytest.raises(RingNotFound):
        store.ring("bus", mode="open", capacity=10)

    assert store.rings() == []


def test_creating_a_ring_that_is_there_is_refused(ring: Ring, store: Store, other: Store) -> None:
    """1.1.18, 1.2.5: `Queue already exists`, for this process and for others."""
    ring.enqueue(b"kept")
    for handle in (store, other):
        with pytest.raises(RingExists):
            handle.ring("bus", capacity=12, mode="create")

    assert drain(ring) == [b"kept"]


@pytest.mark.parametrize("mode", ["open", "open_or_create"])
def test_a_ring_that_is_there_is_opened(ring: Ring, other: Store, mode: RingMode) -> None:
    """1.1.18: initialise an existing queue."""
    ring.enqueue(b"kept")

    assert drain(other.ring("bus", mode=mode)) == [b"kept"]


@pytest.mark.parametrize("shape", [{"capacity": 13}, {"entries_per_segment": 4}])
def test_a_ring_keeps_its_size_and_refuses_another(
    ring: Ring, store: Store, other: Store, shape: dict[str, int]
) -> None:
    """1.1 c: the capacity is fixed; whoever thinks otherwise is told."""
    for handle in (store, other):
        with pytest.raises(InvalidArgument, match="keeps"):
            handle.ring("bus", **shape)  # type: ignore[arg-type] # Neither is a mode.

    assert ring.info().capacity == 12


def test_asking_again_for_what_was_rounded_up_is_no_other_size(store: Store, other: Store) -> None:
    store.ring("bus", capacity=10, entries_per_segment=3)

    assert other.ring("bus", capacity=10).info().capacity == 12
    assert store.ring("bus", capacity=11, entries_per_segment=3).info().capacity == 12


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3", 1 << 60])
def test_sizes_that_make_no_sense_are_refused(store: Store, number: int) -> None:
    with pytest.raises(InvalidArgument):
        store.ring("bus", capacity=number)
    with pytest.raises(InvalidArgument):
        store.ring("bus", capacity=10, entries_per_segment=number)

    assert store.rings() == []


def test_a_mode_or_name_that_makes_no_sense_is_refused(store: Store) -> None:
    with pytest.raises(InvalidArgument):
        store.ring("bus", capacity=3, mode="make")  # type: ignore[arg-type] # That is the test.
    with pytest.raises(InvalidArgument):
        store.ring("../bus", capacity=3)

    assert store.rings() == []


def test_rings_are_listed_by_name(store: Store, other: Store) -> None:
    for name in ("b", "a"):
        store.ring(name, capacity=3)

    assert store.rings() == other.rings() == ["a", "b"]


# First in, first out ---------------------------------------------------------------------


def test_entries_leave_in_the_order_they_came(ring: Ring, there: Ring) -> None:
    """1.1.1: first in, first out, over segments and processes."""
    bodies = [
        body for turn in range(4) for body in fill((ring, there)[turn % 2], 3, first=3 * turn)
    ]

    assert drain(there) == bodies


def test_an_empty_ring_yields_none(ring: Ring) -> None:
    """1.2.6: nothing to dequeue is no error."""
    fill(ring, 2)
    drain(ring)

    assert ring.dequeue() is None


def test_offsets_count_on_for_ever(ring: Ring) -> None:
    """1.1.7, 1.1.8: head and tail only advance, also round and round."""
    offsets = []
    for _ in range(10):
        offsets += [ring.enqueue(b"a"), ring.enqueue(b"b"), ring.enqueue(b"c")]
        drain(ring)

    assert offsets == list(range(30))


def test_an_entry_carries_its_offset_and_time(ring: Ring, clock: ManualClock) -> None:
    clock.advance(seconds=5)
    now_us = clock()
    ring.enqueue("grüße")
    clock.advance(seconds=5)
    entry = ring.dequeue()

    assert entry is not None
    assert (entry.offset, entry.body, entry.time_us) == (0, "grüße".encode(), now_us)
    assert entry.time.timestamp() == now_us / 1_000_000


@pytest.mark.parametrize("body", [b"", bytearray(b"a"), memoryview(b"a"), "text"])
def test_a_body_is_bytes_or_text(ring: Ring, body: Body) -> None:
    ring.enqueue(body)

    assert drain(ring) == [body.encode() if isinstance(body, str) else bytes(body)]


@pytest.mark.parametrize("body", [None, 1, ["a"], {"msg-id": 100}])
def test_any_other_body_is_refused(ring: Ring, body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        ring.enqueue(body)

    assert ring.info().tail_offset == 0


def test_an_entry_that_can_never_fit_is_refused_before_anything_is_written(ring: Ring) -> None:
    with pytest.raises(InvalidArgument):
        ring.enqueue(bytes(64 * 1024 * 1024))

    assert ring.info().tail_offset == 0
    assert ring.enqueue(bytes(1024 * 1024)) == 0


# Full ------------------------------------------------------------------------------------


def test_a_full_ring_refuses(ring: Ring) -> None:
    """1.1.11, 1.1.15, 1.2.5: full is tail - head == capacity; `Queue is full` and no change."""
    bodies = fill(ring, 12)
    with pytest.raises(RingFull) as refusal:
        ring.enqueue(b"too much")

    assert (refusal.value.name, refusal.value.capacity) == ("bus", 12)
    assert ring.info().count == 12
    assert drain(ring) == bodies


def test_what_leaves_makes_room(ring: Ring, there: Ring) -> None:
    fill(ring, 12)
    there.dequeue()

    assert ring.enqueue(b"fits") == 12
    with pytest.raises(RingFull):
        there.enqueue(b"too much")


def test_overwriting_drops_the_oldest(ring: Ring) -> None:
    """1.1.15: the head advances first, so what is overwritten is gone and nothing else."""
    bodies = fill(ring, 12)
    offset = ring.enqueue(b"new", overwrite_if_full=True)

    assert offset == 12
    assert ring.info().head_offset == 1
    assert ring.get(0) is None
    assert drain(ring) == [*bodies[1:], b"new"]


def test_overwriting_drops_nothing_while_there_is_room(ring: Ring) -> None:
    bodies = fill(ring, 3)
    ring.enqueue(b"new", overwrite_if_full=True)

    assert drain(ring) == [*bodies, b"new"]


def test_a_ring_that_overwrites_runs_for_ever(
    ring: Ring, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.1.7: no copying, no space management, the newest twelve are there."""
    monkeypatch.setattr(ring_state, "UNSAVED_RECORDS_MAX", 100)
    for number in range(150):
        ring.enqueue(b"%d" % number, overwrite_if_full=True)
    reopened = world.open().ring("bus")

    assert reopened.info().head_offset == 138
    assert drain(reopened) == [b"%d" % number for number in range(138, 150)]


# Reading without the lock ----------------------------------------------------------------


def test_any_entry_between_head_and_tail_can_be_read(ring: Ring, there: Ring) -> None:
    """1.1.16, 1.1.21: by offset, as often as one likes."""
    bodies = fill(ring, 7)
    ring.dequeue()

    assert [there.get(offset) for offset in (-1, 0, 7, 8, 1 << 70)] == [None] * 5
    entries = [there.get(offset) for offset in range(1, 7)]
    assert [entry.body for entry in entries if entry] == bodies[1:]
    assert [entry.offset for entry in entries if entry] == [1, 2, 3, 4, 5, 6]


def test_reading_needs_no_lock(ring: Ring, there: Ring) -> None:
    """1.1.8, 1.1.16: a transaction that holds the ring keeps no reader out."""
    fill(ring, 1)
    with ring.transaction("t"):
        entry = there.get(0)
        info = there.info()

    assert entry is not None
    assert info.locked_by == "t"


@pytest.mark.parametrize("offset", [True, 1.0, "1", None])
def test_an_offset_is_a_whole_number(ring: Ring, offset: int) -> None:
    with pytest.raises(InvalidArgument):
        ring.get(offset)


def test_info_tells_how_the_ring_stands(ring: Ring, there: Ring) -> None:
    """1.1.10, 1.1.20, 1.2.2, 1.2.7: name, size, head, tail AFTER the last entry, lock, token."""
    fill(ring, 5)
    there.dequeue()
    info = there.info()

    assert (info.name, info.capacity, info.entries_per_segment) == ("bus", 12, 3)
    assert (info.head_offset, info.tail_offset, info.count) == (1, 5, 4)
    assert dict(info.groups) == {"default": 1}
    assert info.locked_by is None
    assert info == ring.info()


# Lasting ---------------------------------------------------------------------------------


def test_everything_is_there_after_closing_and_opening_again(
    ring: Ring, store: Store, world: World
) -> None:
    ring.add_group("audit")
    bodies = fill(ring, 5)
    ring.dequeue("out")
    info = ring.info()
    store.close()
    again = world.open().ring("bus")

    assert again.info() == info
    assert again.outcome("out") is not None
    assert drain(again) == bodies[1:]
    assert drain(again, group="audit") == bodies


def test_everything_that_returned_is_there_after_a_kill(
    ring: Ring, store: Store, world: World
) -> None:
    """C1 for rings: also what a single dequeue has taken."""
    bodies = fill(ring, 5)
    ring.dequeue()
    with ring.transaction("last") as transaction:
        transaction.dequeue()
        transaction.enqueue(b"last")
    world.crash(store)
    again = world.open().ring("bus", mode="open")

    assert again.outcome("last") is not None
    assert drain(again) == [*bodies[2:], b"last"]


def test_a_restart_of_the_machine_changes_nothing_but_locks(ring: Ring, world: World) -> None:
    bodies = fill(ring, 5)
    ring.dequeue()
    world.restart()
    again = world.open().ring("bus")

    assert drain(again) == bodies[1:]
    assert again.enqueue(b"goes on") == 5


def test_a_process_that_was_away_for_long_catches_up(
    ring: Ring, there: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was written down and deleted in the meantime."""
    monkeypatch.setattr(ring_state, "UNSAVED_RECORDS_MAX", 100)
    fill(there, 3)
    ring.add_group("audit")
    for number in range(250):
        ring.enqueue(b"%d" % number, number, overwrite_if_full=True)
    drain(ring)

    assert there.info() == ring.info()
    assert there.outcome(249) == ring.outcome(249)
    assert drain(there, group="audit") == [b"%d" % number for number in range(238, 250)]


def test_a_closed_store_has_no_ring(ring: Ring, store: Store) -> None:
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: ring.enqueue(b"a"),
        ring.dequeue,
        lambda: ring.get(0),
        ring.info,
        ring.transaction,
        lambda: ring.add_group("audit"),
        lambda: store.ring("bus"),
        store.rings,
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
