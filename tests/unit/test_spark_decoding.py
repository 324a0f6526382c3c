"""Records as rows: what Spark gets is what the topic, queue or ring says itself."""

import contextlib
import pickle
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType

from segue import Event, Item, QueueRules, TopicRules
from segue.delivery.message import DeadLetter, Message
from segue.errors import LeaseLost
from segue.log import Log
from segue.log.columns import Columns
from segue.spark.decoding import MessageDecoder, RingDecoder, TopicDecoder, Wanted
from segue.spark.options import Kind, ReadOptions
from segue.spark.planning import batch_offsets, plan
from segue.spark.reading import read_task
from segue.spark.schema import COLUMNS
from segue.spark.strands import opened_shelf
from segue.stores import column_pieces
from segue.stores.column_pieces import pieces
from segue.stores.contract import Outcome, Queue
from segue.stores.file import upkeep
from segue.stores.file.portrait import portrait_of
from segue.stores.file.store import FileStore
from segue.stores.job import Job
from segue.stores.opening import open_directory
from segue.testing import ManualClock
from tests.conftest import TORTURE
from tests.contract.topic_support import SMALL_SEGMENT_BYTES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 86_400
KEEPING = QueueRules(keep_seconds=7 * DAY, segment_items=4, backoff_base=60, backoff_jitter=0)

Row = dict[str, Any]


def wanted(kind: Kind, *names: str) -> Wanted:
    columns = COLUMNS[kind]
    return Wanted(
        schema=StructType([StructField(name, columns[name]) for name in names or columns]),
        value_format="binary",
    )


def decoded(decoder: TopicDecoder | MessageDecoder | RingDecoder, log: Log) -> list[Row]:
    """Return every row of a log, checked against the schema that Spark expects."""
    rows: list[Row] = []
    for columns in log.columns():
        for batch in decoder.batches(columns):
            assert batch.schema == decoder.wanted.arrow
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


def read(path: Path, kind: Kind, name: str, *, records_max: int | None = None) -> list[Row]:
    """Return what a batch reads of a store, by its plan and its tasks."""
    options = ReadOptions(url=str(path), kind=kind, name=name, records_max=records_max)
    with opened_shelf(options, wanted(kind)) as shelf:
        strands = shelf.strands()
        tasks = plan(options, strands, batch_offsets(options, strands))
    travelled = [pickle.loads(pickle.dumps(task)) for task in tasks]
    return [row for task in travelled for batch in read_task(task) for row in batch.to_pylist()]


def moment(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


# Topics --------------------------------------------------------------------------------------

texts = st.text(max_size=6)
events = st.builds(
    Event,
    value=st.none() | st.binary(max_size=40),
    key=st.none() | st.binary(max_size=6) | st.sampled_from([b"a", b"b"]),
    headers=st.none() | st.dictionaries(texts, texts, max_size=3),
    timestamp=st.none() | st.integers(-(1 << 50), 1 << 50),
    partition=st.integers(0, 1),
)
steps = st.lists(
    st.lists(events, min_size=1, max_size=6)
    | st.sampled_from(["roll", "compact"])
    | st.binary(max_size=9),
    max_size=12,
)


@given(steps)
def test_rows_of_a_topic_are_its_records(steps: list[list[Event] | str | bytes]) -> None:
    """Keys, tombstones, headers, times, producers, and what compaction has left."""
    clock = ManualClock()
    with _ScratchStore(clock) as store:
        rules = TopicRules(segment_bytes=SMALL_SEGMENT_BYTES, tombstone_seconds=0)
        topic = store.topic("orders", partitions=2, rules=rules)
        for step in steps:
            clock.advance(seconds=1)
            if isinstance(step, list):
                topic.append_many(step)
            elif isinstance(step, bytes):
                with topic.producer("p") as producer:
                    producer.append(step, key=step[:1])
            elif step == "roll":
                topic.roll()
            else:
                topic.compact()
        path = Path(store.url)
        found = read(path, "topic", "orders")
        records = list(topic.records())

    assert sorted(map(_place, found)) == sorted((each.partition, each.offset) for each in records)
    by_place = {_place(row): row for row in found}
    for record in records:
        assert by_place[record.partition, record.offset] == {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [
                {"key": name, "value": value.encode()} for name, value in record.headers.items()
            ],
        }


def _place(row: Row) -> tuple[int, int]:
    return row["partition"], row["offset"]


@pytest.mark.parametrize("column", list(COLUMNS["topic"]))
def test_one_column_alone_is_what_it_is_among_all(scratch: Path, column: str) -> None:
    """The user's schema decides what is made, not what it says."""
    with open_directory(scratch / "store", sync="os") as store:
        topic = store.topic("orders")
        topic.append_many(
            [
                b"plain",
                Event(value=None, key="k"),
                Event(value=b"v", headers={"h": "w"}, timestamp=5, key=""),
            ]
        )
        with Log(_partition(store), read_only=True) as log:
            every = decoded(TopicDecoder(wanted=wanted("topic"), topic="orders", partition=0), log)
            alone = decoded(
                TopicDecoder(wanted=wanted("topic", column), topic="orders", partition=0), log
            )

    assert alone == [{column: row[column]} for row in every]


def _partition(store: FileStore) -> Path:
    return Path(store.url) / "topics" / "orders" / "partition_0"


# Batches -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 10), st.integers(1, 100))
def test_batches_keep_to_their_limits(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    """Laid end to end they are the stretch; one has more bytes only if it has one row."""
    payloads = pa.array([b"x", *[b"x" * size for size in sizes]], pa.binary())[1:]
    columns = Columns(
        offset=np.arange(len(sizes)),
        time_us=np.arange(len(sizes)),
        attr=np.zeros(len(sizes), dtype=np.uint64),
        payload=payloads,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_pieces, "BATCH_ROWS_MAX", rows_max)
        patch.setattr(column_pieces, "BATCH_BYTES_MAX", bytes_max)
        parts = list(pieces(columns))

    assert [offset for part in parts for offset in part.offset] == list(range(len(sizes)))
    for part in parts:
        assert 0 < len(part) <= rows_max
        assert len(part) == 1 or sum(len(each.as_py()) for each in part.payload) <= bytes_max
        assert len(part.time_us) == len(part.attr) == len(part.payload) == len(part)


# Rings ---------------------------------------------------------------------------------------


def test_rows_of_a_ring_are_its_entries(scratch: Path) -> None:
    """Those of transactions, too, and none that was overwritten."""
    with open_directory(scratch / "store", sync="os") as store:
        ring = store.ring("recent", capacity=8, entries_per_segment=4)
        for number in range(11):
            ring.enqueue(b"%d" % number, overwrite_if_full=True)
        with ring.transaction() as transaction:
            transaction.enqueue(b"together", overwrite_if_full=True)
            transaction.enqueue(b"", overwrite_if_full=True)
        info = ring.info()
        entries = [ring.get(offset) for offset in range(info.head_offset, info.tail_offset)]
        found = read(scratch / "store", "ring", "recent")

    assert len(found) == info.count
    assert found == [
        {"value": each.body, "ring": "recent", "offset": each.offset, "timestamp": each.time}
        for each in entries
        if each is not None
    ]


# Queues --------------------------------------------------------------------------------------


def queue_rows(
    store: FileStore,
    name: str = "jobs",
    *,
    priorities: frozenset[int] | None = None,
    is_stream: bool = False,
) -> list[Row]:
    """Return the rows of a queue at this moment, by the clock of its own store."""
    rows: list[Row] = []
    for portrait in portrait_of(store._queue_core(name)):
        if is_stream and portrait.lane is None:
            continue  # A stream of a queue does not read its dead letters.
        decoder = MessageDecoder(
            wanted=wanted("queue"),
            queue=name,
            portrait=portrait,
            priorities=priorities,
            is_stream=is_stream,
        )
        with Log(portrait.path, read_only=True) as log:
            for columns in log.columns(portrait.first, stop=portrait.end):
                for batch in decoder.within(portrait.first, portrait.end).batches(columns):
                    rows += batch.to_pylist()
    return rows


def check_rows(store: FileStore, name: str = "jobs") -> list[Row]:
    """Assert that the rows of a queue are what it says itself; return them."""
    queue = store.queue(name)
    counts = queue.count()
    stats = queue.stats()
    rows = queue_rows(store, name)

    ids = [row["message_id"] for row in rows]
    assert len(set(ids)) == len(ids), "a message is there twice"
    states = Counter(row["state"] for row in rows)
    assert states["ready"] == counts.ready
    assert states["delayed"] == counts.delayed
    assert states["leased"] == counts.leased
    assert states["dead"] == counts.dead
    by_id = {row["message_id"]: row for row in rows}
    for lease in stats.leases:
        assert by_id[lease.message_id]["state"] == "leased"
        assert by_id[lease.message_id]["attempt"] == lease.attempt
    waiting = [status.message for status in queue.browse(state="ready", limit=1000)]
    ready = {row["message_id"]: row["expires"] for row in _in(rows, "ready")}
    # What has outlived its time counts as ready until its turn comes, if it was not redriven.
    now = moment(store.place.clock())
    outlived = {id_ for id_, expires in ready.items() if expires is not None and expires <= now}
    assert ready.keys() - outlived <= {each.id for each in waiting} <= ready.keys()
    for message in waiting:
        _check_message(by_id[message.id], message)
        assert by_id[message.id]["attempt"] == message.attempt - 1
    letters = list(queue.dead_letters())
    assert [each.message.id for each in letters] == [row["message_id"] for row in _in(rows, "dead")]
    for letter in letters:
        _check_letter(by_id[letter.message.id], letter)
    for row in rows:
        assert row["queue"] == name
        assert (row["died"] is not None) == (row["state"] == "dead")
        assert (row["not_before"] is not None) >= (row["state"] == "delayed")
    return rows


def _in(rows: list[Row], state: str) -> list[Row]:
    return [row for row in rows if row["state"] == state]


def _check_message(row: Row, message: Message) -> None:
    assert row["value"] == message.body
    assert row["priority"] == message.priority
    assert row["key"] == message.key
    assert row["timestamp"] == message.pushed_at
    assert {each["key"]: each["value"].decode() for each in row["headers"]} == message.headers
    expires = message.expires_us
    assert row["expires"] == (None if expires is None else moment(expires))


def _check_letter(row: Row, letter: DeadLetter) -> None:
    _check_message(row, letter.message)
    assert row["cause"] == letter.cause
    assert (row["reason"] or "") == letter.reason
    assert row["died"] == letter.died_at
    assert row["attempt"] == letter.message.attempt


class _ScratchStore:
    """A store for the length of a block, for tests that need one for every example."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def __enter__(self) -> FileStore:
        shared = Path("/dev/shm")
        self._place = tempfile.TemporaryDirectory(
            prefix="segue-test-", dir=shared if shared.is_dir() else None
        )
        self._store = open_directory(
            Path(self._place.name) / "store",
            sync="os",
            clock=self._clock,
            ticks=self._clock.ticks,
        )
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()
        self._place.cleanup()


@pytest.fixture
def manual() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(scratch: Path, manual: ManualClock) -> Iterator[FileStore]:
    """A store that goes by the test's clock."""
    with open_directory(scratch / "store", sync="os", clock=manual, ticks=manual.ticks) as opened:
        yield opened


def test_a_fresh_queue_is_ready_or_delayed(store: FileStore, manual: ManualClock) -> None:
    """With all that was pushed with a message."""
    queue = store.queue("jobs", KEEPING)
    queue.push_many(
        [
            b"plain",
            Item(body=b"keyed", key="k", priority=2, headers={"h": "ü"}),
            Item(body=b"short", ttl=60, priority=1),
            Item(body=b"later", delay=60, headers={"a": "b"}, priority=3),
            Item(body=b"both", delay=30, ttl=90, key="k2"),
        ]
    )
    rows = {row["value"]: row for row in check_rows(store)}

    assert rows[b"later"]["state"] == rows[b"both"]["state"] == "delayed"
    assert rows[b"later"]["not_before"] == moment(manual() + 60_000_000)
    assert rows[b"later"]["message_id"].startswith("later-")
    assert rows[b"later"]["priority"] == 3
    assert rows[b"both"]["expires"] == moment(manual() + 90_000_000)
    assert rows[b"plain"]["attempt"] == 0


def test_every_state_of_a_message_is_told(store: FileStore, manual: ManualClock) -> None:
    """Leased, returned with a reason, released, dead, redriven, settled."""
    queue = store.queue("jobs", KEEPING)
    for number in range(10):
        queue.push(b"%d" % number, priority=number % 2)
    jobs = queue.lease_many(6)
    queue.nack(jobs[1], reason="no luck", delay=60)
    queue.nack(jobs[2], outcome="release")
    queue.nack(jobs[3], outcome="dead", reason="broken")
    queue.nack(jobs[4], outcome="dead", reason="redo")
    queue.ack(jobs[5])
    queue.redrive(where=lambda letter: letter.reason == "redo")
    rows = {row["message_id"]: row for row in check_rows(store)}

    told = [(rows[job.id]["state"], rows[job.id]["attempt"]) for job in jobs]
    assert told[0] == ("leased", 1)
    assert told[1] == ("delayed", 1)
    assert (rows[jobs[1].id]["reason"], rows[jobs[1].id]["cause"]) == ("no luck", "failed")
    assert told[2] == ("ready", 0)
    assert told[3] == ("dead", 1)
    assert (rows[jobs[3].id]["reason"], rows[jobs[3].id]["cause"]) == ("broken", "dead")
    assert told[4][0] == "ready"
    assert told[5][0] == "settled"
    assert len(rows) == 10


def test_messages_of_groups_are_told_like_any_others(store: FileStore) -> None:
    """Also those that wait for others of their group, and those that died and came back."""
    queue = store.queue("jobs", KEEPING)
    queue.push_many(
        [Item(body=b"%d" % number, group="ab"[number % 2], key=str(number)) for number in range(8)]
    )
    queue.push(b"later", delay=60, group="a", headers={"h": "1"})
    check_rows(store)
    queue.lease().bury("broken")
    queue.lease().fail("no luck", delay=60)
    job = queue.lease()
    assert (job.body, queue.wait(0)) == (b"2", False)
    check_rows(store)
    queue.redrive()
    job.ack()
    rows = {row["value"]: row for row in check_rows(store)}

    assert [rows[b"%d" % number]["state"] for number in range(4)] == [
        "ready",
        "delayed",
        "settled",
        "ready",
    ]
    assert (rows[b"3"]["attempt"], rows[b"3"]["cause"], rows[b"3"]["key"]) == (0, None, "3")


def test_what_came_due_is_ready_once_the_queue_says_so(
    store: FileStore, manual: ManualClock
) -> None:
    """Delays that are over, leases that ran out."""
    queue = store.queue("jobs", KEEPING)
    queue.push(b"later", delay=60)
    queue.push(b"now")
    queue.lease(ttl=30)
    check_rows(store)
    manual.advance(seconds=61)

    rows = {row["value"]: row for row in check_rows(store)}
    assert rows[b"later"]["state"] == "ready"
    assert rows[b"now"]["state"] in {"ready", "delayed"}
    assert rows[b"now"]["attempt"] == 1


def test_what_is_carried_out_of_an_old_segment_is_told_once(
    store: FileStore, manual: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is where it is, the original is not shown."""
    monkeypatch.setattr(upkeep, "TIDY_EVERY_ITEMS", 32)
    queue = store.queue("jobs", QueueRules(segment_items=32, backoff_base=3600, backoff_jitter=0))
    queue.push(b"stuck", headers={"h": "v"})
    queue.push(b"given back")
    queue.push(b"dead")
    jobs = queue.lease_many(3, ttl=DAY)
    queue.nack(jobs[1], reason="again", delay=3600)
    queue.nack(jobs[2], outcome="dead", reason="broken")
    for _ in range(12):
        queue.push_many([b"%d" % number for number in range(20)])
        queue.pop_many(20)
        manual.advance(seconds=1)
    rows = {row["value"]: row for row in check_rows(store)}

    assert list(Path(store.url).glob("queues/jobs/aside/*.q"))
    assert rows[b"stuck"]["state"] == "leased"
    assert rows[b"stuck"]["message_id"] == jobs[0].id
    assert rows[b"given back"]["state"] == "delayed"
    assert rows[b"dead"]["message_id"] == jobs[2].id


def test_purged_and_expired_messages_are_not_ready(store: FileStore, manual: ManualClock) -> None:
    """What was dropped is settled, what outlived its time is dead."""
    queue = store.queue("jobs", KEEPING)
    queue.push_many([b"a", Item(body=b"b", delay=60)])
    queue.purge()
    assert Counter(row["state"] for row in check_rows(store)) == {"settled": 2}

    queue.push(b"short", ttl=5)
    queue.push(b"long")
    manual.advance(seconds=10)
    queue.lease()
    rows = {row["value"]: row for row in check_rows(store)}
    assert (rows[b"short"]["state"], rows[b"short"]["cause"]) == ("dead", "outlived")
    assert rows[b"long"]["state"] == "leased"


def test_rows_are_chosen_by_priority(store: FileStore) -> None:
    """Also among what was pushed with a delay and among the dead."""
    queue = store.queue("jobs", KEEPING)
    for priority in range(3):
        queue.push(b"ready", priority=priority)
        queue.push(b"later", priority=priority, delay=60)
        queue.push(b"dead", priority=priority)
    for job in queue.lease_many(10):
        if job.body == b"dead":
            queue.nack(job, outcome="dead")
    rows = queue_rows(store, priorities=frozenset({1}))

    assert {row["priority"] for row in rows} == {1}
    assert sorted(row["value"] for row in rows) == [b"dead", b"later", b"ready"]


def test_a_stream_tells_each_message_where_it_was_pushed(store: FileStore) -> None:
    """Once, whatever became of it: dead and redriven, it is still the message that was pushed."""
    queue = store.queue("jobs", KEEPING)
    queue.push_many([Item(body=b"%d" % number, priority=number % 2) for number in range(12)])
    queue.push(b"later", delay=60)
    jobs = queue.lease_many(8)
    for job in jobs[:4]:
        queue.nack(job, outcome="dead", reason="broken")
    queue.redrive(limit=2)
    queue.ack(jobs[4])
    rows = queue_rows(store, is_stream=True)

    assert [row["message_id"] for row in rows] == [message.id for message in queue.history()]
    assert [row["value"] for row in rows] == [message.body for message in queue.history()]


@pytest.mark.parametrize("seed", range(8 if TORTURE else 3))
def test_the_rows_of_a_queue_are_what_it_says_whatever_happened(
    scratch: Path, manual: ManualClock, seed: int
) -> None:
    """Random work on a queue; now and then it is opened anew, and every message is told once."""
    chance = random.Random(seed)
    rules = QueueRules(
        segment_items=chance.choice([2, 5, 50]),
        keep_seconds=chance.choice([None, 50]),
        max_deliveries=3,
        backoff_base=chance.choice([0, 5]),
        backoff_jitter=0,
        on_expiry=chance.choice(["dead", "drop"]),
        dedup_window=20,
    )
    path = scratch / "store"
    store = open_directory(path, sync="os", clock=manual, ticks=manual.ticks)
    store.queue("jobs", rules)
    jobs: list[Job] = []
    for number in range(90):
        queue = store.queue("jobs")
        step = chance.randrange(12)
        if step < 4:
            queue.push_many([_random_item(chance, number, each) for each in range(5)])
        elif step < 6:
            jobs += queue.lease_many(chance.randint(1, 4), ttl=chance.choice([5, 500]))
        elif step < 9 and jobs:
            _settle(queue, chance, jobs.pop(chance.randrange(len(jobs))))
        elif step == 9:
            queue.pop_many(chance.randint(1, 6))
            manual.advance(seconds=chance.choice([1, 20]))
        elif step == 10:
            if chance.random() < 0.2:
                queue.purge()
            queue.redrive(limit=2)
            queue.discard(limit=1)
        elif chance.random() < 0.3:
            store.close()
            store = open_directory(path, sync="os", clock=manual, ticks=manual.ticks)
            store.queue("jobs")
            jobs.clear()
        if not number % 5:
            check_rows(store)
    check_rows(store)
    store.close()


def _random_item(chance: random.Random, number: int, each: int) -> Item:
    return Item(
        body=b"%d/%d" % (number, each),
        priority=chance.randrange(3),
        delay=chance.choice([None, None, 3, 30]),
        ttl=chance.choice([None, None, None, 10, 100]),
        key=chance.choice([None, None, f"k{chance.randrange(8)}"]),
        headers=chance.choice([None, None, {"h": str(number)}]),
    )


def _settle(queue: Queue, chance: random.Random, job: Job) -> None:
    outcomes: list[Outcome | None] = [None, "fail", "release", "dead"]
    outcome = chance.choice(outcomes)
    with contextlib.suppress(LeaseLost):
        if outcome is None:
            queue.ack(job)
        else:
            queue.nack(job, outcome=outcome, reason=chance.choice(["", "why", "wäre\n"]))


def test_a_plan_reads_each_message_once_in_tasks_of_any_size(scratch: Path) -> None:
    """Also where a task has one message, and the state of the others is not with it."""
    with open_directory(scratch / "store", sync="os") as store:
        queue = store.queue("jobs", KEEPING)
        queue.push_many([Item(body=b"%d" % number, priority=number % 2) for number in range(20)])
        queue.push(b"later", delay=DAY)
        for job in queue.lease_many(6)[:4]:
            queue.nack(job, outcome="dead", reason="r")
        whole = read(scratch / "store", "queue", "jobs")
        alone = read(scratch / "store", "queue", "jobs", records_max=1)
        letters = read(scratch / "store", "dead_letters", "jobs", records_max=1)

    assert sorted(alone, key=_by_id) == sorted(whole, key=_by_id)
    assert len(whole) == 21
    assert [row["reason"] for row in letters] == ["r"] * 4
    assert {row["state"] for row in letters} == {"dead"}


def _by_id(row: Row) -> str:
    return str(row["message_id"])
