"""What a topic promises when the power fails, tried on the states its disk may be found in."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from segue import Event, Store, Topic
from segue.errors import Damage
from segue.log.options import SyncName
from segue.testing import ManualClock, RecordingDisk
from tests.crash.queue_story import check_logs
from tests.crash.replay import TORTURE, naming, naming_seed, new_seed
from tests.crash.topic_evidence import (
    Told,
    check_goes_on,
    check_successors,
    snapshot_of,
)
from tests.crash.topic_story import (
    GROUP,
    KEYS,
    PARTITIONS,
    PRODUCER,
    READER,
    RULES,
    START_US,
    STORY,
    TOPIC,
    TTL,
    Life,
    name_of,
    open_store,
    play,
)

CUTS: Final = 700 if TORTURE else 20
"""How often the power fails in one recorded life, in each setting."""
LOST_CUTS: Final = 300 if TORTURE else 15
RESTART_SECONDS: Final = 90


class Recorded:
    """A story played on a recorded disk, and what was done when."""

    def __init__(self, root: Path, sync: SyncName, foreign: Path) -> None:
        root.mkdir()
        self.disk = RecordingDisk(root)
        self._begun: list[int] = []
        self._tokens: list[set[int]] = []
        with open_store(root, sync, disk=self.disk) as store:
            life = Life(store, foreign)

            def tell(done: int) -> None:
                assert done == len(self._begun)
                self._begun.append(self.disk.moment)
                self._tokens.append(set(life.tokens))

            play(life, tell)
            life.close()

    def done_at(self, moment: int) -> int:
        """Return how many steps had returned, for certain, at `moment`."""
        return max(0, sum(begun <= moment for begun in self._begun) - 1)

    def tokens_at(self, moment: int) -> set[int]:
        """Return the tokens that somebody had, for certain."""
        return self._tokens[self.done_at(moment)]


def cuts(
    life: Recorded, chance: random.Random, target: Path, count: int
) -> Iterator[tuple[int, Path]]:
    """Yield so many moments, each with an empty place for what is left after it."""
    for _ in range(count):
        yield chance.randint(0, life.disk.moment), target
        shutil.rmtree(target)


def later() -> ManualClock:
    """Return the clock of a machine that was restarted."""
    return ManualClock(START_US + RESTART_SECONDS * 1_000_000)


def test_a_power_cut_keeps_what_was_appended_and_gives_no_token_twice(scratch: Path) -> None:
    """With sync "always": a commit may be forgotten, but nothing else that returned is."""
    told = Told(scratch, "always")
    life = Recorded(scratch / "0", "always", told.foreign)
    seed = new_seed()
    chance = random.Random(seed)
    for moment, target in cuts(life, chance, scratch / "1", CUTS):
        done = life.done_at(moment)
        with naming_seed(seed), naming(f"cut at {moment} in {name_of(done)}"):
            after = life.disk.after_power_cut(target, moment, random.Random(chance.random()))
            with open_store(target, "always", disk=after, clock=later()) as store:
                found = snapshot_of(store, target)
                told.check(found, done, under_way=done < len(STORY), forgetful=True)
            with open_store(target, "always", disk=after, clock=later()) as store:
                assert snapshot_of(store, target) == found, "opening twice gives another answer"
                check_goes_on(store, told.foreign, found, life.tokens_at(moment))
            check_logs(target, disk=after)


def test_in_mode_interval_what_was_compacted_away_is_gone_only_if_its_successor_survived(
    scratch: Path,
) -> None:
    """What was not synced may be lost, but no token comes again and all those who come go on."""
    told = Told(scratch, "interval")
    life = Recorded(scratch / "0", "interval", told.foreign)
    everything = told.everything()
    seed = new_seed()
    chance = random.Random(seed)
    for moment, target in cuts(life, chance, scratch / "1", LOST_CUTS):
        with naming_seed(seed), naming(f"cut at {moment} in {name_of(life.done_at(moment))}"):
            after = life.disk.after_power_cut(target, moment, random.Random(chance.random()))
            with open_store(target, "interval", disk=after, clock=later()) as store:
                found = snapshot_of(store, target)
                check_successors(found, everything)
                check_goes_on(store, told.foreign, found, life.tokens_at(moment))


def test_in_mode_os_a_power_cut_still_leaves_a_topic_that_goes_on(scratch: Path) -> None:
    """Whatever is lost, opening works, new records are read, and a group can begin anew."""
    told = Told(scratch, "os")
    life = Recorded(scratch / "0", "os", told.foreign)
    seed = new_seed()
    chance = random.Random(seed)
    for moment, target in cuts(life, chance, scratch / "1", LOST_CUTS):
        with naming_seed(seed), naming(f"cut at {moment} in {name_of(life.done_at(moment))}"):
            after = life.disk.after_power_cut(target, moment, random.Random(chance.random()))
            with open_store(target, "os", disk=after, clock=later()) as store:
                _check_begins_anew(store)


def _check_begins_anew(store: Store) -> None:
    topic = store.topic(TOPIC)
    topic.append("first", partition=0)  # Where the cut came before it was made, it is now.
    partitions = range(topic.partitions)
    topic.group(GROUP).reset("latest")
    with topic.group(GROUP).join() as member, topic.reader(READER, "latest") as reader:
        assert member.assignment.keys() == set(partitions)
        for partition in partitions:
            topic.append("new", key="new", partition=partition)
        for user in (member, reader):
            found = [(record.partition, record.value) for record in user.poll()]
            assert sorted(found) == [(partition, b"new") for partition in partitions]
            user.commit()
            assert user.poll() == []
        assert {lag.records for lag in (*topic.group(GROUP).lag(), *reader.lag())} == {0}
    with topic.producer(PRODUCER) as producer:
        assert producer.append("made", partition=0) is not None
    topic.roll()
    with suppress(Damage):  # Of what was never synced; it is left as it is.
        topic.compact()
    topic.clean()


# Single moments ----------------------------------------------------------------------------------


class Machine:
    """A store on a machine that can lose power; its ticks start over each time."""

    def __init__(self, scratch: Path, sync: SyncName) -> None:
        self._scratch = scratch
        self._sync = sync
        self._number = 0
        self._clock = ManualClock(START_US)
        self._path().mkdir(parents=True)
        self.disk = RecordingDisk(self._path())

    def _path(self) -> Path:
        return self._scratch / f"machine {self._number}"

    @contextmanager
    def running(self) -> Iterator[Topic]:
        """Have the topic open until the power is cut or the block is over."""
        with open_store(self._path(), self._sync, disk=self.disk, clock=self._clock) as store:
            yield store.topic(TOPIC, partitions=PARTITIONS, rules=RULES)

    def cut(self, seed: int, *, moment: int | None = None) -> None:
        """Cut the power at `moment`, by default now, and start the machine again."""
        self._number += 1
        self._clock = ManualClock(self._clock() + RESTART_SECONDS * 1_000_000)
        moment = self.disk.moment if moment is None else moment
        self.disk = self.disk.after_power_cut(self._path(), moment, random.Random(seed))


SEEDS: Final = range(80 if TORTURE else 5)


@pytest.mark.parametrize("sync", ["always", "interval"])
def test_no_token_of_a_group_comes_again_however_often_the_power_fails(
    scratch: Path, sync: SyncName
) -> None:
    """A token is on the device, under its name, before anybody has it."""
    for seed in SEEDS:
        machine = Machine(scratch / str(seed), sync)
        highest = -1
        for round_ in range(4):
            with naming(f"seed {seed}, round {round_}"), machine.running() as topic:
                for _ in range(3):
                    member = topic.group(GROUP).join(ttl=TTL)
                    tokens = set(member.assignment.values())
                    assert min(tokens) > highest, f"{tokens} after {highest}"
                    highest = max(tokens)
                    moment = machine.disk.moment
                    member.close()
                machine.cut(100 * seed + round_, moment=moment)


def test_what_a_group_committed_before_its_segments_were_deleted_outlasts_a_power_cut(
    scratch: Path,
) -> None:
    """Else whoever reads on would be told that records are gone which nobody took from it."""
    for seed in SEEDS:
        machine = Machine(scratch / str(seed), "always")
        with machine.running() as topic, naming(f"seed {seed}"):
            for _ in range(3):
                topic.append_many([Event(value=b"x" * 50, partition=0) for _ in range(5)])
                topic.roll()
            with topic.group(GROUP).join(ttl=TTL) as member, topic.reader(READER) as reader:
                for user in (member, reader):
                    assert len(user.poll(12)) == 12
                    user.commit()
            assert topic.clean().deleted == {0: [0, 1]}
            machine.cut(seed)
            with machine.running() as after:
                member, reader = after.group(GROUP).join(ttl=TTL), after.reader(READER)
                for user in (member, reader):
                    assert [record.offset for record in user.poll()] == [12, 13, 14]
                    user.close()


def values_of(kind: str) -> dict[bytes | None, bytes | None]:
    """Return what there is under each key."""
    return {f"{key}".encode(): f"{kind} {key}".encode() for key in range(KEYS)}


def test_what_replaced_a_record_is_on_the_device_before_compaction_removes_that(
    scratch: Path,
) -> None:
    """In mode "interval", where nobody else has synced it: each key keeps its old or new value."""
    root = scratch / "before"
    root.mkdir()
    disk = RecordingDisk(root)
    with open_store(root, "interval", disk=disk) as store:
        topic = store.topic(TOPIC, partitions=1, rules=RULES)
        topic.append_many([Event(value=f"old {key}", key=f"{key}") for key in range(KEYS)])
        topic.roll()
        begun = disk.moment
        topic.append_many([Event(value=f"new {key}", key=f"{key}") for key in range(KEYS)])
        assert topic.compact().removed_records == KEYS
        ended = disk.moment
    for moment in range(begun, ended + 1):
        for seed in SEEDS:
            with naming(f"cut at {moment}, seed {seed}"):
                target = scratch / "after"
                after = disk.after_power_cut(target, moment, random.Random(seed))
                with open_store(target, "interval", disk=after, clock=later()) as store:
                    records = list(store.topic(TOPIC).records())
                shutil.rmtree(target)
                found = {record.key: record.value for record in records}
                assert found in (values_of("old"), values_of("new"))


def test_what_a_producer_appended_is_known_after_any_number_of_power_cuts(scratch: Path) -> None:
    """Also where all that it made was deleted since: repeating it never appends it again."""
    seed = new_seed()
    chance = random.Random(seed)
    for number in SEEDS:
        machine = Machine(scratch / str(number), "always")
        sequence = -1
        for round_ in range(4):
            with machine.running() as topic, naming_seed(seed), naming(f"{number} {round_}"):
                with topic.producer(PRODUCER) as producer:
                    last = producer.last_sequence()
                    assert last == sequence
                    for again in range(sequence + 1):
                        assert producer.append("x", partition=0, sequence=again) is None
                    producer.append("x", partition=0, sequence=last + 1)
                appended, sequence = machine.disk.moment, last + 1
                with topic.reader(READER, "latest"):
                    topic.roll()
                    topic.reader(READER, "latest").close()
                    topic.clean()
                moment = chance.randint(appended, machine.disk.moment)
                machine.cut(chance.getrandbits(32), moment=moment)
