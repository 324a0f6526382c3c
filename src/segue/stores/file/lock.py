"""The lock: one small log per name, and the fencing tokens that come from it.

Every acquisition is synced before it returns, whatever the store's sync: a token that a power cut
takes back could be given twice.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from segue.delivery.lock import (
    SNAPSHOT,
    Acquired,
    LockState,
    Released,
    Renewed,
    decode_event,
    encode_event,
)
from segue.errors import (
    LockBusy,
    LockLost,
    LogNotFound,
    OffsetTrimmed,
    StorageError,
    StoreClosed,
)
from segue.log import Log
from segue.log.options import Duration
from segue.stores.file.place import Place
from segue.stores.file.turns import Follower, Patience, Turn, turn_on, wait_for
from segue.stores.heartbeat import Heartbeat
from segue.stores.lock_blocks import Blocks, checked_owner, checked_token, ttl_from

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 256 * 1024
LOOKS_MAX: Final = 8
"""How often a look starts over because others trim what it is about to read."""


class LockCore:
    """The lock itself, for all handles of a process. Safe from any thread."""

    def __init__(self, name: str, path: Path, place: Place) -> None:
        """Touch nothing: the lock exists from its first acquisition on."""
        self.name = name
        self.place = place
        self.boot = place.disk.boot_id()
        self._path = path
        self._lock = threading.RLock()
        self._log: Log | None = None
        self._follower: Follower | None = None
        self._state = LockState()
        self._trimmed_to: int | None = None
        self._closed = False

    # Looking -------------------------------------------------------------------------------

    def _opened(self) -> Log:
        """Return the log, made if need be."""
        self._require_open()
        with self._lock:
            self._require_open()
            if self._log is None:
                # "interval" also where the store says "os", which does not keep the names of new
                # files; acquisitions are synced besides.
                self._log = self.place.log(self._path, sync="interval", segment_bytes=SEGMENT_BYTES)
            return self._log

    @contextmanager
    def _seeing(self) -> Iterator[LockState]:
        """Yield the state as it is now. It must not leave the block."""
        log = self._opened()
        with self._lock:
            self._require_open()
            self._look(log)
            yield self._state

    def _look(self, log: Log) -> None:
        for looks_left in reversed(range(LOOKS_MAX)):
            follower, self._follower = self._follower, None
            try:
                if follower is None:
                    self._state = LockState()
                    follower = Follower(log)
                for record in follower.records():
                    self._state.apply(
                        decode_event(record.payload), offset=record.offset, attr=record.attr
                    )
                self._state.pass_over(follower.missed)
                # Only now: a look that was interrupted must start over.
                self._follower = follower
                return
            except OffsetTrimmed:
                # We were away for so long that a snapshot took the place of what we missed.
                if follower is not None:
                    follower.close()
                if not looks_left:
                    raise

    def holder(self) -> tuple[str, int, float] | None:
        """Return the owner, token and seconds left of who holds it now."""
        self._require_open()
        if self._log is None and not lock_exists(self._path, self.place):
            return None
        with self._seeing() as state:
            held = state.holder(now_us=self.place.ticks(), boot=self.boot)
            return None if held is None else (held.owner, held.token, self._seconds_left(held))

    def _seconds_left(self, held: Acquired) -> float:
        return max(0, held.deadline_us - self.place.ticks()) / 1_000_000

    def seems_held(self, token: int) -> bool:
        """Tell whether the lock is held with `token` as far as is known, without looking."""
        with self._lock:
            if self._closed:
                return False
            loss = self._state.loss(token, now_us=self.place.ticks(), boot=self.boot)
            return loss is None

    # Steps ---------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        """Keep everybody else out for the length of the block; know afterwards what it did."""
        log = self._opened()
        with turn_on(log) as turn:
            yield turn
        with self._seeing() as state:
            before = state.snapshot_offset_before
        self._trim(log, before)

    def acquire(self, *, ttl_us: int, patience: Patience, owner: str) -> int:
        """Take the lock for `ttl_us` and return its token. Raises LockBusy."""
        log = self._opened()
        while True:
            with self._turn() as turn:
                with self._seeing() as state:
                    held = state.holder(now_us=self.place.ticks(), boot=self.boot)
                    token = state.token + 1
                if held is None:
                    self._write_snapshot(turn)
                    now_us = self.place.ticks()
                    acquired = Acquired(
                        token=token,
                        owner=owner,
                        since_us=now_us,
                        deadline_us=now_us + ttl_us,
                        boot=self.boot,
                    )
                    turn.put(encode_event(acquired), durable=True)
                    break
                since = log.next_offset
            self._wait(log, held, patience, since)
        return token

    def _wait(self, log: Log, held: Acquired, patience: Patience, since: int) -> None:
        def has_changed() -> bool:
            return (
                self._closed or log.next_offset != since or self.place.ticks() >= held.deadline_us
            )

        seconds_left = self._seconds_left(held)
        if not wait_for(log, patience, has_changed, seconds_max=seconds_left):
            raise LockBusy(name=self.name, owner=held.owner, seconds_left=seconds_left)
        self._require_open()

    def renew(self, token: int, *, ttl_us: int) -> None:
        """Hold the lock for `ttl_us` from now. Raises LockLost."""
        with self._turn() as turn:
            self._require_held(token)
            self._write_snapshot(turn)
            deadline_us = self.place.ticks() + ttl_us
            turn.put(encode_event(Renewed(token=token, deadline_us=deadline_us)))

    def release(self, token: int) -> None:
        """Let go. Raises LockLost."""
        with self._turn() as turn:
            self._require_held(token)
            self._write_snapshot(turn)
            turn.put(encode_event(Released(token=token)))

    def _require_held(self, token: int) -> None:
        with self._seeing() as state:
            loss = state.loss(token, now_us=self.place.ticks(), boot=self.boot)
        if loss is not None:
            raise LockLost(name=self.name, token=token, reason=loss)

    # Upkeep --------------------------------------------------------------------------------

    def _write_snapshot(self, turn: Turn) -> None:
        """Write the state down at the start of a segment, when it is time."""
        with self._seeing() as state:
            if state.is_snapshot_due:
                events = [encode_event(event) for event in state.snapshot()]
                turn.put_at_start(events, attr=SNAPSHOT)

    def _trim(self, log: Log, before: int | None) -> None:
        """Delete what lies before the last snapshot but one: a damaged one costs nothing."""
        if before is None or before == self._trimmed_to:
            return
        try:
            log.trim(before)
            self._trimmed_to = before
        except StorageError as error:
            logger.warning("lock %s: not trimmed reason=%s", self.name, error)

    def _require_open(self) -> None:
        """Raise StoreClosed; in a forked child LogClosed, before it takes a lock nobody frees."""
        log = self._log
        if self._closed:
            raise StoreClosed(f"lock {self.name} is closed")
        if log is not None:
            _ = log.writer

    def close(self) -> None:
        """Let go of the files, not of the lock. Closing twice is allowed."""
        with self._lock:
            self._closed = True
            log, self._log = self._log, None
            if self._follower is not None:
                self._follower.close()
                self._follower = None
        if log is not None:
            log.close()


def lock_exists(path: Path, place: Place) -> bool:
    """Tell whether the lock at `path` was ever taken."""
    try:
        with Log(path, read_only=True, allow_network=place.allow_network, disk=place.disk) as log:
            return log.next_offset > 0
    except LogNotFound:
        return False


class FileLock:
    """A lock in a directory. Safe from any thread; not reentrant."""

    def __init__(self, core: LockCore, heartbeat: Heartbeat, ttl: Duration) -> None:
        """Raises InvalidArgument."""
        self.name = core.name
        self._core = core
        self._ttl_us = ttl_from(ttl)
        self._blocks: Blocks[FileHeldLock] = Blocks(core.name, heartbeat, ttl_us=self._ttl_us)

    def acquire(self, *, wait: Duration | None = None, owner: str | None = None) -> "FileHeldLock":
        """Take the lock, waiting for it. Raises LockBusy after `wait`."""
        patience = Patience(wait)
        named = checked_owner(owner)
        token = self._core.acquire(ttl_us=self._ttl_us, patience=patience, owner=named)
        return FileHeldLock(self._core, token=token, ttl_us=self._ttl_us)

    def held(self, token: int) -> "FileHeldLock":
        """Return the lock as it was acquired with `token`, asking nobody."""
        return FileHeldLock(self._core, token=checked_token(token), ttl_us=self._ttl_us)

    def holder(self) -> tuple[str, int, float] | None:
        """Return the owner, token and seconds left of who holds it now."""
        return self._core.holder()

    def __enter__(self) -> "FileHeldLock":
        return self._blocks.enter(self.acquire)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. Raises LockLost if it was lost meanwhile, unless another error is under way."""
        self._blocks.leave(error)


class FileHeldLock:
    """A lock that is held. Safe from any thread."""

    def __init__(self, core: LockCore, *, token: int, ttl_us: int) -> None:
        self.name = core.name
        self.token = token
        self._core = core
        self._ttl_us = ttl_us

    @property
    def is_held(self) -> bool:
        """Whether it is still ours, as far as can be told without asking."""
        return self._core.seems_held(self.token)

    def renew(self, *, ttl: Duration | None = None) -> None:
        """Hold it for `ttl` from now. Raises LockLost."""
        self._core.renew(self.token, ttl_us=self._ttl_us if ttl is None else ttl_from(ttl))

    def release(self) -> None:
        """Let go. Raises LockLost if it was not ours any more."""
        self._core.release(self.token)
