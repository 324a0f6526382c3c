"""What happened to a message is told through asyncio as it is without."""

from tests.contract.conftest import clock, other, store  # noqa: F401 Fixtures, by their names.
from tests.contract.test_queue_timeline import *  # noqa: F403 Its fixtures and all its tests.
from tests.unit.aio_world import world  # noqa: F401
