"""How a file queue holds messages back for their groups: how many, and where they lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue import Item, QueueRules
from segue.delivery.events import IN_ASIDE
from segue.stores.contract import Queue
from segue.stores.file import delivering, journal, upkeep
from segue.stores.file.queue import FileQueue
from segue.stores.file.store import FileStore
from tests.contract.test_queue_groups import leased, push_groups, work_off
from tests.contract.worlds import FileWorld


@pytest.fixture
def place(scratch: Path) -> Iterator[FileWorld]:
    """A directory and a clock; intact when the test is over."""
    place = FileWorld(scratch / "data", sync="os")
    yield place
    place.end()


@pytest.fixture
def files(place: FileWorld) -> FileStore:
    """The first handle."""
    return place.open()


@pytest.fixture
def queue(files: FileStore) -> Queue:
    """A queue with ten messages to a segment."""
    return files.queue("jobs", QueueRules(segment_items=10))


def test_beyond_a_limit_delivery_waits_rather_than_using_memory(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be held back holds up what lies behind it, and only in its lane."""
    monkeypatch.setattr(delivering, "HELD_MAX", 3)
    push_groups(queue, "a1 a2 a3 a4 a5 -1 b1")
    queue.push(b"urgent", priority=7)

    job = queue.lease()
    assert leased(queue) == ["urgent"]
    job.ack()
    job = queue.lease()
    assert (job.text, leased(queue)) == ("a2", ["-1", "b1"])
    job.ack()
    assert work_off(queue) == ["a3", "a4", "a5"]


def test_at_the_limit_a_group_with_a_place_still_comes(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not be held."""
    monkeypatch.setattr(delivering, "HELD_MAX", 2)
    push_groups(queue, "a1 a2 a3 b1 c1 a4 d1")

    assert leased(queue) == ["a1", "b1", "c1"]
    assert queue.count().ready == 4


def test_what_is_held_back_does_not_hold_its_segments(
    queue: Queue, files: FileStore, place: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is carried out of them like anything old, and still comes in order, for everybody."""
    monkeypatch.setattr(upkeep, "TIDY_EVERY_ITEMS", 4)
    for number in range(20):
        queue.push_many([Item(body=b"a%d" % number, group="a"), *[b"-"] * 9])
    first = queue.lease()
    for _ in range(180):
        queue.lease().ack()
    assert not queue.wait(0)
    assert isinstance(queue, FileQueue)
    places = queue._core.ledger.places.values()
    assert any(where == IN_ASIDE for where, _ in places)

    first.ack()
    files.close()
    assert work_off(place.open().queue("jobs")) == [f"a{number}" for number in range(1, 20)]


def test_a_checkpoint_knows_the_groups(
    queue: Queue, place: FileWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads the ledger from there on keeps the order, and the rate."""
    monkeypatch.setattr(journal, "CHECKPOINT_EVENTS", 20)
    queue.configure(QueueRules(rate=1000, rate_burst=5))
    push_groups(queue, "a1 a2 b1 b2 b3")
    queue.lease()
    failed = queue.lease()
    failed.fail(delay=5)
    for _ in range(60):
        queue.push(b"-")
        place.clock.advance(ms=1)
        queue.lease().ack()

    theirs = place.open().queue("jobs")
    assert not theirs.wait(0)
    place.clock.advance(seconds=5)
    assert [job.text for job in theirs.lease_many(5)] == ["b1"]


def test_a_group_whose_ledger_is_lost_comes_in_order_again(
    queue: Queue, files: FileStore, place: FileWorld
) -> None:
    """The messages themselves say which group is theirs."""
    push_groups(queue, "a1 a2 b1")
    queue.push(b"a later", delay=1, group="a")
    queue.lease()
    assert leased(queue) == ["b1"]
    files.close()
    ledger = place.root / "queues" / "jobs" / "ledger"
    for path in ledger.iterdir():
        path.unlink()
    place.clock.advance(seconds=2)

    assert work_off(place.open().queue("jobs")) == ["a later", "a1", "a2", "b1"]


def test_a_prefix_that_says_nothing_is_no_group(queue: Queue) -> None:
    """Whoever wrote the flag without the word: the message comes like any other."""
    queue.push(b"first")
    assert isinstance(queue, FileQueue)
    lane = queue._core.lanes.by_priority[0]
    lane.append(b'{"g":3}body', attr=7 | 1 << 27)
    queue.push(b"last")

    assert [job.text for job in queue.lease_many(5)] == ["first", "body", "last"]
