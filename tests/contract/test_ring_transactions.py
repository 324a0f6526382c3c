"""Seed 001: several steps as one, and how to learn what became of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from segue.errors import (
    InvalidArgument,
    RingFull,
    TransactionAborted,
)
from segue.stores.contract import Ring, Store
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


# Transactions ----------------------------------------------------------------------------


def test_a_transaction_happens_at_once(ring: Ring, there: Ring) -> None:
    """1.1.5, 1.1.12: pointers move and the lock is released in one step."""
    fill(ring, 2)
    with ring.transaction("t", ttl=5) as transaction:
        taken = [transaction.dequeue(), transaction.dequeue(), transaction.dequeue()]
        offsets = [transaction.enqueue(b"new"), transaction.enqueue(b"newer")]
        before = there.info()
        assert (before.head_offset, before.tail_offset) == (0, 2)
        assert there.get(2) is None
    after = there.info()

    assert [entry and entry.offset for entry in taken] == [0, 1, None]
    assert offsets == [2, 3]
    assert (after.head_offset, after.tail_offset, after.locked_by) == (2, 4, None)
    assert drain(there) == [b"new", b"newer"]


def test_an_exception_undoes_a_transaction(ring: Ring, there: Ring) -> None:
    """1.1.5: there is nothing to roll back."""
    fill(ring, 1)

    def fail() -> None:
        with ring.transaction() as transaction:
            transaction.dequeue()
            transaction.enqueue(b"never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert there.info().locked_by is None
    assert drain(there) == [b"entry 0"]


def test_an_aborted_transaction_has_done_nothing_and_stays_aborted(ring: Ring) -> None:
    with ring.transaction() as transaction:
        transaction.enqueue(b"never")
        transaction.abort()
        transaction.abort()

    assert ring.info().locked_by is None
    assert ring.dequeue() is None
    with pytest.raises(TransactionAborted):
        transaction.commit()
    with pytest.raises(TransactionAborted):
        transaction.enqueue(b"too late")


def test_a_transaction_commits_once(ring: Ring) -> None:
    with ring.transaction() as transaction:
        transaction.enqueue(b"once")
        transaction.commit()

    for again in (transaction.commit, transaction.dequeue, lambda: transaction.enqueue(b"twice")):
        with pytest.raises(InvalidArgument):
            again()
    transaction.abort()
    assert drain(ring) == [b"once"]


def test_a_transaction_without_steps_lets_go_and_is_known(ring: Ring, there: Ring) -> None:
    with ring.transaction("idle", ttl=60):
        pass
    outcome = there.outcome("idle")

    assert there.info().locked_by is None
    assert outcome is not None
    assert (list(outcome.enqueued), dict(outcome.dequeued)) == ([], {})


def test_a_transaction_sees_its_own_steps(ring: Ring) -> None:
    with ring.transaction() as transaction:
        offset = transaction.enqueue(b"mine")
        entry = transaction.dequeue()
        nothing = transaction.dequeue()

    assert entry is not None
    assert (entry.offset, entry.body, nothing) == (offset, b"mine", None)
    assert (ring.info().head_offset, ring.info().tail_offset) == (1, 1)


def test_a_transaction_that_finds_the_ring_full_can_make_room_and_go_on(ring: Ring) -> None:
    fill(ring, 12)
    with ring.transaction() as transaction:
        with pytest.raises(RingFull):
            transaction.enqueue(b"refused")
        transaction.dequeue()
        assert transaction.enqueue(b"fits") == 12
        with pytest.raises(RingFull):
            transaction.enqueue(b"refused again")
        assert transaction.enqueue(b"pushes in", overwrite_if_full=True) == 13
        following = transaction.dequeue()

    assert following is not None
    assert following.offset == 2
    assert (ring.info().head_offset, ring.info().tail_offset) == (3, 14)


def test_a_transaction_may_be_larger_than_a_segment_and_than_the_ring(
    ring: Ring, there: Ring
) -> None:
    with ring.transaction(ttl=60) as transaction:
        for number in range(40):
            transaction.enqueue(b"%d" % number, overwrite_if_full=True)

    assert drain(there) == [b"%d" % number for number in range(28, 40)]


def test_entries_of_many_threads_and_processes_all_arrive(store: Store, other: Store) -> None:
    """1.1.2: operations are serialised; each gets an offset of its own."""
    rings = [handle.ring("wide", capacity=200) for handle in (store, other)]

    def work(number: int) -> list[int]:
        ring = rings[number % 2]
        alone = [ring.enqueue(b"%d alone" % number, wait=None) for _ in range(5)]
        with ring.transaction(ttl=60, wait=None) as transaction:
            return alone + [transaction.enqueue(b"%d together" % number) for _ in range(5)]

    with ThreadPoolExecutor(6) as threads:
        offsets = [offset for found in threads.map(work, range(6)) for offset in found]

    assert sorted(offsets) == list(range(60))
    assert len(drain(rings[0])) == 60


def test_an_entry_is_dequeued_once_by_many_threads_and_processes(
    store: Store, other: Store
) -> None:
    rings = [handle.ring("wide", capacity=100) for handle in (store, other)]
    bodies = fill(rings[0], 60)
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda number: drain(rings[number % 2]), range(4)))

    assert sorted(body for part in taken for body in part) == sorted(bodies)


# Transaction ids and outcomes ------------------------------------------------------------


def test_a_transaction_id_may_be_used_again(ring: Ring) -> None:
    """1.1.17: it must be unique among concurrent requests only; numbers are taken as text."""
    ring.enqueue(b"a", 1)
    ring.enqueue(b"b", 1)
    first = ring.dequeue(1)
    outcome = ring.outcome("1")

    assert first is not None
    assert first.body == b"a"
    assert outcome is not None
    assert dict(outcome.dequeued) == {"default": range(1)}
    assert outcome == ring.outcome(1)


@pytest.mark.parametrize("txn_id", ["", "x" * 201, True, 1.5, b"x", ["x"]])
def test_a_transaction_id_that_makes_no_sense_is_refused(ring: Ring, txn_id: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ring.enqueue(b"a", txn_id),
        lambda: ring.dequeue(txn_id),
        lambda: ring.transaction(txn_id),
        lambda: ring.outcome(txn_id),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()

    assert ring.info().token == 0


def test_transactions_without_an_id_get_one_of_their_own(ring: Ring, clock: ManualClock) -> None:
    first = ring.transaction()
    clock.advance(seconds=1)
    second = ring.transaction()

    assert first.txn_id
    assert second.txn_id not in {"", first.txn_id}
    assert ring.info().locked_by == second.txn_id


def test_what_a_transaction_committed_can_be_looked_up(ring: Ring, there: Ring) -> None:
    """1.1.25: an unknown outcome can be resolved, by any process."""
    fill(ring, 3)
    with ring.transaction("move") as transaction:
        transaction.dequeue()
        transaction.dequeue()
        transaction.enqueue(b"moved")
    outcome = there.outcome("move")

    assert outcome is not None
    assert (outcome.txn_id, outcome.token) == ("move", transaction.token)
    assert outcome.enqueued == range(3, 4)
    assert dict(outcome.dequeued) == {"default": range(2)}


def test_single_steps_with_an_id_can_be_looked_up_too(ring: Ring, there: Ring) -> None:
    ring.enqueue(b"a", "in")
    ring.dequeue("out")
    added, taken = there.outcome("in"), there.outcome("out")

    assert added is not None
    assert (added.enqueued, dict(added.dequeued)) == (range(1), {})
    assert taken is not None
    assert (list(taken.enqueued), dict(taken.dequeued)) == ([], {"default": range(1)})
    assert taken.token > added.token


def test_what_was_not_committed_is_not_known(ring: Ring) -> None:
    fill(ring, 12)
    ring.transaction("aborted").abort()
    with pytest.raises(RingFull):
        ring.enqueue(b"no", "refused")

    assert [ring.outcome(txn_id) for txn_id in ("aborted", "refused", "unheard of")] == [None] * 3


def test_a_thousand_outcomes_are_remembered_also_by_who_comes_later(
    ring: Ring, world: World
) -> None:
    for number in range(1_250):
        ring.enqueue(b"x", number, overwrite_if_full=True)
    later = world.open().ring("bus")

    for reader in (ring, later):
        known = [reader.outcome(number) for number in range(250, 1_250)]
        assert [outcome and outcome.enqueued.start for outcome in known] == [*range(250, 1_250)]
