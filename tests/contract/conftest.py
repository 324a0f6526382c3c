"""Every test here runs in every world: to hold another store to the contract, add its line."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from segue.stores.contract import Store
from segue.testing import ManualClock
from tests.contract.worlds import FileWorld, HttpWorld, RedisWorld, World, WorldFactory

WORLDS: Final[dict[str, WorldFactory]] = {
    "file-os": partial(FileWorld, sync="os"),
    "file-always": partial(FileWorld, sync="always"),
    "redis": RedisWorld,
    "http": HttpWorld,
}


@pytest.fixture(params=list(WORLDS.values()), ids=list(WORLDS))
def world(request: pytest.FixtureRequest, scratch: Path) -> Iterator[World]:
    """Data, handles on it and a clock; intact when the test is over."""
    factory: WorldFactory = request.param
    world = factory(scratch / "data")
    yield world
    world.end()


@pytest.fixture
def store(world: World) -> Store:
    """The first handle."""
    return world.open()


@pytest.fixture
def other(world: World, store: Store) -> Store:
    """A second handle, as another process would have it."""
    return world.open()


@pytest.fixture
def clock(world: World) -> ManualClock:
    """The clock that everybody in the world goes by."""
    return world.clock
