"""The active segment, open to write.

Stores go through a mapping where nobody waits for a sync (`hot.py`), and through `write_at` where
somebody does: each is the faster one there by far (docs/adr/0003). Space is written ahead with
zeros, a little at first, so a full disk is an error before the record and never a SIGBUS.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from segue.log import slots
from segue.log.catalog import NEW_SUFFIX
from segue.log.checksum import crc32_bulk
from segue.log.commit_queue import Request
from segue.log.disk import Disk, storage_errors, storage_failed
from segue.log.hot import NO_ROOM, HotTail, encode_batch
from segue.log.layout import (
    HEADER_BYTES,
    SLOT_BYTES,
    Offset,
    Position,
    SegmentHeader,
    Summary,
    segment_filename,
)
from segue.log.live import PAYLOADS_READY, PUBLISHED, READY, SLOTS_READY, STATE, WRITTEN, Live

SLOTS_AHEAD_BYTES: Final = 4096
PAYLOADS_AHEAD_BYTES: Final = 16 * 1024
AHEAD_BYTES_MAX: Final = 1024 * 1024
"""The step doubles with what is written, from the first figures up to this one."""
AHEAD_TIMES: Final = 8
"""And it is at least so many times what is wanted now: each step costs a sync its metadata."""
WRITE_BYTES_MIN: Final = 16 * 1024
"""From this size on a batch is written with a call, also where there is a mapping."""

_ZEROS: Final = bytes(AHEAD_BYTES_MAX)


class Tail(HotTail):
    """Appends to one segment. The caller holds the log's lock."""

    def __init__(
        self,
        path: Path,
        header: SegmentHeader,
        live: Live,
        disk: Disk,
        *,
        mapped: bool,
        publish_at_once: bool,
    ) -> None:
        """Open the segment at `path`; `load` then says where it ends."""
        self.path = path
        self.header = header
        self._disk = disk
        self.fd = disk.open_to_write(path)
        self._words = live.words
        self._mapping = None
        try:
            if disk.size(self.fd) < header.bytes_max:
                disk.resize(self.fd, header.bytes_max)
            if mapped:
                self._mapping = disk.map_to_write(self.fd, header.bytes_max)
            super().__init__(self._mapping, live.words, publish_at_once)
        except BaseException:
            disk.close(self.fd)
            raise
        self.segment = header.id
        self.first_offset = header.first_offset
        self.index = 0
        self.position = header.payloads_position
        self.chain = self.key = header.key
        self.seed = header.slot_seed
        self.time_us = header.created_us
        self.slots_ready = 0
        self.payloads_ready = header.payloads_position

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self.first_offset + self.index

    def load(self, index: int) -> None:
        """Go on after `index` records, which are there and intact."""
        if index:
            last = self._slot(index - 1)
            self.position, self.chain, self.time_us = last.end, last.after, last.time_us
        self.index = index
        # What another process wrote ahead is ours, too.
        self.slots_ready = max(index, self._words[SLOTS_READY])
        self.payloads_ready = max(self.position, self._words[PAYLOADS_READY])

    def _slot(self, index: int) -> slots.Slot:
        table = self._disk.read_at(self.fd, SLOT_BYTES, HEADER_BYTES + index * SLOT_BYTES)
        return slots.slot_from(table)

    def put(self, payload: bytes, attr: int, time_us: int) -> bool:
        """Append one record and return True, or False if the segment has no room for it."""
        if self._mapping is None:
            return self._put_written(payload, attr, time_us)
        if self.store(payload, attr, time_us) != NO_ROOM:
            return True
        return self.reserve(1, len(payload)) and self.store(payload, attr, time_us) != NO_ROOM

    def _put_written(self, payload: bytes, attr: int, time_us: int) -> bool:
        index, position, before = self.index, self.position, self.chain
        length = len(payload)
        end = position + length
        if end > self.header.bytes_max or index >= self.header.items_max or self._is_left:
            return False
        time_us = max(time_us, self.time_us)
        after = crc32_bulk(payload, before)
        slot = slots.encode_one(
            self.header,
            time_us=time_us,
            attr=attr,
            position=position,
            length=length,
            before=before,
            after=after,
        )
        self._write(payload, slot, 1)
        self._advance(index + 1, end, after, time_us)
        return True

    def put_run(self, requests: Sequence[Request], time_us: int) -> int:
        """Append requests, a batch each, while there is room; return how many were.

        Those have their offset then. One write for all payloads, one for all slots.
        """
        if self._is_left:
            return 0
        index, position, chain = self.index, self.position, self.chain
        time_us = max(time_us, self.time_us)
        offsets: list[int] = []
        tables: list[bytes] = []
        pieces: list[bytes | memoryview] = []
        for request in requests:
            stop = index + len(request.lengths)
            end = position + len(request.data)
            if stop > self.header.items_max or end > self.header.bytes_max:
                break
            after = crc32_bulk(request.data, chain)
            tables.append(
                encode_batch(
                    request.lengths,
                    request.attrs,
                    time_us=time_us,
                    position=position,
                    before=chain,
                    after=after,
                    key=self.key,
                    seed=self.seed,
                )
            )
            pieces.append(request.data)
            offsets.append(self.first_offset + index)
            index, position, chain = stop, end, after
        if not offsets:
            return 0
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)  # One is not copied.
        self._write(data, b"".join(tables), index - self.index)
        self._advance(index, position, chain, time_us)
        for request, offset in zip(requests, offsets, strict=False):
            request.offset = Offset(offset)
        return len(offsets)

    @property
    def _is_left(self) -> bool:
        """Whether a roll was interrupted: the segment may be sealed, and a record behind its end.

        Then it has no room, and whoever makes some rolls again. `store` looks for itself.
        """
        return self._words[STATE] != READY

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        """Tell whether so many records of so many bytes together fit in the segment."""
        header = self.header
        return (
            self.index + count <= header.items_max
            and self.position + size_bytes <= header.bytes_max
        )

    def take_in(self, count: int, end: int, chain: int, time_us: int) -> None:
        """Take note of the batch that the segment was created with."""
        self._note_ready(count, end)
        self._advance(count, end, chain, time_us)

    def _advance(self, index: int, position: int, chain: int, time_us: int) -> None:
        """Take in what was written. Plain assignments only: nothing may interrupt them."""
        words = self._words
        next_offset = self.first_offset + index
        self.position = position
        self.chain = chain
        self.time_us = time_us
        self.index = index
        words[WRITTEN] = next_offset
        if self.publish_at_once:
            words[PUBLISHED] = next_offset

    def _write(self, data: bytes | memoryview, table: bytes, count: int) -> None:
        """Store payloads and slots: through the mapping, or with a call where that is faster."""
        position, at = self.position, HEADER_BYTES + self.index * SLOT_BYTES
        if self._mapping is not None and len(data) >= WRITE_BYTES_MIN:
            # One call fills fresh pages faster than zeros and a mapping do.
            self._write_unprepared(data, table, count)
            return
        if position + len(data) > self.payloads_ready or self.index + count > self.slots_ready:
            self.reserve(count, len(data))
        if self._mapping is not None:
            self._mapping[position : position + len(data)] = data
            self._mapping[at : at + len(table)] = table
            return
        try:
            if data:
                self._disk.write_at(self.fd, data, position)
            self._disk.write_at(self.fd, table, at)
        except OSError as error:
            raise storage_failed(f"writing {self.path}", error) from error

    def _write_unprepared(self, data: bytes | memoryview, table: bytes, count: int) -> None:
        """Write into space that may not be there yet: a full disk is still no harm done.

        What got there lies behind the last record and is written over by the next.
        """
        with storage_errors(f"writing {self.path}"):
            self._disk.write_at(self.fd, data, self.position)
            self._disk.write_at(self.fd, table, HEADER_BYTES + self.index * SLOT_BYTES)
        self._note_ready(self.index + count, self.position + len(data))

    def _note_ready(self, index: int, position: int) -> None:
        """Take note that there is space up to here, so that no zeros are written over it."""
        words = self._words
        self.slots_ready = max(self.slots_ready, index)
        self.payloads_ready = max(self.payloads_ready, position)
        words[SLOTS_READY], words[PAYLOADS_READY] = self.slots_ready, self.payloads_ready

    def reserve(self, count: int, size_bytes: int) -> bool:
        """Write ahead for `count` records of `size_bytes`; False if the segment has no room."""
        header = self.header
        stop = self.index + count
        end = self.position + size_bytes
        if stop > header.items_max or end > header.bytes_max:
            return False
        with storage_errors(f"writing ahead in {self.path}"):
            if stop > self.slots_ready:
                ready = slots.slot_position(self.slots_ready)
                ready = self._fill(
                    ready,
                    slots.slot_position(stop),
                    slots.slot_position(header.items_max),
                    max(SLOTS_AHEAD_BYTES, ready - HEADER_BYTES, count * SLOT_BYTES * AHEAD_TIMES),
                )
                self.slots_ready = (ready - HEADER_BYTES) // SLOT_BYTES
                self._words[SLOTS_READY] = self.slots_ready
            if end > self.payloads_ready:
                used = self.payloads_ready - header.payloads_position
                step = max(PAYLOADS_AHEAD_BYTES, used, size_bytes * AHEAD_TIMES)
                self.payloads_ready = self._fill(self.payloads_ready, end, header.bytes_max, step)
                self._words[PAYLOADS_READY] = self.payloads_ready
        return True

    def _fill(self, ready: int, wanted: int, limit: int, step: int) -> int:
        """Write zeros from `ready` to at least `wanted`, and a step further up to `limit`."""
        target = min(limit, max(wanted, ready + min(step, AHEAD_BYTES_MAX)))
        while ready < target:
            piece = min(target - ready, AHEAD_BYTES_MAX)
            self._disk.write_at(self.fd, memoryview(_ZEROS)[:piece], ready)
            ready += piece
        return ready

    def summary(self) -> Summary:
        """Return what sealing now would say."""
        return Summary(
            count=self.index,
            payloads_end=Position(self.position),
            first_time_us=self._slot(0).time_us if self.index else self.time_us,
            last_time_us=self.time_us,
            chain=self.chain,
        )

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self.detach()
            if self._mapping is not None:
                with contextlib.suppress(BufferError):
                    self._mapping.close()
                self._mapping = None
            self._disk.close(fd)


def _space_of(header: SegmentHeader, batches: Sequence[tuple[int, int]]) -> int:
    """Return how many bytes of new segments batches take up, with what is written ahead."""
    filled: list[tuple[int, int]] = []
    items, size_bytes = header.items_max, 0
    for count, batch_bytes in batches:
        items, size_bytes = items + count, size_bytes + batch_bytes
        if items > header.items_max or size_bytes > header.payload_bytes_max:
            items, size_bytes = count, batch_bytes
            filled.append((0, 0))
        filled[-1] = items, size_bytes
    return sum(
        min(header.bytes_max, slots.slot_position(items) + size_bytes + 2 * AHEAD_BYTES_MAX)
        for items, size_bytes in filled
    )


@contextlib.contextmanager
def space_beside(
    directory: Path, header: SegmentHeader, batches: Sequence[tuple[int, int]], disk: Disk
) -> Iterator[None]:
    """Keep as much of the disk as batches take up in new segments like `header`.

    It is free again after the block. Raises StorageFull.
    """
    left_bytes = _space_of(header, batches)
    if not left_bytes:
        yield
        return
    # By a name that recovery clears away, should we be killed.
    path = directory / f"{segment_filename(header.id)}.{secrets.token_hex(8)}{NEW_SUFFIX}"
    try:
        with storage_errors(f"making room in {directory}"):
            fd = disk.open_to_write(path, create=True)
            try:
                for position in range(0, left_bytes, AHEAD_BYTES_MAX):
                    piece = memoryview(_ZEROS)[: left_bytes - position]
                    disk.write_at(fd, piece, position)
            finally:
                disk.close(fd)
        yield
    finally:
        with contextlib.suppress(OSError):
            disk.unlink(path)


def create_segment(
    directory: Path,
    header: SegmentHeader,
    disk: Disk,
    *,
    sync: bool,
    pieces: Sequence[tuple[Position, bytes | memoryview]] = (),
    sync_pieces: bool = False,
) -> Path:
    """Write a new segment beside its final name and return where it lies.

    It is empty, or holds `pieces`. One batch need not be synced: it is checked whole before anyone
    believes it. Several that belong together must be. `adopt_segment` gives it its name. Until
    then a full disk has changed nothing.
    """
    path = directory / f"{segment_filename(header.id)}{NEW_SUFFIX}"
    with storage_errors(f"creating {path}"):
        fd = disk.open_to_write(path, create=True)
        try:
            disk.resize(fd, 0)
            disk.resize(fd, header.bytes_max)
            disk.write_at(fd, header.encode(), 0)
            if sync:
                disk.sync_data(fd)
            for position, piece in pieces:
                disk.write_at(fd, piece, position)
            if sync_pieces:
                disk.sync_data(fd)
        except OSError:
            with contextlib.suppress(OSError):
                disk.unlink(path)
            raise
        finally:
            disk.close(fd)
    return path


def adopt_segment(path: Path, disk: Disk, *, sync: bool) -> Path:
    """Give a segment that `create_segment` wrote its name and return that."""
    final = path.with_suffix("")
    disk.rename(path, final)
    if sync:
        disk.sync_directory(final.parent)
    return final
