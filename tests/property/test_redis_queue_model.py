"""A queue on a server does what plain lists would: the machine of the file store, elsewhere."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis.stateful import rule

from segue.stores.redis import queue as redis_queue
from segue.stores.redis.libraries import Library, library
from tests.contract.worlds import RedisWorld, World
from tests.property.test_queue_model import QueueMachine

SMALL = [
    ("ARGUMENTS_MAX = 4000", "ARGUMENTS_MAX = 4"),
    ("looked > LOOKED_MAX", "looked > 3"),
    ("looked <= LOOKED_MAX", "looked <= 3"),
]
"""Limits that are large in life, and so small here that they are met all the time."""


def small_library(changes: list[tuple[str, str]]) -> Callable[[str], Library]:
    """Return what stands in for `library`: functions with other limits, under another name."""

    def changed(kind: str) -> Library:
        found = library(kind)
        code = found.code.replace(found.version, f"small{found.version}")
        for before, after in changes:
            assert before in code, before
            code = code.replace(before, after)
        return replace(found, version=f"small{found.version}", code=code)

    return changed


class RedisQueueMachine(QueueMachine):
    """One queue on a server."""

    def __init__(self) -> None:
        super().__init__()
        self.model.goes_on = True

    def make_world(self) -> World:
        """Take a server in place of a directory."""
        self.patch.setattr(redis_queue, "library", small_library(SMALL))
        return RedisWorld(self.scratch)

    def in_order(self, found: list[tuple[str, bytes, int, int]]) -> object:
        """What makes place by being outlived lets others come, in the same step and behind it."""
        return sorted(found)

    @rule()
    def restart(self) -> None:
        """Start all clients anew: the server does not learn of it, and leases go on."""
        self.world.restart()
        for handle in range(3):
            self.open(handle)


TestRedisQueueMachine = RedisQueueMachine.TestCase
TestRedisQueueMachine.settings = settings(max_examples=max(20, settings().max_examples // 3))
