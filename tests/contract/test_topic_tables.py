"""Records as Arrow tables: the same as records one by one."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from segue import Event, Store, Topic, TopicRules
from segue.testing import ManualClock
from tests.contract.queue_support import meanwhile
from tests.contract.topic_support import (
    SMALL,
    USUAL,
    fill,
    fill_segments,
    places,
    rows,
    table_rows,
)
from tests.waiting import LIMIT_SECONDS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("offset", pa.int64()),
        ("partition", pa.int32()),
    ]
)
EVENTS = [
    Event(value=b"plain", partition=0),
    Event(value=b"", partition=0),
    Event(value=None, partition=0),
    Event(value=b"with key", key=b"k", partition=0),
    Event(value=b"", key=b"", partition=0),
    Event(value=None, key=b"tombstone", partition=0),
    Event(value=b"with time", timestamp=-5, partition=0),
    Event(value=b"with headers", headers={"a": "1", "naïve ☃": "", "": "x"}, partition=0),
    Event(
        value=b"all",
        key="größe",
        headers={f"h{n}": "v" * n for n in range(9)},
        timestamp=253_402_300_799_999_999,
        partition=0,
    ),
    Event(value=None, key=b"k", headers={"why": "gone"}, timestamp=0, partition=0),
    Event(value=bytes(range(256)), key=bytes(range(256)), partition=0),
    Event(value=b"last", partition=0),
]


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with two partitions."""
    return store.topic("orders", partitions=2, rules=USUAL)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


def test_tables_have_always_the_same_columns(topic: Topic) -> None:
    """Whatever the records have or have not."""
    for event in EVENTS:
        topic.append_many([event])
        topic.roll()
    tables = list(topic.tables())

    assert [len(table) for table in tables] == [1] * len(EVENTS)
    assert all(table.schema == SCHEMA for table in tables)
    assert topic.reader("audit").poll_table().schema == SCHEMA


def test_tables_hold_what_records_do(topic: Topic, there: Topic) -> None:
    """Keys, values, headers and times, those that are not there among them."""
    topic.append_many(EVENTS)
    for event in EVENTS:
        topic.append_many([event])

    assert table_rows(there.tables()) == rows(there.records())
    assert len(rows(there.records())) == 2 * len(EVENTS)


def test_tables_hold_the_same_from_wherever_they_begin(topic: Topic) -> None:
    """Every start and stop, in the middle of batches and segments."""
    topic.append_many(EVENTS[:6])
    topic.roll()
    topic.append_many(EVENTS[6:])
    end = len(EVENTS)
    whole = rows(topic.records())

    for start in range(end + 1):
        for stop in range(start, end + 1, 3):
            found = table_rows(topic.tables({0: start}, stop={0: stop}))
            assert found == whole[start:stop]


def test_parts_of_a_table_are_what_they_were(topic: Topic) -> None:
    """A slice of a table is still right, also when it is all that is left of it."""
    topic.append_many(EVENTS)
    (table,) = topic.tables()
    whole = rows(topic.records())
    parts = [table.slice(start, 3) for start in range(len(EVENTS))]
    del table

    for start, part in enumerate(parts):
        assert table_rows([part]) == whole[start : start + 3]


def test_tables_come_a_partition_after_the_other(topic: Topic) -> None:
    """Each with records of one partition, in its order."""
    fill_segments(topic, 3, 2, partition=1)
    fill_segments(topic, 2, 2)
    found = [places_of(table) for table in topic.tables()]

    assert [place for table in found for place in table] == [
        *[(0, offset) for offset in range(4)],
        *[(1, offset) for offset in range(5)],
    ]
    assert all(len({partition for partition, _ in table}) == 1 for table in found)


def places_of(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_tables_take_the_same_starts_as_records(topic: Topic, clock: ManualClock) -> None:
    """Ends, offsets, times and partitions."""
    began_us = clock()
    for number in range(8):
        fill(topic, 1, partition=number % 2, first=number)
        clock.advance(seconds=1)
    middle = EPOCH + timedelta(microseconds=began_us + 4_000_000)

    assert table_rows(topic.tables("latest")) == []
    for chosen in (None, [1], []):
        found = table_rows(topic.tables(middle, partitions=chosen))
        assert sorted(found) == sorted(rows(topic.records(middle, partitions=chosen)))
    stopped = table_rows(topic.tables({0: 1}, stop=middle))
    assert sorted(stopped) == sorted(rows(topic.records({0: 1}, stop=middle)))
    assert table_rows(topic.tables(2, partitions=[1])) == rows(topic.records(2, partitions=[1]))


def test_no_more_rows_come_than_were_asked_for(topic: Topic) -> None:
    """In as many tables as it takes."""
    fill_segments(topic, 3, 3)
    fill(topic, 3, partition=1)

    for count in range(1, 11):
        found = table_rows(topic.tables(max_records=count))
        assert len(found) == min(count, 9)
        assert found == table_rows(topic.tables())[:count]


def test_removed_records_are_in_no_table(topic: Topic) -> None:
    """Compaction leaves the rest as it was."""
    for number in range(12):
        topic.append(b"%d" % number, key=b"%d" % (number % 3), headers={"n": str(number)})
        topic.append(None, partition=0)
    topic.roll()
    topic.compact()

    found = table_rows(topic.tables())
    assert sorted(found) == sorted(rows(topic.records()))
    assert len(found) == 3 + 12


def test_tombstones_that_are_left_alone_are_in_a_table(store: Store) -> None:
    """Also where there are no bytes at all."""
    topic = store.topic("quiet", rules=TopicRules(segment_bytes=1 << 18))
    topic.append(b"old", key="k")
    for _ in range(3):
        topic.append(None)
    topic.append(None, key="k")
    topic.roll()
    topic.compact()

    assert table_rows(topic.tables(stop=4)) == rows(topic.records(stop=4))
    assert [row[1] for row in table_rows(topic.tables(stop=4))] == [1, 2, 3]


def test_tables_outlive_what_they_were_read_from(store: Store) -> None:
    """Retention and closing change nothing about a table that somebody has."""
    topic = store.topic("brief", rules=SMALL)
    expected = fill_segments(topic, 5, 5)
    tables = list(topic.tables())
    topic.clean(keep_bytes=0)
    store.close()

    assert [row[3] for row in table_rows(tables)] == expected


# Polling -----------------------------------------------------------------------------------


def test_a_reader_gets_tables_as_it_gets_records(topic: Topic) -> None:
    """The same records, and the same place afterwards."""
    topic.append_many(EVENTS)
    fill(topic, 4, partition=1)
    by_record, by_table = topic.reader("a"), topic.reader("b")
    found = rows(by_record.poll())
    tables = [by_table.poll_table(5), by_table.poll_table(5), by_table.poll_table()]

    assert [len(table) for table in tables] == [5, 5, 6]
    assert sorted(table_rows(tables)) == sorted(found)
    assert by_table.position == by_record.position == {0: len(EVENTS), 1: 4}
    assert len(by_table.poll_table()) == 0


def test_a_member_gets_tables_as_it_gets_records(topic: Topic) -> None:
    """And commits them as it does records."""
    topic.append_many(EVENTS)
    fill(topic, 4, partition=1)
    group = topic.group("workers")
    with group.join() as member:
        found = table_rows([member.poll_table(7), member.poll_table()])
        assert len(member.poll_table()) == 0
        member.commit()

    assert sorted(found) == sorted(rows(topic.records()))
    assert [lag.records for lag in group.lag()] == [0, 0]


def test_tables_and_records_may_be_polled_in_turn(topic: Topic) -> None:
    """There is one place, however it is read from."""
    fill_segments(topic, 4, 4)
    reader = topic.reader("audit")
    found = places(reader.poll(3))
    found += places_of(reader.poll_table(2))
    found += places(reader.poll(2))
    found += places_of(reader.poll_table())

    assert found == [(0, offset) for offset in range(8)]


def test_removed_records_are_passed_over_by_tables(topic: Topic) -> None:
    """As many come as were asked for, if there are."""
    for number in range(10):
        topic.append(b"%d" % number, key=b"k" if number % 2 else b"%d" % number, partition=0)
    topic.roll()
    topic.compact()
    reader = topic.reader("audit")

    assert places_of(reader.poll_table(4)) == [(0, 0), (0, 2), (0, 4), (0, 6)]
    assert places_of(reader.poll_table(4)) == [(0, 8), (0, 9)]


def test_who_waits_for_a_table_gets_it(topic: Topic, there: Topic) -> None:
    """When the first record comes, from another process."""
    reader = topic.reader("audit")
    with meanwhile(lambda: reader.poll_table(timeout=LIMIT_SECONDS)) as outcome:
        fill(there, 1, partition=1)

    assert places_of(outcome.result()) == [(1, 0)]
