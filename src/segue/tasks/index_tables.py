"""The tables of the index of tasks, and its transactions."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, cast

from segue.tasks.index_rows import Counted

SCHEMA: Final = 2
"""Which tables these are. An index with others is made anew."""
CACHE_BYTES: Final = 32 << 20
"""How much of the database is kept in memory: what is taken in goes all over it."""

_TABLES: Final = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY, queue TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL,
    attempt INTEGER NOT NULL, pushed_us INTEGER NOT NULL, started_us INTEGER NOT NULL,
    finished_us INTEGER NOT NULL, updated_us INTEGER NOT NULL, due_us INTEGER NOT NULL,
    worker TEXT NOT NULL, error TEXT NOT NULL, traceback TEXT NOT NULL, result BLOB,
    progress BLOB, args BLOB, schedule TEXT NOT NULL, expires_us INTEGER NOT NULL,
    events TEXT NOT NULL, progressed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tasks_by_state ON tasks (state, updated_us);
CREATE INDEX tasks_by_name ON tasks (task, state, updated_us);
CREATE INDEX tasks_by_queue ON tasks (queue, state, updated_us);
CREATE INDEX tasks_by_error ON tasks (state, updated_us) WHERE error <> '';
CREATE INDEX tasks_by_expiry ON tasks (expires_us);
CREATE TABLE counts (
    queue TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (queue, task, state)
) WITHOUT ROWID;
CREATE TABLE place (
    next_offset INTEGER NOT NULL, forgotten_us INTEGER NOT NULL, since_us INTEGER NOT NULL
);
INSERT INTO place VALUES (0, 0, 0);
"""
_COUNT: Final = (
    "INSERT INTO counts VALUES (?,?,?,?) "
    "ON CONFLICT (queue, task, state) DO UPDATE SET count = count + excluded.count"
)


def require_tables(database: sqlite3.Connection) -> None:
    """Have the tables there. Raises DatabaseError if others are."""
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = OFF")  # The events are what must be durable.
    database.execute(f"PRAGMA cache_size = -{CACHE_BYTES >> 10}")
    if _version(database) == SCHEMA:
        return
    with transaction(database):
        if _version(database) == 0:
            for statement in _TABLES.split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA}")
    if _version(database) != SCHEMA:
        raise sqlite3.DatabaseError("of another version")


def _version(database: sqlite3.Connection) -> int:
    return cast("int", database.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Have all that is done happen, or nothing of it; nobody else writes meanwhile."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def add_counts(database: sqlite3.Connection, changes: Mapping[Counted, int]) -> None:
    """Have there be so many more tasks of each queue, name and state, or fewer."""
    database.executemany(_COUNT, ((*counted, count) for counted, count in changes.items()))
