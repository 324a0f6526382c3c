"""Writing a sealed segment anew: beside the old file, synced, then under its name in one step.

Offsets and times never change, and a batch stays the batch it was, so that damage afterwards costs
what it would have cost before. Only positions and checksums are new. Who decides what is removed
lives elsewhere: `repair.py` what is damaged, `compaction.py` what nobody wants.
"""

import contextlib
import secrets
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from segue.log import slots
from segue.log.catalog import NEW_SUFFIX
from segue.log.checksum import SHORT_BYTES, crc32_bulk, crc32_short
from segue.log.disk import Disk
from segue.log.horizon import Horizon
from segue.log.layout import SLOT_BYTES, Position, SegmentHeader, Summary
from segue.log.segment import SegmentView
from segue.values import dataclass

STRETCH_ITEMS_MAX: Final = 4096
STRETCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""How much is held in memory at a time, unless a single batch is larger."""

_WORDS: Final = SLOT_BYTES // 4
_ATTR: Final = 2
_POSITION: Final = 4
_LENGTH: Final = 5
_LINK: Final = 6
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some whole batches: their slots as words, and their payloads side by side.

    Times, attrs, lengths and links are as they are to be; the other words do not matter yet.
    """

    words: "array[int]"
    payloads: bytes | memoryview


def copied(
    view: SegmentView, first: int, stop: int, removed: Sequence[int] = ()
) -> Iterator[Stretch]:
    """Yield the batches `first` to `stop` of a segment, all intact.

    The records at the indexes `removed`, in order, become removed ones.
    """
    while first < stop:
        end = _stretch_end(view.view, first, stop)
        gone = removed[bisect_left(removed, first) : bisect_left(removed, end)]
        yield _copied(view.view, first, end, gone)
        first = end


def _stretch_end(view: memoryview, first: int, stop: int) -> int:
    """Return where a stretch that begins at `first` ends: with a batch, near the limits."""
    position_max = slots.slot_at(view, first).position + STRETCH_BYTES_MAX
    others = range(first + 1, min(stop, first + STRETCH_ITEMS_MAX))
    fitting = bisect_right(others, position_max, key=lambda index: slots.slot_at(view, index).end)
    return slots.batch_stop(view, first + fitting)


def _copied(view: memoryview, first: int, stop: int, removed: Sequence[int]) -> Stretch:
    words = array("I", view[slots.slot_position(first) : slots.slot_position(stop)].tobytes())
    pieces = []
    position = words[_POSITION]
    end = slots.slot_at(view, stop - 1).end
    for index in removed:
        at = (index - first) * _WORDS
        begins = words[at + _POSITION]
        if position < begins:
            pieces.append(view[position:begins])
        position = begins + words[at + _LENGTH]
        words[at + _ATTR] = words[at + _ATTR + 1] = words[at + _LENGTH] = 0
        words[at + _LINK] |= slots.REMOVED
    if position < end:
        pieces.append(view[position:end])
    return Stretch(words=words, payloads=pieces[0] if len(pieces) == 1 else b"".join(pieces))


def removed_records(count: int, *, time_us: int) -> Iterator[Stretch]:
    """Yield `count` removed records, each a batch of its own."""
    one = array("I", slots.pack_body(time_us, 0, 0, 0, slots.REMOVED, 0, 0) + bytes(_CRC_BYTES))
    while count > 0:
        step = min(count, STRETCH_ITEMS_MAX)
        yield Stretch(words=one * step, payloads=b"")
        count -= step


# Writing -------------------------------------------------------------------------------------


def write_beside(
    path: Path, header: SegmentHeader, stretches: Iterable[Stretch], disk: Disk
) -> Path:
    """Write a sealed segment under a name nobody else uses; return that, synced.

    `take_name` makes it the segment at `path`. Whatever fails, nothing is left of it.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}{NEW_SUFFIX}")
    try:
        fd = disk.open_to_write(temporary, create=True)
        try:
            disk.resize(fd, header.bytes_max)
            disk.write_at(fd, header.encode(), 0)
            summary = Summary(
                count=0,
                payloads_end=header.payloads_position,
                first_time_us=header.created_us,
                last_time_us=header.created_us,
                chain=header.key,
            )
            for stretch in stretches:
                summary = _write_stretch(fd, header, stretch, summary, disk)
            for position, piece in summary.writes():
                disk.write_at(fd, piece, position)
            disk.sync_data(fd)
        finally:
            disk.close(fd)
    except BaseException:
        discard(temporary, disk)
        raise
    return temporary


def take_name(temporary: Path, path: Path, horizon: Horizon, disk: Disk) -> None:
    """Make what `write_beside` wrote the segment at `path`. The caller keeps writers away.

    Who has the old file mapped reads on in it.
    """
    with horizon.rewriting():
        disk.rename(temporary, path)
    disk.sync_directory(path.parent)


def discard(temporary: Path, disk: Disk) -> None:
    """Delete what was written beside a segment; what cannot be deleted now, recovery will."""
    with contextlib.suppress(OSError):
        disk.unlink(temporary)


def _write_stretch(
    fd: int, header: SegmentHeader, stretch: Stretch, summary: Summary, disk: Disk
) -> Summary:
    """Write batches behind those that `summary` tells of, and return what it is with them."""
    words = stretch.words
    chain = _complete(stretch, header, summary.payloads_end, summary.chain)
    table = memoryview(words).cast("B")
    if stretch.payloads:
        disk.write_at(fd, stretch.payloads, summary.payloads_end)
    disk.write_at(fd, table, slots.slot_position(summary.count))
    first_time_us = slots.slot_from(bytes(table[:SLOT_BYTES])).time_us
    return Summary(
        count=summary.count + len(words) // _WORDS,
        payloads_end=Position(summary.payloads_end + len(stretch.payloads)),
        first_time_us=summary.first_time_us if summary.count else first_time_us,
        last_time_us=slots.slot_from(bytes(table[-SLOT_BYTES:])).time_us,
        chain=chain,
    )


def _complete(stretch: Stretch, header: SegmentHeader, position: int, chain: int) -> int:
    """Fill in positions and checksums, payloads beginning at `position`; return the chain."""
    words, payloads = stretch.words, memoryview(stretch.payloads)
    ends = array("I", accumulate(words[_LENGTH::_WORDS], initial=0))
    words[_POSITION::_WORDS] = array("I", [position + end for end in ends[:-1]])
    links = words[_LINK::_WORDS]
    seed, key = header.slot_seed, header.key
    table = memoryview(words).cast("B")
    first = start = 0
    while first < len(links):
        stop = first + (links[first] & slots.MORE_MASK) + 1
        at = stop * _WORDS
        words[at - 3] = chain
        end = ends[stop]
        if start < end:
            crc32 = crc32_short if end - start < SHORT_BYTES else crc32_bulk
            chain = crc32(payloads[start:end], chain)
            start = end
        words[at - 2] = chain
        crc32 = crc32_short if stop - first == 1 else crc32_bulk
        words[at - 1] = crc32(table[first * SLOT_BYTES : at * 4 - _CRC_BYTES], seed) ^ key
        first = stop
    return chain
