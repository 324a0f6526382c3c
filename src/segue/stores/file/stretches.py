"""What lies between two offsets of a log, by columns, past what may be passed over."""

from collections.abc import Iterator

from segue.errors import CorruptRecord, CorruptSegment, OffsetTrimmed
from segue.log import Log
from segue.log.columns import Columns
from segue.stores.passing import Passing
from segue.stores.topic_reading import in_partition


def stretches(log: Log, start: int, stop: int, passing: Passing) -> Iterator[Columns]:
    """Yield the records of a log from `start` up to `stop`.

    Raises OffsetTrimmed, CorruptRecord and CorruptSegment unless they are to be passed over.
    """
    while start < stop:
        try:
            for columns in log.columns(start, stop=stop):
                yield columns
                start = int(columns.offset[-1]) + 1
            return
        except OffsetTrimmed as error:
            if not passing.deleted and passing.number.isdecimal():
                raise in_partition(error, int(passing.number)) from None
            if not passing.deleted:
                raise
            after, reason = error.earliest, "deleted"
        except CorruptRecord as error:
            if not passing.damaged:
                raise
            after, reason = error.last_offset + 1, str(error)
        except CorruptSegment as error:
            if not passing.damaged:
                raise
            after, reason = _next_segment(log, start), str(error)
        after = max(start + 1, min(after, stop))
        passing.warn(start, after, reason)
        start = after


def _next_segment(log: Log, offset: int) -> int:
    later = [
        int(info.first_offset)
        for info in log.segments()
        if info.first_offset is not None and info.first_offset > offset
    ]
    return min(later, default=int(log.next_offset))
