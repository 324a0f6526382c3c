"""What events make of the records of tasks: the rows of the index, before they are written."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from segue.tasks.events import KEEP_SECONDS_DEFAULT, TaskEvent

EVENTS_KEPT_FIRST: Final = 16
EVENTS_KEPT_LAST: Final = 48
"""How many events of a task can be found again: the first ones and the last ones. Progress is not
among them: of that only the last is."""
EVENTS_KEPT: Final = EVENTS_KEPT_FIRST + EVENTS_KEPT_LAST
NO_OFFSET: Final = -1

_DIGITS: Final = 12
"""Of an offset, as text: all have as many, so that some can be cut out of the middle."""
_KEEP_US: Final = round(KEEP_SECONDS_DEFAULT * 1_000_000)
"""How long what says nothing about it is kept."""
_FINISHED: Final = frozenset({"completed", "dead_letter", "cancelled"})

Counted = tuple[str, str, str]
"""What is counted by: the queue, the name and the state of a task."""


class Row(msgspec.Struct):
    """The record of a task as the index has it."""

    id: str
    queue: str
    task: str
    state: str
    attempt: int
    pushed_us: int
    started_us: int
    finished_us: int
    updated_us: int
    due_us: int
    worker: str
    error: str
    traceback: str
    result: bytes | None
    progress: bytes | None
    args: bytes | None
    schedule: str
    expires_us: int
    events: str
    """The offsets of its events, `_DIGITS` each."""
    progressed: int
    """The offset of its last progress."""

    @property
    def counted(self) -> Counted:
        return self.queue, self.task, self.state


COLUMNS: Final = Row.__struct_fields__


class Batch:
    """Records that some events are about: as they were, and as they are then."""

    def __init__(self, rows: Iterable[Row]) -> None:
        """Begin with the rows there are of the tasks that the events are about."""
        self._rows = {row.id: row for row in rows}
        self._before = {row.id: row.counted for row in self._rows.values()}

    def take_in(self, offset: int, event: TaskEvent) -> None:
        """Have an event change what is known of its task."""
        row = applied(self._rows.get(event.id), offset, event)
        if row is not None:
            self._rows[event.id] = row

    def rows(self) -> list[Row]:
        """Return what is to be written, in the order of ids: neighbours cost less to write."""
        return [self._rows[task_id] for task_id in sorted(self._rows)]

    def counts(self) -> Counter[Counted]:
        """Return by how much the numbers of tasks have changed."""
        changed = Counter(row.counted for row in self._rows.values())
        changed.subtract(Counter(self._before.values()))
        return Counter({counted: count for counted, count in changed.items() if count})


def applied(row: Row | None, offset: int, event: TaskEvent) -> Row | None:
    """Return what a record is after an event; None if there is still none."""
    if event.happened == "progress":
        if row is not None and row.attempt <= event.attempt:
            row.progress = bytes(event.progress)
            row.updated_us = event.at_us
            row.progressed = offset
        return row
    if event.happened == "lost":
        if row is not None:
            row.events = _remembered(row.events, offset)
            if (row.attempt, row.worker) == (event.attempt, event.worker):
                row.state, row.result, row.finished_us = "retrying", None, 0
                row.updated_us = event.at_us
        return row
    if row is None:
        return _made_of(offset, event)
    is_anew = event.pushed_us > row.pushed_us
    if event.attempt < row.attempt and not is_anew:
        # What an earlier attempt says late does not count: its lease was lost.
        row.events = _remembered(row.events, offset)
        return row
    return _after(row, _made_of(offset, event), offset, is_anew=is_anew)


def _made_of(offset: int, event: TaskEvent) -> Row:
    return Row(
        event.id,
        event.id.partition("/")[0],
        event.task,
        event.happened,
        event.attempt,
        event.pushed_us,
        event.started_us,
        event.at_us if event.happened in _FINISHED else 0,
        event.at_us,
        event.due_us,
        event.worker,
        event.error,
        event.traceback,
        bytes(event.result) or None,
        bytes(event.progress) or None,
        bytes(event.args) or None,
        event.schedule,
        event.expires_us or event.at_us + _KEEP_US,
        _remembered("", offset),
        NO_OFFSET,
    )


def _after(before: Row, row: Row, offset: int, *, is_anew: bool) -> Row:
    """Have a row keep what its event did not say, unless it is of another life."""
    if is_anew and before.pushed_us:
        return row  # Of a queue that was removed since, and made anew: ids come again.
    row.pushed_us = row.pushed_us or before.pushed_us
    if row.progress is None:
        row.progress = before.progress
    if row.args is None:
        row.args = before.args
    row.events = _remembered(before.events, offset)
    row.progressed = before.progressed
    return row


# Offsets as text -----------------------------------------------------------------------------


def _remembered(events: str, offset: int) -> str:
    events += f"{offset:0{_DIGITS}x}"
    if len(events) <= EVENTS_KEPT * _DIGITS:
        return events
    return events[: EVENTS_KEPT_FIRST * _DIGITS] + events[-EVENTS_KEPT_LAST * _DIGITS :]


def offsets_in(events: str) -> list[int]:
    """Return the offsets that are remembered."""
    return [int(events[place : place + _DIGITS], 16) for place in range(0, len(events), _DIGITS)]
