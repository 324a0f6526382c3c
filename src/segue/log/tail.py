"""The active segment, open to write.

Stores go through a mapping where nobody waits for a sync (`hot.py`), and through `write_at` where
somebody does: each is the faster one there by far (docs/adr/0003). Space is written ahead with
zeros, a little at first, so a full disk is an error before the record and never a SIGBUS.
"""

import contextlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from segue.errors import InvalidArgument
from segue.log import slots
from segue.log.checksum import crc32_bulk
from segue.log.disk import Disk, storage_errors, storage_failures
from segue.log.hot import HotTail, encode_batch
from segue.log.layout import (
    HEADER_BYTES,
    SLOT_BYTES,
    Position,
    SegmentHeader,
    Summary,
    segment_filename,
)
from segue.log.live import PAYLOADS_READY, PUBLISHED, SLOTS_READY, WRITTEN, Live

SLOTS_AHEAD_BYTES: Final = 4096
PAYLOADS_AHEAD_BYTES: Final = 16 * 1024
AHEAD_BYTES_MAX: Final = 1024 * 1024
"""The step doubles with what is written, from the first figures up to this one."""

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
        self.first_offset = header.first_offset
        self.index = 0
        self.position = header.payloads_position
        self.chain = header.chain_start
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
            return self._put([len(payload)], payload, [attr], time_us)
        try:
            return self._prepare(1, len(payload)) and self.store(payload, attr, time_us) >= 0
        except (OverflowError, TypeError, struct.error):
            raise InvalidArgument(f"attr must fit in 64 bits without a sign: {attr!r}") from None

    def put_many(
        self, lengths: Sequence[int], data: bytes, attrs: Sequence[int] | None, time_us: int
    ) -> bool:
        """Append one batch of payloads joined in `data`; False if the segment has no room."""
        return self._put(lengths, data, attrs, time_us)

    def _put(
        self, lengths: Sequence[int], data: bytes, attrs: Sequence[int] | None, time_us: int
    ) -> bool:
        count = len(lengths)
        if not self._prepare(count, len(data)):
            return False
        position = self.position
        end = position + len(data)
        time_us = max(time_us, self.time_us)
        before = self.chain
        after = crc32_bulk(data, before)
        try:
            table = encode_batch(
                lengths, attrs, time_us=time_us, position=position, before=before, after=after
            )
        except (OverflowError, TypeError):
            raise InvalidArgument("each attr must fit in 64 bits without a sign") from None
        at = HEADER_BYTES + self.index * SLOT_BYTES
        if self._mapping is None:
            self._write(position, data, at, table)
        else:
            self._mapping[position:end] = data
            self._mapping[at : at + len(table)] = table
        # Plain assignments only from here on: nothing may interrupt between them.
        words = self._words
        index = self.index + count
        next_offset = self.first_offset + index
        self.position = end
        self.chain = after
        self.time_us = time_us
        self.index = index
        words[WRITTEN] = next_offset
        if self.publish_at_once:
            words[PUBLISHED] = next_offset
        return True

    def _write(self, position: int, data: bytes, at: int, table: bytes) -> None:
        with storage_failures(f"writing {self.path}"):
            if data:
                self._disk.write_at(self.fd, data, position)
            self._disk.write_at(self.fd, table, at)

    def _prepare(self, count: int, size_bytes: int) -> bool:
        """Make sure that `count` records of `size_bytes` can be stored; False if they never can."""
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
                    max(SLOTS_AHEAD_BYTES, ready - HEADER_BYTES),
                )
                self.slots_ready = (ready - HEADER_BYTES) // SLOT_BYTES
                self._words[SLOTS_READY] = self.slots_ready
            if end > self.payloads_ready:
                used = self.payloads_ready - header.payloads_position
                step = max(PAYLOADS_AHEAD_BYTES, used)
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
            self.detach()
            if self._mapping is not None:
                with contextlib.suppress(BufferError):
                    self._mapping.close()
                self._mapping = None
            self._disk.close(self.fd)
            self.fd = -1


def create_segment(directory: Path, header: SegmentHeader, disk: Disk, *, sync: bool) -> Path:
    """Write a new, empty segment beside its final name and return where it lies.

    `adopt_segment` gives it its name. Until then a full disk has changed nothing.
    """
    path = directory / f"{segment_filename(header.id)}.new"
    with storage_errors(f"creating {path}"):
        fd = disk.open_to_write(path, create=True)
        try:
            disk.resize(fd, 0)
            disk.resize(fd, header.bytes_max)
            disk.write_at(fd, header.encode(), 0)
            if sync:
                disk.sync_data(fd)
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
