"""Settling: how a lease ends, and that nobody ends one that is not theirs."""

import contextlib
from collections.abc import Callable
from itertools import product

import pytest

from segue import Job, QueueRules
from segue.errors import InvalidArgument, LeaseLost, SegueError
from segue.log.options import Duration
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import drain, push_all
from tests.contract.worlds import World
from tests.waiting import wait_until

NO_RECEIPTS = [
    "",
    "/",
    "x",
    "0-0",
    "0-0/",
    "0-0/x",
    "0-0/-1",
    "0-0/1.0",
    "-0/1",
    "0-/1",
    "0/1",
    "later/1",
    "later-/1",
    "-1-0/1",
    "0-0-0/1",
    "0 - 0/1",
    None,
    5,
    b"0-0/1",
]
UNKNOWN_RECEIPTS = [
    "0-0/1",
    "0-1/1",
    "0-999999/1",
    "99-0/5",
    "later-0/5",
    "0-0/0",
    f"0-{1 << 63}/{1 << 62}",
]
SETTLING: dict[str, Callable[[Queue, Job | str], None]] = {
    "ack": lambda queue, job: queue.ack(job),
    "ack_many": lambda queue, job: queue.ack_many([job]),
    "release": lambda queue, job: queue.nack(job, outcome="release"),
    "fail": lambda queue, job: queue.nack(job),
    "dead": lambda queue, job: queue.nack(job, outcome="dead"),
    "extend": lambda queue, job: queue.extend(job, ttl=60),
}
every_way = pytest.mark.parametrize("settle", SETTLING.values(), ids=SETTLING.keys())


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue whose backoff is not random."""
    return store.queue("jobs", QueueRules(backoff_jitter=0))


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


# Ack ---------------------------------------------------------------------------------------


def test_what_is_acked_is_done(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """It never comes again."""
    push_all(queue, 1)
    queue.lease().ack()
    clock.advance(seconds=1_000)

    assert there.count() == Counts(ready=0, delayed=0, leased=0, dead=0)
    assert there.pop() is None


def test_a_receipt_is_as_good_as_a_job(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """Whoever knows it may settle, from another process and after the first is gone."""
    push_all(queue, 4)
    queue.push(b"later", delay=0.001)
    clock.advance(seconds=1)
    later, *jobs = queue.lease_many(5)
    there.ack(later.receipt)
    there.ack(jobs[0].receipt)
    there.nack(jobs[1].receipt, outcome="release")
    there.nack(jobs[2].receipt, outcome="dead", reason="bad")
    there.extend(jobs[3].receipt, ttl=100)
    clock.advance(seconds=50)

    assert queue.count() == Counts(ready=1, delayed=0, leased=1, dead=1)
    assert [message.body for message in queue.peek(5)] == [b"1"]


def test_a_job_is_settled_once(queue: Queue) -> None:
    """The second time is the caller's mistake, and changes nothing."""
    push_all(queue, 3)
    acked, released, buried = queue.lease_many(3)
    acked.ack()
    released.release()
    buried.bury()
    for job in (acked, released, buried):
        for again in (job.ack, job.release, job.fail, job.bury, job.extend):
            with pytest.raises(SegueError):
                again()
        with pytest.raises(LeaseLost):
            queue.ack(job)

    assert queue.count() == Counts(ready=1, delayed=0, leased=0, dead=1)


def test_many_are_acked_in_one_step(queue: Queue, there: Queue) -> None:
    """Jobs and receipts, of any priority, in any order."""
    push_all(queue, 5)
    push_all(queue, 5, priority=1)
    jobs = queue.lease_many(10)
    there.ack_many([*reversed(jobs[:6]), *[job.receipt for job in jobs[6:9]]])

    assert there.count() == Counts(ready=0, delayed=0, leased=1, dead=0)
    assert there.stats().totals["acked"] == 9


def test_acking_none_does_nothing(queue: Queue) -> None:
    """No jobs, no step."""
    queue.ack_many([])


def test_of_many_only_the_lost_are_lost(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """LeaseLost names them all; every other is settled."""
    push_all(queue, 6)
    queue.push(b"other", priority=3)
    jobs = queue.lease_many(7, ttl=10)
    for place in (0, 2, 6):
        jobs[place].extend(ttl=100)
    clock.advance(seconds=10)
    stolen = there.lease_many(2, ttl=1_000)
    with pytest.raises(LeaseLost) as raised:
        queue.ack_many(jobs)

    assert set(raised.value.lost) == {jobs[place].receipt for place in (1, 3, 4, 5)}
    assert [job.body for job in stolen] == [b"1", b"3"]
    assert [job.is_settled for job in jobs] == [True, False, True, False, False, False, True]
    assert there.count() == Counts(ready=2, delayed=0, leased=2, dead=0)


def test_the_same_job_twice_in_one_step_is_one(queue: Queue, there: Queue) -> None:
    """Whether or not that is an error, it is counted once and harms no other message."""
    push_all(queue, 2)
    first, second = queue.lease_many(2)
    with contextlib.suppress(LeaseLost):
        queue.ack_many([first, first, second])

    assert there.count() == Counts(ready=0, delayed=0, leased=0, dead=0)
    assert there.stats().totals["acked"] == 2


def test_garbage_among_many_settles_nothing(queue: Queue) -> None:
    """Bad arguments raise InvalidArgument before anything is written."""
    push_all(queue, 2)
    jobs = queue.lease_many(2)
    with pytest.raises(InvalidArgument):
        queue.ack_many([jobs[0], "garbage", jobs[1]])

    assert queue.count().leased == 2


# Whose lease -------------------------------------------------------------------------------


def test_garbage_is_no_receipt(queue: Queue) -> None:
    """It is refused as what it is, and harms nobody."""
    push_all(queue, 1)
    queue.lease()
    for settle, receipt in product(SETTLING.values(), NO_RECEIPTS):
        with pytest.raises(InvalidArgument):
            settle(queue, receipt)  # type: ignore[arg-type]

    assert queue.count().leased == 1


@pytest.mark.parametrize("receipt", ["0-" + "9" * 5_000 + "/1", "0-0/" + "9" * 5_000])
def test_a_number_beyond_all_numbers_is_no_receipt(queue: Queue, receipt: str) -> None:
    """A receipt comes from outside: one that is absurdly long is an error like any other."""
    for settle in SETTLING.values():
        with pytest.raises((InvalidArgument, LeaseLost)):
            settle(queue, receipt)


def test_a_receipt_of_no_lease_is_lost(queue: Queue) -> None:
    """A token that was never given is good for nothing, whatever message it names."""
    push_all(queue, 2)
    queue.lease()
    for settle, receipt in product(SETTLING.values(), UNKNOWN_RECEIPTS):
        with pytest.raises(LeaseLost):
            settle(queue, receipt)

    assert queue.count() == Counts(ready=1, delayed=0, leased=1, dead=0)


@pytest.mark.parametrize("other_id", ["99-0", "0-1", "later-1"])
def test_a_token_is_good_for_its_own_message_only(
    queue: Queue, there: Queue, world: World, other_id: str
) -> None:
    """C5: the token of one message under the id of another is refused, and nothing changes."""
    push_all(queue, 2)
    queue.push(b"later", delay=1)
    world.clock.advance(seconds=1)
    jobs = queue.lease_many(2)
    tokens = {job.token for job in jobs}
    for settle, token in product(SETTLING.values(), tokens):
        with pytest.raises(LeaseLost):
            settle(queue, f"{other_id}/{token}")

    expected = Counts(ready=1, delayed=0, leased=2, dead=0)
    assert [each.count() for each in (queue, there, world.open().queue("jobs"))] == [expected] * 3


@every_way
def test_a_lease_that_ended_settles_nothing(
    queue: Queue, clock: ManualClock, settle: Callable[[Queue, Job | str], None]
) -> None:
    """C5: a holder that fell silent is told so, whatever it wants to do then."""
    push_all(queue, 1)
    job = queue.lease(ttl=5)
    clock.advance(seconds=5)
    for stale in (job, job.receipt):
        with pytest.raises(LeaseLost) as raised:
            settle(queue, stale)
        assert raised.value.receipt == job.receipt

    assert queue.count() == Counts(ready=1, delayed=0, leased=0, dead=0)


@every_way
def test_a_lease_that_passed_to_another_settles_nothing(
    queue: Queue, there: Queue, clock: ManualClock, settle: Callable[[Queue, Job | str], None]
) -> None:
    """C5: the second holder keeps its message, whatever the first does late."""
    push_all(queue, 1)
    stale = queue.lease(ttl=5)
    clock.advance(seconds=5)
    current = there.lease(ttl=5)
    for late in (stale, stale.receipt):
        with pytest.raises(LeaseLost):
            settle(queue, late)
    held = there.count()
    current.ack()
    with pytest.raises(LeaseLost):
        settle(queue, stale)

    assert (held.leased, held.ready) == (1, 0)
    assert there.count() == Counts(ready=0, delayed=0, leased=0, dead=0)


@every_way
def test_a_released_message_is_not_the_first_holders_any_more(
    queue: Queue, there: Queue, settle: Callable[[Queue, Job | str], None]
) -> None:
    """Also when its attempt is the same as before."""
    push_all(queue, 1)
    first = queue.lease()
    receipt = first.receipt
    first.release()
    second = there.lease()
    with pytest.raises(LeaseLost):
        settle(queue, receipt)

    assert second.attempt == 1
    second.ack()


def test_a_job_of_another_queue_settles_nothing_here(store: Store) -> None:
    """Two queues may well have the same places and tokens: a job knows where it belongs."""
    one, two = store.queue("one"), store.queue("two")
    for each in (one, two):
        each.push(b"job")
    foreign, _ = one.lease(), two.lease()
    for settle in SETTLING.values():
        with pytest.raises(SegueError):
            settle(two, foreign)

    assert (one.count().leased, two.count().leased) == (1, 1)


# Giving back -------------------------------------------------------------------------------


def test_a_release_is_as_if_it_had_never_been_taken(queue: Queue, there: Queue) -> None:
    """The attempt stays; so does the number of deliveries that are left."""
    push_all(queue, 2)
    attempts = []
    for _ in range(30):
        job = there.lease()
        attempts.append((job.body, job.attempt))
        job.release()

    assert attempts == [(b"0", 1)] * 30
    assert queue.count() == Counts(ready=2, delayed=0, leased=0, dead=0)


def test_a_release_after_a_failure_keeps_the_failure(queue: Queue) -> None:
    """Only the delivery that is released is not counted."""
    push_all(queue, 1)
    queue.lease().fail(delay=0)
    queue.lease().release()

    assert queue.lease().attempt == 2


def test_a_release_may_be_for_later(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """A holder that cannot work just now gives others time."""
    push_all(queue, 2)
    queue.lease().release(delay=10)
    now = there.count()
    clock.advance(seconds=10)

    assert now == Counts(ready=1, delayed=1, leased=0, dead=0)
    assert drain(there) == [b"0", b"1"]


def test_failures_wait_longer_each_time_up_to_a_limit(store: Store, clock: ManualClock) -> None:
    """base · 2^failures, from one second to the cap."""
    queue = store.queue("jobs", QueueRules(backoff_jitter=0, backoff_cap=10, max_deliveries=None))
    push_all(queue, 1)
    waits = []
    for _ in range(7):
        queue.lease().fail()
        waited = 0
        while not queue.count().ready:
            clock.advance(seconds=1)
            waited += 1
        waits.append(waited)

    assert waits == [1, 2, 4, 8, 10, 10, 10]


def test_the_first_failure_waits_within_the_jitter(store: Store, clock: ManualClock) -> None:
    """Messages that fail together must not come back together, nor out of bounds."""
    queue = store.queue("jobs", QueueRules(backoff_base=10, backoff_jitter=0.5))
    push_all(queue, 30)
    for job in queue.lease_many(30):
        job.fail()
    clock.advance(ms=4_999)
    early = queue.count().ready
    clock.advance(seconds=5)
    middle = queue.count().ready
    clock.advance(ms=5_001)

    assert early == 0
    assert 0 < middle < 30
    assert queue.count().ready == 30


def test_a_failure_may_say_how_long_to_wait(queue: Queue, clock: ManualClock) -> None:
    """The holder knows better than the backoff; nothing means at once."""
    push_all(queue, 2)
    queue.lease().fail("busy", delay=0)
    attempt = queue.lease().attempt
    queue.lease().fail(delay=100)
    clock.advance(seconds=99)
    before = queue.count()
    clock.advance(seconds=1)

    assert attempt == 2
    assert before.delayed == 1
    assert queue.count().delayed == 0


def test_a_failed_message_lets_others_pass(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """A poison message waits its backoff; everything behind it flows."""
    push_all(queue, 5)
    queue.lease().fail("poison")

    assert drain(there) == [b"1", b"2", b"3", b"4"]
    clock.advance(seconds=1)
    message = there.pop()
    assert message is not None
    assert (message.body, message.attempt) == (b"0", 2)


def test_a_wait_after_failure_survives_everybody(world: World, queue: Queue) -> None:
    """The backoff is on disk, not in a worker."""
    push_all(queue, 1)
    queue.lease().fail(delay=100)
    world.restart()
    reopened = world.open().queue("jobs")
    early = reopened.pop()
    world.clock.advance(seconds=100)
    message = reopened.pop()

    assert early is None
    assert message is not None
    assert message.attempt == 2


def test_there_are_three_ways_to_give_back(queue: Queue) -> None:
    """release, fail and dead; anything else is refused, and the lease stays."""
    push_all(queue, 1)
    job = queue.lease()
    for outcome in ["ack", "", None, 1]:
        with pytest.raises(InvalidArgument):
            queue.nack(job, outcome=outcome)  # type: ignore[arg-type]

    assert queue.count().leased == 1


@pytest.mark.parametrize("delay", [-1, float("nan"), "1", True, 1e15, 1e300], ids=repr)
def test_a_senseless_delay_leaves_the_lease(queue: Queue, delay: Duration) -> None:
    """Bad arguments raise InvalidArgument, and nothing has happened."""
    push_all(queue, 1)
    job = queue.lease()
    for give_back in (job.fail, job.release):
        with pytest.raises(InvalidArgument):
            give_back(delay=delay)
    job.ack()

    assert queue.count() == Counts(ready=0, delayed=0, leased=0, dead=0)


def test_a_reason_is_text(queue: Queue) -> None:
    """Whatever text it is, however long; nothing else."""
    push_all(queue, 2)
    first, second = queue.lease_many(2)
    with pytest.raises(InvalidArgument):
        first.bury(5)  # type: ignore[arg-type]
    first.bury("ä" * 100_000)
    second.bury("lone \ud800 half")
    reasons = [letter.reason for letter in queue.dead_letters()]

    assert reasons[0].startswith("ä" * 100)
    assert reasons[1].startswith("lone ")


# Extending ---------------------------------------------------------------------------------


def test_a_lease_can_be_extended(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """It ends `ttl` from now, by default the time it was taken for."""
    push_all(queue, 1)
    job = queue.lease(ttl=10)
    for _ in range(5):
        clock.advance(seconds=9)
        job.extend()
    held = there.count().leased
    job.extend(ttl=100)
    clock.advance(seconds=99)
    still = there.count().leased
    clock.advance(seconds=1)

    assert (held, still, there.count().leased) == (1, 1, 0)


def test_an_extension_counts_from_now(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """So it may also end a lease sooner."""
    push_all(queue, 1)
    job = queue.lease(ttl=100)
    job.extend(ttl=1)
    clock.advance(seconds=1)

    assert there.lease().attempt == 2


def test_an_extension_is_no_delivery(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """The token and the attempt stay."""
    push_all(queue, 1)
    job = queue.lease(ttl=10)
    job.extend(ttl=50)
    (info,) = there.stats().leases
    clock.advance(seconds=20)
    job.ack()

    assert (info.receipt, info.attempt, info.seconds_left) == (job.receipt, 1, 50)


# with job ----------------------------------------------------------------------------------


def test_a_block_that_ends_well_acks(queue: Queue, there: Queue) -> None:
    """`with queue.lease() as job` is all that most workers need."""
    queue.push(b'{"n": 1}', headers={"h": "v"})
    with queue.lease() as job:
        seen = (job.text, job.json(), job.message.body, dict(job.headers))

    assert seen == ('{"n": 1}', {"n": 1}, b'{"n": 1}', {"h": "v"})
    assert job.is_settled
    assert there.count().total == 0


def test_a_block_that_raises_fails_the_message(queue: Queue, there: Queue) -> None:
    """With backoff, and with the words of the exception as the reason; which goes on."""
    queue.configure(QueueRules(max_deliveries=1))
    push_all(queue, 1)
    with pytest.raises(ZeroDivisionError), queue.lease():
        raise ZeroDivisionError("by zero")
    (letter,) = there.dead_letters()

    assert (letter.cause, letter.reason) == ("failed", "ZeroDivisionError: by zero")


def test_a_failed_block_waits_its_backoff(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """It comes back with the next attempt."""
    push_all(queue, 1)
    with pytest.raises(ValueError, match="no"), queue.lease():
        raise ValueError("no")
    waiting = there.count()
    clock.advance(seconds=1)

    assert waiting == Counts(ready=0, delayed=1, leased=0, dead=0)
    assert there.lease().attempt == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_is_stopped_releases(
    queue: Queue, there: Queue, stop: type[BaseException]
) -> None:
    """That the program ends says nothing about the message."""
    push_all(queue, 1)
    with pytest.raises(stop), queue.lease():
        raise stop

    assert there.lease().attempt == 1


def test_a_block_may_settle_itself(queue: Queue, there: Queue) -> None:
    """What was settled inside is left as it is, exception or not."""
    push_all(queue, 3)
    with queue.lease() as first:
        first.bury("bad")
    with queue.lease() as second:
        second.release()

    def work() -> None:
        with queue.lease() as third:
            third.ack()
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        work()

    assert there.count() == Counts(ready=1, delayed=0, leased=0, dead=1)


def test_a_block_that_lost_its_lease_is_told(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Its work must not be taken as done: somebody else has the message."""
    push_all(queue, 1)

    def work() -> None:
        with queue.lease(ttl=5):
            clock.advance(seconds=5)
            held.append(there.lease())

    held: list[Job] = []
    with pytest.raises(LeaseLost):
        work()

    assert [job.attempt for job in held] == [2]
    held[0].ack()


def test_long_work_is_kept_alive(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """While the block runs the lease is renewed, so it outlasts the time it was taken for."""
    push_all(queue, 1)
    with queue.lease(ttl=0.06) as job:
        for _ in range(4):
            clock.advance(seconds=0.04)
            wait_until(lambda: there.stats().leases[0].seconds_left > 0.05)
    attempt = job.attempt

    assert attempt == 1
    assert there.count().total == 0


def test_a_worker_that_lost_its_lease_is_told_at_its_next_call(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """The heartbeat finds out, and every call of the job says so."""
    push_all(queue, 1)

    def is_lost(job: Job) -> bool:
        try:
            job.check()
        except LeaseLost:
            return True
        return False

    def work() -> None:
        with queue.lease(ttl=0.06) as job:
            clock.advance(seconds=1)
            there.lease(ttl=100)
            wait_until(lambda: is_lost(job))
            for call in (job.ack, job.release, job.fail, job.bury, job.extend):
                with pytest.raises(LeaseLost):
                    call()
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()

    assert there.count().leased == 1


def test_a_job_without_a_block_is_not_kept_alive(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Only `with job` and `consume` promise that."""
    push_all(queue, 1)
    job = queue.lease(ttl=0.03)
    clock.advance(seconds=1)

    assert there.lease().attempt == 2
    with pytest.raises(LeaseLost):
        job.ack()
