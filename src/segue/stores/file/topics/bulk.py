"""Whole segments in and out: sent as they lie, adopted in one step."""

from pathlib import Path
from typing import Final

from segue.delivery.topic_record import (
    HAS_ADOPTION,
    HAS_PRODUCER,
    adoption_digest,
    makes_sense,
    with_adoption,
    without_origin,
)
from segue.errors import InvalidArgument
from segue.log.disk import storage_errors
from segue.log.sealed import SealedSegment, read_sealed
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins
from segue.stores.topic_contract import Adoption

KEY_CHARACTERS_MAX: Final = 1024
FOREIGN: Final = HAS_PRODUCER | HAS_ADOPTION
"""What a record says that is not true in another topic."""


def adopt(core: TopicCore, path: Path, *, partition: int, key: str) -> Adoption:
    """Append all records of a sealed segment, unless that was done before under `key`."""
    given: object = key
    if not isinstance(given, str) or not 0 < len(given) <= KEY_CHARACTERS_MAX:
        raise InvalidArgument(f"key must be text of 1 to {KEY_CHARACTERS_MAX} characters: {key!r}")
    digest = adoption_digest(key)
    disk = core.place.disk
    core.check(partition)
    with read_sealed(path, disk) as sealed:
        if not sealed.count:
            raise InvalidArgument(f"{path} holds no records to adopt")
        with storage_errors(f"adopting {path}"):
            disk.make_directory(core.path / PRODUCERS)  # From here on there are origins to keep.
        log = core.log(partition)
        with current_origins(log, disk) as origins:
            before = origins.adopted.get(digest.hex())
            if before is not None:
                return Adoption(
                    partition=partition, first_offset=before, count=sealed.count, is_new=False
                )
            lengths, attrs, data = _marked(sealed, digest)
            writer = log.writer
            with writer.mutex:
                wrote = False
                try:
                    writer.begin()
                    first = writer.put_whole(lengths, data, attrs)
                    wrote = True
                finally:
                    writer.end(wrote=wrote)
            log.flush()  # Also shows it, where nothing is shown before it is synced.
    return Adoption(partition=partition, first_offset=first, count=sealed.count, is_new=True)


def _marked(sealed: SealedSegment, digest: bytes) -> tuple[list[int], list[int], bytes]:
    """Return the records of a segment, the first of them with the mark of the adoption."""
    lengths, attrs, data = list(sealed.lengths), list(sealed.attrs), sealed.data
    if not all(map(makes_sense, attrs, lengths)):
        raise InvalidArgument("it holds records that are not a topic's")
    if any(map(FOREIGN.__and__, attrs)):
        data = memoryview(_without_origins(lengths, attrs, data))
    payload, attr = with_adoption(bytes(data[: lengths[0]]), attrs[0], digest)
    rest = data[lengths[0] :]
    lengths[0], attrs[0] = len(payload), attr
    return lengths, attrs, b"".join((payload, rest))


def _without_origins(lengths: list[int], attrs: list[int], data: memoryview) -> bytes:
    """Return the payloads without what was true of them elsewhere; mend their lengths."""
    pieces = []
    position = 0
    for index, (length, attr) in enumerate(zip(lengths, attrs, strict=True)):
        payload = bytes(data[position : position + length])
        position += length
        payload, attrs[index] = without_origin(payload, attr)
        lengths[index] = len(payload)
        pieces.append(payload)
    return b"".join(pieces)
