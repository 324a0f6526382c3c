"""Records of tasks that can be asked for by state, name, time and error.

An SQLite database derived from the events, and from nothing else: whoever asks first reads the
events that have come since. It may be deleted at any time; it is then made anew.
"""

import logging
import math
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec

from segue.clock import Clock
from segue.errors import SegueError, StorageError
from segue.tasks.events import EventLog, TaskEvent
from segue.tasks.index_pages import Key, Wanted, page_of, records_of, rows_with
from segue.tasks.index_rows import COLUMNS, EVENTS_KEPT, Batch, Counted, Row, offsets_in
from segue.tasks.index_tables import add_counts, require_tables, transaction
from segue.tasks.records import TaskRecord
from segue.tasks.states import State

logger = logging.getLogger(__name__)

BATCH_EVENTS: Final = 5_000
BATCH_EVENTS_IMPATIENT: Final = 1_000
"""How many events are taken in at once; the latter with a patience, so that nobody waits long."""
BATCH_BYTES_MAX: Final = 16 << 20
"""About how large these are together."""
BUSY_SECONDS: Final = 30.0
BUSY_SECONDS_IMPATIENT: Final = 0.02
"""How long is waited for another process that takes in events; the latter with a patience."""
PAUSE_SECONDS: Final = 0.001
"""Between two batches, so that whoever waits for an answer comes in between."""
LOOK_SECONDS: Final = 0.02
"""How often whoever waits for the thread that goes on looks how far it is."""
FORGET_EVERY_US: Final = 60_000_000
FORGET_ROWS_MAX: Final = 2_000
"""How many records are forgotten at once."""
LIMIT_MAX: Final = 100_000

_WRITE: Final = (
    f"INSERT OR REPLACE INTO tasks ({','.join(COLUMNS)}) VALUES ({','.join('?' * len(COLUMNS))})"
)
_OVER: Final = "SELECT id, queue, task, state FROM tasks WHERE expires_us <= ? LIMIT ?"

T = TypeVar("T")


class TaskIndex:
    """Answers questions about tasks. Safe from any thread; processes may share the file."""

    def __init__(
        self,
        log: EventLog,
        path: Path | None,
        clock: Clock,
        *,
        patience_seconds: float | None = None,
    ) -> None:
        """Use the database at `path`; without one, or where it cannot be, one in memory.

        Whoever asks waits until all events are taken in. With a patience no longer than that: the
        answer is then as of the events so far, `behind` says how many are left, and a thread goes
        on with these.
        """
        self._log = log
        self._path = path
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._is_makeshift = False
        """Whether it is in memory only for as long as there are no events."""
        self._follower: threading.Thread | None = None
        self._is_closed = threading.Event()
        self.behind = 0
        """How many events were still to be taken in when it was asked last."""

    # Answers -------------------------------------------------------------------------------

    def get(self, task_id: str) -> TaskRecord | None:
        """Return what the events say of a task, None if there are none or no longer any."""
        return self.get_many([task_id]).get(task_id)

    def get_many(self, ids: Sequence[str]) -> dict[str, TaskRecord]:
        """Return what the events say of these tasks, by id, as far as there are any."""

        def read(database: sqlite3.Connection) -> dict[str, TaskRecord]:
            found = records_of(database, ids, "+expires_us > ?", (self._clock(),))
            return {record.id: record for record in found}

        return self._ask(read)

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
        """Return the tasks that fit, those that changed last first, however long that takes."""
        wanted = Wanted(
            states=tuple(states),
            task=task,
            queues=None if queue is None else frozenset({queue}),
            error=error,
            since_us=since_us,
            until_us=until_us,
        )
        most = min(limit + skip, LIMIT_MAX)
        found: list[TaskRecord] = []
        behind: Key | None = None
        while len(found) < most:
            page, behind = self.page(wanted, behind=behind, limit=most - len(found))
            found += page
            if behind is None:
                break
        return found[skip:]

    def page(
        self,
        wanted: Wanted,
        *,
        behind: Key | None = None,
        limit: int,
        deadline: float = math.inf,
    ) -> tuple[list[TaskRecord], Key | None]:
        """Return some of the tasks that fit, those that changed last first.

        And the key to go on behind, None at the end. It may be fewer than `limit`, or none, and
        not the end: only so many records are looked at, and none after `deadline`, a time of the
        monotonic clock.
        """
        return self._ask(
            lambda database: page_of(
                database,
                wanted,
                now_us=self._clock(),
                behind=behind,
                limit=limit,
                deadline=deadline,
            )
        )

    def counts(self) -> dict[tuple[str, State], int]:
        """Return how many tasks of each name are in each state, as far as events say it."""
        found: Counter[tuple[str, State]] = Counter()
        for (_, task, state), count in self.counts_by_queue().items():
            found[task, state] += count
        return dict(found)

    def counts_by_queue(self) -> dict[tuple[str, str, State], int]:
        """Return how many tasks of each queue and name are in each state.

        At the cost of how many that are, not of how many tasks there are. A record whose time is
        over counts until it is forgotten, which is within a minute.
        """
        question = "SELECT queue, task, state, count FROM counts WHERE count > 0"
        rows = self._ask(lambda database: database.execute(question).fetchall())
        return {(queue, task, State(state)): count for queue, task, state, count in rows}

    def queues(self) -> list[str]:
        """Return the queues whose tasks are known."""
        question = "SELECT DISTINCT queue FROM counts WHERE count > 0 ORDER BY queue"
        return self._ask(lambda database: [queue for (queue,) in database.execute(question)])

    def offsets_of(self, task_id: str) -> tuple[list[int], bool]:
        """Return where the events of a task are, and whether that are all but for progress.

        Of a task with many of them, the first ones and the last ones; of its progress the last.
        """

        question = "SELECT events, progressed, pushed_us >= since_us FROM tasks, place WHERE id = ?"
        rows = self._ask(lambda database: database.execute(question, (task_id,)).fetchall())
        for events, progressed, is_since in cast("list[tuple[str, int, int]]", rows):
            offsets = offsets_in(events)
            progress = [progressed] if progressed >= 0 else []
            return sorted(offsets + progress), len(offsets) < EVENTS_KEPT and bool(is_since)
        return [], True

    def _ask(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `step` finds, with the events taken in."""
        for _ in range(2):
            try:
                database = self._caught_up()
                with self._lock:
                    if self._database is database:
                        return step(database)
            except sqlite3.DatabaseError as error:
                # Damaged, or of another version: it holds nothing that the events do not.
                self._drop(error)
        try:
            with self._lock:
                return step(self._caught_up())
        except sqlite3.DatabaseError as error:
            raise StorageError(f"the index of tasks cannot be made anew: {error}") from error

    # Following the events ------------------------------------------------------------------

    def catch_up(self, patience_seconds: float | None = None) -> int:
        """Take in the events that have come since; return how many are left after so long."""
        end = self._log.end()
        deadline = time.monotonic() + (patience_seconds or 0)
        while True:
            left = self._ask(lambda database: self._left(database, end))
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(LOOK_SECONDS)

    def _caught_up(self) -> sqlite3.Connection:
        """Take in the events that are there now: those that come meanwhile may never end."""
        end = self._log.end()
        patience = self._patience_seconds
        deadline = math.inf if patience is None else time.monotonic() + patience
        while True:
            with self._lock:
                database = self._opened()
                is_all = self._advance(database, end)
            if is_all:
                return database
            if self._follower or time.monotonic() >= deadline:
                break
            time.sleep(PAUSE_SECONDS)
        self._have_followed()
        return database

    def _left(self, database: sqlite3.Connection, end: int) -> int:
        """Return how many events before `end` are still to be taken in."""
        start: int = database.execute("SELECT next_offset FROM place").fetchone()[0]
        if start > end and start > self._log.end():
            raise sqlite3.DatabaseError("made from other events than there are")
        return max(0, end - start)

    def _advance(self, database: sqlite3.Connection, end: int) -> bool:
        """Take in some events before `end`, or forget some records; tell whether that was all."""
        self.behind = self._left(database, end)
        is_others = self._follower not in (None, threading.current_thread())
        if is_others and self.behind > BATCH_EVENTS_IMPATIENT:
            return False  # Whoever goes on with it is at it.
        try:
            if self.behind:
                self._take_in(database, end)
                self.behind = self._left(database, end)
            return not self.behind and self._forget(database)
        except sqlite3.OperationalError as error:
            if self._patience_seconds is None or "locked" not in str(error):
                raise
            return False  # Another process takes them in.

    def _take_in(self, database: sqlite3.Connection, end: int) -> None:
        with transaction(database):
            # Again, now that nobody else writes: another process may have taken them in.
            start: int = database.execute("SELECT next_offset FROM place").fetchone()[0]
            if start >= end:
                return
            most = BATCH_EVENTS if self._patience_seconds is None else BATCH_EVENTS_IMPATIENT
            events = list(_some(self._log.read(start, end), most))
            batch = Batch(_rows(database, {event.id for _, event in events}))
            for offset, event in events:
                batch.take_in(offset, event)
            database.executemany(_WRITE, map(_values, batch.rows()))
            add_counts(database, batch.counts())
            # Without any, nothing of it can be read any more.
            following = events[-1][0] + 1 if events else end
            database.execute("UPDATE place SET next_offset = ?", (following,))
            if self._log.earliest() > start:
                since_us = events[0][1].at_us if events else self._clock()
                database.execute("UPDATE place SET since_us = ?", (since_us,))

    def _forget(self, database: sqlite3.Connection) -> bool:
        """Forget some records whose time is over, now and then; tell whether that was all."""
        now_us = self._clock()
        forgotten_us = database.execute("SELECT forgotten_us FROM place").fetchone()[0]
        if 0 <= now_us - forgotten_us < FORGET_EVERY_US:
            return True
        with transaction(database):
            over = database.execute(_OVER, (now_us, FORGET_ROWS_MAX)).fetchall()
            database.executemany("DELETE FROM tasks WHERE id = ?", ((row[0],) for row in over))
            gone = Counter[Counted](row[1:] for row in over)
            add_counts(database, {counted: -count for counted, count in gone.items()})
            if len(over) == FORGET_ROWS_MAX:
                return False
            database.execute("DELETE FROM counts WHERE count <= 0")
            database.execute("UPDATE place SET forgotten_us = ?", (now_us,))
            return True

    def _have_followed(self) -> None:
        """Have a thread go on with what is left."""
        with self._lock:
            if self._follower is None:
                self._is_closed.clear()
                self._follower = threading.Thread(
                    target=self._go_on, name="segue-task-index", daemon=True
                )
                self._follower.start()

    def _go_on(self) -> None:
        try:
            while not self._is_closed.wait(PAUSE_SECONDS):
                with self._lock:
                    if self._advance(self._opened(), self._log.end()):
                        return
        except (SegueError, sqlite3.Error) as error:
            # Whoever asks next meets it again, and deals with it.
            logger.warning("events not taken in path=%s reason=%s", self._path, error)
        finally:
            with self._lock:
                self._follower = None

    # The database --------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if self._is_makeshift and self._log.end():
            self._let_go()
        if self._database is None:
            database = self._connect()
            try:
                require_tables(database)
                if self._patience_seconds is not None:
                    milliseconds = round(BUSY_SECONDS_IMPATIENT * 1000)
                    database.execute(f"PRAGMA busy_timeout = {milliseconds}")
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database

    def _connect(self) -> sqlite3.Connection:
        name = ":memory:"
        # Looking at a store without tasks makes nothing in it.
        self._is_makeshift = self._path is not None and not (self._log.end() or self._path.exists())
        if self._path is not None and not self._is_makeshift:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.touch()
                name = str(self._path)
        return sqlite3.connect(
            name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    def _drop(self, error: sqlite3.DatabaseError) -> None:
        """Have it made anew. Raises StorageError if it is not the index that is wrong."""
        words = str(error)
        if isinstance(error, sqlite3.OperationalError) and any(
            word in words for word in ("locked", "full", "readonly", "unable to open")
        ):
            raise StorageError(f"the index of tasks cannot be used: {error}") from error
        with self._lock:
            self._let_go()
            if self._path is not None:
                for suffix in ("", "-wal", "-shm"):
                    with suppress(OSError):
                        self._path.with_name(self._path.name + suffix).unlink()

    def close(self) -> None:
        """Let go of the database."""
        self._is_closed.set()
        follower = self._follower
        if follower is not None:
            follower.join()
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        database, self._database = self._database, None
        self._is_makeshift = False
        if database is not None:
            database.close()


def _some(events: Iterator[tuple[int, TaskEvent]], most: int) -> Iterator[tuple[int, TaskEvent]]:
    """Yield what is taken in at once: one event at least."""
    left_bytes = BATCH_BYTES_MAX
    for offset, event in islice(events, most):
        yield offset, event
        left_bytes -= len(event.traceback) + len(bytes(event.result))
        if left_bytes <= 0:
            return


def _rows(database: sqlite3.Connection, ids: set[str]) -> Iterator[Row]:
    for row in rows_with(database, ",".join(COLUMNS), sorted(ids)):
        yield Row(*row)  # type: ignore[arg-type]


def _values(row: Row) -> tuple[object, ...]:
    return msgspec.structs.astuple(row)
