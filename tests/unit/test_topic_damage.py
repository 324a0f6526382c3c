"""What a topic keeps beside its records, damaged or missing."""

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

import segue
from segue import Store, Topic, TopicRules
from segue.errors import (
    CorruptManifest,
    CorruptPosition,
    CorruptRecord,
    PartitionLost,
    SegueError,
    UnsupportedFormat,
)
from segue.log import segment
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.contract.topic_support import fill, fill_segments, table_rows, values
from tests.unit.support import flip_bit, slot_position

RULES = TopicRules(segment_bytes=1 << 16)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One look at damage, as nobody writes meanwhile, and no warnings."""
    monkeypatch.setattr(segment, "SETTLE_SECONDS", 0)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(scratch: Path, clock: ManualClock) -> Iterator[Store]:
    with open_directory(scratch, sync="os", clock=clock, ticks=clock.ticks) as store:
        yield store


@pytest.fixture
def topic(store: Store) -> Topic:
    return store.topic("orders", partitions=2, rules=RULES)


@pytest.fixture
def path(scratch: Path) -> Path:
    """Where the topic lies."""
    return scratch / "topics" / "orders"


def damages(good: bytes) -> Iterator[bytes]:
    """Yield what rot, a torn write or somebody's editor may make of a file."""
    for position in range(0, len(good), 3):
        for mask in (0x01, 0x20, 0xFF):
            yield good[:position] + bytes([good[position] ^ mask]) + good[position + 1 :]
        yield good[:position]
    yield from (b"", b"{}", b"[]", b"null", b"\x00" * len(good), b'{"format":2}', b"1e999")


# Groups ------------------------------------------------------------------------------------


def test_a_group_whose_state_is_damaged_begins_anew(
    topic: Topic, path: Path, clock: ManualClock
) -> None:
    """With everybody out, with greater tokens than ever, and where it was committed."""
    fill(topic, 4)
    group = topic.group("workers")
    member = group.join()
    member.poll(3)
    member.commit()
    state = path / "groups" / "workers" / "state.json"
    good = state.read_bytes()
    token = max(member.assignment.values())
    for damage in damages(good):
        state.write_bytes(damage)
        clock.advance(ms=1)
        try:
            late = group.join()
        except UnsupportedFormat:
            continue
        if late.assignment:
            assert min(late.assignment.values()) > token
            token = max(late.assignment.values())
            assert late.position == {0: 3, 1: 0}
            with pytest.raises(PartitionLost):
                member.commit()
        else:
            # The damage changed nothing that it says: the other still has everything.
            member.commit()
        late.close()
        state.write_bytes(good)

    assert token > 1_000_000


def test_members_of_a_damaged_group_come_back(topic: Topic, path: Path, clock: ManualClock) -> None:
    """When they next look, which is before they would be taken for dead."""
    fill(topic, 4)
    member = topic.group("workers").join()
    before = dict(member.assignment)
    member.poll(1)
    (path / "groups" / "workers" / "state.json").write_bytes(b"rotten")
    with pytest.raises(PartitionLost):
        member.show_up()
    clock.advance(seconds=59)
    found = member.poll()
    member.commit()

    assert values(found) == [b"0/%d" % number for number in range(4)]
    assert min(member.assignment.values()) > max(before.values())


def test_a_group_written_by_a_newer_version_is_not_touched(topic: Topic, path: Path) -> None:
    """Its members go by other rules."""
    topic.group("workers").join().close()
    state = path / "groups" / "workers" / "state.json"
    checksum = crc32(b'{"format": 2}')
    text = f'{{"crc32": {checksum}, "holds": {{"format": 2}}}}'
    state.write_text(text)
    with pytest.raises(UnsupportedFormat):
        topic.group("workers").join()

    assert state.read_text() == text


# Places ------------------------------------------------------------------------------------


def test_a_reader_whose_place_is_damaged_is_told(topic: Topic, path: Path) -> None:
    """It holds everything until it is given another one."""
    fill_segments(topic, 2, 2)
    with topic.reader("audit") as reader:
        reader.poll()
        reader.commit()
    flip_bit(path / "partition_0" / "readers" / "audit.meta", 9)
    with pytest.raises(CorruptPosition):
        topic.reader("audit")
    kept = topic.clean()
    listed = list(topic.readers())
    topic.reader("audit", "latest").close()

    assert (kept.count, kept.held_by[0]) == (0, "audit")
    assert listed == ["audit"]
    assert topic.clean().count == 2


def test_a_group_whose_place_is_damaged_is_told(topic: Topic, path: Path) -> None:
    """By every poll, until `seek` gives the partition a place; the others can be committed."""
    fill(topic, 3)
    fill(topic, 2, partition=1)
    group = topic.group("workers")
    with group.join() as member:
        member.poll()
        member.commit()
    flip_bit(path / "partition_0" / "readers" / "group.workers.meta", 9)
    member = group.join()
    for _ in range(2):
        with pytest.raises(CorruptPosition):
            member.poll()
    member.seek({0: 1})
    found = values(member.poll())
    member.commit()
    member.close()

    assert found == [b"0/1", b"0/2"]
    assert [lag.committed for lag in group.lag()] == [3, 2]


# Producers and adoptions -------------------------------------------------------------------


def produced(topic: Topic) -> None:
    """Append under a name, and delete what was appended."""
    with topic.producer("importer") as producer:
        producer.append_many([b"a", b"b"], first_sequence=0)
    topic.roll()
    topic.clean(keep_bytes=0)


def use_origins(topic: Topic, donation: Path) -> list[Callable[[], object]]:
    return [
        lambda: topic.producer("importer").append(b"x", partition=0, sequence=0),
        lambda: topic.producer("importer").last_sequence(),
        lambda: topic.adopt(donation, partition=0, key="job"),
        lambda: topic.clean(keep_bytes=0),
        topic.compact,
    ]


@pytest.fixture
def donation(store: Store, tmp_path: Path) -> Path:
    """A segment that was written elsewhere."""
    source = store.topic("source", rules=RULES)
    fill_segments(source, 2)
    target = io.BytesIO()
    source.send_segment(0, 0, target)
    path = tmp_path / "donation.q"
    path.write_bytes(target.getvalue())
    return path


def test_damaged_origins_are_told(topic: Topic, path: Path, donation: Path) -> None:
    """What is forgotten could be appended again, so nothing is until somebody decides."""
    produced(topic)
    origins = path / "partition_0" / "origins.json"
    good = origins.read_bytes()
    offsets = topic.offsets()
    for damage in damages(good):
        origins.write_bytes(damage)
        with topic.producer("importer") as producer:
            try:
                answer = producer.append(b"x", partition=0, sequence=0)
            except (CorruptManifest, UnsupportedFormat):
                continue
            assert answer is None, damage

    assert topic.offsets() == offsets
    origins.write_bytes(b"rotten")
    for use in use_origins(topic, donation):
        with pytest.raises(CorruptManifest) as told:
            use()
        assert told.value.path == origins
    topic.append(b"plain", partition=0)


def test_without_origins_the_records_that_are_left_say_it(
    topic: Topic, path: Path, donation: Path
) -> None:
    """Deleting a damaged summary is how somebody decides."""
    with topic.producer("importer") as producer:
        producer.append_many([b"a", b"b"], first_sequence=0)
    topic.adopt(donation, partition=0, key="job")
    for partition in range(2):
        (path / f"partition_{partition}" / "origins.json").unlink(missing_ok=True)

    with topic.producer("importer") as producer:
        assert producer.append_many([b"a", b"b"], first_sequence=0) == [None, None]
    assert not topic.adopt(donation, partition=0, key="job").is_new


def test_origins_that_know_too_much_are_read_anew(topic: Topic, path: Path) -> None:
    """A power cut may take the end of a partition, and what was summed up of it with it."""
    topic.producer("other").close()
    with topic.producer("importer") as producer:
        producer.append(b"a", partition=0, sequence=0)
        producer.append(b"b", partition=0, sequence=1)
    with topic.producer("importer") as producer:
        producer.last_sequence()
    ahead = (path / "partition_0" / "origins.json").read_bytes()
    late = path.parent / "late" / "partition_0"
    store_root = path.parent.parent
    with open_directory(store_root, sync="os") as store:
        again = store.topic("late", rules=RULES)
        with again.producer("importer") as producer:
            producer.append(b"a", partition=0, sequence=0)
        (late / "origins.json").write_bytes(ahead)
        with again.producer("importer") as producer:
            assert producer.last_sequence() == 0
            assert producer.append(b"b", partition=0, sequence=1) == (0, 1)


def test_damaged_routes_are_told(topic: Topic, path: Path) -> None:
    """A repetition could go elsewhere than the first try, so nothing goes anywhere."""
    with topic.producer("importer") as producer:
        producer.append(b"a", sequence=0)
    routes = path / "producers" / "importer" / "routes.json"
    good = routes.read_bytes()
    for damage in damages(good):
        routes.write_bytes(damage)
        try:
            with topic.producer("importer") as producer:
                assert producer.append(b"a", sequence=0) is None
        except (CorruptManifest, UnsupportedFormat):
            pass
    routes.write_bytes(b"rotten")
    with pytest.raises(CorruptManifest):
        topic.producer("importer")
    routes.write_bytes(good)

    with topic.producer("importer") as producer:
        assert producer.append(b"a", sequence=0) is None
    assert len(list(topic.records())) == 1


# Records -----------------------------------------------------------------------------------


@pytest.fixture
def damaged(scratch: Path) -> Iterator[Topic]:
    """A topic whose second of three segments is damaged."""
    with open_directory(scratch, sync="os") as store:
        topic = store.topic("orders", partitions=2, rules=RULES)
        fill_segments(topic, 2, 2, 2)
        fill(topic, 2, partition=1)
    flip_bit(scratch / "topics" / "orders" / "partition_0" / "000000001.q", slot_position(0))
    with open_directory(scratch, sync="os") as store:
        yield store.topic("orders")


def test_damage_is_told_once_all_before_it_was_returned(damaged: Topic) -> None:
    """By records and by tables, again and again, and nothing comes twice."""
    by_record, by_table = damaged.reader("a"), damaged.reader("b")
    polls: list[Callable[[], list[bytes | None]]] = [
        lambda: values(by_record.poll()),
        lambda: [row[3] for row in table_rows([by_table.poll_table()])],
    ]
    for poll in polls:
        found: list[bytes | None] = []
        told = 0
        for _ in range(5):
            try:
                found += poll()
            except CorruptRecord:
                told += 1
        assert sorted(found, key=repr)[:2] == [b"0/0", b"0/1"]
        assert len(found) == len(set(found))
        assert told >= 3


def test_damage_does_not_hide_what_others_hold(damaged: Topic) -> None:
    """Other partitions can be read, and so can what lies behind it."""
    assert len(list(damaged.records(partitions=[1]))) == 2
    assert values(damaged.records(4, partitions=[0])) == [b"0/4", b"0/5"]
    with pytest.raises(CorruptRecord):
        list(damaged.records())


def test_damage_is_never_compacted_away(damaged: Topic) -> None:
    """A segment with damage is left as it is, and the others are compacted."""
    damaged.append(b"new", key="k", partition=0)
    damaged.append(b"newer", key="k", partition=0)
    damaged.roll()
    report = damaged.compact()

    assert report.removed_records == 1
    with pytest.raises(CorruptRecord):
        list(damaged.records())


def test_a_tombstone_stays_while_damage_keeps_what_it_hides(scratch: Path) -> None:
    """Else the value would be back: its segment could not be compacted."""
    clock = ManualClock()
    rules = TopicRules(segment_bytes=1 << 16, tombstone_seconds=0)
    with open_directory(scratch, sync="os", clock=clock) as store:
        topic = store.topic("orders", rules=rules)
        topic.append(b"hidden", key="k")
        topic.append(b"rotten")
        topic.roll()
        topic.append(None, key="k")
        topic.append(None, key="alone")
        topic.roll()
    flip_bit(scratch / "topics" / "orders" / "partition_0" / "000000000.q", slot_position(1))
    clock.advance(seconds=1)
    with open_directory(scratch, sync="os", clock=clock) as store:
        topic = store.topic("orders")
        topic.compact()

        assert [record.key for record in topic.records({0: 2})] == [b"k"]


def test_damage_does_not_keep_a_producer_from_its_work(damaged: Topic) -> None:
    """What can be read of its records counts."""
    with damaged.producer("importer") as producer:
        assert producer.append(b"x", partition=0, sequence=5) is not None
        assert producer.append(b"x", partition=0, sequence=5) is None


def test_errors_of_a_topic_are_segues(damaged: Topic, tmp_path: Path) -> None:
    """Whatever is wrong with a file that is handed in."""
    for name in ("nowhere", ""):
        with pytest.raises(SegueError):
            damaged.adopt(tmp_path / name, partition=0, key="job")


def test_a_producer_that_cannot_be_opened_does_not_keep_its_name(scratch: Path) -> None:
    """Whoever has mended what was wrong can use it at once."""
    with segue.open(scratch, sync="os") as store:
        topic = store.topic("orders")
        with topic.producer("importer") as producer:
            producer.append(b"a")
        routes = scratch / "topics" / "orders" / "producers" / "importer" / "routes.json"
        whole = routes.read_bytes()
        routes.write_bytes(b"not a document")
        with pytest.raises(CorruptManifest) as kept:
            topic.producer("importer")
        routes.write_bytes(whole)

        with topic.producer("importer") as producer:
            assert producer.last_sequence() == 0
        assert kept.value.path == routes
