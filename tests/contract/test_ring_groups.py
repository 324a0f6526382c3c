"""Seed 001: several groups of consumers on one ring."""

import pytest

from segue.errors import (
    InvalidArgument,
    RingFull,
    TransactionAborted,
)
from segue.stores.contract import Ring, Store
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


# Groups ----------------------------------------------------------------------------------


def test_each_group_reads_everything_on_its_own(ring: Ring, there: Ring) -> None:
    """1.1.23: several consumer groups, tracked separately."""
    ring.add_group("audit")
    bodies = fill(ring, 5)

    assert drain(there, group="audit") == bodies
    assert drain(ring) == bodies
    assert dict(ring.info().groups) == {"default": 5, "audit": 5}


def test_entries_wait_for_the_slowest_group(ring: Ring, there: Ring) -> None:
    ring.add_group("slow")
    fill(ring, 12)
    drain(ring)
    with pytest.raises(RingFull):
        there.enqueue(b"no")
    there.dequeue(group="slow")

    assert there.enqueue(b"yes") == 12
    assert there.info().head_offset == 1


def test_overwriting_leaves_slow_groups_a_gap(ring: Ring) -> None:
    """A group that was overtaken goes on with the oldest entry there is."""
    ring.add_group("slow")
    fill(ring, 12)
    drain(ring)
    for number in range(2):
        ring.enqueue(b"new %d" % number, overwrite_if_full=True)
    entry = ring.dequeue(group="slow")

    assert entry is not None
    assert entry.offset == 2
    assert drain(ring) == [b"new 0", b"new 1"]


def test_a_new_group_starts_at_the_head_or_at_the_tail(ring: Ring) -> None:
    bodies = fill(ring, 4)
    ring.dequeue()
    ring.add_group("from-head")
    ring.add_group("from-tail", start="tail")
    ring.enqueue(b"new")

    assert drain(ring, group="from-head") == [*bodies[1:], b"new"]
    assert drain(ring, group="from-tail") == [b"new"]


def test_adding_a_group_again_leaves_it_where_it_is(ring: Ring, there: Ring) -> None:
    ring.add_group("audit")
    fill(ring, 3)
    ring.dequeue(group="audit")
    there.add_group("audit", start="tail")

    assert ring.info().groups["audit"] == 1


def test_a_group_that_is_removed_holds_nothing_back(ring: Ring, there: Ring) -> None:
    ring.add_group("slow")
    fill(ring, 12)
    drain(ring)

    assert there.remove_group("slow")
    assert not ring.remove_group("slow")
    assert ring.enqueue(b"fits") == 12
    with pytest.raises(InvalidArgument, match="slow"):
        ring.dequeue(group="slow")


def test_a_group_of_an_old_name_is_a_new_group(ring: Ring, world: World) -> None:
    """What the one before took in a transaction says nothing about this one."""
    fill(ring, 4)
    ring.add_group("again")
    with ring.transaction() as transaction:
        for _ in range(3):
            transaction.dequeue(group="again")
        transaction.enqueue(b"entry 4")
    ring.remove_group("again")
    ring.add_group("again")

    for reader in (ring, world.open().ring("bus")):
        assert dict(reader.info().groups) == {"default": 0, "again": 0}


def test_the_default_group_is_always_there(ring: Ring) -> None:
    with pytest.raises(InvalidArgument):
        ring.remove_group("default")

    assert dict(ring.info().groups) == {"default": 0}


@pytest.mark.parametrize("group", ["", "../x", "x" * 200, 7, None])
def test_a_group_needs_a_plain_name(ring: Ring, group: str) -> None:
    with pytest.raises(InvalidArgument):
        ring.add_group(group)
    with pytest.raises(InvalidArgument):
        ring.dequeue(group=group)
    with pytest.raises(InvalidArgument):
        ring.add_group("good", start="middle")  # type: ignore[arg-type] # That is the test.

    assert list(ring.info().groups) == ["default"]


def test_a_transaction_may_take_for_several_groups(ring: Ring, there: Ring) -> None:
    ring.add_group("audit")
    fill(ring, 3)
    with ring.transaction("both") as transaction:
        transaction.dequeue()
        transaction.dequeue(group="audit")
        transaction.dequeue(group="audit")
    outcome = there.outcome("both")

    assert outcome is not None
    assert dict(outcome.dequeued) == {"default": range(1), "audit": range(2)}
    assert dict(there.info().groups) == {"default": 1, "audit": 2}


def test_a_transaction_cannot_commit_for_a_group_that_is_gone(ring: Ring, there: Ring) -> None:
    """Groups come and go without the lock; what was done for one of them then does not count."""
    ring.add_group("audit")
    fill(ring, 2)
    transaction = ring.transaction()
    transaction.dequeue(group="audit")
    there.remove_group("audit")
    there.add_group("audit")
    with pytest.raises(TransactionAborted, match="audit"):
        transaction.commit()

    assert there.info().groups["audit"] == 0


def test_a_transaction_cannot_fill_what_a_new_group_waits_for(ring: Ring, there: Ring) -> None:
    fill(ring, 12)
    transaction = ring.transaction()
    transaction.dequeue()
    transaction.enqueue(b"instead")
    there.add_group("late")
    with pytest.raises(TransactionAborted, match="group"):
        transaction.commit()

    assert ring.info().tail_offset == 12
