"""The peers that are databases: LMDB and SQLite, without a queue library on top.

The same methods as `stores.SegueLog`. Where there are several ways the fastest one measured is
used. Keys and rows are made while preparing, never while timed.
"""

import sqlite3
import struct
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.race import Job
from benchmarks.stores import require_all

MAP_BYTES: Final = 32 * 1024**3
"""Of address space; the file takes what is written."""
_pack_key: Final = struct.Struct(">Q").pack


class Lmdb:
    """One put per transaction with append=True, positional arguments, no `with`: its fastest."""

    def __init__(self, path: Path, *, durable: bool, writemap: bool = True) -> None:
        import lmdb

        self._env = lmdb.open(
            str(path),
            map_size=MAP_BYTES,
            sync=durable,
            metasync=durable,
            writemap=writemap and not durable,
            map_async=writemap and not durable,
        )
        self._next_key = 0

    def _keys(self, count: int) -> list[bytes]:
        first = self._next_key
        self._next_key += count
        return [_pack_key(number) for number in range(first, first + count)]

    def singles(self, payloads: Sequence[bytes]) -> Job:
        begin = self._env.begin
        items = list(zip(self._keys(len(payloads)), payloads, strict=True))

        def job() -> None:
            for key, payload in items:
                transaction = begin(None, None, True)  # To write.
                transaction.put(key, payload, True, True, True)  # The last one: append.
                transaction.commit()

        return job

    def batches(self, batch: list[bytes], count: int) -> Job:
        begin = self._env.begin
        batches = [list(zip(self._keys(len(batch)), batch, strict=True)) for _ in range(count)]

        def job() -> None:
            for items in batches:
                with begin(write=True) as transaction:
                    transaction.cursor().putmulti(items, append=True)

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        for _ in range(count // len(batch)):
            self.batches(batch, 1)()

    def records(self, count: int) -> Job:
        def job() -> None:
            key: bytes | memoryview = b""
            with self._env.begin() as transaction:
                for key, _ in islice(transaction.cursor().iternext(), count):  # noqa: B007 - used below
                    pass
            require_all(int.from_bytes(key, "big") + 1, count)

        return job

    def reads(self, offsets: Sequence[int]) -> Job:
        keys = [_pack_key(offset) for offset in offsets]

        def job() -> None:
            with self._env.begin() as transaction:
                get = transaction.get
                for key in keys:
                    get(key)

        return job

    def close(self) -> None:
        self._env.close()


class Sqlite:
    """A table in WAL mode that only we may open (locking_mode=EXCLUSIVE): twice as fast."""

    _INSERT: Final = "INSERT INTO log (payload) VALUES (?)"

    def __init__(self, path: Path, *, durable: bool) -> None:
        path.mkdir()
        self._connection = sqlite3.connect(path / "log.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA locking_mode = EXCLUSIVE",
            "PRAGMA journal_mode = WAL",
            f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}",
            "CREATE TABLE log (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)",
        ):
            self._connection.execute(statement)

    def singles(self, payloads: Sequence[bytes]) -> Job:
        execute, insert = self._connection.execute, self._INSERT
        rows = [(payload,) for payload in payloads]

        def job() -> None:
            for row in rows:
                execute(insert, row)

        return job

    def batches(self, batch: list[bytes], count: int) -> Job:
        connection, insert = self._connection, self._INSERT
        rows = [(payload,) for payload in batch]

        def job() -> None:
            for _ in range(count):
                connection.execute("BEGIN")
                connection.executemany(insert, rows)
                connection.execute("COMMIT")

        return job

    def preload(self, batch: list[bytes], count: int) -> None:
        self.batches(batch, count // len(batch))()

    def records(self, count: int) -> Job:
        def job() -> None:
            row = (0,)
            select = "SELECT id, payload FROM log ORDER BY id LIMIT ?"
            for row in self._connection.execute(select, (count,)):  # noqa: B007 - used below
                pass
            require_all(row[0], count)

        return job

    def reads(self, offsets: Sequence[int]) -> Job:
        execute = self._connection.execute
        keys = [(offset + 1,) for offset in offsets]

        def job() -> None:
            for key in keys:
                execute("SELECT payload FROM log WHERE id = ?", key).fetchone()

        return job

    def close(self) -> None:
        self._connection.close()
