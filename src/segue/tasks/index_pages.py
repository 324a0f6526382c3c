"""Lists out of the index: page after page, each at the cost of what it shows.

A page goes on behind a key, (updated_us, id), by one of the database's own orders. What no order
leads to, such as a part of an error, is looked for in so many records and no more: the next page
goes on behind those, whether they fit or not.
"""

import heapq
import sqlite3
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Final

from segue.tasks.records import TaskRecord
from segue.tasks.states import State
from segue.values import dataclass

ROWS_LOOKED_MAX: Final = 10_000
"""How many records one page looks at for those that fit."""
QUEUES_MERGED_MAX: Final = 20
"""Records of so many queues are found by queue; of more, by looking at those of all queues."""
STEP_ROWS_MAX: Final = 500
"""How many records are asked for at once: the least that any SQLite takes is 999."""

Key = tuple[int, str]
"""Of a record in a list: when it changed last, and its id. Those with greater keys come first."""

RECORD_COLUMNS: Final = (
    "id, task, state, attempt, pushed_us, started_us, finished_us, updated_us, due_us, worker, "
    "error, traceback, result, progress, args, schedule"
)
_NAMES: Final = RECORD_COLUMNS.split(", ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records a list is of."""

    states: tuple[State, ...] = ()
    """None is all."""
    task: str | None = None
    queues: frozenset[str] | None = None
    error: str | None = None
    """What is somewhere in the error, in capitals or not."""
    since_us: int | None = None
    until_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """An index of the database, and what it is narrowed down to."""

    name: str
    where: str
    values: tuple[object, ...]


def page_of(
    database: sqlite3.Connection,
    wanted: Wanted,
    *,
    now_us: int,
    behind: Key | None,
    limit: int,
    deadline: float,
) -> tuple[list[TaskRecord], Key | None]:
    """Return up to `limit` records, and the key to go on behind; None if that was all."""
    found: list[TaskRecord] = []
    left = ROWS_LOOKED_MAX
    step = min(limit, STEP_ROWS_MAX)
    with closing(_keys(database, wanted, behind)) as keys:
        while looked := list(islice(keys, min(step, left))):
            fitting = [task_id for _, task_id in looked if _is_of(wanted.queues, task_id)]
            records = _records(database, wanted, fitting, now_us)
            found += (records[task_id] for task_id in fitting if task_id in records)
            if len(found) >= limit:
                last = found[limit - 1]
                return found[:limit], (last.updated_us, last.id)
            left -= len(looked)
            if not left or time.monotonic() >= deadline:
                return found, looked[-1]
            step = STEP_ROWS_MAX
    return found, None


def _is_of(queues: Collection[str] | None, task_id: str) -> bool:
    return queues is None or task_id.partition("/")[0] in queues


# Keys ----------------------------------------------------------------------------------------


def _keys(
    database: sqlite3.Connection, wanted: Wanted, behind: Key | None
) -> Generator[Key, None, None]:
    """Yield the keys of a list, the greatest first, as they are asked for."""
    conditions, values = list[str](), list[object]()
    bounds = [behind, None if wanted.until_us is None else (wanted.until_us, "")]
    for bound in sorted(filter(None, bounds))[:1]:
        conditions.append("AND (updated_us, id) < (?, ?)")
        values += bound
    if wanted.since_us is not None:
        conditions.append("AND updated_us >= ?")
        values.append(wanted.since_us)
    cursors = [
        database.execute(
            f"SELECT updated_us, id FROM tasks INDEXED BY {order.name} WHERE {order.where} "
            f"{' '.join(conditions)} ORDER BY updated_us DESC, id DESC",
            (*order.values, *values),
        )
        for order in _orders(wanted)
    ]
    try:
        yield from heapq.merge(*cursors, reverse=True)
    finally:
        for cursor in cursors:  # One that is left open would keep the log before it.
            cursor.close()


def _orders(wanted: Wanted) -> Iterator[_Order]:
    """Yield the orders whose records together are all that may fit."""
    queues = wanted.queues
    for state in wanted.states or State:
        if wanted.error is not None:
            where = "state = ? AND error <> ''"
            yield _Order(name="tasks_by_error", where=where, values=(state.value,))
        elif wanted.task is not None:
            where = "task = ? AND state = ?"
            yield _Order(name="tasks_by_name", where=where, values=(wanted.task, state.value))
        elif queues is not None and len(queues) <= QUEUES_MERGED_MAX:
            where = "queue = ? AND state = ?"
            for queue in queues:
                yield _Order(name="tasks_by_queue", where=where, values=(queue, state.value))
        else:
            yield _Order(name="tasks_by_state", where="state = ?", values=(state.value,))


# Records -------------------------------------------------------------------------------------


def _records(
    database: sqlite3.Connection, wanted: Wanted, ids: Sequence[str], now_us: int
) -> dict[str, TaskRecord]:
    """Return those records that fit and whose time is not over, by id."""
    # With a plus, so that nothing but the ids is looked up in an index.
    conditions, values = ["+expires_us > ?"], list[object]([now_us])
    if wanted.task is not None:
        conditions.append("+task = ?")
        values.append(wanted.task)
    if wanted.error is not None:
        conditions.append("instr(lower(error), lower(?)) > 0")
        values.append(wanted.error)
    return {
        record.id: record
        for record in records_of(database, ids, " AND ".join(conditions), tuple(values))
    }


def records_of(
    database: sqlite3.Connection, ids: Sequence[str], where: str, values: tuple[object, ...]
) -> Iterator[TaskRecord]:
    """Yield the records with these ids of which the condition is true, in any order."""
    for row in rows_with(database, RECORD_COLUMNS, ids, where, values):
        named = dict(zip(_NAMES, row, strict=True))
        yield TaskRecord(**{**named, "state": State(named["state"])})  # type: ignore[arg-type]


def rows_with(
    database: sqlite3.Connection,
    columns: str,
    ids: Sequence[str],
    where: str = "1",
    values: tuple[object, ...] = (),
) -> Iterator[tuple[object, ...]]:
    """Yield columns of the records with these ids of which the condition is true."""
    for first in range(0, len(ids), STEP_ROWS_MAX):
        some = ids[first : first + STEP_ROWS_MAX]
        marks = ",".join("?" * len(some))
        yield from database.execute(
            f"SELECT {columns} FROM tasks WHERE id IN ({marks}) AND {where}", (*some, *values)
        )
