"""What a topic does not keep: what everybody has left behind, and what is beyond its limits."""

import pytest

from segue import Store, Topic, TopicRules
from segue.errors import InvalidArgument, OffsetTrimmed
from segue.testing import ManualClock
from tests.contract.topic_support import (
    SMALL_SEGMENT_BYTES,
    USUAL,
    committed,
    fill,
    fill_segments,
    first_offsets,
    next_offsets,
    places,
    segments_of,
    values,
)
from tests.contract.worlds import World


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with two partitions, of which the first has three segments of two and one record."""
    topic = store.topic("orders", partitions=2, rules=USUAL)
    fill_segments(topic, 2, 2, 2)
    fill(topic, 1, first=6)
    return topic


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


def stand(topic: Topic, name: str, offset: int, *, partition: int = 0) -> None:
    """Let a reader of one partition stand at an offset."""
    topic.reader(name, {partition: offset}, partitions=[partition]).close()


# Who holds what ----------------------------------------------------------------------------


def test_without_readers_nothing_is_deleted(topic: Topic, clock: ManualClock) -> None:
    """However old it is: nobody has said that it is not wanted."""
    clock.advance(seconds=10 * 365 * 86_400)
    report = topic.clean()

    assert (report.deleted, report.count, report.freed_bytes, report.held_by) == ({}, 0, 0, {})
    assert segments_of(topic) == [4, 1]


def test_what_every_reader_has_left_behind_is_deleted(topic: Topic, there: Topic) -> None:
    """Whole segments, the oldest first; offsets stay what they were."""
    before = topic.info()
    stand(topic, "audit", 4)
    report = there.clean()
    after = topic.info()

    assert report.deleted == {0: [0, 1]}
    assert report.count == 2
    assert report.freed_bytes == before.size_bytes - after.size_bytes > 0
    assert (first_offsets(topic), next_offsets(topic)) == ([4, 0], [7, 0])
    assert values(topic.records()) == [b"0/4", b"0/5", b"0/6"]
    assert topic.clean().deleted == {}


@pytest.mark.parametrize(
    ("offset", "left"), [(0, 0), (1, 0), (2, 2), (3, 2), (5, 4), (6, 6), (7, 6)]
)
def test_a_segment_is_kept_while_one_record_of_it_is_wanted(
    topic: Topic, offset: int, left: int
) -> None:
    """And the segment that takes records is always kept."""
    stand(topic, "audit", offset)
    topic.clean()

    assert first_offsets(topic)[0] == left


def test_the_slowest_holds_what_is_left(topic: Topic) -> None:
    """Of readers and groups; the report names it, in each partition."""
    stand(topic, "quick", 7)
    stand(topic, "slow", 3)
    stand(topic, "elsewhere", 0, partition=1)
    first = topic.clean()
    with topic.group("workers").join(start={0: 2}):
        pass
    second = topic.clean()
    topic.remove_group("workers")
    topic.remove_reader("slow")
    third = topic.clean()

    assert (first.deleted, first.held_by) == ({0: [0]}, {0: "slow", 1: "elsewhere"})
    assert second.deleted == {}
    assert "workers" in second.held_by[0]
    assert (third.deleted, third.held_by) == ({0: [1, 2]}, {0: "quick", 1: "elsewhere"})


def test_some_partitions_are_cleaned_alone(topic: Topic) -> None:
    """The others are not touched, nor reported."""
    fill_segments(topic, 2, 2, partition=1)
    topic.reader("audit", "latest").close()
    first = topic.clean(partitions=[1])
    second = topic.clean(partitions=[0])

    assert (first.deleted, list(first.held_by)) == ({1: [0, 1]}, [1])
    assert second.deleted == {0: [0, 1, 2]}
    with pytest.raises(InvalidArgument):
        topic.clean(partitions=[2])


def test_who_reads_without_a_name_holds_nothing(topic: Topic, there: Topic) -> None:
    """Only saved places do, however long somebody takes to read."""
    reading, following = there.records(), there.follow("earliest", timeout=0)
    next(reading)
    next(following)

    assert topic.clean(keep_bytes=0).count == 3


def test_an_open_reader_holds_what_it_committed_and_no_more(topic: Topic, there: Topic) -> None:
    """Neither what it has read and committed, nor where it has gone without a commit."""
    reader = there.reader("audit")
    reader.poll(5)
    reader.commit()
    reader.seek({0: 0})

    assert topic.clean().deleted == {0: [0, 1]}
    with pytest.raises(OffsetTrimmed):
        reader.poll()


def test_what_was_deleted_does_not_come_back(topic: Topic, world: World) -> None:
    """Nor are its offsets given out again."""
    topic.roll()
    topic.clean(keep_bytes=0)
    world.restart()
    topic = world.open().topic("orders")

    assert list(topic.records()) == []
    assert topic.append(b"x", partition=0).offset == 7
    assert first_offsets(topic) == [7, 0]


def test_cleaning_can_be_tried(topic: Topic) -> None:
    """It tells what would go, and deletes nothing."""
    stand(topic, "audit", 4)
    tried = [topic.clean(dry_run=True), topic.clean(keep_bytes=0, dry_run=True)]
    before = segments_of(topic)
    done = topic.clean(keep_bytes=0)

    assert [each.deleted for each in tried] == [{0: [0, 1]}, {0: [0, 1, 2]}]
    assert before == [4, 1]
    assert (done.deleted, done.freed_bytes) == (tried[1].deleted, tried[1].freed_bytes)


def test_who_waits_at_the_end_holds_nothing_behind_it(topic: Topic) -> None:
    """Also if it got there before the segment it has left was closed."""
    topic.reader("audit", "latest").close()
    topic.roll()

    assert topic.clean().deleted == {0: [0, 1, 2, 3]}


# Limits ------------------------------------------------------------------------------------


def test_what_is_too_old_is_deleted(store: Store, clock: ManualClock) -> None:
    """By the time of a segment's last record, whoever wants it."""
    topic = store.topic("brief", rules=USUAL)
    for _ in range(3):
        fill_segments(topic, 2)
        clock.advance(seconds=10)
    topic.reader("audit").close()

    assert topic.clean(keep_seconds=30).deleted == {}
    assert topic.clean(keep_seconds=29).deleted == {0: [0]}
    assert topic.clean(keep_seconds=10.5).deleted == {0: [1]}
    assert topic.clean(keep_seconds=0).deleted == {0: [2]}
    with pytest.raises(OffsetTrimmed):
        topic.reader("audit").poll()


def test_what_is_too_much_is_deleted(topic: Topic) -> None:
    """The oldest of each partition, until it takes up no more."""
    sizes = [topic.info().partitions[0].size_bytes]
    for _ in range(3):
        topic.clean(keep_bytes=sizes[-1] - 1)
        sizes.append(topic.info().partitions[0].size_bytes)

    assert sizes == sorted(set(sizes), reverse=True)
    assert segments_of(topic)[0] == 1
    assert topic.clean(keep_bytes=sizes[0]).deleted == {}


def test_who_is_too_far_behind_holds_no_more(topic: Topic) -> None:
    """Only the last `lag_max` records; it is told of the gap, the others lose nothing."""
    stand(topic, "slow", 1)
    stand(topic, "quick", 6)
    loose = topic.clean(lag_max=6)
    strict = topic.clean(lag_max=3)

    assert (loose.deleted, strict.deleted) == ({}, {0: [0, 1]})
    with pytest.raises(OffsetTrimmed) as gap:
        topic.reader("slow", partitions=[0]).poll()
    assert (gap.value.offset, gap.value.earliest, gap.value.latest) == (1, 4, 7)
    assert values(topic.reader("quick", partitions=[0]).poll()) == [b"0/6"]
    assert topic.readers()["slow"][0].trimmed == 3


def test_without_readers_a_cap_on_lag_deletes_nothing(topic: Topic) -> None:
    """There is nobody who could be behind."""
    assert topic.clean(lag_max=0).deleted == {}


def test_the_segment_that_takes_records_is_never_deleted(store: Store, clock: ManualClock) -> None:
    """By no limit, however full and old it is."""
    topic = store.topic("brief", rules=USUAL)
    fill(topic, 5)
    clock.advance(seconds=3600)
    topic.reader("audit", "latest").close()
    report = topic.clean(keep_seconds=0, keep_bytes=0, lag_max=0)

    assert report.count == 0
    assert len(list(topic.records())) == 5


def test_the_stricter_of_rule_and_request_counts(store: Store, clock: ManualClock) -> None:
    """A call can delete more than the rules allow, and never keeps more."""
    topic = store.topic(
        "brief", rules=TopicRules(segment_bytes=1 << 18, keep_seconds=15, clean_on_roll=False)
    )
    for _ in range(4):
        fill_segments(topic, 2)
        clock.advance(seconds=10)

    assert topic.clean(keep_seconds=1000).deleted == {0: [0, 1, 2]}
    assert topic.clean().deleted == {}
    assert topic.clean(keep_seconds=5).deleted == {0: [3]}


@pytest.mark.parametrize(
    "limits",
    [
        {"keep_seconds": -1},
        {"keep_seconds": "1"},
        {"keep_seconds": float("nan")},
        {"keep_bytes": -1},
        {"keep_bytes": 1.5},
        {"lag_max": -1},
        {"lag_max": True},
        {"lag_max": "1"},
    ],
)
def test_a_limit_that_makes_no_sense_deletes_nothing(
    topic: Topic, limits: dict[str, object]
) -> None:
    """It is refused."""
    with pytest.raises(InvalidArgument):
        topic.clean(**limits)  # type: ignore[arg-type]

    assert segments_of(topic) == [4, 1]


# By itself ---------------------------------------------------------------------------------


def churn(topic: Topic, segments: int) -> None:
    """Fill a partition with so many segments, by appending alone."""
    for _ in range(segments):
        for _ in range(3):
            topic.append(b"x" * 1_300, partition=0)


def test_a_topic_without_limits_is_not_cleaned_by_itself(store: Store) -> None:
    """Not even of what everybody has left behind."""
    topic = store.topic("kept", rules=TopicRules(segment_bytes=SMALL_SEGMENT_BYTES))
    topic.reader("audit").close()
    churn(topic, 4)
    topic.reader("audit", "latest").close()
    churn(topic, 1)

    assert first_offsets(topic) == [0]


def test_a_topic_with_limits_is_cleaned_when_a_segment_begins(store: Store) -> None:
    """Nobody has to call anything, whichever way records come."""
    rules = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, keep_bytes=3 * SMALL_SEGMENT_BYTES)
    topic = store.topic("brief", rules=rules)
    churn(topic, 8)
    by_single = segments_of(topic)
    topic.append_many([b"x" * 1_300] * 24)
    by_many = segments_of(topic)
    with topic.producer("importer") as producer:
        producer.append_many([b"x" * 1_300] * 24)
    by_producer = segments_of(topic)

    assert max(by_single + by_many + by_producer) <= 4
    assert first_offsets(topic)[0] > 40


def test_rules_may_ask_for_cleaning_without_limits(store: Store) -> None:
    """Then what everybody has left behind goes by itself."""
    rules = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, clean_on_roll=True)
    topic = store.topic("tidy", rules=rules)
    churn(topic, 4)
    kept = first_offsets(topic)
    topic.reader("audit", "latest").close()
    churn(topic, 2)

    assert kept == [0]
    assert first_offsets(topic)[0] >= 9


def test_rules_may_refuse_cleaning_by_itself(store: Store) -> None:
    """Then the limits hold when somebody cleans."""
    rules = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, keep_bytes=0, clean_on_roll=False)
    topic = store.topic("manual", rules=rules)
    churn(topic, 4)
    before = segments_of(topic)
    topic.clean()

    assert before[0] >= 4
    assert segments_of(topic) == [1]


def test_readers_are_held_to_the_rules(store: Store, other: Store) -> None:
    """Rules with a cap on lag delete by themselves what the slow still want."""
    rules = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, lag_max=5)
    topic = store.topic("brief", rules=rules)
    reader = topic.reader("audit")
    churn(other.topic("brief"), 6)
    lag = topic.readers()["audit"][0]

    assert lag.trimmed > 0
    assert lag.records == 18
    with pytest.raises(OffsetTrimmed) as gap:
        reader.poll()
    reader.seek(gap.value.earliest)
    assert len(places(reader.poll())) == 18 - lag.trimmed >= 5
    reader.commit()
    assert committed(topic.readers()["audit"]) == {0: 18}


def test_rules_hold_for_everybody_at_once(store: Store, other: Store) -> None:
    """Who has the topic open cleans by the new rules from then on."""
    topic = store.topic("brief", rules=TopicRules(segment_bytes=SMALL_SEGMENT_BYTES))
    churn(topic, 4)
    other.topic("brief").configure(TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, keep_bytes=0))
    churn(topic, 1)

    assert first_offsets(topic)[0] >= 11


def test_a_dry_run_tells_what_would_go(store: Store) -> None:
    """And deletes nothing."""
    rules = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, clean_on_roll=False)
    topic = store.topic("brief", rules=rules)
    churn(topic, 4)
    before = segments_of(topic)
    asked = topic.clean(keep_bytes=0, dry_run=True)

    assert asked.count > 0
    assert segments_of(topic) == before
    assert topic.clean(keep_bytes=0).deleted == asked.deleted
