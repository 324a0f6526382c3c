"""The lock itself: one small log per name, and the fencing tokens that come from it.

Every acquisition is synced before it returns, whatever the store's sync: a token that a power cut
takes back could be given twice.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
    LogClosed,
    LogNotFound,
    OffsetTrimmed,
    SegueError,
    StorageError,
    StoreClosed,
)
from segue.log import Log
from segue.stores.file.place import Place
from segue.stores.file.turns import Follower, Patience, Turn, turn_on, wait_for
from segue.stores.forking import in_every_child

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 256 * 1024
LOOKS_MAX: Final = 8
"""How often a look starts over because others trim what it is about to read."""
OPEN_MAX: Final = 64
"""How many locks have their files open that nobody is at: each takes eight descriptors."""
AWAITED_MAX: Final = 256
"""How many have, if somebody was refused them of late."""
AWAITED_SECONDS: Final = 1.0
"""How soon one who was refused asks again, if at all: to open the files costs more than a look."""


class OpenLocks:
    """The locks of a store whose files are open, the one used last at the end.

    Safe from any thread. Beyond `count_max` the files of those are closed that were used longest
    ago and that nobody is at, those that are asked for again and again last; with None none are.
    """

    def __init__(self, count_max: int | None) -> None:
        self._count_max = count_max
        self.begin()
        in_every_child(self)

    def begin(self) -> None:
        """Have none: after a fork those that are open are the parent's."""
        self._mutex = threading.Lock()
        self._cores: dict[LockCore, None] = {}

    def note(self, core: "LockCore") -> None:
        """Keep `core`, which somebody is at, in memory for as long as its files are open."""
        with self._mutex:
            self._cores.pop(core, None)
            self._cores[core] = None

    def let_go(self) -> None:
        """Close the files of those beyond the limit. The caller holds no lock of any of them."""
        count_max = self._count_max
        if count_max is None or len(self._cores) <= count_max:
            return
        with self._mutex:
            count = len(self._cores)
            idle = [core for core in self._cores if core.is_idle]
            found = [core for core in idle if not core.is_awaited][: max(0, count - count_max)]
            if count - len(found) > AWAITED_MAX:
                found = idle[: count - AWAITED_MAX]
            for core in found:
                # Whoever begins to use it now counts itself first, and then puts it back here.
                del self._cores[core]
        for core in found:
            core.let_go()


class LockCore:
    """The lock itself, for all handles of a process. Safe from any thread.

    Its files may be closed whenever nobody is at it, and are opened anew by the next who is: all
    that is known of it comes from them.
    """

    def __init__(self, name: str, path: Path, place: Place, opened: OpenLocks) -> None:
        """Touch nothing: the lock exists from its first acquisition on."""
        self.name = name
        self.place = place
        self.boot = place.disk.boot_id()
        self._path = path
        self._opened_locks = opened
        self._opened_in: int | None = None
        """The process that has had the files open."""
        self._counting = threading.Lock()
        self._users = 0
        self._awaited_until = 0.0
        self._lock = threading.RLock()
        self._log: Log | None = None
        self._follower: Follower | None = None
        self._state = LockState()
        self._trimmed_to: int | None = None
        self._closed = False

    # Being at it ---------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nobody here calls, waits, or is in a `with` block."""
        return not self._users

    @property
    def is_awaited(self) -> bool:
        """Whether somebody was refused it a moment ago, and may come again any moment."""
        return time.monotonic() < self._awaited_until

    def come(self) -> None:
        """Have the files stay open, once they are, until `leave` is called as often."""
        with self._counting:
            self._users += 1
        self._opened_locks.note(self)

    def leave(self) -> None:
        """Take back one `come`."""
        with self._counting:
            self._users -= 1

    @contextmanager
    def _using(self) -> Iterator[Log]:
        """Yield the log, made if need be, which stays open for the length of the block."""
        self._require_open()
        self.come()
        try:
            yield self._opened()
        finally:
            self.leave()
            self._opened_locks.let_go()

    def _opened(self) -> Log:
        """Return the log, for who is at it."""
        with self._lock:
            self._require_open()
            if self._log is None:
                self._opened_in = os.getpid()
                # "interval" also where the store says "os", which does not keep the names of new
                # files; acquisitions are synced besides.
                self._log = self.place.log(self._path, sync="interval", segment_bytes=SEGMENT_BYTES)
            return self._log

    def let_go(self) -> None:
        """Close the files, unless somebody is at it. What was seen last stays known."""
        with self._lock:
            # Whoever comes after this look finds the files closed, and opens them.
            if self._users or self._closed:
                return
            log = self._taken_out()
            try:
                if log is not None:
                    log.close()
            except SegueError as error:
                # Whoever comes next reads what is there; nobody waits for this.
                logger.warning("lock %s: not closed in order reason=%s", self.name, error)

    def _taken_out(self) -> Log | None:
        """Return the log, which is to be closed."""
        log, self._log = self._log, None
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()
        return log

    # Looking -------------------------------------------------------------------------------

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
            state = self._state
            try:
                if follower is None:
                    state = LockState()
                    follower = Follower(log)
                for record in follower.records():
                    state.apply(
                        decode_event(record.payload), offset=record.offset, attr=record.attr
                    )
                state.pass_over(follower.missed)
                # Only now: a look that was interrupted must start over, and what was known before
                # the files were closed is known until all of them is read again.
                self._state = state
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
        if not self._exists():
            return None
        with self._using(), self._seeing() as state:
            held = state.holder(now_us=self.place.ticks(), boot=self.boot)
            return None if held is None else (held.owner, held.token, self._seconds_left(held))

    def _exists(self) -> bool:
        """Tell whether the lock was ever taken, making nothing."""
        return self._log is not None or lock_exists(self._path, self.place)

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
        with self._using() as log:
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
                        return token
                    since = log.next_offset
                self._wait(log, held, patience, since)

    def _wait(self, log: Log, held: Acquired, patience: Patience, since: int) -> None:
        def has_changed() -> bool:
            return (
                self._closed or log.next_offset != since or self.place.ticks() >= held.deadline_us
            )

        seconds_left = self._seconds_left(held)
        if not wait_for(log, patience, has_changed, seconds_max=seconds_left):
            self._awaited_until = time.monotonic() + AWAITED_SECONDS
            raise LockBusy(name=self.name, owner=held.owner, seconds_left=seconds_left)
        self._require_open()

    def renew(self, token: int, *, ttl_us: int) -> None:
        """Hold the lock for `ttl_us` from now. Raises LockLost."""
        with self._holding(token) as turn:
            deadline_us = self.place.ticks() + ttl_us
            turn.put(encode_event(Renewed(token=token, deadline_us=deadline_us)))

    def release(self, token: int) -> None:
        """Let go. Raises LockLost."""
        with self._holding(token) as turn:
            turn.put(encode_event(Released(token=token)))

    @contextmanager
    def _holding(self, token: int) -> Iterator[Turn]:
        """Have a turn in which the lock is held with `token`. Raises LockLost."""
        self._require_open()
        if not self._exists():
            # Said before anything is opened: by a name that nobody ever took nothing is made.
            self._require_held(LockState(), token)
        with self._using(), self._turn() as turn:
            with self._seeing() as state:
                self._require_held(state, token)
            self._write_snapshot(turn)
            yield turn

    def _require_held(self, state: LockState, token: int) -> None:
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
        if self._closed:
            raise StoreClosed(f"lock {self.name} is closed")
        if self._opened_in not in (None, os.getpid()):
            raise LogClosed("opened before a fork: open the store again in the child")

    def close(self) -> None:
        """Let go of the files, not of the lock. Closing twice is allowed."""
        with self._lock:
            self._closed = True
            log = self._taken_out()
        if log is not None:
            log.close()


def lock_exists(path: Path, place: Place) -> bool:
    """Tell whether the lock at `path` was ever taken."""
    try:
        with Log(path, read_only=True, allow_network=place.allow_network, disk=place.disk) as log:
            return log.next_offset > 0
    except LogNotFound:
        return False
