"""The places of readers and groups in a partition: positions of its log, under their names.

A reader has its own name there, a group has `group.<name>`. So retention, which knows positions
only, protects both.
"""

from collections.abc import Callable, Iterable

from segue.errors import CorruptPosition
from segue.log import Log
from segue.log.layout import Offset
from segue.log.positions import SavedPosition


def names_of(log: Log) -> list[str]:
    """Return the names of all positions of a partition."""
    return log._positions.names()


def all_names(logs: Iterable[Log]) -> list[str]:
    """Return the names of all positions of several partitions, sorted."""
    return sorted({name for log in logs for name in names_of(log)})


def saved(log: Log, name: str) -> Offset | None:
    """Return the place that was saved under `name`. Raises CorruptPosition."""
    position = log._positions.load(name)
    if position is None:
        return None
    # Beyond the end: what was read there was lost with the power, what comes is new.
    return min(position.offset, log.next_offset)


def register(log: Log, name: str, choose: Callable[[], Offset]) -> Offset:
    """Save the place that `choose` returns, and return it.

    It is asked under the lock: what "latest" stood for a moment ago may have been deleted by now.
    """
    with log.writer.locked():
        place = choose()
        _write(log, name, place)
        return place


def save(log: Log, name: str, choose: Callable[[], Offset]) -> None:
    """Save the place that `choose` returns, unless it is the saved one."""
    place = choose()
    try:
        before = log._positions.load(name)
    except CorruptPosition:
        before = None  # What it held is replaced by what is known.
    if before is not None and place == before.offset:
        return
    if before is not None and place > before.offset:
        _write(log, name, place)
        return
    # Going back or coming back: no deletion may come in between.
    register(log, name, choose)


def _write(log: Log, name: str, place: Offset) -> None:
    position = SavedPosition(log._segment_of(place), place)
    log._positions.save(name, position, sync=log._syncs)
