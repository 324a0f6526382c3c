"""Consuming: the loop that leases, yields and settles."""

import gc
import threading

import pytest

from segue import QueueRules
from segue.aio import _consumer as aio_consumer
from segue.errors import InvalidArgument, LeaseLost
from segue.stores import consumer
from segue.stores.contract import Counts, Queue, Store
from segue.testing import ManualClock
from tests.contract.queue_support import meanwhile, push_all
from tests.waiting import LIMIT_SECONDS, wait_until

DONE = Counts(ready=0, delayed=0, leased=0, dead=0)


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue without any rules of its own."""
    return store.queue("jobs")


@pytest.fixture
def there(queue: Queue, other: Store) -> Queue:
    """The same queue in another process."""
    return other.queue("jobs")


def test_asking_for_the_next_acks_the_one_before(queue: Queue, there: Queue) -> None:
    """The loop is the whole worker; it ends when nothing comes within `wait`."""
    bodies = push_all(queue, 5)
    done = []
    left = []
    for job in queue.consume(wait=0):
        left.append(there.count().total)
        done.append(job.body)

    assert done == bodies
    assert left == [5, 4, 3, 2, 1]
    assert there.count() == DONE


def test_a_job_settled_in_the_loop_stays_as_it_is(queue: Queue, there: Queue) -> None:
    """Only what is not settled is acked."""
    push_all(queue, 4)
    for job in queue.consume(wait=0):
        match job.text:
            case "0":
                job.bury()
            case "1":
                job.fail(delay=100)
            case "2":
                job.ack()

    assert there.count() == Counts(ready=0, delayed=1, leased=0, dead=1)


def test_leaving_the_loop_gives_the_job_back(queue: Queue, there: Queue) -> None:
    """As if it had never been taken, with all that was fetched ahead; what was done is done."""
    push_all(queue, 6)
    for job in queue.consume(wait=0, prefetch=3):
        if job.text == "1":
            break
    gc.collect()

    wait_until(lambda: there.count().leased == 0)
    assert [(m.body, m.attempt) for m in there.peek(9)] == [(b"%d" % n, 1) for n in range(1, 6)]


def test_an_exception_gives_the_job_back(queue: Queue, there: Queue) -> None:
    """Whatever ends the loop."""
    push_all(queue, 3)

    def work() -> None:
        with queue.consume(wait=0, prefetch=2) as jobs:
            for job in jobs:
                if job.text == "1":
                    raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        work()

    assert there.count() == Counts(ready=2, delayed=0, leased=0, dead=0)
    assert [message.attempt for message in there.peek(2)] == [1, 1]


def test_closing_gives_everything_back_at_once(queue: Queue, there: Queue) -> None:
    """A block around the consumer waits for no collector; a closed one yields no more."""
    push_all(queue, 5)
    with queue.consume(wait=0, prefetch=4) as jobs:
        next(jobs)
        held = there.count().leased
    jobs.close()

    assert held == 4
    assert there.count() == Counts(ready=5, delayed=0, leased=0, dead=0)
    with pytest.raises(StopIteration):
        next(jobs)


def test_stop_ends_the_loop_after_the_job_at_hand(queue: Queue, there: Queue) -> None:
    """The job at hand is done; what was fetched ahead goes back."""
    push_all(queue, 5)
    jobs = queue.consume(prefetch=3)
    done = []
    for job in jobs:
        done.append(job.body)
        if len(done) == 2:
            jobs.stop()

    assert done == [b"0", b"1"]
    assert there.count() == Counts(ready=3, delayed=0, leased=0, dead=0)


def test_stop_ends_a_wait(queue: Queue) -> None:
    """From any thread, with an event that several loops may share."""
    stop = threading.Event()
    with (
        meanwhile(lambda: list(queue.consume(stop=stop))) as one,
        meanwhile(lambda: list(queue.consume(stop=stop))) as two,
    ):
        stop.set()

    assert (one.result(), two.result()) == ([], [])


def test_a_stop_that_was_set_before_takes_nothing(queue: Queue) -> None:
    """Not even one job."""
    push_all(queue, 1)
    stop = threading.Event()
    stop.set()

    assert list(queue.consume(stop=stop)) == []
    assert queue.count().ready == 1


def test_the_loop_waits_for_what_comes(queue: Queue, there: Queue) -> None:
    """From another process; it ends when nothing came for `wait`."""

    def take_two() -> list[bytes]:
        bodies = []
        for job in queue.consume(wait=LIMIT_SECONDS):
            bodies.append(job.body)
            if len(bodies) == 2:
                job.ack()
                break
        return bodies

    with meanwhile(take_two) as outcome:
        there.push(b"a")
        wait_until(lambda: there.stats().totals.get("acked", 0) + there.count().leased > 0)
        there.push(b"b")

    assert outcome.result() == [b"a", b"b"]
    assert list(queue.consume(wait=0.01)) == []


class CountedEvent(threading.Event):
    """Counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return super().is_set()


def test_the_loop_waits_for_a_locked_queue(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the rules limit leases, others come first for a while: that is no reason to end."""
    for module in (consumer, aio_consumer):
        monkeypatch.setattr(module, "STOP_SECONDS", 0.01)
    queue = store.queue("jobs", QueueRules(max_leases=1))
    there = other.queue("jobs")
    push_all(queue, 2)
    held = there.lease()
    stop = CountedEvent()

    def work() -> list[bytes]:
        bodies = []
        for job in queue.consume(stop=stop):
            bodies.append(job.body)
            stop.set()
        return bodies

    with meanwhile(work) as outcome:
        wait_until(lambda: stop.asked >= 5)
        held.ack()

    assert outcome.result() == [b"1"]


def test_a_loop_on_a_locked_queue_ends_when_nothing_comes(store: Store, other: Store) -> None:
    """The same as on an empty one: `wait` is over."""
    queue = store.queue("jobs", QueueRules(max_leases=1))
    push_all(queue, 2)
    other.queue("jobs").lease()

    assert list(queue.consume(wait=0.01)) == []


def test_jobs_of_a_loop_are_kept_alive(queue: Queue, there: Queue, clock: ManualClock) -> None:
    """The one at hand and those that were fetched ahead."""
    push_all(queue, 3)
    with queue.consume(ttl=0.06, prefetch=3) as jobs:
        next(jobs)
        for _ in range(3):
            clock.advance(seconds=0.04)
            wait_until(lambda: min(lease.seconds_left for lease in there.stats().leases) > 0.05)
        held = there.count().leased

    assert held == 3


def test_a_job_that_was_lost_in_the_loop_is_told(
    queue: Queue, there: Queue, clock: ManualClock
) -> None:
    """Asking for the next would ack what is somebody else's by now."""
    push_all(queue, 1)
    jobs = queue.consume(ttl=5, wait=0)
    next(jobs)
    clock.advance(seconds=5)
    current = there.lease()
    with pytest.raises(LeaseLost):
        next(jobs)
    jobs.close()

    assert current.attempt == 2
    assert there.count().leased == 1


def test_at_least_one_is_fetched(queue: Queue) -> None:
    """Anything else is refused, and nothing is taken."""
    push_all(queue, 1)
    for prefetch in [0, -1, True, 1.0, "1"]:
        with pytest.raises(InvalidArgument):
            queue.consume(prefetch=prefetch)  # type: ignore[arg-type]

    assert queue.count().ready == 1


def test_a_loop_is_checked_before_it_runs(queue: Queue) -> None:
    """Bad arguments raise InvalidArgument where they are given."""
    for wait in [-1, "1", True, float("nan")]:
        with pytest.raises(InvalidArgument):
            queue.consume(wait=wait)  # type: ignore[arg-type]


def test_loops_share_the_work(queue: Queue, there: Queue) -> None:
    """Each message to one of them, whatever they fetch ahead."""
    push_all(queue, 60)
    queue.push(b"end", priority=9)
    queue.push(b"end", priority=9)
    lock = threading.Lock()
    done: list[str] = []

    def work(handle: Queue) -> None:
        for job in handle.consume(wait=LIMIT_SECONDS, prefetch=4):
            if job.text == "end":
                break
            with lock:
                done.append(job.text)

    with meanwhile(lambda: work(queue)), meanwhile(lambda: work(there)):
        pass

    assert sorted(done) == sorted(str(number) for number in range(60))
