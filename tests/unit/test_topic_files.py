"""What a topic leaves in a directory, who may use it, and that nothing stays open."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from segue import Event, Store, Topic, TopicRules
from segue.errors import LogLocked, ProducerBusy, StoreClosed
from segue.log.disk import Disk
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.contract.topic_support import fill, fill_segments, places, values
from tests.unit.support import no_descriptor_left_open

RULES = TopicRules(segment_bytes=1 << 16)


class ImpatientDisk(Disk):
    """Waits for nobody's lock."""

    def try_lock(self, fd: int, *, shared: bool = False, timeout_seconds: float = 0) -> bool:
        return super().try_lock(fd, shared=shared)


def opened(root: Path, *, exclusive: bool = False) -> FileStore:
    return open_directory(root, sync="os", exclusive=exclusive, disk=ImpatientDisk())


@pytest.fixture(params=[False, True], ids=["shared", "exclusive"])
def store(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Store]:
    """A store that others may use, too, and one that they may not."""
    with opened(scratch, exclusive=request.param) as store:
        yield store


def use_everything(topic: Topic, scratch: Path) -> None:
    """Do a bit of all that can be done to a topic."""
    topic.append(b"a", key="k")
    topic.append_many([Event(value=b"b", partition=number) for number in range(2)])
    with topic.reader("audit") as reader, topic.group("workers").join() as member:
        list(reader)
        reader.poll_table()
        reader.poll(timeout=0.01)
        reader.commit()
        member.poll()
        member.commit()
    with topic.producer("importer") as producer:
        producer.append(b"c", partition=0)
    topic.roll()
    with (scratch / "sent.q").open("wb") as file:
        topic.send_segment(0, 0, file)
    topic.adopt(scratch / "sent.q", partition=1, key="job")
    topic.compact()
    topic.clean()
    topic.grow(3)
    list(topic.tables())
    list(topic.follow("earliest", timeout=0))


# Files -------------------------------------------------------------------------------------


def test_a_topic_lies_where_it_is_said_to(scratch: Path) -> None:
    """Names that people and other programs go by."""
    with opened(scratch) as store:
        topic = store.topic("orders", partitions=2, rules=RULES)
        topic.append(b"x", partition=0)
        topic.reader("audit", partitions=[0]).close()
        topic.group("workers").join().close()
        topic.producer("importer").append(b"y", partition=1)
        topic.roll(partitions=[0])
    root = scratch / "topics" / "orders"
    names = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    assert {
        "manifest.json",
        "partition_0/000000000.q",
        "partition_0/000000001.q",
        "partition_0/readers/audit.meta",
        "partition_0/readers/group.workers.meta",
        "partition_1/000000000.q",
        "partition_1/readers/group.workers.meta",
        "groups/workers/state.json",
        "producers/importer/routes.json",
    } <= names


def test_looking_at_a_topic_leaves_no_file(scratch: Path) -> None:
    """One that is not there is not made by asking for it."""
    with opened(scratch) as store:
        topic = store.topic("orders")
        list(topic.records())
        topic.info()
        topic.clean()
        topic.readers()

    assert sorted(path.name for path in scratch.iterdir()) == ["segue.toml"]


def test_members_that_are_gone_leave_no_file(scratch: Path) -> None:
    """Neither those that left nor those that were taken for dead."""
    clock = ManualClock()
    with open_directory(scratch, sync="os", clock=clock, ticks=clock.ticks) as store:
        topic = store.topic("orders", rules=RULES)
        members = scratch / "topics" / "orders" / "groups" / "workers" / "members"
        topic.group("workers").join().close()
        left = list(members.iterdir())
        silent = topic.group("workers").join(ttl=1)
        clock.advance(seconds=2)
        with topic.group("workers").join():
            alive = list(members.iterdir())
        silent.close()

    assert (left, len(alive)) == ([], 1)


# Who may use it ----------------------------------------------------------------------------


def test_all_of_it_works_alone_and_shared(store: Store, scratch: Path) -> None:
    """Whoever has a store to himself can do the same with it."""
    topic = store.topic("orders", partitions=2, rules=RULES)
    use_everything(topic, scratch)
    expected = fill(topic, 3, partition=2)

    assert values(topic.records(partitions=[2])) == expected
    assert values(topic.reader("audit").poll())[-3:] == expected
    assert topic.partitions == 3


def test_an_exclusive_store_keeps_others_from_its_topics(scratch: Path) -> None:
    """Until it is closed."""
    with opened(scratch, exclusive=True) as store:
        topic = store.topic("orders", rules=RULES)
        topic.append(b"x")
        with opened(scratch) as other, pytest.raises(LogLocked):
            other.topic("orders").append(b"y")
        topic.append(b"z")
    with opened(scratch) as other:
        assert values(other.topic("orders").records()) == [b"x", b"z"]


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_threads_that_come_first_open_a_partition_once(scratch: Path, exclusive: bool) -> None:
    """Twice would be two writers in one process, and none where there may be only one."""
    with opened(scratch, exclusive=exclusive) as store:
        topic = store.topic("orders", partitions=8, rules=RULES)
        together = threading.Barrier(6)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            together.wait()
            try:
                for partition in range(8):
                    topic.append(b"%d" % number, partition=partition)
            except BaseException as error:  # noqa: BLE001 It is raised below.
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert [each.next_offset for each in topic.info().partitions] == [6] * 8


def test_an_empty_partition_is_opened_once(scratch: Path) -> None:
    """A log without records is a log: found open, it is not opened again."""
    with opened(scratch, exclusive=True) as store:
        core = store.topic("orders", partitions=2, rules=RULES)._core
        began, found = threading.Event(), []

        def ask() -> None:
            began.set()
            found.append(core.log(1))

        with core._mutex:
            thread = threading.Thread(target=ask)
            thread.start()
            began.wait()
            first = core.log(1)
        thread.join()

        assert found == [first]


def test_handles_of_one_store_share_a_topic(scratch: Path) -> None:
    """Asking for it again gives the same logs, the same producers and the same rules."""
    with opened(scratch, exclusive=True) as store:
        one, another = store.topic("orders", rules=RULES), store.topic("orders")
        one.append(b"x")
        another.append(b"y")
        producer = one.producer("importer")
        with pytest.raises(ProducerBusy):
            another.producer("importer")
        producer.close()

        assert values(one.records()) == values(another.records()) == [b"x", b"y"]


# Nothing stays open ------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
def test_closing_lets_go_of_every_file(scratch: Path, exclusive: bool) -> None:
    """Of members and producers that nobody closed, too."""
    with no_descriptor_left_open():
        with opened(scratch, exclusive=exclusive) as store:
            topic = store.topic("orders", partitions=2, rules=RULES)
            use_everything(topic, scratch)
            fill_segments(topic, 2, 2)
            records, producer = topic.records(), topic.producer("open")
            member = topic.group("open").join()
            next(records)
            member.poll(1)
        del records, producer, member, topic
        gc.collect()


def test_closing_lets_go_of_what_readers_have_open(scratch: Path) -> None:
    """As it does of members and producers."""
    with no_descriptor_left_open(), opened(scratch) as store:
        topic = store.topic("orders", rules=RULES)
        fill_segments(topic, 2, 2)
        topic.reader("audit").poll(1)
        gc.collect()


def test_what_is_dropped_is_let_go(scratch: Path) -> None:
    """A producer or member that nobody holds any more holds no name and no partition."""
    with opened(scratch) as store:
        topic = store.topic("orders", partitions=2, rules=RULES)
        topic.producer("importer").append(b"x", partition=0)
        gc.collect()
        with topic.producer("importer") as producer:
            last = producer.last_sequence()
        topic.group("workers").join()
        gc.collect()
        member = topic.group("workers").join()

        assert last == 0
        assert list(member.assignment) == [0, 1]
        assert places(member.poll()) == [(0, 0)]


def test_a_topic_is_flushed_when_it_is_closed(scratch: Path) -> None:
    """What was appended is there for whoever opens it next, in every partition."""
    with opened(scratch) as store:
        topic = store.topic("orders", partitions=5, rules=RULES)
        for partition in range(5):
            fill(topic, 2, partition=partition)
    with opened(scratch) as store:
        found = places(store.topic("orders").records())

    assert sorted(found) == [(partition, offset) for partition in range(5) for offset in range(2)]


def test_who_follows_is_not_sent_back_to_the_beginning_by_a_store_that_closes(
    scratch: Path,
) -> None:
    """A store lets go of its readers before it is closed itself: that is no news of partitions."""
    with open_directory(scratch / "data", sync="os") as store:
        topic = store.topic("orders", partitions=1)
        topic.append(b"read by nobody")
        following = topic.follow("latest", timeout=0)
        for user in list(topic._core.users):
            user.close()

        with pytest.raises(StoreClosed):
            next(following)
