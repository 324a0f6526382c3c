"""What keeping a topic in order takes: rebalancing a group, retention, compaction."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from benchmarks.child import MEMBER_TOPIC as TOPIC
from benchmarks.children import Child
from benchmarks.race import Contestant, Figure, Job, race_stretches
from benchmarks.report import Section
from benchmarks.session import Session
from benchmarks.stores import BATCH_RECORDS, Payloads, require_all
from segue import Event, TopicRules
from segue.log.layout import SEGMENT_BYTES_DEFAULT
from segue.stores.opening import open_directory

GROUP_PARTITIONS: Final = 100
KIB: Final = 1024
CLEAN_SIZES_BYTES: Final = (64 * KIB, SEGMENT_BYTES_DEFAULT)
CLEAN_BYTES_MAX: Final = 512 * KIB * KIB
"""How much is cleaned at once; of large segments fewer, then."""
CLEAN_VALUE_BYTES: Final = 1000
CLEAN_FILL: Final = 0.6
"""How much of a segment is values, at most: the rest is kept for the table of its records."""
BARE: Final = "bare rename, sync, unlink"
RECORDS_PER_KEY: Final = 10
KEY_SEED: Final = 5
COMPACT_VALUE_BYTES: Final = 100
COMPACT_PARTITIONS: Final = (1, 12)


# Groups ------------------------------------------------------------------------------------


def rebalancing(session: Session) -> Section:
    """Measure how long it takes until all partitions are held again, by all who should."""
    rounds = session.effort.rebalance_rounds
    minute = session.minute()
    with session.place() as place, ExitStack() as stack:
        with open_directory(place / "store", sync="os") as store:
            store.topic(TOPIC, partitions=GROUP_PARTITIONS).append(b"x")
        stays = _Follower(place / "store")
        stack.callback(stays.end)
        stays.join(GROUP_PARTITIONS)
        taken_ms: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, seconds in _round(place / "store", stays):
                taken_ms.setdefault(name, []).append(seconds * 1000)
    return Section(
        benchmark="topic",
        title=f"a group with {GROUP_PARTITIONS} partitions changes",
        setting=(
            'sync="os", shared, a process for each member, all idle in poll(timeout=1); until '
            f"all partitions are held as they should be, {rounds} rounds"
        ),
        minute=minute,
        figures=[
            Figure(name=name, samples=tuple(samples), note=_REBALANCING_NOTES[name])
            for name, samples in taken_ms.items()
        ],
        unit="ms",
    )


_OPENS: Final = "a process opens all partitions"
_JOINS: Final = "a second member joins"
_LEAVES: Final = "one of two leaves"
_KILLED: Final = "one of two is killed"
_REBALANCING_NOTES: Final = {
    _OPENS: "before it joins; not part of the next",
    _JOINS: "the first one lets go of half",
    _LEAVES: "close()",
    _KILLED: "SIGKILL; the other one looks now and then",
}


def _round(path: Path, stays: "_Follower") -> Iterator[tuple[str, float]]:
    half = GROUP_PARTITIONS // 2
    with _joined(path) as other:
        yield _OPENS, other.open_seconds
        yield _JOINS, other.join(half)
        stays.wait_for(half)
        begin = other.leave()
        yield _LEAVES, stays.wait_for(GROUP_PARTITIONS) - begin
    with _joined(path) as other:
        other.join(half)
        stays.wait_for(half)
        begin = monotonic()
        other.end()
        yield _KILLED, stays.wait_for(GROUP_PARTITIONS) - begin


@contextmanager
def _joined(path: Path) -> "Iterator[_Follower]":
    follower = _Follower(path)
    try:
        yield follower
    finally:
        follower.end()


class _Follower:
    """A process with a member of the group. All processes of a machine share one monotonic time."""

    def __init__(self, path: Path) -> None:
        self._child = Child("member", path)
        self.open_seconds = self._child.hear()["open_seconds"]

    def join(self, partitions: int) -> float:
        """Join, and return how long it took until we hold so many."""
        begin = monotonic()
        self._child.tell("join")
        return self.wait_for(partitions) - begin

    def wait_for(self, partitions: int) -> float:
        """Return when the member had so many partitions."""
        while (said := self._child.hear())["partitions"] != partitions:
            pass
        return said["at"]

    def leave(self) -> float:
        """Leave the group and end; return when that began."""
        self._child.tell("leave")
        while "leaves_at" not in (said := self._child.hear()):
            pass
        return said["leaves_at"]

    def end(self) -> None:
        """Kill the process, if it still runs."""
        self._child.kill()


# Retention ---------------------------------------------------------------------------------


def cleaning(session: Session) -> Iterator[Section]:
    """Delete segments that nobody needs, small ones and those of the usual size."""
    for segment_bytes in CLEAN_SIZES_BYTES:
        count = min(session.effort.clean_segments, CLEAN_BYTES_MAX // segment_bytes)
        yield _cleaning(session, segment_bytes, count)


def _cleaning(session: Session, segment_bytes: int, count: int) -> Section:
    rounds = session.effort.upkeep_rounds
    minute = session.minute()
    values = Payloads(CLEAN_VALUE_BYTES).take(int(segment_bytes * CLEAN_FILL) // CLEAN_VALUE_BYTES)
    with (
        session.place() as place,
        open_directory(place / "store", sync="os", exclusive=True) as store,
    ):
        topic = store.topic(TOPIC, rules=TopicRules(segment_bytes=segment_bytes))

        def clean(count: int) -> Job:
            for _ in range(count):
                topic.append_many(values)
                topic.roll()
            topic.flush()  # As if they had been there for long.
            return lambda: require_all(topic.clean(keep_bytes=0).count, count)

        figures = race_stretches(
            [
                Contestant(name="Segue clean()", prepare=clean),
                Contestant(name=BARE, prepare=partial(_deletions, place, b"".join(values))),
            ],
            count=count,
            rounds=rounds,
            turns=1,
        )
    return Section(
        benchmark="topic",
        title=f"retention, {count:,} segments of {segment_bytes // KIB:,} KiB",
        setting=f'clean(keep_bytes=0), one partition, sync="os", exclusive, {rounds} rounds',
        minute=minute,
        figures=[_with_bytes(figure, len(values) * CLEAN_VALUE_BYTES) for figure in figures],
        unit="segments/s",
        baselines=(BARE,),
    )


def _deletions(place: Path, data: bytes, count: int) -> Job:
    """Return the job that deletes as many files in order: the least it can cost."""
    directory = place / "files"
    directory.mkdir(exist_ok=True)
    paths = [directory / str(number) for number in range(count)]
    for path in paths:
        path.write_bytes(data)
        _sync(path)

    def job() -> None:
        for path in paths:
            aside = path.rename(path.with_suffix(".deleted"))
            _sync(directory)
            aside.unlink()

    return job


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Compaction --------------------------------------------------------------------------------


def compacting(session: Session) -> Section:
    """Remove all but the newest record of each key."""
    records, rounds = session.effort.compact_records, session.effort.upkeep_rounds
    minute = session.minute()
    with session.place() as place, ExitStack() as stack:
        contestants = []
        for partitions in COMPACT_PARTITIONS:
            name = f"Segue compact(), {partitions} partition{'s' * (partitions > 1)}"
            topics = _Topics(place / str(partitions), partitions)
            stack.callback(topics.close)
            contestants.append(Contestant(name=name, prepare=topics.compaction))
        figures = race_stretches(contestants, count=records, rounds=rounds, turns=1)
    size_bytes = len(_key(0)) + COMPACT_VALUE_BYTES
    return Section(
        benchmark="topic",
        title=f"compaction, {records:,} records with {records // RECORDS_PER_KEY:,} keys",
        setting=(
            f"compact(), keys at random, values of {COMPACT_VALUE_BYTES} bytes, "
            f'sync="os", exclusive, a new topic for each of {rounds} rounds'
        ),
        minute=minute,
        figures=[_with_bytes(figure, size_bytes) for figure in figures],
    )


class _Topics:
    """Topics to compact, each in a store of its own; one at a time."""

    def __init__(self, path: Path, partitions: int) -> None:
        self._path = path
        self._partitions = partitions
        self._store = ExitStack()

    def compaction(self, count: int) -> Job:
        """Return the job that compacts a new topic with so many records."""
        self.close()
        store = open_directory(self._path, sync="os", exclusive=True)
        self._store.callback(shutil.rmtree, self._path)
        self._store.callback(store.close)
        topic = store.topic(TOPIC, partitions=self._partitions)
        values = Payloads(COMPACT_VALUE_BYTES).batch
        draw = random.Random(KEY_SEED)
        keys: set[int] = set()
        for _ in range(count // BATCH_RECORDS):
            drawn = draw.choices(range(count // RECORDS_PER_KEY), k=BATCH_RECORDS)
            keys.update(drawn)
            pairs = zip(drawn, values, strict=True)
            topic.append_many([Event(value=value, key=_key(number)) for number, value in pairs])
        topic.roll()
        return lambda: require_all(topic.compact().removed_records, count - len(keys))

    def close(self) -> None:
        self._store.close()


def _key(number: int) -> bytes:
    return b"key-%08d" % number


def _with_bytes(figure: Figure, size_bytes: int) -> Figure:
    return replace(figure, note=f"{figure.median * size_bytes / 1e6:,.0f} MB/s")
