"""Who takes part in a race: named ways to open a store, and opening all of them in one place."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from benchmarks.race import Figure, Job, NotRun, not_run


class Store(Protocol):
    """What every contestant can do."""

    def preload(self, batch: list[bytes], count: int) -> None:
        """Bring in a backlog, as fast as it goes. Raises NotRun where it takes minutes."""
        ...

    def close(self) -> None: ...


class Appending(Store, Protocol):
    """Takes part where records are appended one by one."""

    def singles(self, payloads: Sequence[bytes]) -> Job:
        """Return the job that appends each payload for itself."""
        ...


class Batching(Store, Protocol):
    """Takes part where records are appended a batch at a time."""

    def batches(self, batch: list[bytes], count: int) -> Job:
        """Return the job that appends the batch `count` times, all or nothing each."""
        ...


StoreT_co = TypeVar("StoreT_co", bound=Store, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[StoreT_co]):
    """A contestant, and how to open it at a path where nothing is yet."""

    name: str
    open: Callable[[Path], StoreT_co]
    how: str = ""
    """Which of several ways was taken; printed next to the figure."""


@contextmanager
def opened(
    entries: Sequence[Entry[StoreT_co]], place: Path, *, batch: list[bytes], backlog_records: int
) -> Iterator[tuple[list[tuple[Entry[StoreT_co], StoreT_co]], list[Figure]]]:
    """Open all entries with a backlog in them; give who is present, and who is absent and why."""
    present: list[tuple[Entry[StoreT_co], StoreT_co]] = []
    absent: list[Figure] = []
    with ExitStack() as stack:
        for number, entry in enumerate(entries):
            try:
                store = entry.open(place / f"store-{number}")
                stack.callback(store.close)
                if backlog_records:
                    store.preload(batch, backlog_records)
            except ModuleNotFoundError as error:
                absent.append(not_run(entry.name, f"{error.name} is not installed"))
            except NotRun as reason:
                absent.append(not_run(entry.name, reason))
            else:
                present.append((entry, store))
        if backlog_records:
            _settle(place)
        yield present, absent


def _settle(directory: Path) -> None:
    """Sync what was preloaded, so that nobody pays for it while timed."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
