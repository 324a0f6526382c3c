"""What a lock is on every store: who may own it, for how long, and `with` blocks that keep it."""

import logging
import os
import threading
from typing import Final, Generic, Protocol, TypeVar

from segue.errors import InvalidArgument, SegueError
from segue.log.options import Duration, microseconds_from
from segue.stores.contract import HeldLock
from segue.stores.heartbeat import Heartbeat, Pulse

logger = logging.getLogger(__name__)

OWNER_CHARACTERS_MAX: Final = 200
TTL_SECONDS_MIN: Final = 0.001
TTL_SECONDS_MAX: Final = 7 * 86_400.0
TOKEN_MAX: Final = 1 << 53
"""Beyond that no store counts."""

_Held = TypeVar("_Held", bound=HeldLock)
_Held_co = TypeVar("_Held_co", bound=HeldLock, covariant=True)


class _Acquiring(Protocol[_Held_co]):
    def __call__(self, *, wait: Duration | None = None, owner: str | None = None) -> _Held_co: ...


class _Holds(threading.local, Generic[_Held]):
    """What the `with` blocks of each thread hold, innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[_Held, Pulse]] = []


class Blocks(Generic[_Held]):
    """The `with` blocks of one lock. Safe from any thread: each releases what it acquired."""

    def __init__(self, name: str, heartbeat: Heartbeat, *, ttl_us: int) -> None:
        self._name = name
        self._heartbeat = heartbeat
        self._ttl_seconds = ttl_us / 1_000_000
        self._holds: _Holds[_Held] = _Holds()

    def enter(self, acquire: _Acquiring[_Held]) -> _Held:
        """Acquire, and keep it alive until `leave`."""
        held = acquire()
        pulse = self._heartbeat.start(held.renew, self._ttl_seconds)
        self._holds.stack.append((held, pulse))
        return held

    def leave(self, error: BaseException | None) -> None:
        """Release. Raises LockLost if it was lost meanwhile, unless `error` is under way."""
        held, pulse = self._holds.stack.pop()
        pulse.stop()
        try:
            held.release()
        except SegueError as lost:
            if error is None:
                raise
            logger.warning("lock %s: not released reason=%s", self._name, lost)


def ttl_from(ttl: Duration) -> int:
    """Return a time to live as microseconds. Raises InvalidArgument."""
    ttl_us = microseconds_from(ttl, name="ttl")
    if ttl_us is None or not TTL_SECONDS_MIN <= ttl_us / 1_000_000 <= TTL_SECONDS_MAX:
        raise InvalidArgument(
            f"ttl must be from {TTL_SECONDS_MIN:g} to {TTL_SECONDS_MAX:g} seconds: {ttl!r}"
        )
    return ttl_us


def checked_owner(owner: str | None) -> str:
    """Return who acquires a lock: by default host, process and thread. Raises InvalidArgument."""
    if owner is None:
        name = f"{os.uname().nodename}:{os.getpid()}:{threading.current_thread().name}"
        return name[:OWNER_CHARACTERS_MAX]
    text: object = owner  # Callers without a type checker hand in anything.
    if (
        not isinstance(text, str)
        or not 0 < len(text) <= OWNER_CHARACTERS_MAX
        or not text.isprintable()
    ):
        raise InvalidArgument(
            f"an owner is printable text of 1 to {OWNER_CHARACTERS_MAX} characters: {text!r}"
        )
    return text


def checked_token(token: int) -> int:
    """Return what a lock was acquired with. Raises InvalidArgument."""
    if type(token) is not int or not 0 < token < TOKEN_MAX:
        raise InvalidArgument(f"a token is a whole number from 1 on: {token!r}")
    return token
