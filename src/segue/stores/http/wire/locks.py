"""Locks: what is sent to them, and what they answer."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from segue.stores.http.wire.base import Answer, Wire

TTL_SECONDS_DEFAULT: float = 30
"""How long a lock is held, where nothing is said."""
WAITED_SECONDS_MAX: Final = 3_600.0
"""Far longer than any server waits: whoever believed more would hold a lock for ever."""

Token = Annotated[int, Meta(ge=1)]


class Acquire(Wire):
    """Who wants a lock, for how long, and how long they wait for it."""

    ttl: float = TTL_SECONDS_DEFAULT
    wait: float = 0
    owner: str | None = None
    """Without one, it is the name of the token that is asked with."""


class Renew(Wire):
    """A lock that is to be held for longer."""

    token: int
    ttl: float = TTL_SECONDS_DEFAULT


class Release(Wire):
    """A lock to let go of."""

    token: int


class Acquired(Answer):
    """A lock that is held."""

    token: Token
    """Grows with every acquisition, for ever: hand it to what the lock guards."""
    waited: Annotated[float, Meta(ge=0, le=WAITED_SECONDS_MAX)] | UnsetType = UNSET
    """For how many seconds somebody else had it, if that is so: `ttl` is from then on."""


class Holder(Answer):
    """Who holds a lock."""

    owner: str
    token: Token
    seconds_left: float
