"""One queue's logs and ledger, shared by all handles of a process: every step that changes it.

A step is one turn: catch up with other processes, end what has expired, decide, write one event.
Messages are appended to lanes outside any turn, unless a rule (capacity, deduplication) must be
looked at first.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from segue.clock import nanoseconds_of
from segue.delivery import events
from segue.delivery.events import ASIDE, IN_ASIDE, OWNER_BYTES_MAX, Cause
from segue.delivery.ledger import Ledger
from segue.delivery.lines import Grant
from segue.delivery.message import CARRIED, Key, Message, message_from, unpack_prefix
from segue.delivery.rate import SECOND_NS
from segue.delivery.rules import QueueRules
from segue.errors import (
    InvalidArgument,
    LeaseLost,
    LogClosed,
    QueueFull,
    QueueLocked,
    SegueError,
    StorageError,
    StorageFull,
    StoreClosed,
)
from segue.log.live import PUBLISHED, WRITTEN
from segue.log.record import Record
from segue.log.wake import Waiter
from segue.stores.deduplication import (
    ADOPTION_REMEMBERED_US,
    adoption_digest,
    digest_of,
)
from segue.stores.file.delivering import Delivery
from segue.stores.file.journal import Journal
from segue.stores.file.lanes import Lane, Lanes
from segue.stores.file.place import Place
from segue.stores.file.settling import Settling
from segue.stores.file.upkeep import Deletion, Upkeep
from segue.stores.message_ids import message_id

logger = logging.getLogger(__name__)

WAITERS_KEPT: Final = 8
"""How many ways to be woken stay open for the next wait."""
WAIT_SLACK_SECONDS: Final = 0.001
"""Added to a wait for a moment, so that the moment has come when it is over."""
ABSORB_ITEMS: Final = 10_000
"""How many messages pushed with a delay are taken in with one event."""


_HARMLESS: Final = (LeaseLost, QueueLocked, QueueFull, InvalidArgument, StoreClosed)
"""Errors that are raised before anything was changed."""

T = TypeVar("T")


class QueueRemoved(StoreClosed):
    """The queue was deleted by somebody, here or in another process."""


class QueueCore:
    """The queue itself. Safe from any thread."""

    def __init__(self, name: str, path: Path, place: Place, *, epoch_min: int = 1) -> None:
        self.name = name
        self.path = path
        self.place = place
        self.journal = Journal(path / "ledger", place)
        self.unlock = self.journal.writer.unlock
        self.lanes = Lanes(path, place, self.journal.bell)
        self.owner = f"{os.uname().nodename}:{os.getpid()}".encode()[:OWNER_BYTES_MAX]
        self.delivery = Delivery(self)
        self.settling = Settling(self)
        self.upkeep = Upkeep(self)
        self._lanes = self.lanes.by_priority
        self._clock = place.clock
        self._ticks = place.ticks
        self._ticks_ns = nanoseconds_of(place.ticks)
        self._waiters: list[Waiter] = []
        self._boot = place.disk.boot_id()
        self._epoch_min = epoch_min
        self._closed = False
        self._in_turn = False
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
            # Opened now, so that lanes shorter than the ledger knows are found before a message is
            # looked for in them.
            for priority in {*ledger.order, *self.lanes.priorities_on_disk()}:
                self.lane_in_turn(priority)
            if not ledger.has_aside and self.lanes.has_aside_on_disk():
                self.journal.write(events.Opened(ASIDE))
            if self.journal.damaged:
                self._find_moved()
            self._note_rules()
        if self.journal.damaged:
            self.journal.set_damage_aside()

    def _find_moved(self) -> None:
        """Find messages again whose move was noted by an event that is lost."""
        ledger = self.journal.ledger
        if ledger.has_aside:
            for record in self.lanes.aside.log.records(on_damage="skip"):
                if record.attr & CARRIED:
                    key = _origin(record)
                    if ledger.find(key) is not None and key not in ledger.places:
                        self.journal.write(events.Carried(*key, record.offset))
        if self.lanes.has_dead:
            for record in self.lanes.dead.log.records(on_damage="skip"):
                key = _origin(record)
                if (
                    record.offset not in ledger.dead
                    and ledger.find(key) is not None
                    and key not in ledger.places
                ):
                    self.journal.write(events.Buried(*key, record.offset, Cause.DEAD))

    def _forget_lost_letters(self) -> None:
        """Forget dead letters that a power cut took back, before others come to their places."""
        ledger = self.journal.ledger
        end = ledger.dead_end()
        if end and end > (written := self.lanes.dead.end):
            self.journal.write(events.Discarded(written, end - written))

    # Turns ---------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """The state, for whoever has the turn."""
        return self.journal.ledger

    def run(self, step: Callable[..., T], *arguments: object) -> T:
        """Have a turn: call `step` with all known and nobody else at it; return what it does."""
        after: list[Callable[[], None]] | None = None
        unlock = self.unlock
        try:
            with self.journal.writer.mutex:
                try:
                    self._begin()
                    return step(*arguments)
                except BaseException as error:
                    self._broken_off(error)
                    raise
                finally:
                    try:
                        after = self._end()
                    except BaseException:
                        if unlock is not None:
                            unlock()
                        self.journal.forget()
                        raise
        finally:
            if after is not None:
                for task in after:
                    task()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have a turn for the length of a block.

        The same steps as in `run`, which is for the calls that count every microsecond.
        """
        after: list[Callable[[], None]] | None = None
        unlock = self.unlock
        try:
            with self.journal.writer.mutex:
                try:
                    self._begin()
                    yield
                except BaseException as error:
                    self._broken_off(error)
                    raise
                finally:
                    try:
                        after = self._end()
                    except BaseException:
                        if unlock is not None:
                            unlock()
                        self.journal.forget()
                        raise
        finally:
            if after is not None:
                for task in after:
                    task()

    def _begin(self) -> None:
        """Know everything, with nothing left that has expired."""
        journal = self.journal
        journal.wrote = False
        if self._closed:
            self.require_open()
        journal.writer.begin()
        if journal.words[WRITTEN] != journal.applied or not journal.is_read:
            self._catch_up()
        ledger = journal.ledger
        if ledger.is_removed:
            raise QueueRemoved(f"queue {self.name} was removed")
        if ledger.boot != self._boot or not ledger.epoch:
            self._restart()
        if ledger.has_aside and (
            self.lanes.aside.end != ledger.aside_next or ledger.aside_missing.count
        ):
            self._absorb()
        if ledger.keying:
            self._find_keyed()
        if ledger.deadlines and ledger.deadlines[0][0] <= (ticks_us := self._ticks_ns() // 1000):
            self._expire(ledger.overdue(ticks_us))
        if ledger.due and ledger.due[0][0] <= (now_us := self._clock()):
            ledger.promote(now_us)
        self._in_turn = True

    def _catch_up(self) -> None:
        """Know what others did. Raises QueueRemoved if that is not there to be read any more.

        Whoever removes a queue says so among the rules first, then in the ledger, and then its
        files are gone: what is written to those that we hold open would be lost.
        """
        journal = self.journal
        is_told = journal.rules_changed != self.rules_seen
        try:
            journal.catch_up()
        except SegueError:
            if not is_told or not journal.is_gone:
                raise
        if not is_told or journal.ledger.is_removed:
            return
        if journal.is_gone:
            journal.forget()
            raise QueueRemoved(f"queue {self.name} was removed")
        self._note_rules()

    def _expire(self, grants: list[Grant]) -> None:
        for grant in grants:
            try:
                self.settling.expire(grant)
            except StorageFull as error:
                # No space to note it: the others may look all the same, and the next tries again.
                logger.warning("not given back queue=%s reason=%s", self.name, error)
                return

    def _end(self) -> list[Callable[[], None]] | None:
        """Let other processes in; return what is to be done when other threads may be, too."""
        journal = self.journal
        in_turn, self._in_turn = self._in_turn, False
        if not self.upkeep.is_due and journal.applied < journal.checkpoint_due:
            journal.writer.end(wrote=journal.wrote)  # As nearly always.
            return None
        if not self.upkeep.is_due or not in_turn or not journal.is_read:
            after = journal.end()
            return None if after is None else [after]
        deletions: list[Deletion] = []
        try:
            deletions = self.upkeep.due()
        except SegueError as error:
            # What the turn was for has happened; the next look tries again.
            logger.warning("not tidied queue=%s reason=%s", self.name, error)
        finally:
            after = self.journal.end()
        tasks = [] if after is None else [after]
        return [*tasks, partial(self.upkeep.run, deletions)]

    def _broken_off(self, error: BaseException) -> None:
        """Trust nothing in memory after an error that nobody expected, as an interrupt is."""
        if not isinstance(error, _HARMLESS):
            self.journal.forget()
        if self._closed and isinstance(error, ValueError | LogClosed):
            raise StoreClosed(f"queue {self.name} is closed") from error

    def require_open(self) -> None:
        """Raise StoreClosed if the queue was closed."""
        if self._closed:
            raise StoreClosed(f"queue {self.name} is closed")

    def _restart(self) -> None:
        """The machine was started anew: nobody holds anything any more."""
        ledger = self.journal.ledger
        # First: the power may have been cut, and lanes may be shorter than the ledger knows.
        for priority in list(ledger.order):
            self.lane_in_turn(priority)
        if ledger.has_aside:
            self._absorb()
        self._forget_lost_letters()
        for grant in ledger.grants_by_deadline(ledger.grants):
            self.settling.expire(grant)
        self.journal.note_boot(self._epoch_min)
        self.journal.sync()  # Tokens must not come again, even if the power fails next.

    def _absorb(self) -> None:
        """Take note of messages that were pushed with a delay."""
        ledger = self.journal.ledger
        aside = self.lanes.aside
        end = aside.end
        if end < ledger.aside_next:
            self.journal.write(events.Rewound(ASIDE, end))  # A power cut took some back.
            return
        for start, stop in [*ledger.aside_missing.runs(), (ledger.aside_next, end)]:
            self._absorb_run(start, stop)

    def _absorb_run(self, start: int, stop: int) -> None:
        log = self.lanes.aside.log
        records = log.records(max(start, log.first_offset), stop=stop, on_damage="skip")
        while batch := list(islice(records, ABSORB_ITEMS)):
            items: list[tuple[int, int, int]] = []
            for record in batch:
                prefix, _ = unpack_prefix(record.payload, record.attr)
                if not record.attr & CARRIED:
                    items.append((record.offset, prefix.get("p", 0), prefix.get("n", 1)))
            seen = batch[-1].offset + 1
            self.journal.write(events.Deferred(tuple(items), start, seen))
            start = seen
        if start < stop:
            self.journal.write(events.Deferred((), start, stop))

    def _find_keyed(self) -> None:
        """Note the keys of messages whose pusher was killed, or lost its power, before it could."""
        wanted: dict[int, dict[bytes, int]] = {}
        for digest, (number, start) in self.journal.ledger.keying.items():
            wanted.setdefault(number, {})[digest] = start
        for number, starts in wanted.items():
            self._find_keyed_in(number, starts)
        self.journal.write(events.Keying(()))

    def _find_keyed_in(self, number: int, starts: dict[bytes, int]) -> None:
        """Look for keys in one lane, each from where it ended before the message was pushed."""
        window_us = round(self.journal.ledger.rules.dedup_window * 1_000_000)
        lane = self.lane_in_turn(number)
        lane.log.flush()  # What was written and not yet shown counts, too.
        first = max(min(starts.values()), lane.log.first_offset)
        for record in lane.log.records(min(first, lane.end), on_damage="skip"):
            if not starts:
                return
            for digest, lasts_us in _digests_in(record, window_us):
                start = starts.get(digest)
                if start is not None and start <= record.offset:
                    del starts[digest]
                    until_us = record.time_us + lasts_us
                    self.journal.write(events.Keyed(digest, until_us, number, record.offset))

    # Rules ---------------------------------------------------------------------------------

    def configure(self, rules: QueueRules) -> None:
        """Change the rules for everybody."""
        self.lanes.make_directory()
        with self.turn():
            if rules != self.ledger.rules or not self.ledger.is_configured:
                # Said first: whoever looks waits for our turn to end, also if we are killed in it.
                self.journal.say_rules_changed()
                self.journal.write(events.Configured(rules.to_json().encode()))
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
        self.require_open()
        try:
            is_changed = self.journal.rules_changed != self.rules_seen
        except ValueError:  # Closed by another thread, or by a fork: a turn says which.
            is_changed = True
        if is_changed:
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
            lane = self._lanes.get(key.lane) or self.lane_in_turn(key.lane)
            return lane.log.read(key.offset)
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

    def signature(self) -> tuple[int, int]:
        """Return what changes when there may be something new to deliver."""
        ends = sum(lane.words[PUBLISHED] for lane in self.lanes.opened())
        return self.journal.writer.written, ends

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
        seconds = [max(0, wait_us) / 1_000_000 + WAIT_SLACK_SECONDS for wait_us in waits]
        limit = ledger.rules.limit
        if limit is not None:
            wait_ns = limit.wait_ns(due_ns=ledger.due_ns, now_ns=self._ticks_ns())
            if wait_ns:
                seconds.append(wait_ns / SECOND_NS)  # At a high rate slack would be most of it.
        return min(seconds, default=None)

    def wait_for_news(self, seen: tuple[int, int], seconds: float | None) -> None:
        """Return when `signature` is not `seen` any more, or after `seconds`. Not in a turn."""
        waiter = self._waiters.pop() if self._waiters else self.journal.bell.waiter()
        try:
            waiter.wait(lambda: self._has_news(seen), seconds)
        finally:
            if self._closed or len(self._waiters) >= WAITERS_KEPT:
                waiter.close()
            else:
                self._waiters.append(waiter)

    def _has_news(self, seen: tuple[int, int]) -> bool:
        try:
            due = self.journal.ledger.due
            return (
                self._closed
                or self.signature() != seen
                or (bool(due) and due[0][0] <= self._clock())  # A clock may be set forward.
            )
        except (ValueError, IndexError):
            return True  # Closed, or changed, by another thread just now.

    def set_paused(self, paused: bool) -> None:
        """Stop or go on delivering, for everybody."""
        self.lanes.make_directory()
        with self.turn():
            if self.ledger.paused != paused:
                self.journal.write(events.Paused(int(paused)))
        if self.place.is_durable:
            self.journal.sync()

    def message(self, key: Key, record: Record, attempt: int) -> Message:
        """Return a record as the message it holds."""
        return message_from(
            message_id(*key),
            record.payload,
            record.attr,
            priority=self.priority_of(key),
            attempt=attempt,
            time_us=record.time_us,
        )

    def priority_of(self, key: Key) -> int:
        """Return a message's priority, which only those pushed aside do not have in their id."""
        if key.lane != ASIDE:
            return key.lane
        found = self.journal.ledger.find(key)
        return 0 if found is None else found.priority

    # Removing ------------------------------------------------------------------------------

    def remove(self) -> int:
        """Have nobody push any more, so that the queue can be deleted; return its epoch."""
        with self.turn():
            epoch = self.ledger.epoch
            self.journal.say_rules_changed()  # Whoever pushes looks, and finds out.
            self.journal.write(events.Removed())
        return epoch

    # Closing -------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of every log. What is leased stays leased until it expires."""
        self._closed = True
        self.is_plain = False
        self.journal.bell.ring()
        while self._waiters:
            self._waiters.pop().close()
        # Somebody may have removed it since we looked.
        is_gone = self.journal.ledger.is_removed or not self.place.disk.exists(
            self.journal.log.path
        )
        with suppress(StorageError) if is_gone else nullcontext():
            try:
                self.lanes.close()
            finally:
                self.journal.close()


def _digests_in(record: Record, window_us: int) -> Iterator[tuple[bytes, int]]:
    """Yield what stands for a message's keys in the ledger, and how long it does."""
    prefix, _ = unpack_prefix(record.payload, record.attr)
    if "b" in prefix:
        yield adoption_digest(prefix["b"]), ADOPTION_REMEMBERED_US
    if "k" in prefix:
        yield digest_of(prefix["k"]), window_us


def _origin(record: Record) -> Key:
    """Return where a message was pushed to that was moved to where it is now."""
    prefix, _ = unpack_prefix(record.payload, record.attr)
    return Key(prefix.get("f", ASIDE), prefix.get("o", 0))
