"""The lock as its callers see it: arguments checked, `with` blocks that keep it."""

from types import TracebackType

from segue.log.options import Duration
from segue.stores.file.lock_core import LockCore
from segue.stores.file.turns import Patience
from segue.stores.heartbeat import Heartbeat
from segue.stores.lock_blocks import Blocks, checked_owner, checked_token, ttl_from


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
        held = self._blocks.enter(self.acquire)
        self._core.come()  # It is about to be renewed, again and again.
        return held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release. Raises LockLost if it was lost meanwhile, unless another error is under way."""
        try:
            self._blocks.leave(error)
        finally:
            self._core.leave()


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
