"""Finding a dead letter by the message it was, where the ledger has forgotten its burial.

Letters say of themselves which message they were, in words that are searched for as they stand: no
letter is decoded but those that are found, and no segment is looked into that all have left.
"""

from bisect import bisect_right
from collections.abc import Iterator

from segue.delivery.message import Key, unpack_prefix
from segue.delivery.ranges import OffsetRanges
from segue.errors import Damage, OffsetOutOfRange, RecordRemoved
from segue.log import Log, slots
from segue.log.record import Record
from segue.log.segment import SegmentView


def letters_of(log: Log, key: Key, there: OffsetRanges) -> Iterator[Record]:
    """Yield the letters that a message has become and that are `there`, the newest first."""
    horizon = log._horizon
    stop = log.next_offset
    for start in horizon.starts():
        has_some = any(first < stop for first, _ in there.runs(start, count_max=1))
        stop = start
        if not has_some:
            continue
        try:
            view = horizon.open_view(start)
        except (Damage, OffsetOutOfRange):
            continue  # Damaged, or deleted since we began.
        try:
            count = horizon.end_of(view) - view.first_offset
            offsets = [view.first_offset + index for index in _found_in(view, count, key)]
        finally:
            view.close()
        for offset in reversed(offsets):
            record = moved_record(log, offset, key) if offset in there else None
            if record is not None:
                yield record


def moved_record(log: Log, offset: int, key: Key) -> Record | None:
    """Return the record at an offset if it can be read, and is the message that was moved there."""
    try:
        record = log.read(offset)
    except (Damage, OffsetOutOfRange, RecordRemoved):
        return None
    prefix, _ = unpack_prefix(record.payload, record.attr)
    return record if (prefix.get("f"), prefix.get("o")) == key else None


def _found_in(view: SegmentView, stop: int, key: Key) -> Iterator[int]:
    """Yield which records of a segment seem to be the message."""
    if not stop:
        return
    words = b'"f":%d,"o":%d,' % key
    position, end = slots.slot_at(view.view, 0).position, slots.slot_at(view.view, stop - 1).end
    while (position := view.find(words, position, end)) >= 0:
        yield (
            bisect_right(
                range(stop), position, key=lambda index: slots.slot_at(view.view, index).position
            )
            - 1
        )
        position += len(words)
