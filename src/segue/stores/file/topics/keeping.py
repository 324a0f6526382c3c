"""What a topic does not keep: segments that may go, and records that later ones replaced."""

import logging
from collections.abc import Collection
from typing import NamedTuple

from segue.delivery.topic_rules import TopicRules
from segue.errors import CorruptPosition
from segue.log import Log
from segue.stores.file.topics import marks
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins
from segue.stores.topic_compaction import KEYS_MAX, Compaction
from segue.stores.topic_contract import CleanReport, CompactReport

logger = logging.getLogger(__name__)


class Cleaned(NamedTuple):
    """What became of one partition."""

    segments: list[int]
    freed_bytes: int


def clean(
    core: TopicCore, rules: TopicRules, partitions: Collection[int], *, dry_run: bool = False
) -> CleanReport:
    """Delete what `rules` allow to go."""
    cleaned = {
        partition: clean_partition(core, partition, rules, dry_run=dry_run)
        for partition in partitions
    }
    return CleanReport(
        deleted={number: each.segments for number, each in cleaned.items() if each.segments},
        freed_bytes=sum(each.freed_bytes for each in cleaned.values()),
        held_by={
            partition: name
            for partition in partitions
            if (name := _furthest_back(core.log(partition))) is not None
        },
    )


def clean_partition(
    core: TopicCore, partition: int, rules: TopicRules, *, dry_run: bool = False
) -> Cleaned:
    """Delete what `rules` allow to go in one partition."""
    log = core.log(partition)
    stop = keep_origins(core, log)
    sizes = {segment.id: segment.size_bytes for segment in log.segments()}
    deleted = log.cleanup(
        age_max=rules.keep_seconds,
        bytes_max=rules.keep_bytes,
        lag_max=rules.lag_max,
        stop=stop,
        dry_run=dry_run,
    )
    return Cleaned(list(deleted), sum(sizes.get(id_, 0) for id_ in deleted))


def keep_origins(core: TopicCore, log: Log) -> int:
    """See that nothing is forgotten of who made what is about to go; return up to where."""
    end = log.next_offset  # Before the look: a producer that is new comes after it.
    if not core.place.disk.exists(core.path / PRODUCERS):
        return end
    with current_origins(log, core.place.disk) as origins:
        return origins.upto


def _furthest_back(log: Log) -> str | None:
    """Return the reader or group that holds the oldest segment that is left."""
    places = {}
    for name in marks.names_of(log):
        try:
            place = marks.saved(log, name)
        except CorruptPosition:
            return name  # It protects everything.
        if place is not None:
            places[name] = place
    return min(places, key=places.__getitem__, default=None)


def compact(core: TopicCore, rules: TopicRules, partitions: Collection[int]) -> CompactReport:
    """Remove what later records replaced, and tombstones that are old enough."""
    removed, freed_bytes = 0, 0
    segments: dict[int, list[int]] = {}
    for partition in partitions:
        log = core.log(partition)
        stop = keep_origins(core, log)
        compaction = Compaction(
            log,
            tombstones_before_us=core.place.clock() - round(rules.tombstone_seconds * 1e6),
            keys_max=KEYS_MAX,
        )
        compaction.run(stop)
        removed += compaction.removed
        freed_bytes += compaction.freed_bytes
        if compaction.segments:
            segments[partition] = sorted(compaction.segments)
    return CompactReport(removed_records=removed, freed_bytes=freed_bytes, segments=segments)
