"""What happened to one message: in order, by whom and why, as far back as the store keeps it."""

import threading

import pytest

from segue import QueueRules
from segue.delivery.message import MessageId
from segue.errors import InvalidArgument
from segue.stores.contract import Store, Timeline, TimelineEvent
from segue.testing import ManualClock
from tests.conftest import TORTURE
from tests.contract.queue_support import drain, meanwhile, push_all
from tests.contract.worlds import RedisWorld, World

SECOND_US = 1_000_000


def whats(timeline: Timeline) -> list[str]:
    return [event.what for event in timeline.events]


def keeps_events(world: World) -> bool:
    """Tell whether the store keeps what happened, and not only how things stand."""
    return not isinstance(world, RedisWorld)


def test_the_whole_life_of_a_message_is_told_in_order(
    store: Store, world: World, clock: ManualClock
) -> None:
    """Pushed, leased, extended, failed, leased again and acked: when, by whom, until when, why."""
    queue = store.queue("jobs", QueueRules(backoff_jitter=0))
    id_ = queue.push(b"work", headers={"for": "ada"})
    pushed_us = clock()
    clock.advance(seconds=1)
    job = queue.lease(ttl=10, owner="ada")
    clock.advance(seconds=4)
    job.extend(ttl=20)
    clock.advance(seconds=1)
    job.fail("no paper", delay=5)
    clock.advance(seconds=5)
    queue.lease(ttl=10, owner="bob").ack()

    told = queue.timeline(id_)
    assert (told.id, told.state) == (id_, "settled")
    if not keeps_events(world):
        assert (told.message, told.events, told.is_whole) == (None, (), False)
        return
    second = SECOND_US
    assert list(told.events) == [
        TimelineEvent(what="pushed", at_us=pushed_us),
        TimelineEvent(
            what="leased",
            at_us=pushed_us + second,
            attempt=1,
            owner="ada",
            ends_us=pushed_us + 11 * second,
        ),
        TimelineEvent(
            what="extended",
            at_us=pushed_us + 5 * second,
            attempt=1,
            owner="ada",
            ends_us=pushed_us + 25 * second,
        ),
        TimelineEvent(
            what="failed",
            at_us=pushed_us + 6 * second,
            attempt=1,
            owner="ada",
            reason="no paper",
            due_us=pushed_us + 11 * second,
        ),
        TimelineEvent(
            what="leased",
            at_us=pushed_us + 11 * second,
            attempt=2,
            owner="bob",
            ends_us=pushed_us + 21 * second,
        ),
        TimelineEvent(what="acked", at_us=pushed_us + 11 * second, attempt=2, owner="bob"),
    ]
    assert (told.is_whole, told.since_us, told.tries) == (True, None, 2)
    assert told.message is not None
    assert (told.message.body, told.message.attempt) == (b"work", 2)
    assert (told.message.headers, told.message.pushed_us) == ({"for": "ada"}, pushed_us)
    assert (told.body_bytes_total, told.is_cut) == (4, False)


def test_a_message_that_only_waits_has_been_pushed_and_no_more(
    store: Store, clock: ManualClock
) -> None:
    """All that ever happened to it is known, on every store."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work", priority=3)
    pushed_us = clock()
    clock.advance(seconds=1)

    told = queue.timeline(id_)
    assert told.state == "ready"
    assert list(told.events) == [TimelineEvent(what="pushed", at_us=pushed_us)]
    assert (told.is_whole, told.tries, told.owner) == (True, 0, None)
    assert told.message is not None
    assert (told.message.body, told.message.priority) == (b"work", 3)


def test_who_holds_a_message_is_told_with_how_it_stands(
    store: Store, world: World, clock: ManualClock
) -> None:
    """As `look_up` has it, and when that began and is to end."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    clock.advance(seconds=2)
    leased_us = clock()
    queue.lease(ttl=10, owner="ada")
    clock.advance(seconds=4)

    told = queue.timeline(id_)
    status = queue.look_up(id_)
    assert status is not None
    assert (told.state, told.owner, told.seconds_left) == ("leased", "ada", 6)
    assert (told.message, told.tries) == (status.message, status.tries)
    assert told.events[-1] == TimelineEvent(
        what="leased",
        at_us=leased_us,
        attempt=1,
        owner="ada",
        ends_us=leased_us + 10 * SECOND_US,
    )
    assert whats(told) == ["pushed", "leased"]
    assert told.is_whole == keeps_events(world)


def test_a_lease_that_ran_out_is_told(store: Store, world: World, clock: ManualClock) -> None:
    """By nobody's act, and with whom it ran out."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    queue.lease(ttl=10, owner="ada")
    clock.advance(seconds=11)

    told = queue.timeline(id_)
    assert (told.state, told.reason) == ("ready", "its lease expired")
    last = told.events[-1]
    assert (last.what, last.attempt, last.reason) == ("expired", 1, "its lease expired")
    if keeps_events(world):
        assert whats(told) == ["pushed", "leased", "expired"]
        assert (last.at_us, last.owner) == (clock(), "ada")


def test_a_message_that_was_given_back_keeps_its_attempt(store: Store, world: World) -> None:
    """It is told all the same that somebody had it."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    queue.lease(owner="ada").release(delay=60)

    told = queue.timeline(id_)
    assert (told.state, told.tries) == ("delayed", 0)
    last = told.events[-1]
    assert (last.what, last.attempt, last.due_us) == ("released", 1, told.due_us)
    assert not told.is_whole or keeps_events(world)


def test_death_and_return_are_told(store: Store, world: World, clock: ManualClock) -> None:
    """How the last try ended, that it was the last, and who brought it back."""
    queue = store.queue("jobs", QueueRules(max_deliveries=2, backoff_jitter=0))
    id_ = queue.push(b"work")
    queue.lease(owner="ada").fail("no paper", delay=0)
    clock.advance(seconds=1)
    queue.lease(owner="bob").fail("no ink")

    dead = queue.timeline(id_)
    assert (dead.state, dead.reason, dead.tries) == ("dead", "no ink", 2)
    assert [dead.letter] == [letter.number for letter in queue.dead_letters()]
    assert dead.message is not None
    assert (dead.message.body, dead.message.attempt) == (b"work", 2)
    assert whats(dead)[-2:] == ["failed", "dead"]
    for event in dead.events[-2:]:
        assert (event.at_us, event.attempt, event.reason) == (clock(), 2, "no ink")

    queue.redrive()
    back = queue.timeline(id_)
    assert (back.state, back.tries, whats(back)[-1]) == ("ready", 0, "redriven")
    assert back.letter is None
    if keeps_events(world):
        assert whats(back) == [
            *("pushed", "leased", "failed", "leased", "failed", "dead", "redriven")
        ]
        assert [event.owner for event in back.events] == [
            *(None, "ada", "ada", "bob", "bob", "bob", None)
        ]
        assert back.is_whole


def test_what_was_given_up_at_once_died_of_nothing_else(store: Store) -> None:
    """Its holder said so; there is no failure beside it."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    queue.lease().bury("no use")

    told = queue.timeline(id_)
    assert whats(told)[-1] == "dead"
    assert "failed" not in whats(told)
    assert told.events[-1].reason == "no use"


def test_a_letter_that_was_dropped_is_settled(store: Store, world: World) -> None:
    """Each of its deaths, and that it was dropped: also one among many."""
    queue = store.queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(5)]
    for job in queue.lease_many(5):
        job.bury("no use")
    queue.discard(where=lambda letter: letter.message.id == ids[1])
    queue.discard()

    for id_ in ids:
        told = queue.timeline(id_)
        assert told.state == "settled"
        if keeps_events(world):
            assert whats(told) == ["pushed", "leased", "dead", "discarded"]
            assert (told.message is not None, told.is_whole) == (True, True)


def test_what_was_popped_is_told_as_such(store: Store, world: World) -> None:
    """For good, by nobody who could be named."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work")
    queue.pop()

    told = queue.timeline(id_)
    assert told.state == "settled"
    if keeps_events(world):
        assert whats(told) == ["pushed", "popped"]
        assert (told.events[-1].attempt, told.events[-1].owner) == (1, None)


def test_a_purge_takes_what_waits_and_nothing_else(store: Store, world: World) -> None:
    """What is leased, dead or settled already has no part in it."""
    queue = store.queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(5)]
    later = queue.push(b"later", delay=60)
    leased, dead, done, returned = queue.lease_many(4)
    dead.bury()
    done.ack()
    returned.release()
    queue.purge()

    told = {id_: queue.timeline(id_) for id_ in [*ids, later]}
    assert [each.state for each in told.values()] == [
        *("leased", "dead", "settled", "settled", "settled", "settled")
    ]
    if keeps_events(world):
        assert whats(told[leased.id]) == ["pushed", "leased"]
        assert whats(told[dead.id]) == ["pushed", "leased", "dead"]
        assert whats(told[done.id]) == ["pushed", "leased", "acked"]
        assert whats(told[returned.id]) == ["pushed", "leased", "released", "purged"]
        assert whats(told[ids[4]]) == ["pushed", "purged"]
        assert whats(told[later]) == ["pushed", "delayed", "purged"]


def test_one_of_many_that_were_leased_together_is_found(store: Store, world: World) -> None:
    """By its place among its neighbours; what happened to them is not told of it."""
    queue = store.queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(100)]
    jobs = queue.lease_many(100, owner="ada")
    jobs[49].fail("no paper", delay=60)
    jobs[50].extend(ttl=60)
    queue.ack_many(jobs[51:])

    assert [whats(queue.timeline(ids[place]))[-1] for place in (48, 49, 50)] == [
        *("leased", "failed", "leased" if not keeps_events(world) else "extended")
    ]
    if keeps_events(world):
        assert whats(queue.timeline(ids[48])) == ["pushed", "leased"]
        assert whats(queue.timeline(ids[49])) == ["pushed", "leased", "failed"]
        assert whats(queue.timeline(ids[99])) == ["pushed", "leased", "acked"]
        assert queue.timeline(ids[99]).events[-1].owner == "ada"


def test_a_delay_is_told_with_when_it_ends(store: Store, world: World, clock: ManualClock) -> None:
    """From the push on, and also when it is over."""
    queue = store.queue("jobs")
    id_ = queue.push(b"work", delay=5, priority=7)
    pushed_us, due_us = clock(), clock() + 5 * SECOND_US

    told = queue.timeline(id_)
    assert (told.state, told.due_us) == ("delayed", due_us)
    assert list(told.events) == [
        TimelineEvent(what="pushed", at_us=pushed_us),
        TimelineEvent(what="delayed", at_us=pushed_us, due_us=due_us),
    ]
    assert told.is_whole

    clock.advance(seconds=5)
    queue.lease(owner="ada").ack()
    told = queue.timeline(id_)
    assert told.state == "settled"
    if keeps_events(world):
        assert whats(told) == ["pushed", "delayed", "leased", "acked"]
        assert told.message is not None
        assert told.message.priority == 7


def test_messages_of_one_place_in_two_priorities_are_told_apart(store: Store, world: World) -> None:
    """An id names a priority and a place in it."""
    queue = store.queue("jobs")
    first, second = queue.push(b"0", priority=0), queue.push(b"1", priority=5)
    queue.lease(owner="ada").ack()
    queue.lease(owner="bob")

    assert (queue.timeline(first).state, queue.timeline(second).state) == ("settled", "leased")
    assert queue.timeline(second).events[-1].owner == "bob"
    if keeps_events(world):
        assert whats(queue.timeline(first)) == ["pushed", "leased", "acked"]
    assert whats(queue.timeline(second)) == ["pushed", "leased"]


def test_who_waits_for_others_of_its_group_is_held(store: Store, world: World) -> None:
    """The first of a group is not: it comes at once."""
    queue = store.queue("jobs")
    first, second = (queue.push(body, group="g") for body in (b"0", b"1"))
    job = queue.lease(owner="ada")
    assert not queue.wait(0)

    assert whats(queue.timeline(first)) == ["pushed", "leased"]
    assert whats(queue.timeline(second)) == ["pushed", "held"]
    assert queue.timeline(second).is_whole

    job.ack()
    queue.lease(owner="bob").ack()
    if keeps_events(world):
        assert whats(queue.timeline(second)) == ["pushed", "held", "leased", "acked"]


def test_whose_group_is_free_is_not_held(store: Store) -> None:
    """It only waits for somebody to take it."""
    queue = store.queue("jobs")
    ids = [queue.push(b"%d" % number, group=f"g{number}") for number in range(3)]
    queue.lease()
    queue.lease()

    assert [whats(queue.timeline(id_)) for id_ in ids] == [
        ["pushed", "leased"],
        ["pushed", "leased"],
        ["pushed"],
    ]


def test_who_comes_behind_others_of_its_group_is_held_until_they_are_done(
    store: Store, world: World
) -> None:
    """Also if it was pushed when they were out already, among others."""
    queue = store.queue("jobs")
    queue.push(b"0", group="g")
    job = queue.lease()
    queue.push(b"1", group="h")
    id_ = queue.push(b"2", group="g")
    queue.lease().ack()
    assert not queue.wait(0)

    assert whats(queue.timeline(id_)) == ["pushed", "held"]
    job.ack()
    assert queue.timeline(id_).state == "ready"


def test_what_outlives_its_time_is_told(store: Store, world: World, clock: ManualClock) -> None:
    """Dropped or dead, as the rules have it."""
    queue = store.queue("jobs", QueueRules(on_expiry="drop"))
    dropped = queue.push(b"0", ttl=1)
    clock.advance(seconds=2)
    assert queue.pop() is None
    queue.configure(QueueRules(on_expiry="dead"))
    dead = queue.push(b"1", ttl=1)
    clock.advance(seconds=2)
    assert queue.pop() is None

    assert queue.timeline(dropped).state == "settled"
    told = queue.timeline(dead)
    assert (told.state, whats(told)) == ("dead", ["pushed", "outlived", "dead"])
    assert told.is_whole
    if keeps_events(world):
        assert whats(queue.timeline(dropped)) == ["pushed", "outlived"]


def test_what_makes_way_in_a_full_queue_is_told(store: Store, world: World) -> None:
    """It was dropped for the next one."""
    queue = store.queue("jobs", QueueRules(capacity=1, on_full="drop_oldest"))
    first, second = queue.push(b"0"), queue.push(b"1")

    assert (queue.timeline(first).state, queue.timeline(second).state) == ("settled", "ready")
    if keeps_events(world):
        assert whats(queue.timeline(first)) == ["pushed", "dropped"]


def test_attempts_go_on_in_what_is_replayed(store: Store, world: World) -> None:
    """As its deliveries have them."""
    queue = store.queue("jobs", QueueRules(keep_seconds=60))
    queue.push(b"work")
    queue.lease().ack()
    queue.replay()
    job = queue.lease()

    told = queue.timeline(job.id)
    assert (job.attempt, told.events[-1].attempt) == (2, 2)


def test_what_is_kept_although_it_is_settled_can_be_seen(store: Store) -> None:
    """Where the rules keep it."""
    queue = store.queue("jobs", QueueRules(keep_seconds=60))
    id_ = queue.push(b"work", headers={"h": "v"})
    queue.lease().ack()

    told = queue.timeline(id_)
    assert told.state == "settled"
    assert told.message is not None
    assert (told.message.body, told.message.headers) == (b"work", {"h": "v"})
    assert whats(told)[0] == "pushed"


@pytest.mark.parametrize(
    "id_", ["0-1", "7-0", "later-0", "later-7", "4294967294-3", "0-" + "9" * 20]
)
def test_of_what_was_never_pushed_nothing_happened(store: Store, id_: str) -> None:
    """And it is not taken for settled."""
    queue = store.queue("jobs")
    queue.push(b"work")
    queue.pop()

    told = queue.timeline(MessageId(id_))
    assert (told.id, told.state, told.message) == (id_, "unknown", None)
    assert (told.events, told.is_whole) == ((), False)


def test_in_a_queue_that_is_not_there_nothing_happened(store: Store) -> None:
    """Asking makes none."""
    told = store.queue("jobs").timeline(MessageId("0-0"))

    assert (told.state, told.events) == ("unknown", ())
    assert "jobs" not in store.queues() or store.queue("jobs").count().total == 0


@pytest.mark.parametrize("id_", ["", "0", "0-", "-1", "0-x", "0-0/3", "4294967295-0", 3])
def test_what_is_no_id_is_refused(store: Store, id_: str) -> None:
    """Rather than taken for one that is not there."""
    with pytest.raises(InvalidArgument, match="no message id"):
        store.queue("jobs").timeline(MessageId(id_))


def test_a_timeline_is_the_same_for_everybody(store: Store, other: Store, world: World) -> None:
    """Also for who opens the store later, and when the machine was started anew meanwhile."""
    queue = store.queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(3)]
    queue.lease(owner="ada", ttl=30)
    queue.lease(owner="bob").bury("no use")

    assert [other.queue("jobs").timeline(id_) for id_ in ids] == [
        queue.timeline(id_) for id_ in ids
    ]

    world.restart(leases_last=30)
    first, second, third = (world.open().queue("jobs").timeline(id_) for id_ in ids)
    assert (first.state, whats(first)[-1]) == ("ready", "expired")
    assert (second.state, second.reason) == ("dead", "no use")
    assert (third.state, whats(third)) == ("ready", ["pushed"])


def test_looking_holds_up_nobody_who_pushes_and_takes(store: Store, other: Store) -> None:
    """What is told is true of some moment, whatever happens meanwhile."""
    queue, theirs = store.queue("jobs"), other.queue("jobs")
    ids = [queue.push(b"%d" % number) for number in range(50 if TORTURE else 10)]
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            theirs.push(b"more")
            theirs.lease(owner="ada").ack()

    with meanwhile(work):
        try:
            told = [queue.timeline(id_) for id_ in ids for _ in range(3)]
        finally:
            over.set()

    for each in told:
        assert each.state in ("ready", "leased", "settled")
        if each.state == "ready":
            assert whats(each) == ["pushed"]
        elif each.state == "leased":
            assert whats(each) == ["pushed", "leased"]
        elif each.events and each.is_whole:
            assert whats(each) == ["pushed", "leased", "acked"]
    drain(queue)


def test_a_timeline_takes_nothing(store: Store) -> None:
    """What could be had before can be had after."""
    queue = store.queue("jobs")
    push_all(queue, 3)
    for number in range(4):
        queue.timeline(MessageId(f"0-{number}"))

    assert queue.count().ready == 3
    assert drain(queue) == [b"0", b"1", b"2"]
