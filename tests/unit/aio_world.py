"""The contract's tests through asyncio: a world whose stores look as if there were no event loop.

`AioWorld` is one more world of `tests/contract/worlds.py`; whatever passes there passes here.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

import pytest

from segue import aio
from segue.aio._handles import Handle, NamedHandle
from segue.aio._threads import Threads
from segue.aio._topics import TurnHandle
from segue.log.options import SyncName
from segue.stores.contract import Store
from segue.stores.file.store import FileStore
from segue.stores.http.store import HttpStore
from segue.stores.redis.store import RedisStore
from tests.contract.worlds import FileWorld, HttpWorld, RedisWorld, World

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Return what `coroutine` returns there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Facade:
    """Something of `segue.aio` as if it were the thing itself."""

    def __init__(self, loop: Loop, it: object) -> None:
        self._loop = loop
        self._it = it

    def __getattr__(self, name: str) -> object:
        value: object = getattr(self._target(name), self._renamed(name))
        if not callable(value):
            return self._shown(value)
        method = cast("Callable[..., object]", value)

        def call(*arguments: object, **options: object) -> object:
            taken = [_bare(each) for each in arguments]
            return self._shown(method(*taken, **options))

        return call

    def _target(self, name: str) -> object:
        """Return whose attribute is meant: tests that kill a process look into the original."""
        if name.startswith("_") and isinstance(self._it, TurnHandle):
            original: object = self._it._it
            return original
        return self._it

    def _renamed(self, name: str) -> str:
        is_loop = isinstance(self._it, aio.Consumer | aio.Items)
        return "aclose" if name == "close" and is_loop else name

    def _shown(self, value: object) -> object:
        if isinstance(value, Coroutine):
            return self._shown(self._loop.run(value))
        if isinstance(value, NamedHandle):
            return Facade(self._loop, self._loop.run(value._open()))
        if isinstance(value, aio.Items):
            return Facade(self._loop, self._loop.run(value._begin()))
        if isinstance(value, aio.Consumer | Handle):
            return Facade(self._loop, value)
        if isinstance(value, list):
            return [self._shown(each) for each in value]
        return value

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> object:
        assert isinstance(self._it, aio.Consumer | aio.Items | aio.TopicReader)
        try:
            return self._shown(self._loop.run(self._it.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> object:
        it = cast("aio.Lock", self._it)  # Or another thing with a block: they are all alike.
        return self._shown(self._loop.run(it.__aenter__()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        it = cast("aio.Lock", self._it)
        self._loop.run(it.__aexit__(kind, error, trace))


def _bare(argument: object) -> object:
    if isinstance(argument, Facade):
        return argument._it
    return [_bare(each) for each in argument] if isinstance(argument, list) else argument


class AioWorld(FileWorld):
    """A directory, used through asyncio."""

    def __init__(self, root: Path, *, sync: SyncName) -> None:
        super().__init__(root, sync=sync)
        self._twins = Twins()

    def open(self) -> FileStore:
        """Return a new handle on the directory. No FileStore, but used like one."""
        return cast("FileStore", self._twins.add(super().open()))

    def crash(self, store: Store) -> None:
        """Crash the store behind a handle."""
        for bare in self._twins.end(store):
            super().crash(bare)

    def end(self) -> None:
        """Close every handle, the event loop, and verify every log."""
        self._twins.close()
        super().end()


class AioRedisWorld(RedisWorld):
    """A server, used through asyncio."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._twins = Twins()

    def open(self) -> RedisStore:
        """Return a new handle on the server. No RedisStore, but used like one."""
        return cast("RedisStore", self._twins.add(super().open()))

    def crash(self, store: Store) -> None:
        """Crash the store behind a handle."""
        for bare in self._twins.end(store):
            super().crash(bare)

    def end(self) -> None:
        """Close every handle and the event loop."""
        self._twins.close()
        super().end()


class AioHttpWorld(HttpWorld):
    """A directory behind a server of ours, used through asyncio."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._twins = Twins()

    def open(self) -> HttpStore:
        """Return a new handle on the server. No HttpStore, but used like one."""
        return cast("HttpStore", self._twins.add(super().open()))

    def crash(self, store: Store) -> None:
        """Crash the store behind a handle."""
        for bare in self._twins.end(store):
            super().crash(bare)

    def end(self) -> None:
        """Close every handle, the event loop and the server."""
        self._twins.close()
        super().end()


class Twins:
    """Stores that are used through asyncio."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._shown: list[tuple[Facade, aio.Store, Store]] = []

    def add(self, bare: Store) -> Facade:
        """Return a store as it is seen through asyncio."""
        store = aio.Store(Threads(), bare)
        facade = Facade(self._loop, store)
        self._shown.append((facade, store, bare))
        return facade

    def end(self, store: Store) -> list[Store]:
        """Let a store's threads end and return the store itself."""
        ended = []
        for facade, twin, bare in self._shown:
            if cast("object", store) in {facade, bare}:
                ended.append(bare)
                self._loop.run(twin._threads.close(lambda: None))
        return ended

    def close(self) -> None:
        """Close every store, and the event loop."""
        for _, store, _ in self._shown:
            self._loop.run(store.close())
        self._loop.close()


@pytest.fixture
def world(scratch: Path) -> Iterator[World]:
    """The world of the contract's tests, for a module that imports them."""
    world = AioWorld(scratch / "data", sync="os")
    yield world
    world.end()


@pytest.fixture
def redis_world(scratch: Path) -> Iterator[World]:
    """The same on a server."""
    world = AioRedisWorld(scratch)
    yield world
    world.end()


@pytest.fixture
def http_world(scratch: Path) -> Iterator[World]:
    """The same on a server of ours."""
    world = AioHttpWorld(scratch / "data")
    yield world
    world.end()
