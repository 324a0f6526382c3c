"""Compaction: the newest record of each key stays, with the offset it always had."""

import io
from pathlib import Path

import pytest

from segue import Event, Store, Topic, TopicRules
from segue.errors import InvalidArgument
from segue.testing import ManualClock
from tests.contract.topic_support import (
    USUAL,
    next_offsets,
    places,
    rows,
    segments_of,
    values,
)
from tests.contract.worlds import World

TOMBSTONE_SECONDS = 100
RULES = TopicRules(segment_bytes=1 << 18, tombstone_seconds=TOMBSTONE_SECONDS)


@pytest.fixture
def topic(store: Store) -> Topic:
    """A topic with one partition that forgets tombstones after a while."""
    return store.topic("state", rules=RULES)


@pytest.fixture
def there(topic: Topic, other: Store) -> Topic:
    """The same topic in another process."""
    return other.topic("state")


def put(topic: Topic, *pairs: str) -> None:
    """Append `key=value` pairs; without `=` it is a tombstone, with `=` alone it has no key."""
    for pair in pairs:
        key, _, value = pair.partition("=")
        topic.append(value if "=" in pair else None, key=key or None)


def found_in(topic: Topic) -> list[tuple[int, str | None, str | None]]:
    return [
        (
            each.offset,
            None if each.key is None else each.key.decode(),
            None if each.value is None else each.value.decode(),
        )
        for each in topic.records()
    ]


def test_the_newest_record_of_each_key_stays(topic: Topic, there: Topic) -> None:
    """With its offset; what came before it under the key is gone, for everybody."""
    put(topic, "a=1", "b=1", "a=2", "c=1", "b=2", "a=3")
    topic.roll()
    report = there.compact()

    expected = [(3, "c", "1"), (4, "b", "2"), (5, "a", "3")]
    assert found_in(topic) == found_in(there) == expected
    assert report.removed_records == 3
    assert report.segments == {0: [0]}
    assert report.freed_bytes >= 0
    assert next_offsets(topic) == [6]


def test_offsets_stay_what_they_were(topic: Topic, world: World) -> None:
    """Nothing is numbered anew: places that were committed are still right."""
    put(topic, *[f"{number % 3}={number}" for number in range(12)])
    topic.roll()
    topic.reader("audit", {0: 7}).close()
    topic.compact()
    world.restart()
    topic = world.open().topic("state")

    assert places(topic.records()) == [(0, 9), (0, 10), (0, 11)]
    assert places(topic.records(10)) == [(0, 10), (0, 11)]
    assert places(topic.records(2)) == [(0, 9), (0, 10), (0, 11)]
    assert topic.readers()["audit"][0].committed == 7
    assert places(topic.reader("audit").poll()) == [(0, 9), (0, 10), (0, 11)]
    assert topic.append(b"x").offset == 12


def test_what_takes_records_is_not_touched(topic: Topic) -> None:
    """But what is there counts: it has replaced what lies in sealed segments."""
    put(topic, "a=1", "b=1")
    topic.roll()
    put(topic, "a=2", "a=3")
    report = topic.compact()

    assert found_in(topic) == [(1, "b", "1"), (2, "a", "2"), (3, "a", "3")]
    assert report.removed_records == 1
    topic.roll()
    assert topic.compact().removed_records == 1
    assert found_in(topic) == [(1, "b", "1"), (3, "a", "3")]


def test_it_works_over_all_segments(topic: Topic) -> None:
    """A key's last record may lie many segments after its first."""
    for number in range(6):
        put(topic, f"{number}=x", f"same={number}")
        topic.roll()
    report = topic.compact()

    assert [row for row in found_in(topic) if row[1] == "same"] == [(11, "same", "5")]
    assert len(found_in(topic)) == 7
    assert report.segments == {0: [0, 1, 2, 3, 4]}


def test_records_without_a_key_stay(topic: Topic) -> None:
    """Nothing replaces them, tombstones among them; an empty key is a key."""
    put(topic, "=1", "=1", "a=1", "=2", "a=2")
    topic.append(None)
    topic.append(b"1", key="")
    topic.append(b"2", key="")
    topic.roll()
    topic.compact()

    assert found_in(topic) == [
        (0, None, "1"),
        (1, None, "1"),
        (3, None, "2"),
        (4, "a", "2"),
        (5, None, None),
        (7, "", "2"),
    ]


def test_what_is_left_is_what_it_was(store: Store) -> None:
    """Headers, times and all."""
    topic = store.topic("full", partitions=2, rules=USUAL)
    for number in range(20):
        topic.append(
            b"v" * number,
            key=b"%d" % (number % 6),
            headers={"n": str(number)},
            timestamp=number * 1000 - 7,
        )
    newest = {record.key: row for record in topic.records() for row in rows([record])}
    topic.roll()
    topic.compact()

    assert sorted(rows(topic.records())) == sorted(newest.values())


def test_a_tombstone_stays_for_a_while(topic: Topic, clock: ManualClock) -> None:
    """So that who is slow learns of it; then it goes, too."""
    put(topic, "a=1", "b=1", "a")
    topic.roll()
    topic.compact()
    first = found_in(topic)
    clock.advance(seconds=TOMBSTONE_SECONDS - 1)
    topic.compact()
    second = found_in(topic)
    clock.advance(seconds=2)
    report = topic.compact()

    assert first == second == [(1, "b", "1"), (2, "a", None)]
    assert found_in(topic) == [(1, "b", "1")]
    assert report.removed_records == 1


def test_a_tombstone_counts_from_when_it_was_appended(topic: Topic, clock: ManualClock) -> None:
    """Whatever time its producer gave it."""
    topic.append(b"1", key="a")
    topic.append(None, key="a", timestamp=0)
    topic.append(None, key="b", timestamp=clock() + 10**15)
    topic.roll()
    topic.compact()
    before = found_in(topic)
    clock.advance(seconds=TOMBSTONE_SECONDS + 1)
    topic.compact()

    assert before == [(1, "a", None), (2, "b", None)]
    assert found_in(topic) == []


def test_a_tombstone_of_long_ago_goes_with_what_it_hides(topic: Topic, clock: ManualClock) -> None:
    """At once, if it is old enough when compaction first comes by; never before it."""
    put(topic, "a=1", "a=2")
    topic.roll()
    put(topic, "a")
    topic.roll()
    clock.advance(seconds=TOMBSTONE_SECONDS + 1)
    topic.compact()
    topic.compact()

    assert found_in(topic) == []
    assert next_offsets(topic) == [3]


def test_a_key_may_come_back(topic: Topic, clock: ManualClock) -> None:
    """A tombstone that was followed by a value hides nothing."""
    put(topic, "a=1", "a", "a=2")
    topic.roll()
    clock.advance(seconds=TOMBSTONE_SECONDS + 1)
    topic.compact()

    assert found_in(topic) == [(2, "a", "2")]


def test_a_tombstone_is_not_removed_while_it_takes_records(
    topic: Topic, clock: ManualClock
) -> None:
    """It lies in the segment that is not touched."""
    put(topic, "a=1")
    topic.roll()
    put(topic, "a")
    clock.advance(seconds=TOMBSTONE_SECONDS + 1)
    topic.compact()

    assert found_in(topic) == [(1, "a", None)]


def test_compacting_again_changes_nothing(topic: Topic) -> None:
    """Until there is something to do."""
    put(topic, "a=1", "b=1", "a=2")
    topic.roll()
    topic.compact()
    before = (found_in(topic), topic.info())
    report = topic.compact()

    assert (report.removed_records, report.freed_bytes, report.segments) == (0, 0, {})
    assert (found_in(topic), topic.info()) == before


def test_space_is_given_back(store: Store) -> None:
    """That of the records that are gone."""
    topic = store.topic("large", rules=USUAL)
    for number in range(20):
        topic.append(b"x" * 8_000, key=b"%d" % (number % 2))
    topic.roll()
    before = topic.info().size_bytes
    report = topic.compact()

    assert report.removed_records == 18
    assert before - topic.info().size_bytes == report.freed_bytes > 100_000


def test_who_is_reading_reads_on(topic: Topic, there: Topic) -> None:
    """A compaction changes nothing for somebody who has begun, and nobody sees a mix."""
    put(topic, *[f"{number % 2}={number}" for number in range(6)])
    topic.roll()
    put(topic, "0=6")
    reader, records = topic.reader("audit"), topic.records()
    first = [next(records), *reader.poll(1)]
    there.compact()
    rest, polled = list(records), reader.poll()

    assert places(first) == [(0, 0), (0, 0)]
    assert values(rest)[-1] == values(polled)[-1] == b"6"
    for found in (places(rest), places(polled)):
        assert found == sorted(set(found))
        assert {(0, 5), (0, 6)} <= set(found)
    assert found_in(there) == [(5, "1", "5"), (6, "0", "6")]


def test_a_reader_passes_over_what_is_gone(topic: Topic) -> None:
    """As many records come as were asked for, and the place is after them."""
    put(topic, *[f"{number if number % 3 else 'same'}={number}" for number in range(9)])
    topic.roll()
    topic.compact()
    reader = topic.reader("audit")
    polled = [places(reader.poll(3)), places(reader.poll(3)), places(reader.poll(3))]

    assert polled == [[(0, 1), (0, 2), (0, 4)], [(0, 5), (0, 6), (0, 7)], [(0, 8)]]
    assert reader.position == {0: 9}
    reader.commit()
    assert reader.lag()[0].records == 0


def test_a_segment_may_be_left_without_a_record(topic: Topic) -> None:
    """It is passed over, and takes up next to nothing."""
    put(topic, "a=1")
    topic.roll()
    put(topic, "a=2")
    topic.roll()
    put(topic, "a=3")
    topic.compact()

    assert found_in(topic) == [(2, "a", "3")]
    assert values(topic.reader("audit").poll()) == [b"3"]
    assert topic.offsets("earliest")[0] <= 2
    assert segments_of(topic)[0] <= 3


def test_each_partition_is_compacted_on_its_own(store: Store) -> None:
    """A key in two partitions is two keys; some may be compacted alone."""
    topic = store.topic("wide", partitions=3, rules=USUAL)
    for partition in (0, 1, 2):
        topic.append_many(
            [Event(value=b"%d" % number, key="same", partition=partition) for number in range(3)]
        )
    topic.roll()
    first = topic.compact(partitions=[1])
    second = topic.compact()

    assert (first.removed_records, list(first.segments)) == (2, [1])
    assert (second.removed_records, list(second.segments)) == (4, [0, 2])
    assert sorted(places(topic.records())) == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(InvalidArgument):
        topic.compact(partitions=[3])


def test_what_was_compacted_can_be_sent_and_adopted(topic: Topic, tmp_path: Path) -> None:
    """Without what is gone."""
    put(topic, "a=1", "b=1", "a=2")
    topic.roll()
    topic.compact()
    sent = io.BytesIO()
    topic.send_segment(0, 0, sent)
    path = tmp_path / "sent.q"
    path.write_bytes(sent.getvalue())
    adoption = topic.adopt(path, partition=0, key="once")

    assert (adoption.first_offset, adoption.count) == (3, 2)
    assert found_in(topic) == [(1, "b", "1"), (2, "a", "2"), (3, "b", "1"), (4, "a", "2")]


def test_readers_hold_nothing_against_compaction(topic: Topic) -> None:
    """Only deleting waits for them: a key's newest record is always there to be read."""
    topic.reader("audit").close()
    put(topic, "a=1", "a=2")
    topic.roll()

    assert topic.compact().removed_records == 1
    assert values(topic.reader("audit").poll()) == [b"2"]
