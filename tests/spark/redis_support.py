"""Stores on the shared server, each in a namespace of its own."""

import itertools
import os
from typing import Final

from tests.redis_server import shared_server

_numbers: Final = itertools.count()


def fresh_url(*, options: str = "") -> str:
    """Return the URL of a store that nobody has used."""
    return f"{shared_server().url}?namespace=s{os.getpid()}-{next(_numbers)}{options}"


def namespace_of(url: str) -> str:
    """Return what all keys of a store begin with."""
    return url.partition("namespace=")[2].partition("&")[0]
