"""One queue's logs and ledger, shared by all handles of a process: every step that changes it.

A step is one turn: catch up with other processes, end what has expired, decide, write one event.
Messages are appended to lanes outside any turn, unless a rule (capacity, deduplication) must be
looked at first.
"""

import logging
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from segue.delivery import events
from segue.delivery.events import (
    ASIDE,
    IN_ASIDE,
    OWNER_BYTES_MAX,
    REASON_BYTES_MAX,
    Cause,
    How,
    Leased,
    Run,
    Settled,
    Take,
)
from segue.delivery.ledger import Grant, Ledger, Rest
from segue.delivery.message import (
    HAS_KEY,
    PREFIX_MASK,
    SPECIAL,
    Key,
    Message,
    Prefix,
    message_from,
    pack_message,
    unpack_prefix,
)
from segue.delivery.rules import QueueRules
from segue.errors import (
    CorruptRecord,
    CorruptSegment,
    LeaseLost,
    OffsetOutOfRange,
    QueueLocked,
    RecordRemoved,
    SegueError,
    StoreClosed,
)
from segue.log.live import PUBLISHED
from segue.log.record import Record
from segue.log.wake import Waiter
from segue.stores.file.deduplication import digest_of
from segue.stores.file.journal import Journal
from segue.stores.file.lanes import Lane, Lanes
from segue.stores.file.place import Place
from segue.stores.file.upkeep import Upkeep
from segue.stores.job import Job, message_id

logger = logging.getLogger(__name__)

WAITERS_KEPT: Final = 8
"""How many ways to be woken stay open for the next wait."""
WAIT_SLACK_SECONDS: Final = 0.001
"""Added to a wait for a moment, so that the moment has come when it is over."""

_LOST = (OffsetOutOfRange, RecordRemoved)
_DAMAGED = (CorruptRecord, CorruptSegment)


class QueueCore:
    """The queue itself. Safe from any thread."""

    def __init__(self, name: str, path: Path, place: Place) -> None:
        self.name = name
        self.path = path
        self.place = place
        self.journal = Journal(path / "ledger", place)
        self.lanes = Lanes(path, place, self.journal.bell)
        self.owner = f"{socket.gethostname()}:{os.getpid()}".encode()[:OWNER_BYTES_MAX]
        self.chance = random.Random()
        self.upkeep = Upkeep(self)
        self._lanes = self.lanes.by_priority
        self._clock = place.clock
        self._ticks = place.ticks
        self._waiters: list[Waiter] = []
        self._boot = place.disk.boot_id()
        self._closed = False
        self.rules_seen = -1
        self.is_plain = False
        """Whether a push has nothing to look at."""
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Take in what the disk says beyond the ledger, and what a restart means."""
        with self.turn():
            ledger = self.journal.ledger
            for priority in self.lanes.priorities_on_disk():
                if priority not in ledger.levels:
                    self.journal.write(events.Opened(priority))
            if not ledger.has_aside and self.lanes.has_aside_on_disk():
                self.journal.write(events.Opened(ASIDE))
            self._note_rules()

    # Turns ---------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """The state, for whoever has the turn."""
        return self.journal.ledger

    def begin(self) -> None:
        """Begin a turn: know everything, with nothing left that has expired."""
        if self._closed:
            raise StoreClosed(f"queue {self.name} is closed")
        journal = self.journal
        journal.begin()
        try:
            ledger = journal.ledger
            if ledger.boot != self._boot or not ledger.epoch:
                self._restart()
            if ledger.has_aside and self.lanes.aside.end != ledger.aside_next:
                self._absorb()
            deadlines = ledger._deadlines
            if deadlines and deadlines[0][0] <= (ticks_us := self._ticks()):
                self._expire(ticks_us)
            due_us = ledger.next_due_us()
            if due_us is not None:
                ledger.promote(self._clock())
        except BaseException:
            journal.end()
            raise

    def end(self) -> None:
        """End a turn, and tidy up if that is due."""
        tasks = self.upkeep.due() if self.upkeep.is_due else None
        self.journal.end()
        if tasks is not None:
            self.upkeep.run(tasks)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a turn."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _restart(self) -> None:
        """The machine was started anew: nobody holds anything any more."""
        ledger = self.journal.ledger
        for grant in ledger.grants_by_deadline(ledger.grants):
            self._return_grant(grant)
        self.journal.note_boot()
        self.journal.sync()  # Tokens must not come again, even if the power fails next.

    def _expire(self, ticks_us: int) -> None:
        for grant in self.journal.ledger.overdue(ticks_us):
            self._return_grant(grant)

    def _return_grant(self, grant: Grant) -> None:
        """Give back what a lease that has ended still holds."""
        ledger = self.journal.ledger
        offsets = ledger.held(grant)
        if not offsets:
            return
        if ledger.is_last(grant.attempt, grant.since):
            for offset in offsets:
                self.bury(Key(grant.lane, offset), grant, Cause.EXPIRED, b"its lease expired")
            return
        runs = _runs_of([(grant.lane, offset) for offset in offsets])
        event = events.Returned(grant.token, Cause.EXPIRED, 0, b"its lease expired", runs)
        self.journal.write(event)

    def _absorb(self) -> None:
        """Take note of messages that were pushed with a delay."""
        ledger = self.journal.ledger
        aside = self.lanes.aside
        end = aside.end
        items: list[tuple[int, int, int]] = []
        for record in aside.log.records(
            max(ledger.aside_next, aside.log.first_offset), stop=end, on_damage="skip"
        ):
            prefix, _ = unpack_prefix(record.payload, record.attr)
            if "o" not in prefix:
                items.append((record.offset, prefix.get("p", 0), prefix.get("n", 1)))
        self.journal.write(events.Deferred(tuple(items), end))

    # Rules ---------------------------------------------------------------------------------

    def configure(self, rules: QueueRules) -> None:
        """Change the rules for everybody."""
        with self.turn():
            if rules != self.ledger.rules or not self.ledger.is_configured:
                self.journal.write(events.Configured(rules.to_json().encode()))
                self.journal.say_rules_changed()
            self._note_rules()
        if self.place.is_durable:
            self.journal.sync()

    def _note_rules(self) -> None:
        rules = self.ledger.rules
        self.is_plain = rules.capacity is None
        self.lanes.set_segment_items(rules.segment_items)
        self.rules_seen = self.journal.rules_changed

    def look_at_rules(self) -> None:
        """Learn of new rules; costs next to nothing where there are none."""
        if self.journal.rules_changed != self.rules_seen:
            with self.turn():
                self._note_rules()

    # Lanes ---------------------------------------------------------------------------------

    def lane(self, priority: int) -> Lane:
        """Return a lane that others know of, too. Not in a turn."""
        lane = self._lanes.get(priority)
        if lane is None:
            with self.turn():
                lane = self.lane_in_turn(priority)
        return lane

    def lane_in_turn(self, priority: int) -> Lane:
        """Return a lane, telling others of it if it is new."""
        lane = self.lanes.open(priority)
        ledger = self.journal.ledger
        if priority == ASIDE:
            if not ledger.has_aside:
                self.journal.write(events.Opened(ASIDE))
            return lane
        level = ledger.levels.get(priority)
        if level is None:
            self.journal.write(events.Opened(priority))
        elif level.cursor > lane.end or level.cursor < lane.log.first_offset:
            # A power cut took messages back that were not synced, or the ledger's memory of
            # them. Messages that come now must not be taken for delivered.
            cursor = min(max(level.cursor, lane.log.first_offset), lane.end)
            self.journal.write(events.Rewound(priority, cursor))
        return lane

    def end_of(self, priority: int) -> int:
        """Return the end of a lane, in a turn."""
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self.lane_in_turn(priority)
        return lane.words[PUBLISHED]

    def record_of(self, key: Key) -> Record:
        """Return the record of a message that was delivered before, wherever it lies now."""
        place = self.journal.ledger.places.get(key)
        if place is None:
            return self.lanes.open(key.lane).log.read(key.offset)
        where, at = place
        log = self.lanes.aside.log if where == IN_ASIDE else self.lanes.dead.log
        return log.read(at)

    # Counting and waiting ------------------------------------------------------------------

    def fresh_count(self) -> int:
        """Return how many messages were never delivered and are not delayed, in a turn."""
        levels = self.journal.ledger.levels
        return sum(self.end_of(priority) - level.cursor for priority, level in levels.items())

    def held_count(self) -> int:
        """Return how many messages count for the capacity, in a turn."""
        ledger = self.journal.ledger
        return self.fresh_count() + ledger.ready + ledger.delayed + ledger.leased

    def seconds_to_next(self) -> float | None:
        """Return when, if nobody does anything, something can be delivered; in a turn."""
        ledger = self.journal.ledger
        waits = []
        grant = ledger.first_ending()
        if grant is not None:
            waits.append(grant.deadline_us - self._ticks())
        due_us = ledger.next_due_us()
        if due_us is not None:
            waits.append(due_us - self._clock())
        return max(0, min(waits)) / 1_000_000 + WAIT_SLACK_SECONDS if waits else None

    def wait_for_news(self, seen: tuple[int, int], seconds: float | None) -> None:
        """Return when `signature` is not `seen` any more, or after `seconds`. Not in a turn."""
        waiter = self._waiters.pop() if self._waiters else self.journal.bell.waiter()
        try:
            waiter.wait(lambda: self._closed or self.signature() != seen, seconds)
        finally:
            if self._closed or len(self._waiters) >= WAITERS_KEPT:
                waiter.close()
            else:
                self._waiters.append(waiter)

    def set_paused(self, paused: bool) -> None:
        """Stop or go on delivering, for everybody."""
        with self.turn():
            if self.ledger.paused != paused:
                self.journal.write(events.Paused(int(paused)))
        if self.place.is_durable:
            self.journal.sync()

    # Delivering ----------------------------------------------------------------------------

    def signature(self) -> tuple[int, int]:
        """Return what changes when there may be something new to deliver."""
        ends = sum(lane.words[PUBLISHED] for lane in self.lanes.opened())
        return self.journal.writer.written, ends

    def allowed(self, most: int) -> int:
        """Return how many may be leased, in a turn. Raises QueueLocked if that is none."""
        ledger = self.journal.ledger
        leases_max = ledger.rules.max_leases
        if leases_max is None:
            return most
        if ledger.leased >= leases_max:
            grant = ledger.first_ending()
            left_us = 0 if grant is None else grant.deadline_us - self._ticks()
            raise QueueLocked(
                queue=self.name, leases_max=leases_max, seconds_left=max(0, left_us) / 1_000_000
            )
        return min(most, leases_max - ledger.leased)

    def take(self, most: int) -> list[tuple[Take, list[Record]]]:
        """Return what to deliver next with its records, in a turn; empty if there is nothing.

        What cannot be delivered (damaged, outlived, a duplicate) is dealt with on the way.
        """
        ledger = self.journal.ledger
        if ledger.paused:
            return []
        while takes := ledger.take(most, self.end_of):
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
            count = len(records)
            if count == take.size:
                loaded.append((take, records))
                continue
            if count:
                loaded.append((take._replace(size=count), records))
            # Something was in the way and is dealt with; what lies behind it comes later.
            self.journal.ledger.put_back(takes[place + 1 :])
            break
        return loaded

    def _load(self, take: Take) -> list[Record]:
        """Return the records of a take up to the first that must not be delivered."""
        lane, first, count, _, _ = take
        ledger = self.journal.ledger
        level = ledger.levels.get(lane)
        if level is None or first < level.cursor:
            return self._load_returned(Key(lane, first))
        records = self._lanes[lane].run(first, count)
        if not records:
            self._pass_gap(lane, first)
            return []
        for place, record in enumerate(records):
            if record.attr & SPECIAL and not self._may_deliver(
                Key(lane, record.offset), record, settle=place == 0
            ):
                return records[:place]
        return records

    def _load_returned(self, key: Key) -> list[Record]:
        try:
            record = self.record_of(key)
        except (*_LOST, *_DAMAGED) as error:
            how = How.DAMAGED if isinstance(error, _DAMAGED) else How.LOST
            logger.warning("lost queue=%s message=%s reason=%s", self.name, key, error)
            self.journal.write(Settled(0, how, (Run(key.lane, key.offset, 1),)))
            return []
        if record.attr & SPECIAL and not self._may_deliver(key, record, settle=True):
            return []
        return [record]

    def _pass_gap(self, lane: int, first: int) -> None:
        """Go on after messages that cannot be read; the damaged file is kept in quarantine."""
        log = self._lanes[lane].log
        try:
            report = log.repair()
        except SegueError as error:
            logger.warning("repair failed queue=%s lane=%d reason=%s", self.name, lane, error)
        else:
            logger.warning("repaired queue=%s lane=%d report=%s", self.name, lane, report)
        following = min(self._lanes[lane].next_readable(first), self.end_of(lane))
        logger.warning(
            "passed over damage queue=%s lane=%d from=%d to=%d", self.name, lane, first, following
        )
        self.journal.write(events.Passed(lane, first, max(1, following - first), How.DAMAGED))

    def _may_deliver(self, key: Key, record: Record, *, settle: bool) -> bool:
        """Tell whether a message with a time to live or a key may be delivered.

        With `settle` one that may not be is dealt with, too.
        """
        prefix, _ = unpack_prefix(record.payload, record.attr)
        expires_us = prefix.get("x")
        if expires_us is not None and expires_us <= self._clock():
            if settle:
                self._outlive(key, record)
            return False
        if not record.attr & HAS_KEY:
            return True
        digest = digest_of(prefix.get("k", ""))
        ledger = self.journal.ledger
        known = ledger.keys.get(digest)
        if known is not None and known[0] > record.time_us and (known[1], known[2]) != key:
            delivered = ledger.find(key)
            if not isinstance(delivered, Rest) or delivered.attempt == 0:
                if settle:
                    self._settle_untouched(key, How.DUPLICATE)
                return False
        elif known is None:
            # Whoever pushed it may have been killed before the key was noted.
            until_us = record.time_us + round(ledger.rules.dedup_window * 1_000_000)
            if until_us > self._clock():
                self.journal.write(events.Keyed(digest, until_us, *key))
        return True

    def _outlive(self, key: Key, record: Record) -> None:
        ledger = self.journal.ledger
        if ledger.rules.on_expiry == "drop":
            self._settle_untouched(key, How.OUTLIVED)
            return
        found = ledger.find(key)
        attempt = found.attempt if isinstance(found, Rest) else 0
        priority = found.priority if isinstance(found, Rest) else key.lane
        self._bury_record(
            key, record, priority, attempt, Cause.OUTLIVED, b"its time to live was over"
        )

    def _settle_untouched(self, key: Key, how: How) -> None:
        if self.journal.ledger.find(key) is not None:
            self.journal.write(Settled(0, how, (Run(key.lane, key.offset, 1),)))
        else:
            self.journal.write(events.Passed(key.lane, key.offset, 1, how))

    def lease(self, most: int, ttl_us: int, owner: bytes, holder: "object") -> list[Job]:
        """Lease up to `most` messages in a turn."""
        loaded = self.take(self.allowed(most))
        if not loaded:
            return []
        journal = self.journal
        token = journal.next_token()
        deadline_us = self._ticks() + ttl_us
        takes = [take for take, _ in loaded]
        try:
            journal.write(Leased(token, deadline_us, owner, tuple(takes)))
        except BaseException:
            journal.ledger.put_back(takes)
            raise
        ttl_seconds = ttl_us / 1_000_000
        jobs: list[Job] = []
        for (lane, first, _, attempt, _), records in loaded:
            priority = lane if lane != ASIDE else self._priority_of(Key(lane, first))
            offset = first
            for _, time_us, attr, payload in records:
                jobs.append(
                    Job(
                        holder,  # type: ignore[arg-type]
                        lane,
                        offset,
                        token,
                        ttl_seconds,
                        priority,
                        attempt,
                        payload,
                        attr,
                        time_us,
                    )
                )
                offset += 1
        return jobs

    def pop(self, most: int) -> list[Message]:
        """Take up to `most` messages for good, in a turn."""
        if self.journal.ledger.rules.is_strict:
            self.allowed(most)
        loaded = self.take(most)
        if not loaded:
            return []
        takes = [take for take, _ in loaded]
        messages = [
            self.message(Key(take.lane, take.first + place), record, take.attempt)
            for take, records in loaded
            for place, record in enumerate(records)
        ]
        try:
            self.journal.write(events.Popped(tuple(takes)))
        except BaseException:
            self.journal.ledger.put_back(takes)
            raise
        for lane, first, count, _, _ in takes:
            self.upkeep.note(lane, first + count - 1, count)
        return messages

    def message(self, key: Key, record: Record, attempt: int) -> Message:
        """Return a record as the message it holds."""
        return message_from(
            message_id(*key),
            record.payload,
            record.attr,
            priority=key.lane if key.lane != ASIDE else self._priority_of(key),
            attempt=attempt,
            time_us=record.time_us,
        )

    def _priority_of(self, key: Key) -> int:
        found = self.journal.ledger.find(key)
        return 0 if found is None else found.priority

    # Settling ------------------------------------------------------------------------------

    def grant_of(self, lane: int, offset: int, token: int) -> Grant:
        """Return the lease of a message if `token` is its token. Raises LeaseLost."""
        found = self.journal.ledger.find(Key(lane, offset))
        if isinstance(found, Grant):
            if found.token == token:
                return found
            reason = "somebody else has the message now"
        elif found is not None:
            reason = "it expired or was given back"
        else:
            reason = "the message is settled, dead or was never leased"
        raise LeaseLost(receipt=f"{message_id(lane, offset)}/{token}", reason=reason)

    def ack(self, lane: int, offset: int, token: int) -> None:
        """Settle one message, in a turn."""
        self.grant_of(lane, offset, token)
        self.journal.write(Settled(token, 0, (Run(lane, offset, 1),)))
        self.upkeep.note(lane, offset, 1)

    def ack_many(self, leases: list[tuple[int, int, int]]) -> list[LeaseLost]:
        """Settle many messages, in a turn; return what is lost."""
        ledger = self.journal.ledger
        held: list[tuple[int, int]] = []
        lost: list[LeaseLost] = []
        for lane, offset, token in leases:
            items = ledger.aside if lane == ASIDE else ledger.levels[lane].items
            found = items.get(offset)
            if type(found) is Grant and found.token == token:
                held.append((lane, offset))
                continue
            try:
                self.grant_of(lane, offset, token)
            except LeaseLost as error:
                lost.append(error)
        if held:
            runs = _runs_of(held)
            self.journal.write(Settled(leases[0][2], 0, runs))
            for lane, first, count in runs:
                self.upkeep.note(lane, first + count - 1, count)
        return lost

    def give_back(
        self,
        lane: int,
        offset: int,
        token: int,
        cause: Cause,
        delay_us: int | None,
        reason: str,
    ) -> None:
        """End a lease without success, in a turn."""
        grant = self.grant_of(lane, offset, token)
        ledger = self.journal.ledger
        key = Key(lane, offset)
        words = reason.encode(errors="replace")[:REASON_BYTES_MAX]
        if cause is Cause.DEAD or (
            cause is Cause.FAILED and ledger.is_last(grant.attempt, grant.since)
        ):
            self.bury(key, grant, cause, words)
            return
        if delay_us is None:
            delay_us = 0
            if cause is Cause.FAILED:
                failures = grant.attempt - grant.since - 1
                delay_us = ledger.rules.backoff.delay_us(failures, self.chance)
        not_before_us = self._clock() + delay_us if delay_us > 0 else 0
        run = Run(lane, offset, 1)
        self.journal.write(events.Returned(token, cause, not_before_us, words, (run,)))

    def extend(self, lane: int, offset: int, token: int, ttl_us: int) -> None:
        """Let a lease end later, in a turn."""
        self.grant_of(lane, offset, token)
        deadline_us = self._ticks() + ttl_us
        self.journal.write(events.Extended(token, deadline_us, (Run(lane, offset, 1),)))

    def bury(self, key: Key, grant: Grant, cause: Cause, reason: bytes) -> None:
        """Move a message to the dead letters, in a turn."""
        try:
            record = self.record_of(key)
        except (*_LOST, *_DAMAGED) as error:
            logger.warning("lost queue=%s message=%s reason=%s", self.name, key, error)
            self.journal.write(Settled(grant.token, How.LOST, (Run(key.lane, key.offset, 1),)))
            return
        self._bury_record(key, record, grant.priority, grant.attempt, cause, reason)

    def _bury_record(
        self,
        key: Key,
        record: Record,
        priority: int,
        attempt: int,
        cause: Cause,
        reason: bytes,
    ) -> None:
        prefix, body = unpack_prefix(record.payload, record.attr)
        letter: Prefix = {
            **prefix,
            "t": prefix.get("t", record.time_us),
            "p": priority,
            "f": key.lane,
            "o": key.offset,
            "d": attempt,
            "c": cause.name.lower(),
            "r": reason.decode(errors="replace"),
        }
        payload, attr = pack_message(body, letter)
        at = self.lanes.dead.append(payload, attr=attr & PREFIX_MASK)
        self.journal.write(events.Buried(key.lane, key.offset, at, cause))
        self.upkeep.note(key.lane, key.offset, 1)

    # Closing -------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of every log. What is leased stays leased until it expires."""
        self._closed = True
        self.journal.bell.ring()
        while self._waiters:
            self._waiters.pop().close()
        try:
            self.lanes.close()
        finally:
            self.journal.close()


def _runs_of(keys: list[tuple[int, int]]) -> tuple[Run, ...]:
    """Return messages as runs of neighbours."""
    runs: list[Run] = []
    lane, first, count = keys[0][0], keys[0][1], 0
    for next_lane, offset in keys:
        if next_lane == lane and offset == first + count:
            count += 1
            continue
        runs.append(Run(lane, first, count))
        lane, first, count = next_lane, offset, 1
    runs.append(Run(lane, first, count))
    return tuple(runs)
