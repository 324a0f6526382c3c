"""Reading a few neighbours in a log: hardly more of it is checked than is read."""

from typing import Final

from segue.log import Log
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.log.record import Record

NEIGHBOURS_BYTES_MAX: Final = 4 << 20
"""About how much is read at once; no less than one segment has of it."""


def read_neighbours(log: Log, start: int, stop: int) -> tuple[list[Record], int]:
    """Return the records between two offsets, but those that were removed, and where they end.

    That is before `stop` if they are large. Raises OffsetTrimmed and OffsetNotWritten for a start
    that is not there, CorruptRecord and CorruptSegment if any of them is damaged.
    """
    # Whoever reads on would have thousands checked at once.
    cursor = Cursor(
        log._horizon, log.resolve(start), on_damage="raise", ahead_items=stop - start, pin=False
    )
    found: list[Record] = []
    left_bytes = NEIGHBOURS_BYTES_MAX
    try:
        while left_bytes > 0 and (records := cursor.fetch(stop - start, Offset(stop))):
            found += records
            left_bytes -= sum(len(record.payload) for record in records)
        return found, cursor.offset if left_bytes <= 0 else stop
    finally:
        cursor.close()
