"""Many processes on one queue: pushers and consumers at once, and one that only looks on."""

import threading
import time
from pathlib import Path
from typing import Final

import pytest

import segue
from segue import QueueRules
from segue.delivery.message import Key
from segue.log.layout import Offset
from segue.log.payloads import Payload
from segue.stores.file.core import QueueCore
from segue.stores.file.upkeep import Upkeep
from segue.testing import ManualClock
from tests.crash.channel import Report
from tests.crash.processes import Child, ForkServer
from tests.crash.queue_roles import (
    DONE,
    QUEUE,
    READY,
    be_idle_then_consume,
    consume_until_told,
    push_many_one_by_one,
    wait_for_a_message,
    wait_until_waiting,
)
from tests.waiting import LIMIT_SECONDS, wait_until

PUSHERS: Final = 4
CONSUMERS: Final = 3
MESSAGES: Final = 400
"""Of each pusher."""
LEDGER_BYTES_MAX: Final = 3_000_000


def ledger_bytes(root: Path) -> int:
    """Return what the queue's ledger takes up on the device."""
    return sum(
        path.stat().st_blocks * 512 for path in (root / "queues" / QUEUE / "ledger").glob("*.q")
    )


def delivered(report: Report) -> list[tuple[str, int, str]]:
    """Return id, attempt and body of each message that a consumer reports."""
    assert isinstance(report, list)
    lines = [str(line).split(" ", 2) for line in report]
    return [(id_, int(attempt), body) for id_, attempt, body in lines]


def next_report(children: list[Child]) -> Report:
    """Wait for the next report of any child and return it."""
    wait_until(lambda: any(child.has_report() for child in children), "a consumer reports")
    return next(child for child in children if child.has_report()).read()


def test_pushers_and_consumers_at_once_lose_nothing_and_an_idle_process_catches_up(
    scratch: Path, forks: ForkServer
) -> None:
    """Each message is delivered once, in order; who slept through it all knows where things stand.

    What the idle one had not read is long gone from the ledger, which stays small all the same.
    """
    with segue.open(scratch, sync="os") as store:
        queue = store.queue(QUEUE, QueueRules(segment_items=64))
    with forks.start(be_idle_then_consume, scratch) as idle:
        assert idle.read() == READY
        pushers = [
            forks.start(push_many_one_by_one, scratch, f"p{number}", MESSAGES, [0, 3], "os")
            for number in range(PUSHERS)
        ]
        consumers = [
            forks.start(consume_until_told, scratch, batch) for batch in (1, 2, 7)[:CONSUMERS]
        ]
        found = [message for consumer in consumers for message in delivered(consumer.read())]
        for consumer in consumers:
            consumer.tell("go on")
        while len(found) < PUSHERS * MESSAGES:
            found += delivered(next_report(consumers))
        for consumer in consumers:
            with consumer:
                consumer.tell("end")
                assert consumer.read_rest() == [DONE]
                assert consumer.join() == 0
        for pusher in pushers:
            with pusher:
                assert pusher.read() == DONE
                assert pusher.join() == 0
        size_bytes = ledger_bytes(scratch)
        with segue.open(scratch, sync="os") as store:
            queue = store.queue(QUEUE)
            with segue.Log(scratch / "queues" / QUEUE / "ledger", read_only=True) as ledger:
                assert ledger.first_offset > MESSAGES, "no checkpoint was trimmed"
            queue.push("for the idle one", priority=1)
            queue.push("waits on", priority=2)
            idle.tell("go")
            counts, body, left = idle.read(), idle.read(), idle.read()
            idle.tell("end")
            idle.join()

            assert queue.count().total == 1
    bodies = [body for _, _, body in found]
    assert sorted(bodies) == sorted(f"p{n} {m}" for n in range(PUSHERS) for m in range(MESSAGES))
    assert {attempt for _, attempt, _ in found} == {1}
    assert (counts, body, left) == ([2, 0, 0, 0], "for the idle one", 1)
    assert size_bytes <= LEDGER_BYTES_MAX


def test_a_consumer_that_waits_sees_the_first_message_of_a_priority_nobody_used(
    scratch: Path, forks: ForkServer
) -> None:
    """A new lane made in one process is one that others wait on, too."""
    with segue.open(scratch, sync="os") as store:
        queue = store.queue(QUEUE)
        queue.push("old", priority=7)
        assert queue.pop() is not None
        with forks.start(wait_for_a_message, scratch) as waiter:
            assert waiter.read() == READY
            wait_until_waiting(scratch, waiter.pid)
            queue.push("first of its kind", priority=2)
            report = waiter.read()
            assert isinstance(report, list)

            assert int(report[1]) == 1
            assert waiter.read() == "first of its kind"
            waiter.join()


def test_a_push_with_a_delay_wakes_who_waits_when_its_time_has_come(
    scratch: Path, forks: ForkServer
) -> None:
    """C10: not early, not much later, though nobody had ever pushed with a delay."""
    with segue.open(scratch, sync="os") as store:
        queue = store.queue(QUEUE)
        queue.push("old")
        assert queue.pop() is not None
        with forks.start(wait_for_a_message, scratch) as waiter:
            assert waiter.read() == READY
            pushed_us = time.monotonic_ns() // 1000
            queue.push("later", delay=0.3)
            report = waiter.read()
            assert isinstance(report, list)

            assert int(report[0]) - pushed_us >= 299_000
            assert waiter.read() == "later"
            waiter.join()


LARGE_BYTES: Final = 1 << 20
"""A few of these fill a segment of the log aside."""


def core_of(store: segue.Store) -> QueueCore:
    """Return what a store keeps of the queue."""
    core = vars(store)["_queues"][QUEUE]
    assert isinstance(core, QueueCore)
    return core


def test_a_delayed_message_pushed_while_another_process_tidies_up_is_not_deleted(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came aside since a turn began is unknown to it, and nothing it may delete.

    One store has begun a turn and is about to carry a message aside; another, whose own turn is
    over, appends a delayed message just before that, as the last of a segment.
    """
    monkeypatch.setattr("segue.stores.file.upkeep.TIDY_EVERY_ITEMS", 6)
    clock = ManualClock()
    turn_begun, appending, appended = threading.Event(), threading.Event(), threading.Event()
    carry = Upkeep._carry

    def carry_after_the_push(upkeep: Upkeep, key: Key) -> None:
        turn_begun.set()
        assert appended.wait(LIMIT_SECONDS)
        carry(upkeep, key)

    def opened() -> segue.Store:
        return segue.open(scratch, sync="os", clock=clock, ticks=clock.ticks)

    with opened() as tidy, opened() as pushing:
        queue = tidy.queue(QUEUE, QueueRules(segment_items=4))
        for _ in range(4):
            queue.push(bytes(LARGE_BYTES), delay=1)
        queue.push(b"held" * (LARGE_BYTES // 4))
        for number in range(40):
            queue.push(f"filler {number}")
        held = queue.lease(ttl=600)
        assert held.body.startswith(b"held")
        clock.advance(seconds=2)
        queue.ack_many(queue.lease_many(4))
        other = pushing.queue(QUEUE)
        other.count()
        log = core_of(pushing).lanes.aside.log
        append = log.append

        def append_in_the_middle(payload: Payload, *, attr: int = 0) -> Offset:
            appending.set()
            assert turn_begun.wait(LIMIT_SECONDS)
            try:
                return append(payload, attr=attr)
            finally:
                appended.set()

        monkeypatch.setattr(log, "append", append_in_the_middle)
        monkeypatch.setattr(Upkeep, "_carry", carry_after_the_push)
        pusher = threading.Thread(
            target=other.push, args=(b"late" * (LARGE_BYTES // 5),), kwargs={"delay": 1}
        )
        pusher.start()
        assert appending.wait(LIMIT_SECONDS)  # Its turn is over by then.
        while jobs := queue.lease_many(3):
            queue.ack_many(jobs)
        pusher.join()
        clock.advance(seconds=2)

        assert queue.lease().body.startswith(b"late")
