"""The loop over a queue keeps the contract through asyncio as it does without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import clock, other, store  # noqa: F401 Fixtures, by their names.
from tests.contract.test_queue_consuming import *  # noqa: F403 Its fixtures and all its tests.
from tests.contract.worlds import World
from tests.unit.aio_world import AioWorld


@pytest.fixture
def world(scratch: Path) -> Iterator[World]:
    world = AioWorld(scratch / "data", sync="os")
    yield world
    world.end()
