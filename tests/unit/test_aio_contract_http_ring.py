"""A ring behind a server keeps the contract through asyncio as it does without."""

import pytest

from tests.contract.conftest import clock, other, store  # noqa: F401 Fixtures, by their names.
from tests.contract.test_ring import *  # noqa: F403 Its fixtures and all its tests.
from tests.contract.worlds import World
from tests.unit.aio_world import http_world  # noqa: F401


@pytest.fixture
def world(http_world: World) -> World:  # noqa: F811 The fixture is meant.
    """The world of these tests."""
    return http_world
