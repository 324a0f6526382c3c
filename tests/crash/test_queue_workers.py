"""Workers that misbehave, as real processes: they die at work, stop, fall silent or are slow."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Queue, QueueRules
from segue.errors import LeaseLost
from tests.crash.processes import KILLED, ForkServer
from tests.crash.queue_roles import (
    BEAT,
    DONE,
    LONG_SECONDS,
    POISON,
    QUEUE,
    READY,
    REFUSED,
    clock_of,
    expire_leases,
    hold_a_lane,
    hold_the_turn,
    lease_and_follow_orders,
    look_when_told,
    open_store,
    wait_for_a_message,
    work_until_poisoned,
    work_until_told,
)
from tests.crash.stopping import stop, wait_until_blocked_by_lock

SHORT_SECONDS: Final = 0.25
"""Time to live of a lease that ends by itself."""
JUMPS: Final = 4


def open_here(root: Path, rules: QueueRules | None = None) -> tuple[segue.Store, Queue]:
    """Return the store and its queue for the test itself."""
    store = open_store(root)
    return store, store.queue(QUEUE, rules)


def test_a_message_that_kills_its_workers_goes_to_the_dead_letters_and_others_flow(
    scratch: Path, forks: ForkServer
) -> None:
    """A poison message costs as many workers as it has deliveries, and holds nothing up."""
    store, queue = open_here(scratch, QueueRules(max_deliveries=3, segment_items=20))
    with store:
        queue.push("before")
        queue.push(POISON)
        queue.push_many([f"after {number}" for number in range(20)])
        attempts: list[int] = []
        bodies: list[str] = []
        for _ in range(3):
            with forks.start(work_until_poisoned, scratch) as worker:
                while isinstance(report := worker.read(), str):
                    bodies.append(report)
                assert isinstance(report, list)
                attempts += map(int, report)
                assert worker.join() == KILLED
            expire_leases(scratch)
        queue.push("last")
        with forks.start(work_until_poisoned, scratch) as worker:
            while "last" not in bodies:
                bodies.append(str(worker.read()))
        letters = list(queue.dead_letters())

        assert attempts == [1, 2, 3]
        assert sorted(bodies) == sorted(["before", "last", *(f"after {n}" for n in range(20))])
        assert [(letter.message.body, letter.deliveries) for letter in letters] == [(POISON, 3)]
        assert letters[0].cause == "expired"
        assert queue.count().total == 0


def test_a_worker_stopped_past_its_lease_is_refused_when_it_goes_on(
    scratch: Path, forks: ForkServer
) -> None:
    """C5: its message went to another with attempt 2, whose own ack still counts."""
    store, queue = open_here(scratch)
    with store:
        id_ = queue.push("slow")
        with forks.start(lease_and_follow_orders, scratch, LONG_SECONDS) as worker:
            receipt = str(worker.read())
            stop(worker.pid)
            expire_leases(scratch)
            job = queue.lease(ttl=LONG_SECONDS, wait=0)
            os.kill(worker.pid, signal.SIGCONT)
            worker.tell("ack")

            assert worker.read() == REFUSED
            assert (job.id, job.attempt) == (id_, 2)
            with pytest.raises(LeaseLost):
                queue.ack(receipt)
            job.ack()
            assert queue.count().total == 0


def test_a_killed_holder_s_message_is_back_in_time_for_who_waits_and_who_counts(
    scratch: Path, forks: ForkServer
) -> None:
    """C9: the end of the lease itself wakes a process that waits."""
    store, queue = open_here(scratch)
    with store:
        queue.push("left behind")
        with forks.start(lease_and_follow_orders, scratch, SHORT_SECONDS) as holder:
            holder.read()
            with forks.start(wait_for_a_message, scratch) as waiter:
                assert waiter.read() == READY
                holder.kill()
                holder.join()
                report = waiter.read()
                assert isinstance(report, list)
                assert int(report[1]) == 2
                assert waiter.read() == "left behind"
                waiter.join()


@pytest.mark.parametrize("look", ["count", "stats", "peek", "pop"])
def test_any_look_at_the_queue_sees_that_a_lease_is_over(
    scratch: Path, forks: ForkServer, look: str
) -> None:
    """C9: no call needs another one to notice before it."""
    store, queue = open_here(scratch)
    with store:
        queue.push("left behind")
        with forks.start(lease_and_follow_orders, scratch, LONG_SECONDS) as holder:
            holder.read()
            holder.kill()
            holder.join()
        expire_leases(scratch)
        match look:
            case "count":
                assert queue.count().ready == 1
            case "stats":
                assert queue.stats().counts.ready == 1
            case "peek":
                assert [message.attempt for message in queue.peek()] == [2]
            case _:
                message = queue.pop()
                assert message is not None
                assert message.attempt == 2


@pytest.mark.parametrize("hold", [hold_the_turn, hold_a_lane])
def test_a_process_killed_in_its_turn_keeps_nobody_out(
    scratch: Path, forks: ForkServer, hold: object
) -> None:
    """A lock goes with its process, also in the middle of a turn or an append."""
    store, queue = open_here(scratch)
    with store:
        queue.push("one")
        holding = hold_the_turn if hold is hold_the_turn else hold_a_lane
        with forks.start(look_when_told, scratch) as waiter:
            assert waiter.read() == READY
            with forks.start(holding, scratch) as child:
                assert child.read() == READY
                with forks.start(wait_for_a_message, scratch) as newcomer:
                    waiter.tell("look")
                    if hold is hold_the_turn:
                        wait_until_blocked_by_lock(waiter.pid)
                        assert not waiter.has_report()
                        assert not newcomer.has_report()
                    child.kill()
                    child.join()
                    assert waiter.read() == READY
                    assert newcomer.read() == READY
                    newcomer.read()
                    assert newcomer.read() == "one"
                    newcomer.join()
        queue.push("two")
        assert [message.text for message in queue.peek(3)][-1] == "two"


def test_a_heartbeat_keeps_the_lease_of_a_long_job_in_a_busy_process(
    scratch: Path, forks: ForkServer
) -> None:
    """The message stays leased though without heartbeats its lease would have ended."""
    store, queue = open_here(scratch)
    with store:
        queue.push("long")
        with forks.start(work_until_told, scratch) as worker:
            assert worker.read() == READY
            for _ in range(JUMPS):
                clock_of(scratch).advance(seconds=0.6 * LONG_SECONDS)
                # The first heartbeat may have begun before.
                assert [worker.read(), worker.read()] == [BEAT, BEAT]
                assert queue.count().leased == 1
            worker.tell("end")

            assert worker.read_rest()[-1] == DONE
            assert queue.count().total == 0
