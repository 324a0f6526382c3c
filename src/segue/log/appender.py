"""Appending: how a record becomes durable, then visible.

With sync "always" a record is first synced and then published, so nobody reads what a power cut
could take back; threads that append at the same time share one write and one sync. In the other
modes it is published at once.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    RecordTooLarge,
    SegueError,
    StorageError,
    StorageFailed,
)
from segue.log.active import ActiveSegment
from segue.log.checksum import crc32_bulk
from segue.log.commit_queue import CommitQueue, Request
from segue.log.disk import storage_error
from segue.log.hot import NO_ROOM, encode_batch
from segue.log.layout import HEADER_BYTES, Offset, Position, SegmentHeader
from segue.log.live import PUBLISHED, READY, SEGMENT, STATE, WAITING, WRITTEN
from segue.log.options import LogOptions
from segue.log.payloads import (
    Payload,
    check_attrs,
    checked_batch,
    checked_payload,
    checked_whole,
)
from segue.log.tail import Tail, space_beside

if TYPE_CHECKING:
    from segue.log.staging import Batch


class Appender(ActiveSegment):
    """Appends for all threads of one process."""

    def __init__(self, directory: Path, options: LogOptions) -> None:
        """Take the locks, recover if nobody else has the log open, and be ready to append."""
        self._commits = CommitQueue(self._commit)
        super().__init__(directory, options)

    # Flat on purpose: a call costs a tenth of an append.
    def append(self, payload: Payload, *, attr: int = 0) -> Offset:
        """Append one record and return its offset."""
        if type(payload) is not bytes:
            payload = checked_payload(payload, self.payload_bytes_max)
        if self._always:
            return self._append_always(payload, attr)
        # The mutex by a with statement, the file lock inside a try: an exception that a signal
        # handler raises between two steps must leave neither held.
        with self.mutex:
            try:
                if self._simple:
                    offset = self._tail.store(payload, attr, self._time_ns() // 1000)
                    if offset == NO_ROOM:
                        offset = self._put(payload, attr)
                elif self._simply_shared:
                    try:
                        self._owner.lock()
                        offset = self._tail.store(payload, attr, self._time_ns() // 1000)
                        if offset == NO_ROOM:
                            self._catch_up()
                            offset = self._put(payload, attr)
                    finally:
                        self._owner.unlock()
                else:
                    offset = self._append_with_care(payload, attr)
                is_awaited = self._awaited[WAITING]
            except (OverflowError, TypeError, struct.error):
                raise InvalidArgument(
                    f"attr must fit in 64 bits without a sign: {attr!r}"
                ) from None
            except OSError as error:
                raise storage_error(f"locking {self._directory}", error) from error
        if self._flusher is not None:
            self._flusher.wake()
        if is_awaited:
            self.bell.ring()
        return Offset(offset)

    @property
    def payload_bytes_max(self) -> int:
        """What may still fit: in the active segment or in one made by our limits."""
        return max(self._limits.payload_bytes_max, self._open_limits.payload_bytes_max)

    @property
    def new_segment_bytes_max(self) -> int:
        """How many bytes of payload the next segment takes, whatever the active one does."""
        return self._limits.payload_bytes_max

    @property
    def new_segment_items_max(self) -> int:
        """How many records the next segment takes, whatever the active one does."""
        return self._limits.items_max

    def _append_with_care(self, payload: bytes, attr: int) -> Offset:
        """Append where other processes may, or where this one may not any longer."""
        if self._stopped is not None:
            raise self._refusal()
        try:
            self._enter()
            return self._put(payload, attr)
        finally:
            if self._shared:
                self._owner.unlock()

    def _put(self, payload: bytes, attr: int) -> Offset:
        now_us = self._time_ns() // 1000
        tail = self._tail
        try:
            is_old = now_us > self._roll_at_us and tail.index > 0
            if is_old or not tail.put(payload, attr, now_us):
                self._require_ready()
                check_attrs((attr,), 1)
                tail = self._make_room(1, len(payload))
                if not tail.put(payload, attr, now_us):
                    self._require_ready()
                    raise StorageFailed(f"{tail.path} takes no record; reopen the log")
        except StorageFailed as error:
            raise self._stop(error) from error.__cause__
        return Offset(tail.next_offset - 1)

    def append_many(
        self, payloads: Iterable[Payload], *, attrs: Sequence[int] | None = None
    ) -> Offset:
        """Append one batch, all or nothing, and return the offset of its first record."""
        batch, lengths = checked_batch(
            payloads,
            self.payload_bytes_max,
            self.batch_items_max,
        )
        if attrs is not None:
            attrs = tuple(attrs)  # Another thread may change the caller's list.
        check_attrs(attrs, len(batch))
        if not batch:
            with self.locked():
                return Offset(self._tail.next_offset)
        request = Request(lengths, b"".join(batch), attrs)
        if self._always:
            return self._append_synced(request)
        with self.locked():
            self._put_all([request])
        if request.error is not None:
            raise request.error
        if self._flusher is not None:
            self._flusher.wake()
        self.bell.ring()
        return request.offset

    def _append_always(self, payload: bytes, attr: int) -> Offset:
        """Append, sync and publish; alone if nobody else wants to, as in most programs."""
        commits = self._commits
        try:
            if commits.lead_alone():
                with self.mutex:
                    offset = self._append_with_care(payload, attr)
                self._sync(offset + 1)
                if self._shared:
                    with self.mutex:
                        self._publish()
                self.bell.ring()
                return offset
        except (OverflowError, TypeError, struct.error):
            raise InvalidArgument(f"attr must fit in 64 bits without a sign: {attr!r}") from None
        finally:
            commits.hand_over()
        check_attrs((attr,), 1)
        return self._append_synced(Request((len(payload),), payload, (attr,)))

    def _append_synced(self, request: Request) -> Offset:
        """Append, sync and publish, together with whatever other threads append just now."""
        offset = self._commits.submit(request)
        self.bell.ring()
        return offset

    def _commit(self, requests: list[Request]) -> None:
        """Write, sync and publish; every request gets its offset or its error."""
        try:
            with self.mutex:
                if self._stopped is not None:
                    raise self._refusal()
                try:
                    self._enter()
                    self._put_all(requests)
                finally:
                    if self._shared:
                        self._owner.unlock()
                end = self._tail.next_offset
            if any(request.error is None for request in requests):
                self._sync_for_others(end, requests)
            if self._shared:
                with self.mutex:
                    self._publish()
            for request in requests:
                request.is_committed = request.error is None
        except SegueError as error:
            for request in requests:
                request.error = request.error or error

    def _sync_for_others(self, end: int, requests: list[Request]) -> None:
        try:
            self._sync(end)
        except SegueError:
            raise
        except BaseException:
            # Interrupted, but the others still wait for it.
            self._sync(end)
            for request in requests:
                request.is_committed = request.error is None
            raise

    def _put_all(self, requests: list[Request]) -> None:
        """Write requests in order, rolling as needed. The caller holds the locks."""
        now_us = self._time_ns() // 1000
        done = 0
        while done < len(requests):
            request = requests[done]
            try:
                is_old = now_us > self._roll_at_us and self._tail.index > 0
                stored = 0 if is_old else self._tail.put_run(requests[done:], now_us)
                if stored == 0:
                    self._make_room(len(request.lengths), len(request.data))
                done += stored
            except StorageFailed as error:
                raise self._stop(error) from error.__cause__
            except InvalidArgument as error:
                request.error = error
                done += 1
            except StorageError as error:
                # No space: what came before is written, none of these is.
                for refused in requests[done:]:
                    refused.error = error
                return

    # Turns ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Keep every other process out until `end`, and be up to date with them.

        The caller holds `mutex`, and calls `end` whether or not this raises.
        """
        if self._stopped is not None:
            raise self._refusal()
        if not self._shared:
            return
        # Said first: then `end` unlocks, wherever an exception comes from.
        self._in_turn = True
        try:
            self._owner.lock()
        except OSError as error:
            raise storage_error(f"locking {self._directory}", error) from error
        words, tail = self._words, self._tail
        if words[PUBLISHED] != words[WRITTEN] and not self._always:
            words[PUBLISHED] = words[WRITTEN]  # Whoever wrote it was killed in between.
        if (
            words[WRITTEN] != tail.first_offset + tail.index
            or words[SEGMENT] != tail.segment
            or words[STATE] != READY
        ):
            self._catch_up()

    @property
    def unlock(self) -> Callable[[], None] | None:
        """What ends a turn for other processes, beyond interruption; None if there are none."""
        return self._owner.unlock if self._shared else None

    def put(self, payload: bytes, attr: int) -> Offset:
        """Append one record in the turn that `begin` began. Not synced."""
        if self._mapped:
            offset = self._tail.store(payload, attr, self._time_ns() // 1000)
            if offset != NO_ROOM:
                return Offset(offset)
        return self._put(payload, attr)

    def put_many(self, payloads: Sequence[bytes], attrs: Sequence[int]) -> Offset:
        """Append one batch in the turn that `begin` began. Not synced."""
        request = Request(list(map(len, payloads)), b"".join(payloads), attrs)
        self._put_all([request])
        if request.error is not None:
            raise request.error
        return request.offset

    def put_whole(self, lengths: Sequence[int], data: Payload, attrs: Sequence[int]) -> Offset:
        """Append `data`, cut into `lengths`, as one batch in the turn that `begin` began.

        It goes where there is room: in the active segment, in a new one, or in one made to
        measure, after which the usual limits hold again. All or nothing, also after a power cut.
        Not synced, nor shown before it is where sync is "always". Raises InvalidArgument,
        RecordTooLarge, BatchTooLarge and StorageFull before anything has changed.
        """
        request = Request(*checked_whole(lengths, data, attrs))
        if not request.lengths:
            return Offset(self._tail.next_offset)
        now_us = self._time_ns() // 1000
        is_old = now_us > self._roll_at_us and self._tail.index > 0
        with self._stopping_on_failure():
            if not is_old and self._tail.put_run([request], now_us):
                return request.offset
            self._require_ready()
            header = self._next_header().with_room_for(len(request.lengths), len(request.data))
            return self._roll_with(header, request, max(now_us, header.created_us))

    def _roll_with(self, header: SegmentHeader, request: Request, time_us: int) -> Offset:
        """Begin a new segment that holds a batch from the start; return the batch's offset.

        Written before the active one is sealed: so no full disk finds us in between.
        """
        position = header.payloads_position
        after = crc32_bulk(request.data, header.key)
        table = encode_batch(
            request.lengths,
            request.attrs,
            time_us=time_us,
            position=position,
            before=header.key,
            after=after,
            key=header.key,
            seed=header.slot_seed,
        )
        tail = self._roll(header, [(position, request.data), (Position(HEADER_BYTES), table)])
        tail.take_in(len(request.lengths), position + len(request.data), after, time_us)
        return header.first_offset

    def put_staged(self, batches: "Sequence[Batch]") -> Offset:
        """Append batches in the turn that `begin` began, all or none, also after a power cut.

        Few become one batch in the active segment, many a segment of their own, in which they
        stay what they are. Otherwise as `put_whole`.
        """
        from segue.log.staging import slots_of

        count = sum(map(len, batches))
        size_bytes = sum(len(batch.data) for batch in batches)
        if self._tail.has_room_for(count, size_bytes):
            lengths = [length for batch in batches for length in batch.lengths.tolist()]
            attrs = [attr for batch in batches for attr in batch.attrs.tolist()]
            return self.put_whole(lengths, b"".join(batch.data for batch in batches), attrs)
        with self._stopping_on_failure():
            self._require_ready()
            header = self._next_header().with_room_for(count, size_bytes)
            time_us = max(self._time_ns() // 1000, header.created_us)
            table, chain = slots_of(header, batches, time_us)
            pieces: list[tuple[Position, bytes | memoryview]] = []
            position = header.payloads_position
            for batch in batches:
                pieces.append((position, batch.data))
                position = Position(position + len(batch.data))
            pieces.append((Position(HEADER_BYTES), table))
            # Synced before the segment gets its name: a power cut must not keep some batches only.
            tail = self._roll(header, pieces, sync_pieces=True)
            tail.take_in(count, position, chain, time_us)
            return header.first_offset

    def roll_in_turn(self) -> Offset:
        """Begin a new segment in the turn, unless this one is empty; return its first offset."""
        if self._tail.index:
            self._roll()
        return Offset(self._tail.first_offset)

    def end(self, *, wrote: bool) -> None:
        """Let other processes in, and wake whoever waits if something was put."""
        if self._in_turn:
            try:
                self._owner.unlock()
            except OSError as error:
                raise storage_error(f"unlocking {self._directory}", error) from error
            self._in_turn = False
        if wrote:
            if self._flusher is not None:
                self._flusher.wake()
            if self._awaited[WAITING]:
                self.bell.ring()

    @contextmanager
    def reserved(self, batches: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Have space for batches, so that appending them next finds no full disk.

        Each is so many records, and so many bytes. Raises StorageFull, and nothing has changed.
        For the length of the block it is kept from who reserves elsewhere; after it others may use
        it up before.
        """
        (count, size_bytes), *later = batches
        with self.locked():
            try:
                if not self._tail.reserve(count, size_bytes):
                    self._make_room(count, size_bytes).reserve(count, size_bytes)
            except StorageFailed as error:
                raise self._stop(error) from error.__cause__
            header = self._next_header()
        with space_beside(self._directory, header, later, self._disk):
            yield

    @property
    def batch_items_max(self) -> int:
        """How many records a batch may still have."""
        return max(self._limits.items_max, self._open_limits.items_max)

    @property
    def _open_limits(self) -> SegmentHeader:
        """What the active segment takes; one made to measure was full when it was made."""
        header = self._tail.header
        return header if header.usual is None else self._limits

    def sync(self, end: int) -> None:
        """Return once every record before `end` is on the device."""
        if self._durable:
            self._sync(end)
        else:
            # Segments were left behind unsynced.
            with self._sync_lock, self._stopping_on_failure():
                self._sync_everything()

    @property
    def written(self) -> Offset:
        """The offset the next record gets, as every process sees it."""
        return Offset(self._words[WRITTEN])

    def _make_room(self, count: int, size_bytes: int) -> Tail:
        """Start a segment that takes `count` records of `size_bytes` together, or refuse."""
        limits = self._limits
        if size_bytes > limits.payload_bytes_max:
            raise RecordTooLarge(size_bytes=size_bytes, size_bytes_max=limits.payload_bytes_max)
        if count > limits.items_max:
            raise BatchTooLarge(f"a batch has at most {limits.items_max} records here")
        return self._roll()
