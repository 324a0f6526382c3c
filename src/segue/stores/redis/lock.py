"""A lock with a name on the server, and the fencing tokens that come from it."""

from types import TracebackType
from typing import TYPE_CHECKING, Final, cast

from segue.errors import LockBusy, LockLost, StoreClosed
from segue.log.options import Duration
from segue.stores.lock_blocks import Blocks, checked_owner, checked_token, ttl_from
from segue.stores.redis.calls import Refusal
from segue.stores.redis.libraries import library
from segue.stores.redis.waiting import Patience

if TYPE_CHECKING:
    from segue.stores.redis.store import RedisStore


RENEWING_SHARE: Final = 6
"""Which part of its length a renewal may take: half the time between two beats."""


class RedisLock:
    """A lock on a server. Safe from any thread; not reentrant."""

    def __init__(self, store: "RedisStore", name: str, ttl: Duration) -> None:
        """Touch nothing: the lock exists from its first acquisition on. Raises InvalidArgument."""
        self.name = name
        self._store = store
        self._base = store.base("lock", name)
        self._functions = library("lock")
        self._ttl_us = ttl_from(ttl)
        self._blocks: Blocks[RedisHeldLock] = Blocks(name, store.heartbeat, ttl_us=self._ttl_us)

    def acquire(self, *, wait: Duration | None = None, owner: str | None = None) -> "RedisHeldLock":
        """Take the lock, waiting for it. Raises LockBusy after `wait`."""
        calls = self._store.calls
        patience = Patience(calls, self._base, wait)
        named = checked_owner(owner)
        self._store.register("lock", self.name)
        while True:
            # From before it was asked for: we never think to hold it for longer than the server.
            begun_us = calls.ticks()
            words = (named, self._ttl_us, patience.waiter, patience.step_us)
            answer = calls.change(self._functions, "acquire", self._base, *words)
            is_ours, *rest = cast("list[object]", answer)
            if is_ours:
                (token,) = cast("list[int]", rest)
                return RedisHeldLock(self, token=token, until_us=begun_us + self._ttl_us)
            holder, left_us = cast("tuple[bytes, int]", rest)
            seconds_left = left_us / 1_000_000
            if patience.is_over:
                raise LockBusy(name=self.name, owner=holder.decode(), seconds_left=seconds_left)
            patience.wait(seconds_left)

    def held(self, token: int) -> "RedisHeldLock":
        """Return the lock as it was acquired with `token`, asking nobody."""
        # Held until a moment we do not know, so not known to be before it is renewed.
        return RedisHeldLock(self, token=checked_token(token), until_us=self.ticks())

    def holder(self) -> tuple[str, int, float] | None:
        """Return the owner, token and seconds left of who holds it now."""
        found = self._store.calls.look(self._functions, "holder", self._base)
        if not found:
            return None
        owner, token, left_us = cast("tuple[bytes, int, int]", found)
        return owner.decode(), token, left_us / 1_000_000

    def __enter__(self) -> "RedisHeldLock":
        return self._blocks.enter(self.acquire)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. Raises LockLost if it was lost meanwhile, unless another error is under way."""
        self._blocks.leave(error)

    # For what is held ------------------------------------------------------------------------

    def ticks(self) -> int:
        """Return ticks here, in microseconds."""
        return self._store.calls.ticks()

    def is_open(self) -> bool:
        """Tell whether the store can still be asked."""
        try:
            self._store.base("lock", self.name)
        except StoreClosed:
            return False
        return True

    def settle(self, function: str, token: int, ttl_us: int | None = None) -> int:
        """Renew or release for who has `token`; return until when it is held. Raises LockLost."""
        begun_us = self.ticks()
        ttl_us = self._ttl_us if ttl_us is None else ttl_us
        try:
            self._store.calls.change(
                self._functions,
                *(function, self._base, token, ttl_us),
                # Another beat comes, and others wait for this one to end.
                retry=ttl_us / RENEWING_SHARE / 1_000_000 if function == "renew" else None,
            )
        except Refusal as refusal:
            reason = " ".join(refusal.words)
            raise LockLost(name=self.name, token=token, reason=reason) from None
        return begun_us + ttl_us


class RedisHeldLock:
    """A lock that is held. Safe from any thread."""

    def __init__(self, lock: RedisLock, *, token: int, until_us: int) -> None:
        self.name = lock.name
        self.token = token
        self._lock = lock
        self._until_us = until_us
        self._is_over = False

    @property
    def is_held(self) -> bool:
        """Whether it is still ours, as far as can be told without asking.

        By our own clock: a server that fails without a copy of its last changes is not noticed.
        """
        return not self._is_over and self._lock.ticks() < self._until_us and self._lock.is_open()

    def renew(self, *, ttl: Duration | None = None) -> None:
        """Hold it for `ttl` from now. Raises LockLost."""
        ttl_us = None if ttl is None else ttl_from(ttl)
        try:
            self._until_us = self._lock.settle("renew", self.token, ttl_us)
        except LockLost:
            self._is_over = True
            raise

    def release(self) -> None:
        """Let go. Raises LockLost if it was not ours any more."""
        self._is_over = True
        self._lock.settle("release", self.token)


def lock_exists(store: "RedisStore", name: str) -> bool:
    """Tell whether the lock was ever taken."""
    key = f"{store.base('lock', name)}:lock"
    return bool(store.calls.command(key, "EXISTS", key))
