"""Where to begin: what a start stands for in each partition."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Literal

from segue.errors import InvalidArgument, OffsetOutOfRange, SegueError
from segue.log import Log
from segue.log.layout import Offset
from segue.stores.file.topics.core import TopicCore
from segue.stores.topic_contract import Start

OneStart = Literal["earliest", "latest"] | datetime | int


def resolved(core: TopicCore, start: Start, partitions: Collection[int]) -> dict[int, Offset]:
    """Return the offset that `start` stands for in each of `partitions`.

    Raises InvalidArgument, OffsetTrimmed, OffsetNotWritten.
    """
    check_start(core, start, partitions)
    return {
        partition: resolve_in(core.log(partition), partition, start_in(start, partition))
        for partition in partitions
    }


def check_offsets(offsets: Mapping[int, int]) -> None:
    """Raise InvalidArgument unless these are offsets by partition."""
    given: object = offsets
    if not isinstance(given, Mapping) or not all(
        type(number) is int for pair in given.items() for number in pair
    ):
        raise InvalidArgument(f"offsets must be numbers by partition, as {{0: 17}}: {offsets!r}")


def start_in(start: Start, partition: int) -> OneStart:
    """Return what `start` says of one partition."""
    return start.get(partition, "earliest") if isinstance(start, Mapping) else start


def check_start(core: TopicCore, start: Start, partitions: Collection[int]) -> None:
    """Raise InvalidArgument for what is no start."""
    given: object = start
    if given in ("earliest", "latest") or isinstance(given, datetime):
        return
    if isinstance(given, Mapping):
        if not all(type(number) is int for pair in given.items() for number in pair):
            raise InvalidArgument(f"a start by partition is a mapping of numbers: {start!r}")
        for partition in given:
            core.check(partition)
        return
    if type(given) is int:
        if len(partitions) == 1:
            return
        raise InvalidArgument(
            f"an offset is of one partition; for several give one each, as {{0: {given}}}"
        )
    raise InvalidArgument(
        f"start must be earliest, latest, a datetime, an offset or offsets: {start!r}"
    )


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


def in_partition(error: OffsetOutOfRange, partition: int) -> OffsetOutOfRange:
    """Return the same error, saying which partition it is about."""
    return type(error)(
        offset=error.offset, earliest=error.earliest, latest=error.latest, partition=partition
    )
