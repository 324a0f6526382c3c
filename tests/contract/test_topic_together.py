"""Several who use one topic at the same time, in threads and in processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from segue import Event, Member, Store, Topic
from segue.errors import OffsetTrimmed, ProducerBusy, StoreClosed
from tests.contract.topic_support import (
    SMALL,
    USUAL,
    fill,
    fill_segments,
    next_offsets,
    places,
    table_rows,
    values,
)
from tests.waiting import LIMIT_SECONDS

MANY = 3_000


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with two partitions."""
    return store.topic("orders", partitions=2, rules=USUAL)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


# Much --------------------------------------------------------------------------------------


@pytest.fixture
def much(store: Store) -> Topic:
    """A topic with more records than anybody reads at once."""
    topic = store.topic("much", partitions=2, rules=USUAL)
    topic.append_many(
        [Event(value=b"%d" % number, partition=number % 3 % 2) for number in range(MANY)]
    )
    return topic


def test_much_is_read_in_many_ways(much: Topic) -> None:
    """Each of them returns everything, once, in the order of each partition."""
    reader = much.reader("audit")
    ways: list[Callable[[], list[tuple[int, int]]]] = [
        lambda: places(much.records()),
        lambda: places(much.follow("earliest", timeout=0)),
        lambda: [row[:2] for row in table_rows(much.tables())],
        lambda: places(reader),
        lambda: [place for _ in range(3) for place in places(reader.poll(MANY // 2))],
        lambda: [row[:2] for row in table_rows([reader.poll_table(MANY)])],
    ]
    expected = [(0, number) for number in range(MANY // 3 * 2)]
    expected += [(1, number) for number in range(MANY // 3)]
    for way in ways:
        found = way()
        assert len(found) == MANY
        assert sorted(found, key=lambda place: place[0]) == expected
        reader.seek("earliest")


@pytest.mark.parametrize("max_bytes", [100, 1_000, 5_000])
def test_much_is_read_by_few_bytes(much: Topic, max_bytes: int) -> None:
    """Nothing is passed over, and nothing comes twice, however it falls."""
    reader = much.reader("audit")
    found, rows = [], []
    while records := reader.poll(MANY, max_bytes=max_bytes):
        assert sum(len(record.value or b"") for record in records) <= max_bytes
        found += places(records)
    reader.seek("earliest")
    while len(table := reader.poll_table(MANY, max_bytes=max_bytes)):
        assert sum(map(len, table["value"].to_pylist())) <= max_bytes
        rows += [row[:2] for row in table_rows([table])]

    assert len(found) == len(rows) == MANY
    assert sorted(found) == sorted(rows) == sorted(places(much.records()))


def test_tables_of_few_bytes_hold_one_row_at_least(much: Topic) -> None:
    """And no more than fit."""
    first = table_rows(much.tables(max_bytes=1))
    some = table_rows(much.tables({0: 10}, max_bytes=9, partitions=[0]))

    assert len(first) == 1
    assert sum(len(row[3] or b"") for row in some) <= 9
    assert len(some) >= 4


# At once -----------------------------------------------------------------------------------


def test_one_of_those_who_adopt_at_once_does(store: Store, other: Store, tmp_path: Path) -> None:
    """All of them learn where it went."""
    source = store.topic("source", rules=USUAL)
    fill_segments(source, 5)
    sent = BytesIO()
    source.send_segment(0, 0, sent)
    path = tmp_path / "sent.q"
    path.write_bytes(sent.getvalue())
    store.topic("target", rules=USUAL)
    targets = [store.topic("target"), other.topic("target")]
    together = threading.Barrier(6)

    def adopt(number: int) -> tuple[bool, int]:
        together.wait()
        report = targets[number % 2].adopt(path, partition=0, key="job")
        return report.is_new, report.first_offset

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(adopt, range(6)))

    assert sorted(found) == [(False, 0)] * 5 + [(True, 0)]
    assert next_offsets(targets[0]) == [5]


def test_one_of_those_who_want_a_name_at_once_gets_it(topic: Topic, there: Topic) -> None:
    """And only one appends."""
    together = threading.Barrier(6)

    def produce(number: int) -> bool:
        together.wait()
        try:
            producer = (topic, there)[number % 2].producer("importer")
        except ProducerBusy:
            return False
        producer.append(b"%d" % number, sequence=0, partition=0)
        held.append(producer)
        return True

    held: list[object] = []
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(produce, range(6)))

    assert found.count(True) == len(held) == 1
    assert next_offsets(topic) == [1, 0]


def test_members_that_join_at_once_share_fairly(store: Store, other: Store) -> None:
    """In threads and in processes, and without a partition held twice."""
    store.topic("wide", partitions=9, rules=USUAL)
    groups = [handle.topic("wide").group("workers") for handle in (store, other)]
    together = threading.Barrier(6)

    def join(number: int) -> Member:
        together.wait()
        member = groups[number % 2].join()
        for _ in range(3):
            member.poll()
        return member

    with ThreadPoolExecutor(6) as threads:
        members = list(threads.map(join, range(6)))
    for _ in range(4):
        for member in members:
            member.poll()
    held = [list(member.assignment) for member in members]

    assert sorted(number for each in held for number in each) == list(range(9))
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_partitions_are_added_once_by_those_who_grow_at_once(topic: Topic, there: Topic) -> None:
    """To as many as the greatest asked for."""
    together = threading.Barrier(4)

    def grow(number: int) -> None:
        together.wait()
        if number % 2:
            there.grow(6)
        else:
            topic.grow(6)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(grow, range(4)))

    assert topic.partitions == there.partitions == 6
    assert topic.info().version == 2


def test_keeping_house_disturbs_nobody(store: Store, other: Store) -> None:
    """While one appends and another reads, a third compacts and cleans."""
    topic, there = store.topic("busy", rules=SMALL), other.topic("busy")
    reader = there.reader("audit")
    done = threading.Event()

    def append() -> None:
        for number in range(300):
            topic.append(b"%d" % number * 30, key=b"%d" % (number % 7))
        done.set()

    def keep_house() -> None:
        while not done.is_set():
            topic.compact()
            there.clean()

    with ThreadPoolExecutor(2) as threads:
        work = [threads.submit(append), threads.submit(keep_house)]
        found: list[tuple[int, int]] = []
        while not found or found[-1] != (0, 299):
            found += places(reader.poll(timeout=LIMIT_SECONDS))
            reader.commit()
        for each in work:
            each.result(LIMIT_SECONDS)
    topic.roll()
    topic.compact()

    assert found == sorted(set(found))
    newest = {record.key: record.offset for record in topic.records()}
    assert newest == {b"%d" % (number % 7): number for number in range(293, 300)}


# Closing -----------------------------------------------------------------------------------


def test_who_waits_is_told_when_the_store_is_closed(store: Store, topic: Topic) -> None:
    """Readers, members and whoever follows."""
    fill(topic, 1)
    reader, member = topic.reader("audit", "latest"), topic.group("workers").join(start="latest")
    following = topic.follow()
    waits: list[Callable[[], object]] = [
        lambda: reader.poll(timeout=None),
        lambda: member.poll(timeout=None),
        lambda: next(following),
    ]
    with ThreadPoolExecutor(3) as threads:
        outcomes = [threads.submit(wait) for wait in waits]
        store.close()
        for outcome in outcomes:
            with pytest.raises(StoreClosed):
                outcome.result(LIMIT_SECONDS)


def test_who_reads_while_others_delete_is_told(topic: Topic, there: Topic) -> None:
    """Again and again, each time it falls behind; past the gap it reads on."""
    reader = topic.reader("audit")
    for turn in range(3):
        fill_segments(there, 2, 2)
        there.clean(keep_bytes=0)
        fill(there, 1, first=100 + turn)
        there.roll()
        with pytest.raises(OffsetTrimmed) as told:
            reader.poll()
        reader.seek({0: told.value.earliest})

        assert values(reader.poll()) == [b"0/%d" % (100 + turn)]
