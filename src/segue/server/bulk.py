"""What all that is read by columns has in common, whatever store it comes from."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from segue.errors import InvalidArgument
from segue.log.horizon import Extent
from segue.stores.http.wire.numbers import whole_number

Kind = Literal["topic", "queue", "dead_letters", "ring"]

LATER: Final = "later"
DEAD: Final = "dead"
EXTENTS_MAX: Final = 2_000
"""In how many parts a strand is told at most."""


class Look(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to look."""

    is_stream: bool = False
    """Whether each message is told where it was pushed, and nowhere else."""
    reader: str | None = None
    """Whose place to tell, of a topic."""


def in_few(extents: Iterable[Extent]) -> list[tuple[int, int, int]]:
    """Return extents, neighbours put together if there are too many."""
    found = [(int(start), int(stop), size_bytes) for start, stop, size_bytes in extents]
    while len(found) > EXTENTS_MAX:
        pairs = [found[place : place + 2] for place in range(0, len(found), 2)]
        found = [(pair[0][0], pair[-1][1], sum(each[2] for each in pair)) for pair in pairs]
    return found


def partition_from(text: str, count: int) -> int:
    """Return the number of a partition. Raises InvalidArgument unless there is one."""
    number = whole_number(text, what="a partition")
    if not 0 <= number < count:
        raise InvalidArgument(f"there is no partition {number}, only {count} of them")
    return number
