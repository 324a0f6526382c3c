"""What the tests of looking at a store share: a server before Redis, and ways into an answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from segue.server.building import build_app
from segue.stores.contract import Store
from segue.stores.file.store import FileStore
from tests.contract.worlds import RedisWorld
from tests.http_server import shared_http_server
from tests.unit.server_support import Place, Told

Json = dict[str, object]


@contextmanager
def redis_placed() -> Iterator[Place]:
    """Serve a store on a Redis server for a while."""
    world = RedisWorld(Path())
    store: Store = world.open()
    server = shared_http_server()
    url = server.add(app := build_app(store, has_audit=False))
    try:
        yield Place(cast("FileStore", store), app, url)
    finally:
        server.remove(url)
        world.end()


def rows(told: Told, name: str) -> list[Json]:
    """Return a list that an answer holds."""
    assert told.status == 200, told.data
    found = told.json[name]
    assert isinstance(found, list)
    return found


def only(told: Told, name: str) -> Json:
    """Return what a list of an answer holds, which is one thing."""
    (found,) = rows(told, name)
    return found


def column(rows: list[Json], name: str) -> list[object]:
    """Return one field of every row."""
    return [row[name] for row in rows]
