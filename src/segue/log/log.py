"""The log: append at the tail, trim at the head, read anywhere.

A `Log` is a handle on a directory of segments. Any number of threads and processes may have one on
the same directory. Writing lives in `appender.py`, reading in `cursor.py`, opening after a crash in
`recovery.py`; this file is the door to them.
"""

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from segue.clock import Clock, system_clock
from segue.errors import (
    Damage,
    InvalidArgument,
    LogClosed,
    LogNotFound,
    LogReadOnly,
    OffsetNotWritten,
    UnsupportedFileSystem,
)
from segue.extras import extra
from segue.log.appender import Appender
from segue.log.audit import SegmentAudit, audit_segment
from segue.log.catalog import list_segments, read_page
from segue.log.cleaner import Cleaner, protected_positions
from segue.log.compaction import Compactor, RewriteReport
from segue.log.cursor import Cursor
from segue.log.disk import Disk, storage_errors
from segue.log.horizon import Extent, Horizon
from segue.log.inventory import SegmentInfo, segment_info
from segue.log.layout import Offset, SegmentId
from segue.log.options import (
    LOCK_TIMEOUT_SECONDS_DEFAULT,
    SYNC_INTERVAL_MS_DEFAULT,
    Damaged,
    Duration,
    LogOptions,
    Sync,
    SyncName,
    microseconds_from,
    sync_from,
)
from segue.log.payloads import Payload
from segue.log.positions import Positions, SavedPosition
from segue.log.reader import FETCH_ITEMS_MAX, Reader, Start
from segue.log.record import Record, microseconds
from segue.log.repair import RepairReport, repair_log
from segue.log.retention import RetentionLimits, segments_to_delete
from segue.log.sending import HasFileno, Writable, send_segment
from segue.log.wake import Bell, Waiter

if TYPE_CHECKING:
    from segue.log.columns import Columns

logger = logging.getLogger(__name__)

_open_logs: "weakref.WeakSet[Log]" = weakref.WeakSet()


class Log:
    """A durable log of records in a directory. Safe from any thread.

    `sync` says when an append has reached the device: "always" before it returns (the default;
    threads that append at the same time share one sync), "interval" within `sync_interval_ms`,
    "os" when the operating system sees fit. Processes that share a log should use the same.

    A segment is closed by the first of `segment_bytes`, `segment_items` and `segment_age`; what is
    not given stays as the log has it. `exclusive` keeps every other writer out and is faster.
    `read_only` neither creates, locks nor repairs anything. `bell` is another log's: appending
    here then wakes who waits there.

    Raises InvalidArgument, LogLocked, LogNotFound, UnsupportedFileSystem, StorageError, Damage.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        exclusive: bool = False,
        create: bool = True,
        sync: SyncName = "always",
        sync_interval_ms: int = SYNC_INTERVAL_MS_DEFAULT,
        segment_bytes: int | None = None,
        segment_items: int | None = None,
        segment_age: Duration | None = None,
        allow_network: bool = False,
        lock_timeout: Duration = LOCK_TIMEOUT_SECONDS_DEFAULT,
        clock: Clock = system_clock,
        disk: Disk | None = None,
        bell: Bell | None = None,
    ) -> None:
        self.path = Path(path)
        self._options = LogOptions(
            read_only=read_only,
            exclusive=exclusive,
            create=create and not read_only,
            sync=sync_from(sync),
            sync_interval_ms=sync_interval_ms,
            segment_bytes=segment_bytes,
            segment_items=segment_items,
            segment_age_us=microseconds_from(segment_age, name="segment_age"),
            allow_network=allow_network,
            lock_timeout_us=microseconds_from(lock_timeout, name="lock_timeout") or 0,
            clock=clock,
            disk=disk or Disk(),
            bell=bell,
        )
        self._disk = self._options.disk
        self._clock = clock
        self._syncs = self._options.sync is not Sync.OS
        self._closed = False
        self._check_directory()
        self._appender = None if read_only else Appender(self.path, self._options)
        if self._appender is not None:
            # The method below is what it says; calling it through is a tenth of an append.
            self.append = self._appender.append  # type: ignore[method-assign]
        live = None if self._appender is None else self._appender.live
        self._positions = Positions(self.path, self._disk)
        self._reading = threading.Lock()
        with contextlib.ExitStack() as undo:
            if self._appender is not None:
                undo.callback(self._appender.close)
            self._horizon = Horizon(self.path, self._disk, live)
            undo.callback(self._horizon.close)
            logger.info("open path=%s next_offset=%d", self.path, self.next_offset)
            undo.pop_all()
        _open_logs.add(self)

    def _check_directory(self) -> None:
        disk = self._disk
        with storage_errors(f"opening {self.path}"):
            if not self._options.allow_network and disk.is_network_file_system(self.path):
                raise UnsupportedFileSystem(
                    f"{self.path} is on {disk.file_system(self.path)}, where locks and mapped "
                    "files are not safe; allow_network=True opens it all the same"
                )
            ids = list_segments(self.path, disk)
            if ids:
                if not self._options.read_only:
                    self._check_limits(ids)
                return
            if not self._options.create:
                raise LogNotFound(f"there is no log at {self.path}")
            self._options.new_header(SegmentId(0), Offset(0), None)  # Do the limits fit together?
            disk.make_directory(self.path)
            # Also what was there: whoever made it may have failed before it was synced.
            for ancestor in self.path.absolute().parents:
                with contextlib.suppress(PermissionError):
                    disk.sync_directory(ancestor)

    def _check_limits(self, ids: list[SegmentId]) -> None:
        """Refuse limits that do not fit those the log has, before anything is touched."""
        for id_ in reversed(ids):
            with contextlib.suppress(Damage, FileNotFoundError):  # Or just deleted by somebody.
                header, _ = read_page(self.path, id_, self._disk)
                self._options.new_header(id_, header.first_offset, header)
                return

    # Appending -----------------------------------------------------------------------------

    def append(self, payload: Payload, *, attr: int = 0) -> Offset:
        """Append one record and return its offset.

        `attr` is 64 bits that belong to the caller. Durable as the sync mode says when this
        returns. Raises RecordTooLarge and StorageFull before anything is written, StorageFailed
        if the outcome is unknown.
        """
        return self._writing().append(payload, attr=attr)

    def append_many(
        self, payloads: Iterable[Payload], *, attrs: Sequence[int] | None = None
    ) -> Offset:
        """Append all payloads as one batch and return the offset of the first.

        All or nothing, also after a power cut. Raises as `append` does, and BatchTooLarge.
        """
        return self._writing().append_many(payloads, attrs=attrs)

    def flush(self) -> None:
        """Return once everything appended before is on the device, whatever the sync mode."""
        self._writing().flush()

    def roll(self) -> SegmentId:
        """Seal the active segment, unless it is empty; return the id that takes records now."""
        return self._writing().roll()

    @property
    def writer(self) -> Appender:
        """What the layers above use to look, decide and append in one turn (`Appender.begin`)."""
        return self._writing()

    def _writing(self) -> Appender:
        self._require_open()
        if self._appender is None:
            raise LogReadOnly(f"{self.path} is open read-only")
        return self._appender

    # Extent --------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """Whether this handle can only read."""
        return self._appender is None

    @property
    def first_offset(self) -> Offset:
        """The offset of the oldest record; equal to `next_offset` while there is none."""
        self._require_open()
        return self._horizon.first_offset()

    @property
    def next_offset(self) -> Offset:
        """The offset the next record that becomes readable will have."""
        self._require_open()
        return self._horizon.next_offset()

    @property
    def size_bytes(self) -> int:
        """What the segments take up on the device."""
        return self.bytes_before(None)

    def bytes_before(self, segment: SegmentId | None) -> int:
        """Return what the segments before one take up on the device, or all of them."""
        self._require_open()
        size_bytes = 0
        with storage_errors(f"measuring {self.path}"):
            for id_ in list_segments(self.path, self._disk):
                if segment is not None and id_ >= segment:
                    break
                with contextlib.suppress(FileNotFoundError):  # Just deleted by somebody.
                    size_bytes += self._disk.file_bytes(self._horizon.catalog.path(id_))
        return size_bytes

    def bytes_from(self, offset: int) -> int:
        """Return how many bytes of payload lie from `offset`, or the first there is, to the end.

        By what the segments say of themselves: no record is read, and none is checked.
        """
        self._require_open()
        with self._reading:
            return self._horizon.bytes_from(Offset(offset))

    def extents(self, start: int, stop: int) -> Iterator[Extent]:
        """Yield the parts of segments between two offsets, in order, with their bytes of payload.

        As `bytes_from`, by what the segments say of themselves.
        """
        self._require_open()
        return self._horizon.extents(Offset(start), Offset(stop))

    def time_of(self, offset: int) -> int | None:
        """Return when the first record from `offset` on was appended, in µs; None without one.

        Passes over what was removed. The record is not checked, so this is to be shown and not to
        be relied on.
        """
        self._require_open()
        with self._reading:
            return self._horizon.time_of(Offset(offset))

    def __len__(self) -> int:
        return max(0, self.next_offset - self.first_offset)

    def segments(self) -> list[SegmentInfo]:
        """List the segments, oldest first."""
        self._require_open()
        found = []
        with storage_errors(f"listing {self.path}"):
            for id_ in list_segments(self.path, self._disk):
                with contextlib.suppress(FileNotFoundError):  # Just deleted by somebody.
                    found.append(segment_info(self._horizon, id_, self._disk))
        return found

    # Reading -------------------------------------------------------------------------------

    def read(self, offset: int) -> Record:
        """Return the record at `offset`.

        Raises OffsetTrimmed, OffsetNotWritten, RecordRemoved, CorruptRecord, CorruptSegment.
        """
        self._require_open()
        place = Offset(offset)
        with self._reading:
            latest = self.next_offset
            if not 0 <= place < latest:
                raise OffsetNotWritten(offset=offset, earliest=self.first_offset, latest=latest)
            return self._horizon.record(place)

    def records(
        self, start: Start = "earliest", *, stop: int | None = None, on_damage: Damaged = "raise"
    ) -> Iterator[Record]:
        """Yield the records from `start` up to the end as it is when it gets there.

        `on_damage="skip"` passes over what fails its checksum, with a warning in the log.
        """
        cursor = Cursor(self._horizon, self.resolve(start), on_damage=on_damage)
        try:
            limit = None if stop is None else Offset(stop)
            while records := cursor.fetch(FETCH_ITEMS_MAX, limit):
                self._require_open()
                yield from records
        finally:
            cursor.close()

    def follow(
        self,
        start: Start = "latest",
        *,
        timeout: Duration | None = None,
        on_damage: Damaged = "raise",
    ) -> Iterator[Record]:
        """Yield records as they come; end when none comes within `timeout` seconds."""
        cursor = Cursor(self._horizon, self.resolve(start), on_damage=on_damage)
        try:
            while True:
                while records := cursor.fetch(FETCH_ITEMS_MAX):
                    yield from records
                if not self.wait(cursor.offset, timeout=timeout):
                    return
        finally:
            cursor.close()

    def columns(self, start: Start = "earliest", *, stop: int | None = None) -> "Iterator[Columns]":
        """Yield the records as columns, a stretch of one segment at a time, checked.

        No work per record and no copy of the payloads. Needs the extra `columns`.
        """
        with extra("columns", needed_by="a log as columns"):
            from segue.log.columns import columns_of

        limit = None if stop is None else Offset(stop)
        return columns_of(self._horizon, self.resolve(start), limit)

    def wait(self, offset: int, *, timeout: Duration | None = None) -> bool:
        """Return True once the record at `offset` can be read, False after `timeout` seconds.

        Costs next to nothing while it waits.
        """
        self._require_open()
        timeout_us = microseconds_from(timeout, name="timeout")
        waiter = Waiter(self.path, self._horizon.live, self._disk)
        try:
            return (
                waiter.wait(
                    lambda: self._closed or self._horizon.next_offset() > offset,
                    None if timeout_us is None else timeout_us / 1_000_000,
                )
                and not self._closed
            )
        finally:
            waiter.close()

    def resolve(self, start: Start) -> Offset:
        """Return the offset that `start` stands for.

        Raises OffsetTrimmed and OffsetNotWritten for an offset the log does not hold.
        """
        if start == "earliest":
            return self.first_offset
        if start == "latest":
            return self.next_offset
        if isinstance(start, datetime):
            return self.offset_at(start)
        if isinstance(start, bool) or not isinstance(start, int):
            raise InvalidArgument(
                f"start must be earliest, latest, an offset or a datetime: {start!r}"
            )
        latest = self.next_offset
        if not 0 <= start <= latest:
            raise OffsetNotWritten(offset=start, earliest=self.first_offset, latest=latest)
        self._horizon.require(Offset(start))
        return Offset(start)

    def offset_at(self, moment: datetime) -> Offset:
        """Return the offset of the first record not older than `moment`, by bisection."""
        self._require_open()
        with self._reading:
            return self._horizon.offset_at(microseconds(moment))

    # Sending -------------------------------------------------------------------------------

    def send_segment(self, id_: int, target: Writable | HasFileno, *, position: int = 0) -> int:
        """Send a sealed segment to a file, pipe or socket; return how many bytes were sent.

        Those are its header, slots and payloads as they lie on disk, unchecked; `read_sealed`
        checks them at the other end. `position` says from which byte on, to go on with a transfer
        that broke; if records were removed from the segment in between, that check fails. No
        retention, in any process, deletes the segment meanwhile.

        Raises InvalidArgument unless there is such a segment and it is sealed, StorageError if
        the target takes no more, as a socket that does not wait may not.
        """
        self._require_open()
        return send_segment(self.path, SegmentId(id_), target, position=position, disk=self._disk)

    # Readers -------------------------------------------------------------------------------

    def reader(self, name: str, start: Start = "resume", *, on_damage: Damaged = "raise") -> Reader:
        """Open the reader called `name`, registering it durably.

        By default it goes on where it last committed, or from the earliest record. Raises
        OffsetTrimmed if what it wants is gone, CorruptPosition if its place cannot be read.
        """
        self._require_open()
        return Reader(self, name, start, on_damage=on_damage)

    def readers(self) -> dict[str, SavedPosition]:
        """Return the saved position of every registered reader. Raises CorruptPosition."""
        self._require_open()
        positions = {name: self._positions.load(name) for name in self._positions.names()}
        return {name: saved for name, saved in positions.items() if saved is not None}

    def remove_reader(self, name: str) -> bool:
        """Forget a reader, so that it holds nothing back; tell whether it was there."""
        self._writing()
        return self._positions.remove(name)

    def _segment_of(self, offset: Offset) -> SegmentId:
        with self._reading:
            return self._horizon.segment_of(offset)

    # Retention -----------------------------------------------------------------------------

    def trim(self, offset: int) -> list[SegmentId]:
        """Delete the segments that end at or before `offset`; return their ids.

        Never the active one, and none that a reader of any process has open.
        """
        with self._writing().locked():
            cleaner = self._cleaner()
            return self._delete(
                cleaner, [facts.id for facts in cleaner.sealed() if facts.end_offset <= offset]
            )

    def cleanup(
        self,
        *,
        age_max: Duration | None = None,
        bytes_max: int | None = None,
        lag_max: int | None = None,
        stop: int | None = None,
        dry_run: bool = False,
    ) -> list[SegmentId]:
        """Delete the segments every reader has left behind and return their ids.

        With no readers nothing goes. The limits, each optional, delete what readers still want:
        segments older than `age_max`, the oldest beyond `bytes_max`, and what only readers more
        than `lag_max` records behind hold back. Never the active segment, none that a reader of
        any process has open, and none that ends after `stop`. `dry_run` deletes nothing.
        """
        limits = RetentionLimits(
            age_us_max=microseconds_from(age_max, name="age_max"),
            bytes_max=bytes_max,
            lag_max=lag_max,
        )
        with self._writing().locked():
            cleaner = self._cleaner()
            facts = [fact for fact in cleaner.sealed() if stop is None or fact.end_offset <= stop]
            ids = segments_to_delete(
                facts,
                protected_positions(self._positions),
                limits,
                active_bytes=self.size_bytes - sum(fact.size_bytes for fact in facts),
                next_offset=self.next_offset,
                now_us=self._clock(),
            )
            return ids if dry_run else self._delete(cleaner, ids)

    def _delete(self, cleaner: Cleaner, ids: list[SegmentId]) -> list[SegmentId]:
        cleaner.clear_leftovers()
        if not ids:
            return []
        # What allows the deletion, and what is kept, must outlast it.
        self._positions.sync()
        self._writing().sync_before_deletion()
        return cleaner.delete(ids)

    def _cleaner(self) -> Cleaner:
        live = self._writing().live
        return Cleaner(self.path, self._horizon, live, self._disk)

    def remove_records(
        self, keep: Callable[[Record], bool], *, stop: int | None = None
    ) -> RewriteReport:
        """Remove the records that `keep` refuses from the sealed segments; free their space.

        Only from segments that end at or before `stop`, and never from the active one. Offsets
        and times stay: reading passes over what was removed, `read` raises RecordRemoved. Who is
        reading a segment reads on in the old one. Everything appended before is synced first, and
        each segment is changed in one step, also if the power fails.

        A segment with damage is left as it is, with a warning, and so is one that another process
        changes at the same time. Whatever is raised, segments done before stay done.
        """
        return Compactor(self.path, self._horizon, self._writing(), self._disk).remove(keep, stop)

    # Health --------------------------------------------------------------------------------

    def verify(self) -> Iterator[SegmentAudit]:
        """Check every byte of every segment; yield what was found, a segment at a time.

        Changes nothing and raises nothing for damage.
        """
        self._require_open()
        expected: Offset | None = None
        for id_ in list_segments(self.path, self._disk):
            audit = audit_segment(self._horizon, id_, self._disk, expected)
            if audit is not None:
                expected = audit.end_offset
                yield audit

    def repair(self) -> RepairReport:
        """Set damaged batches aside so that reading goes on past them.

        The damaged file is kept in `quarantine/`; its intact records stay where they are and the
        damaged ones read as removed. Readers whose saved position is damaged start over from the
        earliest record. Nothing happens to a log without damage.
        """
        appender = self._writing()
        appender.roll()
        with appender.locked(), self._reading:
            appender.rewrite_header()
            return repair_log(self.path, self._horizon, self._positions, self._disk)

    # Closing -------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise LogClosed(f"{self.path} is closed")

    def close(self) -> None:
        """Sync what is not, and let go of every file. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        _open_logs.discard(self)
        with storage_errors(f"closing {self.path}"), contextlib.ExitStack() as closing:
            if self._appender is not None:
                closing.callback(self._appender.close)
            with self._reading:
                self._horizon.close()
        logger.info("close path=%s", self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _abandon(self) -> None:
        """In a forked child: refuse every call before it takes a lock another thread held."""
        self._closed = True
        if self._appender is not None:
            del self.append  # The shortcut; the method itself looks first.
            with contextlib.suppress(OSError, BufferError):
                self._appender.abandon()


def _after_fork_in_child() -> None:
    # A child shares its parent's locks, so it must not use them, and must not keep them either.
    for log in list(_open_logs):
        log._abandon()
    _open_logs.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
