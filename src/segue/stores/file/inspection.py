"""Looking at a queue without changing it."""

from typing import TYPE_CHECKING, Final

from segue.delivery.events import ASIDE, Cause, Take
from segue.delivery.lines import Rest
from segue.delivery.message import Key, Message, message_from
from segue.delivery.message_groups import HELD_MAX
from segue.errors import Damage, OffsetOutOfRange, RecordRemoved
from segue.log.layout import Offset
from segue.log.record import Record
from segue.stores.contract import Counts, LeaseInfo, QueueStats
from segue.stores.file.delivering import group_of, is_over
from segue.stores.message_ids import message_id
from segue.stores.portions import PORTION_BYTES_MAX
from segue.stores.state import (
    METADATA,
    Segment,
    Span,
    Waiting,
    metadata_of,
    only,
    segment_of,
    state_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segue.stores.file.core import QueueCore

LEASES_SHOWN_MAX: Final = 100


class Inspection:
    """Reads one queue."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core

    def counts(self) -> Counts:
        """Return how many messages are in which state, in a turn."""
        ledger = self._core.ledger
        return Counts(
            ready=ledger.ready + self._core.fresh_count(),
            delayed=ledger.delayed,
            leased=ledger.leased,
            dead=len(ledger.dead),
        )

    def peek(self, count: int) -> list[Message]:
        """Return the messages that would be delivered next."""
        core = self._core
        found: list[Message] = []
        left_bytes = PORTION_BYTES_MAX
        with core.turn():
            if core.ledger.paused:
                return []
            for key, record, attempt, is_outlived in self._admitted():
                left_bytes -= len(record.payload)
                if left_bytes < 0 and found:
                    break
                if not is_outlived:
                    found.append(core.message(key, record, attempt))
                if len(found) == count:
                    break
        return found

    def _admitted(self) -> "Iterator[tuple[Key, Record, int, bool]]":
        """Yield what waits and its group lets come, and whether its time to live is over."""
        core = self._core
        now_us = core.place.clock()
        groups = core.ledger.groups
        admission = groups.admission()
        held = 0
        for take in core.ledger.waiting(core.end_of):
            group = groups.of.get(Key(take.lane, take.first))
            if group is not None and not admission.admits(group.digest, Key(take.lane, take.first)):
                held += 1
                continue
            for key, record in self._messages(take):
                digest = group_of(record)
                if digest is not None and not admission.admits(digest, key):
                    held += 1
                    if held > HELD_MAX:
                        break  # The lane waits.
                    continue
                is_outlived = is_over(record, now_us)
                if digest is not None:
                    admission.note(digest, key, settles=is_outlived)
                yield key, record, take.attempt, is_outlived

    def _messages(self, take: Take) -> "Iterator[tuple[Key, Record]]":
        for record in self._records(take):
            yield Key(take.lane, take.first if take.size == 1 else record.offset), record

    def _records(self, take: Take) -> "Iterator[Record]":
        core = self._core
        level = core.ledger.levels.get(take.lane)
        if level is not None and take.first >= level.cursor:
            log = core.lanes.by_priority[take.lane].log
            stop = take.first + take.size
            # A first segment that is gone is passed over by whoever delivers next.
            first = min(max(take.first, log.first_offset), stop)
            yield from log.records(first, stop=stop, on_damage="skip")
            return
        try:
            yield core.record_of(Key(take.lane, take.first))
        except (Damage, OffsetOutOfRange, RecordRemoved):
            return

    def stats(self) -> QueueStats:
        """Return what an operator wants to know."""
        core = self._core
        with core.turn():
            ledger = core.ledger
            now_us, ticks_us = core.place.clock(), core.place.ticks()
            oldest = next(self._admitted(), None)
            leases = [
                LeaseInfo(
                    message_id=message_id(grant.lane, offset),
                    receipt=f"{message_id(grant.lane, offset)}/{grant.token}",
                    owner=grant.owner.decode(errors="replace"),
                    attempt=grant.attempt,
                    seconds_left=(grant.deadline_us - ticks_us) / 1_000_000,
                )
                for grant in ledger.grants_by_deadline(LEASES_SHOWN_MAX)
                for offset in ledger.held(grant)
            ][:LEASES_SHOWN_MAX]
            if core.lanes.has_dead:
                _ = core.lanes.dead  # Opened, so that its size counts.
            by_priority = {
                priority: core.end_of(priority) - level.cursor + level.ready_count
                for priority, level in sorted(ledger.levels.items())
            }
            return QueueStats(
                name=core.name,
                counts=self.counts(),
                ready_by_priority={key: value for key, value in by_priority.items() if value},
                paused=ledger.paused,
                oldest_ready_seconds=(
                    None if oldest is None else max(0, now_us - oldest[1].time_us) / 1_000_000
                ),
                leases=leases,
                totals=dict(ledger.totals),
                size_bytes=core.journal.log.size_bytes
                + sum(lane.log.size_bytes for lane in core.lanes.opened()),
                pinned_bytes=self._pinned_bytes(),
                damaged=ledger.totals["damaged"] + core.journal.damaged,
            )

    def _pinned_bytes(self) -> int:
        """Return what segments take up that were delivered whole and are still there."""
        core = self._core
        if core.ledger.rules.keeps_settled:
            return 0
        pinned_bytes = 0
        for priority, level in core.ledger.levels.items():
            lane = core.lanes.by_priority.get(priority)
            if lane is None or lane.first_segment_end() is None:
                continue
            delivered = lane.log._segment_of(Offset(level.cursor))
            pinned_bytes += lane.log.bytes_before(delivered)
        return pinned_bytes

    def state(self, key: str | None) -> dict[str, object]:
        """Return what waits, or one key of it, in the words of the queue's ancestors."""
        segment = None if key is None else segment_of(key)
        if key is not None and key != METADATA and segment is None:
            return {}
        core = self._core
        with core.turn():
            ledger = core.ledger
            size = ledger.rules.segment_size
            if key == METADATA:
                return {key: metadata_of(self._spans(size), segment_size=size)}
            cursors = {priority: level.cursor for priority, level in ledger.levels.items()}
            waiting = [
                Waiting(
                    priority=self._priority(place),
                    offset=None if self._is_returned(place) else place.offset,
                    body=_body(place, record),
                )
                for take in ledger.waiting(core.end_of)
                for part in self._part(take, segment, size)
                for place, record in self._messages(part)
            ]
        found = state_of(waiting, cursors=cursors, segment_size=size)
        return found if segment is None else only(found, segment.key)

    def _spans(self, size: int) -> "Iterator[Span]":
        """Yield where what waits stands, without reading any of it."""
        for take in self._core.ledger.waiting(self._core.end_of):
            priority, first = self._place(take)
            last = first + take.size - 1
            yield Span(priority=priority, count=take.size, head=first // size, tail=last // size)

    def _part(self, take: Take, segment: Segment | None, size: int) -> "Iterator[Take]":
        """Yield what a segment has of those that are delivered together."""
        if segment is None:
            yield take
            return
        priority, first = self._place(take)
        start = max(first, segment.number * size)
        stop = min(first + take.size, (segment.number + 1) * size)
        if priority == segment.priority and start < stop:
            yield take if take.size == 1 else take._replace(first=start, size=stop - start)

    def _place(self, take: Take) -> tuple[int, int]:
        """Return the priority, and the offset by which the first one counts."""
        key = Key(take.lane, take.first)
        priority = self._priority(key)
        if take.size == 1 and self._is_returned(key):
            return priority, self._core.ledger.levels[priority].cursor
        return priority, take.first

    def _priority(self, key: Key) -> int:
        found = self._core.ledger.find(key)
        return key.lane if found is None else found.priority

    def _is_returned(self, key: Key) -> bool:
        found = self._core.ledger.find(key)
        return isinstance(found, Rest) and (key.lane == ASIDE or found.cause != Cause.HELD)


def _body(key: Key, record: Record) -> bytes:
    return message_from(
        message_id(*key), record.payload, record.attr, priority=0, attempt=1, time_us=0
    ).body
