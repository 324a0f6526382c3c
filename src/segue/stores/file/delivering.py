"""Delivering: which messages come next, and what is looked at before they are handed out."""

import logging
from typing import TYPE_CHECKING

from segue.clock import nanoseconds_of
from segue.delivery import events
from segue.delivery.events import ASIDE, LEASED, Cause, How, Leased, Run, Settled, Take, pack_lease
from segue.delivery.message import HAS_TTL, Key, Message, unpack_prefix
from segue.errors import QueueLocked, SegueError
from segue.log.layout import Offset
from segue.log.live import PUBLISHED
from segue.log.options import Duration
from segue.log.record import Record
from segue.stores.arguments import duration_us
from segue.stores.file.journal import EPOCH_SHIFT
from segue.stores.file.lanes import UNREADABLE, is_damage
from segue.stores.job import Holder, Job

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

logger = logging.getLogger(__name__)


class Delivery:
    """Hands out the messages of one queue. Everything here happens in a turn."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._journal = core.journal
        self._lanes = core.lanes.by_priority
        self._clock = core.place.clock
        self._ticks_ns = nanoseconds_of(core.place.ticks)

    def ttl_us(self, ttl: Duration) -> int:
        """Return how long a lease lasts, by the rules as they are now. Raises InvalidArgument."""
        length_us = duration_us(ttl, name="ttl") or 0
        return self._journal.ledger.rules.lease_us(length_us / 1_000_000)

    def lease(self, most: int, ttl: Duration | None, owner: bytes, holder: Holder) -> list[Job]:
        """Lease up to `most` messages. Raises QueueLocked, InvalidArgument."""
        if ttl is None:
            ttl_us = int(self._journal.ledger.rules.lease_ttl * 1_000_000)
        else:
            ttl_us = self.ttl_us(ttl)
        if most == 1:
            job = self._lease_plain(ttl_us, owner, holder)
            if job is not None:
                return [job]
        loaded = self._take(self._allowed(most))
        if not loaded:
            return []
        token = self._journal.next_token()
        takes = [take for take, _ in loaded]
        self._write(Leased(token, self._ticks_ns() // 1000 + ttl_us, owner, tuple(takes)), takes)
        ttl_seconds = ttl_us / 1_000_000
        jobs: list[Job] = []
        for (lane, first, _, attempt, since), records in loaded:
            priority = self._core.priority_of(Key(lane, first))
            offset = first
            for _, time_us, attr, payload in records:
                jobs.append(
                    Job(
                        holder,
                        lane,
                        offset,
                        token,
                        ttl_seconds,
                        priority,
                        attempt,
                        payload,
                        attr,
                        time_us,
                        since,
                    )
                )
                offset += 1
        return jobs

    # Flat on purpose: most leases are such, and a call costs as much as a step of the lease.
    def _lease_plain(self, ttl_us: int, owner: bytes, holder: Holder) -> Job | None:
        """Lease the next message if nothing has to be looked at first; None if something has."""
        journal = self._journal
        ledger = journal.ledger
        if ledger.ready or ledger.paused or ledger.rules.max_leases is not None:
            return None
        for priority in ledger.order:
            lane = self._lanes.get(priority)
            level = ledger.levels[priority]
            if lane is None:
                return None
            offset = level.cursor
            if offset < lane.words[PUBLISHED]:
                break
        else:
            return None
        place = offset - lane.base
        ahead = lane.ahead
        if not 0 <= place < len(ahead):
            lane.read_ahead(offset, 1)
            ahead = lane.ahead
            place = 0
            if not ahead:
                return None
        _, time_us, attr, payload = ahead[place]
        if attr & HAS_TTL:
            return None
        token = ledger.epoch << EPOCH_SHIFT | journal.applied
        deadline_us = self._ticks_ns() // 1000 + ttl_us
        payload_of_event = pack_lease(token, deadline_us, owner, priority, offset)
        journal.applied = Offset(journal.writer.put(payload_of_event, LEASED) + 1)
        journal.wrote = True
        ledger.lease_next(level, token, deadline_us, owner)
        return Job(
            holder,
            priority,
            offset,
            token,
            ttl_us / 1_000_000,
            priority,
            1,
            payload,
            attr,
            time_us,
        )

    def pop(self, most: int) -> list[Message]:
        """Take up to `most` messages for good. Raises QueueLocked in strict mode."""
        core = self._core
        if self._journal.ledger.rules.is_strict:
            self._allowed(most)
        loaded = self._take(most)
        if not loaded:
            return []
        takes = [take for take, _ in loaded]
        messages = [
            core.message(Key(take.lane, take.first + place), record, take.attempt)
            for take, records in loaded
            for place, record in enumerate(records)
        ]
        self._write(events.Popped(tuple(takes)), takes)
        for lane, first, size, _, _ in takes:
            core.upkeep.note(lane, first + size - 1, size)
        return messages

    def probe(self) -> list[bool]:
        """Return something if a message could be leased now; take nothing."""
        try:
            loaded = self._take(self._allowed(1))
        except QueueLocked:
            return []
        self._journal.ledger.put_back([take for take, _ in loaded])
        return [True] if loaded else []

    def _write(self, event: Leased | events.Popped, takes: list[Take]) -> None:
        try:
            self._journal.write(event)
        except BaseException:
            self._journal.ledger.put_back(takes)
            raise

    def _allowed(self, most: int) -> int:
        """Return how many may be leased. Raises QueueLocked if that is none."""
        ledger = self._journal.ledger
        leases_max = ledger.rules.max_leases
        if leases_max is None:
            return most
        if ledger.leased >= leases_max:
            grant = ledger.first_ending()
            left_us = 0 if grant is None else grant.deadline_us - self._ticks_ns() // 1000
            raise QueueLocked(
                queue=self._core.name,
                leases_max=leases_max,
                seconds_left=max(0, left_us) / 1_000_000,
            )
        return min(most, leases_max - ledger.leased)

    # Choosing and loading ------------------------------------------------------------------

    def _take(self, most: int) -> list[tuple[Take, list[Record]]]:
        """Return what to deliver next with its records; empty if there is nothing.

        What cannot be delivered (damaged, outlived) is dealt with on the way.
        """
        ledger = self._journal.ledger
        if ledger.paused:
            return []
        while takes := ledger.take(most, self._core.end_of):
            try:
                loaded = self._load_all(takes)
            except BaseException:
                ledger.put_back(takes)
                raise
            if loaded:
                return loaded
        return []

    def _load_all(self, takes: list[Take]) -> list[tuple[Take, list[Record]]]:
        loaded: list[tuple[Take, list[Record]]] = []
        for place, take in enumerate(takes):
            records = self._load(take)
            size = len(records)
            if size == take.size:
                loaded.append((take, records))
                continue
            if size:
                loaded.append((take._replace(size=size), records))
            # Something was in the way and is dealt with; what lies behind it comes later.
            self._journal.ledger.put_back(takes[place + 1 :])
            break
        return loaded

    def _load(self, take: Take) -> list[Record]:
        """Return the records of a take up to the first that must not be delivered."""
        lane, first, size, _, _ = take
        level = self._journal.ledger.levels.get(lane)
        if level is None or first < level.cursor:
            return self._load_returned(Key(lane, first))
        records = self._lanes[lane].run(first, size)
        if not records:
            self._pass_gap(lane, first)
            return []
        for place, record in enumerate(records):
            if record.attr & HAS_TTL and self._is_outlived(
                Key(lane, record.offset), record, settle=place == 0
            ):
                return records[:place]
        return records

    def _load_returned(self, key: Key) -> list[Record]:
        try:
            record = self._core.record_of(key)
        except UNREADABLE as error:
            logger.warning("lost queue=%s message=%s reason=%s", self._core.name, key, error)
            how = How.DAMAGED if is_damage(error) else How.LOST
            self._core.settling.give_up(key, how)
            return []
        if record.attr & HAS_TTL and self._is_outlived(key, record, settle=True):
            return []
        return [record]

    def _pass_gap(self, lane: int, first: int) -> None:
        """Go on after messages that cannot be read; the damaged file is kept in quarantine."""
        name = self._core.name
        log = self._lanes[lane].log
        try:
            report = log.repair()
        except SegueError as error:
            logger.warning("repair failed queue=%s lane=%d reason=%s", name, lane, error)
        else:
            logger.warning("repaired queue=%s lane=%d report=%s", name, lane, report)
        following = min(self._lanes[lane].next_readable(first), self._core.end_of(lane))
        logger.warning(
            "passed over damage queue=%s lane=%d from=%d to=%d", name, lane, first, following
        )
        size = max(1, following - first)
        self._journal.write(events.Passed(lane, first, size, How.DAMAGED))
        self._core.upkeep.note(lane, first + size - 1, size)

    def _is_outlived(self, key: Key, record: Record, *, settle: bool) -> bool:
        """Tell whether a message's time to live is over; with `settle`, deal with it then."""
        prefix, _ = unpack_prefix(record.payload, record.attr)
        if prefix.get("x", 0) > self._clock():
            return False
        if settle:
            self._outlive(key, record)
        return True

    def _outlive(self, key: Key, record: Record) -> None:
        ledger = self._journal.ledger
        if ledger.rules.on_expiry == "drop":
            self._settle_untouched(key, How.OUTLIVED)
            return
        found = ledger.find(key)
        reason = b"its time to live was over"
        self._core.settling.bury_record(key, record, found, Cause.OUTLIVED, reason)

    def _settle_untouched(self, key: Key, how: How) -> None:
        if key.lane == ASIDE or self._journal.ledger.find(key) is not None:
            self._journal.write(Settled(0, how, (Run(key.lane, key.offset, 1),)))
        else:
            self._journal.write(events.Passed(key.lane, key.offset, 1, how))
        self._core.upkeep.note(key.lane, key.offset, 1)
