"""Segments that were written aside for this topic: taken in whole, once, at the speed of a copy.

The first record of each names the key under which it is to be adopted, so nothing has to be
changed on the way in. `bulk.py` adopts what others made; this, what was made to be adopted.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from segue.delivery.topic_record import (
    HAS_ADOPTION,
    HAS_PRODUCER,
    KNOWN_BITS,
    adoption_digest,
    adoption_of,
)
from segue.errors import InvalidArgument
from segue.log import Log
from segue.log.disk import storage_errors
from segue.log.layout import Offset
from segue.log.record import Record
from segue.log.staging import Batch, StagedSegment, read_staged
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins
from segue.stores.topic_columns import lengths_in
from segue.stores.topic_contract import Adoption


def adopt_staged(
    core: TopicCore, path: Path, *, partition: int, key: str, unfinished: Collection[str] | None
) -> Adoption:
    """Append the records of a segment that was written aside, unless that was done before.

    Other segments of that kind are forgotten, but for the `unfinished` ones, which may be asked
    for again; None is all.

    Raises InvalidArgument, CorruptSegment, StorageError, FileNotFoundError.
    """
    digest = adoption_digest(key)
    disk = core.place.disk
    core.check(partition)
    with read_staged(path, disk) as staged:
        check_staged(staged, key, path)
        with storage_errors(f"adopting {path}"):
            disk.make_directory(core.path / PRODUCERS)  # From here on there are origins to keep.
        log = core.log(partition)
        with current_origins(log, disk, sync=core.place.is_durable) as origins:
            before = origins.adopted.get(digest.hex())
            if before is not None:
                return Adoption(
                    partition=partition, first_offset=before, count=staged.count, is_new=False
                )
            if unfinished is not None:
                origins.forget_staged({adoption_digest(each).hex() for each in unfinished})
            first = _append(log, staged)
            if core.place.is_durable:
                log.flush()
            origins.take_in_staged(digest, first, staged.count)
    return Adoption(partition=partition, first_offset=first, count=staged.count, is_new=True)


def _append(log: Log, staged: StagedSegment) -> Offset:
    writer = log.writer
    with writer.mutex:
        wrote = False
        try:
            writer.begin()
            first = writer.put_staged(staged.batches)
            wrote = True
        finally:
            writer.end(wrote=wrote)
    return first


def check_staged(staged: StagedSegment, key: str, path: Path) -> None:
    """Raise InvalidArgument unless all records are a topic's, the first with the key's mark."""
    for batch in staged.batches:
        parts = sum(lengths_in(batch.attrs))
        if (parts > batch.lengths).any() or (batch.attrs > KNOWN_BITS).any():
            raise InvalidArgument(f"{path} holds records that are not a topic's")
        if (batch.attrs & np.uint64(HAS_PRODUCER)).any():
            raise InvalidArgument(f"{path} holds records of a producer")
    marked = sum(
        int(np.count_nonzero(batch.attrs & np.uint64(HAS_ADOPTION))) for batch in staged.batches
    )
    if marked != 1 or adoption_of(_first(staged.batches[0])) != adoption_digest(key):
        raise InvalidArgument(f"{path} was not made to be adopted under this key")


def _first(batch: Batch) -> Record:
    return Record(Offset(0), 0, int(batch.attrs[0]), bytes(batch.data[: int(batch.lengths[0])]))
