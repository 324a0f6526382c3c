"""Short calls from async code, in threads of our own, so that no waiter elsewhere holds them up."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

THREADS_MAX: Final = 4


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="segue-short")


# Threads do not survive a fork: who was forked has none, and must not think otherwise.
os.register_at_fork(after_in_child=_pool.cache_clear)


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what `function` returns, called in a thread, in the caller's context."""
    call = partial(copy_context().run, partial(function, *args, **kwargs))
    return await asyncio.get_running_loop().run_in_executor(_pool(), call)
