"""Named readers of a topic: where they stand, what they hold, and how far they are behind."""

from datetime import UTC, datetime, timedelta

import pytest

from segue import Store, Topic
from segue.errors import InvalidName, OffsetNotWritten, OffsetTrimmed, StoreClosed
from segue.testing import ManualClock
from tests.contract.queue_support import meanwhile
from tests.contract.topic_support import (
    USUAL,
    committed,
    fill,
    fill_segments,
    first_offsets,
    places,
    values,
)
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with two partitions."""
    return store.topic("orders", partitions=2, rules=USUAL)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


# Resuming ----------------------------------------------------------------------------------


def test_a_reader_begins_with_the_earliest(topic: Topic) -> None:
    """Until it commits there is nothing to resume."""
    expected = fill(topic, 3) + fill(topic, 2, partition=1)

    for _ in range(2):
        with topic.reader("audit") as reader:
            assert sorted(values(reader.poll()), key=repr) == sorted(expected)
            assert reader.poll() == []


def test_a_reader_resumes_where_it_committed(topic: Topic, world: World) -> None:
    """In another process, after a crash and after a restart of the machine."""
    fill(topic, 6)
    fill(topic, 6, partition=1)
    reader = topic.reader("audit")
    seen = places(reader.poll(5))
    reader.commit()
    not_committed = places(reader.poll(3))
    reader.close()
    late = world.open().topic("orders").reader("audit")
    found = places(late.poll())
    world.restart()
    again = places(world.open().topic("orders").reader("audit").poll())

    assert len(seen) == 5
    assert set(not_committed) <= set(found)
    assert sorted(seen + found) == sorted((p, offset) for p in range(2) for offset in range(6))
    assert sorted(again) == sorted(found)


def test_closing_does_not_commit(topic: Topic) -> None:
    """Nor does the end of a block; what was polled may not have been done."""
    fill(topic, 3)
    with topic.reader("audit") as reader:
        reader.poll()

    assert committed(topic.readers()["audit"]) == {0: 0, 1: 0}
    with pytest.raises(StoreClosed):
        reader.poll()
    for call in (reader.commit, reader.lag, lambda: reader.seek("earliest"), lambda: list(reader)):
        with pytest.raises(StoreClosed):
            call()


def test_a_place_of_ones_own_may_be_committed(topic: Topic, there: Topic) -> None:
    """For some partitions; the others stay as they were. Going back is allowed, too."""
    fill(topic, 5)
    fill(topic, 5, partition=1)
    reader = topic.reader("audit")
    reader.poll()
    reader.commit()
    reader.commit({1: 2})
    first = committed(there.readers()["audit"])
    reader.commit({0: 0, 1: 4})

    assert first == {0: 5, 1: 2}
    assert committed(there.readers()["audit"]) == {0: 0, 1: 4}
    assert reader.position == {0: 5, 1: 5}


def test_what_was_never_written_cannot_be_committed(topic: Topic) -> None:
    """Nor what has been deleted; the place stays what it was."""
    fill_segments(topic, 3, 3)
    reader = topic.reader("audit")
    reader.commit({0: 6})
    topic.clean(partitions=[0])
    for offset, error in ((7, OffsetNotWritten), (-1, OffsetNotWritten), (2, OffsetTrimmed)):
        with pytest.raises(error) as refusal:
            reader.commit({0: offset})
        assert (refusal.value.partition, refusal.value.offset) == (0, offset)
        assert (refusal.value.earliest, refusal.value.latest) == (6, 6)

    assert committed(topic.readers()["audit"]) == {0: 6, 1: 0}


def test_a_reader_may_begin_elsewhere(topic: Topic, clock: ManualClock) -> None:
    """An explicit start takes the place of the saved one, from the moment it is opened."""
    fill(topic, 4)
    clock.advance(seconds=5)
    fill(topic, 4, first=4)
    fill(topic, 2, partition=1)
    now = EPOCH + timedelta(microseconds=clock())
    for start, expected in (
        ("latest", {0: 8, 1: 2}),
        ("earliest", {0: 0, 1: 0}),
        (now, {0: 4, 1: 0}),
        ({0: 3}, {0: 3, 1: 0}),
    ):
        with topic.reader("audit", start) as reader:  # type: ignore[arg-type]
            assert reader.position == expected
        assert committed(topic.readers()["audit"]) == expected
    with topic.reader("audit") as reader:
        assert reader.position == {0: 3, 1: 0}


def test_an_offset_that_is_not_there_registers_nobody(topic: Topic) -> None:
    """A start that cannot be had raises, and says in which partition."""
    fill(topic, 2)
    with pytest.raises(OffsetNotWritten) as refusal:
        topic.reader("audit", {0: 3})

    assert refusal.value.partition == 0
    assert topic.readers() == {}


def test_a_start_that_fails_moves_nothing(topic: Topic) -> None:
    """The saved place stays what it was in all partitions."""
    fill(topic, 2)
    with topic.reader("audit") as reader:
        reader.poll()
        reader.commit()
    with pytest.raises(OffsetNotWritten):
        topic.reader("audit", {0: 0, 1: 99})

    assert committed(topic.readers()["audit"]) == {0: 2, 1: 0}


def test_readers_are_independent(topic: Topic, there: Topic) -> None:
    """Each has its own place; what one commits moves no other."""
    fill(topic, 4)
    one, another = topic.reader("one"), there.reader("another")
    one.poll()
    one.commit()
    another.poll(1)
    another.commit()

    assert {name: committed(lags)[0] for name, lags in there.readers().items()} == {
        "one": 4,
        "another": 1,
    }


def test_some_partitions_have_readers_of_their_own(topic: Topic) -> None:
    """A reader of some reads, commits and holds no others."""
    fill(topic, 3)
    fill(topic, 3, partition=1)
    reader = topic.reader("audit", partitions=[1])
    found = places(reader.poll())
    reader.commit()

    assert found == [(1, 0), (1, 1), (1, 2)]
    assert reader.position == {1: 3}
    assert committed(topic.readers()["audit"]) == {1: 3}


def test_readers_are_listed_and_forgotten(topic: Topic, there: Topic) -> None:
    """A reader that was removed begins anew, and holds nothing back."""
    fill_segments(topic, 3)
    topic.group("workers").join().close()
    for name in ("b", "a"):
        topic.reader(name).close()
    before = list(there.readers())
    answers = [there.remove_reader(name) for name in ("a", "a", "workers")]

    assert before == ["a", "b"]
    assert answers == [True, False, False]
    assert list(topic.readers()) == ["b"]
    assert topic.groups() == ["workers"]
    assert len(topic.reader("a").poll()) == 3


def test_a_reader_is_not_the_group_of_the_same_name(topic: Topic) -> None:
    """They have places of their own; names that would confuse them are refused."""
    fill(topic, 3)
    topic.group("both").join().close()
    with topic.reader("both") as reader:
        reader.poll()
        reader.commit()
    with pytest.raises(InvalidName):
        topic.reader("group.both")
    with pytest.raises(InvalidName):
        topic.remove_reader("group.both")

    assert committed(topic.group("both").lag()) == {0: 0, 1: 0}
    assert committed(topic.readers()["both"]) == {0: 3, 1: 0}
    assert topic.groups() == ["both"]


# Seeking and iterating ---------------------------------------------------------------------


def test_a_reader_goes_where_it_is_told(topic: Topic, clock: ManualClock) -> None:
    """By every start; the saved place moves only with a commit."""
    fill(topic, 4)
    clock.advance(seconds=5)
    fill(topic, 4, first=4)
    now = EPOCH + timedelta(microseconds=clock())
    reader = topic.reader("audit")
    reader.poll(2)
    reader.commit()
    found = []
    for start in ("latest", now, {0: 6}, "resume", "earliest"):
        reader.seek(start)
        found.append((dict(reader.position), len(reader.poll())))

    assert found == [
        ({0: 8, 1: 0}, 0),
        ({0: 4, 1: 0}, 4),
        ({0: 6, 1: 0}, 2),
        ({0: 2, 1: 0}, 6),
        ({0: 0, 1: 0}, 8),
    ]
    assert committed(topic.readers()["audit"]) == {0: 2, 1: 0}


def test_a_reader_goes_where_it_is_told_in_new_partitions(topic: Topic, there: Topic) -> None:
    """From the moment they are there."""
    reader = topic.reader("audit")
    there.grow(3)
    fill(there, 3, partition=2)
    reader.seek({2: 2})

    assert places(reader.poll()) == [(2, 2)]


def test_a_reader_stays_where_it_is_if_it_cannot_go(topic: Topic) -> None:
    """In all partitions."""
    fill(topic, 4)
    reader = topic.reader("audit")
    reader.poll(3)
    with pytest.raises(OffsetNotWritten):
        reader.seek({0: 1, 1: 1})

    assert reader.position == {0: 3, 1: 0}


def test_iterating_yields_what_is_there(topic: Topic) -> None:
    """In the order of each partition, over all segments, and then stops."""
    fill_segments(topic, 3, 3)
    fill(topic, 4, partition=1)
    reader = topic.reader("audit")
    found = places(reader)
    fill(topic, 1, first=6)

    assert sorted(found) == [*[(0, n) for n in range(6)], *[(1, n) for n in range(4)]]
    assert [place for place in found if place[0] == 0] == [(0, n) for n in range(6)]
    assert places(reader) == [(0, 6)]


def test_the_position_is_that_of_the_next_record(topic: Topic) -> None:
    """Also in the midst of iterating: a commit there covers what was yielded and no more."""
    fill(topic, 3)
    fill(topic, 3, partition=1)
    reader = topic.reader("audit")
    seen = {0: 0, 1: 0}
    for record in reader:
        seen[record.partition] = record.offset + 1
        assert reader.position == seen
        reader.commit()
        assert committed(reader.lag()) == seen

    assert seen == {0: 3, 1: 3}


def test_a_loop_that_is_left_goes_on_later(topic: Topic) -> None:
    """Nothing is passed over and nothing comes twice."""
    fill(topic, 4)
    fill(topic, 4, partition=1)
    reader = topic.reader("audit")
    found = []
    for _ in range(8):
        for record in reader:
            found.append((record.partition, record.offset))
            break

    assert sorted(found) == [(p, n) for p in range(2) for n in range(4)]
    assert list(reader) == []


def test_a_loop_may_go_elsewhere(topic: Topic) -> None:
    """`seek` holds from the next record on."""
    fill(topic, 6)
    reader = topic.reader("audit")
    found = []
    for record in reader:
        found.append(record.offset)
        if found == [0, 1]:
            reader.seek({0: 4})

    assert found == [0, 1, 4, 5]


# Polling -----------------------------------------------------------------------------------


def test_no_more_is_polled_than_was_asked_for(topic: Topic) -> None:
    """And nothing is passed over, over all partitions and segments."""
    fill_segments(topic, 3, 3)
    fill(topic, 5, partition=1)
    reader = topic.reader("audit")
    polled = []
    while records := reader.poll(2):
        polled.append(places(records))

    assert [len(each) for each in polled] == [2, 2, 2, 2, 2, 1]
    found = [place for each in polled for place in each]
    assert sorted(found) == [*[(0, n) for n in range(6)], *[(1, n) for n in range(5)]]
    for partition in range(2):
        ours = [place for place in found if place[0] == partition]
        assert ours == sorted(ours)


def test_no_partition_waits_for_another_to_be_empty(topic: Topic) -> None:
    """They take turns."""
    fill(topic, 6)
    fill(topic, 6, partition=1)
    reader = topic.reader("audit")
    found = [reader.poll(1)[0].partition for _ in range(6)]

    assert found.count(0) == found.count(1) == 3


def test_polling_counts_bytes(store: Store) -> None:
    """At least one record, however large; the next one comes the next time."""
    topic = store.topic("single", rules=USUAL)
    for size_bytes in (10, 20, 5, 1, 40):
        topic.append(b"x" * size_bytes)
    reader = topic.reader("audit")
    found = []
    while records := reader.poll(max_bytes=26):
        found.append([len(record.value or b"") for record in records])

    assert found == [[10], [20, 5, 1], [40]]


def test_what_does_not_fit_in_a_poll_comes_in_the_next(topic: Topic) -> None:
    """Nothing is passed over, in whichever partition or segment it lies."""
    fill_segments(topic, 1, 1, 1)
    topic.append(b"large" * 20, partition=0)
    topic.append(b"large" * 20, partition=1)
    reader = topic.reader("audit")
    found = []
    for _ in range(8):
        found += places(reader.poll(max_bytes=8))

    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]


def test_polling_what_is_not_there_returns_nothing(topic: Topic) -> None:
    """At once, or when the time is over."""
    reader = topic.reader("audit")

    assert reader.poll() == reader.poll(timeout=0.01) == []
    assert reader.poll(timeout=timedelta(milliseconds=5)) == []


@pytest.mark.parametrize("partition", [0, 1])
def test_who_waits_is_woken_by_an_append(topic: Topic, there: Topic, partition: int) -> None:
    """From another process, to any partition."""
    reader = topic.reader("audit")
    with meanwhile(lambda: reader.poll(timeout=LIMIT_SECONDS)) as outcome:
        there.append(b"x", partition=partition)

    assert places(outcome.result()) == [(partition, 0)]


def test_who_waits_without_end_is_woken_too(topic: Topic, there: Topic) -> None:
    """None as timeout waits for as long as it takes, also for a producer."""
    reader = topic.reader("audit")
    with (
        meanwhile(lambda: reader.poll(timeout=None)) as outcome,
        there.producer("importer") as producer,
    ):
        producer.append(b"x", partition=1)

    assert places(outcome.result()) == [(1, 0)]


# Holding -----------------------------------------------------------------------------------


def test_what_a_reader_has_not_committed_is_kept(topic: Topic, there: Topic) -> None:
    """From the moment it exists, also while it is closed."""
    fill_segments(topic, 2, 2, 2)
    topic.reader("audit").close()
    assert there.clean().count == 0
    with topic.reader("audit") as reader:
        reader.poll(5)
        assert there.clean().count == 0
        reader.commit()

    assert there.clean().deleted == {0: [0, 1]}
    assert places(topic.reader("audit").poll()) == [(0, 5)]


def test_a_reader_that_was_overtaken_is_told(topic: Topic, there: Topic) -> None:
    """By OffsetTrimmed, which says what is left; `seek` goes past the gap."""
    fill_segments(topic, 2, 2, 2)
    fill(topic, 2, first=6)
    fill(topic, 2, partition=1)
    with topic.reader("audit") as reader:
        reader.poll(1)
        reader.commit({0: 1, 1: 0})
    there.clean(keep_bytes=0)
    reader = topic.reader("audit", partitions=[0])
    for _ in range(2):
        with pytest.raises(OffsetTrimmed) as refusal:
            reader.poll()
        found = refusal.value
        assert (found.partition, found.offset) == (0, 1)
        assert (found.earliest, found.latest) == (6, 8)
    lag = reader.lag()[0]
    reader.seek({0: found.earliest})

    assert first_offsets(topic) == [6, 0]
    assert (lag.committed, lag.records, lag.trimmed) == (1, 7, 5)
    assert places(reader.poll()) == [(0, 6), (0, 7)]
    reader.commit()
    assert topic.reader("audit", partitions=[0]).lag()[0].trimmed == 0


def test_gaps_are_passed_one_by_one(topic: Topic, there: Topic) -> None:
    """`seek` in one partition leaves the others where they are, gaps and all."""
    fill_segments(topic, 2)
    fill_segments(topic, 3, partition=1)
    reader = topic.reader("audit")
    there.clean(keep_bytes=0)
    gaps = []
    for _ in range(2):
        with pytest.raises(OffsetTrimmed) as told:
            reader.poll()
        assert told.value.partition is not None
        gaps.append((told.value.partition, told.value.earliest))
        reader.seek({told.value.partition: told.value.earliest})

    assert sorted(gaps) == [(0, 2), (1, 3)]
    assert reader.poll() == []


def test_what_is_gone_keeps_nothing_else_from_being_committed(topic: Topic, there: Topic) -> None:
    """The others are saved all the same."""
    fill_segments(topic, 2, 2)
    fill(topic, 2, partition=1)
    reader = topic.reader("audit")
    reader.poll()
    reader.seek({0: 1})
    there.clean(keep_bytes=0)
    with pytest.raises(OffsetTrimmed) as told:
        reader.commit()

    assert told.value.partition == 0
    assert committed(topic.readers()["audit"]) == {0: 0, 1: 2}


def test_a_gap_hides_nothing_before_it(topic: Topic, there: Topic) -> None:
    """Other partitions are polled on; the gap is told until somebody seeks past it."""
    fill_segments(topic, 2, 2)
    fill(topic, 2, partition=1)
    reader = topic.reader("audit")
    there.clean(keep_bytes=0)
    found, told = [], 0
    for _ in range(6):
        try:
            found += places(reader.poll(1))
        except OffsetTrimmed as gap:
            told += 1
            reader.seek({gap.partition or 0: gap.earliest})

    assert told == 1
    assert found == [(1, 0), (1, 1)]


# Lag ---------------------------------------------------------------------------------------


def test_lag_is_told_in_records_bytes_and_seconds(
    topic: Topic, there: Topic, clock: ManualClock
) -> None:
    """By what was committed, and not by what was read."""
    reader = topic.reader("audit")
    assert [(each.records, each.size_bytes, each.seconds) for each in reader.lag()] == [
        (0, 0, 0.0),
        (0, 0, 0.0),
    ]
    topic.append(b"12345", key=b"678", partition=0)
    clock.advance(seconds=3)
    topic.append(b"12", partition=0)
    topic.append(b"1" * 50, partition=1)
    clock.advance(seconds=4)
    reader.poll()
    before = reader.lag()
    reader.commit({0: 1})
    after = there.readers()["audit"]

    assert [(each.partition, each.committed, each.next_offset) for each in before] == [
        (0, 0, 2),
        (1, 0, 1),
    ]
    assert [(each.records, each.size_bytes, each.seconds) for each in before] == [
        (2, 10, 7.0),
        (1, 50, 4.0),
    ]
    assert [(each.records, each.size_bytes, each.seconds) for each in after] == [
        (1, 2, 4.0),
        (1, 50, 4.0),
    ]
    reader.commit()
    assert [
        (each.records, each.size_bytes, each.seconds, each.trimmed) for each in reader.lag()
    ] == [
        (0, 0, 0.0, 0),
        (0, 0, 0.0, 0),
    ]


def test_lag_does_not_mind_a_clock_that_goes_back(topic: Topic, clock: ManualClock) -> None:
    """Nobody waits for less than no time."""
    topic.reader("audit").close()
    fill(topic, 1)
    clock.step(seconds=-3600)

    assert topic.readers()["audit"][0].seconds == 0.0
