"""Queues with groups keep the contract through asyncio as they do without."""

from tests.contract.conftest import clock, other, store  # noqa: F401 Fixtures, by their names.
from tests.contract.test_queue_groups import *  # noqa: F403 Its fixtures and all its tests.
from tests.unit.aio_world import world  # noqa: F401
