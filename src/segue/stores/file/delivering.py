"""Delivering: which messages come next, and what is looked at before they are handed out."""

import logging
from typing import TYPE_CHECKING, Final

from segue.clock import nanoseconds_of
from segue.delivery import events
from segue.delivery.events import ASIDE, LEASED, Cause, How, Leased, Run, Settled, Take, pack_lease
from segue.delivery.message import HAS_GROUP, HAS_TTL, Key, Message, unpack_prefix
from segue.delivery.message_groups import HELD_MAX
from segue.errors import QueueLocked, SegueError
from segue.log.layout import Offset
from segue.log.live import PUBLISHED
from segue.log.options import Duration
from segue.log.record import Record
from segue.stores.arguments import duration_us
from segue.stores.deduplication import digest_of
from segue.stores.file.journal import EPOCH_SHIFT
from segue.stores.file.lanes import UNREADABLE, is_damage, size_of
from segue.stores.job import Holder, Job
from segue.stores.portions import PORTION_BYTES_MAX

if TYPE_CHECKING:
    from segue.stores.file.core import QueueCore

logger = logging.getLogger(__name__)

GROUPED_ITEMS_MAX: Final = 256
"""How many messages with a group are noted with one event."""
TO_BE_LOOKED_AT: Final = HAS_TTL | HAS_GROUP
"""What keeps a message from being handed out as it is."""


class Delivery:
    """Hands out the messages of one queue. Everything here happens in a turn."""

    def __init__(self, core: "QueueCore") -> None:
        self._core = core
        self._journal = core.journal
        self._lanes = core.lanes.by_priority
        self._clock = core.place.clock
        self._ticks_ns = nanoseconds_of(core.place.ticks)
        self._full: set[int] = set()
        """Lanes whose next message would have to wait in memory, where there is no room for it."""

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
        takes = [take for take, _ in loaded]
        self._meter(takes)
        token = self._journal.next_token()
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
        if ledger.ready != ledger.held_back or ledger.paused or ledger.is_limited:
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
        if attr & TO_BE_LOOKED_AT:
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
        loaded = self._take(self._allowed_by_rate(most), settles=True)
        if not loaded:
            return []
        takes = [take for take, _ in loaded]
        messages = [
            core.message(Key(take.lane, take.first + place), record, take.attempt)
            for take, records in loaded
            for place, record in enumerate(records)
        ]
        self._meter(takes)
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

    def _meter(self, takes: list[Take]) -> None:
        """Note what is delivered where there is a rate, before it is: who is killed is too slow."""
        ledger = self._journal.ledger
        limit = ledger.rules.limit
        if limit is not None:
            count = sum(take.size for take in takes)
            due_ns = limit.after(count, due_ns=ledger.due_ns, now_ns=self._ticks_ns())
            self._write(events.Metered(due_ns), takes)

    def _write(self, event: Leased | events.Popped | events.Metered, takes: list[Take]) -> None:
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
            return self._allowed_by_rate(most)
        if ledger.leased >= leases_max:
            grant = ledger.first_ending()
            left_us = 0 if grant is None else grant.deadline_us - self._ticks_ns() // 1000
            raise QueueLocked(
                queue=self._core.name,
                leases_max=leases_max,
                seconds_left=max(0, left_us) / 1_000_000,
            )
        return self._allowed_by_rate(min(most, leases_max - ledger.leased))

    def _allowed_by_rate(self, most: int) -> int:
        ledger = self._journal.ledger
        limit = ledger.rules.limit
        if limit is None:
            return most
        return min(most, limit.allowed(due_ns=ledger.due_ns, now_ns=self._ticks_ns()))

    # Choosing and loading ------------------------------------------------------------------

    def _take(self, most: int, *, settles: bool = False) -> list[tuple[Take, list[Record]]]:
        """Return what to deliver next with its records; empty if there is nothing.

        What cannot be delivered (damaged, outlived) is dealt with on the way, and who belongs to
        which group is noted.
        """
        ledger = self._journal.ledger
        if ledger.paused:
            return []
        self._full.clear()
        while takes := ledger.take(most, self._end_of, settles=settles):
            try:
                loaded = self._load_all(takes)
            except BaseException:
                ledger.put_back(takes)
                raise
            if loaded:
                return loaded
        return []

    def _end_of(self, priority: int) -> int:
        if priority in self._full:
            return self._journal.ledger.levels[priority].cursor
        return self._core.end_of(priority)

    def _load_all(self, takes: list[Take]) -> list[tuple[Take, list[Record]]]:
        loaded: list[tuple[Take, list[Record]]] = []
        left_bytes = PORTION_BYTES_MAX
        for place, take in enumerate(takes):
            records = self._load(take)
            size = len(records)
            if size == take.size:
                loaded.append((take, records))
                if len(takes) == 1:
                    break
                left_bytes -= size_of(records)
                if left_bytes > 0:
                    continue
            elif size:
                loaded.append((take._replace(size=size), records))
            # Something was in the way and is dealt with, or it is enough; the rest comes later.
            self._journal.ledger.put_back(takes[place + 1 :])
            break
        return loaded

    def _load(self, take: Take) -> list[Record]:
        """Return the records of a take up to the first that must not be delivered."""
        lane, first, size, _, _ = take
        level = self._journal.ledger.levels.get(lane)
        if level is None or first < level.cursor:
            return self._load_returned(take)
        records = self._lanes[lane].run(first, size)
        if not records:
            self._pass_gap(lane, first)
            return []
        for place, record in enumerate(records):
            if not record.attr & TO_BE_LOOKED_AT:
                continue
            digest = group_of(record)
            if digest is not None:
                if not place:
                    self._hold_back(lane, first, digest)
                return records[:place]
            if self._is_outlived(Key(lane, record.offset), record, settle=place == 0):
                return records[:place]
        return records

    def _hold_back(self, lane: int, first: int, digest: bytes) -> None:
        """Note the groups of neighbours that were never delivered; they come when it is their turn.

        As many as there is room for. If there is none, the lane waits, but for what can come now.
        """
        ledger = self._journal.ledger
        room = HELD_MAX - ledger.held_back
        if room <= 0 and not ledger.groups.has_place(digest):
            self._full.add(lane)
            return
        digests = [digest]
        count = min(room, GROUPED_ITEMS_MAX, self._core.end_of(lane) - first)
        if count > 1:
            for record in self._lanes[lane].run(first, count)[1:]:
                following = group_of(record)
                if following is None:
                    break
                digests.append(following)
        self._journal.write(events.Grouped(lane, first, 0, tuple(digests)))

    def _load_returned(self, take: Take) -> list[Record]:
        key = Key(take.lane, take.first)
        ledger = self._journal.ledger
        try:
            record = self._read_before(key) or self._core.record_of(key)
        except UNREADABLE as error:
            logger.warning("lost queue=%s message=%s reason=%s", self._core.name, key, error)
            how = How.DAMAGED if is_damage(error) else How.LOST
            self._core.settling.give_up(key, how)
            return []
        if record.attr & HAS_GROUP and key not in ledger.groups.of:
            # Pushed with a delay, redriven, or noted by an event that is lost.
            digest = group_of(record)
            if digest is not None:
                self._journal.write(events.Grouped(*key, 0, (digest,)))
                ledger.put_back([take])
                return []
        if self._is_outlived(key, record, settle=True):
            return []
        return [record]

    def _read_before(self, key: Key) -> Record | None:
        """Return a message of a group that was never delivered, if it is still in memory.

        It was read just now, when its group was looked at.
        """
        ledger = self._journal.ledger
        lane, group = self._lanes.get(key.lane), ledger.groups.of.get(key)
        if lane is None or group is None or key in group.started or key in ledger.places:
            return None
        place = key.offset - lane.base
        return lane.ahead[place] if 0 <= place < len(lane.ahead) else None

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
        if not is_over(record, self._clock()):
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


def is_over(record: Record, now_us: int) -> bool:
    """Tell whether a message has outlived its time to live.

    A dead letter has no such time any more: who is redriven comes all the same.
    """
    if not record.attr & HAS_TTL:
        return False
    return unpack_prefix(record.payload, record.attr)[0].get("x", 0) <= now_us


def group_of(record: Record) -> bytes | None:
    """Return what stands for a message's group in the ledger; None if it has none."""
    if not record.attr & HAS_GROUP:
        return None
    group = unpack_prefix(record.payload, record.attr)[0].get("g")
    return None if group is None else digest_of(group)
