"""The rules of a queue: the same for everybody, from the moment they are set."""

import pytest

from segue import Item, QueueRules
from segue.errors import InvalidArgument, QueueEmpty, QueueFull, QueueLocked
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, meanwhile, push_all
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS


def opened(store: Store, other: Store, rules: QueueRules) -> tuple[Queue, Queue]:
    """Return a queue with these rules, and the same queue in another process."""
    return store.queue("jobs", rules), other.queue("jobs")


# Setting -----------------------------------------------------------------------------------


def test_a_queue_keeps_its_rules(world: World, store: Store) -> None:
    """Without any it has the defaults; those it was given hold for everybody, for ever."""
    plain = store.queue("plain").rules
    rules = QueueRules(lease_ttl=5, max_deliveries=2, capacity=7, on_full="drop_oldest")
    store.queue("jobs", rules)
    world.restart()
    reopened = world.open()

    assert plain == QueueRules()
    assert reopened.queue("jobs").rules == rules
    assert reopened.queue("plain").rules == QueueRules()


def test_new_rules_are_everybodys(store: Store, other: Store) -> None:
    """Who opens the queue with others changes them; who opens it without any does not."""
    queue, there = opened(store, other, QueueRules(lease_ttl=5))
    there.configure(QueueRules(lease_ttl=6))
    after = queue.rules
    other.queue("jobs", QueueRules(lease_ttl=7))
    store.queue("jobs")

    assert after.lease_ttl == 6
    assert (queue.rules.lease_ttl, there.rules.lease_ttl) == (7, 7)


def test_what_is_out_stays_as_it_was_taken(store: Store, other: Store, clock: ManualClock) -> None:
    """New rules are for new leases."""
    queue, there = opened(store, other, QueueRules(lease_ttl=10))
    push_all(queue, 2)
    queue.lease()
    there.configure(QueueRules(lease_ttl=100))
    queue.lease()
    clock.advance(seconds=10)

    assert queue.count() == Counts(ready=1, delayed=0, leased=1, dead=0)


def test_a_new_limit_of_deliveries_holds_for_what_is_out(store: Store, other: Store) -> None:
    """How often is often enough is asked when a delivery has failed."""
    queue, there = opened(store, other, QueueRules(max_deliveries=5))
    push_all(queue, 1)
    job = queue.lease()
    there.configure(QueueRules(max_deliveries=1))
    job.fail()

    assert there.count().dead == 1


# Capacity ----------------------------------------------------------------------------------


def test_a_full_queue_refuses(store: Store, other: Store) -> None:
    """Everybody's pushes count, and a refusal writes nothing."""
    queue, there = opened(store, other, QueueRules(capacity=3))
    queue.push(b"a")
    there.push(b"b", priority=5)
    queue.push(b"c")
    for handle in (queue, there):
        with pytest.raises(QueueFull) as raised:
            handle.push(b"d", priority=1)
        with pytest.raises(QueueFull):
            handle.push_many([b"e"])

    assert raised.value.capacity == 3
    assert drain(queue) == [b"a", b"c", b"b"]


def test_all_that_is_not_settled_takes_up_room(
    store: Store, other: Store, clock: ManualClock
) -> None:
    """Delayed, leased and returned messages count; dead letters do not."""
    queue, there = opened(store, other, QueueRules(capacity=4, backoff_jitter=0))
    queue.push(b"delayed", delay=100)
    push_all(queue, 3)
    leased, failed, buried = queue.lease_many(3)
    failed.fail()
    with pytest.raises(QueueFull):
        there.push(b"x")
    buried.bury()
    there.push(b"in the room of the dead")
    with pytest.raises(QueueFull):
        there.push(b"x")
    leased.ack()
    there.push(b"in the room of the done")
    with pytest.raises(QueueFull):
        queue.push(b"x", delay=5)

    assert there.count() == Counts(ready=2, delayed=2, leased=0, dead=1)


def test_many_fit_or_none_do(store: Store, other: Store) -> None:
    """All or none, over all priorities."""
    queue, there = opened(store, other, QueueRules(capacity=4))
    queue.push_many([b"a", Item(body=b"b", priority=1)])
    with pytest.raises(QueueFull):
        there.push_many([Item(body=b"x", priority=priority) for priority in (0, 1, 2)])
    there.push_many([b"c", Item(body=b"d", delay=1)])

    assert queue.count() == Counts(ready=3, delayed=1, leased=0, dead=0)


def test_a_capacity_set_elsewhere_holds_at_once(store: Store, other: Store) -> None:
    """Also for a process that has been pushing without one."""
    queue, there = opened(store, other, QueueRules())
    for handle in (queue, there):
        push_all(handle, 2)
    there.configure(QueueRules(capacity=5))
    queue.push(b"fits")
    with pytest.raises(QueueFull):
        queue.push(b"does not")
    with pytest.raises(QueueFull):
        queue.push_many([b"does not"])
    there.configure(QueueRules(capacity=6))
    queue.push(b"fits, too")
    there.configure(QueueRules())
    push_all(queue, 3)

    assert queue.count().ready == 9


def test_a_queue_over_its_new_capacity_keeps_what_it_has(store: Store, other: Store) -> None:
    """Nothing that was taken in is lost to a rule that comes later."""
    queue, there = opened(store, other, QueueRules())
    push_all(queue, 5)
    there.configure(QueueRules(capacity=2))
    with pytest.raises(QueueFull):
        queue.push(b"x")

    assert len(drain(there)) == 5


def test_a_known_key_needs_no_room(store: Store, other: Store) -> None:
    """A push that does nothing is not refused."""
    queue, there = opened(store, other, QueueRules(capacity=1))
    first = queue.push(b"a", key="k")

    assert there.push(b"b", key="k") == first
    assert there.push_many([Item(body=b"c", key="k")]) == [first]


def test_the_oldest_makes_way(store: Store, other: Store) -> None:
    """drop_oldest: the newest are always taken in."""
    queue, there = opened(store, other, QueueRules(capacity=3, on_full="drop_oldest"))
    push_all(queue, 5)
    there.push_many([b"5", b"6"])

    assert queue.count().ready == 3
    assert queue.stats().totals["dropped"] == 4
    assert drain(there) == [b"4", b"5", b"6"]


def test_the_least_urgent_makes_way_first(store: Store, other: Store) -> None:
    """What is urgent is not dropped while there is something that is not."""
    queue, there = opened(store, other, QueueRules(capacity=4, on_full="drop_oldest"))
    push_all(queue, 2, priority=0)
    push_all(queue, 2, priority=3, first=10)
    there.push(b"new", priority=0)
    there.push(b"newer", priority=3)

    assert drain(queue) == [b"0", b"1", b"new", b"newer"]


def test_what_came_back_is_the_oldest(store: Store, other: Store) -> None:
    """It stands at the front, so it makes way first."""
    queue, there = opened(store, other, QueueRules(capacity=3, on_full="drop_oldest"))
    push_all(queue, 3)
    queue.lease().release()
    there.push(b"new")

    assert drain(queue) == [b"1", b"2", b"new"]


def test_what_is_leased_does_not_make_way(store: Store, other: Store) -> None:
    """Somebody is at work on it: if there is nothing else, the push is refused."""
    queue, there = opened(store, other, QueueRules(capacity=2, on_full="drop_oldest"))
    push_all(queue, 2)
    job = queue.lease()
    there.push(b"new")
    queue.lease()
    with pytest.raises(QueueFull):
        there.push(b"x")
    job.ack()
    there.push(b"newer")

    assert drain(there) == [b"newer"]


@pytest.mark.parametrize("on_full", ["refuse", "block", "drop_oldest"])
def test_more_than_fits_at_all_is_refused(store: Store, on_full: str) -> None:
    """At once, and nothing is dropped for it."""
    rules = QueueRules(capacity=2, on_full=on_full)  # type: ignore[arg-type]
    queue = store.queue("jobs", rules)
    push_all(queue, 1)
    with pytest.raises(QueueFull):
        queue.push_many([b"x"] * 3)

    assert drain(queue) == [b"0"]


def test_a_push_waits_for_room(store: Store, other: Store) -> None:
    """block: it is taken in when somebody elsewhere makes room."""
    queue, there = opened(store, other, QueueRules(capacity=1, on_full="block"))
    queue.push(b"a")
    with meanwhile(lambda: queue.push(b"b", wait=LIMIT_SECONDS)) as outcome:
        first = there.pop(wait=LIMIT_SECONDS)
    second = there.pop()

    assert first is not None
    assert second is not None
    assert (first.body, second.body, second.id) == (b"a", b"b", outcome.result())


def test_many_wait_for_room_together(store: Store, other: Store) -> None:
    """All or none, also when they wait."""
    queue, there = opened(store, other, QueueRules(capacity=2, on_full="block"))
    queue.push_many([b"a", b"b"])
    with meanwhile(lambda: queue.push_many([b"c", b"d"], wait=LIMIT_SECONDS)):
        jobs = there.lease_many(2)
        jobs[0].ack()
        half = there.count().total
        jobs[1].ack()

    assert half == 1
    assert drain(there) == [b"c", b"d"]


def test_a_push_does_not_wait_for_ever_unless_told_to(store: Store) -> None:
    """After `wait` it is refused; 0 does not wait at all."""
    queue = store.queue("jobs", QueueRules(capacity=1, on_full="block"))
    queue.push(b"a")
    for wait in (0, 0.01):
        with pytest.raises(QueueFull):
            queue.push(b"b", wait=wait)

    assert drain(queue) == [b"a"]


# Leases at once ----------------------------------------------------------------------------


def test_in_strict_mode_one_lease_locks_the_queue(
    store: Store, other: Store, clock: ManualClock
) -> None:
    """Seed 000: while a lock is held every lease and every pop is told so, for thirty seconds."""
    queue, there = opened(store, other, QueueRules(max_leases=1))
    push_all(queue, 3)
    job = queue.lease()
    clock.advance(seconds=10)
    for call in (there.lease, there.pop, queue.lease, queue.pop):
        with pytest.raises(QueueLocked) as raised:
            call()
        assert (raised.value.leases_max, raised.value.seconds_left) == (1, 20)
    job.ack()

    assert drain(there) == [b"1", b"2"]


def test_in_strict_mode_a_batch_is_one(store: Store) -> None:
    """However many are asked for."""
    queue = store.queue("jobs", QueueRules(max_leases=1))
    push_all(queue, 3)

    assert len(queue.lease_many(3)) == 1
    with pytest.raises(QueueLocked):
        queue.lease_many(3)


def test_in_strict_mode_an_ended_lease_unlocks(
    store: Store, other: Store, clock: ManualClock
) -> None:
    """0.2.6: its message stands at the front again."""
    queue, there = opened(store, other, QueueRules(max_leases=1))
    push_all(queue, 2)
    queue.lease(ttl=1)
    clock.advance(seconds=1)
    job = there.lease()

    assert (job.body, job.attempt) == (b"0", 2)


def test_in_strict_mode_an_empty_queue_is_not_locked(store: Store, other: Store) -> None:
    """0.2.3: nothing to lease, no lock."""
    queue, there = opened(store, other, QueueRules(max_leases=1))
    with pytest.raises(QueueEmpty):
        queue.lease()
    there.push(b"a")

    assert there.pop() is not None


def test_in_strict_mode_leases_last_one_to_three_hundred_seconds(store: Store) -> None:
    """0.2.3: and the limits themselves are allowed."""
    queue = store.queue("jobs", QueueRules(max_leases=1))
    push_all(queue, 2)
    for ttl in [0.999, 300.001, 0, -1]:
        with pytest.raises(InvalidArgument):
            queue.lease(ttl=ttl)

    queue.lease(ttl=1).ack()
    queue.lease(ttl=300).ack()
    assert queue.count().total == 0


def test_in_strict_mode_looking_is_free(store: Store, other: Store) -> None:
    """A lock keeps nobody from pushing or looking."""
    queue, there = opened(store, other, QueueRules(max_leases=1))
    push_all(queue, 2)
    queue.lease()
    there.push(b"more")

    assert [message.body for message in there.peek(5)] == [b"1", b"more"]
    assert there.count() == Counts(ready=2, delayed=0, leased=1, dead=0)


def test_who_waits_for_a_locked_queue_gets_its_turn(store: Store, other: Store) -> None:
    """An ack elsewhere unlocks it."""
    queue, there = opened(store, other, QueueRules(max_leases=1))
    push_all(queue, 2)
    job = there.lease()
    with meanwhile(lambda: queue.lease(wait=LIMIT_SECONDS)) as outcome:
        job.ack()

    assert outcome.result().body == b"1"


def test_who_waits_for_a_locked_queue_in_vain_is_told(store: Store) -> None:
    """As if it had not waited."""
    queue = store.queue("jobs", QueueRules(max_leases=1))
    push_all(queue, 2)
    queue.lease()
    with pytest.raises(QueueLocked):
        queue.lease(wait=0.01)


def test_several_leases_may_be_out_if_the_rules_say_so(store: Store, other: Store) -> None:
    """max_leases=3: the fourth is told, and gets one when another ends."""
    queue, there = opened(store, other, QueueRules(max_leases=3))
    push_all(queue, 6)
    jobs = [*queue.lease_many(2), *there.lease_many(5)]
    with pytest.raises(QueueLocked):
        queue.lease()
    there.ack(jobs[0])
    again = queue.lease_many(5, ttl=0.5)

    assert [job.body for job in [*jobs, *again]] == [b"0", b"1", b"2", b"3"]


def test_rules_are_checked_before_they_are_anybodys(store: Store) -> None:
    """Rules that make no sense cannot even be built."""
    for bad in (
        {"capacity": 0},
        {"max_leases": 0},
        {"lease_ttl": 0},
        {"max_leases": 1, "lease_ttl": 600},
        {"on_full": "explode"},
        {"segment_items": 0},
    ):
        with pytest.raises(InvalidArgument):
            store.queue("jobs", QueueRules(**bad))


@pytest.mark.parametrize("seconds", [1e13, 1e300])
def test_rules_beyond_all_time_harm_nobody(store: Store, seconds: float) -> None:
    """Either such rules are refused or the queue works by them; it must not fail half-way."""
    try:
        rules = QueueRules(dedup_window=seconds, backoff_base=seconds, backoff_cap=seconds)
    except InvalidArgument:
        return
    queue = store.queue("jobs", rules)
    id_ = queue.push(b"a", key="k")
    again = queue.push(b"b", key="k")
    queue.lease().fail()

    assert again == id_
    assert queue.count() == Counts(ready=0, delayed=1, leased=0, dead=0)
