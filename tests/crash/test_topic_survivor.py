"""One who is killed while others have the topic open: they see it old or new, and go on.

Without a recovery in between. `topic_operations.py` says what is done, and by whom.
"""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from segue import Store, Topic, TopicReader
from segue.log.options import SyncName
from segue.stores.topic_contract import Member
from tests.crash.channel import Report
from tests.crash.children import DONE
from tests.crash.killing_disk import KillPoint, Moment
from tests.crash.processes import KILLED, ForkServer
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.topic_evidence import (
    Snapshot,
    check_partition,
    snapshot_of,
)
from tests.crash.topic_operations import (
    ACTS,
    READY,
    SECOND,
    TTL,
    Act,
    Actor,
    act_when_told,
    make_template,
    open_here,
)
from tests.crash.topic_story import (
    ADOPTION,
    ALL_RECORDS,
    BATCH,
    GROUP,
    PRODUCER,
    TOPIC,
    make_foreign,
    produced,
)
from tests.waiting import wait_until

POINTS: Final = 40 if TORTURE else 3
"""How many are tried of each act, unless every call of it is."""
EVERY_CALL_STEP: Final = 1 if TORTURE else 5
NAMING: Final = {"rename", "unlink"}
"""After these another name is there. After any other call all is as before the next one."""


class Survivor:
    """Somebody who has had the topic open all the time, in this process."""

    def __init__(self, root: Path, sync: SyncName, act: Act) -> None:
        self.root = root
        self.store = open_here(root, sync)
        self.topic: Topic = self.store.topic(TOPIC)
        self.member: Member = self.topic.group(GROUP).join(ttl=TTL)
        self.member.poll(ALL_RECORDS)
        self.reader: TopicReader | None = None
        if act.reading:
            self.reader = self.topic.reader("eve", "earliest")
            self.reader.poll(1)

    def look(self) -> Snapshot:
        """Return how the topic looks from here; to a newcomer it must look the same."""
        found = snapshot_of(self.store, self.root)
        with open_here(self.root, "os") as store:
            newcomer = snapshot_of(store, self.root)
            assert newcomer == found
            assert store.topic(TOPIC).rules == self.topic.rules
        return found

    def take_all(self) -> None:
        """Take over from whoever is dead, and consume all there is."""
        self.topic.group(GROUP).join(ttl=TTL).close()  # Whoever joins sees who is dead.

        def has_all() -> bool:
            return not self.member.poll() and len(self.member.assignment) == self.topic.partitions

        wait_until(has_all, "all partitions are assigned and read")
        self.member.commit()

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.member.close()
        self.store.close()


class Trial:
    """One act on copies of a template, with somebody looking on."""

    def __init__(
        self, scratch: Path, forks: ForkServer, sync: SyncName, name: str, foreign: Path
    ) -> None:
        self._scratch = scratch
        self._forks = forks
        self._sync = sync
        self._name = name
        self._foreign = foreign
        self._act = ACTS[name]
        self._before = self._done = Snapshot()
        """How it looks before anything is done, and when nobody is killed."""

    def learn(self) -> list[str]:
        """See what the act does when nobody is killed; return the calls it makes."""
        with self._survivor() as survivor:
            reports = self._watch(survivor, None)
            self._done = survivor.look()
        assert reports[-1] == DONE
        assert isinstance(reports[0], list)
        return list(map(str, reports[0]))

    def kill(self, point: KillPoint) -> None:
        """Have somebody killed at `point`, and see that all is well."""
        with self._survivor() as survivor:
            assert self._watch(survivor, point) == [], "it was to be killed"
            check_partitions(survivor.look(), self._before, self._done)
            self._check_goes_on(survivor)
        check_logs(survivor.root)

    @contextmanager
    def _survivor(self) -> Iterator[Survivor]:
        root = self._scratch / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self._scratch / "template", root)
        survivor = Survivor(root, self._sync, self._act)
        try:
            yield survivor
        finally:
            survivor.close()

    def _watch(self, survivor: Survivor, point: KillPoint | None) -> list[Report]:
        """Let another process do it, up to the end or a kill; return what it reports."""
        root, foreign = survivor.root, self._foreign
        with self._forks.start(
            act_when_told, root, self._sync, foreign, self._name, point
        ) as child:
            assert child.read() == READY
            if self._act.prepare is Actor.become_member:
                survivor.member.poll()  # Lets go of what is the other's share.
            if point is None:
                self._before = survivor.look()
            child.tell(READY)
            reports = child.read_rest()
            assert child.join() == (KILLED if point else 0), reports
        return reports

    def _check_goes_on(self, survivor: Survivor) -> None:
        """Assert that the one who looked on can go on, and do again what was broken off."""
        topic = survivor.topic
        fill(topic)
        if survivor.reader is not None:
            # In the segment it is in it reads on as it was before.
            read = [(record.partition, record.offset) for record in survivor.reader]
            expected = left_to_read(topic, "eve")
            assert sorted(set(read)) == sorted(read)
            assert expected <= set(read) <= expected | places_of(self._before)
        survivor.take_all()
        assert {lag.records for lag in topic.group(GROUP).lag()} == {0}
        check_repeated(survivor.store, self._foreign)
        actor = Actor(survivor.store, self._foreign)
        if self._act.prepare is Actor.look:
            self._act.act(actor)
        if actor.member is not None:
            actor.member.close()
        fill(topic)
        assert topic.partitions >= self._done.partitions
        assert len(topic.group(GROUP).info().members) == 1


def fill(topic: Topic) -> None:
    """Append one record to each partition."""
    for partition in range(topic.partitions):
        topic.append("more", partition=partition)


def left_to_read(topic: Topic, name: str) -> set[tuple[int, int]]:
    """Return what a reader that has read the very first record has still to read."""
    starts = {lag.partition: lag.committed for lag in topic.readers()[name]}
    return {(record.partition, record.offset) for record in topic.records(starts)} - {(0, 0)}


def places_of(snapshot: Snapshot) -> set[tuple[int, int]]:
    return {
        (partition, offset) for partition, records in snapshot.records.items() for offset in records
    }


def check_partitions(found: Snapshot, before: Snapshot, done: Snapshot) -> None:
    """Assert that each partition and each place is as before, or as when nobody was killed."""
    assert found.partitions in {before.partitions, done.partitions}
    for partition in range(found.partitions):
        check_partition(partition, found, before, done)
    for name in before.places.keys() | found.places.keys():
        assert found.places.get(name) in {before.places.get(name), done.places.get(name)}, name


def check_repeated(store: Store, foreign: Path) -> None:
    """Assert that what is done again is not there twice."""
    topic = store.topic(TOPIC)
    with topic.producer(PRODUCER) as producer:
        for first in range(0, producer.last_sequence() + 1, BATCH):
            producer.append_many(produced(first), first_sequence=first)
    topic.adopt(foreign, partition=1, key=ADOPTION)
    assert not topic.adopt(foreign, partition=1, key=ADOPTION).is_new
    values = Counter(record.value for record in topic.records() if record.value)
    twice = {value for value, count in values.items() if count > 1} - {b"more"}
    assert not twice
    if SECOND in store.topics():
        assert [record.value for record in store.topic(SECOND).records()] in ([], [b"first"])


def points_of(calls: list[str], act: Act, chance: random.Random) -> list[KillPoint]:
    """Return where to kill."""
    numbers: Counter[str] = Counter()
    points = []
    for call in calls:
        numbers[call] += 1
        moments = [Moment.BEFORE]
        if call == "write_at":
            moments.append(Moment.WITHIN)
        if TORTURE or not act.every_call or call in NAMING:
            moments.append(Moment.AFTER)
        points += [
            KillPoint(operation=call, number=numbers[call], moment=moment) for moment in moments
        ]
    if act.every_call:
        return points[chance.randrange(EVERY_CALL_STEP) :: EVERY_CALL_STEP]
    return chance.sample(points, min(POINTS, len(points)))


@pytest.mark.parametrize("name", ACTS)
def test_whoever_has_the_topic_open_goes_on_when_another_is_killed(
    scratch: Path, forks: ForkServer, name: str
) -> None:
    """At any call: they see it old or new, the same as a newcomer, and can do it again."""
    seed = new_seed()
    chance = random.Random(f"{seed} {name}")
    syncs: tuple[SyncName, ...] = (
        ("always", "os") if TORTURE else (chance.choice(("always", "os")),)
    )
    for sync in syncs:
        make_template(scratch / "template", sync)
        trial = Trial(scratch, forks, sync, name, make_foreign(scratch))
        calls = trial.learn()
        for point in points_of(calls, ACTS[name], chance):
            with naming_seed(seed), naming(f"{sync}, {point}"):
                trial.kill(point)
        shutil.rmtree(scratch / "template")
        shutil.rmtree(scratch / "elsewhere")
