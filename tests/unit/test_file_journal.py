"""The ledger on disk: how much of it is kept, and how little of that is read."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue import Log, Queue
from segue.delivery.events import Deferred, Event, Opened, decode
from segue.errors import StorageError
from segue.log.record import Record
from segue.log.slots import slot_at
from segue.stores.file import journal
from segue.stores.file.journal import Journal
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.crash.damage import flip_bit

EVENTS = 50
"""After so many a checkpoint is due here."""
Opener = Callable[[], FileStore]


@pytest.fixture
def steps() -> ManualClock:
    """A clock that stands still until it is told otherwise."""
    return ManualClock()


@pytest.fixture
def opener(scratch: Path, steps: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens further handles on one store that writes its state down often."""
    monkeypatch.setattr(journal, "CHECKPOINT_EVENTS", EVENTS)
    monkeypatch.setattr(journal, "CHECKPOINT_BATCH", 2)
    stores: list[FileStore] = []

    def opened() -> FileStore:
        store = open_directory(scratch, sync="os", clock=steps, ticks=steps.ticks)
        stores.append(store)
        return store

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The events that are read from the ledger, as they are."""
    records: list[Record] = []
    take_in = Journal._take_in

    def take_in_and_tell(self: Journal, record: Record) -> None:
        records.append(record)
        take_in(self, record)

    monkeypatch.setattr(Journal, "_take_in", take_in_and_tell)
    return records


def ledger_of(scratch: Path) -> Log:
    return Log(scratch / "queues/jobs/ledger", read_only=True)


def work(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.push(b"%d" % number)
        queue.lease().ack()


def test_what_is_kept_beyond_the_last_checkpoints_is_not_read(
    scratch: Path, opener: Opener, taken: list[Record]
) -> None:
    """However much that is: opening costs the same."""
    queue = opener().queue("jobs")
    queue.push(b"held")
    held = queue.lease(ttl=10**5)
    work(queue, 1_000)
    taken.clear()
    again = opener().queue("jobs")

    with ledger_of(scratch) as log:
        assert (log.first_offset, log.next_offset > 2_000) == (0, True)
        first = log.next_offset - 4 * EVENTS
    assert taken
    assert min(record.offset for record in taken) >= first
    assert again.count() == queue.count()
    again.ack(held.receipt)
    assert again.stats().totals["acked"] == 1_001


def test_so_much_of_the_ledger_is_kept_and_no_more(
    scratch: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of it, beside what the state is read from."""
    queue = opener().queue("jobs")
    work(queue, 300)
    with ledger_of(scratch) as log:
        size_bytes = log.segments()[0].size_bytes
    monkeypatch.setattr(journal, "LEDGER_KEPT_BYTES", 5 * size_bytes)
    work(queue, 300)

    with ledger_of(scratch) as log:
        assert 0 < log.first_offset < log.next_offset - 5 * EVENTS
        assert 5 <= len(log.segments()) <= 9
    assert opener().queue("jobs").stats().totals["acked"] == 600


def test_whoever_was_away_for_long_does_not_read_all_that_happened(
    opener: Opener, taken: list[Record]
) -> None:
    """A checkpoint says it shorter, although the rest is still there."""
    queue, there = opener().queue("jobs"), opener().queue("jobs")
    there.count()
    work(queue, 1_000)
    taken.clear()

    assert there.count() == queue.count()
    assert len(taken) < 4 * EVENTS
    taken.clear()
    work(queue, 10)
    assert there.count() == queue.count()
    assert len(taken) < EVENTS


@pytest.mark.parametrize("broken", [1, 2, 7])
def test_a_checkpoint_that_was_broken_off_is_no_state(
    scratch: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """However many: reading begins further back, at one that is whole."""
    queue = opener().queue("jobs")
    queue.push(b"held")
    queue.lease(ttl=10**5)
    work(queue, 300)
    put_checkpoint = Journal._put_checkpoint

    def put_some(self: Journal, batch: list[Event]) -> None:
        put_checkpoint(self, batch)
        raise StorageError("as if it had been killed")

    with ledger_of(scratch) as log:
        before = len(log.segments())
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_put_checkpoint", put_some)
        while True:
            work(queue, 1)
            with ledger_of(scratch) as log:
                if len(log.segments()) - before >= broken:
                    break
    again = opener().queue("jobs")

    assert again.count() == queue.count()
    assert again.count().leased == 1
    assert again.stats().totals == queue.stats().totals


@pytest.mark.parametrize("place", [0, 3], ids=["at its start", "in the middle"])
@pytest.mark.parametrize("damaged", [1, 2, 5])
def test_older_checkpoints_stand_in_for_those_that_are_damaged(
    scratch: Path, opener: Opener, damaged: int, place: int
) -> None:
    """What is kept of the ledger is good for that, too: the last two are not all there is."""
    store = opener()
    queue = store.queue("jobs")
    queue.push(b"held")
    queue.lease(ttl=10**5)
    queue.push(b"later", delay=60)
    work(queue, 500)
    counts, totals = queue.count(), queue.stats().totals
    store.close()
    with ledger_of(scratch) as log:
        segments = log.segments()
    for segment in segments[-damaged:]:
        slot = slot_at(memoryview(segment.path.read_bytes()), place)
        flip_bit(segment.path, slot.position)

    again = opener().queue("jobs")
    assert (again.count(), again.stats().totals) == (counts, totals)
    assert list((scratch / "queues/jobs/ledger/quarantine").iterdir())


def test_what_is_still_to_be_looked_for_is_not_written_down_as_settled(
    scratch: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed message whose event is lost is found in the turn after: not before a checkpoint."""
    store = opener()
    queue = store.queue("jobs")
    for body in (b"one", b"two"):
        queue.push(body, delay=60)
        queue.count()
    store.close()
    with ledger_of(scratch) as log:
        decoded = [decode(record.payload, record.attr) for record in log.records()]
        (segment,) = log.segments()
    data = memoryview(segment.path.read_bytes())
    for event in (Opened, Deferred):
        offset = next(place for place, found in enumerate(decoded) if isinstance(found, event))
        flip_bit(segment.path, slot_at(data, offset).position)
    monkeypatch.setattr(journal, "CHECKPOINT_EVENTS", 1)

    for _ in range(2):
        with opener() as again:
            assert again.queue("jobs").count().delayed == 2


def test_without_any_checkpoint_all_is_read(opener: Opener, taken: list[Record]) -> None:
    """A queue that is young has none."""
    queue = opener().queue("jobs")
    work(queue, 10)
    taken.clear()

    assert opener().queue("jobs").stats().totals["acked"] == 10
    assert taken[0].offset == 0
