"""Producers: appending again what may have been appended before, without ever duplicating it.

A name is claimed at the topic for a while, which its user renews. Each claim has an epoch, and
each partition keeps, beside the last sequence number, the highest epoch it has met: whoever lost
the name without noticing is refused there. What is appended is noted in the same step.
"""

import json
import logging
import secrets
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from segue.delivery.message import Body
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import (
    SEQUENCE_MAX,
    Appended,
    Event,
    key_bytes,
    producer_number,
)
from segue.errors import (
    CorruptManifest,
    ProducerBusy,
    StorageError,
    StoreClosed,
    StoreUnavailable,
)
from segue.log.layout import checked_name
from segue.stores.heartbeat import Pulse
from segue.stores.producer_base import ProducerBase, checked_sequence, renewal_of
from segue.stores.redis.topics.answers import number_of, text_of, words_of
from segue.stores.redis.topics.appending import (
    after_roll,
    batch_of,
    check_sizes,
    parts_of,
)
from segue.stores.redis.topics.core import CHANGES_MAX, TopicCore
from segue.stores.redis.topics.partition import Fenced, ManifestChanged, Origin
from segue.stores.redis.topics.room import room_by
from segue.stores.topic_events import Packed, events_from, packed

logger = logging.getLogger(__name__)

CLAIM_SECONDS: Final = 30.0
"""How long a name stays taken after its user died; it is renewed several times before."""
SEQUENCE_DIGITS: Final = len(str(SEQUENCE_MAX))

Numbered = tuple[int, int, Packed]
"""A record's place among those that are appended, its sequence number, and itself."""


class RedisProducer(ProducerBase):
    """A producer with a name."""

    def __init__(self, core: TopicCore, name: str) -> None:
        self.name = name
        self._core = core
        self._number = producer_number(checked_name(name))
        self._user = secrets.token_hex(8)
        core.existing()
        claimed = words_of(core.change("claim", name, self._user, _us(CLAIM_SECONDS)))
        if not claimed:
            raise ProducerBusy(name=name)
        self._epoch = number_of(claimed[0])
        self._is_held = True
        self._last: dict[int, int] = {}
        self._pulse: Pulse = core.store.heartbeat.start(renewal_of(self), CLAIM_SECONDS)
        try:
            self._routes = self._routes_from(text_of(claimed[1]))
        except BaseException:
            self.close()
            raise
        core.close_with_store(self)

    def renew(self) -> None:
        """Keep the name for longer. Raises StoreClosed if it is somebody else's by now."""
        words = (self.name, self._user, _us(CLAIM_SECONDS))
        if not number_of(self._core.look("renew", *words)):
            raise StoreClosed(f"producer {self.name} is somebody else's")

    # Appending -----------------------------------------------------------------------------

    def append_many(
        self, events: Iterable[Event | Body], *, first_sequence: int | None = None
    ) -> list[Appended | None]:
        """Append events with consecutive sequence numbers, those that are not there already."""
        self._require_open()
        sequence = checked_sequence(
            self.last_sequence() + 1 if first_sequence is None else first_sequence
        )
        self._follow_growth()
        results: list[Appended | None] = []
        batches: dict[int, list[Numbered]] = {}
        for place, event in enumerate(events_from(events)):
            key = key_bytes(event.key)
            partition = self._partition(event, key, sequence + place)
            batches.setdefault(partition, []).append((place, sequence + place, packed(event, key)))
            results.append(None)
        room = room_by(self._core.existing().rules)
        for batch in batches.values():
            check_sizes(room, [record for _, _, record in batch])
        for partition, batch in batches.items():
            for place, offset in self._append(partition, batch).items():
                results[place] = Appended(partition, offset)
        return results

    def _append(self, partition: int, batch: list[Numbered]) -> dict[int, int]:
        """Append what is not there already; return the offsets of that, by place."""
        found: dict[int, int] = {}
        for _ in range(CHANGES_MAX + len(batch)):
            last = self._last_in(partition)
            new = [each for each in batch if each[1] > last]
            if not new:
                return found
            room = room_by(self._core.existing().rules)
            part = next(parts_of(room, [record for _, _, record in new]))
            sent = new[: part.stop]
            del self._last[partition]  # Not known until it is.
            try:
                first = self._sent(partition, sent, last)
            except ManifestChanged as change:
                self._core.catch_up(change.version)
                continue
            except Fenced as fence:
                self._surpass(fence.epoch)
                continue
            if first is None:
                continue
            self._last[partition] = sent[-1][1]
            for index, (place, _, _) in enumerate(sent):
                found[place] = first + index
        raise StorageError(f"topic {self._core.name} was changed by others all the time")

    def _sent(self, partition: int, records: list[Numbered], last: int) -> int | None:
        """Append records as one batch; None if the partition knows a later number.

        Raises ManifestChanged, Fenced.
        """
        manifest = self._core.existing()
        batch = batch_of([record for _, _, record in records])
        origin = Origin(self._number, self._epoch, _digits(last), _digits(records[-1][1]))
        first, rolled = self._core.partition(partition).append(
            batch, version=manifest.version, room=room_by(manifest.rules), origin=origin
        )
        if first < 0:
            return None
        if number_of(rolled):
            after_roll(self._core, partition, manifest.rules)
        return first

    # Routing -------------------------------------------------------------------------------

    def _partition(self, event: Event, key: bytes | None, sequence: int) -> int:
        if event.partition is not None:
            return self._core.check(event.partition)
        at = bisect_right(self._routes, sequence, key=lambda route: route[0])
        partitions = self._routes[max(0, at - 1)][1]
        return sequence % partitions if key is None else partition_of(key, partitions)

    def _follow_growth(self) -> None:
        """Note, before it is used, from which sequence number on there are more partitions."""
        partitions = self._core.existing().partitions
        if not self._routes or self._routes[-1][1] != partitions:
            first = self.last_sequence() + 1 if self._routes else 0
            self._routes.append((first, partitions))
            words = (self.name, self._user, json.dumps(self._routes))
            if not number_of(self._core.change("route", *words)):
                raise ProducerBusy(name=self.name)

    def _routes_from(self, text: str) -> list[tuple[int, int]]:
        try:
            routes = json.loads(text or "[]")
            return [(int(first), int(partitions) or 1) for first, partitions in routes]
        except (TypeError, ValueError) as error:
            raise CorruptManifest(
                path=self._core.key_path(f"producer_{self.name}"),
                reason=f"its routes make no sense: {error}",
            ) from error

    # What is there -------------------------------------------------------------------------

    def last_sequence(self, partition: int | None = None) -> int:
        """Return the highest number of a partition, or of all; -1 if there is none."""
        self._require_open()
        if partition is not None:
            return self._last_in(self._core.check(partition))
        return max(map(self._last_in, range(self._core.existing().partitions)))

    def _last_in(self, partition: int) -> int:
        last = self._last.get(partition)
        if last is None:
            door = self._core.partition(partition)
            try:
                found = door.meet(self._number, self._epoch)
            except Fenced as fence:
                self._surpass(fence.epoch)
                found = door.meet(self._number, self._epoch)
            last = self._last[partition] = int(found) if found else -1
        return last

    def _surpass(self, epoch: int) -> None:
        """Go on with a later epoch if the name is still ours. Raises ProducerBusy if it is not."""
        answer = self._core.change("surpass", self.name, self._user, epoch)
        self._epoch = number_of(answer)
        if not self._epoch:
            raise ProducerBusy(name=self.name)

    def _require_open(self) -> None:
        self._core.require_open()
        if not self._is_held:
            raise StoreClosed(f"producer {self.name} is closed")

    def close(self) -> None:
        """Let others use the name."""
        if not self._is_held:
            return
        self._is_held = False
        self._pulse.stop()
        try:
            self._core.change("release", self.name, self._user)
        except StoreClosed:
            return
        except StoreUnavailable as error:  # It must not stand in for what a block has to say.
            logger.warning("free when its time is over producer=%s reason=%s", self.name, error)


def _digits(sequence: int) -> str:
    """Return a sequence number as the partition keeps it: beyond what Lua can count."""
    return "" if sequence < 0 else str(sequence).zfill(SEQUENCE_DIGITS)


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
