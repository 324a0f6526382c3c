"""Every test here runs on every backend. To test another backend, add a line to WORLDS."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from segue.stores.contract import Store
from segue.testing import ManualClock
from tests.conftest import TORTURE
from tests.contract.worlds import FileWorld, HttpWorld, RedisWorld, World, WorldFactory

WORLDS: Final[dict[str, WorldFactory]] = {
    "file-os": partial(FileWorld, sync="os"),
    "file-always": partial(FileWorld, sync="always"),
    "redis": RedisWorld,
    "http": HttpWorld,
}
SYNCED: Final = {
    "test_queue_delivering",
    "test_queue_pushing",
    "test_ring",
    "test_ring_transactions",
    "test_topic_producers",
}
"""Files whose calls write in another order with sync "always": only these also run with it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on each backend."""
    has_its_own = "world" in vars(metafunc.module)
    if has_its_own or "world" not in metafunc.fixturenames:
        return
    is_synced = TORTURE or metafunc.module.__name__.rpartition(".")[2] in SYNCED
    names = [name for name in WORLDS if is_synced or name != "file-always"]
    metafunc.parametrize("world", [WORLDS[name] for name in names], ids=names, indirect=True)


@pytest.fixture
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
