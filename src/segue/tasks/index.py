"""Records of tasks that can be asked for by state, name, time and error.

An SQLite database derived from the events, and from nothing else: whoever asks first reads the
events that have come since. It may be deleted at any time; it is then made anew.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from segue.clock import Clock
from segue.errors import StorageError
from segue.tasks.events import KEEP_SECONDS_DEFAULT, EventLog, TaskEvent
from segue.tasks.records import TaskRecord
from segue.tasks.states import State

SCHEMA: Final = 1
BATCH_EVENTS: Final = 5_000
BUSY_SECONDS: Final = 30.0
FORGET_EVERY_US: Final = 60_000_000
LIMIT_MAX: Final = 100_000

_TABLES: Final = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY, task TEXT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL,
    pushed_us INTEGER NOT NULL, started_us INTEGER NOT NULL, finished_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL, due_us INTEGER NOT NULL, worker TEXT NOT NULL,
    error TEXT NOT NULL, traceback TEXT NOT NULL, result BLOB, progress BLOB, args BLOB,
    schedule TEXT NOT NULL, expires_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tasks_by_state ON tasks (state, updated_us);
CREATE INDEX tasks_by_name ON tasks (task, updated_us);
CREATE INDEX tasks_by_time ON tasks (updated_us);
CREATE INDEX tasks_by_expiry ON tasks (expires_us);
CREATE TABLE place (next_offset INTEGER NOT NULL, forgotten_us INTEGER NOT NULL);
INSERT INTO place VALUES (0, 0);
"""
_COLUMNS: Final = (
    "id, task, state, attempt, pushed_us, started_us, finished_us, updated_us, due_us, worker, "
    "error, traceback, result, progress, args, schedule"
)
# What an earlier attempt says late does not count: its lease was lost.
_NOTE: Final = f"""
INSERT INTO tasks ({_COLUMNS}, expires_us) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
ON CONFLICT (id) DO UPDATE SET
    task = excluded.task, state = excluded.state, attempt = excluded.attempt,
    pushed_us = CASE excluded.pushed_us WHEN 0 THEN pushed_us ELSE excluded.pushed_us END,
    started_us = excluded.started_us, finished_us = excluded.finished_us,
    updated_us = excluded.updated_us, due_us = excluded.due_us, worker = excluded.worker,
    error = excluded.error, traceback = excluded.traceback, result = excluded.result,
    progress = coalesce(excluded.progress, progress), args = coalesce(excluded.args, args),
    schedule = excluded.schedule, expires_us = excluded.expires_us
WHERE excluded.attempt >= attempt OR excluded.pushed_us > pushed_us
"""
_PROGRESS: Final = "UPDATE tasks SET progress = ?, updated_us = ? WHERE id = ? AND attempt <= ?"
_LOST: Final = (
    "UPDATE tasks SET state = 'retrying', result = NULL, finished_us = 0, updated_us = ? "
    "WHERE id = ? AND attempt = ? AND worker = ?"
)
_KEEP_US: Final = round(KEEP_SECONDS_DEFAULT * 1_000_000)
"""How long what says nothing about it is kept."""
_FINISHED: Final = frozenset({"completed", "dead_letter", "cancelled"})


class TaskIndex:
    """Answers questions about tasks. Safe from any thread; processes may share the file."""

    def __init__(self, log: EventLog, path: Path | None, clock: Clock) -> None:
        """Use the database at `path`; without one, or where it cannot be, one in memory."""
        self._log = log
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None

    # Answers -------------------------------------------------------------------------------

    def get(self, task_id: str) -> TaskRecord | None:
        """Return what the events say of a task, None if there are none or no longer any."""
        found = self._select("WHERE id = ? AND expires_us > ?", (task_id, self._clock()))
        return found[0] if found else None

    def find(
        self,
        *,
        states: Sequence[State] = (),
        task: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        limit: int = 100,
        skip: int = 0,
    ) -> list[TaskRecord]:
        """Return the tasks that fit, those that changed last first."""
        wheres, values = _conditions(states, task, queue, error, since_us, until_us)
        tail = f"WHERE {wheres} AND expires_us > ? ORDER BY updated_us DESC, id LIMIT ? OFFSET ?"
        return self._select(tail, (*values, self._clock(), min(limit, LIMIT_MAX), skip))

    def counts(self) -> dict[tuple[str, State], int]:
        """Return how many tasks of each name are in each state, as far as events say it."""
        rows = self._ask(
            "SELECT task, state, count(*) FROM tasks WHERE expires_us > ? GROUP BY task, state",
            (self._clock(),),
        )
        return {(str(task), State(state)): int(str(count)) for task, state, count in rows}

    def _select(self, tail: str, values: Sequence[object]) -> list[TaskRecord]:
        return [_record(row) for row in self._ask(f"SELECT {_COLUMNS} FROM tasks {tail}", values)]

    def _ask(self, question: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        """Return the rows of an answer, with all events taken in."""
        with self._lock:
            try:
                return self._caught_up().execute(question, values).fetchall()
            except sqlite3.DatabaseError as error:
                # Damaged, or of another version: it holds nothing that the events do not.
                self._drop(error)
            try:
                return self._caught_up().execute(question, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise StorageError(f"the index of tasks cannot be made anew: {error}") from error

    # Following the events ------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take in the events that have come since."""
        self._ask("SELECT 1", ())

    def _caught_up(self) -> sqlite3.Connection:
        database = self._opened()
        self._follow(database)
        return database

    def _follow(self, database: sqlite3.Connection) -> None:
        end = self._log.end()
        start = database.execute("SELECT next_offset FROM place").fetchone()[0]
        if start > end:
            raise sqlite3.DatabaseError("made from other events than there are")
        while start < end:
            start = self._take_in(database, end)
        self._forget(database)

    def _take_in(self, database: sqlite3.Connection, end: int) -> int:
        with _transaction(database):
            # Again, now that nobody else writes: another process may have taken them in.
            start: int = database.execute("SELECT next_offset FROM place").fetchone()[0]
            if start >= end:
                return start
            following = start
            for offset, event in islice(self._log.read(start, end), BATCH_EVENTS):
                _apply(database, event)
                following = offset + 1
            if following == start:
                following = end  # Nothing of it can be read any more.
            database.execute("UPDATE place SET next_offset = ?", (following,))
            return following

    def _forget(self, database: sqlite3.Connection) -> None:
        now_us = self._clock()
        forgotten_us = database.execute("SELECT forgotten_us FROM place").fetchone()[0]
        if 0 <= now_us - forgotten_us < FORGET_EVERY_US:
            return
        with _transaction(database):
            database.execute("DELETE FROM tasks WHERE expires_us <= ?", (now_us,))
            database.execute("UPDATE place SET forgotten_us = ?", (now_us,))

    # The database --------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = self._connect()
            if self._database.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                with _transaction(self._database) as database:
                    if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                        for statement in _TABLES.split(";"):
                            database.execute(statement)
                        database.execute(f"PRAGMA user_version = {SCHEMA}")
                if self._database.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                    raise sqlite3.DatabaseError("of another version")
        return self._database

    def _connect(self) -> sqlite3.Connection:
        name = ":memory:"
        if self._path is not None:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.touch()
                name = str(self._path)
        database = sqlite3.connect(
            name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = OFF")  # The events are what must be durable.
        return database

    def _drop(self, error: sqlite3.DatabaseError) -> None:
        """Have it made anew. Raises StorageError if it is not the index that is wrong."""
        words = str(error)
        if isinstance(error, sqlite3.OperationalError) and any(
            word in words for word in ("locked", "full", "readonly", "unable to open")
        ):
            raise StorageError(f"the index of tasks cannot be used: {error}") from error
        self.close()
        if self._path is not None:
            for suffix in ("", "-wal", "-shm"):
                with suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink()

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                database.close()


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _apply(database: sqlite3.Connection, event: TaskEvent) -> None:
    if event.happened == "progress":
        database.execute(_PROGRESS, (bytes(event.progress), event.at_us, event.id, event.attempt))
        return
    if event.happened == "lost":
        database.execute(_LOST, (event.at_us, event.id, event.attempt, event.worker))
        return
    database.execute(
        _NOTE,
        (
            event.id,
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
        ),
    )


def _conditions(
    states: Sequence[State],
    task: str | None,
    queue: str | None,
    error: str | None,
    since_us: int | None,
    until_us: int | None,
) -> tuple[str, list[object]]:
    wheres: list[str] = []
    values: list[object] = []
    if states:
        wheres.append(f"state IN ({','.join('?' * len(states))})")
        values.extend(state.value for state in states)
    for condition, value in (
        ("task = ?", task),
        ("updated_us >= ?", since_us),
        ("updated_us < ?", until_us),
    ):
        if value is not None:
            wheres.append(condition)
            values.append(value)
    if queue is not None:
        wheres.append("id >= ? AND id < ?")
        values += [f"{queue}/", f"{queue}0"]  # "0" is what comes after "/".
    if error is not None:
        wheres.append("instr(lower(error), lower(?)) > 0")
        values.append(error)
    return " AND ".join(wheres) or "1", values


def _record(row: tuple[object, ...]) -> TaskRecord:
    names = _COLUMNS.split(", ")
    values = dict(zip(names, row, strict=True))
    return TaskRecord(**{**values, "state": State(values["state"])})  # type: ignore[arg-type]
