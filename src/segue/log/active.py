"""Holding the active segment: opening, rolling, syncing and sharing it. One lock order.

Threads serialise on `mutex`, processes on the log's file lock, which is taken under it: a file
lock belongs to the opening, not to a thread. `_sync_lock` lets a thread sync while others append;
it is taken after `mutex` or alone, never before it.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from segue.clock import Clock, system_clock
from segue.errors import LogClosed, SegueError, StorageFailed
from segue.log.catalog import list_segments, read_page
from segue.log.disk import (
    Disk,
    storage_error,
    storage_errors,
    storage_failed,
    storage_failures,
)
from segue.log.flusher import Flusher
from segue.log.hint import HintFile, read_hint
from segue.log.layout import Offset, Position, SegmentHeader, SegmentId, segment_filename
from segue.log.live import (
    FAILED,
    PUBLISHED,
    READY,
    ROLLING,
    SEGMENT,
    STATE,
    WRITTEN,
)
from segue.log.options import LogOptions, Sync
from segue.log.ownership import Ownership
from segue.log.recovery import recover_log
from segue.log.tail import Tail, adopt_segment, create_segment
from segue.log.wake import Bell

logger = logging.getLogger(__name__)

HINT_EVERY_ITEMS: Final = 256
"""How many records may be synced before the hint follows: writing it each time costs a call."""

_NEVER_US: Final = 1 << 62
_COPY_STEP_BYTES: Final = 1 << 20


class ActiveSegment:
    """The active segment of a log, held by one process for all its threads."""

    def __init__(self, directory: Path, options: LogOptions) -> None:
        """Take the locks, recover if nobody else has the log open, and be ready to append."""
        self._directory = directory
        self._options = options
        self._disk: Disk = options.disk
        self._time_ns = _nanoseconds(options.clock)
        self._shared = not options.exclusive
        self._always = options.sync is Sync.ALWAYS
        self._durable = options.sync is not Sync.OS
        self._mapped = not self._always and self._disk.may_store_mapped(directory)
        self.mutex = threading.Lock()
        self._in_turn = False
        self._sync_lock = threading.Lock()
        self._stopped: SegueError | None = None
        self._simple = self._simply_shared = False
        self._choose_path()
        self._roll_at_us = _NEVER_US
        self._synced = Offset(0)
        self._unreported: SegueError | None = None
        self._hint_due = 0
        self._flusher: Flusher | None = None
        with storage_errors(f"opening {directory}"), ExitStack() as undo:
            self._open(undo)
            undo.pop_all()
        if options.sync is Sync.INTERVAL:
            self._flusher = Flusher(self.sync_in_background, options.sync_interval_ms / 1000)

    def _choose_path(self) -> None:
        # One owner, stores into the mapping, no age to look at: then a record is one call.
        simple = self._mapped and self._options.segment_age_us is None
        self._simple = simple and not self._shared
        self._simply_shared = simple and self._shared

    # Opening and closing ----------------------------------------------------------------------

    def _open(self, undo: ExitStack) -> None:
        options = self._options
        self._owner = Ownership(
            self._directory,
            self._disk,
            shared=self._shared,
            timeout_seconds=options.lock_timeout_us / 1_000_000,
        )
        undo.callback(self._owner.close)
        self.live = self._owner.live
        self._words = self.live.words
        self.bell = options.bell or Bell(self._directory, self.live, self._disk)
        self._awaited = self.bell.words
        self._hint = HintFile(self._directory, self._disk)
        undo.callback(self._hint.close)
        has_failed = self._owner.is_alone and self._words[STATE] == FAILED
        if self._owner.is_alone:
            recover_log(self._directory, self.live, options)
        self._tail = self._open_tail(SegmentId(self._words[SEGMENT]))
        undo.callback(self._tail.close)
        self._tail.load(self._words[WRITTEN] - self._tail.first_offset)
        if has_failed:
            self._write_again()
        if self._owner.is_alone and self._durable:
            self._sync_everything()
        self._synced = Offset(self._words[PUBLISHED])
        self._owner.settle()

    def _open_tail(self, id_: SegmentId) -> Tail:
        header, _ = read_page(self._directory, id_, self._disk)
        return self._tail_of(self._directory / segment_filename(id_), header)

    def _tail_of(self, path: Path, header: SegmentHeader) -> Tail:
        # First: limits that do not fit must leave nothing open.
        limits = self._options.new_header(header.id, header.first_offset, header)
        tail = Tail(
            path,
            header,
            self.live,
            self._disk,
            mapped=self._mapped,
            publish_at_once=not self._always,
        )
        self._keep_to(limits, header)
        return tail

    def _keep_to(self, limits: SegmentHeader, active: SegmentHeader) -> None:
        age_us = self._options.segment_age_us
        self._roll_at_us = _NEVER_US if age_us is None else active.created_us + age_us
        self._limits = limits

    def set_limits(self, *, segment_bytes: int | None, segment_age_us: int | None) -> None:
        """Close segments by other limits than the log was opened with, from the next one on."""
        with self.locked():
            options = replace(
                self._options, segment_bytes=segment_bytes, segment_age_us=segment_age_us
            )
            header = self._tail.header
            limits = options.new_header(header.id, header.first_offset, header)
            self._options = options
            self._keep_to(limits, header)
            self._choose_path()

    def close(self) -> None:
        """Sync what is not, leave the hint and let go of every lock."""
        if self._flusher is not None:
            self._flusher.stop()
        self.bell.ring()
        with self.mutex:
            if isinstance(self._stopped, LogClosed):
                return
            failed, self._stopped = self._stopped, LogClosed(f"{self._directory} is closed")
            self._simple = self._simply_shared = False
            try:
                if failed is None:
                    self._enter()
                    with self._sync_lock, self._stopping_on_failure():
                        self._sync_everything()
                    self._words[PUBLISHED] = max(self._words[PUBLISHED], self._synced)
            finally:
                self._stopped = LogClosed(f"{self._directory} is closed")
                with self._sync_lock:  # Not while another thread syncs the file.
                    self._release()
            if self._unreported is not None:
                raise self._unreported  # A sync in the background failed, and nobody was told.

    def _release(self) -> None:
        with storage_errors(f"closing {self._directory}"), ExitStack() as closing:
            closing.callback(self._owner.close)
            closing.callback(self._tail.close)
            closing.callback(self._hint.close)

    def abandon(self) -> None:
        """In a forked child: drop what belongs to the parent, without unlocking it."""
        self._stopped = LogClosed("opened before a fork: open the log again in the child")
        self.mutex = threading.Lock()  # Another thread may have held it: it is not in the child.
        self._simple = self._simply_shared = False
        self._tail.close()
        self._hint.close()
        self._owner.abandon()

    # Rolling ----------------------------------------------------------------------------------

    def roll(self) -> SegmentId:
        """Seal the active segment, unless it is empty, and return the id of the one after."""
        with self.locked():
            if self._tail.index:
                self._roll()
            return self._tail.header.id

    def _next_header(self) -> SegmentHeader:
        """Return the header of a segment that comes after the active one."""
        old = self._tail
        return self._options.new_header(
            SegmentId(old.header.id + 1),
            Offset(old.next_offset),
            old.header,
            nonce=secrets.randbits(64),
            not_before_us=old.time_us,
        )

    def _roll(
        self,
        header: SegmentHeader | None = None,
        pieces: Sequence[tuple[Position, bytes | memoryview]] = (),
        *,
        sync_pieces: bool = False,
    ) -> Tail:
        """Seal the active segment and go on in a new one, which has `header` and holds `pieces`.

        The new file is written first: a full disk then has changed nothing. Sealing follows only
        when all records are synced, the name last. Whatever fails in between stops the log.
        """
        old = self._tail
        header = header or self._next_header()
        first_offset = header.first_offset
        created = create_segment(
            self._directory,
            header,
            self._disk,
            sync=self._durable,
            pieces=pieces,
            sync_pieces=sync_pieces and self._durable,
        )
        with (
            self._sync_lock,
            self._stopping_on_failure(),
            storage_failures(f"sealing {old.path}"),
            ExitStack() as undo,
        ):
            self._require_ready()  # Looked at again: a sync may have failed while we waited.
            # From here on nobody may append to the old segment, also if we are killed.
            self._words[STATE] = ROLLING
            if self._durable:
                self._disk.sync_data(old.fd)
            for position, piece in old.summary().writes():
                self._disk.write_at(old.fd, piece, position)
            if self._durable:
                self._disk.sync_data(old.fd)
            path = adopt_segment(created, self._disk, sync=self._durable)
            self._tail = self._tail_of(path, header)
            undo.callback(old.close)
            self.live.enter_segment(header.id)
            self._words[PUBLISHED] = first_offset
            if self._words[STATE] == FAILED:
                self._require_ready()
            self._words[STATE] = READY
            self._synced = first_offset
            if self._durable:
                self._write_hint(self._tail, 0)
        logger.info("roll path=%s first_offset=%d", path, first_offset)
        return self._tail

    def rewrite_header(self) -> None:
        """Write the active segment's header from memory. The caller holds the locks."""
        with self._stopping_on_failure(), storage_failures(f"writing {self._tail.path}"):
            for position, piece in self._tail.header.writes():
                self._disk.write_at(self._tail.fd, piece, position)
            self._disk.sync_data(self._tail.fd)

    # Sharing with other processes -------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other writer, thread or process, from appending, rolling or deleting."""
        with self.mutex:
            if self._stopped is not None:
                raise self._refusal()
            try:
                self._enter()
                yield
            finally:
                # Without a call of ours in between, where an interrupt could strike.
                if self._shared:
                    self._owner.unlock()

    def _enter(self) -> None:
        """Take the file lock, if the log is shared, and catch up with the others."""
        if self._shared:
            self._lock()
            try:
                self._catch_up()
            except BaseException:
                self._leave()
                raise

    def _lock(self) -> None:
        try:
            self._owner.lock()
        except OSError as error:
            raise storage_error(f"locking {self._directory}", error) from error

    def _leave(self) -> None:
        if self._shared:
            try:
                self._owner.unlock()
            except OSError as error:
                raise storage_error(f"unlocking {self._directory}", error) from error

    def _catch_up(self) -> None:
        """Learn what other processes appended since we last held the lock."""
        words = self._words
        tail = self._tail
        state = words[STATE]
        self._require_ready()
        with storage_errors(f"catching up with {self._directory}"):
            if words[SEGMENT] != tail.header.id:
                with self._sync_lock:
                    self._sync_after_roll(tail)
                    self._tail = self._open_tail(SegmentId(words[SEGMENT]))
                    tail.close()
                tail = self._tail
            if words[WRITTEN] != tail.next_offset:
                tail.load(words[WRITTEN] - tail.first_offset)
        if state == ROLLING:
            self._roll()  # Whoever was at it has died: do it again from the start.

    def _sync_after_roll(self, old: Tail) -> None:
        """Sync what another process rolled: its mode may be one that does not."""
        if self._durable:
            with self._stopping_on_failure(), storage_failures(f"syncing {self._directory}"):
                self._disk.sync_data(old.fd)
                self._disk.sync_directory(self._directory)

    # Syncing ----------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Show every synced record to readers. Several processes may want to: highest wins."""
        if isinstance(self._stopped, LogClosed):
            return  # Closing has shown them.
        try:
            self._lock()  # Within: an interrupt may strike as soon as it is had.
            self._words[PUBLISHED] = max(self._words[PUBLISHED], self._synced)
        finally:
            self._leave()

    def _sync(self, end: Offset | int) -> None:
        """Sync every record before `end`, unless a roll or a close has done so already."""
        with self._sync_lock:
            if self._synced >= end:
                return
            # Not if the log is being closed: what is written is synced and told.
            self._require_ready()
            self._sync_tail()

    def _sync_tail(self) -> None:
        """Sync the active segment. The caller holds `_sync_lock`, so it stays the active one."""
        tail = self._tail
        index = tail.index
        try:
            self._disk.sync_data(tail.fd)
            if index >= self._hint_due:
                self._write_hint(tail, index)
        except OSError as error:
            raise self._stop(storage_failed(f"syncing {tail.path}", error)) from error
        self._synced = Offset(tail.first_offset + index)
        if not self._shared and self._always:
            # Rolling holds the lock, too, so the word only grows.
            self._words[PUBLISHED] = self._synced

    def _write_hint(self, tail: Tail, index: int) -> None:
        self._hint.write(tail.header.id, index)
        self._hint_due = index + HINT_EVERY_ITEMS

    def flush(self) -> None:
        """Return once everything appended before this call is on the device."""
        with self.locked():
            with self._sync_lock, self._stopping_on_failure():
                self._sync_everything()
            self._words[PUBLISHED] = max(self._words[PUBLISHED], self._synced)

    def sync_before_deletion(self) -> None:
        """Sync what is kept before what is not is deleted. The caller holds the locks."""
        with self._sync_lock, self._stopping_on_failure():
            self._sync_everything()

    def _sync_everything(self) -> None:
        """Sync all there is since the hint: whole segments, too, that mode "os" has left behind."""
        self._require_ready()  # Looked at again: a sync may have failed while we waited.
        with storage_failures(f"syncing {self._directory}"):
            hint = read_hint(self._directory, self._disk)
            behind = 0 if hint is None else hint.segment
            if behind != self._tail.header.id:
                for id_ in list_segments(self._directory, self._disk):
                    if behind <= id_ < self._tail.header.id:
                        self._sync_segment(id_)
            self._disk.sync_directory(self._directory)
            self._hint_due = 0
        self._sync_tail()

    def _write_again(self) -> None:
        """Write the active segment over itself.

        After a failed sync the system may take pages for written that never were, and a second
        sync would pass them by.
        """
        position = 0
        while position < self._tail.position:
            step = min(_COPY_STEP_BYTES, self._tail.position - position)
            self._disk.write_at(
                self._tail.fd, self._disk.read_at(self._tail.fd, step, position), position
            )
            position += step

    def _sync_segment(self, id_: SegmentId) -> None:
        fd = self._disk.open_to_write(self._directory / segment_filename(id_))
        try:
            self._disk.sync_data(fd)
        finally:
            self._disk.close(fd)

    def sync_in_background(self) -> None:
        """Sync as `flush` does, but without holding anybody up who appends."""
        with self._sync_lock:
            if self._stopped is None and self._synced < self._tail.next_offset:
                try:
                    self._sync_tail()
                except SegueError as error:
                    self._unreported = error
                    raise

    # Stopping ---------------------------------------------------------------------------------

    def _require_ready(self) -> None:
        """Raise if a write or sync has failed, here or in another process."""
        if isinstance(self._stopped, StorageFailed):
            raise self._refusal()
        if self._words[STATE] == FAILED:
            raise self._stop(StorageFailed("a write failed in another process: reopen the log"))

    def _refusal(self) -> SegueError:
        """Return why nothing can be written any more."""
        assert self._stopped is not None
        self._unreported = None
        return self._stopped.with_traceback(None)

    def _stop(self, error: SegueError) -> SegueError:
        """Take no more writes: nobody can say what is on disk."""
        logger.error("stopped writing path=%s reason=%s", self._directory, error)
        self._stopped = error
        self._simple = self._simply_shared = False
        self._words[STATE] = FAILED
        return error

    @contextmanager
    def _stopping_on_failure(self) -> Iterator[None]:
        try:
            yield
        except StorageFailed as error:
            raise self._stop(error) from error.__cause__


def _nanoseconds(clock: Clock) -> Callable[[], int]:
    """Return `clock` in nanoseconds: for the system's own that saves a call in each append."""
    return time.time_ns if clock is system_clock else lambda: clock() * 1000
