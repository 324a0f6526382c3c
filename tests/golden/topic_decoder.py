"""A second reader of the topics of format version 1, following docs/format.md alone.

It shares no code with Segue. If the two ever disagree about the golden topic, the format has
changed.
"""

import json
import struct
from pathlib import Path
from zlib import crc32

from tests.golden.decoder import decode_segment

Row = tuple[int, int, bytes | None, bytes | None, dict[str, str], int]
"""Partition, offset, key, value, headers and time."""


def decode_document(path: Path) -> dict[str, object]:
    """Return what a JSON file holds, checked."""
    document = json.loads(path.read_text())
    values: dict[str, object] = document["holds"]
    assert document["crc32"] == crc32(json.dumps(values, sort_keys=True).encode())
    assert values["format"] == 1
    return values


def decode_topic(path: Path) -> list[Row]:
    """Return the records of every partition, one partition after the other."""
    manifest = decode_document(path / "manifest.json")
    assert isinstance(manifest["partitions"], int)
    return [
        decode_record(partition, *row)
        for partition in range(manifest["partitions"])
        for segment in sorted((path / f"partition_{partition}").glob("*.q"))
        for row in decode_segment(segment).rows
    ]


def decode_record(partition: int, offset: int, time_us: int, attr: int, payload: bytes) -> Row:
    """Return one record."""
    assert attr >> 53 == 0
    at = 0
    if attr >> 50 & 1:
        (time_us,) = struct.unpack_from("<q", payload)
        at += 8
    at += 16 * (attr >> 51 & 1) + 16 * (attr >> 52 & 1)
    key_end = at + (attr & 0xFF_FFFF)
    headers_end = key_end + (attr >> 24 & 0xFF_FFFF)
    return (
        partition,
        offset,
        payload[at:key_end] if attr >> 48 & 1 else None,
        None if attr >> 49 & 1 else payload[headers_end:],
        decode_headers(payload[key_end:headers_end]),
        time_us,
    )


def decode_headers(data: bytes) -> dict[str, str]:
    """Return the headers of one record."""
    headers = {}
    while data:
        name_bytes, value_bytes = struct.unpack_from("<HI", data)
        name = data[6 : 6 + name_bytes].decode()
        headers[name] = data[6 + name_bytes : 6 + name_bytes + value_bytes].decode()
        data = data[6 + name_bytes + value_bytes :]
    return headers
