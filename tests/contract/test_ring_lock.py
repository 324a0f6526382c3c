"""Seed 001: the lock of a ring, who may break it, and what that does to whom."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from segue.errors import (
    InvalidArgument,
    LockBusy,
    TransactionAborted,
)
from segue.stores.contract import Ring, Store
from segue.testing import ManualClock
from tests.contract.rings import drain, fill, make_ring, meanwhile
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def ring(store: Store) -> Ring:
    """Room for twelve entries, three to a segment."""
    return make_ring(store)


@pytest.fixture
def there(ring: Ring, other: Store) -> Ring:
    """The same ring in another process."""
    return other.ring(ring.name)


# The lock --------------------------------------------------------------------------------


def test_nobody_else_may_step_while_a_transaction_holds_the_ring(ring: Ring, there: Ring) -> None:
    """1.1.2, 1.1.12, 1.2.5: `Failed to acquire lock`, and who holds it for how long."""
    ring.transaction("first", ttl=2)
    steps: list[Callable[[], object]] = [
        lambda: there.enqueue(b"no", wait=0),
        lambda: there.dequeue(wait=0),
        lambda: there.transaction("second", wait=0),
        lambda: ring.enqueue(b"no", "first", wait=0),
    ]
    for step in steps:
        with pytest.raises(LockBusy) as refusal:
            step()
        assert (refusal.value.name, refusal.value.owner) == ("bus", "first")
        assert refusal.value.seconds_left == 2.0

    assert there.info().tail_offset == 0


def test_a_call_gives_up_after_the_wait_it_was_given(ring: Ring, there: Ring) -> None:
    ring.transaction("first", ttl=60)

    with pytest.raises(LockBusy):
        there.enqueue(b"no", wait=timedelta(milliseconds=20))
    with pytest.raises(TimeoutError):
        there.transaction(wait=0.02)


@pytest.mark.parametrize("wait", [-1, "1", float("nan"), True])
def test_a_wait_that_makes_no_sense_is_refused(ring: Ring, wait: float) -> None:
    for call in (lambda: ring.enqueue(b"a", wait=wait), lambda: ring.transaction(wait=wait)):
        with pytest.raises(InvalidArgument):
            call()

    assert ring.info().tail_offset == 0


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, 8 * 86_400, "1", None])
def test_a_lock_lasts_a_millisecond_to_a_week(ring: Ring, ttl: float) -> None:
    with pytest.raises(InvalidArgument):
        ring.transaction(ttl=ttl)

    assert ring.info().token == 0


def test_who_waits_goes_on_when_the_lock_is_let_go(ring: Ring, there: Ring) -> None:
    transaction = ring.transaction("first", ttl=60)
    transaction.enqueue(b"first")
    with meanwhile(lambda: there.enqueue(b"second", wait=LIMIT_SECONDS)):
        transaction.commit()

    assert drain(ring) == [b"first", b"second"]


def test_who_waits_goes_on_when_the_lock_expires(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    ring.transaction("first", ttl=60)
    with meanwhile(lambda: there.enqueue(b"second", wait=None)):
        clock.advance(seconds=60)

    assert drain(there) == [b"second"]


def test_a_timed_out_lock_is_broken_by_the_next_request(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    """1.1.3, 1.1.13: a slow or dead client holds nobody up for longer than its lock lasts."""
    first = ring.transaction("first", ttl=0.2)
    clock.advance(ms=199)
    with pytest.raises(LockBusy):
        there.transaction("second", wait=0)
    clock.advance(ms=1)
    second = there.transaction("second", wait=0)

    assert second.token > first.token
    assert ring.info().locked_by == "second"


def test_a_lock_that_timed_out_holds_nothing_up(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    ring.transaction("first", ttl=0.2)
    clock.advance(ms=200)

    assert there.info().locked_by is None
    assert there.enqueue(b"goes through", wait=0) == 0


def test_a_broken_transaction_cannot_commit(ring: Ring, there: Ring, clock: ManualClock) -> None:
    """1.1.4, 1.1.13: its request is aborted, and nothing of it has happened."""
    fill(ring, 2)
    broken = ring.transaction("first")
    broken.enqueue(b"late")
    broken.dequeue()
    clock.advance(ms=200)
    there.transaction("second").abort()
    with pytest.raises(TransactionAborted) as abortion:
        broken.commit()

    assert (abortion.value.ring, abortion.value.txn_id) == ("bus", "first")
    assert (ring.info().head_offset, ring.info().tail_offset) == (0, 2)
    assert ring.outcome("first") is None


def test_a_late_write_cannot_overwrite_a_later_entry(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    """1.1.6, 1.1.14: the token decides, and the offset belongs to who committed."""
    late = ring.transaction("first")
    assert late.enqueue(b"late") == 0
    clock.advance(ms=200)
    assert there.enqueue(b"valid") == 0
    with pytest.raises(TransactionAborted):
        late.commit()

    assert drain(ring) == [b"valid"]


def test_the_same_transaction_id_does_not_help_a_broken_transaction(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    """1.1 d: the commit goes by the fencing token, never by the caller's id."""
    broken = ring.transaction("same")
    broken.enqueue(b"late")
    clock.advance(ms=200)
    valid = there.transaction("same")
    valid.enqueue(b"valid")
    with pytest.raises(TransactionAborted):
        broken.commit()
    valid.commit()

    assert drain(ring) == [b"valid"]


def test_a_dequeue_whose_lock_was_broken_takes_nothing(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    """1.1 e: dequeues are fenced as enqueues are."""
    fill(ring, 2)
    broken = ring.transaction()
    broken.dequeue()
    clock.advance(ms=200)
    there.dequeue()
    with pytest.raises(TransactionAborted):
        broken.commit()

    assert ring.info().head_offset == 1


def test_a_broken_transaction_is_told_at_its_next_step(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    broken = ring.transaction()
    clock.advance(ms=200)
    there.enqueue(b"valid")

    with pytest.raises(TransactionAborted):
        broken.enqueue(b"late")
    with pytest.raises(TransactionAborted):
        broken.dequeue()


def test_a_transaction_that_expired_and_was_not_missed_may_commit(
    ring: Ring, clock: ManualClock
) -> None:
    """1.1.4: what counts is whether the lock is still held, not how long it took."""
    slow = ring.transaction()
    slow.enqueue(b"slow")
    clock.advance(seconds=3_600)
    slow.commit()

    assert drain(ring) == [b"slow"]


def test_letting_go_of_a_lock_that_was_broken_frees_nobody_elses(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    broken = ring.transaction("first")
    clock.advance(ms=200)
    there.transaction("second")
    broken.abort()

    assert ring.info().locked_by == "second"


def test_setting_the_wall_clock_breaks_no_lock_and_keeps_none(
    ring: Ring, there: Ring, clock: ManualClock
) -> None:
    transaction = ring.transaction("first")
    clock.step(seconds=86_400)
    with pytest.raises(LockBusy):
        there.enqueue(b"no", wait=0)
    clock.step(seconds=-10 * 86_400)
    clock.advance(ms=200)
    there.enqueue(b"yes", wait=0)

    with pytest.raises(TransactionAborted):
        transaction.commit()


def test_a_dead_process_holds_the_ring_only_until_its_lock_expires(
    ring: Ring, there: Ring, store: Store, world: World
) -> None:
    """1.1.3: the client died in the middle of its transaction."""
    transaction = ring.transaction("dead")
    transaction.enqueue(b"never")
    world.crash(store)
    with pytest.raises(LockBusy):
        there.enqueue(b"no", wait=0)
    world.clock.advance(ms=200)
    there.enqueue(b"yes", wait=0)

    assert drain(there) == [b"yes"]


def test_a_lock_does_not_outlast_the_machine(ring: Ring, world: World) -> None:
    """Ticks start over with the machine, so a deadline from before says nothing."""
    world.clock.advance(seconds=100)
    ring.transaction("before", ttl=3_600)
    world.restart(leases_last=3_600)
    after = world.open().ring("bus")

    assert after.info().locked_by is None
    assert after.enqueue(b"goes through", wait=0) == 0


def test_tokens_grow_with_every_commit_and_lock(ring: Ring, there: Ring, world: World) -> None:
    """1.1.14: also over processes, crashes and restarts of the machine."""
    tokens = [ring.info().token]
    ring.enqueue(b"a")
    tokens.append(there.info().token)
    there.dequeue()
    tokens.append(ring.info().token)
    tokens += [there.transaction(ttl=0.001).token]
    world.restart(leases_last=1)
    tokens += [world.open().ring("bus").transaction().token]

    assert tokens == sorted(set(tokens))
