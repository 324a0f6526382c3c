"""Whole segments in and out of a topic."""

import io
import socket
from pathlib import Path
from threading import Thread

import pytest

from segue import Log, Store, Topic, TopicRecord, TopicRules
from segue.errors import CorruptRecord, CorruptSegment, InvalidArgument, SegueError
from tests.contract.topic_support import (
    USUAL,
    fill,
    fill_segments,
    next_offsets,
    places,
    rows,
    values,
)
from tests.contract.worlds import World
from tests.unit.support import slot_position
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def source(store: Store) -> Topic:
    """A topic with two segments of three records, and one that takes records."""
    topic = store.topic("source", rules=USUAL)
    for number in range(6):
        topic.append(
            b"value %d" % number,
            key=b"key %d" % number if number % 2 else None,
            headers={"n": str(number)} if number % 3 else None,
            timestamp=number if number % 3 == 2 else None,
        )
        if number % 3 == 2:
            topic.roll()
    fill(topic, 1)
    return topic


@pytest.fixture
def target(store: Store) -> Topic:
    """A topic with two partitions, one of which holds two records."""
    topic = store.topic("target", partitions=2, rules=USUAL)
    fill(topic, 2)
    return topic


@pytest.fixture
def sent(source: Topic, tmp_path: Path) -> Path:
    """The first segment of the source, as it was sent."""
    path = tmp_path / "sent.q"
    with path.open("wb") as file:
        source.send_segment(0, 0, file)
    return path


def content(records: list[TopicRecord]) -> list[tuple[object, ...]]:
    """Return what does not depend on where records lie, and when they came."""
    return [row[2:5] for row in rows(records)]


# Sending -----------------------------------------------------------------------------------


def test_a_segment_is_sent_to_whatever_takes_bytes(source: Topic, tmp_path: Path) -> None:
    """A file, an object or a socket get the same bytes; the answer says how many."""
    memory = io.BytesIO()
    counts = [source.send_segment(0, 1, memory)]
    with (tmp_path / "file").open("wb") as file:
        counts.append(source.send_segment(0, 1, file))
    here, there = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while data := there.recv(1 << 16):
            received.extend(data)

    thread = Thread(target=receive)
    thread.start()
    with here:
        counts.append(source.send_segment(0, 1, here))
    thread.join()
    there.close()

    assert memory.getvalue() == (tmp_path / "file").read_bytes() == bytes(received)
    assert counts == [len(received)] * 3


def test_what_broke_off_is_gone_on_with(source: Topic) -> None:
    """From any byte on."""
    whole = io.BytesIO()
    size_bytes = source.send_segment(0, 0, whole)
    for position in (0, 1, size_bytes // 2, size_bytes - 1, size_bytes):
        rest = io.BytesIO()
        assert source.send_segment(0, 0, rest, position=position) == size_bytes - position
        assert rest.getvalue() == whole.getvalue()[position:]


def test_only_what_is_sealed_is_sent(source: Topic) -> None:
    """What takes records is not done yet, and what is not there cannot be had."""
    target = io.BytesIO()
    for partition, segment, position in (
        (0, 2, 0),
        (0, 9, 0),
        (1, 0, 0),
        (0, 0, -1),
        (0, 0, 1 << 40),
    ):
        with pytest.raises(InvalidArgument):
            source.send_segment(partition, segment, target, position=position)

    assert target.getvalue() == b""


# Adopting ----------------------------------------------------------------------------------


def test_an_adopted_segment_is_appended_whole(
    source: Topic, target: Topic, sent: Path, other: Store
) -> None:
    """Its records get their offsets now, and are what they were; everybody sees them."""
    adoption = target.adopt(sent, partition=0, key="job 1")
    there = other.topic("target")

    assert (adoption.partition, adoption.first_offset, adoption.count) == (0, 2, 3)
    assert adoption.is_new
    found = list(there.records(2, partitions=[0]))
    assert places(found) == [(0, 2), (0, 3), (0, 4)]
    assert content(found) == content(list(source.records(stop=3)))
    assert found[2].timestamp_us == 2
    assert target.append(b"after", partition=0).offset == 5


def test_adopting_again_under_the_same_key_does_nothing(
    target: Topic, sent: Path, other: Store, world: World
) -> None:
    """In any process and after a restart; the answer is the same but for one word."""
    first = target.adopt(sent, partition=1, key="job 1")
    fill(target, 2, partition=1)
    answers = [
        target.adopt(str(sent), partition=1, key="job 1"),
        other.topic("target").adopt(sent, partition=1, key="job 1"),
    ]
    world.restart()
    answers.append(world.open().topic("target").adopt(sent, partition=1, key="job 1"))

    for answer in answers:
        assert not answer.is_new
        assert (answer.partition, answer.first_offset, answer.count) == (1, 0, 3)
    assert first.is_new
    assert next_offsets(world.open().topic("target")) == [2, 5]


def test_the_same_key_in_another_partition_is_another_adoption(target: Topic, sent: Path) -> None:
    """Each partition remembers its own."""
    target.adopt(sent, partition=0, key="job 1")
    again = target.adopt(sent, partition=1, key="job 1")

    assert again.is_new
    assert next_offsets(target) == [5, 3]


def test_the_same_file_may_be_adopted_under_another_key(target: Topic, sent: Path) -> None:
    """The key says what is the same, not the bytes."""
    found = [target.adopt(sent, partition=0, key=f"job {number}") for number in range(3)]

    assert [each.first_offset for each in found] == [2, 5, 8]
    assert all(each.is_new for each in found)
    assert values(target.records())[2:] == [b"value 0", b"value 1", b"value 2"] * 3


def test_keys_are_remembered_when_the_records_are_gone(
    target: Topic, sent: Path, world: World
) -> None:
    """Over cleaning, compaction and restarts."""
    target.adopt(sent, partition=1, key="job 1")
    target.append(b"newer", key=b"key 1", partition=1)
    target.roll()
    target.compact()
    target.clean(keep_bytes=0)
    first = target.adopt(sent, partition=1, key="job 1")
    world.restart()
    second = world.open().topic("target").adopt(sent, partition=1, key="job 1")

    assert (first.is_new, second.is_new) == (False, False)
    assert first.first_offset == second.first_offset == 0


def test_an_adopted_segment_can_be_sent_on(target: Topic, sent: Path, tmp_path: Path) -> None:
    """And adopted again elsewhere, under the same key or another."""
    target.adopt(sent, partition=1, key="job 1")
    target.roll()
    path = tmp_path / "again.q"
    with path.open("wb") as file:
        target.send_segment(1, 0, file)
    target.adopt(path, partition=0, key="job 2")

    assert content(list(target.records(2, partitions=[0]))) == content(
        list(target.records(partitions=[1]))
    )


def test_a_segment_that_is_larger_than_ours_is_adopted(store: Store, tmp_path: Path) -> None:
    """It gets a segment to measure, and the ones after it are as the rules say."""
    source = store.topic("large", rules=USUAL)
    expected = [b"%d" % number * 3_000 for number in range(20)]
    for value in expected:
        source.append(value)
    source.roll()
    path = tmp_path / "large.q"
    with path.open("wb") as file:
        source.send_segment(0, 0, file)
    target = store.topic("narrow", rules=TopicRules(segment_bytes=12_288))
    fill(target, 2)
    target.adopt(path, partition=0, key="job")
    fill(target, 200, first=2)

    assert values(target.records())[2:22] == expected
    assert target.info().partitions[0].segments > 3


def test_records_that_wait_are_woken_by_an_adoption(target: Topic, sent: Path) -> None:
    """An adoption is an append like any other: readers get what it brought."""
    reader = target.reader("audit", "latest")
    target.adopt(sent, partition=0, key="job")

    assert values(reader.poll(timeout=LIMIT_SECONDS)) == [b"value 0", b"value 1", b"value 2"]


@pytest.mark.parametrize("key", ["", "x" * 1025, 5, None, b"job"])
def test_an_adoption_needs_a_key(target: Topic, sent: Path, key: str) -> None:
    """Text of up to 1024 characters."""
    with pytest.raises(InvalidArgument):
        target.adopt(sent, partition=0, key=key)

    assert next_offsets(target) == [2, 0]


def test_any_text_is_a_key(target: Topic, sent: Path) -> None:
    """Of whatever script, and names of files among them."""
    keys = ["x" * 1024, "☃", "s3://bucket/part-0001", "a b\n"]
    for _ in range(2):
        found = [target.adopt(sent, partition=1, key=key).is_new for key in keys]

    assert found == [False] * 4
    assert next_offsets(target) == [2, 12]


@pytest.mark.parametrize("partition", [2, -1, "0", True, None])
def test_an_adoption_needs_a_partition(target: Topic, sent: Path, partition: int) -> None:
    """One that is there."""
    with pytest.raises(InvalidArgument):
        target.adopt(sent, partition=partition, key="job")

    assert next_offsets(target) == [2, 0]


def test_a_bad_file_is_refused(target: Topic, source: Topic, sent: Path, tmp_path: Path) -> None:
    """Nothing is written, and its key is not used up."""
    good = sent.read_bytes()
    bad = tmp_path / "bad.q"
    damaged = bytearray(good)
    damaged[slot_position(1)] ^= 1
    last = bytearray(good)
    last[-1] ^= 1
    for data, errors in (
        (b"", (SegueError,)),
        (b"no segment" * 1000, (CorruptSegment, InvalidArgument)),
        (good[:4096], (CorruptSegment,)),
        (good[:-1], (CorruptSegment, CorruptRecord)),
        (bytes(damaged), (CorruptRecord, CorruptSegment)),
        (bytes(last), (CorruptRecord, CorruptSegment)),
    ):
        bad.write_bytes(data)
        with pytest.raises(errors):
            target.adopt(bad, partition=0, key="job")
        assert next_offsets(target) == [2, 0]
    with pytest.raises(SegueError):
        target.adopt(tmp_path / "nowhere.q", partition=0, key="job")
    with pytest.raises(SegueError):
        target.adopt(tmp_path, partition=0, key="job")
    bad.write_bytes(good)

    assert target.adopt(bad, partition=0, key="job").is_new


def test_producers_of_elsewhere_are_not_ours(
    source: Topic, target: Topic, sent: Path, tmp_path: Path
) -> None:
    """What was appended under a name in another topic says nothing about the name here."""
    with source.producer("importer") as producer:
        producer.append_many([b"a", b"b"], first_sequence=10)
    source.roll()
    path = tmp_path / "produced.q"
    with path.open("wb") as file:
        source.send_segment(0, 2, file)
    target.adopt(path, partition=1, key="job")
    with target.producer("importer") as producer:
        place = producer.append(b"ours", partition=1, sequence=0)

    assert place == (1, 3)
    assert values(target.records(partitions=[1]))[-3:] == [b"a", b"b", b"ours"]


def test_what_a_log_holds_can_be_adopted(target: Topic, tmp_path: Path) -> None:
    """A plain record is a value without key; what is no record of a topic is refused."""
    with Log(tmp_path / "log", sync="os") as log:
        log.append_many([b"a", b"b"])
        log.roll()
        log.append(b"c", attr=1 << 60)
        log.roll()
    target.adopt(tmp_path / "log" / "000000000.q", partition=1, key="job")
    with pytest.raises(InvalidArgument):
        target.adopt(tmp_path / "log" / "000000001.q", partition=1, key="other")

    assert values(target.records(partitions=[1])) == [b"a", b"b"]
    assert next_offsets(target) == [2, 2]


def test_a_segment_that_was_never_sealed_is_refused(target: Topic, tmp_path: Path) -> None:
    """So is one without records."""
    with Log(tmp_path / "log", sync="os") as log:
        log.append(b"x")
    with Log(tmp_path / "empty", sync="os") as log:
        log.append(b"x")
        log.roll()
        log.remove_records(lambda _: False)
    with pytest.raises(InvalidArgument):
        target.adopt(tmp_path / "log" / "000000000.q", partition=0, key="job")
    with pytest.raises(InvalidArgument):
        target.adopt(tmp_path / "empty" / "000000000.q", partition=0, key="job")

    assert next_offsets(target) == [2, 0]


def test_the_file_is_only_read(target: Topic, sent: Path) -> None:
    """It stays as it is, and can be deleted."""
    before = sent.read_bytes()
    target.adopt(sent, partition=0, key="job")
    after = sent.read_bytes()
    sent.unlink()

    assert before == after
    assert len(list(target.records())) == 5


def test_many_segments_are_adopted_one_after_the_other(
    source: Topic, target: Topic, tmp_path: Path
) -> None:
    """A topic is copied by its segments, and by adopting them again after a failure."""
    fill_segments(source, 3, 2)
    sealed = source.info().partitions[0].segments - 1
    for _ in range(2):
        for segment in range(sealed):
            path = tmp_path / f"{segment}.q"
            with path.open("wb") as file:
                source.send_segment(0, segment, file)
            target.adopt(path, partition=1, key=f"segment {segment}")

    found = list(target.records(partitions=[1]))
    assert content(found) == content(list(source.records()))
    assert [record.offset for record in found] == list(range(len(found)))
