"""Waiting in tests: for an event, with one limit that only a hang reaches.

`time.sleep` and `asyncio.sleep` are banned in tests (TID251 in pyproject.toml). This module is the
exception that makes the others unnecessary.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Final

LIMIT_SECONDS: Final = 60.0 * float(os.environ.get("SEGUE_TEST_PATIENCE", "1"))
"""How long any test waits for anything. Set SEGUE_TEST_PATIENCE=3 on a machine that needs more."""
_POLL_SECONDS: Final = 0.002


class NotInTime(AssertionError):
    """The event a test waited for did not happen within LIMIT_SECONDS."""


def wait_until(
    condition: Callable[[], object], what: str = "", *, ignoring: tuple[type[Exception], ...] = ()
) -> None:
    """Return as soon as `condition()` is true. Errors listed in `ignoring` count as false."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        ignored = None
        try:
            if condition():
                return
        except NotInTime:
            raise
        except ignoring as error:
            ignored = error
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {LIMIT_SECONDS:g} s: {what or condition}") from ignored
        time.sleep(_POLL_SECONDS)


def wait_for_progress(progress: Callable[[], object], is_done: Callable[[], object]) -> None:
    """Return as soon as `is_done()`. The limit starts again whenever `progress()` changes."""
    before = progress()

    def is_moving() -> bool:
        return bool(is_done()) or progress() != before

    while not is_done():
        before = progress()
        wait_until(is_moving, "progress")


async def wait_until_async(condition: Callable[[], object], what: str = "") -> None:
    """Return as soon as `condition()` is true, while other asyncio tasks run."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {LIMIT_SECONDS:g} s: {what or condition}")
        await asyncio.sleep(_POLL_SECONDS)


async def run_other_tasks(turns: int = 1) -> None:
    """Let every other ready asyncio task run, `turns` times."""
    for _ in range(turns):
        await asyncio.sleep(0)


def random_pause(chance: random.Random, seconds_max: float) -> None:
    """Pause for a random time, so that a fault strikes at a random moment.

    The outcome of the test must not depend on the length.
    """
    time.sleep(chance.uniform(0, seconds_max))


async def random_pause_async(chance: random.Random, seconds_max: float) -> None:
    """Pause for a random time, as `random_pause` does, while other asyncio tasks run."""
    await asyncio.sleep(chance.uniform(0, seconds_max))


def hang() -> None:
    """Block until the process is killed, or until the limit for a test is over."""
    threading.Event().wait(LIMIT_SECONDS)
