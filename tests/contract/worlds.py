"""Where the contract is tested: one data set, and as many handles on it as a test likes.

Every handle is what another process would have. A world closes them all at the end and checks that
what they leave behind is intact.
"""

import itertools
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from segue import Log
from segue.log.disk import Disk
from segue.log.log import _open_logs
from segue.log.options import SyncName
from segue.server.app import App
from segue.server.routes import ALL
from segue.server.routing import Router
from segue.stores.contract import Store
from segue.stores.file.store import FileStore
from segue.stores.http.store import HttpStore
from segue.stores.opening import open_directory, open_http, open_redis
from segue.stores.redis.audit import audit_store
from segue.stores.redis.store import RedisStore
from segue.testing import ManualClock
from tests.http_server import shared_http_server
from tests.redis_server import shared_server

_boots = itertools.count(1)


class World(Protocol):
    """One set of data and the clock that everybody who uses it goes by."""

    clock: ManualClock

    def open(self) -> Store:
        """Return a new handle on the data, independent of all others."""

    def crash(self, store: Store) -> None:
        """Drop a handle as kill -9 drops a process: nothing is closed, released or finished."""

    def restart(self, *, leases_last: float = 0) -> None:
        """Crash every handle and start the machine anew; no lease or rate from before counts.

        A store elsewhere does not learn of it: there `leases_last` seconds pass first.
        """

    def end(self) -> None:
        """Close what is open and check that what is left is intact."""


WorldFactory = Callable[[Path], World]


class _Machine(Disk):
    """The disk of one process, on a machine that was started `boot` times before."""

    def __init__(self, boot: int) -> None:
        self._boot = boot

    def boot_id(self) -> int:
        return self._boot


class FileWorld:
    """A directory."""

    def __init__(self, root: Path, *, sync: SyncName) -> None:
        self.root = root
        self.clock = ManualClock()
        self._sync: SyncName = sync
        self._boot = next(_boots)
        self._started_us = 0
        self._stores: list[FileStore] = []

    def open(self) -> FileStore:
        """Return a new handle on the directory, with a disk of its own to know its logs by."""
        store = open_directory(
            self.root,
            sync=self._sync,
            clock=self.clock,
            ticks=self._ticks,
            disk=_Machine(self._boot),
        )
        self._stores.append(store)
        return store

    def _ticks(self) -> int:
        return self.clock.ticks() - self._started_us

    def crash(self, store: Store) -> None:
        """Close the handle's files, which releases their locks, and let nothing else happen."""
        assert isinstance(store, FileStore)
        store.heartbeat.close()
        for log in list(_open_logs):
            if log._disk is store.place.disk:
                flusher = None if log._appender is None else log._appender._flusher
                if flusher is not None:
                    flusher.stop()
                log._abandon()
                log._horizon.catalog.close()  # What was only read, so that files do not add up.
                _open_logs.discard(log)

    def restart(self, *, leases_last: float = 0) -> None:
        """Crash every handle; keep what was written, as if all of it had reached the device.

        The ticks begin again at zero.
        """
        for store in self._stores:
            self.crash(store)
        self._boot = next(_boots)
        self._started_us = self.clock.ticks()

    def end(self) -> None:
        """Close every handle and verify every log."""
        with ExitStack() as closing:
            for store in self._stores:
                closing.callback(store.close)
        for path in {segment.parent for segment in self.root.rglob("*.q")}:
            with Log(path, read_only=True) as log:
                assert [audit for audit in log.verify() if not audit.is_intact] == [], path


class RedisWorld:
    """A namespace of its own on a real server."""

    def __init__(self, root: Path) -> None:
        del root
        self.clock = ManualClock()
        self.namespace = f"test-{secrets.token_hex(8)}"
        self._server = shared_server()
        self._stores: list[RedisStore] = []

    @property
    def url(self) -> str:
        return f"{self._server.url}?namespace={self.namespace}"

    def open(self) -> RedisStore:
        """Return a new handle, with connections of its own."""
        store = open_redis(self.url, clock=self.clock, ticks=self.clock.ticks)
        self._stores.append(store)
        return store

    def crash(self, store: Store) -> None:
        """Cut the handle's connections: no more comes from it."""
        assert isinstance(store, RedisStore)
        store.heartbeat.close()
        store.calls.servers.close()

    def restart(self, *, leases_last: float = 0) -> None:
        """Crash every handle. The server, elsewhere, goes on as it was."""
        for store in self._stores:
            self.crash(store)
        self.clock.advance(seconds=leases_last)

    def end(self) -> None:
        """Close every handle, audit every queue and remove what is left."""
        with ExitStack() as closing:
            closing.callback(self._remove)
            closing.callback(self._audit)
            for store in self._stores:
                closing.callback(store.close)

    def _audit(self) -> None:
        with open_redis(self.url) as store:
            broken = {name: said for name, said in audit_store(store).items() if said}
        assert not broken, broken

    def _remove(self) -> None:
        with self._server.client() as client:
            for key in client.scan_iter(f"{self.namespace}:*", count=10_000):
                client.unlink(key)


class HttpWorld:
    """A directory behind a real server, in another thread of this process."""

    def __init__(self, root: Path) -> None:
        self._files = FileWorld(root, sync="os")
        self.clock = self._files.clock
        self._behind = self._files.open()
        self._server = shared_http_server()
        self.url = self._server.add(App(self._behind, Router(ALL), ticks=self._behind.place.ticks))
        self._stores: list[HttpStore] = []

    def open(self) -> HttpStore:
        """Return a new handle, with connections of its own."""
        store = open_http(self.url, ticks=self.clock.ticks)
        self._stores.append(store)
        return store

    def crash(self, store: Store) -> None:
        """Cut the handle's connections: no more comes from it."""
        assert isinstance(store, HttpStore)
        store.heartbeat.close()
        store.calls.close()

    def restart(self, *, leases_last: float = 0) -> None:
        """Crash every handle. The server, elsewhere, goes on as it was."""
        for store in self._stores:
            self.crash(store)
        self.clock.advance(seconds=leases_last)

    def end(self) -> None:
        """Close every handle and the server, and verify every log."""
        with ExitStack() as closing:
            closing.callback(self._files.end)
            closing.callback(self._server.remove, self.url)
            for store in self._stores:
                closing.callback(store.close)
