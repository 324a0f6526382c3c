"""Pages of what has names, queues or topics: each is looked at in turn, for a while at most."""

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from segue.errors import InvalidArgument

PAGE_SECONDS_MAX: Final = 0.15
"""After so long a page ends with what it has, one at least; the next one goes on from there."""

Row = TypeVar("Row")


class NamedPage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which names to tell of: those behind `after`, in their order."""

    after: str = ""
    limit: int = 50


def page_of(
    names: list[str], asked: NamedPage, limit_max: int, look: Callable[[str], Row | None]
) -> tuple[list[Row], str | None]:
    """Return what `look` finds behind `after`, and the `after` of the next page, if there is one.

    It returns None for what is gone. Raises InvalidArgument.
    """
    if not 1 <= asked.limit <= limit_max:
        raise InvalidArgument(f"limit must be from 1 to {limit_max}: {asked.limit}")
    ends_at = time.monotonic() + PAGE_SECONDS_MAX
    names = sorted(names)
    rows: list[Row] = []
    last = asked.after
    for name in names[bisect_right(names, last) :]:
        if len(rows) == asked.limit or (rows and time.monotonic() >= ends_at):
            return rows, last
        row = look(name)
        last = name
        if row is not None:
            rows.append(row)
    return rows, None
