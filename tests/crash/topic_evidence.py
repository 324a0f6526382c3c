"""What may be found of a topic whose life was cut short, and that everybody can go on with it.

The story of `topic_story.py` is told once without any trouble, with a snapshot after each step.
Whatever then happens in a step, what is found must lie between the snapshots before and after it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from segue import Log, Store, Topic
from segue.log.options import SyncName
from tests.crash.topic_story import (
    ADOPTION,
    ALL_RECORDS,
    BATCH,
    GROUP,
    GROWN,
    PARTITIONS,
    PRODUCER,
    READER,
    TOPIC,
    TTL,
    Life,
    make_foreign,
    open_store,
    play,
    produced,
)

_FAR: Final = 1 << 60
"""Beyond any offset."""


class Content(NamedTuple):
    """What a record says."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a topic says of itself."""

    partitions: int = 0
    records: Mapping[int, Mapping[int, Content]] = field(default_factory=dict)
    first: Mapping[int, int] = field(default_factory=dict)
    next: Mapping[int, int] = field(default_factory=dict)
    segments: Mapping[int, list[int]] = field(default_factory=dict)
    """Where each begins, by partition."""
    places: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """What was committed, by reader or group and partition."""


def snapshot_of(store: Store, root: Path) -> Snapshot:
    """Return what the topic of the story says of itself."""
    if TOPIC not in store.topics():
        return Snapshot()
    topic = store.topic(TOPIC)
    info = topic.info()
    lags = {**topic.readers(), **{name: topic.group(name).lag() for name in topic.groups()}}
    return Snapshot(
        partitions=topic.partitions,
        records={
            partition: {
                record.offset: Content(record.key, record.value)
                for record in topic.records(partitions=[partition])
            }
            for partition in range(topic.partitions)
        },
        first={each.partition: each.first_offset for each in info.partitions},
        next={each.partition: each.next_offset for each in info.partitions},
        segments={partition: _begins(root, partition) for partition in range(topic.partitions)},
        places={(name, lag.partition): lag.committed for name in lags for lag in lags[name]},
    )


def _begins(root: Path, partition: int) -> list[int]:
    with Log(root / "topics" / TOPIC / f"partition_{partition}", read_only=True) as log:
        return [segment.first_offset or 0 for segment in log.segments()]


class Told:
    """The story, told once without trouble."""

    def __init__(self, scratch: Path, sync: SyncName) -> None:
        root = scratch / "told"
        self.foreign = make_foreign(scratch)
        self.snapshots: list[Snapshot] = []
        with open_store(root, sync) as store:
            life = Life(store, self.foreign)
            play(life, lambda _: self.snapshots.append(snapshot_of(store, root)))
            life.close()

    def everything(self) -> dict[int, dict[int, Content]]:
        """Return every record there ever was."""
        found: dict[int, dict[int, Content]] = {}
        for snapshot in self.snapshots:
            for partition, records in snapshot.records.items():
                found.setdefault(partition, {}).update(records)
        return found

    def check(
        self, found: Snapshot, done: int, *, under_way: bool, forgetful: bool = False
    ) -> None:
        """Assert that `found` lies between what was there after `done` steps and the next one.

        `forgetful`: what was committed may be what was committed some time before.
        """
        before = self.snapshots[done]
        after = self.snapshots[min(done + under_way, len(self.snapshots) - 1)]
        assert found.partitions in {before.partitions, after.partitions}
        for partition in range(found.partitions):
            check_partition(partition, found, before, after)
        known = self.snapshots[: done + 1] if forgetful else [before]
        for name, place in found.places.items():
            allowed = {each.places.get(name) for each in (*known, after)}
            assert place in allowed, f"{name} stands at {place}, not in {allowed}"
            assert place >= found.first[name[1]], f"{name} stands at what is gone"
        lost = {name for name in before.places if name in after.places} - found.places.keys()
        assert not lost, f"forgotten: {lost}"


def check_partition(partition: int, found: Snapshot, before: Snapshot, after: Snapshot) -> None:
    """Assert that a partition is as before or after, each batch and each segment as a whole."""
    records = found.records[partition]
    old, new = before.records.get(partition, {}), after.records.get(partition, {})
    for offset, content in records.items():
        assert content in (old.get(offset), new.get(offset)), f"{partition}: phantom at {offset}"
    lost = [offset for offset in old.keys() & new.keys() if offset not in records]
    assert not lost, f"partition {partition} lost {lost}"
    end_before, end_after = before.next.get(partition, 0), after.next.get(partition, 0)
    end = found.next[partition]
    assert end in {end_before, end_after}, f"{partition} ends at {end}"
    if end == end_after:
        assert new.keys() - old.keys() <= records.keys(), f"half a batch in {partition}"
    first = found.first[partition]
    assert before.first.get(partition, 0) <= first <= after.first.get(partition, 0)
    begins = [*before.segments.get(partition, [0]), _FAR]
    for start, stop in pairwise(begins):
        going = {offset for offset in old.keys() - new.keys() if start <= offset < stop}
        _check_old_or_new(partition, going, old, records)


def _check_old_or_new(
    partition: int,
    going: set[int],
    old: Mapping[int, Content],
    records: Mapping[int, Content],
) -> None:
    """Assert that of what goes from a segment all is left or nothing; tombstones go last."""
    tombstones = {offset for offset in going if old[offset].value is None}
    for kind in (tombstones, going - tombstones):
        left = kind & records.keys()
        assert left in (set(), kind), f"partition {partition}: a mix of old and new, {left} is left"


def check_successors(found: Snapshot, everything: Mapping[int, Mapping[int, Content]]) -> None:
    """Assert that what is missing was replaced by something that is there, or is no more."""
    for partition, records in found.records.items():
        newest = {content.key: offset for offset, content in sorted(records.items())}
        for offset in range(found.first[partition], found.next[partition]):
            content = everything[partition][offset]
            if offset in records:
                assert records[offset] == content, f"{partition}: another record at {offset}"
            elif content.value is not None:
                assert content.key is not None, f"{partition}: {offset} has no key and is gone"
                is_buried = any(
                    each == Content(content.key, None) and later > offset
                    for later, each in everything[partition].items()
                )
                assert newest.get(content.key, -1) > offset or is_buried, (
                    f"{partition}: nothing came after {offset}"
                )


# Going on ----------------------------------------------------------------------------------------


def check_goes_on(store: Store, foreign: Path, found: Snapshot, tokens: Iterable[int]) -> None:
    """Assert that everybody who comes now can go on, and that nothing is there twice."""
    topic = store.topic(TOPIC, partitions=found.partitions or PARTITIONS)
    _check_producer(topic)
    _check_adoption(topic, foreign)
    topic.grow(GROWN)
    with topic.group(GROUP).join(ttl=TTL) as member, topic.reader(READER) as reader:
        assert member.assignment.keys() == set(range(GROWN))
        given = set(member.assignment.values())
        assert min(given) > max(tokens, default=-1), f"a token came again: {given}, {tokens}"
        for partition in range(GROWN):
            topic.append(f"new {partition}", key="new", partition=partition)
        expected = _left_to_read(topic, GROUP), _left_to_read(topic, READER)
        polled = [(record.partition, record.offset) for record in member.poll(ALL_RECORDS)]
        assert (
            sorted(polled),
            sorted((each.partition, each.offset) for each in reader),
        ) == expected
        member.commit()
        reader.commit()
        assert {lag.records for lag in (*topic.group(GROUP).lag(), *reader.lag())} == {0}
    before = _values(topic)
    topic.roll()
    topic.compact()
    topic.clean()
    assert len(before) == len(set(before)), f"twice: {sorted(before)}"
    assert {lag.records for lag in topic.group(GROUP).lag()} == {0}
    assert topic.group(GROUP).info().members == []


def _values(topic: Topic) -> list[bytes]:
    return [record.value for record in topic.records() if record.value is not None]


def _left_to_read(topic: Topic, name: str) -> list[tuple[int, int]]:
    lags = topic.group(GROUP).lag() if name == GROUP else topic.readers()[READER]
    places = {lag.partition: lag.committed for lag in lags}
    return [
        (partition, record.offset)
        for partition in range(topic.partitions)
        for record in topic.records(places, partitions=[partition])
    ]


def _check_producer(topic: Topic) -> None:
    """Append again all that a producer may have appended: what is there is not there twice."""
    with topic.producer(PRODUCER) as producer:
        last = producer.last_sequence()
        seen = [int(value[1:]) for value in _values(topic) if value.startswith(b"p")]
        assert max(seen, default=-1) <= last
        for first in range(0, last + 1, BATCH):
            was_there = [
                sequence <= producer.last_sequence(sequence % PARTITIONS)
                for sequence in range(first, first + BATCH)
            ]
            results = producer.append_many(produced(first), first_sequence=first)
            assert [result is None for result in results] == was_there
        assert (producer.last_sequence() + 1) % BATCH == 0


def _check_adoption(topic: Topic, foreign: Path) -> None:
    """Adopt again what may have been adopted: once is enough."""
    is_there = any(value.startswith(b"f") for value in _values(topic))
    first = topic.adopt(foreign, partition=1, key=ADOPTION)
    again = topic.adopt(foreign, partition=1, key=ADOPTION)
    assert (first.is_new, again.is_new) == (not is_there, False)
    assert again.first_offset == first.first_offset
