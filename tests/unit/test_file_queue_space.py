"""Space: what is settled goes from disk, and what is not settled does not keep it all."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue import Item, Log, QueueRules
from segue.stores.contract import Queue, Store
from segue.stores.file.upkeep import PINNED_SEGMENTS_MAX, TIDY_EVERY_ITEMS
from segue.stores.opening import open_directory
from segue.testing import ManualClock

Opener = Callable[[], Store]
SEGMENT_ITEMS = 10
ENOUGH = 2 * SEGMENT_ITEMS * (TIDY_EVERY_ITEMS // SEGMENT_ITEMS + 1)
"""Whole segments, and more than are settled before somebody looks."""


@pytest.fixture
def steps() -> ManualClock:
    """A clock that stands still until it is told otherwise."""
    return ManualClock()


@pytest.fixture
def opener(scratch: Path, steps: ManualClock) -> Iterator[Opener]:
    """Opens further handles on one store; all logs are intact at the end."""
    stores: list[Store] = []

    def opened() -> Store:
        store = open_directory(scratch, sync="os", clock=steps, ticks=steps.ticks)
        stores.append(store)
        return store

    yield opened
    for store in stores:
        store.close()
    for path in {segment.parent for segment in scratch.rglob("*.q")}:
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == []


@pytest.fixture
def queue(opener: Opener) -> Queue:
    """A queue with ten messages to a segment."""
    return opener().queue("jobs", QueueRules(segment_items=SEGMENT_ITEMS))


def segments(scratch: Path, where: str = "lanes/0") -> list[int]:
    """Return the numbers of the segments that lie there."""
    return sorted(int(path.stem) for path in (scratch / "queues/jobs" / where).glob("*.q"))


def push(queue: Queue, count: int, *, priority: int = 0) -> None:
    for first in range(0, count, SEGMENT_ITEMS):
        queue.push_many(
            [
                Item(body=b"%d" % number, priority=priority)
                for number in range(first, min(first + SEGMENT_ITEMS, count))
            ]
        )


def work_off(queue: Queue, count: int) -> None:
    for _ in range(0, count, SEGMENT_ITEMS):
        queue.ack_many(queue.lease_many(SEGMENT_ITEMS))


@pytest.mark.parametrize("way", ["pop", "ack one by one", "ack many", "purge", "bury"])
def test_settled_segments_are_deleted(scratch: Path, queue: Queue, way: str) -> None:
    """However their messages were settled: at most the last few are left."""
    push(queue, ENOUGH)
    before = len(segments(scratch))
    match way:
        case "pop":
            for _ in range(ENOUGH):
                queue.pop()
        case "ack one by one":
            for _ in range(ENOUGH):
                queue.lease().ack()
        case "ack many":
            work_off(queue, ENOUGH)
        case "purge":
            queue.purge()
        case "bury":
            for job in queue.lease_many(ENOUGH):
                job.bury()

    assert before >= ENOUGH // SEGMENT_ITEMS
    assert len(segments(scratch)) <= 2


def test_segment_numbers_never_start_over(scratch: Path, queue: Queue, opener: Opener) -> None:
    """Not even when all were deleted."""
    push(queue, ENOUGH)
    work_off(queue, ENOUGH)
    left = segments(scratch)
    again = opener().queue("jobs")
    id_ = again.push(b"next")

    assert left[0] >= ENOUGH // SEGMENT_ITEMS - 1
    assert min(segments(scratch)) >= left[0]
    assert id_ == f"0-{ENOUGH}"


def test_segments_are_deleted_whoever_settles(scratch: Path, queue: Queue, opener: Opener) -> None:
    """Also if every process settles only a few, as a command line does."""
    push(queue, 200)
    for _ in range(40):
        with opener() as store:
            store.queue("jobs").pop_many(5)

    assert queue.count().total == 0
    assert len(segments(scratch)) <= 5


def test_what_waits_is_not_deleted(scratch: Path, queue: Queue, opener: Opener) -> None:
    """Only segments that are settled whole."""
    push(queue, 2 * ENOUGH)
    work_off(queue, ENOUGH)
    there = opener().queue("jobs")
    bodies = []
    while messages := there.pop_many(100):
        bodies += [int(message.body) for message in messages]

    assert bodies == list(range(ENOUGH, 2 * ENOUGH))


def test_an_old_message_pins_no_unbounded_space(
    scratch: Path, queue: Queue, opener: Opener, steps: ManualClock
) -> None:
    """It is carried forward, with its id, body, headers, time and token."""
    pushed_us = steps()
    id_ = queue.push(b"slow", headers={"h": "v"}, key="k", ttl=10**6)
    job = queue.lease(ttl=10**5)
    steps.advance(seconds=60)
    for _ in range(4):
        push(queue, ENOUGH)
        work_off(queue, ENOUGH)
    left = segments(scratch)
    there = opener().queue("jobs")
    job.extend(ttl=10)
    steps.advance(seconds=10)
    again = there.lease()

    assert len(left) <= PINNED_SEGMENTS_MAX + 2
    assert left[0] > 0
    assert (again.id, again.body, again.attempt) == (id_, b"slow", 2)
    assert (dict(again.headers), again.key) == ({"h": "v"}, "k")
    assert again.message.pushed_us == pushed_us
    assert again.token > job.token
    again.ack()
    assert queue.count().total == 0


def test_a_carried_message_is_settled_by_its_old_token(queue: Queue, opener: Opener) -> None:
    """Its holder does not notice that it was moved."""
    queue.push(b"slow")
    job = queue.lease(ttl=10**5)
    for _ in range(2):
        push(queue, ENOUGH)
        work_off(queue, ENOUGH)
    opener().queue("jobs").ack(job.receipt)

    assert queue.count().total == 0
    assert queue.pop() is None


@pytest.mark.parametrize("end", ["release", "bury", "expire"])
def test_a_carried_message_ends_as_any_other(
    queue: Queue, opener: Opener, steps: ManualClock, end: str
) -> None:
    """Given back, given up and brought back, or lost by its holder."""
    id_ = queue.push(b"slow", priority=0)
    job = queue.lease(ttl=10**5)
    for _ in range(2):
        push(queue, ENOUGH)
        work_off(queue, ENOUGH)
    match end:
        case "release":
            job.release()
        case "bury":
            job.bury("slow")
            (letter,) = opener().queue("jobs").dead_letters()
            assert (letter.message.id, letter.message.body) == (id_, b"slow")
            queue.redrive()
        case "expire":
            steps.advance(seconds=10**5)
    message = opener().queue("jobs").pop()

    assert message is not None
    assert (message.id, message.body, message.attempt) == (id_, b"slow", 1 + (end != "release"))


def test_many_old_messages_are_all_carried(scratch: Path, queue: Queue, opener: Opener) -> None:
    """A slow worker here and there does not add up."""
    slow = []
    for _ in range(100):
        push(queue, 30)
        slow += [job.id for job in queue.lease_many(1, ttl=10**5)]
        jobs = queue.lease_many(29)
        queue.ack_many(jobs)
    held = sorted(lease.message_id for lease in opener().queue("jobs").stats().leases)

    assert held == sorted(slow)
    assert len(segments(scratch)) <= PINNED_SEGMENTS_MAX + 10


def test_pinned_bytes_say_what_is_kept_for_old_messages(queue: Queue, opener: Opener) -> None:
    """Nothing where nothing is pinned; what segments take up where they wait for a holder."""
    push(queue, 30)
    none = queue.stats().pinned_bytes
    job = queue.lease(ttl=10**5)
    queue.ack_many(queue.lease_many(29))
    some = opener().queue("jobs").stats()
    job.ack()
    work_off(queue, 0)

    assert none == 0
    assert 0 < some.pinned_bytes <= some.size_bytes


def test_each_priority_is_cleaned_on_its_own(scratch: Path, queue: Queue) -> None:
    """One that waits keeps nothing of another."""
    push(queue, ENOUGH, priority=1)
    push(queue, ENOUGH, priority=0)
    work_off(queue, ENOUGH)

    assert len(segments(scratch, "lanes/0")) <= 2
    assert len(segments(scratch, "lanes/1")) >= ENOUGH // SEGMENT_ITEMS


def test_messages_with_a_delay_leave_no_trace_either(
    scratch: Path, opener: Opener, steps: ManualClock
) -> None:
    """What waited aside is deleted when it is settled."""
    queue = opener().queue("jobs")
    body = bytes(400_000)
    for _ in range(60):
        queue.push(body, delay=1)
    steps.advance(seconds=1)
    before = len(segments(scratch, "aside"))
    while queue.pop_many(10):
        pass
    for _ in range(ENOUGH):
        queue.push(b"x")
        queue.pop()

    assert before >= 3
    assert len(segments(scratch, "aside")) <= 2


def test_dead_letters_that_were_dropped_leave_no_trace(scratch: Path, opener: Opener) -> None:
    """Their log is cleaned, too."""
    queue = opener().queue("jobs")
    for _ in range(60):
        queue.push(bytes(400_000))
        queue.lease().bury()
    before = len(segments(scratch, "dead"))
    queue.discard()

    assert before >= 3
    assert len(segments(scratch, "dead")) <= 2


def test_the_ledger_stays_small(
    scratch: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints take the place of what happened long ago, for everybody."""
    monkeypatch.setattr("segue.stores.file.journal.CHECKPOINT_EVENTS", 100)
    monkeypatch.setattr("segue.stores.file.journal.LEDGER_KEPT_BYTES", 0)
    queue, there = opener().queue("jobs"), opener().queue("jobs")
    queue.push(b"held")
    held = queue.lease(ttl=10**5)
    there.count()
    for number in range(1_000):
        queue.push(b"%d" % number)
        queue.lease().ack()
    numbers = segments(scratch, "ledger")
    there.ack(held.receipt)

    assert len(numbers) <= 4
    assert numbers[0] > 0
    assert opener().queue("jobs").count().total == 0
    assert opener().queue("jobs").stats().totals["acked"] == 1_001
