"""Producers: what is appended again is there once."""

import pytest

from segue import Appended, Event, Producer, Store, Topic, TopicRules
from segue.errors import InvalidArgument, ProducerBusy, StoreClosed
from tests.contract.topic_support import (
    USUAL,
    fill,
    fill_segments,
    kill,
    next_offsets,
    places,
    rows,
    values,
)
from tests.contract.worlds import World


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with three partitions."""
    return store.topic("orders", partitions=3, rules=USUAL)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("orders")


@pytest.fixture
def producer(topic: Topic) -> Producer:
    return topic.producer("importer")


# Repeating ---------------------------------------------------------------------------------


def test_a_repetition_is_not_appended_again(producer: Producer, topic: Topic) -> None:
    """It is there already, and the answer says so."""
    first = producer.append(b"a", key="k", sequence=0)
    again = producer.append(b"a", key="k", sequence=0)
    following = producer.append(b"b", key="k", sequence=1)

    assert again is None
    assert first is not None
    assert following == Appended(first.partition, 1)
    assert values(topic.records()) == [b"a", b"b"]


def test_a_repetition_may_say_something_else(producer: Producer, topic: Topic) -> None:
    """The sequence number decides, not what the record holds."""
    producer.append(b"a", sequence=0, partition=0)

    assert producer.append(b"b", sequence=0, partition=0, headers={"x": "y"}) is None
    assert values(topic.records()) == [b"a"]


def test_numbers_may_be_left_out(producer: Producer, topic: Topic) -> None:
    """What is above the last is new, what is not is old, whether it was used or not."""
    found = [
        producer.append(b"%d" % sequence, sequence=sequence, partition=1)
        for sequence in (3, 10, 7, 10, 11, 0)
    ]

    assert found == [Appended(1, 0), Appended(1, 1), None, None, Appended(1, 2), None]
    assert values(topic.records()) == [b"3", b"10", b"11"]


def test_without_a_number_it_is_the_next(producer: Producer) -> None:
    """The highest of all partitions, and one more."""
    before = producer.last_sequence()
    producer.append(b"a")
    producer.append(b"b", partition=2)
    first = producer.last_sequence()
    producer.append(b"c", sequence=50, partition=0)
    producer.append(b"d", partition=1)

    assert (before, first) == (-1, 1)
    assert producer.last_sequence() == 51
    assert [producer.last_sequence(partition) for partition in range(3)] == [50, 51, 1]


def test_each_partition_counts_on_its_own(producer: Producer, topic: Topic) -> None:
    """A number that was used in one can be used in another."""
    found = [producer.append(b"x", partition=number, sequence=5) for number in (0, 1, 2, 1)]

    assert found == [Appended(0, 0), Appended(1, 0), Appended(2, 0), None]
    assert next_offsets(topic) == [1, 1, 1]


def test_records_of_a_producer_are_records_like_any_other(
    producer: Producer, topic: Topic, there: Topic
) -> None:
    """Keys, headers and times; nobody sees who made them."""
    topic.append(b"plain", key="k", headers={"a": "b"}, timestamp=7, partition=0)
    producer.append(b"plain", key="k", headers={"a": "b"}, timestamp=7, partition=0)
    producer.append(None, key="k", partition=0)
    plain, same, tombstone = rows(there.records())

    assert plain[2:] == same[2:]
    assert tombstone[2:4] == (b"k", None)


def test_keys_of_a_producer_go_where_all_keys_go(producer: Producer, topic: Topic) -> None:
    """By the same hash."""
    for number in range(20):
        place = producer.append(b"x", key=b"%d" % number)
        assert place is not None
        assert place.partition == topic.append(b"x", key=b"%d" % number).partition


def test_without_key_the_number_decides_the_partition(
    producer: Producer, topic: Topic, there: Topic
) -> None:
    """So that a repetition goes where the first try went, whoever makes it."""
    first = [producer.append(b"%d" % number, sequence=number) for number in range(9)]
    producer.close()
    with there.producer("importer") as late:
        again = [late.append(b"%d" % number, sequence=number) for number in range(12)]

    assert len({place.partition for place in first if place is not None}) == 3
    assert again[:9] == [None] * 9
    assert None not in again[9:]
    assert sorted(values(topic.records()), key=repr) == sorted(
        [b"%d" % number for number in range(12)], key=repr
    )


# Many at once ------------------------------------------------------------------------------


def test_many_are_numbered_one_after_the_other(producer: Producer, topic: Topic) -> None:
    """Over all partitions, whichever each goes to."""
    events = [Event(value=b"%d" % number, partition=number % 2) for number in range(6)]
    found = producer.append_many(events, first_sequence=10)

    assert found == [Appended(number % 2, number // 2) for number in range(6)]
    assert [producer.last_sequence(partition) for partition in range(3)] == [14, 15, -1]
    assert next_offsets(topic) == [3, 3, 0]


def test_of_many_only_the_new_are_appended(producer: Producer, topic: Topic) -> None:
    """A batch that got half-way is finished by appending it again."""
    events = [Event(value=b"%d" % number, key=b"%d" % number) for number in range(10)]
    first = producer.append_many(events[:6], first_sequence=0)
    again = producer.append_many(events, first_sequence=0)
    once_more = producer.append_many(events, first_sequence=0)

    assert None not in first
    assert again[:6] == [None] * 6
    assert None not in again[6:]
    assert once_more == [None] * 10
    assert sorted(places(topic.records())) == sorted(
        place for place in (*first, *again) if place is not None
    )


def test_many_without_a_number_go_on_from_the_last(producer: Producer) -> None:
    """And plain bodies may be many."""
    producer.append_many([b"a", "b"])
    producer.append_many([])
    producer.append_many([b"c"])

    assert producer.last_sequence() == 2


def test_nothing_uses_no_number(producer: Producer) -> None:
    """The highest number is that of a record."""
    producer.append(b"a")
    before = producer.last_sequence()
    producer.append_many([], first_sequence=50)

    assert producer.last_sequence() == before == 0


@pytest.mark.parametrize("sequence", [-1, 1 << 63, "1", 1.5, True])
def test_a_number_that_makes_no_sense_is_refused(
    producer: Producer, topic: Topic, sequence: int
) -> None:
    """A sequence number is whole and not negative."""
    with pytest.raises(InvalidArgument):
        producer.append(b"x", sequence=sequence)
    with pytest.raises(InvalidArgument):
        producer.append_many([b"x"], first_sequence=sequence)

    assert next_offsets(topic) == [0, 0, 0]


def test_many_with_a_bad_one_are_refused_and_use_no_number(
    producer: Producer, topic: Topic
) -> None:
    """All or nothing; what is mended is appended under the same numbers."""
    good = [Event(value=b"%d" % number, partition=number) for number in range(3)]
    bad = [
        Event(value=5),  # type: ignore[arg-type]
        Event(value=b"x", partition=3),
        Event(value=b"x" * (1 << 20)),
        Event(value=b"x", key=1),  # type: ignore[arg-type]
    ]
    for event in bad:
        with pytest.raises(InvalidArgument):
            producer.append_many([*good, event], first_sequence=0)
    before = next_offsets(topic)
    found = producer.append_many(good, first_sequence=0)

    assert before == [0, 0, 0]
    assert found == [Appended(number, 0) for number in range(3)]


# Names -------------------------------------------------------------------------------------


def test_only_one_at_a_time_can_use_a_name(producer: Producer, topic: Topic, there: Topic) -> None:
    """In this process and in every other, until it is closed."""
    for handle in (topic, there):
        with pytest.raises(ProducerBusy) as refusal:
            handle.producer("importer")
        assert refusal.value.name == "importer"
    producer.append(b"a", partition=0)
    producer.close()

    with there.producer("importer") as late:
        assert late.append(b"a", partition=0, sequence=0) is None
        assert late.append(b"b", partition=0) == Appended(0, 1)
    with pytest.raises(StoreClosed):
        producer.append(b"c")


def test_producers_of_other_names_are_others(
    producer: Producer, topic: Topic, store: Store
) -> None:
    """Also one of the same name in another topic."""
    producer.append(b"a", partition=0, sequence=7)
    with topic.producer("importer2") as second, store.topic("other").producer("importer") as third:
        found = (second.append(b"b", partition=0, sequence=0), third.append(b"c", sequence=0))
        numbers = (second.last_sequence(), third.last_sequence())

    assert found == (Appended(0, 1), Appended(0, 0))
    assert numbers == (0, 0)
    assert producer.last_sequence() == 7


def test_the_name_of_the_dead_is_free(
    world: World, store: Store, producer: Producer, there: Topic
) -> None:
    """At once, and what it appended is known."""
    producer.append_many([b"a", b"b"], first_sequence=0)
    kill(world, store, producer)

    with there.producer("importer") as late:
        assert late.last_sequence() == 1
        assert late.append_many([b"a", b"b", b"c"], first_sequence=0)[:2] == [None, None]
    assert len(list(there.records())) == 3


def test_closing_the_store_frees_the_name(store: Store, producer: Producer, there: Topic) -> None:
    """It lets go of everything."""
    producer.append(b"a", sequence=0)
    store.close()

    with there.producer("importer") as late:
        assert late.last_sequence() == 0


# What is not forgotten ---------------------------------------------------------------------


def test_numbers_outlast_closing_and_restarts(world: World, topic: Topic) -> None:
    """Whoever uses the name next goes on where the last one was."""
    for turn in range(3):
        with topic.producer("importer") as producer:
            assert producer.last_sequence() == turn - 1
            assert producer.append(b"%d" % turn) is not None
    world.restart()
    topic = world.open().topic("orders")

    with topic.producer("importer") as producer:
        assert producer.last_sequence() == 2
        assert producer.append(b"2", sequence=2) is None
    assert len(list(topic.records())) == 3


def test_numbers_outlast_the_records(topic: Topic, world: World) -> None:
    """Cleaning deletes records, not what is known of their producers."""
    with topic.producer("importer") as producer:
        producer.append_many([b"x"] * 9, first_sequence=0)
    topic.roll()
    topic.clean(keep_bytes=0)
    assert list(topic.records()) == []
    for handle in (topic, world.open().topic("orders")):
        with handle.producer("importer") as producer:
            assert producer.last_sequence() == 8
            assert producer.append_many([b"x"] * 9, first_sequence=0) == [None] * 9
    world.restart()

    with world.open().topic("orders").producer("importer") as producer:
        assert [producer.last_sequence(partition) for partition in range(3)] == [6, 7, 8]


def test_numbers_outlast_cleaning_by_the_rules(store: Store) -> None:
    """Also when it happens in the midst of appending."""
    topic = store.topic("brief", rules=TopicRules(segment_bytes=12_288, keep_bytes=0))
    with topic.producer("importer") as producer:
        for number in range(20):
            producer.append(b"x" * 1_000, sequence=number)
            assert producer.append(b"x" * 1_000, sequence=number) is None
    with topic.producer("importer") as producer:
        assert producer.append_many([b"x"] * 20, first_sequence=0) == [None] * 20

    assert topic.info().partitions[0].first_offset > 0
    assert next_offsets(topic) == [20]


def test_numbers_outlast_compaction(topic: Topic, world: World) -> None:
    """A record that a later one replaced is still not to be appended again."""
    with topic.producer("importer") as producer:
        producer.append_many(
            [Event(value=b"%d" % number, key="k", partition=0) for number in range(5)],
            first_sequence=0,
        )
    topic.append(b"mine", key="k", partition=0)
    topic.roll()
    topic.compact()
    assert values(topic.records()) == [b"mine"]

    for handle in (topic, world.open().topic("orders")):
        with handle.producer("importer") as producer:
            assert producer.append(b"4", key="k", partition=0, sequence=4) is None
            assert producer.last_sequence() == 4


def test_what_others_append_changes_no_number(
    producer: Producer, topic: Topic, there: Topic
) -> None:
    """Plain records and those of other producers lie in between."""
    second = there.producer("second")
    for number in range(6):
        producer.append(b"a%d" % number, partition=0)
        fill(there, 2, first=number)
        second.append(b"b%d" % number, partition=0)
    fill_segments(topic, 1)
    producer.close()
    second.close()

    with topic.producer("second") as late:
        assert late.last_sequence() == 5
    with there.producer("importer") as late:
        assert late.append(b"a5", partition=0, sequence=5) is None


def test_a_repetition_after_growing_is_not_appended_again(producer: Producer, topic: Topic) -> None:
    """Repeating an append never duplicates, also if partitions were added in between."""
    for number in range(6):
        producer.append(b"%d" % number, sequence=number)
        producer.append(b"k%d" % number, key=b"k%d" % number, sequence=number + 100)
    topic.grow(4)
    for number in range(6):
        producer.append(b"%d" % number, sequence=number)
        producer.append(b"k%d" % number, key=b"k%d" % number, sequence=number + 100)

    found = values(topic.records())
    assert len(found) == len(set(found))


def test_a_producer_uses_partitions_that_are_added(
    producer: Producer, topic: Topic, there: Topic
) -> None:
    """From the moment they are there."""
    producer.append(b"a", partition=0)
    there.grow(4)

    assert producer.append(b"b", partition=3) == Appended(3, 0)
    assert producer.last_sequence(3) == 1
    with pytest.raises(InvalidArgument):
        producer.append(b"c", partition=4)
