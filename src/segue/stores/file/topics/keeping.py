"""What a topic does not keep: segments that may go, and records that later ones replaced."""

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final, NamedTuple

from segue.delivery.topic_record import HAS_KEY, is_tombstone, key_of
from segue.delivery.topic_rules import TopicRules
from segue.errors import CorruptPosition, OffsetTrimmed
from segue.log import Log, Record
from segue.stores.file.topics import marks
from segue.stores.file.topics.core import PRODUCERS, TopicCore
from segue.stores.file.topics.origins import current_origins
from segue.stores.topic_contract import CleanReport, CompactReport

logger = logging.getLogger(__name__)

KEYS_MAX: Final = 1_000_000
"""How many keys compaction has in memory at once; for more it takes several rounds."""


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
        compaction = _Compaction(log, core.place.clock() - round(rules.tombstone_seconds * 1e6))
        compaction.run(stop)
        removed += compaction.removed
        freed_bytes += compaction.freed_bytes
        if compaction.segments:
            segments[partition] = sorted(compaction.segments)
    return CompactReport(removed_records=removed, freed_bytes=freed_bytes, segments=segments)


class _Compaction:
    """One run over one partition."""

    def __init__(self, log: Log, tombstones_before_us: int) -> None:
        self._log = log
        self._tombstones_before_us = tombstones_before_us
        self._has_tombstones = False
        self.removed = 0
        self.freed_bytes = 0
        self.segments: set[int] = set()

    def run(self, end: int) -> None:
        start: int = self._log.first_offset
        while start < end:
            newest: dict[bytes, int] = {}
            for record in self._records(start, end):
                key = key_of(record)
                if key is not None:
                    newest[key] = record.offset
                self._has_tombstones |= self._is_old_tombstone(record)
                start = record.offset + 1
                if len(newest) >= KEYS_MAX:
                    break
            else:
                start = end
            self._remove(partial(_is_newest, newest), end)
        if self._has_tombstones:
            self._remove_tombstones(end)

    def _remove_tombstones(self, end: int) -> None:
        """Remove old tombstones under whose key nothing older is left for them to hide.

        By a look of its own: a segment that could not be compacted may still hold some.
        """
        oldest: dict[bytes, int] = {}
        tombstones: dict[bytes, int] = {}
        for record in self._records(0, end):
            if self._is_old_tombstone(record) and len(tombstones) < KEYS_MAX:
                key = key_of(record)
                if key is not None:
                    tombstones[key] = record.offset
        if not tombstones:
            return
        for record in self._records(0, end):
            key = key_of(record)
            if key is not None and key in tombstones:
                oldest.setdefault(key, record.offset)
        alone = {offset for key, offset in tombstones.items() if oldest.get(key, offset) == offset}
        if alone:
            self._remove(lambda record: record.offset not in alone, end)

    def _records(self, start: int, end: int) -> Iterator[Record]:
        """Yield what can be read, also if something is cleaned away meanwhile."""
        while start < end:
            start = max(start, self._log.first_offset)
            try:
                for record in self._log.records(start, stop=end, on_damage="skip"):
                    yield record
                    start = record.offset + 1
                return
            except OffsetTrimmed as error:
                start = max(start, error.earliest)

    def _is_old_tombstone(self, record: Record) -> bool:
        return is_tombstone(record) and record.time_us <= self._tombstones_before_us

    def _remove(self, keep: Callable[[Record], bool], end: int) -> None:
        report = self._log.remove_records(keep, stop=end)
        self.removed += report.removed_records
        self.freed_bytes += report.freed_bytes
        self.segments.update(report.segments)


def _is_newest(newest: dict[bytes, int], record: Record) -> bool:
    if not record.attr & HAS_KEY:
        return True
    key = key_of(record)
    return key is None or newest.get(key, record.offset) <= record.offset
