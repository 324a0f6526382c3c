"""Reading a topic without a name: what there is, from anywhere to anywhere, and what comes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

from segue import Event, Store, Topic, TopicRecord
from segue.errors import InvalidArgument, OffsetNotWritten, OffsetOutOfRange, OffsetTrimmed
from segue.stores.topic_contract import Start
from segue.testing import ManualClock
from tests.contract.queue_support import meanwhile
from tests.contract.topic_support import USUAL, fill, fill_segments, places, values

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with three partitions."""
    return store.topic("orders", partitions=3, rules=USUAL)


@pytest.fixture
def single(store: Store) -> Topic:
    """A topic with one partition."""
    return store.topic("single", rules=USUAL)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


def moment(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def spread(topic: Topic, clock: ManualClock, count: int) -> list[tuple[int, int]]:
    """Append a record a second, to one partition after the other; return their places."""
    found = []
    for number in range(count):
        partition, offset = topic.append(b"%d" % number, partition=number * 7 % 3)
        found.append((partition, offset))
        clock.advance(seconds=1)
    return found


# Merging -----------------------------------------------------------------------------------


def test_partitions_are_merged_by_time(topic: Topic, there: Topic, clock: ManualClock) -> None:
    """What was appended first comes first, in whichever partition."""
    expected = spread(topic, clock, 20)

    assert places(there.records()) == expected
    assert values(there.records()) == [b"%d" % number for number in range(20)]


def test_partitions_are_merged_by_the_timestamps_that_were_given(topic: Topic) -> None:
    """What its producer said counts, not when it came."""
    for time_us, partition in [(5, 0), (1, 1), (3, 2), (6, 1), (9, 0), (7, 2)]:
        topic.append(b"%d" % time_us, partition=partition, timestamp=time_us)

    assert values(topic.records()) == [b"1", b"3", b"5", b"6", b"7", b"9"]


def test_the_order_of_a_partition_is_never_changed(topic: Topic) -> None:
    """Not even where its timestamps go back."""
    for partition, times in [(0, [50, 10, 60]), (1, [30, 20]), (2, [])]:
        for time_us in times:
            topic.append(b"%d" % time_us, partition=partition, timestamp=time_us)
    found = list(topic.records())

    assert [each.timestamp_us for each in found if each.partition == 0] == [50, 10, 60]
    assert [each.timestamp_us for each in found if each.partition == 1] == [30, 20]
    assert found[0].timestamp_us == 30


def test_some_partitions_are_read_alone(topic: Topic, clock: ManualClock) -> None:
    """Those that are asked for, once each; none is none."""
    expected = spread(topic, clock, 9)

    for chosen in ([1], [2, 0], [0, 0, 1], (2,), {0, 1, 2}, []):
        found = places(topic.records(partitions=chosen))
        assert found == [place for place in expected if place[0] in chosen]


@pytest.mark.parametrize("partitions", [[3], [-1], ["0"], [0, 1.0], [True]])
def test_partitions_that_are_not_there_are_refused(topic: Topic, partitions: list[int]) -> None:
    """At once, and not while reading."""
    for ask in (topic.records, topic.tables, topic.follow):
        with pytest.raises(InvalidArgument):
            ask(partitions=partitions)
    with pytest.raises(InvalidArgument):
        topic.reader("audit", partitions=partitions)

    assert topic.readers() == {}


def test_reading_stops_at_the_end_as_it_was(topic: Topic) -> None:
    """What comes while somebody reads is for the next time."""
    fill(topic, 3)
    records = topic.records()
    first = next(records)
    fill(topic, 3, first=3)
    fill(topic, 3, partition=1)

    assert values([first, *records]) == [b"0/0", b"0/1", b"0/2"]


def test_reading_takes_nothing(topic: Topic) -> None:
    """It can be done again, by several at once."""
    fill(topic, 5)
    both = zip(topic.records(), topic.records(), strict=True)

    assert [one.value for one, another in both if one == another] == [
        b"0/%d" % number for number in range(5)
    ]


def test_reading_goes_on_over_many_segments(topic: Topic) -> None:
    """In order, from each partition's first segment to its last."""
    expected = fill_segments(topic, 3, 1, 4, 2)
    fill_segments(topic, 2, 2, partition=2)

    assert values(topic.records(partitions=[0])) == expected
    assert len(list(topic.records())) == 14


def test_reading_may_be_given_up(topic: Topic) -> None:
    """A loop that is left lets go of the topic: its segments can be deleted."""
    fill_segments(topic, 3, 3)
    for records in (topic.records(), topic.follow("earliest", timeout=0)):
        next(records)
        assert isinstance(records, Iterator)
        records.close()  # type: ignore[attr-defined]

    assert topic.clean(keep_bytes=0).count == 2


# Starts and stops --------------------------------------------------------------------------


def test_reading_starts_at_either_end(topic: Topic) -> None:
    """At the earliest unless it is said."""
    fill(topic, 2)
    fill(topic, 3, partition=2)

    assert places(topic.records("earliest")) == places(topic.records())
    assert places(topic.records("latest")) == []
    assert topic.offsets("earliest") == {0: 0, 1: 0, 2: 0}
    assert topic.offsets() == topic.offsets("latest") == {0: 2, 1: 0, 2: 3}


def test_an_offset_is_of_one_partition(topic: Topic, single: Topic) -> None:
    """Where there are several, it must be said which is meant."""
    fill(single, 4)
    fill(topic, 4, partition=1)
    for ask in (topic.records, topic.tables, topic.follow, topic.offsets):
        with pytest.raises(InvalidArgument):
            ask(2)
    with pytest.raises(InvalidArgument):
        topic.reader("audit", 2)
    with pytest.raises(InvalidArgument):
        topic.group("workers").join(start=2)

    assert places(single.records(2)) == [(0, 2), (0, 3)]
    assert places(single.records(4)) == []
    assert places(topic.records(3, partitions=[1])) == [(1, 3)]
    assert single.offsets(3) == {0: 3}


def test_offsets_may_be_given_for_each_partition(topic: Topic) -> None:
    """Those left out begin with the earliest."""
    for partition in range(3):
        fill(topic, 3, partition=partition)

    assert sorted(places(topic.records({0: 2, 2: 3}))) == [(0, 2), (1, 0), (1, 1), (1, 2)]
    assert topic.offsets({1: 1}) == {0: 0, 1: 1, 2: 0}
    assert len(list(topic.records({}))) == 9


def test_a_time_is_when_a_record_was_appended(topic: Topic, clock: ManualClock) -> None:
    """The first record at or after it, in each partition, whatever its producer said."""
    began_us = clock()
    places_by_second = spread(topic, clock, 12)
    topic.append(b"late", partition=0, timestamp=1)

    for second in range(12):
        start = moment(began_us + second * 1_000_000)
        at_it, after_it = places_by_second[second:], places_by_second[second + 1 :]
        later = start + timedelta(microseconds=1)
        assert sorted(places(topic.records(start))) == sorted([*at_it, (0, 4)])
        assert sorted(places(topic.records(later))) == sorted([*after_it, (0, 4)])
    assert topic.offsets(moment(0)) == {0: 0, 1: 0, 2: 0}
    assert topic.offsets(moment(clock() + 1)) == topic.offsets("latest")


def test_a_time_may_be_of_any_zone(single: Topic, clock: ManualClock) -> None:
    """It is the moment that counts."""
    fill(single, 2)
    clock.advance(seconds=1)
    fill(single, 2, first=2)
    start = moment(clock()).astimezone(timezone(timedelta(hours=-11)))

    assert places(single.records(start)) == [(0, 2), (0, 3)]


def test_a_time_is_found_over_many_segments(single: Topic, clock: ManualClock) -> None:
    """Also where segments begin and end."""
    began_us = clock()
    for number in range(12):
        fill(single, 1, first=number)
        clock.advance(seconds=1)
        if number % 3 == 2:
            single.roll()

    for second in range(12):
        assert single.offsets(moment(began_us + second * 1_000_000)) == {0: second}


def test_reading_stops_where_it_is_told_to(topic: Topic, clock: ManualClock) -> None:
    """Before an offset or a time, by the same words as it starts."""
    began_us = clock()
    expected = spread(topic, clock, 12)

    assert places(topic.records(stop={0: 1, 1: 2, 2: 0})) == [(0, 0), (1, 0), (1, 1)]
    assert places(topic.records(stop={0: 1, 2: 0})) == [
        place for place in expected if place == (0, 0) or place[0] == 1
    ]
    assert places(topic.records(stop=moment(began_us + 5_000_000))) == expected[:5]
    assert places(topic.records(1, partitions=[2], stop=3)) == [(2, 1), (2, 2)]
    assert places(topic.records(stop="latest")) == expected
    assert places(topic.records(stop="earliest")) == []
    start, stop = moment(began_us + 3_000_000), moment(began_us + 9_000_000)
    assert places(topic.records(start, stop=stop)) == expected[3:9]
    assert places(topic.records(stop, stop=start)) == []


@pytest.mark.parametrize(
    "start", ["resume", "first", 1.5, None, True, b"earliest", {"0": 1}, {0: "earliest"}, [0]]
)
def test_a_start_that_makes_no_sense_is_refused(topic: Topic, start: Start) -> None:
    """At once, for whatever reads."""
    fill(topic, 1)
    for ask in (topic.records, topic.tables, topic.follow, topic.offsets):
        with pytest.raises(InvalidArgument):
            ask(start)
    if start is not None:
        with pytest.raises(InvalidArgument):
            topic.records(stop=start)
    with pytest.raises(InvalidArgument):
        topic.group("workers").join(start=start)
    if start != "resume":
        with pytest.raises(InvalidArgument):
            topic.reader("audit", start)

    assert (topic.readers(), topic.groups()) == ({}, [])


def test_a_partition_that_is_not_there_has_no_offset(topic: Topic) -> None:
    """A start that names it is a mistake."""
    for ask in (topic.records, topic.follow, topic.offsets):
        with pytest.raises(InvalidArgument):
            ask({3: 0})
    with pytest.raises(InvalidArgument):
        topic.reader("audit", {3: 0})
    with pytest.raises(InvalidArgument):
        topic.group("workers").join(start={3: 0})
    with pytest.raises(InvalidArgument):
        topic.group("workers").reset({3: 0})

    assert (topic.readers(), topic.groups()) == ({}, [])


@pytest.mark.parametrize("offset", [-1, 4, 1 << 40])
def test_what_was_never_written_cannot_be_read(topic: Topic, offset: int) -> None:
    """The error says where, and what there is instead."""
    fill_segments(topic, 3, partition=1)
    for ask in (topic.records, topic.follow, topic.offsets, topic.tables):
        with pytest.raises(OffsetNotWritten) as refusal:
            list(ask({1: offset}))
        found = refusal.value
        assert (found.partition, found.offset) == (1, offset)
        assert (found.earliest, found.latest) == (0, 3)


def test_what_was_deleted_cannot_be_read(topic: Topic) -> None:
    """The error says where, and what is left."""
    fill_segments(topic, 3, 3, partition=1)
    fill(topic, 2, partition=1, first=6)
    topic.clean(keep_bytes=0)
    for ask in (topic.records, topic.follow, topic.offsets, topic.tables):
        with pytest.raises(OffsetTrimmed) as refusal:
            list(ask({1: 5}))
        found = refusal.value
        assert isinstance(found, OffsetOutOfRange)
        assert (found.partition, found.offset, found.earliest, found.latest) == (1, 5, 6, 8)

    assert places(topic.records()) == places(topic.records({1: 6})) == [(1, 6), (1, 7)]
    assert topic.offsets("earliest") == {0: 0, 1: 6, 2: 0}


def test_what_is_deleted_while_it_is_read_is_told(topic: Topic, there: Topic) -> None:
    """Who reads without a name holds nothing: it reads on in what it has, and is then told."""
    fill_segments(topic, 2, 2, 2)
    records, tables = topic.records(), topic.tables()
    first, table = next(records), next(tables)
    there.clean(keep_bytes=0)
    second = next(records)
    with pytest.raises(OffsetTrimmed) as told:
        next(records)
    with pytest.raises(OffsetTrimmed) as told_again:
        next(tables)

    assert places([first, second]) == [(0, 0), (0, 1)]
    assert table["offset"].to_pylist() == [0, 1]
    for gap in (told.value, told_again.value):
        assert (gap.partition, gap.offset, gap.earliest, gap.latest) == (0, 2, 6, 6)


# Limits ------------------------------------------------------------------------------------


def test_no_more_records_come_than_were_asked_for(topic: Topic, clock: ManualClock) -> None:
    """The first by time."""
    expected = spread(topic, clock, 10)

    for count in (1, 4, 10, 99):
        assert places(topic.records(max_records=count)) == expected[:count]


def test_no_more_bytes_come_than_were_asked_for(single: Topic) -> None:
    """But at least one record, however large it is."""
    for size_bytes in (10, 20, 5, 1):
        single.append(b"x" * size_bytes)

    def sizes(max_bytes: int, start: int = 0) -> list[int]:
        found = single.records(start, max_bytes=max_bytes)
        return [len(record.value or b"") for record in found]

    assert [sizes(each) for each in (1, 10, 29, 30, 35, 36, 99)] == [
        [10],
        [10],
        [10],
        [10, 20],
        [10, 20, 5],
        [10, 20, 5, 1],
        [10, 20, 5, 1],
    ]
    assert sizes(1, start=1) == [20]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "1", True])
def test_a_limit_that_makes_no_sense_is_refused(topic: Topic, limit: int) -> None:
    """A limit is a positive whole number."""
    reader, member = topic.reader("audit"), topic.group("workers").join()
    for ask in (topic.records, topic.tables):
        with pytest.raises(InvalidArgument):
            ask(max_records=limit)
    with pytest.raises(InvalidArgument):
        topic.records(max_bytes=limit)
    for each in (reader, member):
        with pytest.raises(InvalidArgument):
            each.poll(limit)
        with pytest.raises(InvalidArgument):
            each.poll(max_bytes=limit)
        with pytest.raises(InvalidArgument):
            each.poll_table(limit)


# Following ---------------------------------------------------------------------------------


def test_following_yields_what_is_there_and_ends(topic: Topic) -> None:
    """From where it was asked to, until nothing comes in time."""
    fill(topic, 3)
    fill(topic, 2, partition=1)

    assert sorted(places(topic.follow("earliest", timeout=0))) == sorted(places(topic.records()))
    assert places(topic.follow({0: 2, 1: 1}, timeout=0)) == [(0, 2), (1, 1)]
    assert places(topic.follow("earliest", partitions=[1], timeout=0)) == [(1, 0), (1, 1)]
    assert places(topic.follow(timeout=timedelta(milliseconds=1))) == []


def test_following_begins_when_it_is_asked_for(topic: Topic, there: Topic) -> None:
    """And not when the first record is: what comes in between is not missed."""
    fill(topic, 3)
    following = topic.follow(timeout=0)
    fill(there, 2, first=3)

    assert values(following) == [b"0/3", b"0/4"]


def test_following_waits_for_what_comes(topic: Topic, there: Topic) -> None:
    """From any process, to any partition, in the order of each."""
    following = topic.follow()
    with meanwhile(lambda: list(islice(following, 6))) as outcome:
        for number in range(3):
            there.append(b"%d" % number, partition=2)
        there.append_many([Event(value=b"%d" % number, partition=1) for number in range(3)])
    found = outcome.result()

    for partition in (1, 2):
        ours = [record for record in found if record.partition == partition]
        assert values(ours) == [b"0", b"1", b"2"]
        assert [record.offset for record in ours] == [0, 1, 2]


def test_following_keeps_the_order_of_a_partition(single: Topic) -> None:
    """As reading does: timestamps that go back change nothing."""
    for time_us in (50, 10, 60, 5):
        single.append(b"%d" % time_us, timestamp=time_us)
    found: list[TopicRecord] = list(single.follow("earliest", timeout=0))

    assert [record.offset for record in found] == [0, 1, 2, 3]


@pytest.mark.parametrize("timeout", [-1, "1", float("nan"), True])
def test_a_timeout_that_makes_no_sense_is_refused(topic: Topic, timeout: float) -> None:
    """At once, for whatever waits."""
    reader, member = topic.reader("audit"), topic.group("workers").join()
    with pytest.raises(InvalidArgument):
        topic.follow(timeout=timeout)
    for each in (reader, member):
        with pytest.raises(InvalidArgument):
            each.poll(timeout=timeout)
        with pytest.raises(InvalidArgument):
            each.poll_table(timeout=timeout)
