"""The functions that run on the server: what they are called, and their text.

A library's name carries a digest of its text, so that different versions of Segue can use one
server at the same time; each loads its own where it is missing.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Final

from segue.delivery.rules import QueueRules
from segue.stores.portions import PORTION_BYTES_MAX
from segue.values import dataclass

COMMON: Final = "common"
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": (
        "queue/layout",
        "queue/lanes",
        "queue/groups",
        "queue/endings",
        "queue/time",
        "queue/taking",
        "queue/pushing",
        "queue/settling",
        "queue/looking",
        "queue/operating",
        "queue/letters",
        "queue/history",
    ),
    "tables": ("queue/layout", "queue/lanes"),
}
"""Files that come before one of the same name, in this order: each uses what stands before it."""
VERSION_BYTES: Final = 4

_DEFAULTS: Final[Mapping[str, str]] = {
    "@DEFAULT_RULES@": QueueRules().to_json(),
    "@PORTION_BYTES_MAX@": str(PORTION_BYTES_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One file of functions, ready to be loaded."""

    kind: str
    version: str
    code: str

    def function(self, name: str) -> str:
        """Return what one of its functions is called on the server."""
        return f"segue_{self.kind}_{name}_{self.version}"


@cache
def library(kind: str) -> Library:
    """Return the library of `functions/<kind>.lua`, with its parts and what all of them share."""
    text = "".join(map(_read, (COMMON, *PARTS.get(kind, ()), kind)))
    for mark, value in _DEFAULTS.items():
        text = text.replace(mark, value)
    version = blake2b(text.encode(), digest_size=VERSION_BYTES).hexdigest()
    body = text.replace("@KIND@", kind).replace("@VERSION@", version)
    return Library(kind=kind, version=version, code=f"#!lua name=segue_{kind}_{version}\n{body}")


def _read(name: str) -> str:
    return files("segue.stores.redis.functions").joinpath(f"{name}.lua").read_text()
