"""How a topic on a server is made, and the doors to its partitions."""

import json
import logging
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from segue.delivery.partitioning import StickyTurn, partition_of
from segue.delivery.topic_rules import PARTITIONS_DEFAULT, TopicRules
from segue.errors import CorruptManifest, InvalidArgument, StorageError, TopicNotFound
from segue.stores.redis.calls import Answer, Word
from segue.stores.redis.keys import partition_key
from segue.stores.redis.libraries import library
from segue.stores.redis.topics.answers import number_of, text_of, words_of
from segue.stores.redis.topics.partition import Partition
from segue.stores.topic_manifest import Manifest, check_partitions, check_rules

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore

logger = logging.getLogger(__name__)

KIND: Final = "topic"
MANIFEST_SECONDS: Final = 1.0
"""How long a manifest is believed: who changed it may have died before everybody was told."""
CHANGES_MAX: Final = 100
"""How often a change is tried again that others came before."""


class User(Protocol):
    """Somebody who is to be told that the store closes."""

    def close(self) -> None: ...


class TopicCore:
    """One topic. Safe from any thread.

    Nothing is on the server before it is created, by its first append or by asking for partitions.
    """

    def __init__(self, store: "RedisStore", name: str) -> None:
        self.store = store
        self.name = name
        self.base = store.base("topic", name)
        self.sticky = StickyTurn()
        self._library = library(KIND)
        self._lock = threading.Lock()
        self._partitions: dict[int, Partition] = {}
        self._manifest: Manifest | None = None
        self._looked_at = 0.0

    # Calling -------------------------------------------------------------------------------

    def change(self, function: str, *words: Word) -> Answer:
        """Have a function of the topic change something."""
        return self.store.calls.change(self._library, function, self.base, *words)

    def look(self, function: str, *words: Word) -> Answer:
        """Have a function of the topic answer."""
        return self.store.calls.look(self._library, function, self.base, *words)

    def partition(self, number: int) -> Partition:
        """Return the door to a partition."""
        found = self._partitions.get(number)
        if found is None:
            base = partition_key(self.store.namespace, self.name, number)
            found = self._partitions[number] = Partition(self.store.calls, base, number)
        return found

    def key_path(self, name: str) -> Path:
        """Return what an error calls one of the topic's keys."""
        return Path(f"{self.base}:{name}")

    def require_open(self) -> None:
        """Raise StoreClosed if the store was closed."""
        self.store.require_open()

    def close_with_store(self, user: User) -> None:
        """Have `user` closed before the store lets go of its server."""
        self.store.users.add(user)

    # The manifest --------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a manifest, whatever it says."""
        self.require_open()
        return bool(words_of(self.look("manifest")))

    @property
    def manifest(self) -> Manifest | None:
        """How the topic is made, None if it does not exist. Asks the server."""
        self.require_open()
        return self._noted(self.look("manifest"))

    def _noted(self, answer: Answer) -> Manifest | None:
        words = words_of(answer)
        manifest = self._manifest_from(words) if words else None
        with self._lock:
            self._manifest = manifest
            self._looked_at = time.monotonic()
        return manifest

    def _manifest_from(self, words: list[object]) -> Manifest:
        try:
            version, partitions, rules, created_us = words
            values = json.loads(text_of(rules))
            if not isinstance(values, dict):
                raise TypeError(f"not rules: {values!r}")
            return Manifest(
                version=number_of(version),
                partitions=number_of(partitions),
                rules=TopicRules.from_dict(values),
                created_us=number_of(created_us),
            )
        except (ValueError, TypeError, StorageError) as error:
            raise CorruptManifest(
                path=self.key_path("manifest"), reason=f"it cannot be read: {error}"
            ) from error

    def known(self) -> Manifest | None:
        """Return the manifest as it was a moment ago. Partitions tell those who use an old one."""
        manifest = self._manifest
        if manifest is not None and time.monotonic() - self._looked_at < MANIFEST_SECONDS:
            return manifest
        return self.manifest

    def saw_version(self, version: int) -> None:
        """Take notice of a version that a partition was told of."""
        manifest = self._manifest
        if manifest is not None and manifest.version < version:
            self._manifest = None

    @property
    def is_outdated(self) -> bool:
        """Whether a partition told of a later manifest than was seen here."""
        return self._manifest is None

    def forget_manifest(self) -> None:
        """Ask the server the next time."""
        self._manifest = None

    def catch_up(self, version: int) -> None:
        """Have a manifest of at least the version that a partition was told of."""
        manifest = self.manifest
        if manifest is not None and manifest.version < version:
            logger.warning("manifest was lost topic=%s version=%d", self.name, manifest.version)
            self.change("lift", version)
            self.forget_manifest()

    def existing(self) -> Manifest:
        """Return the manifest, after creating the topic if need be."""
        return self.known() or self.create(PARTITIONS_DEFAULT, None)

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
        manifest = self.manifest or self.create(partitions or PARTITIONS_DEFAULT, rules)
        if partitions is not None and manifest.partitions != partitions:
            raise InvalidArgument(
                f"topic {self.name} has {manifest.partitions} partitions, not {partitions}; "
                "grow() adds some, and changes where keys go"
            )
        if rules is not None and manifest.rules != rules:
            self.alter(rules=rules)

    def create(self, partitions: int, rules: TopicRules | None) -> Manifest:
        """Make the topic, unless it exists. Raises InvalidArgument."""
        check_partitions(partitions)
        self.require_open()
        self.store.register("topic", self.name)
        manifest = self._noted(self.change("create", partitions, rules_text(rules or TopicRules())))
        assert manifest is not None, "it was just created"
        return manifest

    def alter(self, *, partitions: int | None = None, rules: TopicRules | None = None) -> None:
        """Change the manifest, for everybody. Raises InvalidArgument for fewer partitions."""
        self.existing()
        for _ in range(CHANGES_MAX):
            before = self.manifest
            assert before is not None, "topics are never removed"
            after = before.changed(partitions=partitions, rules=rules)
            if (after.partitions, after.rules) == (before.partitions, before.rules):
                return
            self._protect(before.partitions, after.partitions)
            words = (before.version, after.partitions, rules_text(after.rules))
            if number_of(self.change("alter", *words)):
                break
        else:
            raise StorageError(f"topic {self.name} was changed by others all the time")
        self.forget_manifest()
        for number in range(before.partitions):
            self.partition(number).note_version(after.version)

    def _protect(self, before: int, after: int) -> None:
        """Give who reads all partitions a place in new ones, before anybody can append there."""
        if after <= before:
            return
        marks = set.intersection(*(set(self.partition(number).marks()) for number in range(before)))
        for number in range(before, after):
            for mark in marks:
                self.partition(number).register(mark, "earliest", keeps=True)

    # Partitions ----------------------------------------------------------------------------

    def numbers(self) -> range:
        """Return the partitions there are."""
        manifest = self.manifest
        return range(0 if manifest is None else manifest.partitions)

    def check(self, partition: int) -> int:
        """Return `partition` if there is one. Raises InvalidArgument."""
        count = self._count()
        if type(partition) is int and partition >= count:
            self.forget_manifest()  # It may have been added just now.
            count = self._count()
        if type(partition) is not int or not 0 <= partition < count:
            raise InvalidArgument(f"topic {self.name} has no partition {partition!r}, only {count}")
        return partition

    def _count(self) -> int:
        self.require_open()
        manifest = self.known()
        return PARTITIONS_DEFAULT if manifest is None else manifest.partitions

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

    def route(self, key: bytes | None, partitions: int) -> int:
        """Return the partition of a key, or the one whose turn it is."""
        return self.sticky.take(partitions) if key is None else partition_of(key, partitions)


def rules_text(rules: TopicRules) -> str:
    """Return rules as the manifest keeps them."""
    return json.dumps(rules.to_dict(), separators=(",", ":"))
