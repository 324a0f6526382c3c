"""Delivering: who gets what, in which order, for how long, and who notices that it is over."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain

import pytest

from segue import Item, QueueRules
from segue.errors import InvalidArgument, LeaseLost, QueueEmpty, StoreClosed
from segue.stores.contract import Counts, MessageStatus, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, meanwhile, push_all
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS

NO_COUNTS = [0, -1, True, 1.0, "1", None]
NO_TTLS = [0, -1, 0.0001, float("nan"), float("inf"), "1", True, timedelta(days=8)]


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue without any rules of its own."""
    return store.queue("jobs")


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


# Large ones ----------------------------------------------------------------------------------

LARGE_BYTES = 5 << 20
LARGE_COUNT = 5
"""As many of them are more than comes at once."""


@pytest.mark.parametrize("way", ["pop", "lease", "again", "group"])
def test_large_messages_come_a_few_at_a_time(queue: Queue, way: str) -> None:
    """All at once they might fit nowhere; one at least comes, none is lost or overtaken."""
    for number in range(LARGE_COUNT):
        queue.push(b"%d" % number * LARGE_BYTES, group="ada" if way == "group" else None)
    if way == "again":
        for job in [queue.lease() for _ in range(LARGE_COUNT)]:
            job.release()
    assert 1 <= len(queue.peek(LARGE_COUNT)) < LARGE_COUNT
    seen: list[MessageStatus] = []
    while page := queue.browse(limit=LARGE_COUNT, after=seen[-1].message.id if seen else None):
        assert len(page) < LARGE_COUNT
        seen += page
    bodies = [b"%d" % number for number in range(LARGE_COUNT)]
    assert [status.message.body[:1] for status in seen] == bodies
    found: list[bytes] = []
    most = 0
    while len(found) < LARGE_COUNT:
        if way == "pop":
            batch = [message.body for message in queue.pop_many(LARGE_COUNT)]
        else:
            jobs = queue.lease_many(LARGE_COUNT)
            batch = [job.body for job in jobs]
            queue.ack_many(jobs)
        assert batch
        most = max(most, len(batch))
        found += [body[:1] for body in batch]

    assert found == bodies
    assert most < LARGE_COUNT


def test_dead_letters_come_on_a_page_only_behind_all_that_lives(queue: Queue) -> None:
    """A small one that would still fit must not be what the next page goes on behind."""
    queue.push("dead")
    queue.lease().bury("no such address")
    ids = [queue.push(b"%d" % number * LARGE_BYTES) for number in range(5)]
    seen: list[MessageStatus] = []
    while page := queue.browse(limit=100, after=seen[-1].message.id if seen else None):
        seen += page

    assert [status.message.id for status in seen[:-1]] == ids
    assert [status.state for status in seen[-1:]] == ["dead"]


# Order -------------------------------------------------------------------------------------


def test_priorities_drain_strictly_one_after_the_other(queue: Queue, there: Queue) -> None:
    """0.1.27: all of priority 0, then all of 1, then all of 2; in each, first in, first out."""
    expected = {priority: push_all(queue, 30, priority=priority) for priority in (2, 0, 1)}

    assert drain(there) == expected[0] + expected[1] + expected[2]


def test_what_is_more_urgent_overtakes_at_once(queue: Queue, there: Queue) -> None:
    """Who asks next gets the most urgent there is now."""
    push_all(queue, 3, priority=5)
    first = there.lease()
    queue.push(b"urgent", priority=0)
    second = there.lease()

    assert (first.body, second.body, second.priority) == (b"0", b"urgent", 0)


def test_two_pushers_share_one_order(queue: Queue, there: Queue) -> None:
    """First in, first out is by the time of the push, whoever pushed."""
    for number in range(20):
        (queue, there)[number % 2].push(b"%d" % number)

    assert drain(queue) == [b"%d" % number for number in range(20)]


def test_what_came_back_comes_before_what_is_new(queue: Queue, there: Queue) -> None:
    """0.2.6: it returns to the front of its own priority, in the order it had."""
    push_all(queue, 5)
    queue.push(b"urgent", priority=0)
    jobs = queue.lease_many(3)
    for job in reversed(jobs):
        job.release()
    queue.push(b"other", priority=1)

    assert drain(there) == [b"0", b"1", b"2", b"3", b"4", b"urgent", b"other"]


def test_what_came_back_waits_for_what_is_more_urgent(queue: Queue) -> None:
    """The front of its own priority is not the front of the queue."""
    push_all(queue, 2, priority=1)
    job = queue.lease()
    queue.push(b"urgent", priority=0)
    job.release()

    assert drain(queue) == [b"urgent", b"0", b"1"]


def test_a_batch_may_span_priorities_and_returned_messages(queue: Queue, there: Queue) -> None:
    """One call delivers in the order that many calls would."""
    push_all(queue, 2, priority=1)
    push_all(queue, 2, priority=0, first=10)
    queue.lease().release()
    jobs = there.lease_many(10)

    assert [job.body for job in jobs] == [b"10", b"11", b"0", b"1"]
    assert [job.priority for job in jobs] == [0, 0, 1, 1]


# Taking ------------------------------------------------------------------------------------


def test_there_is_nothing_in_an_empty_queue(queue: Queue) -> None:
    """0.1.33: each call says so in its own way."""
    with pytest.raises(QueueEmpty):
        queue.lease()

    assert queue.pop() is None
    assert queue.pop_many(3) == []
    assert queue.lease_many(3) == []
    assert queue.peek() == []


def test_a_pop_takes_for_good(world: World, queue: Queue, there: Queue) -> None:
    """Delivered at most once: nobody gets it again, even if the taker is killed."""
    queue.push(b"job")
    doomed = world.open()
    message = doomed.queue("jobs").pop()
    world.crash(doomed)
    world.clock.advance(seconds=1_000)

    assert message is not None
    assert (message.body, message.attempt) == (b"job", 1)
    assert there.pop() is None
    assert there.count() == Counts(ready=0, delayed=0, leased=0, dead=0)


def test_a_batch_is_at_most_what_was_asked_for(queue: Queue) -> None:
    """Up to `count`, and less if there is less."""
    push_all(queue, 5)
    sizes = [len(queue.pop_many(2)), len(queue.lease_many(2)), len(queue.lease_many(2))]

    assert sizes == [2, 2, 1]


def test_a_count_is_a_whole_number(queue: Queue) -> None:
    """Anything else is refused, and nothing is taken."""
    push_all(queue, 2)
    for count in NO_COUNTS:
        for call in (queue.pop_many, queue.lease_many, queue.peek):
            with pytest.raises(InvalidArgument):
                call(count)  # type: ignore[arg-type]

    assert queue.count().ready == 2


def test_a_message_is_with_one_holder_at_a_time(queue: Queue, there: Queue) -> None:
    """While one has it nobody else can get it, in any way."""
    push_all(queue, 1)
    job = queue.lease()
    others = (there.pop(), there.lease_many(5), there.peek(5), queue.pop())
    counts = there.count()
    job.ack()

    assert others == (None, [], [], None)
    assert counts == Counts(ready=0, delayed=0, leased=1, dead=0)


def test_peeking_takes_nothing(queue: Queue, there: Queue) -> None:
    """It shows what would come, with the attempt it would have, as often as one likes."""
    push_all(queue, 3)
    queue.lease().fail(delay=0)
    shown = [[(m.body, m.attempt) for m in each.peek(2)] for each in (queue, there, queue)]

    assert shown == [[(b"0", 2), (b"1", 1)]] * 3
    assert drain(there) == [b"0", b"1", b"2"]


def test_ids_stay_the_same_for_ever(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Through leases, returns, death and redrive."""
    pushed = queue.push_many([b"a", Item(body=b"b", delay=1), Item(body=b"c", priority=4)])
    clock.advance(seconds=1)
    seen = []
    for job in there.lease_many(3):
        seen.append(job.id)
        job.release()
    for message in queue.peek(3):
        seen.append(message.id)
    for job in queue.lease_many(3):
        job.bury()
    seen += [letter.message.id for letter in there.dead_letters()]
    there.redrive()
    seen += [message.id for message in queue.pop_many(3)]

    assert Counter(seen) == dict.fromkeys(pushed, 4)


def test_names_of_owners_are_shown(queue: Queue, there: Queue) -> None:
    """An operator can see who has what."""
    push_all(queue, 2)
    queue.lease(owner="wörker 1")
    queue.lease()
    owners = [lease.owner for lease in there.stats().leases]

    assert owners[0] == "wörker 1"
    assert owners[1]


def test_an_owner_is_a_short_text(queue: Queue) -> None:
    """Anything else is refused, and nothing is taken."""
    push_all(queue, 1)
    for owner in [5, b"me", "x" * 256, "\ud800"]:
        with pytest.raises(InvalidArgument):
            queue.lease(owner=owner)  # type: ignore[arg-type]

    assert queue.count().ready == 1


# Leases ------------------------------------------------------------------------------------


def test_a_lease_lasts_as_long_as_it_was_asked_for(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Not a millisecond less, and not one more."""
    push_all(queue, 1)
    queue.lease(ttl=timedelta(seconds=5))
    clock.advance(ms=4_999)
    before = there.count()
    clock.advance(ms=1)
    after = there.count()

    assert (before.leased, before.ready) == (1, 0)
    assert (after.leased, after.ready) == (0, 1)


def test_a_lease_lasts_thirty_seconds_unless_told_otherwise(
    queue: Queue, clock: ManualClock
) -> None:
    """0.2.3: the default, and what the rules say instead."""
    push_all(queue, 2)
    queue.lease()
    queue.configure(QueueRules(lease_ttl=90))
    queue.lease()
    seconds = sorted(round(lease.seconds_left) for lease in queue.stats().leases)

    assert seconds == [30, 90]


def test_a_lease_has_limits(queue: Queue) -> None:
    """From a millisecond to a week; refused before anything is taken."""
    push_all(queue, 2)
    job = queue.lease()
    for ttl in NO_TTLS:
        with pytest.raises(InvalidArgument):
            queue.lease(ttl=ttl)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.lease_many(2, ttl=ttl)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            job.extend(ttl=ttl)  # type: ignore[arg-type]

    assert queue.count() == Counts(ready=1, delayed=0, leased=1, dead=0)


NOTICING: dict[str, Callable[[Queue], bytes]] = {
    "pop": lambda queue: getattr(queue.pop(), "body", b""),
    "pop_many": lambda queue: queue.pop_many(5)[0].body,
    "lease": lambda queue: queue.lease().body,
    "lease_many": lambda queue: queue.lease_many(5)[0].body,
    "peek": lambda queue: queue.peek()[0].body,
    "count": lambda queue: b"%d" % (queue.count().ready - 1),
    "stats": lambda queue: b"%d" % (queue.stats().counts.ready - 1),
    "state": lambda queue: b"%d" % ("queue_0_seg_0" not in queue.state()),
}


@pytest.mark.parametrize("notice", NOTICING.values(), ids=NOTICING.keys())
def test_whoever_looks_first_notices_an_ended_lease(
    world: World, queue: Queue, there: Queue, notice: Callable[[Queue], bytes]
) -> None:
    """C9: a dead worker's message is to be had when its lease is over, whichever call looks."""
    push_all(queue, 1)
    doomed = world.open()
    doomed.queue("jobs").lease(ttl=5)
    world.crash(doomed)
    world.clock.advance(seconds=5)

    assert notice(there) == b"0"


def test_a_redelivery_says_so(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """C3: duplicates carry attempt > 1."""
    push_all(queue, 2)
    attempts = []
    for holder in (queue, there, queue):
        attempts.append([(job.body, job.attempt) for job in holder.lease_many(2, ttl=1)])
        clock.advance(seconds=1)

    assert attempts == [[(b"0", n), (b"1", n)] for n in (1, 2, 3)]


def test_tokens_only_grow(world: World, queue: Queue) -> None:
    """Each lease has a token above all before it, in every process and after every restart."""
    push_all(queue, 1)
    tokens = []
    for _ in range(3):
        for _ in range(3):
            handle = world.open().queue("jobs")
            job = handle.lease(ttl=5)
            tokens.append(job.token)
            world.clock.advance(seconds=5)
        world.restart()

    assert tokens == sorted(set(tokens))


def test_leases_do_not_care_what_time_it_is(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Setting the clock neither ends a lease nor prolongs it."""
    push_all(queue, 1)
    job = queue.lease(ttl=10)
    counts = []
    for seconds in (100_000, -300_000, 200_000):
        clock.step(seconds=seconds)
        counts.append(there.count().leased)
    clock.step(seconds=-50_000)
    clock.advance(seconds=10)
    with pytest.raises(LeaseLost):
        job.ack()

    assert counts == [1, 1, 1]
    assert there.count().ready == 1


def test_closing_gives_nothing_back(world: World, queue: Queue) -> None:
    """A lease belongs to whoever knows its receipt, not to the handle it was taken with."""
    push_all(queue, 2)
    leaving = world.open()
    first, second = leaving.queue("jobs").lease_many(2, ttl=10)
    leaving.close()
    held = queue.count()
    queue.ack(first.receipt)
    world.clock.advance(seconds=10)

    assert (held.leased, held.ready) == (2, 0)
    assert [(job.id, job.attempt) for job in queue.lease_many(5)] == [(second.id, 2)]


def test_a_restart_ends_every_lease(world: World, queue: Queue, clock: ManualClock) -> None:
    """Ticks begin again at zero, so no lease may outlast the machine it was counted on."""
    clock.advance(seconds=1_000_000)
    for priority in (0, 1, 2):
        push_all(queue, 3, priority=priority)
    queue.push(b"later", priority=1, delay=1)
    clock.advance(seconds=1)
    stale = queue.lease_many(10, ttl=1_000)
    world.restart(leases_last=1_000)
    reopened = world.open().queue("jobs")
    counts = reopened.count()
    for job in stale:
        with pytest.raises(LeaseLost):
            reopened.ack(job.receipt)

    assert (counts.leased, counts.ready) == (0, 10)
    assert {job.attempt for job in reopened.lease_many(10)} == {2}


def test_one_lease_of_many_ends_alone(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Messages taken in one step are settled, extended and lost each on its own."""
    push_all(queue, 4)
    jobs = queue.lease_many(4, ttl=10)
    jobs[1].extend(ttl=60)
    jobs[2].ack()
    clock.advance(seconds=10)
    again = there.lease_many(10)
    jobs[1].ack()

    assert [job.body for job in again] == [b"0", b"3"]
    assert there.count() == Counts(ready=0, delayed=0, leased=2, dead=0)


# Waiting -----------------------------------------------------------------------------------


def test_a_push_elsewhere_wakes_who_waits(queue: Queue, there: Queue) -> None:
    """Waiting is for news, from any process."""
    with meanwhile(lambda: queue.pop(wait=LIMIT_SECONDS)) as outcome:
        there.push(b"news")
    message = outcome.result()

    assert message is not None
    assert message.body == b"news"


def test_a_push_to_a_new_priority_wakes_who_waits(queue: Queue, there: Queue) -> None:
    """Also where nothing was ever pushed before."""
    with meanwhile(lambda: queue.lease(wait=None)) as outcome:
        there.push(b"news", priority=77)

    assert outcome.result().body == b"news"


def test_a_release_elsewhere_wakes_who_waits(queue: Queue, there: Queue) -> None:
    """What somebody gives back is news, too."""
    push_all(queue, 1)
    job = there.lease()
    with meanwhile(lambda: queue.lease_many(3, wait=LIMIT_SECONDS)) as outcome:
        job.release()

    assert [job.body for job in outcome.result()] == [b"0"]


def test_a_resume_elsewhere_wakes_who_waits(queue: Queue, there: Queue) -> None:
    """A paused queue has nothing to give until it goes on."""
    push_all(queue, 1)
    there.pause()
    with meanwhile(lambda: queue.pop(wait=LIMIT_SECONDS)) as outcome:
        there.resume()

    assert outcome.result() is not None


def test_who_waits_gets_a_delayed_message_when_it_is_due(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Nobody has to push or look for it."""
    queue.push(b"later", delay=0.05)
    with meanwhile(lambda: there.lease(wait=LIMIT_SECONDS)) as outcome:
        clock.advance(seconds=1)

    assert outcome.result().body == b"later"


def test_who_waits_gets_the_message_of_a_dead_worker(
    world: World, queue: Queue, clock: ManualClock
) -> None:
    """C9: the end of a lease wakes who waits, though nobody writes anything."""
    push_all(queue, 1)
    doomed = world.open()
    doomed.queue("jobs").lease(ttl=0.05)
    world.crash(doomed)
    with meanwhile(lambda: queue.lease(wait=LIMIT_SECONDS)) as outcome:
        clock.advance(seconds=1)

    assert (outcome.result().body, outcome.result().attempt) == (b"0", 2)


def test_a_wait_ends_with_nothing(queue: Queue) -> None:
    """After `wait` the call says the same as it would have said at once."""
    with pytest.raises(QueueEmpty):
        queue.lease(wait=0.01)

    assert queue.pop(wait=0.01) is None
    assert queue.pop_many(2, wait=timedelta(milliseconds=10)) == []
    assert queue.lease_many(2, wait=timedelta()) == []


def test_a_wait_is_seconds_that_are_not_negative(queue: Queue) -> None:
    """Anything else is refused, and nothing is taken."""
    push_all(queue, 1)
    for wait in [-1, -0.01, float("nan"), "1", True]:
        for call in (queue.pop, queue.lease):
            with pytest.raises(InvalidArgument):
                call(wait=wait)  # type: ignore[arg-type]

    assert queue.count().ready == 1


def test_closing_ends_a_wait(store: Store, queue: Queue) -> None:
    """Who waits on a handle that is closed is told so, not left waiting."""

    def wait() -> None:
        with pytest.raises(StoreClosed):
            queue.pop(wait=None)

    with meanwhile(wait):
        store.close()


# Many at once ------------------------------------------------------------------------------


def test_threads_that_share_a_handle_share_the_work(queue: Queue, there: Queue) -> None:
    """Every message to exactly one of them, whichever handle they use."""
    push_all(queue, 400)
    start = threading.Barrier(4)

    def work(handle: Queue) -> list[bytes]:
        start.wait()
        done = []
        while jobs := handle.lease_many(3):
            handle.ack_many(jobs[:-1])
            jobs[-1].ack()
            done += [job.body for job in jobs]
        return done

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(work, [queue, queue, there, there]))

    assert sorted(chain(*done)) == sorted(b"%d" % number for number in range(400))
    assert all(each == sorted(each, key=int) for each in done)
    assert queue.count().total == 0


def test_threads_may_push_and_pop_at_once(queue: Queue, there: Queue) -> None:
    """Nothing is lost, nothing comes twice, and each pusher's messages stay in order."""

    def push(handle: Queue, name: str) -> None:
        for number in range(100):
            handle.push(f"{name} {number}", priority=number % 2)

    def pop(handle: Queue) -> list[str]:
        found = []
        while (message := handle.pop(wait=LIMIT_SECONDS)) is not None and message.text != "end":
            found.append(message.text)
        return found

    with ThreadPoolExecutor(4) as threads:
        poppers = [threads.submit(pop, handle) for handle in (queue, there)]
        pushers = [
            threads.submit(push, handle, name) for handle, name in ((queue, "a"), (there, "b"))
        ]
        for pusher in pushers:
            pusher.result()
        queue.push_many([Item(body="end", priority=9), Item(body="end", priority=9)])
        found = [popper.result() for popper in poppers]

    assert sorted(found[0] + found[1]) == sorted(
        f"{name} {number}" for name in "ab" for number in range(100)
    )
    assert all(each == in_order(each) for each in found)


def in_order(texts: list[str]) -> list[str]:
    """Return `texts` with those of one pusher and priority in the order they were pushed."""
    lines: dict[tuple[str, int], list[int]] = {}
    for text in texts:
        name, number = text.split()
        lines.setdefault((name, int(number) % 2), []).append(int(number))
    for line in lines.values():
        line.sort(reverse=True)
    keys = [(text.split()[0], int(text.split()[1]) % 2) for text in texts]
    return [f"{key[0]} {lines[key].pop()}" for key in keys]
