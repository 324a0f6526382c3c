"""Queues as contestants: Segue, queue libraries, and what one would build on a database.

Each pushes, and takes and settles, one by one and by the hundred. `durable` is each one's own way
to be safe from a power cut. A library without leases takes messages for good, which is less work.
"""

import sqlite3
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from benchmarks.databases import MAP_BYTES
from benchmarks.race import Job, NotRun
from benchmarks.stores import require_all
from segue.stores.opening import open_directory

BATCH_MESSAGES: Final = 100
LEASE_US: Final = 30_000_000


class Queueing(Protocol):
    """What every contestant can do. Those that have no batches raise NotRun."""

    def push(self, payloads: Sequence[bytes]) -> Job: ...

    def push_batches(self, batch: list[bytes], count: int) -> Job: ...

    def pairs(self, count: int) -> Job:
        """Return the job that takes and settles `count` messages one by one."""
        ...

    def pair_batches(self, count: int) -> Job:
        """Return the job that takes and settles a hundred messages, `count` times."""
        ...

    def preload(self, batch: list[bytes], count: int) -> None: ...

    def close(self) -> None: ...


class SegueQueue:
    """A queue of a Segue store."""

    def __init__(self, path: Path, *, durable: bool, exclusive: bool) -> None:
        self._store = open_directory(path, sync="always" if durable else "os", exclusive=exclusive)
        self._queue = self._store.queue("bench")

    def push(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._queue.push, payloads)

    def push_batches(self, batch: list[bytes], count: int) -> Job:
        return _each(self._queue.push_many, [batch] * count)

    def pairs(self, count: int) -> Job:
        queue = self._queue

        def job() -> None:
            for _ in range(count):
                queue.ack(queue.lease())

        return job

    def pair_batches(self, count: int) -> Job:
        queue = self._queue

        def job() -> None:
            for _ in range(count):
                jobs = queue.lease_many(BATCH_MESSAGES)
                queue.ack_many(jobs)
                require_all(len(jobs), BATCH_MESSAGES)

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        for _ in range(count // len(batch)):
            self._queue.push_many(batch)

    def close(self) -> None:
        self._store.close()


class SqliteQueue:
    """A table: leasing stamps the first unstamped row, acking deletes it."""

    _INSERT: Final = "INSERT INTO queue (payload) VALUES (?)"
    _LEASE: Final = (
        "UPDATE queue SET until = ? WHERE id IN"
        " (SELECT id FROM queue WHERE until IS NULL ORDER BY id LIMIT ?) RETURNING id, payload"
    )

    def __init__(self, path: Path, *, durable: bool) -> None:
        path.mkdir()
        self._connection = sqlite3.connect(path / "queue.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA locking_mode = EXCLUSIVE",
            "PRAGMA journal_mode = WAL",
            f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}",
            "CREATE TABLE queue (id INTEGER PRIMARY KEY, payload BLOB NOT NULL, until INTEGER)",
            "CREATE INDEX waiting ON queue (id) WHERE until IS NULL",
        ):
            self._connection.execute(statement)

    def push(self, payloads: Sequence[bytes]) -> Job:
        execute, insert = self._connection.execute, self._INSERT
        return _each(lambda row: execute(insert, row), [(payload,) for payload in payloads])

    def push_batches(self, batch: list[bytes], count: int) -> Job:
        return _each(self._insert_many, [[(payload,) for payload in batch]] * count)

    def _insert_many(self, rows: list[tuple[bytes]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(self._INSERT, rows)
        self._connection.execute("COMMIT")

    def pairs(self, count: int) -> Job:
        execute, lease = self._connection.execute, self._LEASE

        def job() -> None:
            for _ in range(count):
                ((number, _),) = execute(lease, (time.time_ns(), 1)).fetchall()
                execute("DELETE FROM queue WHERE id = ?", (number,))

        return job

    def pair_batches(self, count: int) -> Job:
        connection, lease = self._connection, self._LEASE

        def job() -> None:
            for _ in range(count):
                rows = connection.execute(lease, (time.time_ns(), BATCH_MESSAGES)).fetchall()
                connection.execute("BEGIN")
                connection.executemany(
                    "DELETE FROM queue WHERE id = ?", [(number,) for number, _ in rows]
                )
                connection.execute("COMMIT")
                require_all(len(rows), BATCH_MESSAGES)

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        self.push_batches(batch, count // len(batch))()

    def close(self) -> None:
        self._connection.close()


class LmdbQueue:
    """Two tables: leasing moves the first pair from one to the other, acking deletes it there."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        import lmdb

        self._env = lmdb.open(
            str(path),
            max_dbs=2,
            map_size=MAP_BYTES,
            sync=durable,
            metasync=durable,
            writemap=not durable,
            map_async=not durable,
        )
        self._waiting = self._env.open_db(b"waiting")
        self._leased = self._env.open_db(b"leased")
        self._next = 0

    def _items(self, payloads: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        first = self._next
        self._next += len(payloads)
        numbers = range(first, self._next)
        return [(_pack(number), payload) for number, payload in zip(numbers, payloads, strict=True)]

    def push(self, payloads: Sequence[bytes]) -> Job:
        begin, waiting = self._env.begin, self._waiting
        items = self._items(payloads)

        def job() -> None:
            for key, payload in items:
                transaction = begin(waiting, None, True)
                transaction.put(key, payload, True, True, True)
                transaction.commit()

        return job

    def push_batches(self, batch: list[bytes], count: int) -> Job:
        begin, waiting = self._env.begin, self._waiting
        batches = [self._items(batch) for _ in range(count)]

        def job() -> None:
            for items in batches:
                with begin(waiting, write=True) as transaction:
                    transaction.cursor().putmulti(items, append=True)

        return job

    def pairs(self, count: int) -> Job:
        begin, waiting, leased = self._env.begin, self._waiting, self._leased

        def job() -> None:
            for _ in range(count):
                transaction = begin(waiting, None, True)
                cursor = transaction.cursor()
                cursor.first()
                key, payload = cursor.item()
                cursor.delete()
                until = _pack(time.time_ns() // 1000 + LEASE_US)
                transaction.put(key, until + payload, db=leased)
                transaction.commit()
                transaction = begin(leased, None, True)
                transaction.delete(key)
                transaction.commit()

        return job

    def pair_batches(self, count: int) -> Job:
        begin, waiting, leased = self._env.begin, self._waiting, self._leased

        def job() -> None:
            for _ in range(count):
                keys = []
                with begin(waiting, write=True) as transaction:
                    until = _pack(time.time_ns() // 1000 + LEASE_US)
                    cursor = transaction.cursor()
                    cursor.first()
                    items = []
                    for _ in range(BATCH_MESSAGES):
                        key, payload = cursor.item()
                        keys.append(key)
                        items.append((key, until + payload))
                        cursor.delete()
                    transaction.cursor(leased).putmulti(items)
                with begin(leased, write=True) as transaction:
                    for key in keys:
                        transaction.delete(key)

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        self.push_batches(batch, count // len(batch))()

    def close(self) -> None:
        self._env.close()


class HueyQueue:
    """huey's SqliteStorage: no lease, dequeue takes for good."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        from huey.storage import SqliteStorage

        path.mkdir()
        self._storage = SqliteStorage("bench", str(path / "huey.sqlite"), fsync=durable)

    def push(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._storage.enqueue, payloads)

    def push_batches(self, batch: list[bytes], count: int) -> Job:
        raise NotRun("it has no batches")

    def pairs(self, count: int) -> Job:
        return _times(self._storage.dequeue, count)

    def pair_batches(self, count: int) -> Job:
        raise NotRun("it has no batches")

    def preload(self, batch: list[bytes], count: int) -> None:
        insert = "INSERT INTO task (queue, data, priority) VALUES (?, ?, 0)"
        rows = [(self._storage.name, payload) for payload in batch]
        for _ in range(count // len(rows)):
            with self._storage.db(commit=True) as cursor:
                cursor.executemany(insert, rows)

    def close(self) -> None:
        self._storage.close()


class PersistAckQueue:
    """persist-queue's SQLiteAckQueue."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue = SQLiteAckQueue(str(path), auto_commit=True)
        self._connection = cast("sqlite3.Connection", self._queue._putter)
        if not durable:
            self._connection.execute("PRAGMA synchronous = OFF")

    def push(self, payloads: Sequence[bytes]) -> Job:
        return _each(self._queue.put, payloads)

    def push_batches(self, batch: list[bytes], count: int) -> Job:
        raise NotRun("it has no batches")

    def pairs(self, count: int) -> Job:
        queue = self._queue

        def job() -> None:
            for _ in range(count):
                queue.ack(queue.get(block=False))

        return job

    def pair_batches(self, count: int) -> Job:
        raise NotRun("it has no batches")

    def preload(self, batch: list[bytes], count: int) -> None:
        rows = [(self._queue._serializer.dumps(payload), 0.0) for payload in batch]
        with self._connection as connection:
            for _ in range(count // len(rows)):
                connection.executemany(self._queue._sql_insert, rows)
        self._queue.total += count

    def close(self) -> None:
        self._queue.close()


class LiteQueueQueue:
    """litequeue, which takes strings: pop, then done."""

    BACKLOG_MAX: Final = 10_000

    def __init__(self, path: Path, *, durable: bool) -> None:
        import litequeue

        path.mkdir()
        self._queue = litequeue.LiteQueue(str(path / "queue.sqlite"))
        mode = "FULL" if durable else "OFF"
        self._queue.conn.execute(f"PRAGMA synchronous = {mode}")

    def push(self, payloads: Sequence[bytes]) -> Job:
        texts = [payload.hex()[: len(payload)] for payload in payloads]
        return _each(self._queue.put, texts)

    def push_batches(self, batch: list[bytes], count: int) -> Job:
        raise NotRun("it has no batches")

    def pairs(self, count: int) -> Job:
        queue = self._queue

        def job() -> None:
            for _ in range(count):
                queue.done(queue.pop().message_id)

        return job

    def pair_batches(self, count: int) -> Job:
        raise NotRun("it has no batches")

    def preload(self, batch: list[bytes], count: int) -> None:
        if count > self.BACKLOG_MAX:
            raise NotRun("each pop sorts the backlog: five a second with a million waiting")
        job = self.push(batch)
        for _ in range(count // len(batch)):
            with self._queue.transaction():
                job()

    def close(self) -> None:
        self._queue.close()


_pack = struct.Struct(">Q").pack


def _each(act: Callable[..., object], items: Sequence[object]) -> Job:
    def job() -> None:
        for item in items:
            act(item)

    return job


def _times(act: Callable[[], object], count: int) -> Job:
    def job() -> None:
        for _ in range(count):
            act()

    return job
