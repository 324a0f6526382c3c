"""What a topic keeps of a record, and which partition it goes to."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from segue import Appended, Event, Store, Topic, TopicRules
from segue.errors import InvalidArgument, RecordTooLarge
from segue.testing import ManualClock
from tests.contract.topic_support import (
    SMALL,
    SMALL_SEGMENT_BYTES,
    USUAL,
    next_offsets,
    places,
    rows,
    values,
)
from tests.contract.worlds import World
from tests.unit.support import failing_cases

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
"""The years 1 and 9999: what a datetime can say."""


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with three partitions."""
    return store.topic("orders", partitions=3, rules=USUAL)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


# What comes back ---------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_appended(topic: Topic, there: Topic) -> None:
    """Key, value, headers and time, in this process and in every other."""
    place = topic.append(
        b"value", key=b"key", headers={"trace": "42", "naïve": "ja ☃", "": ""}, timestamp=123_456
    )

    expected = [
        (*place, b"key", b"value", {"trace": "42", "naïve": "ja ☃", "": ""}, 123_456),
    ]
    assert rows(topic.records()) == rows(there.records()) == expected


def test_a_plain_value_has_nothing_but_the_time_it_came(topic: Topic, clock: ManualClock) -> None:
    """No key, no headers, and the clock's time."""
    clock.advance(seconds=5)
    place = topic.append(b"plain")
    (record,) = topic.records()

    assert rows([record]) == [(*place, None, b"plain", {}, clock())]
    assert record.timestamp == EPOCH + timedelta(microseconds=clock())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"bytes", b"bytes"),
        (bytearray(b"bytearray"), b"bytearray"),
        (memoryview(b"a view of it")[2:6], b"view"),
        ("text ☃", "text ☃".encode()),
        (b"", b""),
        ("", b""),
        (bytes(range(256)), bytes(range(256))),
    ],
    ids=["bytes", "bytearray", "memoryview", "text", "empty", "empty text", "all bytes"],
)
def test_keys_and_values_are_bytes_or_text(
    topic: Topic, given: bytes | bytearray | memoryview | str, kept: bytes
) -> None:
    """Text is UTF-8; what has other types of bytes is taken for its bytes."""
    key = given if isinstance(given, str) else bytes(given)
    topic.append(given, key=key)
    (record,) = topic.records()

    assert (record.key, record.value) == (kept, kept)


def test_a_tombstone_is_not_an_empty_value(topic: Topic) -> None:
    """None says that there is nothing under the key; b"" is a value like any other."""
    topic.append(None, key="gone", partition=0)
    topic.append(b"", key="empty", partition=0)
    topic.append(None, partition=0)

    found = [(record.key, record.value) for record in topic.records()]
    assert found == [(b"gone", None), (b"empty", b""), (None, None)]


def test_an_empty_key_is_not_no_key(topic: Topic) -> None:
    """It has a partition of its own, like every key."""
    with_key = topic.append(b"a", key=b"")
    topic.append(b"b", partition=with_key.partition)

    assert [record.key for record in topic.records()] == [b"", None]


@pytest.mark.parametrize("headers", [None, {}])
def test_no_headers_are_an_empty_mapping(topic: Topic, headers: Mapping[str, str] | None) -> None:
    """Never None, so that nobody has to ask."""
    topic.append(b"a", headers=headers)
    (record,) = topic.records()

    assert record.headers == {}


def test_headers_keep_their_order(topic: Topic) -> None:
    """As they were given."""
    names = [f"header {number}" for number in range(40, 0, -1)]
    topic.append(b"a", headers=dict.fromkeys(names, "x"))
    (record,) = topic.records()

    assert list(record.headers) == names


@pytest.mark.parametrize(
    ("given", "kept_us"),
    [
        (0, 0),
        (-1, -1),
        (LATEST_US, LATEST_US),
        (EARLIEST_US, EARLIEST_US),
        (datetime.max.replace(tzinfo=UTC), LATEST_US),
        (datetime.min.replace(tzinfo=UTC), EARLIEST_US),
        (datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), 1_000_005),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1969, 12, 31, tzinfo=UTC), -86_400_000_000),
    ],
)
def test_a_timestamp_may_be_given(topic: Topic, given: datetime | int, kept_us: int) -> None:
    """A datetime of any zone, or microseconds; it may lie before 1970."""
    topic.append(b"a", timestamp=given)
    (record,) = topic.records()

    assert record.timestamp_us == kept_us
    assert record.timestamp == EPOCH + timedelta(microseconds=kept_us)


# Where it goes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "of_2", "of_3", "of_7", "of_12"),
    [
        (b"", 0, 0, 0, 0),
        (b"a", 1, 0, 4, 3),
        (b"123456789", 0, 2, 5, 2),
        (b"user-1", 0, 2, 5, 8),
        (b"user-2", 0, 1, 3, 10),
        ("größe", 1, 2, 3, 5),
        (b"\x00\xff", 0, 1, 6, 10),
    ],
)
def test_the_partition_of_a_key_is_its_crc_modulo_their_number(
    store: Store, key: bytes | str, of_2: int, of_3: int, of_7: int, of_12: int
) -> None:
    """For ever, and in every language: 123456789 has the CRC 0xCBF43926 everywhere."""
    found = [
        store.topic(f"of_{count}", partitions=count, rules=USUAL).append(b"x", key=key).partition
        for count in (2, 3, 7, 12)
    ]

    assert found == [of_2, of_3, of_7, of_12]


def test_one_partition_takes_every_key(store: Store) -> None:
    """And every record without one."""
    topic = store.topic("single", rules=USUAL)
    found = {topic.append(b"x", key=b"%d" % number).partition for number in range(20)}

    assert found | {topic.append(b"x").partition} == {0}


def test_records_of_one_key_stay_in_order(topic: Topic, there: Topic) -> None:
    """In one partition, whoever appends them, one by one or many at once."""
    keys = [b"k%d" % number for number in range(8)]
    for turn in range(4):
        for key in keys:
            (topic, there)[turn % 2].append(b"%d" % (2 * turn), key=key)
        there.append_many(Event(value=b"%d" % (2 * turn + 1), key=key) for key in keys)

    for key in keys:
        found = [record for record in topic.records() if record.key == key]
        assert len({record.partition for record in found}) == 1
        in_order = sorted(found, key=lambda record: record.offset)
        assert values(in_order) == [b"%d" % number for number in range(8)]


def test_a_partition_that_is_asked_for_is_taken(topic: Topic) -> None:
    """Whatever the key says."""
    places = [topic.append(b"x", key=b"a", partition=number) for number in (2, 0, 1, 2)]

    assert places == [Appended(2, 0), Appended(0, 0), Appended(1, 0), Appended(2, 1)]


def test_records_without_a_key_stay_with_a_partition_for_a_while(topic: Topic) -> None:
    """So that batches are long; and then it is the next one's turn."""
    found = [place.partition for place in topic.append_many([b"x"] * 900)]
    changes = [(before, after) for before, after in pairwise(found) if before != after]

    assert set(found) == {0, 1, 2}
    assert len(changes) <= 9
    assert all(after == (before + 1) % 3 for before, after in changes)


def test_offsets_are_dense_in_each_partition(topic: Topic, there: Topic) -> None:
    """However they came there: never one twice, never one left out."""
    found: list[Appended] = []
    for number in range(12):
        handle = (topic, there)[number % 2]
        found.append(handle.append(b"one", key=b"%d" % number))
        found += handle.append_many([Event(value=b"many", key=b"%d" % each) for each in range(5)])

    for partition in range(3):
        offsets = [place.offset for place in found if place.partition == partition]
        assert offsets == list(range(len(offsets)))
    assert sorted(found) == sorted(places(topic.records()))


def test_threads_and_processes_append_at_the_same_time(topic: Topic, there: Topic) -> None:
    """Nothing is lost, no offset is given twice, and a thread's records stay in order."""

    def work(number: int) -> list[Appended]:
        handle = (topic, there)[number % 2]
        key = b"thread %d" % number
        found = []
        for turn in range(10):
            found.append(handle.append(b"%d" % (3 * turn), key=key))
            found += handle.append_many(
                [Event(value=b"%d" % (3 * turn + each), key=key) for each in (1, 2)]
            )
        return found

    with ThreadPoolExecutor(6) as threads:
        found = [place for each in threads.map(work, range(6)) for place in each]

    records = list(topic.records())
    assert len(set(found)) == len(found) == 180
    assert sorted(places(records)) == sorted(found)
    for number in range(6):
        ours = [record for record in records if record.key == b"thread %d" % number]
        in_order = sorted(ours, key=lambda record: record.offset)
        assert values(in_order) == [b"%d" % each for each in range(30)]


# Many at once ------------------------------------------------------------------------------


def test_many_are_appended_in_their_order(topic: Topic) -> None:
    """Events and plain values, each to its partition; the answer says where each went."""
    events: list[Event | bytes | str] = [
        Event(value=b"a", partition=2),
        Event(value="b", partition=0, key="k", headers={"h": "v"}, timestamp=7),
        Event(value=None, partition=2, key="k"),
        Event(value=b"d", partition=0),
    ]
    found = topic.append_many(events)

    assert found == [Appended(2, 0), Appended(0, 0), Appended(2, 1), Appended(0, 1)]
    assert [row[2:5] for row in rows(topic.records(partitions=[0]))] == [
        (b"k", b"b", {"h": "v"}),
        (None, b"d", {}),
    ]


def test_many_may_be_none(topic: Topic) -> None:
    """Nothing comes of nothing."""
    assert topic.append_many([]) == []
    assert topic.append_many(iter([])) == []
    assert list(topic.records()) == []


def test_bodies_of_every_kind_may_be_many(topic: Topic) -> None:
    """A body is an event with nothing but a value."""
    topic.append_many([b"a", "b", bytearray(b"c"), memoryview(b"d")])

    assert sorted(values(topic.records()), key=repr) == [b"a", b"b", b"c", b"d"]


def test_many_may_be_more_than_fit_in_a_segment(store: Store) -> None:
    """They are parted, and stay in order without a gap."""
    topic = store.topic("narrow", partitions=2, rules=SMALL)
    events = [Event(value=b"%04d" % number * 50, partition=number % 2) for number in range(200)]
    found = topic.append_many(events)

    for partition in range(2):
        ours = list(topic.records(partitions=[partition]))
        assert values(ours) == [event.value for event in events[partition::2]]
        assert places(ours) == [tuple(place) for place in found[partition::2]]
    assert min(each.segments for each in topic.info().partitions) > 3


def test_a_large_record_among_many_is_kept(store: Store) -> None:
    """Also one that is larger than a batch usually gets."""
    topic = store.topic("large")
    large = b"x" * (5 << 20)
    found = topic.append_many([b"a", large, b"b"])

    assert [place.offset for place in found] == [0, 1, 2]
    assert values(topic.records()) == [b"a", large, b"b"]


# What is refused ---------------------------------------------------------------------------

BAD = {
    "value is a number": {"value": 5},
    "value is a list": {"value": [b"x"]},
    "value is no valid text": {"value": "\ud800"},
    "key is a number": {"value": b"x", "key": 5},
    "key is no valid text": {"value": b"x", "key": "\ud800"},
    "key is too long": {"value": b"x", "key": b"k" * ((1 << 20) + 1)},
    "header is a number": {"value": b"x", "headers": {"a": 1}},
    "header is named by a number": {"value": b"x", "headers": {1: "a"}},
    "header is bytes": {"value": b"x", "headers": {"a": b"b"}},
    "header is no valid text": {"value": b"x", "headers": {"a": "\ud800"}},
    "headers are pairs": {"value": b"x", "headers": [("a", "b")]},
    "headers are too much": {"value": b"x", "headers": {"a": "b" * (64 << 10)}},
    "name of a header is too long": {"value": b"x", "headers": {"ü" * 40_000: ""}},
    "timestamp is text": {"value": b"x", "timestamp": "now"},
    "timestamp is a float": {"value": b"x", "timestamp": 1.5},
    "timestamp is a bool": {"value": b"x", "timestamp": True},
    "timestamp is too late": {"value": b"x", "timestamp": LATEST_US + 1},
    "timestamp is too early": {"value": b"x", "timestamp": EARLIEST_US - 1},
    "partition is not there": {"value": b"x", "partition": 3},
    "partition is negative": {"value": b"x", "partition": -1},
    "partition is text": {"value": b"x", "partition": "0"},
    "partition is a float": {"value": b"x", "partition": 1.0},
    "partition is a bool": {"value": b"x", "partition": True},
    "value is too large": {"value": b"x" * (9 << 20)},
}


def test_a_bad_record_is_refused(topic: Topic) -> None:
    """By InvalidArgument, and nothing is written."""

    def check(bad: dict[str, object]) -> None:
        with pytest.raises(InvalidArgument):
            topic.append(**bad)  # type: ignore[arg-type]
        assert next_offsets(topic) == [0, 0, 0]

    assert failing_cases(check, BAD) == []
    assert topic.append(b"good", partition=0) == Appended(0, 0)


def test_many_with_a_bad_one_are_refused(topic: Topic) -> None:
    """All of them, in every partition, whichever it is."""

    def check(bad: dict[str, object]) -> None:
        good = [Event(value=b"good", partition=number) for number in range(3)]
        for place in range(4):
            events = [*good[:place], Event(**bad), *good[place:]]  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                topic.append_many(events)

        assert next_offsets(topic) == [0, 0, 0]

    assert failing_cases(check, BAD) == []


@pytest.mark.parametrize("item", [None, 5, 1.5, ("x",), {"value": b"x"}])
def test_an_event_is_an_event_or_a_body(topic: Topic, item: object) -> None:
    """Anything else is a mistake that must not be guessed at."""
    with pytest.raises(InvalidArgument):
        topic.append_many([b"good", item])  # type: ignore[list-item]

    assert next_offsets(topic) == [0, 0, 0]


def test_a_source_that_fails_appends_nothing(topic: Topic) -> None:
    """Events may come from a generator, which may break off."""

    def broken() -> Iterator[Event]:
        yield Event(value=b"a", partition=0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        topic.append_many(broken())

    assert next_offsets(topic) == [0, 0, 0]


def test_a_record_that_is_too_large_says_how_large_it_may_be(store: Store) -> None:
    """And what is as large as that fits, alone and among others."""
    topic = store.topic("narrow", rules=TopicRules(segment_bytes=SMALL_SEGMENT_BYTES))
    with pytest.raises(RecordTooLarge) as refusal:
        topic.append(b"x" * SMALL_SEGMENT_BYTES)
    most = refusal.value.size_bytes_max
    with pytest.raises(RecordTooLarge):
        topic.append_many([b"a", b"x" * (most + 1)])
    topic.append(b"x" * most)
    topic.append_many([b"a", b"y" * most, b"b"])

    sizes = [len(value or b"") for value in values(topic.records())]
    assert refusal.value.size_bytes == SMALL_SEGMENT_BYTES
    assert sizes == [most, 1, most, 1]


def test_headers_may_be_as_many_as_fit(topic: Topic) -> None:
    """Tens of thousands of characters, in whatever script."""
    headers = {f"name {number}": "☃" * 100 for number in range(300)}
    topic.append(b"x", key="k", headers=headers)
    (record,) = topic.records()

    assert record.headers == headers


# Keeping it --------------------------------------------------------------------------------


def test_what_was_appended_outlasts_the_process(world: World, store: Store, topic: Topic) -> None:
    """An append that returned is kept, also if nothing was closed."""
    expected = [
        topic.append(b"%d" % number, key=b"%d" % number, headers={"n": str(number)})
        for number in range(20)
    ]
    before = rows(topic.records())
    world.crash(store)
    topic = world.open().topic("orders")

    assert rows(topic.records()) == before
    assert sorted(places(topic.records())) == sorted(expected)
    assert topic.partitions == 3


def test_what_was_flushed_is_on_the_device(world: World, topic: Topic) -> None:
    """And it is there after a restart of the machine, with the offsets it had."""
    topic.append_many([Event(value=b"x", partition=number % 3) for number in range(9)])
    topic.flush()
    world.restart()
    topic = world.open().topic("orders")

    assert next_offsets(topic) == [3, 3, 3]
    assert topic.append(b"y", partition=1) == Appended(1, 3)
