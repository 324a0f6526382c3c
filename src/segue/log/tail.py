"""The active segment, open to write: the hot path of an append, and nothing it does not need.

Stores go through a mapping where nobody waits for a sync, and through `write_at` where somebody
does: each is the faster one there by far (docs/adr/0003). Space is written ahead with zeros, a
little at first, so a full disk is an error before the record and never a SIGBUS.
"""

import contextlib
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from segue.errors import InvalidArgument
from segue.log import slots
from segue.log.checksum import SHORT_BYTES, crc32_bulk, crc32_short
from segue.log.disk import Disk, storage_errors, storage_failures
from segue.log.layout import (
    HEADER_BYTES,
    SLOT_BYTES,
    Position,
    SegmentHeader,
    Summary,
    segment_filename,
)
from segue.log.live import PAYLOADS_READY, PUBLISHED, SLOTS_READY, WRITTEN, Live
from segue.log.slots import RESIDUE, pack_body, pack_crc

SLOTS_AHEAD_BYTES: Final = 4096
PAYLOADS_AHEAD_BYTES: Final = 16 * 1024
AHEAD_BYTES_MAX: Final = 1024 * 1024
"""The step doubles with what is written, from the first figures up to this one."""

_ZEROS: Final = bytes(AHEAD_BYTES_MAX)


class Tail:
    """Appends to one segment. The caller holds the log's lock."""

    __slots__ = (
        "_bytes_max",
        "_disk",
        "_fd_is_open",
        "_items_max",
        "_mapping",
        "_payloads_ready",
        "_slots_ready",
        "_words",
        "chain",
        "fd",
        "first_offset",
        "header",
        "index",
        "path",
        "position",
        "publish_at_once",
        "time_us",
    )

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
        self.first_offset = header.first_offset
        self.publish_at_once = publish_at_once
        self._words = live.words
        self._disk = disk
        self._items_max = header.items_max
        self._bytes_max = header.bytes_max
        self.fd = disk.open_to_write(path)
        self._fd_is_open = True
        self._mapping: mmap.mmap | None = None
        try:
            if disk.size(self.fd) < header.bytes_max:
                disk.resize(self.fd, header.bytes_max)
            if mapped:
                self._mapping = disk.map_to_write(self.fd, header.bytes_max)
        except BaseException:
            self.close()
            raise
        self.index = 0
        self.position: int = header.payloads_position
        self.chain = header.chain_start
        self.time_us = header.created_us
        self._slots_ready = 0
        self._payloads_ready: int = header.payloads_position

    def load(self, index: int) -> None:
        """Go on after `index` records, which are there and intact."""
        if index:
            last = self._slot(index - 1)
            self.position, self.chain, self.time_us = last.end, last.after, last.time_us
        self.index = index
        # What another process wrote ahead is ours, too.
        self._slots_ready = max(index, self._words[SLOTS_READY])
        self._payloads_ready = max(self.position, self._words[PAYLOADS_READY])

    def _slot(self, index: int) -> slots.Slot:
        table = self._disk.read_at(self.fd, SLOT_BYTES, HEADER_BYTES + index * SLOT_BYTES)
        return slots.slot_from(table)

    def put(self, payload: bytes, attr: int, time_us: int) -> bool:
        """Append one record and return True, or False if the segment has no room for it.

        Nothing may interrupt between the stores: calls come first, plain assignments last.
        """
        index = self.index
        position = self.position
        length = len(payload)
        end = position + length
        if end > self._payloads_ready or index >= self._slots_ready:
            if end > self._bytes_max or index >= self._items_max:
                return False
            self._write_ahead(index + 1, end)
        if time_us < self.time_us:  # noqa: PLR1730 - a call to max costs a tenth of the append
            time_us = self.time_us  # A clock that steps back must not reorder the log.
        before = self.chain
        after = (crc32_short if length < SHORT_BYTES else crc32_bulk)(payload, before)
        try:
            body = pack_body(time_us, attr, position, length, 0, before, after)
        except struct.error:
            raise InvalidArgument(f"attr must fit in 64 bits without a sign: {attr!r}") from None
        slot = body + pack_crc(crc32_short(body, RESIDUE))
        at = HEADER_BYTES + index * SLOT_BYTES
        mapping = self._mapping
        if mapping is None:
            self._write(position, payload, at, slot)
        else:
            mapping[position:end] = payload
            mapping[at : at + SLOT_BYTES] = slot
        index += 1
        self.position = end
        self.chain = after
        self.time_us = time_us
        self.index = index
        self._words[WRITTEN] = self.first_offset + index
        if self.publish_at_once:
            self._words[PUBLISHED] = self.first_offset + index
        return True

    def put_many(
        self,
        lengths: Sequence[int],
        data: bytes,
        attrs: Sequence[int] | None,
        time_us: int,
    ) -> bool:
        """Append one batch of payloads joined in `data`; False if the segment has no room."""
        count = len(lengths)
        index = self.index
        position = self.position
        end = position + len(data)
        if end > self._payloads_ready or index + count > self._slots_ready:
            if end > self._bytes_max or index + count > self._items_max:
                return False
            self._write_ahead(index + count, end)
        time_us = max(time_us, self.time_us)
        before = self.chain
        after = crc32_bulk(data, before)
        try:
            table = slots.encode_batch(
                lengths, attrs, time_us=time_us, position=position, before=before, after=after
            )
        except (OverflowError, TypeError):
            raise InvalidArgument("each attr must fit in 64 bits without a sign") from None
        at = HEADER_BYTES + index * SLOT_BYTES
        mapping = self._mapping
        if mapping is None:
            self._write(position, data, at, table)
        else:
            mapping[position:end] = data
            mapping[at : at + len(table)] = table
        index += count
        self.position = end
        self.chain = after
        self.time_us = time_us
        self.index = index
        self._words[WRITTEN] = self.first_offset + index
        if self.publish_at_once:
            self._words[PUBLISHED] = self.first_offset + index
        return True

    def _write(self, position: int, data: bytes, at: int, table: bytes) -> None:
        with storage_failures(f"writing {self.path}"):
            if data:
                self._disk.write_at(self.fd, data, position)
            self._disk.write_at(self.fd, table, at)

    def _write_ahead(self, index: int, end: int) -> None:
        """Fill the space up to slot `index` and byte `end`, and some more, with zeros."""
        with storage_errors(f"writing ahead in {self.path}"):
            ready = HEADER_BYTES + self._slots_ready * SLOT_BYTES
            wanted = HEADER_BYTES + index * SLOT_BYTES
            limit = HEADER_BYTES + self._items_max * SLOT_BYTES
            if wanted > ready:
                used = ready - HEADER_BYTES
                ready = self._fill(ready, wanted, limit, max(SLOTS_AHEAD_BYTES, used))
                self._slots_ready = (ready - HEADER_BYTES) // SLOT_BYTES
                self._words[SLOTS_READY] = self._slots_ready
            if end > self._payloads_ready:
                used = self._payloads_ready - self.header.payloads_position
                self._payloads_ready = self._fill(
                    self._payloads_ready, end, self._bytes_max, max(PAYLOADS_AHEAD_BYTES, used)
                )
                self._words[PAYLOADS_READY] = self._payloads_ready

    def _fill(self, ready: int, wanted: int, limit: int, step: int) -> int:
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
        if self._fd_is_open:
            self._fd_is_open = False
            if self._mapping is not None:
                with contextlib.suppress(BufferError):
                    self._mapping.close()
            self._disk.close(self.fd)


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
            disk.write_at(fd, _ZEROS[:SLOTS_AHEAD_BYTES], HEADER_BYTES)
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
