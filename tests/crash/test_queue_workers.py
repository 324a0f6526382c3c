"""Workers that misbehave, as real processes: they die at work, stop, fall silent or are slow."""

import os
import signal
import time
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import Queue, QueueRules
from segue.errors import LeaseLost
from tests.crash.channel import ChildIsStuck
from tests.crash.processes import KILLED, ForkServer
from tests.crash.queue_roles import (
    DONE,
    POISON,
    QUEUE,
    READY,
    REFUSED,
    hold_a_lane,
    hold_the_turn,
    lease_and_follow_orders,
    wait_for_a_message,
    work_long,
    work_until_poisoned,
)
from tests.crash.stopping import stop

TTL: Final = 0.25
GRACE_SECONDS: Final = 20.0
"""How long we wait for a message whose lease is over: C9 says a second, a busy machine more."""


def open_here(root: Path, rules: QueueRules | None = None) -> tuple[segue.Store, Queue]:
    """Return the store and its queue for the test itself."""
    store = segue.open(root, sync="os")
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
            with forks.start(work_until_poisoned, scratch, 0.05) as worker:
                while isinstance(report := worker.read(), str):
                    bodies.append(report)
                assert isinstance(report, list)
                attempts += map(int, report)
                assert worker.join() == KILLED
        queue.push("last")
        with forks.start(work_until_poisoned, scratch, 0.05) as worker:
            while "last" not in bodies:
                bodies.append(str(worker.read(timeout_seconds=5)))
        deadline = time.monotonic() + 0.05 + GRACE_SECONDS
        while not queue.count().dead and time.monotonic() < deadline:
            time.sleep(0.01)
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
        with forks.start(lease_and_follow_orders, scratch, TTL) as worker:
            receipt = str(worker.read())
            stop(worker.pid)
            job = queue.lease(ttl=30, wait=TTL + GRACE_SECONDS)
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
    """C9: within its lease and a second, whichever call of whichever process notices first."""
    store, queue = open_here(scratch)
    with store:
        queue.push("left behind")
        with forks.start(lease_and_follow_orders, scratch, TTL) as holder:
            holder.read()
            with forks.start(wait_for_a_message, scratch, GRACE_SECONDS) as waiter:
                assert waiter.read() == READY
                holder.kill()
                holder.join()
                report = waiter.read(timeout_seconds=TTL + GRACE_SECONDS)
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
        with forks.start(lease_and_follow_orders, scratch, 0.05) as holder:
            holder.read()
            holder.kill()
            holder.join()
        time.sleep(0.05)
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
        with forks.start(hold_the_turn if hold is hold_the_turn else hold_a_lane, scratch) as child:
            assert child.read() == READY
            with forks.start(wait_for_a_message, scratch, GRACE_SECONDS) as waiter:
                if hold is hold_the_turn:
                    with pytest.raises(ChildIsStuck):
                        waiter.read(timeout_seconds=0.1)
                child.kill()
                child.join()
                assert waiter.read(timeout_seconds=5) == READY
                waiter.read()
                assert waiter.read() == "one"
                waiter.join()
        queue.push("two")
        assert [message.text for message in queue.peek(3)][-1] == "two"


def test_a_heartbeat_keeps_the_lease_of_a_long_job_in_a_busy_process(
    scratch: Path, forks: ForkServer
) -> None:
    """Nobody else gets the message though its lease would have ended several times."""
    store, queue = open_here(scratch)
    with store:
        queue.push("long")
        with forks.start(work_long, scratch, 2.0, 4.5) as worker:
            worker.read()
            end = time.monotonic() + 4.0
            while time.monotonic() < end:
                assert queue.count().leased == 1
                time.sleep(0.05)

            assert worker.read() == DONE
            assert queue.count().total == 0
