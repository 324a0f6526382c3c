"""A lock with a name behind a server, and the fencing tokens that come from it."""

from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from segue.errors import LockBusy, LockLost, StoreClosed
from segue.log.options import Duration
from segue.stores.http.calls import Calls, path_of, renewing_seconds
from segue.stores.http.patience import Patience, waited
from segue.stores.http.wire.locks import Acquire, Acquired, Holder, Release, Renew
from segue.stores.lock_blocks import Blocks, checked_owner, checked_token, ttl_from

if TYPE_CHECKING:
    from segue.stores.http.store import HttpStore


PROMPT_SECONDS: Final = 0.1
"""An answer that takes no longer is not late, however short the time of a lock is."""
LOSSES_MAX: Final = 3
"""How often one that was lost before its answer came is asked for again."""


class HttpLock:
    """A lock behind a server. Safe from any thread; not reentrant."""

    def __init__(self, store: "HttpStore", name: str, ttl: Duration) -> None:
        """Touch nothing: the lock exists from its first acquisition on. Raises InvalidArgument."""
        self.name = name
        self._store = store
        self._path = path_of("locks", name)
        self._ttl_us = ttl_from(ttl)
        self._blocks: Blocks[HttpHeldLock] = Blocks(name, store.heartbeat, ttl_us=self._ttl_us)

    def acquire(self, *, wait: Duration | None = None, owner: str | None = None) -> "HttpHeldLock":
        """Take the lock, waiting for it. Raises LockBusy after `wait`."""
        patience = Patience(wait)
        named = checked_owner(owner)
        losses = 0
        while True:
            try:
                held = waited(patience, partial(self._acquired, named))
                self._ensure(held)
                return held
            except LockBusy:
                if patience.is_over:
                    raise
            except LockLost as error:
                losses += 1
                if patience.is_over or losses == LOSSES_MAX:
                    raise self._busy() from error

    def _ensure(self, held: "HttpHeldLock") -> None:
        """Have a lock whose answer came late for its full time. Raises LockLost.

        The answer may have been lost and asked for again: by then somebody else may have it.
        """
        gone = self._ttl_us / 1_000_000 - held.seconds_left
        if gone > PROMPT_SECONDS and held.seconds_left < gone:
            held.renew()

    def _busy(self) -> LockBusy:
        """Return the error for a lock that was lost before we knew that we had it."""
        owner, _, seconds_left = self.holder() or ("", 0, 0.0)
        return LockBusy(name=self.name, owner=owner, seconds_left=seconds_left)

    def _acquired(self, owner: str, step: float) -> "HttpHeldLock":
        # From before it was asked for, and as long as the server waited before it tried: we never
        # think to hold it for longer than the server does.
        begun_us = self.calls.ticks()
        body = Acquire(ttl=self._ttl_us / 1_000_000, wait=step, owner=owner)
        answer = self.calls.post(f"{self._path}/acquire", body, Acquired, wait=step)
        waited_us = 0 if answer.waited is UNSET else int(answer.waited * 1_000_000)
        until_us = begun_us + waited_us + self._ttl_us
        return HttpHeldLock(self, token=answer.token, until_us=until_us)

    def held(self, token: int) -> "HttpHeldLock":
        """Return the lock as it was acquired with `token`, asking nobody."""
        # Held until a moment we do not know, so not known to be before it is renewed.
        return HttpHeldLock(self, token=checked_token(token), until_us=self.calls.ticks())

    def holder(self) -> tuple[str, int, float] | None:
        """Return the owner, token and seconds left of who holds it now."""
        found = self.calls.get_or_none(self._path, Holder)
        return None if found is None else (found.owner, found.token, found.seconds_left)

    def __enter__(self) -> "HttpHeldLock":
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

    @property
    def calls(self) -> Calls:
        """What asks the server. Raises StoreClosed."""
        self._store.require_open()
        return self._store.calls

    def seconds_until(self, until_us: int) -> float:
        """Return how long it is until then, 0 if it is over or the store cannot be asked."""
        try:
            return max(0, until_us - self.calls.ticks()) / 1_000_000
        except StoreClosed:
            return 0.0

    def renew(self, token: int, ttl_us: int | None) -> int:
        """Hold it for who has `token`; return until when. Raises LockLost."""
        begun_us = self.calls.ticks()
        ttl_us = self._ttl_us if ttl_us is None else ttl_us
        ttl = ttl_us / 1_000_000
        self.calls.tell(
            f"{self._path}/renew", Renew(token=token, ttl=ttl), within=renewing_seconds(ttl)
        )
        return begun_us + ttl_us

    def release(self, token: int) -> None:
        """Let go for who has `token`. Raises LockLost."""
        self.calls.tell(f"{self._path}/release", Release(token=token))


class HttpHeldLock:
    """A lock that is held. Safe from any thread."""

    def __init__(self, lock: HttpLock, *, token: int, until_us: int) -> None:
        self.name = lock.name
        self.token = token
        self._lock = lock
        self._until_us = until_us
        self._is_over = False

    @property
    def is_held(self) -> bool:
        """Whether it is still ours, as far as can be told without asking: by our own clock."""
        return not self._is_over and self.seconds_left > 0

    @property
    def seconds_left(self) -> float:
        """For how long it is ours at least, by our own clock."""
        return self._lock.seconds_until(self._until_us)

    def renew(self, *, ttl: Duration | None = None) -> None:
        """Hold it for `ttl` from now. Raises LockLost."""
        ttl_us = None if ttl is None else ttl_from(ttl)
        try:
            self._until_us = self._lock.renew(self.token, ttl_us)
        except LockLost:
            self._is_over = True
            raise

    def release(self) -> None:
        """Let go. Raises LockLost if it was not ours any more."""
        self._is_over = True
        self._lock.release(self.token)
