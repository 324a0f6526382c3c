"""A second reader of format version 1, following docs/format.md alone.

It shares no code with Segue. If the two ever disagree about a golden file, the format has changed.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

PAGE = 4096
SLOT = struct.Struct("<qQIIIIII")
HEADER = struct.Struct("<8sIIQQIIqQ")
SUMMARY = struct.Struct("<8sIIqqI")
REMOVED = 1 << 24
MORE = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one segment file holds."""

    id: int
    first_offset: int
    items_max: int
    bytes_max: int
    count: int
    sealed: bool
    rows: list[tuple[int, int, int, bytes]]
    """Offset, time, attr and payload of every record that was not removed."""
    removed: list[int]


def decode_segment(path: Path) -> Decoded:
    """Read a segment file, checking every checksum on the way."""
    data = path.read_bytes()
    halves = (data[: PAGE // 2], data[PAGE // 2 : PAGE])
    assert halves[0][:1024] == halves[1][:1024], "two copies of the header"
    assert data.startswith(b"SegueLog")
    version, slot_bytes, id_, first, items_max, bytes_max, _, _ = checked(data, HEADER, 0)
    assert (version, slot_bytes) == (1, SLOT.size)
    assert len(data) == bytes_max
    payloads = -(-(PAGE + items_max * SLOT.size) // PAGE) * PAGE
    sealed = data[512:518] == b"Sealed"
    slots = list(SLOT.iter_unpack(data[PAGE : PAGE + items_max * SLOT.size]))
    count = next((n for n, slot in enumerate(slots) if slot == (0,) * 8), items_max)
    chain = check_batches(data, slots[:count], crc32(data[: HEADER.size]), payloads)
    if sealed:
        stored, end, first_us, last_us, stored_chain = checked(data, SUMMARY, 512)
        assert (stored, stored_chain) == (count, chain)
        assert (first_us, last_us) == (slots[0][0], slots[count - 1][0])
        assert end == slots[count - 1][2] + slots[count - 1][3]
    rows, removed = [], []
    for number, (time_us, attr, position, length, link, *_) in enumerate(slots[:count]):
        if link & REMOVED:
            removed.append(first + number)
        else:
            rows.append((first + number, time_us, attr, data[position : position + length]))
    return Decoded(id_, first, items_max, bytes_max, count, sealed, rows, removed)


def checked(data: bytes, layout: struct.Struct, at: int) -> tuple[int, ...]:
    """Unpack the numbers behind eight bytes of magic; a CRC-32 of all of it follows them."""
    body = data[at : at + layout.size]
    (stored,) = struct.unpack_from("<I", data, at + layout.size)
    assert stored == crc32(body)
    return tuple(layout.unpack(body)[1:])


def check_batches(data: bytes, slots: list[tuple[int, ...]], chain: int, position: int) -> int:
    """Follow the chain of checksums from batch to batch and return where it ends."""
    index, key = 0, chain
    while index < len(slots):
        more = slots[index][4] & MORE
        batch = slots[index : index + more + 1]
        assert [slot[4] & MORE for slot in batch] == list(range(more, -1, -1))
        for slot in batch:
            assert slot[2] == position, "payloads lie side by side"
            position += slot[3]
        *_, before, after, crc = batch[-1]
        assert all(slot[5:] == (0, 0, 0) for slot in batch[:-1])
        assert before == chain
        chain = crc32(data[batch[0][2] : position], chain)
        assert after == chain
        first = PAGE + index * SLOT.size
        table = data[first : first + len(batch) * SLOT.size]
        assert crc == crc32(table[:-4], crc32(struct.pack("<I", key))) ^ key
        index += more + 1
    return chain
