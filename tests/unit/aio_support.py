"""What the tests of `segue.aio` share: a store in memory, and waiting until something is so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from segue import aio

PATIENCE_SECONDS: Final = 60.0
"""How long a busy machine may take for what should happen at once."""


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[aio.Store]:
    """Open a store that does not sync; whatever happens in it ends within our patience."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with await aio.open(path / "data", sync="os") as store:
            yield store


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once `condition` holds."""
    while not await condition():
        await asyncio.sleep(0.001)


async def waits(task: "asyncio.Task[object]") -> None:
    """Return when `task` is in the middle of its wait, to the best of our knowledge."""
    await asyncio.sleep(0.03)
    assert not task.done()
