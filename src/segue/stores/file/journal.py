"""A queue's ledger on disk: turns to look, decide and write in, and the state that follows.

Every process that uses a queue keeps its state in memory and, when its turn comes, first reads what
others wrote. Now and then one of them writes the whole state down, a checkpoint. Reading begins at
the checkpoint before the last one: so a damaged checkpoint costs nothing but time. What came before
is kept for a while, for whoever asks what has happened, and then deleted.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from segue.delivery.events import CHECKPOINT, Booted, Ended, Event, decode, encode
from segue.delivery.ledger import Ledger
from segue.errors import Damage, OffsetOutOfRange, OffsetTrimmed, RecordRemoved, SegueError
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
CHECKPOINTS_READ: Final = 2
"""How many of the last checkpoints are read: one that is damaged costs nothing then."""
LEDGER_KEPT_BYTES: Final = 32 * 1024 * 1024
"""How much is kept that is older than what the state is read from."""
FETCH_EVENTS: Final = 1_024
EPOCH_START_US: Final = 1_767_225_600_000_000
"""The start of 2026."""
EPOCH_CALENDAR_MAX: Final = (1 << 24) - (1 << 20)
EPOCH_SHIFT: Final = 40
"""A token is the place of its lease in the ledger, below the number of the machine's starts."""

_CHECKPOINT_BEGINS: Final = encode(Booted(0, 0))[1] | CHECKPOINT
"""The attr of a checkpoint's first event, which no other event has."""


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
        self._has_checkpoint = False
        """Whether what was read so far had a whole checkpoint in it."""
        self.checkpoint_due = CHECKPOINT_EVENTS
        """The next event after which the state is written down."""
        self.is_read = False
        """Whether the ledger has been read at all."""
        self.wrote = False
        """Whether the turn has written anything."""
        self.damaged = 0
        """How many events could not be read."""
        self.sketches: dict[int, dict[int, tuple[int, int]]] = {}
        """What segments of the ledger are about, for who looks for one message (traces.py)."""

    # Turns ---------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Apply what others wrote since our last turn, in a turn of ours."""
        end = self.writer.written
        if not self.is_read or self._is_left_behind(end):
            self._start_over()
        try:
            self._apply_up_to(end)
        except OffsetTrimmed:
            # We were away for so long that what we missed was deleted.
            self._start_over()
            self._apply_up_to(end)
        self.applied = end
        self.is_read = True

    def end(self) -> Callable[[], None] | None:
        """Let other processes in; return what is to be done when other threads may be, too."""
        # Never of a state that is not to be trusted: a checkpoint would make it everybody's.
        if not self.wrote or not self._may_write_down or self.applied < self.checkpoint_due:
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

    @property
    def _may_write_down(self) -> bool:
        """Whether all that is known of the state is in it; the next turn looks for what is not."""
        ledger = self.ledger
        return self.is_read and not (ledger.has_aside and ledger.aside_missing.count)

    def _trim(self) -> None:
        try:
            self._trim_log()
        except SegueError as error:
            logger.warning("ledger not trimmed path=%s reason=%s", self.log.path, error)

    def _trim_log(self) -> None:
        needed = self._checkpoint_before
        older = [
            (info.first_offset, info.size_bytes)
            for info in self.log.segments()
            if info.first_offset is not None and info.first_offset < needed
        ]
        kept_from, kept_bytes = needed, 0
        for first_offset, size_bytes in reversed(older):
            kept_bytes += size_bytes
            if kept_bytes > LEDGER_KEPT_BYTES:
                self.log.trim(kept_from)
                return
            kept_from = first_offset

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
        self._has_checkpoint = False
        self.damaged = 0

    def _is_left_behind(self, end: Offset) -> bool:
        """Tell whether starting over is less to read than all that we missed."""
        missed = end - self.applied
        return missed > CHECKPOINTS_READ * CHECKPOINT_EVENTS and next(self._starts()) > self.applied

    def _starts(self) -> Iterator[Offset]:
        """Yield where reading may begin: the checkpoint before the last one, then earlier ones.

        At last the oldest event there is. Whether a checkpoint is whole only reading it tells, so
        each is twice as many back as the one before: however many are not, little is read twice.
        """
        first = self.log.first_offset
        begun, wanted = 0, CHECKPOINTS_READ
        for start in self.log._horizon.starts():
            if start <= first:
                break
            if self._begins_checkpoint(start):
                begun += 1
                if begun == wanted:
                    yield start
                    wanted *= 2
        yield first

    def _begins_checkpoint(self, start: Offset) -> bool:
        try:
            return self.log.read(start).attr == _CHECKPOINT_BEGINS
        except (Damage, OffsetOutOfRange, RecordRemoved):
            return False

    def _apply_up_to(self, end: Offset) -> None:
        if self._cursor is not None:
            self._cursor.offset = self.applied
            self._read_on(self._cursor, end)
            return
        for start in self._starts():
            self._start_over()
            self._checkpoint = self._checkpoint_before = start
            self.checkpoint_due = start + CHECKPOINT_EVENTS
            self._cursor = Cursor(self.log._horizon, start, on_damage="skip", pin=False)
            self._read_on(self._cursor, end)
            if self._has_checkpoint:
                return

    def _read_on(self, cursor: Cursor, end: Offset) -> None:
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
        self._has_checkpoint = True
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
