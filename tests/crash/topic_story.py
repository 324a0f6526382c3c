"""A life of a topic, step by step.

The same story is killed, loses power and meets a failing disk. `topic_evidence.py` holds what is
then found to what is found where nothing of that happens.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import segue
import segue.stores.file.store
from segue import Event, Producer, Store, Topic, TopicReader, TopicRules
from segue.errors import SegueError
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.stores.topic_contract import Member
from segue.testing import ManualClock

TOPIC: Final = "orders"
GROUP: Final = "billing"
READER: Final = "ann"
PRODUCER: Final = "till"
ADOPTION: Final = "lot 7"
RULES: Final = TopicRules(segment_bytes=16 * 1024, tombstone_seconds=0)
PARTITIONS: Final = 2
GROWN: Final = 3
KEYS: Final = 4
BATCH: Final = 6
"""How many records a producer appends at a time."""
TTL: Final = 60
START_US: Final = 1_800_000_000_000_000
ALL_RECORDS: Final = 10_000


class Life:
    """A topic and those who use it, in one process."""

    def __init__(self, store: Store, foreign: Path) -> None:
        self.store = store
        self.topic: Topic = store.topic(TOPIC)
        self.foreign = foreign
        self.members: list[Member] = []
        self.tokens: set[int] = set()
        """All that anybody was ever given."""
        self._number = 0
        self._reader: TopicReader | None = None
        self._producer: Producer | None = None

    def close(self) -> None:
        """Let go of everything but the store."""
        users = [*self.members, self._reader, self._producer]
        for user in users:
            if user is not None:
                with contextlib.suppress(SegueError):
                    user.close()

    # Steps -----------------------------------------------------------------------------------

    def create(self) -> None:
        self.topic = self.store.topic(TOPIC, partitions=PARTITIONS, rules=RULES)

    def append(self) -> None:
        """Append some records to each partition, among them new ones of keys there are."""
        events = []
        for partition in range(self.topic.partitions):
            for _ in range(5):
                self._number += 1
                key = f"k{partition}.{self._number % KEYS}"
                events.append(Event(value=f"v{self._number}", key=key, partition=partition))
        self.topic.append_many(events)

    def append_one(self) -> None:
        self._number += 1
        self.topic.append(f"v{self._number}", headers={"n": str(self._number)}, partition=0)

    def bury(self) -> None:
        self.topic.append(None, key="k0.1", partition=0)

    def register(self) -> None:
        self._reader = self.topic.reader(READER)

    def read(self) -> None:
        assert self._reader is not None
        poll(self._reader, 7)
        self._reader.commit()

    def read_all(self) -> None:
        assert self._reader is not None
        poll(self._reader, ALL_RECORDS)
        self._reader.commit()

    def join(self) -> None:
        self.members.append(self.topic.group(GROUP).join(ttl=TTL))
        self._note_tokens()

    def rebalance(self) -> None:
        for member in self.members:
            poll(member, 3)
            self._note_tokens()

    def work(self) -> None:
        for member in self.members:
            poll(member, 4)
            self._note_tokens()
            member.commit()

    def leave(self) -> None:
        self.members.pop().close()

    def _note_tokens(self) -> None:
        for member in self.members:
            self.tokens.update(member.assignment.values())

    def produce(self) -> None:
        """Append the producer's next batch."""
        self._producer = self._producer or self.topic.producer(PRODUCER)
        first = self._producer.last_sequence() + 1
        self._producer.append_many(produced(first), first_sequence=first)

    def roll(self) -> None:
        self.topic.roll()

    def compact(self) -> None:
        self.topic.compact()

    def clean(self) -> None:
        self.topic.clean()

    def grow(self) -> None:
        self.topic.grow(GROWN)

    def adopt(self) -> None:
        self.topic.adopt(self.foreign, partition=1, key=ADOPTION)


def poll(user: Member | TopicReader, count: int) -> None:
    """Take so many records, or all there are; a poll may return fewer if one cannot be read."""
    while count > 0 and (records := user.poll(count)):
        count -= len(records)


def produced(first: int) -> list[Event]:
    """Return the batch of the producer that begins with sequence number `first`.

    Each goes to a partition by its number alone, whether or not any were added.
    """
    return [
        Event(
            value=f"p{sequence}",
            key=f"q{sequence % 4}" if sequence % 3 else None,
            partition=sequence % PARTITIONS,
        )
        for sequence in range(first, first + BATCH)
    ]


STORY: Final[tuple[Callable[[Life], None], ...]] = (
    *(Life.create, Life.append, Life.register, Life.read, Life.join, Life.work, Life.append_one),
    *(Life.join, Life.rebalance, Life.rebalance, Life.append, Life.work, Life.produce),
    *(Life.roll, Life.append, Life.produce, Life.roll, Life.compact, Life.adopt),
    *(Life.grow, Life.append, Life.work, Life.rebalance, Life.work, Life.leave),
    *(Life.rebalance, Life.work, Life.roll, Life.bury, Life.roll, Life.read_all),
    *(Life.work, Life.work, Life.clean, Life.produce, Life.roll, Life.append),
    *(Life.compact, Life.adopt, Life.work, Life.leave),
)


def name_of(place: int) -> str:
    """Return what a step is called."""
    return f"step {place}, {STORY[place].__name__}" if place < len(STORY) else "the end"


def play(life: Life, told: Callable[[int], None]) -> None:
    """Play the story and say before each step, and after the last, how many are done."""
    for place, act in enumerate(STORY):
        told(place)
        act(life)
    told(len(STORY))


def open_store(
    root: Path, sync: SyncName, *, disk: Disk | None = None, clock: ManualClock | None = None
) -> Store:
    """Open the store of a story; by default at the time when all stories begin."""
    clock = clock or ManualClock(START_US)
    return segue.open(
        root, sync=sync, sync_interval_ms=60_000, disk=disk, clock=clock, ticks=clock.ticks
    )


def make_foreign(directory: Path) -> Path:
    """Write a sealed segment of another topic and return where it is."""
    path = directory / "foreign.q"
    with open_store(directory / "elsewhere", "os") as store:
        topic = store.topic("other")
        topic.append_many([Event(value=f"f{number}", key=f"f{number % 3}") for number in range(9)])
        topic.roll()
        with path.open("wb") as file:
            topic.send_segment(0, 0, file)
    return path
