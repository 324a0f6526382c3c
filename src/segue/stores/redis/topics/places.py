"""Where to begin, and how far who reads is behind, by partition."""

from collections.abc import Collection, Mapping

from segue.errors import SegueError
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.partition import Standing, Standings
from segue.stores.topic_contract import Lag, Start
from segue.stores.topic_reading import check_start, start_in


def resolved(core: TopicCore, start: Start, partitions: Collection[int]) -> dict[int, int]:
    """Return the offset that `start` stands for in each of `partitions`.

    Raises InvalidArgument, OffsetTrimmed, OffsetNotWritten.
    """
    check_start(core, start, partitions)
    return {
        partition: core.partition(partition).resolve(start_in(start, partition))
        for partition in partitions
    }


def save_places(core: TopicCore, mark: str, places: Mapping[int, int]) -> None:
    """Save places, all that can be; then raise what kept the first other from it."""
    failure: SegueError | None = None
    for partition, offset in places.items():
        try:
            core.partition(partition).save(mark, offset)
        except SegueError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def lag_of(core: TopicCore, mark: str) -> list[Lag]:
    """Return how far the reader or group with this mark is behind, by partition."""
    return all_lags(core, mark).get(mark, [])


def all_lags(core: TopicCore, mark: str = "") -> dict[str, list[Lag]]:
    """Return how far all, or one, are behind, by mark."""
    found: dict[str, list[Lag]] = {}
    for partition in core.numbers():
        standings = core.partition(partition).standings(mark)
        for standing in standings.places:
            found.setdefault(standing.mark, []).append(_lag(partition, standings, standing))
    return dict(sorted(found.items()))


def _lag(partition: int, standings: Standings, standing: Standing) -> Lag:
    waited_us = 0 if standing.time_us is None else max(0, standings.now_us - standing.time_us)
    return Lag(
        partition=partition,
        committed=standing.committed,
        next_offset=standings.next_offset,
        size_bytes=standing.size_bytes,
        seconds=waited_us / 1_000_000,
        trimmed=max(0, standings.first_offset - standing.committed),
    )
