"""A queue's ledger on disk: turns to look, decide and write in, and the state that follows.

Every process that uses a queue keeps its state in memory and, when its turn comes, first reads what
others wrote. Now and then one of them writes the whole state down, a checkpoint, and the log before
the checkpoint before it is deleted: so a damaged checkpoint costs nothing but time.
"""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from segue.delivery.events import CHECKPOINT, Booted, Ended, Event, decode, encode
from segue.delivery.ledger import Ledger
from segue.errors import OffsetTrimmed
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.log.live import OWN, WRITTEN
from segue.log.record import Record
from segue.stores.file.place import Place

logger = logging.getLogger(__name__)

CHECKPOINT_EVENTS: Final = 16_384
"""A checkpoint is due after so many events, and after more than it will have itself."""
CHECKPOINT_BATCH: Final = 1_000
FETCH_EVENTS: Final = 1_024
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
        self._trim_due = False
        self._wrote = False
        self.damaged = 0

    # Turns ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Keep everybody else out until `end`, and know what they did."""
        self.writer.begin()
        self._wrote = False
        try:
            if self.words[WRITTEN] != self.applied or self._cursor is None:
                self._follow()
        except BaseException:
            self.writer.end(wrote=False)
            raise

    def end(self) -> None:
        """Let others in."""
        wrote = self._wrote
        if wrote and self.applied - self._checkpoint >= CHECKPOINT_EVENTS:
            self._write_checkpoint_or_leave()
        self.writer.end(wrote=wrote)
        if self._trim_due:
            self._trim_due = False
            self.log.trim(self._checkpoint_before)

    def _write_checkpoint_or_leave(self) -> None:
        try:
            self._write_checkpoint()
        except BaseException:
            self.writer.end(wrote=True)
            raise

    def write(self, event: Event) -> None:
        """Append an event and take it in. Nothing has happened if this raises."""
        payload, attr = encode(event)
        offset = self.writer.put(payload, attr)
        self._wrote = True
        self.applied = Offset(offset + 1)
        self.ledger.apply(event)

    def next_token(self) -> int:
        """Return the token of a lease that is written next."""
        return self.ledger.epoch << EPOCH_SHIFT | self.applied

    def sync(self) -> None:
        """Return once all events are on the device. Not in a turn."""
        self.writer.sync(self.applied)

    @property
    def rules_changed(self) -> int:
        """A number that changes when the rules do, to be looked at without a turn."""
        return self.words[OWN]

    def say_rules_changed(self) -> None:
        self.words[OWN] = (self.words[OWN] + 1) & 0xFFFF_FFFF

    # Following others ----------------------------------------------------------------------

    def _follow(self) -> None:
        """Apply what was written since our last turn."""
        end = self.writer.written
        try:
            self._apply_up_to(end)
        except OffsetTrimmed:
            # We were away for so long that a checkpoint took the place of what we missed.
            self._start_over()
            self._apply_up_to(end)
        self.applied = end

    def _start_over(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None
        self.ledger = Ledger()
        self._candidate = None

    def _apply_up_to(self, end: Offset) -> None:
        cursor = self._cursor
        if cursor is None:
            start = self.log.first_offset
            self._checkpoint = self._checkpoint_before = start
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

    # Checkpoints ---------------------------------------------------------------------------

    def _write_checkpoint(self) -> None:
        """Write the whole state at the start of a segment, in the turn."""
        ledger = self.ledger
        size = len(ledger.aside) + len(ledger.keys) + 2 * ledger.leased + ledger.ready
        if self.applied - self._checkpoint < 2 * size:
            return
        start = self.writer.roll_in_turn()
        count = 0
        source = ledger.checkpoint()
        while batch := list(islice(source, CHECKPOINT_BATCH)):
            self._put_checkpoint(batch)
            count += len(batch)
        self._put_checkpoint([Ended(count)])
        self.applied = self.writer.written
        self._remember_checkpoint(start)
        self._trim_due = True

    def _put_checkpoint(self, batch: list[Event]) -> None:
        encoded = [encode(event) for event in batch]
        self.writer.put_many(
            [payload for payload, _ in encoded], [attr | CHECKPOINT for _, attr in encoded]
        )

    # Restarts ------------------------------------------------------------------------------

    def note_boot(self) -> bool:
        """Note in the turn if the machine was started anew; tell whether it was."""
        boot = self._place.disk.boot_id()
        if self.ledger.epoch and self.ledger.boot == boot:
            return False
        self.write(Booted(boot, self.ledger.epoch + 1))
        return True

    def events(self) -> Iterator[tuple[Record, Event]]:
        """Yield what the ledger still holds, checkpoints left out."""
        for record in self.log.records(on_damage="skip"):
            event = decode(record.payload, record.attr)
            if event is not None and not record.attr & CHECKPOINT:
                yield record, event

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self.log.close()
