"""Segments that wait to be adopted: by several at once, by the wrong ones, damaged, or too late."""

import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from segue import Event, QueueRules
from segue.delivery.message import unpack_prefix
from segue.errors import Damage, InvalidArgument, QueueFull, SegueError
from segue.log.disk import Disk
from segue.log.staging import read_staged
from segue.spark.sink.commit import Committer
from segue.spark.sink.staging import Stage, staging_path
from segue.stores.file.topics.adopting import adopt_staged
from segue.stores.file.writes import COMMIT, DONE, ORPHAN_SECONDS, StagedFile, WriteId
from segue.stores.opening import open_directory
from segue.stores.topic_contract import Adoption
from tests.crash.channel import Channel
from tests.crash.children import DONE as ENDED
from tests.crash.kill_runs import ended
from tests.crash.processes import ForkServer
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.spark_writes import (
    EVERYTHING,
    NAME,
    PARTITIONS,
    ROWS,
    Kind,
    Target,
    batch_id,
    expected,
    found_in,
    leave_list,
    left_behind,
    other_cut,
    rows_of,
    same_cut,
    stage,
    values_of,
    write_batch,
)

KINDS: Final[Sequence[Kind]] = ("topic", "queue")
ROUNDS: Final = 40 if TORTURE else 2
COMMITTERS: Final = 4


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, scratch: Path) -> Target:
    """An empty topic or queue."""
    target = Target(root=scratch / "store", kind=request.param, sync="os")
    target.make()
    return target


def committer(target: Target) -> Committer:
    """Return a driver."""
    return Committer(target.options)


def staged(target: Target, write: WriteId, batch: int, *, other: bool = False) -> list[StagedFile]:
    """Stage the rows of a batch as a write of any name."""
    return stage(target, write, (other_cut if other else same_cut)(target.kind, batch), Disk())


# Who commits ---------------------------------------------------------------------------------


def test_of_several_who_commit_the_same_batch_at_once_one_does(target: Target) -> None:
    """Each with segments of its own, as drivers that take each other for dead."""
    for batch in range(ROUNDS):
        lists = [
            staged(target, batch_id(batch), batch, other=bool(number % 2))
            for number in range(COMMITTERS)
        ]
        together = threading.Barrier(COMMITTERS)

        def commit(
            files: list[StagedFile], batch: int = batch, together: threading.Barrier = together
        ) -> bool:
            together.wait()
            return committer(target).commit(batch_id(batch), files)

        with ThreadPoolExecutor(COMMITTERS) as pool:
            done = list(pool.map(commit, lists))

        assert sorted(done) == [False] * (COMMITTERS - 1) + [True]
        assert found_in(target) == expected(*range(batch + 1))
        assert left_behind(target) == []


def write_batches(channel: Channel, target: Target, query: str, batches: list[int]) -> None:
    """Write batches of a query, one after the other, and report which were new."""
    for batch in batches:
        write = WriteId(query=query, batch=batch)
        files = staged(target, write, batch)
        channel.report(int(committer(target).commit(write, files)))
    channel.report(ENDED)


def test_processes_that_commit_different_batches_at_once_all_do(
    scratch: Path, target: Target, forks: ForkServer
) -> None:
    """Whoever comes second waits; nothing of another's is dropped."""
    children = [
        forks.start(write_batches, target, f"query {number}", [10 * number, 10 * number + 1])
        for number in range(COMMITTERS)
    ]
    reports = [ended(child)[1] for child in children]

    assert reports == [[1, 1, ENDED]] * COMMITTERS
    assert found_in(target) == expected(
        *(10 * number + each for number in range(COMMITTERS) for each in range(2))
    )
    assert left_behind(target) == []


def test_processes_that_commit_the_same_batches_at_once_write_them_once(
    target: Target, forks: ForkServer
) -> None:
    """A driver that was thought to be dead goes on beside its successor."""
    children = [forks.start(commit_staged, target, query, 0) for query in ["the same"] * COMMITTERS]
    reports = [ended(child)[1] for child in children]

    assert sorted(reports) == [[0, ENDED]] * (COMMITTERS - 1) + [[1, ENDED]]
    assert found_in(target) == expected(0)


def commit_staged(channel: Channel, target: Target, query: str, batch: int) -> None:
    """Write a batch; if its segments are dropped meanwhile, once more, as Spark does."""
    write = WriteId(query=query, batch=batch)
    while True:
        try:
            files = staged(target, write, batch)
        except SegueError:
            continue
        channel.report(int(committer(target).commit(write, files)))
        channel.report(ENDED)
        return


def test_a_batch_that_comes_after_a_newer_one_is_dropped(target: Target) -> None:
    """A driver that was thought to be dead must not write what its successor has written."""
    for batch in range(3):
        write_batch(target, batch)
    before = found_in(target)
    for batch in range(3):
        files = staged(target, batch_id(batch), batch, other=True)

        assert committer(target).is_done(batch_id(batch))
        assert not committer(target).commit(batch_id(batch), files)
        assert found_in(target) == before
        assert left_behind(target) == []


def test_queries_do_not_count_each_other_s_batches(target: Target) -> None:
    """Batch 5 of one query says nothing of batch 0 of another."""
    write_batch(target, 5)
    write = WriteId(query="query 2", batch=0)

    assert not committer(target).is_done(write)
    assert committer(target).commit(write, staged(target, write, 0))
    assert found_in(target) == expected(0, 5)


def test_a_write_with_a_name_of_its_own_happens_once_and_one_without_each_time(
    target: Target,
) -> None:
    """What nobody can repeat need not be remembered, and leaves no note."""
    named = WriteId(query="write nightly")
    assert committer(target).commit(named, staged(target, named, 0))
    assert not committer(target).commit(named, staged(target, named, 0, other=True))
    nameless = WriteId(query="write 1f", is_repeatable=False)
    assert committer(target).commit(nameless, staged(target, nameless, 1))

    assert found_in(target) == expected(0, 1)
    names = [path.name for path in staging_path(target.options).iterdir()]
    assert [name for name in names if name.endswith(DONE)] == [f"{named.digest}{DONE}"]


def test_an_unfinished_write_is_finished_by_whoever_writes_next(target: Target) -> None:
    """Its list says what is to happen, and no query need be running for that."""
    leave_list(target, 0)
    other = WriteId(query="query 2", batch=7)

    assert found_in(target) == expected()
    assert committer(target).commit(other, staged(target, other, 7))
    assert found_in(target) == expected(0, 7)
    assert committer(target).is_done(batch_id(0))
    assert left_behind(target) == []


# What is left --------------------------------------------------------------------------------


def test_an_abort_leaves_nothing_of_a_write_and_all_of_one_that_has_happened(
    target: Target,
) -> None:
    """Spark aborts also after a commit that has raised, or whose answer was lost."""
    write_batch(target, 0)
    committer(target).abort(batch_id(0))
    assert found_in(target) == expected(0)
    staged(target, batch_id(1), 1)
    assert left_behind(target) == [batch_id(1).directory]
    committer(target).abort(batch_id(1))

    assert found_in(target) == expected(0)
    assert left_behind(target) == []


def test_an_abort_after_the_list_was_written_drops_nothing(target: Target) -> None:
    """The write is to happen: whoever comes next has it happen."""
    leave_list(target, 0)
    committer(target).abort(batch_id(0))
    committer(target).recover()

    assert found_in(target) == expected(0)
    assert left_behind(target) == []


def test_an_abort_where_nothing_was_ever_written_does_nothing(target: Target) -> None:
    """There is not even a place for it."""
    committer(target).abort(batch_id(0))
    committer(target).recover()

    assert not staging_path(target.options).exists()


def test_a_task_that_ran_twice_leaves_no_duplicate_and_no_segments(target: Target) -> None:
    """Of two that do the same work Spark names one; what the other wrote goes with the write."""
    tasks = same_cut(target.kind, 0)
    first = stage(target, batch_id(0), tasks, Disk())
    stage(target, batch_id(0), tasks[:1], Disk())
    stage(target, batch_id(0), other_cut(target.kind, 0), Disk())

    assert committer(target).commit(batch_id(0), first)
    assert found_in(target) == expected(0)
    assert left_behind(target) == []


def test_a_task_that_fails_leaves_no_segment(target: Target) -> None:
    """Not even one that was complete, if a later row cannot be written."""

    def rows() -> "list[pa.RecordBatch]":
        column = "partition" if target.kind == "topic" else "priority"
        bad = {"value": pa.array(["x"]), column: pa.array([-1], pa.int32())}
        return [rows_of(target.kind, 0, range(ROWS)), pa.record_batch(bad)]

    with pytest.raises(InvalidArgument):
        Stage(target.options, batch_id(0), PARTITIONS).write(rows())

    assert list(staging_path(target.options).rglob("*.q")) == []


def test_what_a_killed_task_left_goes_with_the_first_commit_a_day_later(target: Target) -> None:
    """Nobody else knows of it; what is younger may be somebody's who still works."""
    lost, young = WriteId(query="lost", batch=3), WriteId(query="young", batch=3)
    staged(target, lost, 3)
    staged(target, young, 4)
    long_ago = time.time() - ORPHAN_SECONDS - 60
    os.utime(staging_path(target.options) / lost.directory, (long_ago, long_ago))
    write_batch(target, 0)

    assert left_behind(target) == [young.directory]


# Damage --------------------------------------------------------------------------------------


def test_a_damaged_segment_is_an_error_and_nothing_of_it_is_adopted(target: Target) -> None:
    """Of the others all or nothing is there, and what is there is there once."""
    seed = new_seed()
    chance = random.Random(seed)
    template = target.root.with_name("template")
    leave_list(target, 0)
    shutil.copytree(target.root, template)
    paths = sorted(path.relative_to(target.root) for path in target.root.rglob("staging/**/*.q"))
    for _ in range(ROUNDS * 8):
        shutil.rmtree(target.root)
        shutil.copytree(template, target.root)
        path = target.root / chance.choice(paths)
        with naming_seed(seed), naming(f"{path} {damage(path, chance)}"):
            try:
                write_batch(target, 0, is_other_cut=True)
            except (Damage, InvalidArgument):
                found = found_in(target)
                assert not found - expected(0)
                shutil.copy(template / path.relative_to(target.root), path)
                write_batch(target, 0, is_other_cut=True)
            assert found_in(target) == expected(0)
            assert left_behind(target) == []


def damage(path: Path, chance: random.Random) -> str:
    """Do something to a file; return what."""
    data = bytearray(path.read_bytes())
    match chance.randrange(3):
        case 0:
            size = chance.randrange(len(data))
            path.write_bytes(data[:size])
            return f"cut to {size}"
        case 1:
            place = chance.randrange(len(data))
            data[place] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            return f"bit turned in byte {place}"
        case _:
            first = chance.randrange(len(data))
            data[first : first + 64] = bytes(len(data[first : first + 64]))
            path.write_bytes(data)
            return f"zeros from {first}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"crc32": 0, "holds": {"format": 1}}',
        b'{"crc32": 1, "holds": []}',
    ],
)
def test_nothing_of_a_damaged_list_is_adopted_and_others_write_on(
    target: Target, content: bytes
) -> None:
    """To guess what was to happen could write rows twice; repaired, it happens."""
    write_batch(target, 0)
    leave_list(target, 1)
    path = staging_path(target.options) / f"{batch_id(1).directory}{COMMIT}"
    whole = path.read_bytes()
    path.write_bytes(content)
    committer(target).recover()
    assert found_in(target) == expected(0)
    other = WriteId(query="query 2", batch=0)
    assert committer(target).commit(other, staged(target, other, 2))
    assert found_in(target) == expected(0, 2)
    path.write_bytes(whole)
    write_batch(target, 1)

    assert found_in(target) == expected(0, 1, 2)
    assert left_behind(target) == []


def is_marked(path: Path) -> bool:
    """Tell whether a segment of messages says under which key it is to be adopted."""
    with read_staged(path, Disk()) as staged:
        batch = staged.batches[0]
        payload = bytes(batch.data[: int(batch.lengths[0])])
        return "b" in unpack_prefix(payload, int(batch.attrs[0]))[0]


def test_a_segment_under_another_s_name_is_refused(target: Target) -> None:
    """Each says itself under which key it is to be adopted; messages with keys have their own."""
    leave_list(target, 0)
    found = sorted((staging_path(target.options) / batch_id(0).directory).iterdir())
    first, second, *_ = filter(is_marked, found) if target.kind == "queue" else found
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(InvalidArgument):
        write_batch(target, 0, is_other_cut=True)
    first.write_bytes(kept)
    committer(target).recover()

    assert found_in(target) == expected(0)


# Queues that are used meanwhile --------------------------------------------------------------


def test_consumers_who_lease_while_a_queue_is_written_get_each_message_once(
    scratch: Path,
) -> None:
    """Adopted messages go out like any others, in the middle of it."""
    target = Target(root=scratch / "store", kind="queue", sync="os")
    target.make()
    batches = ROUNDS * 2
    is_over = threading.Event()
    taken: Counter[str] = Counter()
    mutex = threading.Lock()

    def consume() -> None:
        with target.open() as store:
            queue = store.queue(NAME)
            while True:
                last = is_over.is_set()
                jobs = queue.lease_many(5, ttl=600)
                queue.ack_many(jobs)
                with mutex:
                    taken.update(job.text for job in jobs)
                if not jobs and last:
                    return

    def push() -> None:
        with target.open() as store:
            for number in range(batches):
                store.queue(NAME).push(f"pushed {number}")

    with ThreadPoolExecutor(4) as pool:
        consumers = [pool.submit(consume) for _ in range(2)]
        pusher = pool.submit(push)
        for batch in range(batches):
            write_batch(target, batch, is_other_cut=bool(batch % 2))
        pusher.result()
        is_over.set()
        for consumer in consumers:
            consumer.result()

    pushed = Counter(f"pushed {number}" for number in range(batches))
    assert taken == expected(*range(batches)) + pushed


def test_messages_that_were_consumed_before_their_write_was_noted_do_not_come_again(
    scratch: Path,
) -> None:
    """Killed between the adoption and the note, and the queue emptied and cleaned meanwhile."""
    target = Target(root=scratch / "store", kind="queue", sync="os")
    target.make()

    class Killed(BaseException):
        pass

    class Interrupted(Committer):
        def _note_done(self, write: WriteId) -> None:
            raise Killed

    for batch in range(ROUNDS):
        with pytest.raises(Killed):
            Interrupted(target.options).commit(
                batch_id(batch), staged(target, batch_id(batch), batch)
            )
        with target.open() as store:
            queue = store.queue(NAME)
            jobs = queue.lease_many(EVERYTHING, ttl=600)
            assert Counter(job.text for job in jobs) == expected(batch)
            queue.ack_many(jobs)
            for number in range(200):  # What is settled is trimmed sooner or later.
                queue.push(b"x" * 1000)
                assert queue.pop() is not None, number
        write_batch(target, batch, is_other_cut=bool(batch % 2))

        assert found_in(target) == expected()
        assert left_behind(target) == []


def test_a_queue_without_space_for_all_of_a_write_takes_none_of_it(scratch: Path) -> None:
    """The error says so before anything has happened, and repeated with space it is there."""
    target = Target(root=scratch / "store", kind="queue", sync="os")
    with target.open() as store:
        queue = store.queue(NAME, QueueRules(capacity=ROWS + 2, lease_ttl=600))
        queue.push_many(["before"] * 3)
    with pytest.raises(QueueFull):
        write_batch(target, 0)
    assert found_in(target) == Counter({"before": 3})
    committer(target).abort(batch_id(0))
    assert left_behind(target) == []
    with target.open() as store:
        assert len(store.queue(NAME).pop_many(3)) == 3
    write_batch(target, 0, is_other_cut=True)

    assert found_in(target) == expected(0)


# Topics that others append to ----------------------------------------------------------------


def test_adoptions_among_what_others_append_are_each_known(scratch: Path) -> None:
    """Until another write is adopted: by its note, or by reading what came in between."""
    target = Target(root=scratch / "store", kind="topic", sync="os")
    target.make()
    seed = new_seed()
    chance = random.Random(seed)
    known: list[tuple[int, Path, str]] = []
    appended: Counter[str] = Counter()
    sequence = -1
    with naming_seed(seed), open_directory(target.root, sync="os") as store:
        topic = store.topic(NAME)

        def adopt(partition: int, path: Path, id_: str) -> Adoption:
            ids = [id_ for _, _, id_ in known]
            return adopt_staged(topic._core, path, partition=partition, key=id_, unfinished=ids)

        for step in range(ROUNDS * 25):
            match chance.randrange(5):
                case 0:
                    topic.append_many([Event(value=f"plain {step}", key="k")])
                    appended[f"plain {step}"] += 1
                case 1:
                    with topic.producer("till") as producer:
                        assert producer.last_sequence() == sequence
                        for number in range(max(0, sequence - 1), sequence + 2):
                            place = producer.append(f"made {number}", partition=0, sequence=number)
                            assert (place is None) == (number <= sequence)
                    sequence += 1
                    appended[f"made {sequence}"] += 1
                case 2 if known:
                    assert not adopt(*chance.choice(known)).is_new
                case _:
                    path = staging_path(target.options) / batch_id(step).directory
                    known = [
                        (file.number, path / f"{file.id}.q", file.id)
                        for file in staged(target, batch_id(step), step)
                    ]
                    for each in known:
                        assert adopt(*each).is_new
                    appended.update(values_of(step))
            if chance.random() < 0.1:
                topic.roll()
        for each in known:
            assert not adopt(*each).is_new

    assert found_in(target) == appended
    check_logs(target.root / "topics")


def test_what_was_adopted_and_deleted_since_is_still_known(scratch: Path) -> None:
    """Retention must not let a write in a second time."""
    target = Target(root=scratch / "store", kind="topic", sync="os")
    target.make()
    leave_list(target, 0)
    list_path = staging_path(target.options) / f"{batch_id(0).directory}{COMMIT}"
    directory = staging_path(target.options) / batch_id(0).directory
    shutil.copytree(directory, scratch / "segments")
    shutil.copy(list_path, scratch / "list")
    committer(target).recover()
    with target.open() as store:
        topic = store.topic(NAME)
        topic.roll()
        topic.append_many([Event(value="later", partition=each) for each in range(PARTITIONS)])
        topic.reader("ann", "latest").close()
        topic.clean()
    assert found_in(target) == Counter({"later": PARTITIONS})
    # As if the driver had been killed before its note, and the note lost with it.
    shutil.copytree(scratch / "segments", directory)
    shutil.copy(scratch / "list", list_path)
    (staging_path(target.options) / f"{batch_id(0).digest}{DONE}").unlink()
    write_batch(target, 0, is_other_cut=True)

    assert found_in(target) == Counter({"later": PARTITIONS})
    assert left_behind(target) == []


def test_whoever_reads_while_segments_are_adopted_sees_each_whole(scratch: Path) -> None:
    """A reader that polls in the middle of it gets all of a segment, or nothing yet."""
    target = Target(root=scratch / "store", kind="topic", sync="os")
    target.make()
    batches, rows = ROUNDS, 3_000
    is_over = threading.Event()
    wrong: list[str] = []

    def look() -> None:
        with target.open() as store:
            topic = store.topic(NAME)
            while not is_over.is_set():
                for partition, end in topic.offsets("latest").items():
                    if end % rows:
                        wrong.append(f"partition {partition} ends at {end}")

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        for batch in range(batches):
            column = pa.array([f"{batch}.{row}" for row in range(rows)], pa.string())
            number = pa.array([batch % PARTITIONS] * rows, pa.int32())
            task = [pa.record_batch({"value": column, "partition": number})]
            files = stage(target, batch_id(batch), [task], Disk())
            committer(target).commit(batch_id(batch), files)
        is_over.set()
        looking.result()

    assert wrong == []
    assert found_in(target).total() == batches * rows


def test_the_rows_of_a_task_keep_their_order_over_several_segments(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each partition or lane: a segment is adopted after those that were written before it."""
    monkeypatch.setattr("segue.spark.sink.staging.FILE_BYTES_MAX", 100)
    monkeypatch.setattr("segue.spark.sink.staging.TASK_BYTES_MAX", 150)
    rows = 60
    column = "partition" if target.kind == "topic" else "priority"
    batches = [
        pa.record_batch(
            {
                "value": pa.array([f"{row:03}" for row in range(first, first + 5)], pa.string()),
                column: pa.array([row % 2 for row in range(first, first + 5)], pa.int32()),
            }
        )
        for first in range(0, rows, 5)
    ]
    files = stage(target, batch_id(0), [batches], Disk())
    assert len(files) > 2
    committer(target).commit(batch_id(0), files)

    with target.open() as store:
        if target.kind == "topic":
            found = [
                str(record.value, "ascii")
                for partition in range(2)
                for record in store.topic(NAME).records(partitions=[partition])
                if record.value is not None
            ]
        else:
            found = [message.text for message in store.queue(NAME).peek(EVERYTHING)]
    assert found == [f"{row:03}" for half in range(2) for row in range(half, rows, 2)]
