"""Whole segments in and out: sent as they lie, adopted in one step."""

from pathlib import Path

from segue.delivery.topic_record import adoption_digest, with_adoption
from segue.errors import InvalidArgument
from segue.log.disk import storage_errors
from segue.log.sealed import SealedSegment, read_sealed
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins
from segue.stores.topic_adoption import check_key, records_of
from segue.stores.topic_contract import Adoption


def adopt(core: TopicCore, path: Path, *, partition: int, key: str) -> Adoption:
    """Append all records of a sealed segment, unless that was done before under `key`."""
    check_key(key)
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
    lengths, attrs, data = records_of(sealed)
    payload, attr = with_adoption(bytes(data[: lengths[0]]), attrs[0], digest)
    rest = data[lengths[0] :]
    lengths[0], attrs[0] = len(payload), attr
    return lengths, attrs, b"".join((payload, rest))
