"""How a topic comes to be, grows and is configured, and what can be known of it."""

import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from segue import Event, Store, Topic, TopicRules
from segue.errors import InvalidArgument, InvalidName, StoreClosed, TopicNotFound
from segue.testing import ManualClock
from tests.contract.topic_support import (
    SMALL,
    USUAL,
    committed,
    fill,
    fill_segments,
    first_offsets,
    next_offsets,
    places,
    values,
)
from tests.contract.worlds import World
from tests.unit.support import failing_cases

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Being there -------------------------------------------------------------------------------


def test_a_topic_exists_from_its_first_append_on(store: Store, other: Store) -> None:
    """Asking for it makes nothing; then everybody sees it."""
    topic = store.topic("orders")
    before = (store.topics(), topic.partitions, topic.rules, topic.info().version)
    topic.append(b"first")

    assert before == ([], 1, TopicRules(), 0)
    assert store.topics() == other.topics() == ["orders"]
    assert values(other.topic("orders").records()) == [b"first"]
    assert topic.info().version == 1


def test_looking_at_a_topic_that_is_not_there_makes_nothing(store: Store) -> None:
    """There is nothing to see, and there is none afterwards."""
    topic = store.topic("orders")

    assert list(topic.records()) == list(topic.records({0: 0})) == []
    assert list(topic.records(partitions=[0])) == list(topic.tables()) == []
    assert (topic.offsets(), topic.readers(), topic.groups()) == ({}, {}, [])
    assert (topic.info().count, topic.info().size_bytes) == (0, 0)
    assert (topic.remove_reader("x"), topic.remove_group("x")) == (False, False)
    assert topic.group("workers").lag() == []
    assert topic.clean().count == topic.compact().removed_records == 0
    topic.roll()
    topic.flush()
    assert store.topics() == []


def test_what_is_refused_makes_no_topic(store: Store) -> None:
    """Bad arguments raise before anything is written."""
    topic = store.topic("orders")
    for bad in ({"value": 5}, {"value": b"x", "partition": 1}, {"value": b"x", "key": 1.5}):
        with pytest.raises(InvalidArgument):
            topic.append(**bad)
    with pytest.raises(InvalidArgument):
        list(topic.records("resume"))  # type: ignore[arg-type]

    assert store.topics() == []


def test_what_only_reads_makes_no_topic(store: Store) -> None:
    """Whoever waits for records of a topic that is not there has mistaken its name."""
    topic = store.topic("orders")
    calls: list[Callable[[], object]] = [
        lambda: topic.reader("audit"),
        lambda: topic.group("workers").join(),
        lambda: topic.group("workers").reset("latest"),
        lambda: topic.follow(timeout=0),
    ]
    for call in calls:
        with pytest.raises(TopicNotFound) as refusal:
            call()
        assert refusal.value.name == "orders"

    assert store.topics() == []


@pytest.mark.parametrize(
    "use",
    [
        lambda topic: topic.append_many([b"x"]),
        lambda topic: topic.producer("importer").append(b"x"),
        lambda topic: topic.configure(TopicRules(keep_bytes=1)),
        lambda topic: topic.grow(2),
    ],
    ids=["append_many", "producer", "configure", "grow"],
)
def test_a_topic_exists_from_its_first_use_on(store: Store, use: Callable[[Topic], object]) -> None:
    """Whatever is kept of it makes it."""
    use(store.topic("orders"))

    assert store.topics() == ["orders"]


def test_with_a_number_of_partitions_it_exists_at_once(store: Store, other: Store) -> None:
    """As many as were asked for, for everybody."""
    topic = store.topic("orders", partitions=5)

    assert other.topics() == ["orders"]
    assert topic.partitions == other.topic("orders").partitions == 5
    assert next_offsets(topic) == [0] * 5


def test_with_rules_it_exists_at_once(store: Store, other: Store) -> None:
    """With one partition."""
    store.topic("orders", rules=SMALL)

    assert other.topics() == ["orders"]
    assert (other.topic("orders").partitions, other.topic("orders").rules) == (1, SMALL)


@pytest.mark.parametrize("asked", [1, 2, 4])
def test_another_number_of_partitions_is_refused(
    store: Store, other: Store, world: World, asked: int
) -> None:
    """One that exists keeps its partitions; nobody changes them by accident."""
    store.topic("orders", partitions=3, rules=USUAL)
    for handle in (store, other, world.open()):
        with pytest.raises(InvalidArgument):
            handle.topic("orders", partitions=asked, rules=SMALL)

    again = store.topic("orders", partitions=3)
    assert (again.partitions, again.rules, again.info().version) == (3, USUAL, 1)


@pytest.mark.parametrize("partitions", [0, -1, 4097, 1.5, "2", True, 1 << 60])
def test_a_topic_has_one_to_4096_partitions(store: Store, partitions: int) -> None:
    """Anything else is refused, and makes nothing."""
    with pytest.raises(InvalidArgument):
        store.topic("orders", partitions=partitions)

    assert store.topics() == []


def test_a_topic_may_have_very_many_partitions(store: Store) -> None:
    """Only those that are used are opened."""
    topic = store.topic("wide", partitions=4096, rules=USUAL)
    place = topic.append(b"x", key=b"123456789")

    assert place.partition == 0xCBF43926 % 4096
    assert values(topic.records(partitions=[place.partition])) == [b"x"]


@pytest.mark.parametrize("name", ["", ".", "..", "../orders", "a/b", ".hidden", "x" * 101, "ü"])
def test_a_topic_needs_a_plain_name(store: Store, name: str) -> None:
    """So do its readers, groups and producers."""
    topic = store.topic("orders", rules=USUAL)
    for ask in (store.topic, topic.reader, topic.group, topic.producer):
        with pytest.raises(InvalidName):
            ask(name)

    assert store.topics() == ["orders"]
    assert (topic.readers(), topic.groups()) == ({}, [])


def test_topics_whose_names_begin_alike_never_meet(store: Store, other: Store) -> None:
    """`orders`, `orders_v2` and `orders.dlq` are three topics with nothing in common."""
    names = ["orders", "orders.dlq", "orders_v2"]
    for count, name in enumerate(names, start=1):
        topic = store.topic(name, partitions=count, rules=USUAL)
        fill(topic, count)
        with topic.reader("audit") as reader:
            reader.poll(count)
            reader.commit()
        topic.group("workers").join().close()
        with topic.producer("importer") as producer:
            producer.append(b"x", partition=0, sequence=count)
    store.topic("orders").remove_reader("audit")
    store.topic("orders").remove_group("workers")

    assert store.topics() == other.topics() == names
    for count, name in enumerate(names, start=1):
        topic = other.topic(name)
        assert topic.partitions == count
        assert values(topic.records()) == [*[b"0/%d" % each for each in range(count)], b"x"]
        with topic.producer("importer") as producer:
            assert producer.last_sequence() == count
    assert [list(other.topic(name).readers()) for name in names] == [[], ["audit"], ["audit"]]
    assert [other.topic(name).groups() for name in names] == [[], ["workers"], ["workers"]]
    assert committed(other.topic("orders_v2").readers()["audit"])[0] == 3


# Growing -----------------------------------------------------------------------------------


def test_partitions_can_be_added(store: Store, other: Store, world: World) -> None:
    """What is there stays where it is; everybody sees the new ones at once."""
    topic, there = store.topic("orders", partitions=2, rules=USUAL), other.topic("orders")
    before = [topic.append(b"%d" % number, key=b"%d" % number) for number in range(20)]
    assert there.partitions == 2
    topic.grow(5)
    after = there.append_many([Event(value=b"x", key=b"%d" % number) for number in range(20)])

    assert topic.partitions == there.partitions == world.open().topic("orders").partitions == 5
    assert [place.partition for place in before] == [crc32(b"%d" % n) % 2 for n in range(20)]
    assert [place.partition for place in after] == [crc32(b"%d" % n) % 5 for n in range(20)]
    assert sorted(places(topic.records())) == sorted([*before, *after])
    assert store.topic("orders", partitions=5).info().version == 2


def test_partitions_are_never_removed(store: Store) -> None:
    """Fewer than there are is refused; as many changes nothing."""
    topic = store.topic("orders", partitions=3, rules=USUAL)
    for partitions in (2, 0, -1, 4097, 3.5, True):
        with pytest.raises(InvalidArgument):
            topic.grow(partitions)  # type: ignore[arg-type]
    topic.grow(3)

    assert (topic.partitions, topic.info().version) == (3, 1)


def test_readers_and_groups_hold_new_partitions_too(store: Store, other: Store) -> None:
    """From their first record on, also if nobody has looked at them yet."""
    topic = store.topic("orders", rules=USUAL)
    topic.reader("audit").close()
    topic.group("workers").join().close()
    other.topic("orders").grow(3)
    expected = fill_segments(other.topic("orders"), 3, 3, partition=2)
    topic.reader("quick", "latest", partitions=[2]).close()
    report = topic.clean()

    assert report.count == 0
    assert values(topic.reader("audit").poll()) == expected
    with topic.group("workers").join() as member:
        assert values(member.poll()) == expected


def test_a_group_that_began_with_the_latest_gets_all_of_new_partitions(store: Store) -> None:
    """Nothing there was older than the group."""
    topic = store.topic("orders", rules=USUAL)
    fill(topic, 3)
    topic.group("workers").join(start="latest").close()
    topic.grow(2)
    fill(topic, 2, partition=1)

    with topic.group("workers").join() as member:
        assert places(member.poll()) == [(1, 0), (1, 1)]


def test_an_open_reader_takes_in_new_partitions(store: Store, other: Store) -> None:
    """Whoever reads all of them does so from then on, and commits there."""
    topic = store.topic("orders", rules=USUAL)
    reader, some = topic.reader("audit"), topic.reader("some", partitions=[0])
    other.topic("orders").grow(2)
    fill(other.topic("orders"), 2, partition=1)
    found, found_by_some = values(reader.poll()), values(some.poll())
    reader.commit()

    assert (found, found_by_some) == ([b"1/0", b"1/1"], [])
    assert reader.position == {0: 0, 1: 2}
    assert committed(topic.readers()["audit"]) == {0: 0, 1: 2}


def test_who_follows_everything_follows_new_partitions(store: Store, other: Store) -> None:
    """From their first record on."""
    topic = store.topic("orders", rules=USUAL)
    following, some = topic.follow(timeout=0), topic.follow(timeout=0, partitions=[0])
    other.topic("orders").grow(2)
    fill(other.topic("orders"), 2, partition=1)

    assert values(following) == [b"1/0", b"1/1"]
    assert values(some) == []


# Rules -------------------------------------------------------------------------------------


def test_rules_are_changed_for_everybody(store: Store, other: Store, world: World) -> None:
    """Durably; without rules a topic keeps those it has."""
    topic, there = store.topic("orders", partitions=2, rules=SMALL), other.topic("orders")
    rules = TopicRules(keep_seconds=60, keep_bytes=1 << 20, lag_max=5, tombstone_seconds=0)
    there.configure(rules)
    seen = topic.rules
    store.topic("orders", rules=USUAL)
    store.topic("orders")
    world.restart()

    assert seen == rules
    assert world.open().topic("orders").rules == USUAL


def test_rules_that_are_the_same_are_no_change(store: Store) -> None:
    """The version counts changes of partitions or rules."""
    topic = store.topic("orders", rules=SMALL)
    topic.configure(SMALL)
    store.topic("orders", partitions=1, rules=SMALL)
    before = topic.info().version
    topic.configure(USUAL)

    assert (before, topic.info().version) == (1, 2)


def test_segments_are_as_large_as_the_rules_say(store: Store, other: Store) -> None:
    """In every handle that opens the topic."""
    store.topic("orders", rules=SMALL)
    topic = other.topic("orders")
    fill(topic, 1)
    for _ in range(8):
        topic.append(b"x" * 2_000)

    assert topic.info().partitions[0].segments >= 4


def test_another_size_of_segments_holds_from_the_next_segment_on(
    store: Store, other: Store
) -> None:
    """Rules are changed for everybody, also for those who have the topic open."""
    topic = store.topic("orders", rules=USUAL)
    topic.append(b"x")
    other.topic("orders").configure(SMALL)
    topic.roll()
    for _ in range(8):
        topic.append(b"x" * 2_000)

    assert topic.info().partitions[0].segments >= 4


def test_a_segment_is_closed_when_it_is_old(store: Store, clock: ManualClock) -> None:
    """By the rules' `segment_seconds`, with the next record that comes."""
    topic = store.topic("orders", rules=TopicRules(segment_bytes=1 << 18, segment_seconds=10))
    fill(topic, 2)
    clock.advance(seconds=11)
    fill(topic, 1)

    assert topic.info().partitions[0].segments == 2


# Knowing it --------------------------------------------------------------------------------


def test_a_topic_can_be_looked_at(store: Store, other: Store, clock: ManualClock) -> None:
    """What it is made of, what it holds and who reads it."""
    topic = store.topic("orders", partitions=2, rules=USUAL)
    began = EPOCH + timedelta(microseconds=clock())
    fill_segments(topic, 3, 2, partition=1)
    clock.advance(seconds=7)
    fill(topic, 1, partition=1, first=5)
    topic.reader("b").close()
    topic.reader("a", partitions=[0]).close()
    topic.group("workers").join().close()
    info = other.topic("orders").info()

    assert (info.name, info.rules, info.version) == ("orders", USUAL, 1)
    assert (list(info.readers), list(info.groups)) == (["a", "b"], ["workers"])
    assert [(each.partition, each.segments) for each in info.partitions] == [(0, 1), (1, 3)]
    assert [each.oldest for each in info.partitions] == [None, began]
    assert [(each.first_offset, each.next_offset) for each in info.partitions] == [(0, 0), (0, 6)]
    assert info.count == 6
    assert info.size_bytes == sum(each.size_bytes for each in info.partitions) > 0


def test_what_was_deleted_is_not_counted(store: Store, clock: ManualClock) -> None:
    """The oldest record is the oldest that is left."""
    topic = store.topic("orders", rules=USUAL)
    fill_segments(topic, 3)
    clock.advance(seconds=5)
    fill(topic, 2)
    topic.clean(keep_bytes=0)
    info = topic.info()

    assert first_offsets(topic) == [3]
    assert info.count == 2
    assert info.partitions[0].oldest == EPOCH + timedelta(microseconds=clock())


# What is refused ---------------------------------------------------------------------------


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "name of a topic": lambda store, _: store.topic(5),
    "rules": lambda store, _: store.topic("new", rules={"a": 1}),
    "configure": lambda _, topic: topic.configure({"keep_bytes": 1}),
    "configure with nothing": lambda _, topic: topic.configure(None),
    "grow": lambda _, topic: topic.grow("3"),
    "grow to nothing": lambda _, topic: topic.grow(None),
    "append_many of one": lambda _, topic: topic.append_many(b"abc"),
    "append_many of a text": lambda _, topic: topic.append_many("abc"),
    "partitions": lambda _, topic: topic.records(partitions=1),
    "partitions as text": lambda _, topic: topic.records(partitions="0"),
    "a limit": lambda _, topic: topic.clean(keep_bytes="x"),
    "name of a reader": lambda _, topic: topic.reader(5),
    "poll": lambda _, topic: topic.reader("r").poll(None),
    "commit": lambda _, topic: topic.reader("r").commit({0: 1.0}),
    "commit elsewhere": lambda _, topic: topic.reader("r").commit({9: 0}),
    "name of a group": lambda _, topic: topic.group(5),
    "ttl": lambda _, topic: topic.group("g").join(ttl=None),
    "owner": lambda _, topic: topic.group("g").join(owner=5),
    "seek": lambda _, topic: topic.group("g").join().seek({0: "x"}),
    "name of a producer": lambda _, topic: topic.producer(5),
    "last_sequence": lambda _, topic: topic.producer("p").last_sequence(9),
    "send from": lambda _, topic: topic.send_segment("0", 0, io.BytesIO()),
    "send": lambda _, topic: topic.send_segment(0, "0", io.BytesIO()),
}


def test_what_is_of_the_wrong_kind_is_refused(store: Store) -> None:
    """By InvalidArgument, before anything is written."""
    topic = store.topic("orders", partitions=2, rules=replace(USUAL, keep_bytes=1 << 30))

    def check(call: Callable[[Store, Topic], object]) -> None:
        with pytest.raises(InvalidArgument):
            call(store, topic)
        assert store.topics() == ["orders"]
        assert (topic.partitions, topic.info().version, topic.info().count) == (2, 1, 0)

    assert failing_cases(check, WRONG) == []


# Closing -----------------------------------------------------------------------------------


def test_a_closed_store_has_no_topics(store: Store, tmp_path: Path) -> None:
    """Everything that was opened from it says so."""
    topic = store.topic("orders", partitions=2, rules=USUAL)
    fill(topic, 3)
    group = topic.group("workers")
    reader, member, producer = topic.reader("audit"), group.join(), topic.producer("importer")
    store.close()
    calls: list[Callable[[], object]] = [
        store.topics,
        lambda: store.topic("orders"),
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", partition=0),
        lambda: topic.append_many([b"x"]),
        lambda: list(topic.records()),
        lambda: list(topic.tables()),
        lambda: list(topic.follow(timeout=0)),
        lambda: topic.partitions,
        lambda: topic.rules,
        lambda: topic.grow(3),
        lambda: topic.configure(SMALL),
        lambda: topic.send_segment(0, 0, io.BytesIO()),
        lambda: topic.adopt(tmp_path / "x.q", partition=0, key="k"),
        lambda: topic.producer("other"),
        lambda: topic.reader("other"),
        lambda: topic.remove_reader("audit"),
        lambda: topic.remove_group("workers"),
        topic.offsets,
        topic.readers,
        topic.groups,
        topic.clean,
        topic.compact,
        topic.roll,
        topic.info,
        group.join,
        group.info,
        group.lag,
        lambda: group.reset("latest"),
        reader.poll,
        reader.poll_table,
        reader.commit,
        reader.lag,
        lambda: list(reader),
        lambda: reader.seek("earliest"),
        member.poll,
        member.poll_table,
        member.commit,
        member.show_up,
        lambda: member.seek({0: 0}),
        lambda: producer.append(b"x"),
        producer.last_sequence,
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_what_was_open_says_that_the_store_is_closed(store: Store) -> None:
    """By StoreClosed, as everything else does."""
    topic = store.topic("orders", rules=USUAL)
    fill(topic, 3)
    records = topic.records()
    store.close()
    with pytest.raises(StoreClosed):
        list(records)
    with pytest.raises(StoreClosed):
        topic.flush()


def test_what_was_opened_can_be_closed_after_the_store(store: Store) -> None:
    """As `with` statements of several objects do, in whatever order."""
    topic = store.topic("orders", rules=USUAL)
    closes = [
        topic.reader("audit").close,
        topic.producer("importer").close,
        topic.group("workers").join().close,
    ]
    store.close()
    for close in closes:
        close()
        close()


def test_closing_twice_is_allowed(store: Store) -> None:
    """For everything that can be closed; and each knows its block."""
    topic = store.topic("orders", rules=USUAL)
    with (
        topic.reader("audit") as reader,
        topic.group("workers").join() as member,
        topic.producer("importer") as producer,
    ):
        pass
    for close, use in (
        (reader.close, reader.poll),
        (member.close, member.poll),
        (producer.close, producer.last_sequence),
    ):
        close()
        with pytest.raises(StoreClosed):
            use()
