"""Operating a queue: pausing, purging, counting, and knowing what there is."""

from contextlib import suppress

import pytest

from segue import Item, QueueRules
from segue.errors import InvalidName, LeaseLost, QueueEmpty, StoreClosed
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, push_all
from tests.contract.worlds import World


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue whose backoff is not random."""
    return store.queue("jobs", QueueRules(backoff_jitter=0))


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


# Pausing -----------------------------------------------------------------------------------


def test_a_paused_queue_delivers_nothing(queue: Queue, there: Queue) -> None:
    """To nobody; pushing goes on, and so does the work on what is out."""
    push_all(queue, 3)
    job = queue.lease()
    there.pause()
    for handle in (queue, there):
        with pytest.raises(QueueEmpty):
            handle.lease()
        assert (handle.pop(), handle.lease_many(3), handle.peek(3)) == (None, [], [])
    queue.push(b"more")
    job.ack()
    paused = there.stats().paused
    counts = there.count()
    queue.resume()

    assert paused
    assert counts == Counts(ready=3, delayed=0, leased=0, dead=0)
    assert not there.stats().paused
    assert drain(there) == [b"1", b"2", b"more"]


def test_a_pause_lasts(world: World, queue: Queue) -> None:
    """Durably: a restart does not end it."""
    push_all(queue, 1)
    queue.pause()
    queue.pause()
    world.restart()
    reopened = world.open().queue("jobs")
    found = reopened.pop()
    reopened.resume()
    reopened.resume()

    assert found is None
    assert reopened.pop() is not None


# Purging -----------------------------------------------------------------------------------


def test_a_purge_drops_what_waits(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Ready, returned and delayed; what is leased or dead stays, and later pushes come."""
    push_all(queue, 4)
    push_all(queue, 2, priority=3)
    queue.push(b"later", delay=10)
    leased, released, failed, dead = queue.lease_many(4)
    released.release()
    failed.fail()
    dead.bury()
    purged = there.purge()
    counts = queue.count()
    queue.push(b"new")
    leased.ack()
    clock.advance(seconds=100)

    assert purged == 5
    assert counts == Counts(ready=0, delayed=0, leased=1, dead=1)
    assert drain(there) == [b"new"]
    assert there.stats().totals["purged"] == 5


def test_a_purged_message_never_comes_back(world: World, queue: Queue) -> None:
    """Not even after a restart."""
    push_all(queue, 5)
    queue.push(b"later", delay=10)
    queue.lease().release()
    queue.purge()
    world.restart()
    world.clock.advance(seconds=100)

    assert world.open().queue("jobs").count() == Counts(ready=0, delayed=0, leased=0, dead=0)


def test_a_lease_taken_before_a_purge_may_come_back(queue: Queue, clock: ManualClock) -> None:
    """It was not purged, so it is delivered again."""
    push_all(queue, 1)
    queue.lease(ttl=5)
    purged = queue.purge()
    clock.advance(seconds=5)

    assert purged == 0
    assert queue.lease().attempt == 2


def test_purging_nothing_is_nothing(queue: Queue) -> None:
    """An empty queue has nothing to drop."""
    assert (queue.purge(), queue.purge()) == (0, 0)


def test_purging_a_paused_queue_works(queue: Queue) -> None:
    """That is when an operator does it."""
    push_all(queue, 3)
    queue.pause()

    assert queue.purge() == 3
    assert queue.count().total == 0


# Counting ----------------------------------------------------------------------------------


def test_counts_are_the_same_for_everybody(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """In every state, at every moment."""
    seen = []

    def look() -> None:
        one, two = queue.count(), there.count()
        assert one == two == queue.stats().counts == there.stats().counts
        seen.append((one.ready, one.delayed, one.leased, one.dead))

    look()
    queue.push_many([b"0", b"1", b"2", Item(body=b"later", delay=10, priority=1)])
    look()
    first, second = there.lease_many(2, ttl=20)
    look()
    first.fail()
    look()
    second.bury()
    look()
    clock.advance(seconds=10)
    look()
    drain(queue)
    look()

    assert seen == [
        (0, 0, 0, 0),
        (3, 1, 0, 0),
        (1, 1, 2, 0),
        (1, 2, 1, 0),
        (1, 2, 0, 1),
        (3, 0, 0, 1),
        (0, 0, 0, 1),
    ]


def test_stats_tell_what_waits_where(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Ready messages by priority, and how long the next one has waited."""
    empty = there.stats()
    push_all(queue, 3, priority=2)
    clock.advance(seconds=30)
    push_all(queue, 2, priority=7)
    queue.lease().release()
    clock.advance(seconds=5)
    stats = there.stats()

    assert (empty.oldest_ready_seconds, empty.ready_by_priority) == (None, {})
    assert stats.name == "jobs"
    assert stats.ready_by_priority == {2: 3, 7: 2}
    assert stats.oldest_ready_seconds == 35
    assert (stats.damaged, stats.pinned_bytes) == (0, 0)
    assert stats.size_bytes > 0


def test_stats_show_every_lease(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Those that end first come first, whatever priorities were taken in one step."""
    for priority in range(3):
        push_all(queue, 2, priority=priority)
    queue.push(b"later", delay=1)
    clock.advance(seconds=1)
    jobs = there.lease_many(7, ttl=50, owner="me")
    jobs[4].extend(ttl=5)
    leases = queue.stats().leases

    assert {lease.receipt for lease in leases} == {job.receipt for job in jobs}
    assert leases[0].receipt == jobs[4].receipt
    assert (leases[0].message_id, leases[0].owner) == (jobs[4].id, "me")
    assert [lease.seconds_left for lease in leases] == [5, *[50] * 6]


def test_stats_show_at_most_a_hundred_leases(queue: Queue) -> None:
    """An operator does not read more."""
    push_all(queue, 150)
    queue.lease_many(120)
    queue.lease_many(30)

    assert len(queue.stats().leases) == 100


def test_totals_count_what_happened(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Since the queue was made, by everybody."""
    push_all(queue, 10)
    jobs = queue.lease_many(6, ttl=10)
    jobs[0].ack()
    there.ack_many([jobs[1].receipt])
    jobs[2].fail(delay=0)
    jobs[3].release()
    jobs[4].bury()
    clock.advance(seconds=10)
    there.pop_many(3)
    queue.redrive()
    totals = there.stats().totals

    assert {name: totals[name] for name in totals if totals[name]} == {
        "acked": 2,
        "failed": 1,
        "released": 1,
        "buried": 1,
        "expired": 1,
        "popped": 3,
        "redriven": 1,
    }


def test_the_size_is_the_same_for_everybody(queue: Queue, there: Queue) -> None:
    """What the queue takes up on the device does not depend on who asks."""
    queue.push(bytes(500_000))
    queue.push(bytes(500_000), delay=5)
    queue.lease().bury()

    assert queue.stats().size_bytes == there.stats().size_bytes
    assert there.stats().size_bytes > 1_000_000


# What there is -----------------------------------------------------------------------------


def test_a_queue_exists_from_its_first_push_on(store: Store, other: Store) -> None:
    """Asking for one makes nothing that others would see."""
    one, two = store.queue("one"), store.queue("two")
    assert two.pop() is None
    before = (store.queues(), other.queues())
    one.push(b"a")

    assert before == ([], [])
    assert (store.queues(), other.queues()) == (["one"], ["one"])


def test_queues_are_listed_by_name(store: Store, other: Store) -> None:
    """Whoever made them, also when they are empty again."""
    for name in ("b", "a", "c.d-e_f"):
        store.queue(name).push(b"x")
    drain(other.queue("a"))

    assert sorted(other.queues()) == ["a", "b", "c.d-e_f"]


def test_queues_have_nothing_to_do_with_each_other(store: Store) -> None:
    """What happens to one is not seen in another."""
    one, two = store.queue("one"), store.queue("two", QueueRules(capacity=1))
    push_all(one, 3)
    two.push(b"two")
    one.pause()
    one.purge()

    assert drain(two) == [b"two"]


def test_a_name_stays_in_its_place(store: Store) -> None:
    """A name that could leave the store is refused."""
    for name in ["", ".", "..", "a/b", "/a", "a\0b", ".hidden", "x" * 300]:
        with pytest.raises(InvalidName):
            store.queue(name)
        with pytest.raises(InvalidName):
            store.remove_queue(name)

    assert store.queues() == []


def test_a_removed_queue_is_gone(store: Store, other: Store) -> None:
    """With all it held; one of its name begins anew."""
    queue = store.queue("jobs", QueueRules(capacity=5))
    queue.push(b"a")
    queue.lease().bury()
    queue.push(b"b")
    removed = (store.remove_queue("jobs"), store.remove_queue("jobs"))
    names = other.queues()
    anew = other.queue("jobs")

    assert removed == (True, False)
    assert names == []
    assert anew.count() == Counts(ready=0, delayed=0, leased=0, dead=0)
    assert anew.rules == QueueRules()


def test_a_removed_queue_takes_nothing_in(store: Store, other: Store) -> None:
    """A push that returns is kept: where the queue was removed it must not return."""
    queue, there = store.queue("jobs"), other.queue("jobs")
    for handle in (queue, there):
        handle.push(b"a")
    store.remove_queue("jobs")
    try:
        there.push(b"b")
    except StoreClosed:
        kept: list[bytes] = []
    else:
        kept = [b"b"]

    assert drain(store.queue("jobs")) == kept


def test_a_queue_that_a_newcomer_removed_takes_nothing_in(world: World, store: Store) -> None:
    """The same where whoever removes it never used it: by then its files are gone."""
    queue = store.queue("jobs")
    queue.push(b"a")
    with world.open() as newcomer:
        newcomer.remove_queue("jobs")
    kept = []
    for body in (b"b", b"c"):
        with suppress(StoreClosed):
            queue.push(body)
            kept.append(body)
    anew = store.queue("jobs")
    anew.push(b"d")

    assert store.queues() == ["jobs"]
    assert drain(anew) == [*kept, b"d"]


def test_a_queue_that_was_made_anew_by_others_takes_nothing_from_handles_of_the_old_one(
    world: World, store: Store
) -> None:
    """A directory of the same name is not the same queue."""
    queue = store.queue("jobs")
    queue.push(b"a")
    with world.open() as newcomer:
        newcomer.remove_queue("jobs")
        newcomer.queue("jobs").push(b"new")
    kept = []
    with suppress(StoreClosed):
        queue.push(b"b")
        kept.append(b"b")

    assert drain(store.queue("jobs")) == [b"new", *kept]


def test_a_handle_of_a_removed_queue_says_so(store: Store) -> None:
    """In the process that removed it."""
    queue = store.queue("jobs")
    queue.push(b"a")
    store.remove_queue("jobs")
    for call in (queue.pop, queue.count, queue.lease):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StoreClosed):
        queue.push(b"b")


def test_a_store_closes_whose_queue_somebody_else_removed(store: Store, other: Store) -> None:
    """There is nothing left to be let go of."""
    store.queue("jobs").push(b"a")
    other.queue("jobs").pop()
    other.remove_queue("jobs")
    store.close()

    assert other.queues() == []


def test_a_closed_store_says_so(store: Store) -> None:
    """Every call, whatever it would have done; closing twice is allowed."""
    queue = store.queue("jobs")
    queue.push_many([b"a", b"b"])
    job = queue.lease()
    store.close()
    store.close()
    for call in (
        lambda: queue.push(b"c"),
        lambda: queue.push(b"c", priority=9),
        lambda: queue.push(b"c", delay=1, key="k"),
        lambda: queue.push_many([b"c"]),
        queue.pop,
        queue.lease,
        job.ack,
        job.fail,
        job.extend,
        queue.peek,
        queue.count,
        queue.stats,
        queue.state,
        queue.pause,
        queue.purge,
        queue.redrive,
        queue.discard,
        queue.replay,
        lambda: list(queue.history()),
        lambda: list(queue.dead_letters()),
        lambda: queue.configure(QueueRules()),
        lambda: queue.rules,
        lambda: next(queue.consume(wait=0)),
        lambda: store.queue("jobs"),
        store.queues,
        lambda: store.remove_queue("jobs"),
    ):
        with pytest.raises(StoreClosed):
            call()


def test_a_store_is_closed_by_its_block(world: World) -> None:
    """And what was pushed is there for the next."""
    with world.open() as first:
        first.queue("jobs").push(b"a")
    with world.open() as second:
        message = second.queue("jobs").pop()

    assert message is not None
    with pytest.raises(StoreClosed):
        first.queue("jobs")


def test_a_lease_is_lost_with_its_queue(store: Store) -> None:
    """A queue made anew under the name knows nothing of leases before."""
    queue = store.queue("jobs")
    queue.push(b"a")
    stale = queue.lease().receipt
    store.remove_queue("jobs")
    anew = store.queue("jobs")
    anew.push(b"b")
    job = anew.lease()
    if job.receipt != stale:
        with pytest.raises(LeaseLost):
            anew.ack(stale)

    assert job.receipt != stale
