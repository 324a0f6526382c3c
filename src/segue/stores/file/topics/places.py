"""Where to begin: what a start stands for in each partition."""

from collections.abc import Collection

from segue.errors import InvalidArgument, OffsetOutOfRange, SegueError
from segue.log import Log
from segue.log.layout import Offset
from segue.stores.file.topics.core import TopicCore
from segue.stores.topic_contract import Start
from segue.stores.topic_reading import OneStart, check_start, in_partition, start_in


def resolved(core: TopicCore, start: Start, partitions: Collection[int]) -> dict[int, Offset]:
    """Return the offset that `start` stands for in each of `partitions`.

    Raises InvalidArgument, OffsetTrimmed, OffsetNotWritten.
    """
    check_start(core, start, partitions)
    found = {
        partition: resolve_in(core.log(partition), partition, start_in(start, partition))
        for partition in partitions
    }
    core.require_open()  # A log that was closed under our hands says anything.
    return found


def resolve_in(log: Log, partition: int, start: OneStart) -> Offset:
    """Return the offset that `start` stands for in one partition."""
    try:
        return log.resolve(start)
    except OffsetOutOfRange as error:
        raise in_partition(error, partition) from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, SegueError):
            raise
        raise InvalidArgument(f"{start!r} is no time that can be found: {error}") from error
