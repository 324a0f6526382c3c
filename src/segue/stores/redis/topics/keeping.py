"""What a topic does not keep: segments that may go, and records that later ones replaced."""

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal, NamedTuple

from segue.delivery.topic_rules import TopicRules
from segue.errors import OffsetTrimmed
from segue.log.layout import Offset, SegmentId
from segue.log.options import microseconds_from
from segue.log.positions import SavedPosition
from segue.log.record import Record
from segue.log.retention import RetentionLimits, SegmentFacts, segments_to_delete
from segue.stores.redis.topics.core import TopicCore
from segue.stores.redis.topics.feed import FETCH_BYTES_MAX, FETCH_RECORDS_MAX
from segue.stores.redis.topics.partition import Facts, Partition, Survey
from segue.stores.redis.topics.stretch import REMOVED, Stretch, pack_batch, pack_slot
from segue.stores.topic_compaction import Compaction
from segue.stores.topic_contract import CleanReport, CompactReport
from segue.values import dataclass

logger = logging.getLogger(__name__)

CLEAN_TRIES: Final = 10
"""How often it is decided anew what may go when somebody goes back meanwhile."""


class Cleaned(NamedTuple):
    """What became of one partition."""

    segments: list[int]
    freed_bytes: int
    held_by: str | None


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
            number: each.held_by for number, each in cleaned.items() if each.held_by is not None
        },
    )


def clean_partition(
    core: TopicCore, partition: int, rules: TopicRules, *, dry_run: bool = False
) -> Cleaned:
    """Delete what `rules` allow to go in one partition."""
    door = core.partition(partition)
    deleted: list[int] = []
    freed_bytes = 0
    for _ in range(CLEAN_TRIES):
        survey = door.survey()
        ids = _to_delete(survey, rules)
        sizes = {facts.id: facts.size_bytes for facts in survey.sealed}
        if dry_run:
            deleted, freed_bytes = ids, sum(sizes[id_] for id_ in ids)
            break
        gone = _drop(door, ids, survey.back)
        deleted += gone
        freed_bytes += sum(sizes[id_] for id_ in gone)
        if gone == ids:
            break
    held_by = min(survey.places, key=survey.places.__getitem__, default=None)
    return Cleaned(deleted, freed_bytes, held_by)


def _drop(door: Partition, ids: list[int], back: int) -> list[int]:
    """Delete segments and return those that are gone, which is not all if somebody went back."""
    gone: list[int] = []
    while ids and (not gone or gone[-1] < ids[-1]):
        dropped = door.drop(ids[-1], back=back)
        if not dropped:
            break
        gone += dropped
    return gone


def _to_delete(survey: Survey, rules: TopicRules) -> list[int]:
    facts = [
        SegmentFacts(
            id=SegmentId(each.id),
            end_offset=Offset(each.end_offset),
            size_bytes=each.size_bytes,
            last_time_us=each.last_us,
        )
        for each in survey.sealed
    ]
    places = [
        SavedPosition(SegmentId(survey.segment_of(offset)), Offset(offset))
        for offset in survey.places.values()
    ]
    limits = RetentionLimits(
        age_us_max=microseconds_from(rules.keep_seconds, name="keep_seconds"),
        bytes_max=rules.keep_bytes,
        lag_max=rules.lag_max,
    )
    found = segments_to_delete(
        facts,
        places,
        limits,
        active_bytes=survey.active.size_bytes,
        next_offset=Offset(survey.next_offset),
        now_us=survey.now_us,
    )
    return [int(id_) for id_ in found]


# Compaction --------------------------------------------------------------------------------


def compact(core: TopicCore, rules: TopicRules, partitions: Collection[int]) -> CompactReport:
    """Remove what later records replaced, and tombstones that are old enough."""
    removed, freed_bytes = 0, 0
    segments: dict[int, list[int]] = {}
    for partition in partitions:
        log = PartitionLog(core.partition(partition))
        survey = log.door.survey()
        compaction = Compaction(
            log, tombstones_before_us=survey.now_us - round(rules.tombstone_seconds * 1e6)
        )
        compaction.run(survey.next_offset)
        removed += compaction.removed
        freed_bytes += compaction.freed_bytes
        if compaction.segments:
            segments[partition] = sorted(compaction.segments)
    return CompactReport(removed_records=removed, freed_bytes=freed_bytes, segments=segments)


@dataclass(slots=True)
class _Removed:
    """What removing records did."""

    segments: list[int]
    removed_records: int = 0
    freed_bytes: int = 0


class PartitionLog:
    """A partition as compaction sees it."""

    def __init__(self, door: Partition) -> None:
        self.door = door

    @property
    def first_offset(self) -> int:
        """The oldest record that is left."""
        return self.door.resolve("earliest")

    def records(
        self, start: int, /, *, stop: int | None, on_damage: Literal["skip"]
    ) -> Iterator[Record]:
        """Yield the records from `start` up to `stop`. Raises OffsetTrimmed."""
        del on_damage  # What cannot be read here is not the device's fault: nothing is passed over.
        for stretch in stretches(self.door, start, stop):
            for record in stretch.records():
                if record.offset >= start and (stop is None or record.offset < stop):
                    yield record

    def remove_records(self, keep: Callable[[Record], bool], *, stop: int) -> _Removed:
        """Remove what `keep` refuses from the sealed segments that end at or before `stop`."""
        report = _Removed([])
        for facts in self.door.survey().sealed:
            if facts.end_offset > stop:
                break
            self._rewrite(facts, keep, report)
        return report

    def _rewrite(self, facts: Facts, keep: Callable[[Record], bool], report: _Removed) -> None:
        slots: list[bytes] = []
        batches: list[bytes] = []
        payloads: list[bytes] = []
        position = removed = 0
        try:
            for stretch in stretches(self.door, facts.first_offset, facts.end_offset):
                kept: dict[int, Record] = {each.offset: each for each in stretch.records()}
                offset = stretch.first_offset
                for count, time_us in stretch.batches:
                    batches.append(pack_batch(offset - facts.first_offset, position, time_us))
                    for at in range(offset, offset + count):
                        record = kept.get(at)
                        if record is None or not keep(record):
                            removed += record is not None
                            slots.append(pack_slot(REMOVED, 0))
                        else:
                            slots.append(pack_slot(record.attr, len(record.payload)))
                            payloads.append(record.payload)
                            position += len(record.payload)
                    offset += count
        except OffsetTrimmed:
            return  # Cleaned away meanwhile.
        if removed and self.door.rewrite(
            facts, slots=b"".join(slots), batches=b"".join(batches), payload=b"".join(payloads)
        ):
            report.segments.append(facts.id)
            report.removed_records += removed
            report.freed_bytes += facts.payload_bytes - position


def stretches(door: Partition, start: int, stop: int | None) -> Iterator[Stretch]:
    """Yield what lies between two offsets, from the batch with the first to that with the last."""
    while stop is None or start < stop:
        found = door.read(start, records_max=FETCH_RECORDS_MAX, bytes_max=FETCH_BYTES_MAX)
        if found.stretch is None:
            return
        yield found.stretch
        start = found.stretch.stop
