"""A topic's logs and manifest, for all handles of a process."""

import logging
import os
import re
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from segue.delivery.partitioning import StickyTurn, partition_of
from segue.delivery.topic_rules import PARTITIONS_DEFAULT, TopicRules
from segue.errors import (
    CorruptManifest,
    InvalidArgument,
    SegueError,
    StoreClosed,
    TopicNotFound,
)
from segue.log import Log
from segue.log.disk import storage_errors
from segue.log.layout import SEGMENT_BYTES_DEFAULT, Offset
from segue.log.live import OWN, SEGMENT
from segue.log.options import microseconds_from
from segue.log.wake import Bell
from segue.stores.file.claims import locked
from segue.stores.file.place import Place
from segue.stores.file.topics.manifest import FILENAME, read_manifest, write_manifest
from segue.stores.file.topics.marks import names_of, register
from segue.stores.topic_manifest import Manifest, check_partitions, check_rules

logger = logging.getLogger(__name__)

PRODUCERS: Final = "producers"
GROUPS: Final = "groups"
LOCK: Final = "lock"
_PARTITION = re.compile(r"partition_(0|[1-9]\d*)")


class User(Protocol):
    """Somebody who is to be told that the store closes."""

    def close(self) -> None: ...


class TopicCore:
    """One topic. Safe from any thread.

    Nothing is on disk before it is created, by its first append or by asking for partitions.
    """

    def __init__(self, name: str, path: Path, place: Place) -> None:
        self.name = name
        self.path = path
        self.place = place
        self.sticky = StickyTurn()
        self._mutex = threading.RLock()
        self._logs: dict[int, Log] = {}
        self._words: dict[int, memoryview] = {}
        self._rolled_at: dict[int, int] = {}
        self._manifest: Manifest | None = None
        self._version_seen = 0
        self._closed = False
        self._pid = os.getpid()
        self.users: weakref.WeakSet[User] = weakref.WeakSet()
        """Members, producers and feeds that are open here."""

    # The manifest --------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest | None:
        """How the topic is made, None if it does not exist. Up to date with other processes."""
        self.require_open()
        words = self._words.get(0)
        if (
            words is not None
            and self._word(words) == self._version_seen
            and self._manifest is not None
        ):
            return self._manifest
        with self._mutex:
            return self._look()

    def _word(self, words: memoryview) -> int:
        """Return the word that changes with the manifest; it is odd while that is under way."""
        try:
            return words[OWN]
        except ValueError:  # Closed by another thread just now.
            raise StoreClosed(f"topic {self.name} was closed with its store") from None

    def _look(self) -> Manifest | None:
        # The word before the file: a change in between is then seen the next time. An odd one is
        # never taken for seen: whoever is at it may have been killed.
        words = self._words.get(0)
        seen = -1 if words is None or self._word(words) % 2 else self._word(words)
        before = self._manifest
        self._manifest = read_manifest(self.path, self.place.disk)
        self._version_seen = seen
        if before is not None and self._manifest is not None:
            self._follow_rules(before.rules, self._manifest.rules)
        if self._manifest is None and self.partitions_on_disk():
            raise CorruptManifest(
                path=self.path / FILENAME,
                reason="it is missing; 'segue topic create' with the number of partitions makes it",
            )
        return self._manifest

    def _follow_rules(self, before: TopicRules, after: TopicRules) -> None:
        """Close segments by the limits that hold now."""
        if _segment_limits(before) != _segment_limits(after):
            for log in self._logs.values():
                log.writer.set_limits(
                    segment_bytes=after.segment_bytes or SEGMENT_BYTES_DEFAULT,
                    segment_age_us=microseconds_from(after.segment_seconds, name="segment_seconds"),
                )

    def partitions_on_disk(self) -> int:
        """Return how many partitions there must be, by the directories there are."""
        with storage_errors(f"listing {self.path}"):
            found = map(_PARTITION.fullmatch, self.place.disk.names(self.path))
        return max((int(match[1]) + 1 for match in found if match), default=0)

    def existing(self) -> Manifest:
        """Return the manifest, after creating the topic if need be."""
        return self.manifest or self.create(PARTITIONS_DEFAULT, None)

    def require(self) -> Manifest:
        """Return the manifest. Raises TopicNotFound: who only reads creates nothing."""
        manifest = self.manifest
        if manifest is None:
            raise TopicNotFound(name=self.name)
        return manifest

    def establish(self, partitions: int | None, rules: TopicRules | None) -> None:
        """Have the topic be there, as asked for. Raises InvalidArgument."""
        if partitions is not None:
            check_partitions(partitions)
        if rules is not None:
            check_rules(rules)
        before = self._manifest_or_none(partitions)
        manifest = before or self.create(partitions or PARTITIONS_DEFAULT, rules)
        if partitions is not None and manifest.partitions != partitions:
            raise InvalidArgument(
                f"topic {self.name} has {manifest.partitions} partitions, not {partitions}; "
                "grow() adds some, and changes where keys go"
            )
        if rules is not None and manifest.rules != rules:
            self.change(rules=rules)

    def _manifest_or_none(self, partitions: int | None) -> Manifest | None:
        try:
            return self.manifest
        except CorruptManifest:
            # Whoever says how many there are may make one that is missing, but not replace one.
            if partitions is None or self.place.disk.exists(self.path / FILENAME):
                raise
            return None

    def create(self, partitions: int, rules: TopicRules | None) -> Manifest:
        """Make the topic, unless it exists. Raises InvalidArgument."""
        check_partitions(partitions)
        with self.locked():
            manifest = read_manifest(self.path, self.place.disk)
            if manifest is not None:
                return manifest
            if partitions < self.partitions_on_disk():
                raise InvalidArgument(
                    f"there are {self.partitions_on_disk()} partitions of {self.name} on disk"
                )
            manifest = Manifest(
                partitions=partitions,
                rules=rules or TopicRules(),
                created_us=self.place.clock(),
            )
            write_manifest(self.path, manifest, self.place.disk)
            self._manifest = manifest
            return manifest

    def change(self, *, partitions: int | None = None, rules: TopicRules | None = None) -> None:
        """Change the manifest, for everybody. Raises InvalidArgument for fewer partitions."""
        self.existing()
        with self.locked():
            before = self._look()
            assert before is not None
            after = before.changed(partitions=partitions, rules=rules)
            if (after.partitions, after.rules) == (before.partitions, before.rules):
                return
            logs = [self.log(partition) for partition in range(before.partitions)]
            for partition in range(before.partitions, after.partitions):
                # Before anybody can append there: who reads all protects it from its first
                # record on.
                log = self._opened(partition, after.rules)
                for name in set.intersection(*(set(names_of(log)) for log in logs)):
                    register(log, name, lambda: Offset(0))
            words = self._words[0]
            words[OWN] |= 1
            write_manifest(self.path, after, self.place.disk)
            words[OWN] += 1
            self._look()
            if _segment_limits(before.rules) != _segment_limits(after.rules):
                for log in logs:
                    log.roll()  # What is open has the size it was made with.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep everybody else from changing the topic, and from becoming a reader of it."""
        with self._mutex, locked(self.path / LOCK, self.place.disk):
            yield

    # Partitions ----------------------------------------------------------------------------

    def numbers(self) -> range:
        """Return the partitions there are."""
        manifest = self.manifest
        return range(0 if manifest is None else manifest.partitions)

    def require_open(self) -> None:
        """Raise StoreClosed if the store was closed, or opened before a fork."""
        if self._closed:
            raise StoreClosed(f"topic {self.name} was closed with its store")
        if os.getpid() != self._pid:
            raise StoreClosed("opened before a fork: open the store again in the child")

    def check(self, partition: int) -> int:
        """Return `partition` if there is one. Raises InvalidArgument."""
        count = len(self.numbers()) or PARTITIONS_DEFAULT
        if type(partition) is not int or not 0 <= partition < count:
            raise InvalidArgument(f"topic {self.name} has no partition {partition!r}, only {count}")
        return partition

    def chosen(self, partitions: Collection[int] | None) -> list[int]:
        """Return the partitions that are meant. Raises InvalidArgument."""
        numbers = self.numbers()
        if partitions is None:
            return list(numbers)
        given: object = partitions
        if not isinstance(given, Collection) or isinstance(given, str | bytes):
            raise InvalidArgument(f"partitions must be several numbers, as [0]: {partitions!r}")
        chosen = {self.check(partition) for partition in partitions}
        return [partition for partition in numbers if partition in chosen]

    def route(self, key: bytes | None) -> int:
        """Return the partition of a key, or the one whose turn it is."""
        partitions = self.existing().partitions
        return self.sticky.take(partitions) if key is None else partition_of(key, partitions)

    def log(self, partition: int) -> Log:
        """Return a partition's log, opened once for the whole process."""
        log = self._logs.get(partition)
        return self._opened(partition, self.existing().rules) if log is None else log

    def _opened(self, partition: int, rules: TopicRules) -> Log:
        with self._mutex:
            log = self._logs.get(partition)  # By now another thread may have.
            return self._open(partition, rules) if log is None else log

    def _open(self, partition: int, rules: TopicRules) -> Log:
        self.require_open()
        bell = None if partition == 0 else self.log(0).writer.bell
        log = self.place.log(
            self.path / f"partition_{partition}",
            segment_bytes=rules.segment_bytes or SEGMENT_BYTES_DEFAULT,
            segment_age=rules.segment_seconds,
            bell=bell,
        )
        self._words[partition] = log.writer.live.words
        self._rolled_at[partition] = self._words[partition][SEGMENT]
        self._logs[partition] = log
        return log

    @property
    def bell(self) -> Bell:
        """What rings when anything is appended to any partition, or a group changes."""
        return self.log(0).writer.bell

    def word(self, which: int) -> int:
        """Return a live word of the topic, which every process sees."""
        self.log(0)
        try:
            return self._words[0][which]
        except ValueError:  # Closed by another thread just now.
            raise StoreClosed(f"topic {self.name} was closed with its store") from None

    def add_to_word(self, which: int) -> None:
        """Let everybody see that something has changed."""
        after = (self.word(which) + 1) % (1 << 32)
        self._words[0][which] = after

    def has_rolled(self, partition: int) -> bool:
        """Tell whether the partition went on to another segment since this was last asked."""
        try:
            segment = self._words[partition][SEGMENT]
        except ValueError:  # Closed by another thread just now.
            return False
        if segment == self._rolled_at[partition]:
            return False
        self._rolled_at[partition] = segment
        return True

    def flush(self) -> None:
        """Sync every partition that was opened here."""
        self.require_open()
        for log in list(self._logs.values()):
            log.flush()

    def close(self) -> None:
        """Let members leave and producers go, then sync and close every partition, in order.

        The one whose bell the others ring is the last.
        """
        if os.getpid() == self._pid:
            for user in list(self.users):
                try:
                    user.close()
                except SegueError as error:
                    logger.warning("not closed in order topic=%s reason=%s", self.name, error)
        with self._mutex:
            self._closed = True
            logs = dict(self._logs)
        with ExitStack() as closing:
            for partition in sorted(logs):
                closing.callback(logs[partition].close)


class KeptTopicCore(TopicCore):
    """A topic that stays in memory from when it has a log open: who asks for names has none."""

    def __init__(self, name: str, path: Path, place: Place, opened: set[TopicCore]) -> None:
        super().__init__(name, path, place)
        self._opened_topics = opened

    def _open(self, partition: int, rules: TopicRules) -> Log:
        self._opened_topics.add(self)
        return super()._open(partition, rules)


def _segment_limits(rules: TopicRules) -> tuple[int | None, float | None]:
    return rules.segment_bytes, rules.segment_seconds


def exists(path: Path, place: Place) -> bool:
    """Tell whether there is a topic at `path`, be it one with something wrong with it."""
    with storage_errors(f"listing {path}"):
        names = place.disk.names(path)
    return any(name == FILENAME or _PARTITION.fullmatch(name) for name in names)
