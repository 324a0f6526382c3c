"""A store of format version 1 is read for ever."""

import lzma
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from segue import Counts, Log, Store
from segue.errors import LeaseLost
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.golden.generate import START_US
from tests.golden.generate_store import ARCHIVE

SIZE_BYTES_MAX = 50_000


@pytest.fixture
def root(scratch: Path) -> Path:
    """The golden store, unpacked."""
    with tarfile.open(fileobj=BytesIO(lzma.decompress(ARCHIVE.read_bytes()))) as archive:
        archive.extractall(scratch, filter="data")
    return scratch


@pytest.fixture
def clock() -> ManualClock:
    """The moment at which the golden store was written."""
    return ManualClock(START_US)


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[Store]:
    """The golden store, open on another machine."""
    with open_directory(root, clock=clock, ticks=clock.ticks) as store:
        yield store


def test_the_golden_store_is_small() -> None:
    """It is in every clone."""
    assert ARCHIVE.stat().st_size < SIZE_BYTES_MAX


def test_every_log_of_it_is_intact(root: Path) -> None:
    """Byte for byte."""
    for path in {segment.parent for segment in root.rglob("*.q")}:
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == [], path


def test_its_queue_is_as_it_was_left(store: Store) -> None:
    """But for the lease, which did not survive the change of machine."""
    queue = store.queue("jobs")

    assert store.queues() == ["jobs"]
    assert queue.count() == Counts(ready=5, delayed=3, leased=0, dead=1)
    assert queue.stats().paused
    assert (queue.rules.max_deliveries, queue.rules.keep_seconds) == (3, 3600)


def test_its_messages_come_with_all_they_have(store: Store, clock: ManualClock) -> None:
    """In the order they would have come, with the attempts they had."""
    queue = store.queue("jobs")
    queue.resume()
    clock.advance(seconds=40)
    jobs = queue.lease_many(20)

    assert [(job.id, job.text, job.attempt) for job in jobs] == [
        ("1-0", "plain 1", 2),
        ("1-1", "plain 3", 2),
        ("1-2", "plain 5", 1),
        ("later-0", "late", 1),
        ("5-0", "with headers", 1),
        ("5-1", "keyed", 1),
        ("5-2", "brief", 1),
    ]
    assert dict(jobs[4].headers) == {"trace": "42", "naïve": "ja"}
    assert jobs[5].key == "once"
    assert queue.push("again", key="once") == "5-1"


def test_its_dead_letter_has_its_cause(store: Store) -> None:
    """And comes back when it is wanted."""
    queue = store.queue("jobs")
    (letter,) = queue.dead_letters()
    queue.redrive()
    queue.resume()

    assert (letter.message.text, letter.cause, letter.reason) == (
        "plain 4",
        "dead",
        "no such customer",
    )
    assert queue.lease().text == "plain 4"


def test_no_token_of_it_is_good_any_more(store: Store) -> None:
    """The machine that gave them is gone."""
    queue = store.queue("jobs")
    queue.resume()
    for place in range(100):
        with pytest.raises(LeaseLost):
            queue.ack(f"1-1/{(1 << 40) + place}")

    assert queue.lease().token > (2 << 40)


def test_its_history_is_kept(store: Store) -> None:
    """Settled or not."""
    assert [message.text for message in store.queue("jobs").history(priority=0)] == [
        "plain 0",
        "plain 2",
        "plain 4",
    ]


def test_its_ring_is_as_it_was_left(store: Store) -> None:
    """With its groups and outcomes."""
    ring = store.ring("bus", mode="open")
    info = ring.info()
    outcome = ring.outcome("txn 3")

    assert (info.capacity, info.head_offset, info.tail_offset) == (12, 0, 5)
    assert dict(info.groups) == {"default": 0, "audit": 1}
    assert outcome is not None
    assert outcome.enqueued == range(3, 4)
    entry = ring.dequeue()
    assert entry is not None
    assert entry.body == b"entry 0"


def test_its_lock_goes_on_with_a_higher_token(store: Store) -> None:
    """Whoever held it was on another machine."""
    assert store.lock("leader").holder() is None
    assert store.lock("leader").acquire(wait=0).token > 1
