"""Dead letters: what is given up is kept with its reason, and can be brought back."""

import pytest

from segue import Item, QueueRules
from segue.errors import InvalidArgument
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, push_all
from tests.contract.worlds import World


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue that gives up after three deliveries."""
    return store.queue("jobs", QueueRules(max_deliveries=3, backoff_base=0, backoff_jitter=0))


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


def bury_all(queue: Queue, count: int, **what: int) -> None:
    """Push `count` messages and give up each."""
    push_all(queue, count, **what)
    for job in queue.lease_many(count):
        job.bury(f"reason {job.text}")


# Dying -------------------------------------------------------------------------------------


def test_a_buried_message_says_who_gave_it_up_and_why(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """The letter has everything the message had, and its death besides."""
    pushed_us = clock()
    id_ = queue.push(b"poison", priority=2, headers={"h": "v"}, key="k", ttl=1_000)
    clock.advance(seconds=7)
    queue.lease().bury("makes no sense")
    (letter,) = there.dead_letters()
    message = letter.message

    assert (letter.cause, letter.reason, letter.died_us) == ("dead", "makes no sense", clock())
    assert (message.id, message.body, message.priority) == (id_, b"poison", 2)
    assert (dict(message.headers), message.key, message.pushed_us) == ({"h": "v"}, "k", pushed_us)
    assert (letter.deliveries, message.attempt) == (1, 1)
    assert there.count() == Counts(ready=0, delayed=0, leased=0, dead=1)


def test_a_message_is_given_up_after_its_last_failure(queue: Queue, there: Queue) -> None:
    """The reason is the last one's; the number of deliveries is what the rules allow."""
    push_all(queue, 1)
    attempts = []
    for handle in (queue, there, queue):
        job = handle.lease()
        attempts.append(job.attempt)
        job.fail(f"failure {job.attempt}")
    (letter,) = there.dead_letters()

    assert attempts == [1, 2, 3]
    assert (letter.cause, letter.reason, letter.deliveries) == ("failed", "failure 3", 3)
    assert queue.count() == Counts(ready=0, delayed=0, leased=0, dead=1)


def test_a_message_is_given_up_when_its_last_lease_ends(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """A message that kills its workers is given up, too."""
    push_all(queue, 2)
    for _ in range(3):
        queue.lease_many(2, ttl=5)
        clock.advance(seconds=5)
    counts = there.count()
    letters = list(there.dead_letters())

    assert counts == Counts(ready=0, delayed=0, leased=0, dead=2)
    assert [(letter.cause, letter.deliveries) for letter in letters] == [("expired", 3)] * 2
    assert [letter.message.body for letter in letters] == [b"0", b"1"]


def test_failures_and_ended_leases_count_together(queue: Queue, clock: ManualClock) -> None:
    """A delivery without success is one, however it ended; a release is none."""
    push_all(queue, 1)
    queue.lease().fail()
    queue.lease(ttl=5)
    clock.advance(seconds=5)
    queue.lease().release()
    before = queue.count().dead
    queue.lease().fail("last")

    assert (before, queue.count().dead) == (0, 1)


def test_without_a_limit_nothing_is_given_up(store: Store) -> None:
    """max_deliveries=None: it is tried for ever."""
    queue = store.queue("jobs", QueueRules(max_deliveries=None, backoff_base=0))
    push_all(queue, 1)
    for _ in range(50):
        queue.lease().fail()

    assert queue.lease().attempt == 51


def test_letters_are_kept_by_everybody(world: World, queue: Queue) -> None:
    """They are on disk, in the order they came."""
    bury_all(queue, 3)
    world.restart()
    reopened = world.open().queue("jobs")

    assert [letter.reason for letter in reopened.dead_letters()] == [
        "reason 0",
        "reason 1",
        "reason 2",
    ]


def test_the_list_of_letters_has_a_limit_if_asked(queue: Queue) -> None:
    """The oldest come first."""
    bury_all(queue, 5)

    assert [letter.message.text for letter in queue.dead_letters(limit=2)] == ["0", "1"]
    assert list(queue.dead_letters(limit=0)) == []
    with pytest.raises(InvalidArgument):
        queue.dead_letters(limit=-1)


def test_a_delayed_message_that_dies_keeps_its_priority(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """What was pushed with a delay is a message like any other."""
    id_ = queue.push(b"later", priority=4, delay=1)
    clock.advance(seconds=1)
    queue.lease().bury()
    (letter,) = there.dead_letters()
    there.redrive()
    message = queue.pop()

    assert (letter.message.id, letter.message.priority) == (id_, 4)
    assert message is not None
    assert (message.id, message.priority, message.body) == (id_, 4, b"later")


# Redrive -----------------------------------------------------------------------------------


def test_a_redrive_brings_letters_back_to_the_front(queue: Queue, there: Queue) -> None:
    """To the front of their own priority, in their old order, with attempts above one."""
    bury_all(queue, 3, priority=1)
    push_all(queue, 2, priority=1, first=10)
    push_all(queue, 1, priority=0, first=20)
    report = there.redrive()
    messages = queue.pop_many(10)

    assert (report.matched, report.redriven, report.dry_run) == (3, 3, False)
    assert [message.body for message in messages] == [b"20", b"0", b"1", b"2", b"10", b"11"]
    assert [message.attempt for message in messages] == [1, 2, 2, 2, 1, 1]
    assert list(there.dead_letters()) == []


def test_a_redriven_message_has_all_its_deliveries_anew(queue: Queue, there: Queue) -> None:
    """Attempts go on counting; the limit counts from the redrive on."""
    push_all(queue, 1)
    attempts = []
    for _ in range(2):
        for _ in range(3):
            job = queue.lease()
            attempts.append(job.attempt)
            job.fail("again")
        (letter,) = there.dead_letters()
        there.redrive()
    job = queue.lease()

    assert attempts == [1, 2, 3, 4, 5, 6]
    assert (letter.deliveries, letter.message.attempt) == (6, 6)
    assert (job.attempt, job.body) == (7, b"0")


def test_the_backoff_begins_anew_after_a_redrive(store: Store, clock: ManualClock) -> None:
    """A message that was repaired does not wait as long as one that failed twenty times."""
    queue = store.queue("jobs", QueueRules(max_deliveries=3, backoff_jitter=0))
    push_all(queue, 1)
    for _ in range(3):
        queue.lease().fail()
        clock.advance(seconds=10)
    queue.redrive()
    queue.lease().fail()
    clock.advance(seconds=1)

    assert queue.count().ready == 1


def test_a_redrive_takes_what_it_is_told_to(queue: Queue, there: Queue) -> None:
    """By a question, up to a limit, the oldest first."""
    bury_all(queue, 10)
    report = there.redrive(where=lambda letter: int(letter.message.text) % 2 == 1, limit=3)

    assert (report.matched, report.redriven) == (3, 3)
    assert drain(queue) == [b"1", b"3", b"5"]
    assert [letter.message.text for letter in queue.dead_letters()] == list("0246789")


def test_a_dry_run_changes_nothing(queue: Queue, there: Queue) -> None:
    """It says how many there would be."""
    bury_all(queue, 4)
    report = there.redrive(where=lambda letter: letter.message.text != "2", dry_run=True)

    assert (report.matched, report.redriven, report.dry_run) == (3, 0, True)
    assert queue.count() == Counts(ready=0, delayed=0, leased=0, dead=4)


def test_a_redrive_may_take_its_time(queue: Queue) -> None:
    """With a rate it does the same, only slower."""
    bury_all(queue, 6)
    report = queue.redrive(rate=200)

    assert (report.matched, report.redriven) == (6, 6)
    assert len(drain(queue)) == 6


def test_many_letters_are_brought_back_in_several_steps(queue: Queue, there: Queue) -> None:
    """However many there are, each comes back once."""
    bury_all(queue, 250)
    report = there.redrive()

    assert (report.matched, report.redriven) == (250, 250)
    assert drain(queue) == [b"%d" % number for number in range(250)]


def test_a_rate_is_positive(queue: Queue) -> None:
    """Anything else is refused, and nothing comes back."""
    bury_all(queue, 1)
    for rate in [0, -1, float("nan"), "1", True]:
        with pytest.raises(InvalidArgument):
            queue.redrive(rate=rate)  # type: ignore[arg-type]

    assert queue.count().dead == 1


def test_a_limit_is_a_whole_number(queue: Queue) -> None:
    """Anything else is refused, and nothing comes back or goes."""
    bury_all(queue, 1)
    for limit in [-1, 1.0, "1", True]:
        with pytest.raises(InvalidArgument):
            queue.redrive(limit=limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            queue.discard(limit=limit)  # type: ignore[arg-type]

    assert queue.count().dead == 1


def test_a_question_that_fails_leaves_the_letters(queue: Queue) -> None:
    """An error of the caller's own goes to the caller."""
    bury_all(queue, 3)
    with pytest.raises(ZeroDivisionError):
        queue.redrive(where=lambda letter: 1 // int(letter.message.text) == 1)

    assert queue.count() == Counts(ready=0, delayed=0, leased=0, dead=3)


def test_two_who_redrive_bring_each_letter_back_once(queue: Queue, there: Queue) -> None:
    """Whoever is second finds nothing left."""
    bury_all(queue, 3)
    letters = list(queue.dead_letters())
    there.redrive()
    second = queue.redrive(where=lambda letter: letter in letters)

    assert second.redriven == 0
    assert drain(there) == [b"0", b"1", b"2"]


def test_an_outlived_message_is_delivered_once_it_is_redriven(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Somebody wants it after all: it is shown as what comes next, and comes."""
    queue.push(b"brief", ttl=1)
    clock.advance(seconds=1)
    queue.pop()
    there.redrive()
    shown = [message.body for message in queue.peek(2)]

    assert shown == [b"brief"]
    assert drain(there) == [b"brief"]


def test_a_redriven_message_is_kept_by_everybody(world: World, queue: Queue) -> None:
    """It survives a restart with its body, id and attempt."""
    id_ = queue.push(b"job", headers={"a": "b"})
    queue.lease().bury("for now")
    queue.redrive()
    world.restart()
    job = world.open().queue("jobs").lease()

    assert (job.id, job.body, job.attempt, dict(job.headers)) == (id_, b"job", 2, {"a": "b"})


def test_a_redriven_message_may_be_released_extended_and_acked(queue: Queue, there: Queue) -> None:
    """It is a message like any other."""
    bury_all(queue, 2)
    queue.redrive()
    there.lease().release()
    first, second = there.lease_many(2)
    first.extend(ttl=100)
    queue.ack_many([first, second.receipt])

    assert (first.attempt, second.attempt) == (2, 2)
    assert queue.count() == Counts(ready=0, delayed=0, leased=0, dead=0)


# Discarding --------------------------------------------------------------------------------


def test_letters_can_be_dropped(queue: Queue, there: Queue) -> None:
    """For good: all, or those that were asked for."""
    bury_all(queue, 6)
    some = there.discard(where=lambda letter: letter.message.text in "024", limit=2)
    left = [letter.message.text for letter in queue.dead_letters()]
    rest = queue.discard()

    assert (some, left, rest) == (2, ["1", "3", "4", "5"], 4)
    assert there.count().dead == 0
    assert there.redrive().matched == 0
    assert there.stats().totals["discarded"] == 6


def test_dead_letters_are_no_part_of_the_total(queue: Queue) -> None:
    """`total` is what is still to be done."""
    bury_all(queue, 2)
    push_all(queue, 3)
    queue.push_many([Item(body=b"later", delay=5)])
    queue.lease()

    assert (queue.count().total, queue.count().dead) == (4, 2)
