"""Helpers for the tests of `segue.aio`: a store to use, and waiting for what other tasks do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Final, TypeVar

from segue import aio
from segue.aio._consumer import Consumer
from segue.aio._threads import _end_of
from segue.aio._waiting import _first_in_line
from tests.waiting import LIMIT_SECONDS, run_other_tasks, wait_until_async

_IDLE: Final = {asyncio.Event.wait.__code__, asyncio.Lock.acquire.__code__}
_CALL: Final = _end_of.__code__
_WAIT: Final = _first_in_line.__code__
_FETCH: Final = Consumer._fetched.__code__

T = TypeVar("T")


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[aio.Store]:
    """Open a store that does not sync. The block fails if it does not end within the limit."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async with await aio.open(path / "data", sync="os") as store:
            yield store


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once `condition` holds. For use within `opened`, which has a limit."""
    while not await condition():
        await run_other_tasks()


async def waits(*tasks: "asyncio.Task[T]", in_thread: bool = True) -> None:
    """Return when each of `tasks` waits: in a thread, in line for it, or for an asyncio event.

    Without `in_thread`, a call that has not got a thread yet counts as well.
    """
    for task in tasks:
        await wait_until_async(partial(_is_waiting_or_done, task, in_thread=in_thread))
        assert not task.done()


def _is_waiting_or_done(task: "asyncio.Task[T]", *, in_thread: bool) -> bool:
    return task.done() or _is_waiting(task, in_thread=in_thread)


def _is_waiting(task: "asyncio.Task[T]", *, in_thread: bool) -> bool:
    frames = _frames_of(task)
    if _FETCH in frames:
        return _is_waiting(frames[_FETCH].f_locals["fetching"], in_thread=in_thread)
    if _WAIT in frames:
        return not in_thread or (_CALL in frames and frames[_CALL].f_locals["work"].running())
    return not _IDLE.isdisjoint(frames)


def _frames_of(task: "asyncio.Task[T]") -> dict[CodeType, FrameType]:
    """Return the frames of the coroutines that a task is suspended in, by their code."""
    frames = {}
    coroutine: object = task.get_coro()
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        frames[coroutine.cr_frame.f_code] = coroutine.cr_frame
        coroutine = coroutine.cr_await
    return frames
