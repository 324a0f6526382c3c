"""A topic does what plain lists would, whoever does what to it in whatever order."""

import shutil
import tempfile
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from segue import Appended, Event, Producer, Store, Topic, TopicReader, TopicRecord, TopicRules
from segue.errors import OffsetTrimmed
from segue.stores.file.topics import keeping
from tests.contract.topic_support import kill, table_rows
from tests.contract.worlds import FileWorld
from tests.property.topic_model import Row, TopicModel

HANDLES = st.integers(min_value=0, max_value=1)
NUMBERS = st.integers(min_value=0, max_value=255)
PARTITIONS_MAX = 4
READERS = st.sampled_from(["audit", "slow"])
PRODUCERS = st.sampled_from(["importer", "mirror"])
TOMBSTONE_SECONDS = 20
KEEP_SECONDS = 15
LAG_MAX = 3
RULES = TopicRules(segment_bytes=1 << 16, tombstone_seconds=TOMBSTONE_SECONDS)
DRAFTS = st.tuples(
    st.none() | st.sampled_from([b"", b"a", b"b", b"c"]),
    st.none() | st.binary(max_size=6),
    st.sampled_from([{}, {}, {"h": "v"}, {"naïve": "☃", "": ""}]),
    st.none() | st.integers(min_value=-5, max_value=5),
    st.none() | st.integers(min_value=0, max_value=PARTITIONS_MAX - 1),
)
POLLS = st.tuples(
    st.integers(min_value=1, max_value=9),
    st.none() | st.integers(min_value=1, max_value=40),
    st.sampled_from(["records", "records", "table", "iterate"]),
    st.booleans(),
)
READING = st.tuples(READERS, HANDLES, st.lists(POLLS, max_size=4))
Reading = tuple[str, int, list[tuple[int, int | None, str, bool]]]
Draft = tuple[bytes | None, bytes | None, dict[str, str], int | None, int | None]


class TopicMachine(RuleBasedStateMachine):
    """One topic through two handles, each as another process would have it, against lists."""

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")
        base = shared_memory if shared_memory.is_dir() else None
        self.scratch = Path(tempfile.mkdtemp(prefix="segue-topic-", dir=base))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(keeping, "KEYS_MAX", 2)
        self.world = FileWorld(self.scratch / "data", sync="os")
        self.clock = self.world.clock
        self.stores: list[Store] = [self.world.open() for _ in range(2)]
        self.handles: list[Topic] = [
            store.topic("orders", partitions=2, rules=RULES) for store in self.stores
        ]
        self.model = TopicModel(2)
        self.readers: dict[str, tuple[int, TopicReader, dict[int, int]]] = {}
        """By name: the handle, the reader and where it should be."""
        self.producers: dict[str, tuple[int, Producer]] = {}
        self.appended = 0
        self.steps = 0
        self.donation = self.make_donation()
        self.adopted: dict[tuple[int, str], int] = {}

    def make_donation(self) -> Path:
        """Write a segment elsewhere, to be adopted."""
        source = self.stores[0].topic("source", rules=RULES)
        source.append(b"plain", timestamp=3)
        source.append(b"keyed", key=b"a", headers={"from": "afar"})
        source.append(None, key=b"b", timestamp=4)
        source.roll()
        path = self.scratch / "donation.q"
        with path.open("wb") as file:
            source.send_segment(0, 0, file)
        return path

    @initialize(drafts=st.lists(DRAFTS, max_size=16), name=READERS)
    def begin(self, drafts: list[Draft], name: str) -> None:
        """Have something to read, and somebody who does."""
        self.append(0, drafts, at_once=True, then=(name, 1, []))
        self.open_reader(name, 1, "earliest")

    # Appending -----------------------------------------------------------------------------

    def event(self, draft: Draft) -> Event:
        """Return a draft as an event that differs from all others."""
        key, value, headers, timestamp, partition = draft
        self.appended += 1
        return Event(
            value=None if value is None else value + b"#%d" % self.appended,
            key=key,
            headers=headers,
            timestamp=timestamp,
            partition=None if partition is None else partition % len(self.model.partitions),
        )

    def row(self, event: Event) -> Row:
        assert event.timestamp is None or isinstance(event.timestamp, int)
        assert not isinstance(event.key, str)
        assert event.value is None or isinstance(event.value, bytes)
        now_us = self.clock()
        return Row(
            key=event.key,
            value=event.value,
            headers=dict(event.headers or {}),
            timestamp_us=now_us if event.timestamp is None else event.timestamp,
            appended_us=now_us,
        )

    def expect(self, event: Event, place: Appended) -> None:
        """Check where an event went, and take it in."""
        if event.partition is not None:
            assert place.partition == event.partition
        elif event.key is not None:
            assert not isinstance(event.key, str)
            assert place.partition == self.model.partition_of(event.key)
        self.take_in(event, place)

    def take_in(self, event: Event, place: Appended) -> None:
        assert place.offset == self.model.partitions[place.partition].append(self.row(event))

    @rule(handle=HANDLES, drafts=st.lists(DRAFTS, max_size=8), at_once=st.booleans(), then=READING)
    def append(self, handle: int, drafts: list[Draft], at_once: bool, then: Reading) -> None:
        topic = self.handles[handle]
        events = [self.event(draft) for draft in drafts]
        if at_once:
            found = topic.append_many(events)
        else:
            found = [
                topic.append(
                    event.value,
                    key=event.key,
                    headers=event.headers,
                    timestamp=event.timestamp,
                    partition=event.partition,
                )
                for event in events
            ]
        for event, place in zip(events, found, strict=True):
            self.expect(event, place)
        self.read(then)

    def producer(self, name: str, handle: int) -> Producer:
        if name not in self.producers:
            self.producers[name] = (handle, self.handles[handle].producer(name))
        return self.producers[name][1]

    @rule(
        name=PRODUCERS,
        handle=HANDLES,
        drafts=st.lists(DRAFTS, min_size=1, max_size=4),
        back=st.integers(min_value=-2, max_value=4),
        close=st.booleans(),
        then=READING,
    )
    def produce(
        self, name: str, handle: int, drafts: list[Draft], back: int, close: bool, then: Reading
    ) -> None:
        """Append what is new, and perhaps some of what was there before."""
        producer = self.producer(name, handle)
        count = len(self.model.partitions)
        last = max([self.model.sequences.get((name, each), -1) for each in range(count)])
        assert producer.last_sequence() == last
        first = max(0, last + 1 - back)
        self.model.note_route(name, last + 1)
        events = [self.event(draft) for draft in drafts]
        found = producer.append_many(events, first_sequence=None if back == 0 else first)
        for sequence, (event, place) in enumerate(zip(events, found, strict=True), start=first):
            where = self.route(name, event, sequence)
            if sequence <= self.model.sequences.get((name, where), -1):
                assert place is None
            else:
                assert place is not None
                assert place.partition == where
                self.take_in(event, place)
                self.model.sequences[name, where] = sequence
        if close:
            self.producers.pop(name)[1].close()
        self.read(then)

    def route(self, name: str, event: Event, sequence: int) -> int:
        """Return where an event went the first time, or goes if this is the first time."""
        if event.partition is not None:
            return event.partition
        assert not isinstance(event.key, str)
        count = self.model.partitions_at(name, sequence)
        return sequence % count if event.key is None else crc32(event.key) % count

    @rule(handle=HANDLES, key=st.sampled_from(["one", "two"]), number=NUMBERS)
    def adopt(self, handle: int, key: str, number: int) -> None:
        partition = number % len(self.model.partitions)
        known = {place: at for place, at in self.adopted.items() if place[1] == key}
        if known:
            partition = next(iter(known))[0]
        report = self.handles[handle].adopt(self.donation, partition=partition, key=key)
        assert (report.partition, report.count) == (partition, 3)
        assert report.is_new == (not known)
        if known:
            assert report.first_offset == known[partition, key]
            return
        self.adopted[partition, key] = report.first_offset
        now_us = self.clock()
        model = self.model.partitions[partition]
        assert report.first_offset == model.end
        for row_key, value, headers, time_us in (
            (None, b"plain", {}, 3),
            (b"a", b"keyed", {"from": "afar"}, now_us),
            (b"b", None, {}, 4),
        ):
            model.append(
                Row(
                    key=row_key,
                    value=value,
                    headers=headers,
                    timestamp_us=time_us,
                    appended_us=now_us,
                )
            )

    # Readers -------------------------------------------------------------------------------

    @rule(name=READERS, handle=HANDLES, start=st.sampled_from(["resume", "earliest", "latest"]))
    def open_reader(self, name: str, handle: int, start: str) -> None:
        self.close_reader(name)
        model = self.model
        if start == "resume" and name in model.committed:
            places = dict(model.committed[name])
        else:
            places = {
                number: each.end if start == "latest" else each.first
                for number, each in enumerate(model.partitions)
            }
        reader = self.handles[handle].reader(name, start)  # type: ignore[arg-type]
        assert reader.position == places
        model.committed[name] = dict(places)
        self.readers[name] = (handle, reader, places)

    def close_reader(self, name: str) -> None:
        if name in self.readers:
            self.readers.pop(name)[1].close()

    @rule(name=READERS, handle=HANDLES, remove=st.booleans())
    def end_reader(self, name: str, handle: int, remove: bool) -> None:
        self.close_reader(name)
        if remove:
            was_there = self.model.committed.pop(name, None) is not None
            assert self.handles[handle].remove_reader(name) == was_there

    def pick(self, name: str, handle: int) -> tuple[TopicReader, dict[int, int]]:
        if name not in self.readers:
            self.open_reader(name, handle, "resume")
        _, reader, places = self.readers[name]
        for number in range(len(places), len(self.model.partitions)):
            places[number] = 0  # It was added since.
        return reader, places

    @rule(reading=READING)
    def read(self, reading: Reading) -> None:
        """Read on in various ways, and commit now and then."""
        name, handle, polls = reading
        for count, max_bytes, way, commit in polls:
            reader, places = self.pick(name, handle)
            self.poll(reader, places, count, max_bytes if way == "records" else None, way)
            if commit:
                self.commit(name, handle)

    def poll(
        self,
        reader: TopicReader,
        places: dict[int, int],
        count: int,
        max_bytes: int | None,
        way: str,
    ) -> None:
        try:
            if way == "table":
                found = [TopicRecord(*row) for row in table_rows([reader.poll_table(count)])]
            elif way == "iterate":
                found = self.some_of(reader, count)
            else:
                found = reader.poll(count, max_bytes=max_bytes)
        except OffsetTrimmed as gap:
            self.expect_gap(reader, places, gap)
        else:
            self.expect_polled(reader, places, found, count, bounded=max_bytes is not None)

    def expect_gap(self, reader: TopicReader, places: dict[int, int], gap: OffsetTrimmed) -> None:
        """Check that there is one, and go past it and all others."""
        assert gap.partition is not None
        partition = self.model.partitions[gap.partition]
        assert gap.offset == places[gap.partition] < partition.first
        assert (gap.earliest, gap.latest) == (partition.first, partition.end)
        for number, place in reader.position.items():
            places[number] = max(place, self.model.partitions[number].first)
        reader.seek({number: places[number] for number in reader.position})

    def some_of(self, reader: TopicReader, count: int) -> list[TopicRecord]:
        found = []
        for record in reader:
            found.append(record)
            assert reader.position[record.partition] == record.offset + 1
            if len(found) == count:
                break
        return found

    def expect_polled(
        self,
        reader: TopicReader,
        places: dict[int, int],
        found: list[TopicRecord],
        count: int,
        *,
        bounded: bool,
    ) -> None:
        """Check that these come next, and that nothing was passed over."""
        assert len(found) <= count
        for record in found:
            self.model.check(record)
            model = self.model.partitions[record.partition]
            passed = set(range(places[record.partition], record.offset))
            assert passed <= model.removed
            places[record.partition] = record.offset + 1
        for number, place in reader.position.items():
            model = self.model.partitions[number]
            assert set(range(places[number], place)) <= model.removed
            places[number] = place
        waiting = [
            number
            for number, place in places.items()
            if any(True for _ in self.model.partitions[number].left(place))
        ]
        if not found:
            assert waiting == []
        elif waiting and len(found) < count and not bounded:
            # It stopped before a gap, which is told the next time.
            assert any(places[each] < self.model.partitions[each].first for each in waiting)

    def commit(self, name: str, handle: int) -> None:
        reader = self.readers[name][1]
        position = dict(reader.position)
        if any(place < self.model.partitions[each].first for each, place in position.items()):
            return  # It has not been told of its gap yet.
        reader.commit()
        self.model.committed[name].update(position)
        lags = self.handles[handle].readers()[name]
        assert {lag.partition: lag.committed for lag in lags} == self.model.committed[name]

    @rule(name=READERS, handle=HANDLES, numbers=st.tuples(*[NUMBERS] * PARTITIONS_MAX))
    def seek(self, name: str, handle: int, numbers: tuple[int, ...]) -> None:
        reader, places = self.pick(name, handle)
        known = list(reader.position)
        for number in known:
            model = self.model.partitions[number]
            places[number] = model.first + numbers[number] % (model.end - model.first + 1)
        reader.seek({number: places[number] for number in known})
        assert {number: reader.position[number] for number in known} == {
            number: places[number] for number in known
        }

    # Keeping -------------------------------------------------------------------------------

    @rule(handle=HANDLES)
    def roll(self, handle: int) -> None:
        self.handles[handle].roll()
        for model in self.model.partitions:
            model.roll()

    @rule(
        handle=HANDLES,
        limit=st.sampled_from(["none", "none", "bytes", "lag", "age"]),
        dry_run=st.booleans(),
    )
    def clean(self, handle: int, limit: str, dry_run: bool) -> None:
        """Exactly what lies before everybody's place goes, and what is beyond a limit."""
        topic = self.handles[handle]
        if limit == "none":
            report = topic.clean(dry_run=dry_run)
        elif limit == "bytes":
            report = topic.clean(keep_bytes=0, dry_run=dry_run)
        elif limit == "lag":
            report = topic.clean(lag_max=LAG_MAX, dry_run=dry_run)
        else:
            report = topic.clean(keep_seconds=KEEP_SECONDS, dry_run=dry_run)
        expected = {
            number: self.deletable(number, limit) for number in range(len(self.model.partitions))
        }
        assert report.deleted == {number: each for number, each in expected.items() if each}
        if not dry_run:
            for number, segments in report.deleted.items():
                self.model.partitions[number].delete(list(segments))

    def deletable(self, number: int, limit: str) -> list[int]:
        """Return the segments of a partition that may go."""
        model, wanted = self.model.partitions[number], self.model.wanted_from(number)
        if limit == "bytes":
            return model.deletable(model.end)
        if limit == "age":
            old_us = self.clock() - KEEP_SECONDS * 1_000_000
            return [
                segment
                for segment in model.deletable(model.end)
                if model.rows[model.starts[segment + 1] - 1].appended_us < old_us
                or (wanted is not None and model.starts[segment + 1] <= wanted)
            ]
        if wanted is None:
            return []
        return model.deletable(max(wanted, model.end - LAG_MAX) if limit == "lag" else wanted)

    @rule(handle=HANDLES)
    def compact(self, handle: int) -> None:
        removed = 0
        while count := self.handles[handle].compact().removed_records:
            removed += count  # As few keys as it has in memory, it takes several runs.
        before_us = self.clock() - TOMBSTONE_SECONDS * 1_000_000
        assert removed == sum(model.compact(before_us) for model in self.model.partitions)

    @precondition(lambda self: len(self.model.partitions) < PARTITIONS_MAX)
    @rule(handle=HANDLES)
    def grow(self, handle: int) -> None:
        self.handles[handle].grow(len(self.model.partitions) + 1)
        self.model.grow()

    # Time and processes --------------------------------------------------------------------

    @rule(seconds=st.integers(min_value=1, max_value=25))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)

    @rule(handle=HANDLES, how=st.sampled_from(["crash", "close", "restart"]))
    def reopen(self, handle: int, how: str) -> None:
        lost = [handle] if how != "restart" else [0, 1]
        users = [user for at, user in self.producers.values() if at in lost]
        self.producers = {n: each for n, each in self.producers.items() if each[0] not in lost}
        for name in [name for name, each in self.readers.items() if each[0] in lost]:
            self.close_reader(name)  # It commits nothing: a kill would do the same.
        if how == "close":
            for user in users:
                user.close()
            self.stores[handle].close()
        else:
            for number in lost:
                kill(self.world, self.stores[number], *users)
                users = []
            if how == "restart":
                self.world.restart()
        for number in lost:
            self.stores[number] = self.world.open()
            self.handles[number] = self.stores[number].topic("orders")

    # What always holds ---------------------------------------------------------------------

    @invariant()
    def everybody_reads_the_same(self) -> None:
        self.steps += 1
        topic = self.handles[self.steps % 2]
        found: dict[int, list[int]] = {each: [] for each in range(len(self.model.partitions))}
        for record in topic.records():
            self.model.check(record)
            found[record.partition].append(record.offset)
        assert found == {
            number: [offset for offset, _ in self.model.expected(number)]
            for number in range(len(self.model.partitions))
        }

    @invariant()
    def tables_hold_the_same(self) -> None:
        if self.steps % 4 == 0:
            topic = self.handles[self.steps // 4 % 2]
            records = [TopicRecord(*row) for row in table_rows(topic.tables())]
            for record in records:
                self.model.check(record)
            assert [(record.partition, record.offset) for record in records] == [
                (number, offset)
                for number in range(len(self.model.partitions))
                for offset, _ in self.model.expected(number)
            ]

    @invariant()
    def the_extent_is_known(self) -> None:
        info = self.handles[self.steps % 2].info()
        assert [(each.first_offset, each.next_offset) for each in info.partitions] == [
            (model.first, model.end) for model in self.model.partitions
        ]
        assert list(info.readers) == sorted(self.model.committed)

    def teardown(self) -> None:
        try:
            for name in list(self.readers):
                self.close_reader(name)
            for _, producer in self.producers.values():
                producer.close()
            self.world.end()
        finally:
            self.patch.undo()
            shutil.rmtree(self.scratch)


TestTopicMachine = TopicMachine.TestCase
TestTopicMachine.settings = settings(max_examples=max(20, settings().max_examples // 3))
