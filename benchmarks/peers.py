"""The peers: databases and queue libraries with the same few methods, each at its best.

Strings and rows are made while preparing, never while timed. A peer is imported when it is opened,
so a missing package is one contestant less.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from benchmarks.databases import Lmdb, Sqlite
from benchmarks.lineup import Appending, Entry
from benchmarks.race import Job, NotRun

CACHE_BYTES_MAX: Final = 32 * 1024**3


class PersistQueueSqlite:
    """persist-queue's SQLiteQueue; its own setting would sync each commit, so synchronous=OFF."""

    def __init__(self, path: Path) -> None:
        from persistqueue import SQLiteQueue

        self._queue = SQLiteQueue(str(path), auto_commit=True)
        self._connection = cast("sqlite3.Connection", self._queue._putter)
        self._connection.execute("PRAGMA synchronous = OFF")

    def singles(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._queue.put, payloads)

    def preload(self, batch: list[bytes], count: int) -> None:
        rows = [(self._queue._serializer.dumps(payload), 0.0) for payload in batch]
        with self._connection as connection:
            for _ in range(count // len(rows)):
                connection.executemany(self._queue._sql_insert, rows)

    def close(self) -> None:
        self._queue.close()


class PersistQueueFile:
    """persist-queue's file Queue, with larger chunks than usual: fewer files and fewer syncs."""

    def __init__(self, path: Path) -> None:
        from persistqueue import Queue

        path.mkdir()
        self._queue = Queue(str(path), tempdir=str(path), chunksize=1000)

    def singles(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._queue.put, payloads)

    def preload(self, batch: list[bytes], count: int) -> None:
        raise NotRun("no batches, and a million puts take minutes")

    def close(self) -> None:
        self._queue.headf.close()
        self._queue.tailf.close()


class LiteQueue:
    """litequeue, which takes strings; synchronous=OFF instead of its own NORMAL."""

    def __init__(self, path: Path) -> None:
        import litequeue

        path.mkdir()
        self._queue = litequeue.LiteQueue(str(path / "queue.sqlite"))
        self._queue.conn.execute("PRAGMA synchronous = OFF")

    def singles(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._queue.put, [_text(payload) for payload in payloads])

    def preload(self, batch: list[bytes], count: int) -> None:
        job = self.singles(batch)
        for _ in range(count // len(batch)):
            with self._queue.transaction():
                job()

    def close(self) -> None:
        self._queue.close()


class Huey:
    """huey's SqliteStorage with fsync=False."""

    def __init__(self, path: Path) -> None:
        from huey.storage import SqliteStorage

        path.mkdir()
        self._storage = SqliteStorage("bench", str(path / "huey.sqlite"), fsync=False)

    def singles(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._storage.enqueue, payloads)

    def preload(self, batch: list[bytes], count: int) -> None:
        insert = "INSERT INTO task (queue, data, priority) VALUES (?, ?, 0)"
        rows = [(self._storage.name, payload) for payload in batch]
        for _ in range(count // len(rows)):
            with self._storage.db(commit=True) as cursor:
                cursor.executemany(insert, rows)

    def close(self) -> None:
        self._storage.close()


class DiskcacheDeque:
    """diskcache.Deque on a cache with sqlite_synchronous=0 and no eviction."""

    def __init__(self, path: Path) -> None:
        import diskcache

        self._cache = diskcache.Cache(
            str(path), sqlite_synchronous=0, eviction_policy="none", size_limit=CACHE_BYTES_MAX
        )
        self._deque = diskcache.Deque.fromcache(self._cache)

    def singles(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._deque.append, payloads)

    def preload(self, batch: list[bytes], count: int) -> None:
        raise NotRun("a million appends take half a minute even in one transaction")

    def close(self) -> None:
        self._cache.close()


LMDB_NOSYNC: Final = "LMDB nosync writemap"
UNSYNCED_PEERS: Final[tuple[Entry[Appending], ...]] = (
    Entry(
        name=LMDB_NOSYNC,
        open=lambda path: Lmdb(path, durable=False),
        how="one put(append=True) per transaction, map_async",
    ),
    Entry(
        name="SQLite WAL OFF",
        open=lambda path: Sqlite(path, durable=False),
        how="one INSERT per transaction, locking_mode=EXCLUSIVE",
    ),
    Entry(name="huey SqliteStorage", open=Huey, how="enqueue, fsync=False"),
    Entry(name="persist-queue SQLite", open=PersistQueueSqlite, how="put, synchronous=OFF"),
    Entry(name="litequeue", open=LiteQueue, how="put of a string, synchronous=OFF"),
    Entry(name="diskcache.Deque", open=DiskcacheDeque, how="append, sqlite_synchronous=0"),
    Entry(name="persist-queue file", open=PersistQueueFile, how="put, chunksize=1000"),
)


def _each(put: Callable[..., object], items: Sequence[object]) -> Job:
    def job() -> None:
        for item in items:
            put(item)

    return job


def _text(payload: bytes) -> str:
    """Return a string that takes as many bytes in the database as `payload`."""
    return payload.hex()[: len(payload)]
