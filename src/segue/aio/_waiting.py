"""Waiting without a thread for everyone who waits.

Tasks that wait for the same thing stand in a line. The first of them waits in a thread, by short
calls that block, and leaves the line with what it got; then the next one is the first. So a store
needs a thread for each thing that is waited for, not for each task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from segue.errors import LockBusy, QueueEmpty, QueueFull, QueueLocked
from segue.log.options import Duration
from segue.stores.arguments import duration_us

BLOCK_SECONDS: Final = 0.1
"""How long a call blocks at most, so how long a task that is cancelled may have to wait for it."""

NOT_YET: Final = (QueueEmpty, QueueLocked, QueueFull, LockBusy)
"""What a call says that might succeed a little later."""

T = TypeVar("T")

Attempt = Callable[[float], Awaitable[T]]
"""Makes a call that blocks for at most so many seconds."""


async def patiently(
    line: asyncio.Lock,
    attempt: Attempt[T],
    wait: Duration | None,
    is_nothing: Callable[[T], bool],
) -> T:
    """Return what `attempt` finds within `wait`, or what it says after that."""
    wait_us = duration_us(wait, name="wait")
    if wait_us == 0:
        return await attempt(0)
    now = asyncio.get_running_loop().time
    deadline = None if wait_us is None else now() + wait_us / 1_000_000
    try:
        found = await attempt(0)
        if not is_nothing(found):
            return found
    except NOT_YET as error:
        if _is_final(error):
            raise
    try:
        async with asyncio.timeout_at(deadline):
            await line.acquire()
    except TimeoutError:
        return await attempt(0)
    try:
        return await _first_in_line(attempt, deadline, is_nothing)
    finally:
        line.release()


async def _first_in_line(
    attempt: Attempt[T], deadline: float | None, is_nothing: Callable[[T], bool]
) -> T:
    now = asyncio.get_running_loop().time
    while True:
        begun = now()
        left = None if deadline is None else max(0.0, deadline - begun)
        is_last = left is not None and left <= BLOCK_SECONDS
        step = BLOCK_SECONDS if left is None else min(left, BLOCK_SECONDS)
        try:
            found = await attempt(step)
            if is_last or not is_nothing(found):
                return found
        except NOT_YET as error:
            if is_last or _is_final(error):
                raise
        if now() - begun < step / 2:  # It came back without waiting, and would again.
            await asyncio.sleep(step / 2)


def _is_final(error: Exception) -> bool:
    """Tell whether a call that may wait did not: a full queue refuses or waits, by its rules."""
    return isinstance(error, QueueFull) and error.is_final
