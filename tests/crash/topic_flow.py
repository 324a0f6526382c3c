"""What producers and consumers of a topic do until they are killed, and go on with after it.

A producer's records follow from its name and their sequence numbers, so whoever finds one can tell
who made it. Consumers put what they get into a database, each batch together with the place they
are at in one transaction: a sink that has everything exactly once, whoever dies, if only the topic
keeps its promises. What is not as it should be is told by `Broken`, and ends the process.
"""

import random
import sqlite3
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import segue
import segue.stores.file.store
from segue import Event, Topic, TopicRecord, TopicRules
from segue.errors import PartitionLost
from segue.log.options import SyncName
from segue.stores.topic_contract import Member
from tests.crash.channel import Channel
from tests.waiting import LIMIT_SECONDS

TOPIC: Final = "orders"
GROUP: Final = "billing"
SEGMENT_BYTES: Final = 96 * 1024
"""Small, so that partitions begin segments all the time."""
KEYS: Final = 40
"""How many keys a producer has; each is in one partition."""
KEYLESS_EVERY: Final = 9
DONE: Final = "done"
WRONG: Final = "wrong"
POLL_SECONDS: Final = 0.25
TTL_SECONDS: Final = 3_600
"""Time to live of a member, longer than any test: only killed members are evicted."""


Row = tuple[int, int, str, str | None]
"""Partition, offset, value and key of a record."""


class Broken(Exception):
    """A promise was broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """How much flows, and how."""

    root: Path
    sync: SyncName
    seed: int
    per_producer: int
    batch: int
    partitions: int = 12
    clean: bool = False
    """Whether segments that the group has left behind are deleted on the way."""
    ttl_seconds: float = TTL_SECONDS
    stops: float = 0
    """How often one is stopped for a while instead of killed."""

    @property
    def sink(self) -> Path:
        return self.root / "sink.db"

    def open(self) -> segue.Store:
        return segue.open(self.root / "store", sync=self.sync, sync_interval_ms=5)

    def create(self) -> None:
        """Make the topic, with the group registered, and the sink."""
        rules = TopicRules(segment_bytes=SEGMENT_BYTES, clean_on_roll=self.clean)
        with self.open() as store:
            topic = store.topic(TOPIC, partitions=self.partitions, rules=rules)
            topic.group(GROUP).join().close()
        Sink.create(self.sink)

    def event(self, producer: str, sequence: int) -> Event:
        """Return one record of a producer."""
        if sequence % KEYLESS_EVERY == 0:
            return Event(value=f"{producer} {sequence}")
        key = random.Random(f"{self.seed} {producer} {sequence}").randrange(KEYS)
        return Event(
            value=f"{producer} {sequence}",
            key=f"{producer}-{key}",
            headers={"of": producer} if sequence % 5 == 0 else None,
        )

    def batches(self, producer: str, last_sequence: int) -> Iterator[tuple[int, list[Event]]]:
        """Yield what is left to append: the batch of the last one that is there is in doubt."""
        first = max(0, last_sequence) // self.batch * self.batch
        while first < self.per_producer:
            end = min(first + self.batch, self.per_producer)
            yield first, [self.event(producer, sequence) for sequence in range(first, end)]
            first = end


# Producing ---------------------------------------------------------------------------------------


def produce(channel: Channel, flow: Flow, name: str) -> None:
    """Append what is left to append, by whatever is known of it in the topic alone."""
    with _telling(channel), flow.open() as store:
        topic = store.topic(TOPIC)
        with topic.producer(name) as producer:
            chance = random.Random(f"{flow.seed} {name} {producer.last_sequence()}")
            for first, events in flow.batches(name, producer.last_sequence()):
                if chance.random() < 0.1:
                    for sequence, event in enumerate(events, first):
                        producer.append(
                            event.value, key=event.key, headers=event.headers, sequence=sequence
                        )
                else:
                    producer.append_many(events, first_sequence=first)
    channel.report(DONE)


# Consuming ---------------------------------------------------------------------------------------


def consume(channel: Channel, flow: Flow, name: str) -> None:
    """Read our share into the sink until told to end."""
    with _telling(channel), flow.open() as store:
        consumer = Consumer(store.topic(TOPIC), Sink(flow.sink), flow, name)
        while not channel.has_order():
            consumer.step()
        consumer.member.close()
    channel.report(DONE)


class Consumer:
    """A member of the group whose work is done in the sink, and only then committed."""

    def __init__(self, topic: Topic, sink: "Sink", flow: Flow, name: str) -> None:
        self._sink = sink
        self._name = name
        self._chance = random.Random(f"{flow.seed} {name}")
        self._gained: list[int] = []
        self._is_member = False
        self.member: Member = topic.group(GROUP).join(
            ttl=flow.ttl_seconds, owner=name, on_assign=self._on_assign
        )
        self._is_member = True
        self._settle_in()

    def _on_assign(self, partitions: list[int]) -> None:
        self._gained += partitions
        if self._is_member:  # The first time it is called, nobody has the member yet.
            self._settle_in()

    def _settle_in(self) -> None:
        """Claim what we were assigned, and go on in it where the sink is."""
        tokens = self.member.assignment
        claimed = {partition: tokens[partition] for partition in self._gained}
        self._gained.clear()
        self.member.seek(self._sink.claim(claimed, self._name))

    def step(self) -> None:
        """Poll once, and put what came into the sink."""
        records = self.member.poll(self._chance.choice((20, 300, 1_000)), timeout=POLL_SECONDS)
        if records:
            self._sink.put(records, self.member.assignment)
        with suppress(PartitionLost):
            self.member.commit()


class Sink:
    """What was consumed, and up to where; guarded by the tokens of the assignments."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=LIMIT_SECONDS, isolation_level=None)
        # No power fails here, and a kill takes nothing from a file.
        self._database.execute("PRAGMA synchronous = OFF")

    @classmethod
    def create(cls, path: Path) -> None:
        """Make an empty one."""
        sink = cls(path)
        sink._database.executescript(
            """
            PRAGMA journal_mode = WAL;
            CREATE TABLE got (partition INT, place INT, body TEXT, key TEXT,
                              PRIMARY KEY (partition, place)) WITHOUT ROWID;
            CREATE TABLE place (partition INT PRIMARY KEY, token INT, next INT);
            CREATE TABLE claim (partition INT, token INT, who TEXT,
                                PRIMARY KEY (partition, token)) WITHOUT ROWID;
            """
        )
        sink.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def claim(self, tokens: Mapping[int, int], who: str) -> dict[int, int]:
        """Keep everybody with an older token out; return where each partition goes on."""
        places = {}
        with self._transaction() as database:
            for partition, token in tokens.items():
                database.execute("INSERT INTO claim VALUES (?, ?, ?)", (partition, token, who))
                known, place = self._place(partition)
                if known < token:
                    database.execute(
                        "INSERT OR REPLACE INTO place VALUES (?, ?, ?)", (partition, token, place)
                    )
                places[partition] = place
        return places

    def put(self, records: list[TopicRecord], tokens: Mapping[int, int]) -> None:
        """Take in records and where to go on, but none from whose partition is another's by now."""
        with self._transaction() as database:
            by_partition = groupby(records, key=lambda record: record.partition)
            for partition, group in by_partition:
                batch = list(group)
                known, place = self._place(partition)
                if known != tokens.get(partition, -1):
                    continue
                offsets = [record.offset for record in batch]
                if offsets != list(range(place, place + len(batch))):
                    raise Broken(f"partition {partition} goes on at {place}, not with {offsets}")
                database.executemany("INSERT INTO got VALUES (?, ?, ?, ?)", map(row_of, batch))
                database.execute(
                    "UPDATE place SET next = ? WHERE partition = ?", (offsets[-1] + 1, partition)
                )

    def _place(self, partition: int) -> tuple[int, int]:
        """Return the highest token a partition was claimed with, and where it goes on."""
        row = self._database.execute(
            "SELECT token, next FROM place WHERE partition = ?", (partition,)
        ).fetchone()
        return (-1, 0) if row is None else (row[0], row[1])

    def rows(self) -> list[Row]:
        """Return all there is."""
        return self._database.execute("SELECT * FROM got ORDER BY partition, place").fetchall()

    def claims(self) -> int:
        """Return how often a partition was taken over."""
        count: int = self._database.execute("SELECT count(*) FROM claim").fetchone()[0]
        return count

    def close(self) -> None:
        self._database.close()


def row_of(record: TopicRecord) -> Row:
    """Return a record as the sink has it."""
    value = (record.value or b"").decode()
    key = None if record.key is None else record.key.decode()
    return record.partition, record.offset, value, key


# In the end --------------------------------------------------------------------------------------


def check_complete(flow: Flow, producers: list[str], rows: list[Row]) -> None:
    """Assert that `rows` are all records of all producers, each once, dense and in order."""
    expected = {
        f"{producer} {sequence}": flow.event(producer, sequence)
        for producer in producers
        for sequence in range(flow.per_producer)
    }
    values = [value for _, _, value, _ in rows]
    assert len(values) == len(set(values)), "duplicates"
    assert set(values) == set(expected), f"missing: {sorted(set(expected) - set(values))[:10]}"
    last: dict[tuple[int, str], int] = {}
    homes: dict[str, int] = {}
    places = dict.fromkeys(range(flow.partitions), 0)
    for partition, offset, value, key in rows:
        assert offset == places[partition], f"{partition}: {offset} after {places[partition] - 1}"
        places[partition] += 1
        producer, sequence = value.split()
        assert last.get((partition, producer), -1) < int(sequence), f"out of order: {value}"
        last[partition, producer] = int(sequence)
        assert key == expected[value].key
        if key is not None:
            assert homes.setdefault(key, partition) == partition, f"{key} is in two partitions"


@contextmanager
def _telling(channel: Channel) -> Iterator[None]:
    """Tell the test what went wrong, whatever it was."""
    try:
        yield
    except BaseException:
        channel.report([WRONG, traceback.format_exc()[-3_000:]])
        raise
