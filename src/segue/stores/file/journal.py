"""A queue's ledger on disk: turns to look, decide and write in, and the state that follows.

Every process that uses a queue keeps its state in memory and, when its turn comes, first reads what
others wrote. Now and then one of them writes the whole state down, a checkpoint, and the log before
the checkpoint before it is deleted: so a damaged checkpoint costs nothing but time.
"""

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from segue.delivery.events import CHECKPOINT, Booted, Ended, Event, decode, encode
from segue.delivery.ledger import Ledger
from segue.errors import OffsetTrimmed, SegueError
from segue.log.cursor import Cursor
from segue.log.disk import storage_errors
from segue.log.layout import Offset
from segue.log.live import FILENAME as LIVE_FILENAME
from segue.log.live import OWN
from segue.log.record import Record
from segue.stores.file.place import Place

logger = logging.getLogger(__name__)

CHECKPOINT_EVENTS: Final = 16_384
"""A checkpoint is due after so many events, and after more than it will have itself."""
CHECKPOINT_BATCH: Final = 1_000
FETCH_EVENTS: Final = 1_024
EPOCH_START_US: Final = 1_767_225_600_000_000
"""The start of 2026."""
EPOCH_CALENDAR_MAX: Final = (1 << 24) - (1 << 20)
EPOCH_SHIFT: Final = 40
"""A token is the place of its lease in the ledger, below the number of the machine's starts."""


class Journal:
    """The ledger of one queue, for all threads of a process."""

    def __init__(self, path: Path, place: Place) -> None:
        self.log = place.log(path, sync=place.deferred_sync)
        self.writer = self.log.writer
        self.bell = self.writer.bell
        self.words = self.writer.live.words
        self.ledger = Ledger()
        self.applied = Offset(0)
        """The offset of the next event, for whoever has the turn."""
        self._place = place
        self._cursor: Cursor | None = None
        self._candidate: Ledger | None = None
        self._candidate_count = 0
        self._candidate_start = Offset(0)
        self._checkpoint = Offset(0)
        self._checkpoint_before = Offset(0)
        self.checkpoint_due = CHECKPOINT_EVENTS
        """The next event after which the state is written down."""
        self.is_read = False
        """Whether the ledger has been read at all."""
        self.wrote = False
        """Whether the turn has written anything."""
        self.damaged = 0
        """How many events could not be read."""

    # Turns ---------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Apply what others wrote since our last turn, in a turn of ours."""
        end = self.writer.written
        if not self.is_read:
            self._start_over()
        try:
            self._apply_up_to(end)
        except OffsetTrimmed:
            # We were away for so long that a checkpoint took the place of what we missed.
            self._start_over()
            self._apply_up_to(end)
        self.applied = end
        self.is_read = True

    def end(self) -> Callable[[], None] | None:
        """Let other processes in; return what is to be done when other threads may be, too."""
        # Never of a state that is not to be trusted: a checkpoint would make it everybody's.
        if not self.wrote or not self.is_read or self.applied < self.checkpoint_due:
            self.writer.end(wrote=self.wrote)
            return None
        try:
            is_written = self._write_checkpoint()
            self.applied = self.writer.written
        except SegueError as error:
            # What the turn was for has happened; the next one tries again.
            logger.warning("no checkpoint path=%s reason=%s", self.log.path, error)
            self.forget()
            is_written = False
        finally:
            self.writer.end(wrote=True)
        return self._trim if is_written else None

    def _trim(self) -> None:
        try:
            self.log.trim(self._checkpoint_before)
        except SegueError as error:
            logger.warning("ledger not trimmed path=%s reason=%s", self.log.path, error)

    def write(self, event: Event) -> None:
        """Append an event and take it in. Nothing has happened if this raises a SegueError."""
        payload, attr = encode(event)
        offset = self.writer.put(payload, attr)
        self.wrote = True
        self.applied = Offset(offset + 1)
        self.ledger.apply(event)

    def forget(self) -> None:
        """Read everything anew in the next turn: this one was broken off, who knows where."""
        self.is_read = False

    def next_token(self) -> int:
        """Return the token of a lease that is written next."""
        return self.ledger.epoch << EPOCH_SHIFT | self.applied

    def sync(self) -> None:
        """Return once all events are on the device. Not in a turn."""
        self.writer.sync(self.applied)

    @property
    def is_gone(self) -> bool:
        """Whether our files are not those of the queue any more: it was removed."""
        path = self.log.path / LIVE_FILENAME
        with storage_errors(f"looking at {path}"):
            return not self._place.disk.is_same_file(self.writer.live.fd, path)

    @property
    def rules_changed(self) -> int:
        """A number that changes when the rules do, to be looked at without a turn."""
        return self.words[OWN]

    def say_rules_changed(self) -> None:
        self.words[OWN] = (self.words[OWN] + 1) & 0xFFFF_FFFF

    # Following others ----------------------------------------------------------------------

    def _start_over(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None
        self.ledger = Ledger()
        self._candidate = None
        self.damaged = 0

    def _apply_up_to(self, end: Offset) -> None:
        cursor = self._cursor
        if cursor is None:
            start = self.log.first_offset
            self._checkpoint = self._checkpoint_before = start
            self.checkpoint_due = start + CHECKPOINT_EVENTS
            cursor = self._cursor = Cursor(self.log._horizon, start, on_damage="skip", pin=False)
        else:
            cursor.offset = self.applied
        skipped = cursor.skipped
        while records := cursor.fetch(FETCH_EVENTS, end):
            for record in records:
                self._take_in(record)
        if cursor.skipped > skipped:
            self.damaged += cursor.skipped - skipped
            logger.warning(
                "ledger damaged path=%s lost_events=%d", self.log.path, cursor.skipped - skipped
            )

    def _take_in(self, record: Record) -> None:
        event = decode(record.payload, record.attr)
        if not record.attr & CHECKPOINT:
            self._candidate = None
            if event is not None:
                self.ledger.apply(event)
            return
        if self._candidate is None:
            self._candidate = Ledger()
            self._candidate_count = 0
            self._candidate_start = record.offset
        if isinstance(event, Ended):
            if event.size == self._candidate_count:
                self.ledger = self._candidate
                self._remember_checkpoint(self._candidate_start)
            self._candidate = None
        elif event is not None:
            self._candidate.apply(event)
            self._candidate_count += 1

    def _remember_checkpoint(self, start: Offset) -> None:
        self._checkpoint_before, self._checkpoint = self._checkpoint, start
        self.checkpoint_due = start + CHECKPOINT_EVENTS

    # Checkpoints ---------------------------------------------------------------------------

    def _write_checkpoint(self) -> bool:
        """Write the whole state at the start of a segment, in the turn; tell whether it was due."""
        ledger = self.ledger
        size = ledger.checkpoint_size()
        if self.applied - self._checkpoint < 2 * size:
            self.checkpoint_due = self._checkpoint + 2 * size
            return False
        start = self.writer.roll_in_turn()
        count = 0
        source = ledger.checkpoint()
        while batch := list(islice(source, CHECKPOINT_BATCH)):
            self._put_checkpoint(batch)
            count += len(batch)
        self._put_checkpoint([Ended(count)])
        self._remember_checkpoint(start)
        self.checkpoint_due = self.writer.written + max(CHECKPOINT_EVENTS, size)
        return True

    def _put_checkpoint(self, batch: list[Event]) -> None:
        encoded = [encode(event) for event in batch]
        self.writer.put_many(
            [payload for payload, _ in encoded], [attr | CHECKPOINT for _, attr in encoded]
        )

    # Restarts ------------------------------------------------------------------------------

    def note_boot(self, epoch_min: int) -> None:
        """Note in the turn that the machine was started anew, or that the queue is new."""
        boot = self._place.disk.boot_id()
        # By the calendar, too: so tokens grow even if the ledger was lost.
        minutes = (self._place.clock() - EPOCH_START_US) // 60_000_000
        calendar = min(minutes, EPOCH_CALENDAR_MAX)  # A clock may be wrong by decades.
        self.write(Booted(boot, max(self.ledger.epoch + 1, epoch_min, calendar)))

    def set_damage_aside(self) -> None:
        """Keep what could not be read in quarantine. Not in a turn."""
        try:
            report = self.log.repair()
        except SegueError as error:
            logger.warning("repair failed path=%s reason=%s", self.log.path, error)
        else:
            logger.warning("repaired path=%s report=%s", self.log.path, report)

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self.log.close()
