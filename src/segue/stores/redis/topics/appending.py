"""Appending to a topic: records, each to its partition, with as few calls as there are batches."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from segue.delivery.topic_record import Appended
from segue.delivery.topic_rules import TopicRules
from segue.errors import RecordTooLarge, SegueError, StorageError
from segue.stores.redis.topics.answers import number_of
from segue.stores.redis.topics.core import CHANGES_MAX, TopicCore
from segue.stores.redis.topics.keeping import clean_partition
from segue.stores.redis.topics.partition import Batch, ManifestChanged
from segue.stores.redis.topics.room import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    Room,
    room_by,
)
from segue.stores.redis.topics.stretch import pack_slot
from segue.stores.topic_events import Packed

logger = logging.getLogger(__name__)


class Routed(NamedTuple):
    """A record and where it goes: to a partition that was said, or where its key belongs."""

    record: Packed
    key: bytes | None
    partition: int | None


def append_one(core: TopicCore, routed: Routed) -> Appended:
    """Append a record and return where it went."""
    return append_each(core, [routed])[0]


def append_each(core: TopicCore, records: Sequence[Routed]) -> list[Appended]:
    """Append records, each to its partition, and return where they went, in their order.

    Nothing is written if one of them can never fit.
    """
    if not records:
        core.existing()
        return []
    found: dict[int, Appended] = {}
    for _ in range(CHANGES_MAX):
        manifest = core.existing()
        room = room_by(manifest.rules)
        if not found:
            check_sizes(room, [each.record for each in records])
        waiting: dict[int, list[int]] = {}
        for place, each in enumerate(records):
            if place not in found:
                partition = each.partition
                if partition is None:
                    partition = core.route(each.key, manifest.partitions)
                waiting.setdefault(partition, []).append(place)
        try:
            for partition, places in waiting.items():
                for part in parts_of(room, places, lambda place: records[place].record):
                    batch = batch_of([records[place].record for place in part])
                    first = append_batch(core, partition, batch, manifest.version, manifest.rules)
                    for index, place in enumerate(part):
                        found[place] = Appended(partition, first + index)
        except ManifestChanged:
            core.forget_manifest()
            continue
        return [found[place] for place in range(len(records))]
    raise StorageError(f"topic {core.name} was changed by others all the time")


def append_batch(
    core: TopicCore, partition: int, batch: Batch, version: int, rules: TopicRules
) -> int:
    """Append a batch to a partition and return its first offset. Raises ManifestChanged."""
    room = room_by(rules)
    first, rolled = core.partition(partition).append(
        batch,
        version=version,
        items_max=room.items_max,
        bytes_max=room.bytes_max,
        overhead_bytes=room.overhead_bytes(count_of(batch)),
        age_us_max=room.age_us_max,
    )
    if number_of(rolled):
        after_roll(core, partition, rules)
    return first


def check_sizes(room: Room, records: Sequence[Packed]) -> None:
    """Raise RecordTooLarge if one of these records can never fit."""
    largest = max((len(payload) for payload, _ in records), default=0)
    if largest > room.record_bytes_max:
        raise RecordTooLarge(size_bytes=largest, size_bytes_max=room.record_bytes_max)


def batch_of(records: Sequence[Packed]) -> Batch:
    """Return records as they are sent."""
    return Batch(
        b"".join([pack_slot(attr, len(payload)) for payload, attr in records]),
        b"".join([payload for payload, _ in records]),
    )


def count_of(batch: Batch) -> int:
    """Return how many records a batch has."""
    return len(batch.slots) // len(pack_slot(0, 0))


def parts_of(
    room: Room, places: Sequence[int], record_at: Callable[[int], Packed]
) -> Iterator[Sequence[int]]:
    """Yield places in parts whose records fit in a segment together."""
    items_max = min(room.items_max, BATCH_RECORDS_MAX)
    bytes_max = min(room.bytes_max, BATCH_BYTES_MAX)
    start, size_bytes = 0, 0
    for index, place in enumerate(places):
        length = len(record_at(place)[0])
        if index > start and (index - start >= items_max or size_bytes + length > bytes_max):
            yield places[start:index]
            start, size_bytes = index, 0
        size_bytes += length
    if start < len(places):
        yield places[start:]


def after_roll(core: TopicCore, partition: int, rules: TopicRules) -> None:
    """Clean a partition that began a segment, if the rules say so. Never fails an append."""
    if not rules.cleans_on_roll:
        return
    try:
        clean_partition(core, partition, rules)
    except SegueError as error:
        logger.warning("not cleaned topic=%s partition=%d reason=%s", core.name, partition, error)
