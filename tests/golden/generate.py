"""Writes the golden files of the current format version, the same bytes each time.

    .venv/bin/python -m tests.golden.generate

replaces tests/golden/v1. Do that only while version 1 has not been released: afterwards a change
of these files is a change of the format, and needs a new version beside the old one.
"""

import hashlib
import itertools
import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from segue import Log, Record
from segue.log.layout import FORMAT_VERSION
from segue.log.options import SyncName
from tests.unit.support import SMALL_SEGMENT_BYTES, ManualClock, flip_bit, slot_position

HERE: Final = Path(__file__).parent
START_US: Final = 1_700_000_000_000_000
SEGMENT_ITEMS: Final = 6
EXPECTED: Final = "expected.json"
UNSTABLE: Final = ("live", "lock", "quarantine", "wake")
"""What belongs to a running machine and not to the format."""


@contextmanager
def fixed_nonces() -> Iterator[None]:
    """Make the random numbers of new segments the same each time."""
    numbers = itertools.count(0x0123_4567_89AB_CDEF, 0x1111_1111_1111_1111)
    real = secrets.randbits
    secrets.randbits = lambda k: next(numbers) % (1 << k)
    try:
        yield
    finally:
        secrets.randbits = real


def write_log(directory: Path, *, sync: SyncName = "always") -> list[Record]:
    """Write the golden log into `directory` and return its records."""
    clock = ManualClock(START_US)
    with (
        fixed_nonces(),
        Log(
            directory,
            segment_bytes=SMALL_SEGMENT_BYTES,
            segment_items=SEGMENT_ITEMS,
            sync=sync,
            clock=clock,
        ) as log,
    ):
        write_records(log, clock)
        log.reader("current", 9).close()
        # The batch of the offsets 7 and 8 rots and is removed by a repair.
        flip_bit(directory / "000000001.q", slot_position(1))
        log.repair()
        clock.advance(seconds=1)
        log.append(b"after the repair", attr=99)
        records = list(log.records())
    for name, data in LEGACY_POSITIONS.items():
        (directory / "readers" / f"{name}.meta").write_bytes(data)
    for name in UNSTABLE:
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return records


LEGACY_POSITIONS: Final = {
    "legacy-8": (3).to_bytes(8, "little"),
    "legacy-16": (1).to_bytes(8, "little") + (10).to_bytes(8, "little"),
}


def write_records(log: Log, clock: ManualClock) -> None:
    """Append singles and batches, empty and full, with and without attrs, over five segments."""
    log.append(b"the first record")
    clock.advance(us=1)
    log.append(b"")
    log.append_many([b"a", b"", b"batch of three"], attrs=[1, (1 << 64) - 1, 1 << 63])
    clock.advance(us=-1_000)  # A clock that steps back does not reorder the log.
    log.append(bytes(range(256)), attr=256)
    log.append(b"a segment of its own begins")
    clock.advance(seconds=3)
    log.append_many([b"this batch", b"will be removed"])
    log.append_many([b"and this", b"one stays"], attrs=[7, 8])
    log.roll()
    log.append_many([b"%d" % number for number in range(SEGMENT_ITEMS)])
    clock.advance(seconds=60)
    log.append(b"x" * 4_096, attr=4_096)
    log.append(b"the last but one")


def describe(directory: Path, records: list[Record]) -> dict[str, object]:
    """Return what a reader of the files must find, as JSON can hold it."""
    with Log(directory, read_only=True) as log:
        segments = [
            {
                "id": info.id,
                "first_offset": info.first_offset,
                "count": info.count,
                "sealed": info.sealed,
                "created_us": info.created_us,
            }
            for info in log.segments()
        ]
        first_offset, next_offset = log.first_offset, log.next_offset
        readers = {name: list(saved) for name, saved in sorted(log.readers().items())}
    return {
        "format_version": FORMAT_VERSION,
        "first_offset": first_offset,
        "next_offset": next_offset,
        "removed": [
            offset
            for offset in range(first_offset, next_offset)
            if offset not in {record.offset for record in records}
        ],
        "readers": readers,
        "segments": segments,
        "records": [
            {
                "offset": record.offset,
                "time_us": record.time_us,
                "attr": record.attr,
                "payload": record.payload.hex(),
            }
            for record in records
        ],
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files_of(directory)},
    }


def files_of(directory: Path) -> list[tuple[str, bytes]]:
    """Return name and bytes of every file of a log that belongs to the format."""
    return [
        (str(path.relative_to(directory)), path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != EXPECTED
    ]


def main() -> None:
    """Replace the golden files."""
    target = HERE / f"v{FORMAT_VERSION}"
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "log"
        records = write_log(directory)
        expected = describe(directory, records)
        if target.exists():
            shutil.rmtree(target)
        for name, data in files_of(directory):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)
        (target / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
