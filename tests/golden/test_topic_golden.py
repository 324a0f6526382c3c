"""Topics of format version 1 are read for ever."""

import lzma
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from segue import Appended, Log, Store, Topic
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.contract.topic_support import places, rows, table_rows, values
from tests.golden.generate import START_US
from tests.golden.generate_topic import ARCHIVE, RULES
from tests.golden.topic_decoder import Row, decode_document, decode_topic

SIZE_BYTES_MAX = 20_000
HEADERS = {"trace": "42", "naïve": "ja ☃", "": ""}


def second(number: int) -> int:
    return START_US + number * 1_000_000


FIRST: list[Row] = [
    (0, 0, None, b"plain", {}, second(0)),
    (0, 2, b"", b"", HEADERS, second(2)),
    (0, 3, None, b"with time", {}, -1),
    (0, 5, b"b", None, {}, second(5)),
    (0, 6, None, None, {}, second(6)),
    (0, 7, "größe".encode(), b"all of it", {"h": "v"}, 1),
    (0, 8, b"a", b"newer", {}, second(8)),
    (0, 9, None, b"x", {}, second(8)),
    (0, 10, b"a", None, {}, second(8)),
    (0, 11, None, b"produced after growing", {}, second(10)),
]
SECOND: list[Row] = [
    (1, 6, b"k", b"produced 8", {}, START_US),
    (1, 7, None, b"plain", {}, second(9)),
    (1, 8, b"", b"", HEADERS, second(9)),
    (1, 9, None, b"with time", {}, -1),
    (1, 10, b"b", None, {}, second(9)),
    (1, 11, None, None, {}, second(9)),
    (1, 12, "größe".encode(), b"all of it", {"h": "v"}, 1),
    (1, 13, b"a", b"newer", {}, second(9)),
    (1, 14, None, b"x", {}, second(9)),
]
THIRD: list[Row] = [(2, 0, b"123456789", b"in a new partition", {}, second(10))]
ALL = FIRST + SECOND + THIRD


@pytest.fixture
def root(scratch: Path) -> Path:
    """The golden store, unpacked."""
    with tarfile.open(fileobj=BytesIO(lzma.decompress(ARCHIVE.read_bytes()))) as archive:
        archive.extractall(scratch, filter="data")
    return scratch


@pytest.fixture
def clock() -> ManualClock:
    """A moment after the golden topic was written."""
    return ManualClock(second(60))


@pytest.fixture
def store(root: Path, clock: ManualClock) -> Iterator[Store]:
    """The golden store, open on another machine."""
    with open_directory(root, clock=clock, ticks=clock.ticks) as store:
        yield store


@pytest.fixture
def topic(store: Store) -> Topic:
    return store.topic("orders")


def test_the_golden_topic_is_small() -> None:
    """It is in every clone."""
    assert ARCHIVE.stat().st_size < SIZE_BYTES_MAX


def test_every_partition_of_it_is_intact(root: Path) -> None:
    """Byte for byte."""
    for path in {segment.parent for segment in root.rglob("*.q")}:
        with Log(path, read_only=True) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == [], path


def test_it_is_made_as_it_was(store: Store, topic: Topic) -> None:
    """Partitions, rules and version."""
    info = topic.info()

    assert store.topics() == ["orders"]
    assert (info.rules, info.version) == (RULES, 2)
    assert [(each.first_offset, each.next_offset) for each in info.partitions] == [
        (0, 12),
        (6, 15),
        (0, 1),
    ]
    assert (list(info.readers), list(info.groups)) == (["audit", "some"], ["workers"])


def test_its_records_are_as_they_were(topic: Topic) -> None:
    """Keys, values, headers and times, without what was compacted or deleted."""
    assert sorted(rows(topic.records()), key=lambda row: row[:2]) == ALL
    assert rows(topic.records(partitions=[1])) == SECOND


def test_its_records_are_tables(topic: Topic) -> None:
    """The same, without a loop."""
    pytest.importorskip("pyarrow")

    assert table_rows(topic.tables()) == ALL


def test_a_second_reader_agrees(root: Path) -> None:
    """One that was written from the description of the format finds the same."""
    path = root / "topics" / "orders"
    documents = {
        str(file.relative_to(path)): decode_document(file) for file in path.rglob("*.json")
    }

    assert decode_topic(path) == ALL
    assert documents["producers/importer/routes.json"]["routes"] == [[0, 2], [9, 3]]
    assert documents["partition_1/origins.json"]["adopted"] == [
        ["a2758712fe15a4435a418f3892254bb6", 7]
    ]
    assert documents["groups/workers/state.json"]["boot"] == 7


def test_its_readers_resume(topic: Topic) -> None:
    """Where they stood, new partitions among them."""
    audit, some = topic.reader("audit"), topic.reader("some", partitions=[1])

    assert audit.position == {0: 3, 1: 7, 2: 0}
    assert some.position == {1: 8}
    assert places(some.poll()) == [row[:2] for row in SECOND if row[1] >= 8]


def test_its_group_goes_on(root: Path, topic: Topic) -> None:
    """Where it stood, without the member whose machine is gone, and with greater tokens."""
    state = decode_document(root / "topics" / "orders" / "groups" / "workers" / "state.json")
    holdings = state["holdings"]
    assert isinstance(holdings, dict)
    member = topic.group("workers").join()

    assert member.position == {0: 4, 1: 6, 2: 0}
    assert len(holdings) == 3
    assert min(member.assignment.values()) > max(token for _, token in holdings.values())


def test_its_producer_repeats_nothing(topic: Topic) -> None:
    """Not even what was deleted, and what went to a partition before there were three."""
    with topic.producer("importer") as producer:
        again = [producer.append(b"again", sequence=sequence, partition=1) for sequence in range(9)]
        last = [producer.last_sequence(partition) for partition in range(3)]
        after = [producer.append(b"again", sequence=9), producer.append(b"next", sequence=10)]

    assert again == [None] * 9
    assert last == [9, 8, -1]
    assert after == [None, Appended(1, 15)]


def test_what_was_adopted_is_not_adopted_again(root: Path, topic: Topic) -> None:
    """The key is remembered."""
    segment = root / "topics" / "orders" / "partition_0" / "000000000.q"
    adoption = topic.adopt(segment, partition=1, key="batch 1")

    assert (adoption.is_new, adoption.first_offset) == (False, 7)
    assert topic.adopt(segment, partition=1, key="batch 2").first_offset == 15


def test_it_is_continued(topic: Topic, clock: ManualClock) -> None:
    """At the next offsets, with keys where they always went; then compacted and cleaned."""
    found = [topic.append(b"more", key=key) for key in (b"123456789", b"a", b"user-2")]
    topic.roll()
    removed = topic.compact().removed_records
    clock.advance(seconds=61)
    tombstones = topic.compact().removed_records
    topic.clean(keep_bytes=0)

    assert found == [Appended(2, 1), Appended(0, 12), Appended(1, 15)]
    assert (removed, tombstones) == (3, 2)
    assert values(topic.records()) == []
