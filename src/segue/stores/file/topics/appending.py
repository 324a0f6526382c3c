"""Appending to a topic: records, each to its partition."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from segue.delivery.topic_record import Appended
from segue.errors import RecordTooLarge, SegueError
from segue.log import Log
from segue.stores.file.topics.core import TopicCore
from segue.stores.file.topics.keeping import clean_partition
from segue.stores.topic_events import Packed

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 4 << 20
"""What one batch holds at most, so that memory stays small while many events are appended."""


def append_one(core: TopicCore, partition: int, record: Packed) -> Appended:
    """Append a record to a partition."""
    log = core.log(partition)
    offset = log.append(record[0], attr=record[1])
    if core.has_rolled(partition):
        after_roll(core, partition)
    return Appended(partition, offset)


def append_each(core: TopicCore, records: Iterable[tuple[int, Packed]]) -> list[Appended]:
    """Append records, each to its partition, and return where they went, in their order.

    Nothing is written if one of them can never fit, or if there is no space for all.
    """
    by_partition: dict[int, list[Packed]] = {}
    places: list[int] = []
    for partition, record in records:
        batch = by_partition.get(partition)
        if batch is None:
            batch = by_partition[partition] = []
        places.append(partition)
        batch.append(record)
    require_room(core, by_partition)
    offsets = {
        partition: iter(append_batch(core, partition, batch))
        for partition, batch in by_partition.items()
    }
    return [Appended(partition, next(offsets[partition])) for partition in places]


def append_batch(core: TopicCore, partition: int, batch: list[Packed]) -> list[int]:
    """Append records to one partition, as one batch unless they are too many; return offsets."""
    log = core.log(partition)
    offsets: list[int] = []
    for part in _parts(log, batch):
        first = log.append_many([payload for payload, _ in part], attrs=[attr for _, attr in part])
        offsets += range(first, first + len(part))
    if core.has_rolled(partition):
        after_roll(core, partition)
    return offsets


def require_room(core: TopicCore, batches: Mapping[int, list[Packed]]) -> None:
    """Raise before anything is written if not all of it fits, by partition.

    RecordTooLarge if a record never does, StorageFull if there is no space on the disk.
    """
    parts: dict[int, list[list[Packed]]] = {}
    for partition, batch in batches.items():
        log = core.log(partition)
        largest, most = max(len(payload) for payload, _ in batch), log.writer.new_segment_bytes_max
        if largest > most:
            raise RecordTooLarge(size_bytes=largest, size_bytes_max=most)
        parts[partition] = list(_parts(log, batch))
    if sum(map(len, parts.values())) > 1:
        with ExitStack() as held:
            for partition, found in parts.items():
                sizes = [(len(part), sum(len(payload) for payload, _ in part)) for part in found]
                held.enter_context(core.log(partition).writer.reserved(sizes))


def _parts(log: Log, batch: list[Packed]) -> Iterator[list[Packed]]:
    """Yield a batch in parts that fit in a segment."""
    items_max = log.writer.new_segment_items_max
    bytes_max = min(log.writer.new_segment_bytes_max, BATCH_BYTES_MAX)
    start, size_bytes = 0, 0
    for index, (payload, _) in enumerate(batch):
        if index > start and (index - start >= items_max or size_bytes + len(payload) > bytes_max):
            yield batch[start:index]
            start, size_bytes = index, 0
        size_bytes += len(payload)
    if start < len(batch):
        yield batch[start:]


def after_roll(core: TopicCore, partition: int) -> None:
    """Clean a partition that began a segment, if the rules say so. Never fails an append."""
    manifest = core.manifest
    if manifest is None or not manifest.rules.cleans_on_roll:
        return
    try:
        clean_partition(core, partition, manifest.rules)
    except SegueError as error:
        logger.warning("not cleaned topic=%s partition=%d reason=%s", core.name, partition, error)
