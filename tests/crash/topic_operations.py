"""Single operations on a topic, each done by a process of its own that may be killed in it.

Others have the topic open all the while: nobody recovers anything, so what they see is what the
one who was killed left to them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import segue
from segue import Event, Store, Topic, TopicRules
from segue.log.options import SyncName
from segue.stores.topic_contract import Member
from tests.crash.channel import Channel
from tests.crash.children import DONE
from tests.crash.killing_disk import KillingDisk, KillPoint
from tests.crash.topic_story import (
    ADOPTION,
    GROUP,
    GROWN,
    PARTITIONS,
    PRODUCER,
    READER,
    RULES,
    TOPIC,
    produced,
)

READY: Final = "ready"
TTL: Final = 3_600
CHANGED: Final = TopicRules(
    segment_bytes=RULES.segment_bytes, tombstone_seconds=0, lag_max=1_000_000
)
SECOND: Final = "second"
"""A topic that is yet to be made."""


class ArmedDisk(KillingDisk):
    """Kills from when it is told to on. Writes every record by a call."""

    stores_mapped = False

    def arm(self, point: KillPoint | None) -> None:
        self.trace.clear()
        self._point = point
        self._left = point.number if point is not None else 0


class Actor:
    """The process that does it."""

    def __init__(self, store: Store, foreign: Path) -> None:
        self.store = store
        self.topic: Topic = store.topic(TOPIC)
        self.foreign = foreign
        self.member: Member | None = None

    # What comes before, and is survived ---------------------------------------------------------

    def look(self) -> None:
        """Have every partition open."""
        self.topic.offsets()

    def become_member(self) -> None:
        self.look()
        self.join()

    # What may kill it ----------------------------------------------------------------------------

    def create(self) -> None:
        topic = self.store.topic(SECOND, partitions=PARTITIONS, rules=RULES)
        topic.append("first", partition=1)

    def configure(self) -> None:
        self.topic.configure(CHANGED)

    def grow(self) -> None:
        self.topic.grow(GROWN)

    def append(self) -> None:
        self.topic.append_many(
            [Event(value=f"a{number}", partition=number % PARTITIONS) for number in range(4)]
        )

    def produce(self) -> None:
        with self.topic.producer(PRODUCER) as producer:
            first = producer.last_sequence() + 1
            producer.append_many(produced(first), first_sequence=first)

    def adopt(self) -> None:
        self.topic.adopt(self.foreign, partition=1, key=ADOPTION)

    def compact(self) -> None:
        self.topic.compact(partitions=[0])

    def clean(self) -> None:
        self.topic.clean(partitions=[0])

    def register(self) -> None:
        self.topic.reader("bob").close()

    def forget(self) -> None:
        self.topic.remove_reader(READER)

    def join(self) -> None:
        self.member = self.topic.group(GROUP).join(ttl=TTL)

    def take(self) -> None:
        self._joined.poll(1)

    def commit(self) -> None:
        self._joined.commit(dict.fromkeys(self._joined.assignment, 5))

    def leave(self) -> None:
        self._joined.close()

    @property
    def _joined(self) -> Member:
        assert self.member is not None
        return self.member


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What is done, and how others look on."""

    act: Callable[[Actor], None]
    prepare: Callable[[Actor], None] = Actor.look
    begin: Callable[[Actor], None] = Actor.look
    """What comes in between, once the others have made way."""
    reading: bool = True
    """Whether somebody else is reading from the start, and so has the first segment open."""
    every_call: bool = False
    """Whether each of its calls is tried, also in a short run."""


ACTS: Final = {
    "create": Act(act=Actor.create),
    "configure": Act(act=Actor.configure),
    "grow": Act(act=Actor.grow),
    "append": Act(act=Actor.append),
    "produce": Act(act=Actor.produce),
    "adopt": Act(act=Actor.adopt),
    "compact": Act(act=Actor.compact, every_call=True),
    "clean": Act(act=Actor.clean, reading=False, every_call=True),
    "register": Act(act=Actor.register),
    "forget": Act(act=Actor.forget, reading=False),
    "join": Act(act=Actor.join),
    "take": Act(act=Actor.take, prepare=Actor.become_member),
    "commit": Act(act=Actor.commit, prepare=Actor.become_member, begin=Actor.take),
    "leave": Act(act=Actor.leave, prepare=Actor.become_member, begin=Actor.take),
}


def open_here(root: Path, sync: SyncName, disk: KillingDisk | None = None) -> Store:
    """Open the store, with clocks that go."""
    return segue.open(root, sync=sync, sync_interval_ms=60_000, disk=disk)


def make_template(root: Path, sync: SyncName) -> None:
    """Make a topic in which there is something to do for everybody."""
    with open_here(root, sync) as store:
        topic = store.topic(TOPIC, partitions=PARTITIONS, rules=RULES)
        for round_ in range(3):
            topic.append_many(
                [
                    Event(
                        value=f"v{round_}.{partition}.{number}",
                        key=f"k{number}",
                        partition=partition,
                    )
                    for partition in range(PARTITIONS)
                    for number in range(3)
                ]
            )
            if round_ == 1:
                topic.append(None, key="k1", partition=0)
                topic.append_many([Event(value="no key", partition=0)])
            topic.roll()
        with topic.producer(PRODUCER) as producer:
            producer.append_many(produced(0), first_sequence=0)
        with topic.reader(READER) as reader:
            reader.commit({0: 8, 1: 6})
        with topic.group(GROUP).join(ttl=TTL) as member:
            member.commit({0: 4, 1: 3})


def act_when_told(
    channel: Channel,
    root: Path,
    sync: SyncName,
    foreign: Path,
    name: str,
    point: KillPoint | None,
) -> None:
    """Prepare, say so, and do one thing when told to; report the calls it made."""
    disk = ArmedDisk()
    store = open_here(root, sync, disk)
    actor = Actor(store, foreign)
    ACTS[name].prepare(actor)
    channel.report(READY)
    channel.wait_for_order()
    ACTS[name].begin(actor)
    disk.arm(point)
    ACTS[name].act(actor)
    calls = list(disk.trace)
    disk.arm(None)
    channel.report(calls)
    if actor.member is not None:
        actor.member.close()
    store.close()
    channel.report(DONE)
