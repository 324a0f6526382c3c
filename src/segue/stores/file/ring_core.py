"""One ring's logs and state, shared by all handles of a process.

    rings/<name>/ledger/    locks, groups, commits that only take, checkpoints. Its file lock is
                            the ring's: whoever has the turn on it is alone.
    rings/<name>/entries/   the entries. The offset of an entry is its offset in this log.

The state is read from both, in memory and by whoever wants to know: no turn is needed for that,
because what is decided in a turn is looked at again in the turn.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from segue.delivery.ring import (
    RingShape,
    RingState,
)
from segue.delivery.ring_draft import Draft
from segue.delivery.ring_events import (
    CHECKPOINT,
    Locked,
    decode_event,
    encode_event,
    pack_entry,
    unpack_body,
    unpack_commit,
)
from segue.errors import (
    Damage,
    LockBusy,
    OffsetOutOfRange,
    OffsetTrimmed,
    RecordRemoved,
    SegueError,
    StoreClosed,
)
from segue.log import Log
from segue.log.cursor import Cursor
from segue.log.layout import Offset
from segue.stores.contract import Entry
from segue.stores.file.place import Place
from segue.stores.file.turns import Follower, Patience, Turn, turn_on, wait_for

logger = logging.getLogger(__name__)

LOOKS_MAX: Final = 8
"""How often a look starts over because others trim what it is about to read."""


class RingCore:
    """The ring itself. Safe from any thread."""

    def __init__(
        self, name: str, place: Place, shape: RingShape, *, ledger: Log, entries: Log
    ) -> None:
        self.name = name
        self.place = place
        self.shape = shape
        self.boot = place.disk.boot_id()
        self._ledger = ledger
        self._entries = entries
        self._lock = threading.RLock()
        self._closed = False
        self._state = RingState(first_offset=entries.first_offset)
        self._ledger_follower = Follower(ledger)
        self._entries_follower = Follower(entries)
        self._is_stale = False
        """Whether a look was interrupted, so that nobody knows what it has taken in."""

    # Looking -------------------------------------------------------------------------------

    @contextmanager
    def seeing(self) -> Iterator[RingState]:
        """Yield the state as it is now. It must not leave the block."""
        self._require_open()
        with self._lock:
            self._require_open()
            self._look()
            yield self._state

    def _look(self) -> None:
        # Before the ledger is read: whatever an entry relies on then stands in what is read of it.
        end = self._entries.next_offset
        for looks_left in reversed(range(LOOKS_MAX)):
            try:
                if self._is_stale:
                    self._start_over()
                self._is_stale = True
                self._follow(end)
                self._is_stale = False
                return
            except OffsetTrimmed:
                # We were away for so long that a checkpoint took the place of what we missed.
                if not looks_left:
                    raise

    def _start_over(self) -> None:
        self._ledger_follower.close()
        self._entries_follower.close()
        self._state = RingState(first_offset=self._entries.first_offset)
        self._ledger_follower = Follower(self._ledger)
        self._entries_follower = Follower(self._entries)

    def _follow(self, end: int) -> None:
        state = self._state
        ledger, entries = self._ledger_follower, self._entries_follower
        for record in ledger.records():
            event = decode_event(record.payload)
            if event is None:
                logger.warning("ring %s: unknown event offset=%d", self.name, record.offset)
                state.pass_over(1)
            else:
                state.apply(event, offset=record.offset)
        state.pass_over(ledger.missed)
        state.reach(0)
        for record in entries.records(start=state.tail, stop=end):
            state.apply_entry(
                unpack_commit(record.payload, record.attr),
                offset=record.offset,
                size_bytes=len(record.payload),
            )
        state.pass_over(entries.missed)
        state.reach(entries.offset)

    def read(self, offset: int) -> Entry | None:
        """Return the entry at `offset`, or None if it is not there. Raises Damage."""
        try:
            record = self._entries.read(offset)
        except (OffsetOutOfRange, RecordRemoved):
            return None
        body = unpack_body(record.payload, record.attr)
        return Entry(offset=record.offset, body=body, time_us=record.time_us)

    def take(self, draft: Draft, group: str) -> Entry | None:
        """Take the group's head entry in `draft`, passing over what cannot be read."""
        head = draft.head(group)
        if head is None:
            return None
        entry: Entry | None = None
        if head < draft.committed_tail:
            try:
                entry = self.read(head)
            except Damage as damage:
                logger.warning("ring %s: passed over damage reason=%s", self.name, damage)
            if entry is None:
                entry = self._next_readable(draft, group, head)
        if entry is None:
            entry = self._own_entry(draft, group)
        if entry is not None:
            draft.take(group, start=entry.offset, stop=entry.offset + 1)
        return entry

    def _next_readable(self, draft: Draft, group: str, head: int) -> Entry | None:
        tail = draft.committed_tail
        horizon = self._entries._horizon
        cursor = Cursor(horizon, Offset(head), on_damage="skip", pin=False)
        try:
            for record in cursor.fetch(1, Offset(tail)):
                body = unpack_body(record.payload, record.attr)
                return Entry(offset=record.offset, body=body, time_us=record.time_us)
        finally:
            cursor.close()
        draft.take(group, start=tail, stop=tail)  # Else what is damaged would fill the ring.
        return None

    def _own_entry(self, draft: Draft, group: str) -> Entry | None:
        head = draft.head(group)
        body = None if head is None else draft.own_body(head)
        if head is None or body is None:
            return None
        return Entry(offset=head, body=body, time_us=self.place.clock())

    # Turns ---------------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Keep everybody else from changing the ring for the length of the block."""
        self._require_open()
        with turn_on(self._ledger) as turn:
            if self._entries.writer.written != self._entries.next_offset:
                # Somebody died between writing entries and showing them: they are committed now.
                self._entries.flush()
            yield turn

    def holder(self, state: RingState) -> Locked | None:
        """Return the transaction that keeps others out now."""
        return state.holder(now_us=self.place.ticks(), boot=self.boot)

    def write(self, turn: Turn, draft: Draft, *, token: int, txn_id: str) -> None:
        """Make the steps of `draft` happen, durably as the store's sync says."""
        commit = draft.commit(token=token, txn_id=txn_id)
        if not draft.bodies:
            turn.put(encode_event(commit), durable=self.syncs_at_once)
            return
        first, attr = pack_entry(commit, draft.bodies[0])
        start = draft.committed_tail
        per_segment = self.shape.entries_per_segment
        if start % per_segment == 0 or start // per_segment != (draft.tail - 1) // per_segment:
            self._entries.roll()
        if len(draft.bodies) == 1:
            self._entries.append(first, attr=attr)
        else:
            attrs = [attr] + [0] * (len(draft.bodies) - 1)
            self._entries.append_many([first, *draft.bodies[1:]], attrs=attrs)

    @property
    def syncs_at_once(self) -> bool:
        """Whether what returned must outlast a power cut."""
        return self.place.sync == "always"

    def seconds_left(self, lock: Locked) -> float:
        """Return how long a lock lasts from now on."""
        return max(0, lock.deadline_us - self.place.ticks()) / 1_000_000

    def extent(self) -> tuple[int, int]:
        """Return where both logs end: it changes whenever something happens."""
        return self._ledger.next_offset, self._entries.next_offset

    def wait(self, lock: Locked, patience: Patience, *, since: tuple[int, int]) -> None:
        """Sleep until something happens or `lock` expires. Raises LockBusy, StoreClosed."""

        def has_changed() -> bool:
            return self._closed or self.extent() != since or self.place.ticks() >= lock.deadline_us

        seconds_left = self.seconds_left(lock)
        if not wait_for(self._ledger, patience, has_changed, seconds_max=seconds_left):
            raise LockBusy(name=self.name, owner=lock.txn_id, seconds_left=seconds_left)
        self._require_open()

    def note_boot(self) -> None:
        """Note that the machine was started anew, if it was, before any token is given."""
        with self.turn() as turn, self.seeing() as state:
            booted = state.booted(boot=self.boot, tail=self._entries.next_offset)
            if booted is not None:
                turn.put(encode_event(booted))
                turn.sync()
        if booted is not None:
            self._ledger.flush()  # Also its names, which mode "os" does not sync.

    # Upkeep --------------------------------------------------------------------------------

    def tend(self) -> None:
        """Write the state down and delete what nobody needs, when it is time.

        What the caller did has happened by now, so a failure is only noted: the next step meets
        it again.
        """
        with self._lock:
            if not self._state.is_checkpoint_due:
                return
        try:
            with self.turn() as turn, self.seeing() as state:
                if state.is_checkpoint_due:
                    payload = encode_event(state.checkpoint(self.shape))
                    turn.put_at_start([payload], attr=CHECKPOINT)
            self._trim()
        except SegueError as error:
            logger.warning("ring %s: no checkpoint reason=%s", self.name, error)

    def _trim(self) -> None:
        with self.seeing() as state:
            before = state.saved_before
            needed_from = state.needed_entries_from
        if before is None:
            return
        self._ledger.flush()  # What says that entries were taken must outlast them.
        self._ledger.trim(before.ledger_offset)
        self._entries.trim(needed_from)

    def _require_open(self) -> None:
        """Raise StoreClosed; in a forked child LogClosed, before it takes a lock nobody frees."""
        if self._closed:
            raise StoreClosed(f"ring {self.name} is closed")
        _ = self._ledger.writer

    def close(self) -> None:
        """Let go of everything. Closing twice is allowed."""
        self._closed = True
        with ExitStack() as closing:
            closing.callback(self._ledger.close)
            closing.callback(self._entries.close)
            with self._lock:
                self._ledger_follower.close()
                self._entries_follower.close()
