"""A queue with a rate delivers no faster, however many take from it."""

import pytest

from segue import QueueRules
from segue.errors import InvalidArgument, QueueEmpty, QueueLocked
from segue.stores.contract import Store
from segue.testing import ManualClock
from tests.contract.queue_support import push_all
from tests.contract.worlds import World


def test_messages_come_one_interval_apart(store: Store, clock: ManualClock) -> None:
    """Before that the queue is as good as empty."""
    queue = store.queue("jobs", QueueRules(rate=2))
    push_all(queue, 3)
    assert queue.lease().body == b"0"
    assert not queue.wait(0)
    with pytest.raises(QueueEmpty):
        queue.lease()
    assert queue.pop() is None
    assert queue.lease_many(5) == []

    clock.advance(ms=499)
    assert not queue.wait(0)
    clock.advance(ms=1)
    assert queue.wait(0)
    assert [job.body for job in queue.lease_many(5)] == [b"1"]


def test_a_rest_allows_a_burst(store: Store, clock: ManualClock) -> None:
    """So many at once, then one by one; a longer rest allows no more."""
    queue = store.queue("jobs", QueueRules(rate=10, rate_burst=3))
    push_all(queue, 20)

    assert len(queue.lease_many(10)) == 3
    clock.advance(ms=100)
    assert len(queue.lease_many(10)) == 1
    clock.advance(ms=200)
    assert len(queue.pop_many(10)) == 2
    clock.advance(seconds=20)
    assert len(queue.pop_many(10)) == 3
    assert queue.count().ready == 11


def test_everybody_shares_the_rate(store: Store, other: Store, clock: ManualClock) -> None:
    """Whoever takes takes from all."""
    queue = store.queue("jobs", QueueRules(rate=1, rate_burst=2))
    theirs = other.queue("jobs")
    push_all(queue, 10)
    assert theirs.pop() is not None
    assert queue.lease().tries == 1
    assert (theirs.wait(0), queue.wait(0)) == (False, False)

    clock.advance(seconds=1)
    assert (theirs.wait(0), queue.wait(0)) == (True, True)
    queue.lease()
    assert not theirs.wait(0)


def test_what_is_not_delivered_costs_nothing(store: Store, clock: ManualClock) -> None:
    """Asking, waiting, peeking, and outlived messages leave the rate as it is."""
    queue = store.queue("jobs", QueueRules(rate=1, rate_burst=1))
    assert queue.pop() is None
    queue.push(b"old", ttl=1)
    queue.push(b"new")
    clock.advance(seconds=2)
    assert queue.wait(0)
    assert [message.body for message in queue.peek(5)] == [b"new"]

    assert queue.pop_many(5)[0].body == b"new"
    assert not queue.wait(0)


def test_a_new_rate_begins_anew(store: Store, other: Store) -> None:
    """What was due by the old one says nothing."""
    queue = store.queue("jobs", QueueRules(rate=0.001))
    push_all(queue, 6)
    queue.lease()
    assert not queue.wait(0)

    other.queue("jobs").configure(QueueRules(rate=1, rate_burst=2))
    assert len(queue.lease_many(5)) == 2
    other.queue("jobs").configure(QueueRules())
    assert len(queue.lease_many(5)) == 3


def test_other_rules_leave_the_rate_as_it_is(store: Store) -> None:
    """A change of something else is no way around it."""
    queue = store.queue("jobs", QueueRules(rate=1))
    push_all(queue, 2)
    queue.lease()
    queue.configure(QueueRules(rate=1, lease_ttl=5))

    assert not queue.wait(0)


def test_the_rate_outlives_a_process_and_not_the_machine(store: Store, world: World) -> None:
    """Its ticks begin anew with the machine."""
    queue = store.queue("jobs", QueueRules(rate=0.01))
    push_all(queue, 3)
    queue.lease()
    world.crash(store)
    assert not world.open().queue("jobs").wait(0)

    world.restart(leases_last=100)
    again = world.open().queue("jobs")
    assert again.wait(0)
    assert len(again.lease_many(3)) == 1


def test_strict_mode_and_a_rate_go_together(store: Store, clock: ManualClock) -> None:
    """Locked while one is out; afterwards the rate counts."""
    queue = store.queue("jobs", QueueRules(max_leases=1, rate=1))
    push_all(queue, 2)
    job = queue.lease()
    clock.advance(seconds=1)
    with pytest.raises(QueueLocked):
        queue.lease()
    job.ack()
    queue.lease().ack()
    with pytest.raises(QueueEmpty):
        queue.lease()


def test_a_group_and_a_rate_go_together(store: Store, clock: ManualClock) -> None:
    """Who waits for its group uses nothing of the rate."""
    queue = store.queue("jobs", QueueRules(rate=1))
    for body in (b"a1", b"a2"):
        queue.push(body, group="a")
    queue.push(b"b1", group="b")
    job = queue.lease()
    clock.advance(seconds=1)
    assert queue.lease().body == b"b1"
    clock.advance(seconds=1)
    job.ack()

    assert queue.lease().body == b"a2"


@pytest.mark.parametrize(
    ("rate", "burst"),
    [
        *((rate, 1) for rate in (0, -1, float("nan"), float("inf"), "1", True, 1e9)),
        *((1, burst) for burst in (0, -1, 1.5, None, True)),
    ],
)
def test_a_rate_is_a_number(rate: float, burst: int) -> None:
    """From one a week to a million a second."""
    with pytest.raises(InvalidArgument, match="rate"):
        QueueRules(rate=rate, rate_burst=burst)
