"""Whole segments in and out: sent as the files they would be, adopted in one step."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from segue.delivery.topic_record import adoption_digest
from segue.errors import InvalidArgument, OffsetTrimmed, StorageError
from segue.log.disk import Disk, storage_error
from segue.log.layout import (
    HEADER_BYTES,
    SEGMENT_BYTES_MIN,
    Offset,
    Position,
    SegmentHeader,
    SegmentId,
    Summary,
    payloads_position,
)
from segue.log.sealed import SealedSegment, read_sealed
from segue.log.sending import WRITE_STEP_BYTES, HasFileno, Writable, writer_to
from segue.stores.redis.topics.answers import number_of
from segue.stores.redis.topics.core import CHANGES_MAX, TopicCore
from segue.stores.redis.topics.keeping import stretches
from segue.stores.redis.topics.partition import Batch, Facts, ManifestChanged
from segue.stores.redis.topics.room import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, room_by
from segue.stores.redis.topics.stretch import pack_slot
from segue.stores.topic_adoption import check_key, records_of
from segue.stores.topic_contract import Adoption

STAGED_MS: Final = 3_600_000
"""How long what is to be adopted is kept when whoever adopts it dies half-way."""


# Sending -----------------------------------------------------------------------------------


def send(
    core: TopicCore,
    partition: int,
    segment: int,
    target: Writable | HasFileno,
    *,
    position: int,
) -> int:
    """Send a sealed segment from `position` on; return how many bytes that were.

    The bytes are made of what the segment holds, the same each time until it is compacted.
    """
    if type(segment) is not int:
        raise InvalidArgument(f"segment must be a whole number: {segment!r}")
    door = core.partition(core.check(partition))
    survey = door.survey()
    if segment == survey.active.id:
        raise InvalidArgument(f"segment {segment} still takes records: call roll() first")
    for facts in survey.sealed:
        if facts.id == segment:
            break
    else:
        raise InvalidArgument(f"there is no segment {segment} in {door.base}")
    data = memoryview(_file_of(core, partition, facts))
    if type(position) is not int or not 0 <= position <= len(data):
        raise InvalidArgument(f"position must be from 0 to {len(data)}: {position}")
    _send(data[position:], target, f"segment {segment} of {door.base}")
    return len(data) - position


def _file_of(core: TopicCore, partition: int, facts: Facts) -> bytes:
    """Return a sealed segment as a file, without what was removed from it."""
    import numpy as np

    from segue.log.staging import Batch as StagedBatch
    from segue.log.staging import slots_of

    batches, times = [], []
    try:
        for stretch in stretches(core.partition(partition), facts.first_offset, facts.end_offset):
            columns = stretch.columns(stretch.first_offset, stretch.stop)
            payloads = columns.payload.to_pylist()
            if not payloads:
                continue
            lengths = np.array([len(payload) for payload in payloads], dtype=np.uint32)
            data = memoryview(b"".join(payloads))
            batches.append(StagedBatch(lengths=lengths, attrs=columns.attr, data=data))
            times.append(columns.time_us)
    except OffsetTrimmed:
        raise InvalidArgument(f"segment {facts.id} is gone") from None
    count = sum(map(len, batches))
    size_bytes = sum(len(batch.data) for batch in batches)
    name = f"{core.base}/{partition}/{facts.id}"
    header = SegmentHeader(
        id=SegmentId(facts.id),
        first_offset=Offset(facts.first_offset),
        items_max=max(1, count),
        bytes_max=max(SEGMENT_BYTES_MIN, payloads_position(max(1, count)) + max(1, size_bytes)),
        created_us=facts.first_us,
        # Not random: what broke off is gone on with by making the same bytes again.
        nonce=int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"),
    )
    table, chain = b"", header.key
    if batches:
        slots, chain = slots_of(header, batches, np.concatenate(times))
        table = bytes(slots)
    summary = Summary(
        count=count,
        payloads_end=Position(header.payloads_position + size_bytes),
        first_time_us=facts.first_us,
        last_time_us=facts.last_us,
        chain=chain,
    )
    page = bytearray(header.encode())
    for position, piece in summary.writes():
        page[position : position + len(piece)] = piece
    head = (bytes(page) + table).ljust(header.payloads_position, b"\0")
    assert len(page) == HEADER_BYTES, "the header is a page"
    return b"".join([head, *(batch.data for batch in batches)])


def _send(data: memoryview, target: Writable | HasFileno, what: str) -> None:
    write = writer_to(target)
    position = 0
    while position < len(data):
        with _naming(what, position):
            position += write(data[position : position + WRITE_STEP_BYTES])


@contextmanager
def _naming(what: str, position: int) -> Iterator[None]:
    """Say up to where a transfer came that broke."""
    try:
        yield
    except ValueError as error:
        raise InvalidArgument(f"nothing can be sent there: {error}") from error
    except OSError as error:
        raise storage_error(f"sending {what} from byte {position} on", error) from error


# Adopting ----------------------------------------------------------------------------------


def adopt(core: TopicCore, path: Path, *, partition: int, key: str) -> Adoption:
    """Append all records of a sealed segment, unless that was done before under `key`."""
    check_key(key)
    core.check(partition)
    with read_sealed(path, Disk()) as sealed:
        if not sealed.count:
            raise InvalidArgument(f"{path} holds no records to adopt")
        batches = _batches_of(sealed)
        count = sealed.count
    digest = adoption_digest(key).hex()
    for _ in range(CHANGES_MAX):
        try:
            first, is_new = _adopted(core, partition, batches, digest)
        except ManifestChanged as change:
            core.catch_up(change.version)
            continue
        return Adoption(partition=partition, first_offset=first, count=count, is_new=is_new)
    raise StorageError(f"topic {core.name} was changed by others all the time")


def _adopted(
    core: TopicCore, partition: int, batches: list[Batch], digest: str
) -> tuple[int, bool]:
    """Append batches in one step; return the first offset, and whether it was done just now."""
    manifest = core.existing()
    room = room_by(manifest.rules)
    door = core.partition(partition)
    if len(batches) == 1:
        first, rest = door.append(batches[0], version=manifest.version, room=room, adoption=digest)
        return (number_of(rest), False) if first < 0 else (first, True)
    name = secrets.token_hex(8)
    for number, batch in enumerate(batches, start=1):
        door.stage(f"{name}_{number}", batch, kept_ms=STAGED_MS)
    overheads = [room.overhead_bytes(batch.records) for batch in batches]
    done, first = door.adopt(name, overheads, version=manifest.version, adoption=digest)
    if not done:
        raise StorageError("what was to be adopted took too long to be sent; nothing was appended")
    return first, done > 0


def _batches_of(sealed: SealedSegment) -> list[Batch]:
    """Return the records of a segment in batches that can be sent and read at once."""
    lengths, attrs, data = records_of(sealed)
    batches: list[Batch] = []
    start = begin = position = 0
    for index, length in enumerate(lengths):
        is_full = index - start >= BATCH_RECORDS_MAX or position - begin + length > BATCH_BYTES_MAX
        if index > start and is_full:
            batches.append(_batch(lengths[start:index], attrs[start:index], data[begin:position]))
            start, begin = index, position
        position += length
    batches.append(_batch(lengths[start:], attrs[start:], data[begin:position]))
    return batches


def _batch(lengths: list[int], attrs: list[int], data: memoryview) -> Batch:
    return Batch(b"".join(map(pack_slot, attrs, lengths)), bytes(data))
