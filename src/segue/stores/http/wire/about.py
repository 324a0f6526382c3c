"""What a server says of itself, and the lists of what it holds."""

from typing import Final

from segue.stores.http.address import API_PATH
from segue.stores.http.wire.base import Answer

PREFIX: Final = API_PATH
API: Final = 1
"""The version of what goes over the line. It grows with what a client may ask for: one needs a
server of its own version or a later one. What older clients cannot read gets another prefix."""


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
