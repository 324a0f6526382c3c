"""Locks: taken, kept and let go by their tokens, of which the server remembers nothing."""

from typing import Final

from segue.errors import InvalidArgument, InvalidName, LockBusy, LockLost
from segue.server.call import Call
from segue.server.routing import Role, Route
from segue.stores.contract import HeldLock
from segue.stores.http.wire.about import Names
from segue.stores.http.wire.locks import Acquire, Acquired, Holder, Release, Renew
from segue.stores.lock_blocks import OWNER_CHARACTERS_MAX


def names(call: Call) -> Names:
    """List locks."""
    return Names(names=[name for name in call.store.locks() if call.grant.covers(name)])


def holder(call: Call) -> Holder | None:
    """Tell who holds a lock."""
    found = call.store.lock(call.names[0]).holder()
    if found is None:
        return None
    owner, token, seconds_left = found
    return Holder(owner=owner, token=token, seconds_left=seconds_left)


async def acquire(call: Call) -> Acquired:
    """Take a lock, waiting for it."""
    body = call.body(Acquire)
    owner = call.grant.name[:OWNER_CHARACTERS_MAX] if body.owner is None else body.owner
    ticks = call.desk.sessions.ticks
    tries_us: list[int] = []

    def busy_or_held() -> HeldLock | LockBusy:
        tries_us.append(ticks())
        try:
            return call.store.lock(call.names[0], ttl=body.ttl).acquire(wait=0, owner=owner)
        except LockBusy as error:
            return error

    found = await call.desk.waiting.ask_again(
        call, busy_or_held, body.wait, lambda found: isinstance(found, LockBusy)
    )
    if isinstance(found, LockBusy):
        raise found
    if len(tries_us) == 1:
        return Acquired(token=found.token)
    return Acquired(token=found.token, waited=(tries_us[-1] - tries_us[0]) / 1_000_000)


def renew(call: Call) -> None:
    """Hold a lock for longer."""
    body = call.body(Renew)
    call.store.lock(call.names[0]).held(body.token).renew(ttl=body.ttl)


def release(call: Call) -> None:
    """Let go of a lock."""
    call.store.lock(call.names[0]).held(call.body(Release).token).release()


_LOCK: Final = "/locks/{lock}"
_ASKING: Final = (InvalidArgument, InvalidName)

ROUTES: Final = (
    Route(
        method="GET",
        path="/locks",
        summary="List the locks that were ever taken",
        role=Role.READ,
        about="locks",
        handle=names,
        answer=Names,
    ),
    Route(
        method="GET",
        path=_LOCK,
        summary="Tell who holds a lock; 204 if nobody does",
        role=Role.READ,
        about="locks",
        handle=holder,
        answer=Holder,
        errors=_ASKING,
        statuses=(204,),
    ),
    Route(
        method="POST",
        path=f"{_LOCK}/acquire",
        summary="Take a lock, waiting for it",
        role=Role.CONSUME,
        about="locks",
        handle_async=acquire,
        body=Acquire,
        answer=Acquired,
        errors=(*_ASKING, LockBusy),
    ),
    Route(
        method="POST",
        path=f"{_LOCK}/renew",
        summary="Hold a lock for longer, by its token",
        role=Role.CONSUME,
        about="locks",
        handle=renew,
        body=Renew,
        errors=(*_ASKING, LockLost),
    ),
    Route(
        method="POST",
        path=f"{_LOCK}/release",
        summary="Let go of a lock, by its token",
        role=Role.CONSUME,
        about="locks",
        handle=release,
        body=Release,
        errors=(*_ASKING, LockLost),
    ),
)
