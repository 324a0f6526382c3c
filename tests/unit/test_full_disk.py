"""A disk that is full: found before the first of several batches is written, and not after it."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue import Item, QueueRules, TopicRules
from segue.delivery.topic_record import Event
from segue.errors import StorageFull
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory

PAGE_BYTES = 4096
SEGMENT_ITEMS = 10
SEGMENT_BYTES = 16 * PAGE_BYTES


class SmallDisk(Disk):
    """A device that has so many pages, and gives them back when a file is deleted."""

    def __init__(self) -> None:
        self.pages_max = 1 << 40
        self._pages: dict[int, set[int]] = {}

    @property
    def pages(self) -> int:
        """How many are in use."""
        return sum(map(len, self._pages.values()))

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> None:
        pages = set(range(position // PAGE_BYTES, -(-(position + len(data)) // PAGE_BYTES)))
        has = self._pages.setdefault(os.fstat(fd).st_ino, set())
        if self.pages + len(pages - has) > self.pages_max:
            raise OSError(errno.ENOSPC, "No space left on device")
        has |= pages
        super().write_at(fd, data, position)

    def resize(self, fd: int, size_bytes: int) -> None:
        if not size_bytes:
            self._pages.pop(os.fstat(fd).st_ino, None)
        super().resize(fd, size_bytes)

    def unlink(self, path: Path) -> None:
        number = path.stat().st_ino
        super().unlink(path)
        self._pages.pop(number, None)


@pytest.fixture
def disk() -> SmallDisk:
    """The disk that the store is on."""
    return SmallDisk()


@pytest.fixture(params=["always", "os"])
def store(scratch: Path, disk: SmallDisk, request: pytest.FixtureRequest) -> Iterator[FileStore]:
    """A store on it."""
    sync: SyncName = request.param
    with open_directory(scratch, sync=sync, disk=disk) as store:
        yield store


@pytest.mark.parametrize("priority_of", [lambda _: 0, lambda place: place % 2], ids=["one", "two"])
def test_a_push_of_several_batches_finds_a_full_disk_first(
    store: FileStore, disk: SmallDisk, priority_of: Callable[[int], int]
) -> None:
    """All or none: who is told that there is no space pushes all of it again."""
    queue = store.queue("jobs", QueueRules(segment_items=SEGMENT_ITEMS))
    bodies = [b"%02d" % place * 3_000 for place in range(5 * SEGMENT_ITEMS)]
    items = [Item(body=body, priority=priority_of(place)) for place, body in enumerate(bodies)]
    queue.push_many(items[:2])
    queue.ack_many(queue.lease_many(2))
    disk.pages_max = disk.pages + 70  # Two of the five segments fit.
    with pytest.raises(StorageFull):
        queue.push_many(items)
    refused = queue.count().total
    disk.pages_max *= 100
    queue.push_many(items)

    assert refused == 0
    assert sorted(job.body for job in queue.lease_many(100)) == bodies


@pytest.mark.parametrize("has_producer", [False, True], ids=["topic", "producer"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_an_append_of_several_batches_finds_a_full_disk_first(
    store: FileStore, disk: SmallDisk, partitions: int, *, has_producer: bool
) -> None:
    """As with a push: all events, or none."""
    topic = store.topic(
        "orders", partitions=partitions, rules=TopicRules(segment_bytes=SEGMENT_BYTES)
    )
    events = [Event(value=b"%d" % place * 3_000, key=str(place)) for place in range(50)]
    topic.append_many(events[:2])
    disk.pages_max = disk.pages + 50
    with topic.producer("shop") as producer:
        append = producer.append_many if has_producer else topic.append_many
        with pytest.raises(StorageFull):
            append(events)
        refused = topic.info().count
        disk.pages_max *= 100
        append(events)

    assert refused == 2
    assert topic.info().count == 52


def test_space_that_was_looked_for_is_given_back(store: FileStore, scratch: Path) -> None:
    """Whether or not it was there, nothing lies about that only kept it."""
    queue = store.queue("jobs", QueueRules(segment_items=SEGMENT_ITEMS))
    queue.push_many([b"x"] * 5 * SEGMENT_ITEMS)

    assert list(scratch.rglob("*.new")) == []
