"""What a server says of itself, and the lists of what it holds."""

from typing import Final

from segue.stores.http.wire.base import Answer

PREFIX: Final = "/api/v1"
"""What stands before every path but those of the seed."""
API: Final = 1
"""The version of what goes over the line. It grows when an older client would go wrong."""


class About(Answer):
    """Who answers."""

    server: str
    version: str
    api: int
    store: str
    """What kind of store is behind it."""
    durable: str
    """When what was acknowledged has reached the device: always, interval, os, or redis."""


class Names(Answer):
    """Names of things there are."""

    names: list[str]
