"""Appending to a topic: records, each to its partition, with as few calls as there are batches."""

import logging
from collections.abc import Iterator, Mapping, Sequence

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
from segue.stores.topic_manifest import Manifest

logger = logging.getLogger(__name__)


Routed = tuple[Packed, bytes | None, int | None]
"""A record, its key, and the partition it is to go to if that was said."""


def append_each(core: TopicCore, records: Sequence[Routed]) -> list[Appended]:
    """Append records, each to its partition, and return where they went, in their order.

    Nothing is written if one of them can never fit.
    """
    found: list[Appended | None] = [None] * len(records)
    left: Sequence[int] = range(len(records))
    for _ in range(CHANGES_MAX):
        manifest = core.existing()
        room = room_by(manifest.rules)
        check_sizes(room, [records[place][0] for place in left])
        try:
            for partition, places in _by_partition(core, manifest, records, left).items():
                ours = [records[place][0] for place in places]
                for part in parts_of(room, ours):
                    batch = batch_of(ours[part.start : part.stop])
                    offset = append_batch(core, partition, batch, manifest)
                    for place in places[part.start : part.stop]:
                        found[place] = Appended(partition, offset)
                        offset += 1
        except ManifestChanged as change:
            core.catch_up(change.version)
            left = [place for place in left if found[place] is None]
            continue
        return [place for place in found if place is not None]
    raise StorageError(f"topic {core.name} was changed by others all the time")


def _by_partition(
    core: TopicCore, manifest: Manifest, records: Sequence[Routed], places: Sequence[int]
) -> Mapping[int, Sequence[int]]:
    """Return which of the records go to which partition."""
    if manifest.partitions == 1:
        return {0: places}
    found: dict[int, list[int]] = {}
    for place in places:
        _, key, partition = records[place]
        if partition is None:
            partition = core.route(key, manifest.partitions)
        found.setdefault(partition, []).append(place)
    return found


def append_batch(core: TopicCore, partition: int, batch: Batch, manifest: Manifest) -> int:
    """Append a batch to a partition and return its first offset. Raises ManifestChanged."""
    door = core.partition(partition)
    first, rolled = door.append(batch, version=manifest.version, room=room_by(manifest.rules))
    if number_of(rolled):
        after_roll(core, partition, manifest.rules)
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


def parts_of(room: Room, records: Sequence[Packed]) -> Iterator[range]:
    """Yield the places of records in parts that fit in a segment each."""
    items_max = min(room.items_max, BATCH_RECORDS_MAX)
    bytes_max = min(room.bytes_max, BATCH_BYTES_MAX)
    start, size_bytes = 0, 0
    for place, (payload, _) in enumerate(records):
        length = len(payload)
        if place > start and (place - start >= items_max or size_bytes + length > bytes_max):
            yield range(start, place)
            start, size_bytes = place, 0
        size_bytes += length
    if start < len(records):
        yield range(start, len(records))


def after_roll(core: TopicCore, partition: int, rules: TopicRules) -> None:
    """Clean a partition that began a segment, if the rules say so. Never fails an append."""
    if not rules.cleans_on_roll:
        return
    try:
        clean_partition(core, partition, rules)
    except SegueError as error:
        logger.warning("not cleaned topic=%s partition=%d reason=%s", core.name, partition, error)
