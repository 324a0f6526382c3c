"""A disk that kills its own process at one chosen call: no handler runs, nothing is cleaned up."""

import logging
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Final

from segue.log.disk import Disk
from tests.crash.replay import TORTURE, new_seed

logger = logging.getLogger(__name__)

OPERATIONS: Final = (
    "open_to_write",
    "write_at",
    "resize",
    "map_to_write",
    "sync_data",
    "make_directory",
    "rename",
    "unlink",
    "make_fifo",
    "sync_directory",
    "lock",
    "try_lock",
    "unlock",
)
"""Every call that changes something another process can see."""


class Moment(Enum):
    """When the process dies, seen from the call."""

    BEFORE = "before"
    WITHIN = "within"
    """With half of the bytes written; only `write_at` has an inside."""
    AFTER = "after"


STEPS: Final = (
    dict.fromkeys(Moment, 1) if TORTURE else {Moment.BEFORE: 3, Moment.WITHIN: 3, Moment.AFTER: 9}
)
"""At one of how many calls of an operation, after the first one, the process dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPoint:
    """One place where a process dies: at the `number`-th call of `operation`, from 1 on."""

    operation: str
    number: int
    moment: Moment

    def __str__(self) -> str:
        return f"killed {self.moment.value} call {self.number} of {self.operation}"


def each_kill_point(is_killed_at: Callable[[KillPoint], bool]) -> int:
    """Call `is_killed_at` for every point in turn and return how many of them killed.

    For each operation it counts on until a run comes to its end alive. The torture tries every
    point, a short run some, evenly, and other ones each time (in continuous integration the same).
    A kill after a call leaves what a kill before the next one does, but for what was stored into a
    mapping or reported between the two: of these it tries fewer.
    """
    chance = Random(new_seed())
    kills = 0
    for operation in OPERATIONS:
        calls = 0
        for moment in Moment:
            if moment is Moment.WITHIN and operation != "write_at":
                continue
            step = STEPS[moment]
            for number in chain([1], count(2 + chance.randrange(step), step)):
                if moment is not Moment.BEFORE and number > calls:
                    break
                if not is_killed_at(KillPoint(operation=operation, number=number, moment=moment)):
                    break
                kills += 1
                calls = number + step - 1 if moment is Moment.BEFORE else calls
    logger.info("kill points kills=%d", kills)
    return kills


class KillingDisk(Disk):
    """A real disk on which the process dies at `point`. Counts and lists what it was asked."""

    def __init__(self, point: KillPoint | None = None) -> None:
        self._point = point
        self._left = point.number if point is not None else 0
        self.trace: list[str] = []
        """The operations so far."""

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def _step(self, operation: str) -> Iterator[Moment | None]:
        """Die around the step inside if it is the one; else say whether to die within it."""
        self.trace.append(operation)
        point = self._point
        if point is None or point.operation != operation:
            yield None
            return
        self._left -= 1
        if self._left:
            yield None
            return
        if point.moment is Moment.BEFORE:
            self._die()
        yield point.moment
        if point.moment is Moment.AFTER:
            self._die()

    def open_to_write(self, path: Path, *, create: bool = False) -> int:
        with self._step("open_to_write"):
            return super().open_to_write(path, create=create)

    def write_at(self, fd: int, data: bytes | memoryview, position: int) -> None:
        with self._step("write_at") as moment:
            if moment is Moment.WITHIN:
                super().write_at(fd, memoryview(data)[: len(data) // 2], position)
                self._die()
            super().write_at(fd, data, position)

    def resize(self, fd: int, size_bytes: int) -> None:
        with self._step("resize"):
            super().resize(fd, size_bytes)

    def map_to_write(self, fd: int, size_bytes: int) -> mmap.mmap:
        with self._step("map_to_write"):
            return super().map_to_write(fd, size_bytes)

    def sync_data(self, fd: int) -> None:
        with self._step("sync_data"):
            super().sync_data(fd)

    def make_directory(self, path: Path) -> None:
        with self._step("make_directory"):
            super().make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        with self._step("rename"):
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        with self._step("unlink"):
            super().unlink(path)

    def make_fifo(self, path: Path) -> None:
        with self._step("make_fifo"):
            super().make_fifo(path)

    def sync_directory(self, path: Path) -> None:
        with self._step("sync_directory"):
            super().sync_directory(path)

    def lock(self, fd: int, *, shared: bool = False) -> None:
        with self._step("lock"):
            super().lock(fd, shared=shared)

    def locker(self, fd: int) -> tuple[Callable[[], None], Callable[[], None]]:
        return partial(self.lock, fd), partial(self.unlock, fd)

    def try_lock(self, fd: int, *, shared: bool = False, timeout_seconds: float = 0.0) -> bool:
        with self._step("try_lock"):
            return super().try_lock(fd, shared=shared, timeout_seconds=timeout_seconds)

    def unlock(self, fd: int) -> None:
        with self._step("unlock"):
            super().unlock(fd)
