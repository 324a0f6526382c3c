"""Messages of one group come in order and few at a time; all others overtake them."""

import itertools

import pytest

from segue import Item, QueueRules
from segue.delivery.rules import GROUP_CONCURRENCY_MAX
from segue.errors import InvalidArgument, LeaseLost, QueueEmpty
from segue.stores.contract import Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, meanwhile
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS


def push_groups(queue: Queue, words: str) -> None:
    """Push a message for each word: "a1" goes to group a, "-1" to none."""
    for word in words.split():
        queue.push(word.encode(), group=None if word.startswith("-") else word[0])


def leased(queue: Queue, count: int = 100, ttl: float = 30) -> list[str]:
    """Lease all that can be had at once."""
    bodies: list[str] = []
    while jobs := queue.lease_many(count, ttl=ttl):
        bodies += [job.text for job in jobs]
    return bodies


def work_off(queue: Queue) -> list[str]:
    """Lease and ack one by one."""
    bodies = []
    while queue.wait(0):
        with queue.lease() as job:
            bodies.append(job.text)
    return bodies


def test_one_message_of_a_group_is_out_at_once(store: Store) -> None:
    """Other groups and messages without one overtake."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 b1 -1 a3 b2 -2")

    assert leased(queue) == ["a1", "b1", "-1", "-2"]


def test_a_message_that_waits_for_its_group_was_never_leased(store: Store) -> None:
    """A receipt from before the queue was removed names a message that has the same id now."""
    queue = store.queue("jobs")
    queue.push_many([b"1", b"2"])
    old = [queue.lease().receipt, queue.lease().receipt]
    store.remove_queue("jobs")
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2")
    assert leased(queue) == ["a1"]

    with pytest.raises(LeaseLost, match="never leased"):
        queue.ack(old[1])


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_a_group_comes_in_the_order_of_its_pushes(store: Store, count: int) -> None:
    """However many are asked for at once, each as soon as the one before is acked."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 b1 a2 b2 a3 -1 b3")
    seen: list[str] = []
    while jobs := queue.lease_many(count):
        seen += [job.text for job in jobs]
        queue.ack_many(jobs)

    assert sorted(seen) == ["-1", "a1", "a2", "a3", "b1", "b2", "b3"]
    for group in "ab":
        assert [word for word in seen if word[0] == group] == [f"{group}{n}" for n in (1, 2, 3)]


def test_who_takes_a_message_sees_its_group(store: Store) -> None:
    """On the job, the message, the dead letter, and what was popped."""
    queue = store.queue("jobs")
    queue.push_many([Item(body=b"1", group="ada"), Item(body=b"2", group="bob"), b"3"])

    job = queue.lease()
    assert (job.group, job.message.group, job.body) == ("ada", "ada", b"1")
    job.bury()
    assert [letter.message.group for letter in queue.dead_letters()] == ["ada"]
    assert [message.group for message in queue.peek(3)] == ["bob", None]
    assert [message.group for message in queue.pop_many(3)] == ["bob", None]


def test_the_next_comes_when_one_is_acked(store: Store, other: Store) -> None:
    """Also for who waits in another process."""
    queue, theirs = store.queue("jobs"), other.queue("jobs")
    push_groups(queue, "a1 a2")
    job = queue.lease()
    assert not theirs.wait(0)
    with pytest.raises(QueueEmpty):
        theirs.lease()

    with meanwhile(lambda: theirs.lease(wait=LIMIT_SECONDS).text) as taken:
        job.ack()

    assert taken.result() == "a2"


def test_the_next_comes_when_one_dies(store: Store) -> None:
    """Buried, or failed for the last time."""
    queue = store.queue("jobs", QueueRules(max_deliveries=1))
    push_groups(queue, "a1 a2 a3")
    queue.lease().bury()
    job = queue.lease()
    assert job.text == "a2"
    job.fail()

    assert leased(queue) == ["a3"]


def test_a_message_that_failed_comes_again_before_its_later_ones(
    store: Store, clock: ManualClock
) -> None:
    """While it waits for its next try the group waits, too; others do not."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 b1")
    queue.lease().fail("no paper", delay=10)

    assert leased(queue) == ["b1"]
    assert not queue.wait(0)

    clock.advance(seconds=10)
    assert work_off(queue) == ["a1", "a2"]


def test_a_message_that_was_released_comes_again_before_its_later_ones(
    store: Store, clock: ManualClock
) -> None:
    """At once or after a delay: as if it had never been taken, and still the first."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2")
    queue.lease().release()
    job = queue.lease()
    assert (job.text, job.attempt) == ("a1", 1)
    job.release(delay=10)
    assert not queue.wait(0)

    clock.advance(seconds=10)
    assert work_off(queue) == ["a1", "a2"]


def test_a_message_whose_worker_fell_silent_comes_again_before_its_later_ones(
    store: Store, other: Store, clock: ManualClock
) -> None:
    """The group waits for the lease to end, and no longer."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2")
    other.queue("jobs").lease(ttl=5)
    assert not queue.wait(0)

    clock.advance(seconds=6)
    assert work_off(queue) == ["a1", "a2"]


def test_popping_takes_and_settles_at_once(store: Store) -> None:
    """So several of a group may be popped in one step, in order; none while one is leased."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 b1 a3")

    assert [message.text for message in queue.pop_many(2)] == ["a1", "a2"]
    job = queue.lease()
    assert (job.text, drain(queue)) == ("b1", [b"a3"])
    push_groups(queue, "b2")
    assert queue.pop() is None
    job.release()
    assert drain(queue) == [b"b1", b"b2"]


def test_popping_many_is_popping_one_by_one(store: Store) -> None:
    """What has waited for its group comes before what was pushed after it."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 a3 a4 -1")
    job = queue.lease()
    assert not [each for each in queue.lease_many(5) if each.group]
    push_groups(queue, "-2")
    job.ack()

    assert [message.text for message in queue.pop_many(5)] == ["a2", "a3", "a4", "-2"]


def test_a_group_may_have_several_out(store: Store, clock: ManualClock) -> None:
    """As many as the rules say; one that is to be tried again counts."""
    queue = store.queue("jobs", QueueRules(group_concurrency=2))
    push_groups(queue, "a1 a2 a3 a4 b1")
    first, second, other = queue.lease_many(5)
    assert [first.text, second.text, other.text] == ["a1", "a2", "b1"]

    first.fail(delay=10)
    assert not queue.wait(0)
    second.ack()
    assert leased(queue) == ["a3"]
    clock.advance(seconds=10)
    assert leased(queue) == ["a1"]
    assert not queue.wait(0)


def test_the_rules_of_groups_may_change(store: Store, other: Store) -> None:
    """For everybody, also for those that wait already."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 a3 a4")
    (first,) = queue.lease_many(4)
    assert not queue.wait(0)

    other.queue("jobs").configure(QueueRules(group_concurrency=3))
    second, third = queue.lease_many(4)
    assert [second.text, third.text] == ["a2", "a3"]

    other.queue("jobs").configure(QueueRules())
    for job in (first, second):
        job.release()
    assert not queue.wait(0)
    third.ack()
    assert work_off(queue) == ["a1", "a2", "a4"]


def test_groups_span_priorities(store: Store) -> None:
    """One at a time of a group, whatever its priority; inside one the order holds."""
    queue = store.queue("jobs")
    queue.push(b"low 1", priority=3, group="a")
    queue.push(b"low 2", priority=3, group="a")
    assert queue.lease().text == "low 1"
    queue.push(b"high", priority=0, group="a")
    assert not queue.wait(0)

    queue.push(b"other", priority=5)
    assert queue.lease().text == "other"
    for status in queue.browse(state="leased"):
        assert status.message.text in ("low 1", "other")


def test_the_most_urgent_of_a_group_comes_next(store: Store) -> None:
    """Also if one that is less urgent has waited for the group before it was pushed."""
    queue = store.queue("jobs")
    for body in (b"low 1", b"low 2"):
        queue.push(body, priority=3, group="a")
    job = queue.lease()
    assert not queue.wait(0)
    queue.push(b"high", priority=0, group="a")
    assert not queue.wait(0)
    job.ack()

    assert work_off(queue) == ["high", "low 2"]


def test_what_is_pushed_with_a_delay_joins_its_group_when_it_is_due(
    store: Store, clock: ManualClock
) -> None:
    """Before that it holds nobody up."""
    queue = store.queue("jobs")
    queue.push(b"a later", delay=10, group="a")
    push_groups(queue, "a1 a2")
    job = queue.lease()
    assert job.text == "a1"
    clock.advance(seconds=11)
    assert not queue.wait(0)

    job.ack()
    assert work_off(queue) == ["a later", "a2"]


def test_what_failed_after_a_delayed_push_is_first_again(store: Store, clock: ManualClock) -> None:
    """What was pushed with a delay is ordered like everything else once it was delivered."""
    queue = store.queue("jobs")
    queue.push(b"a later", delay=5, group="a")
    clock.advance(seconds=5)
    job = queue.lease()
    push_groups(queue, "a1")
    job.fail(delay=5)
    assert not queue.wait(0)
    clock.advance(seconds=5)

    assert work_off(queue) == ["a later", "a1"]


def test_redriven_messages_come_when_the_group_is_free(store: Store) -> None:
    """At the front of their priority, but not while another of the group is out."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 a3 a4")
    for _ in range(2):
        queue.lease().bury()
    job = queue.lease()
    assert job.text == "a3"
    assert queue.redrive().redriven == 2
    assert not queue.wait(0)

    job.ack()
    assert work_off(queue) == ["a1", "a2", "a4"]


def test_what_outlived_its_time_holds_nobody_up(store: Store, clock: ManualClock) -> None:
    """It dies when its turn comes, and the next of the group comes then."""
    queue = store.queue("jobs")
    for number in range(3):
        queue.push(b"%d" % number, group="a", ttl=5 if number == 1 else None)
    job = queue.lease(ttl=60)
    assert not queue.wait(0)
    clock.advance(seconds=6)
    assert not queue.wait(0)
    assert queue.count().dead == 0
    job.ack()

    assert work_off(queue) == ["2"]
    assert queue.count().dead == 1


def test_a_head_that_outlives_its_time_while_it_waits_frees_its_group(
    store: Store, clock: ManualClock
) -> None:
    """It failed, was to be tried again, and was too old then."""
    queue = store.queue("jobs", QueueRules(on_expiry="drop"))
    queue.push(b"1", group="a", ttl=5)
    queue.push(b"2", group="a")
    queue.lease().fail(delay=10)
    assert not queue.wait(0)
    clock.advance(seconds=10)

    assert work_off(queue) == ["2"]
    assert queue.count().dead == 0


def test_a_purge_frees_the_groups(store: Store, clock: ManualClock) -> None:
    """What is leased stays so; what is pushed after it comes after it."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 b1 b2")
    a1, b1 = queue.lease_many(4)
    assert not queue.wait(0)
    b1.fail(delay=60)
    assert queue.purge() == 3

    push_groups(queue, "a3 b3")
    assert leased(queue) == ["b3"]
    a1.ack()
    assert leased(queue) == ["a3"]
    clock.advance(seconds=60)
    assert queue.count().total == 2


def test_counting_does_not_depend_on_who_has_looked(store: Store) -> None:
    """What waits for its group is ready: nothing but others of its group holds it up."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 a3 b1 -1")
    assert queue.count().ready == 5
    queue.lease()
    before = queue.count()
    assert leased(queue) == ["b1", "-1"]
    assert not queue.wait(0)

    counts = queue.count()
    assert (before.ready, before.leased) == (4, 1)
    assert (counts.ready, counts.delayed, counts.leased, counts.total) == (2, 0, 3, 5)
    assert queue.stats().ready_by_priority == {0: 2}
    assert queue.stats().oldest_ready_seconds is None


def test_peeking_shows_what_would_come(store: Store) -> None:
    """Of each group as many as would be delivered, before and after somebody has looked."""
    queue = store.queue("jobs", QueueRules(group_concurrency=2))
    push_groups(queue, "a1 a2 a3 b1 -1 a4 b2 b3")
    expected = ["a1", "a2", "b1", "-1", "b2"]

    assert [message.text for message in queue.peek(10)] == expected
    assert queue.wait(0)
    assert [message.text for message in queue.peek(10)] == expected
    assert [message.text for message in queue.peek(3)] == expected[:3]
    assert leased(queue) == expected
    assert queue.peek(10) == []
    assert [status.message.text for status in queue.browse(state="ready")] == ["a3", "a4", "b3"]


def test_what_waits_for_its_group_is_found_and_listed(store: Store) -> None:
    """Where it was pushed to."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 -1 a3")
    assert leased(queue) == ["a1", "-1"]

    page = queue.browse()
    assert [(each.message.text, each.state) for each in page] == [
        ("a1", "leased"),
        ("a2", "ready"),
        ("-1", "leased"),
        ("a3", "ready"),
    ]
    status = queue.look_up(page[1].message.id)
    assert status is not None
    assert (status.message.group, status.tries, status.due_us) == ("a", 0, None)
    state = queue.state()
    assert state["queue_0_seg_0"] == ["a2", "a3"]


def test_a_full_queue_drops_what_waits_for_its_group(store: Store) -> None:
    """As anything that has waited longest; the group goes on without it."""
    queue = store.queue("jobs", QueueRules(capacity=3, on_full="drop_oldest"))
    push_groups(queue, "a1 a2 a3")
    job = queue.lease()
    assert not queue.wait(0)
    push_groups(queue, "a4")
    job.ack()

    assert work_off(queue) == ["a3", "a4"]


def test_groups_are_the_same_for_everybody(store: Store, world: World) -> None:
    """Who opens the store later, and after the machine was started anew, keeps the order."""
    queue = store.queue("jobs")
    push_groups(queue, "a1 a2 b1 b2 a3")
    queue.lease_many(5)
    assert not world.open().queue("jobs").wait(0)

    world.crash(store)
    assert not world.open().queue("jobs").wait(0)
    world.restart(leases_last=30)
    again = world.open().queue("jobs")
    seen = work_off(again)

    assert seen == ["a1", "b1", "a2", "b2", "a3"]


def test_replayed_messages_keep_their_group(store: Store) -> None:
    """And their order in it."""
    queue = store.queue("jobs", QueueRules(keep_seconds=600))
    push_groups(queue, "a1 a2")
    assert work_off(queue) == ["a1", "a2"]
    assert queue.replay() == 2

    assert leased(queue) == ["a1"]
    assert not queue.wait(0)


def test_a_key_and_a_group_have_nothing_to_do_with_each_other(store: Store) -> None:
    """The second of two pushes with one key is none, in whichever group."""
    queue = store.queue("jobs")
    first = queue.push(b"1", key="k", group="a")

    assert queue.push(b"2", key="k", group="b") == first
    assert queue.lease().group == "a"


def test_many_messages_of_many_groups_come_in_order(store: Store, other: Store) -> None:
    """Taken in turns by two, some of them failing now and then."""
    queue, theirs = store.queue("jobs", QueueRules(segment_items=50)), other.queue("jobs")
    names = "abcdefg"
    queue.push_many([Item(body=b"%d" % number, group=names[number % 7]) for number in range(700)])
    seen: dict[str, list[int]] = {name: [] for name in names}
    for turn in itertools.count():
        jobs = (queue, theirs)[turn % 2].lease_many(5)
        if not jobs:
            break
        for number, job in enumerate(jobs):
            if (turn + number) % 4 == 0:
                job.fail(delay=0)
            else:
                seen[job.group or ""].append(int(job.body))
                job.ack()

    for place, name in enumerate(names):
        assert seen[name] == list(range(place, 700, 7))


@pytest.mark.parametrize("group", ["", "x" * 1025, b"a", 3, "\ud800"])
def test_a_group_has_a_name(store: Store, group: str) -> None:
    """Text, not empty and not endless; nothing is pushed otherwise."""
    queue = store.queue("jobs")
    with pytest.raises(InvalidArgument):
        queue.push(b"work", group=group)

    assert queue.count().total == 0


@pytest.mark.parametrize("places", [0, -1, 1.5, True, None, GROUP_CONCURRENCY_MAX + 1])
def test_a_group_has_at_least_one_place(places: int) -> None:
    """And not more than anybody needs."""
    with pytest.raises(InvalidArgument, match="group_concurrency"):
        QueueRules(group_concurrency=places)


def test_who_outlives_its_place_leaves_it_to_a_more_urgent_one(
    store: Store, clock: ManualClock
) -> None:
    """Before anything less urgent that was in line behind it."""
    queue = store.queue("jobs")
    queue.push_many([Item(body=b"old", priority=5, ttl=3, group="a"), Item(body=b"b", priority=5)])
    queue.lease().release()
    queue.push(b"urgent", priority=1, group="a")
    clock.advance(seconds=3)

    assert queue.lease().body == b"urgent"
