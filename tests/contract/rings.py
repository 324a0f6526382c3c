"""What the tests of rings share."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from segue.stores.contract import Ring, Store
from tests.waiting import LIMIT_SECONDS


def make_ring(store: Store) -> Ring:
    return store.ring("bus", capacity=12, entries_per_segment=3)


def fill(ring: Ring, count: int, *, first: int = 0) -> list[bytes]:
    bodies = [b"entry %d" % number for number in range(first, first + count)]
    for body in bodies:
        ring.enqueue(body)
    return bodies


def drain(ring: Ring, *, group: str = "default") -> list[bytes]:
    bodies = []
    while (entry := ring.dequeue(group=group)) is not None:
        bodies.append(entry.body)
    return bodies


@contextmanager
def meanwhile(call: Callable[[], object]) -> Iterator[None]:
    """Run `call` in another thread, which must come to its end after the block has."""
    with ThreadPoolExecutor(1) as threads:
        begun = threading.Event()

        def run() -> object:
            begun.set()
            return call()

        outcome = threads.submit(run)
        begun.wait()
        yield
        outcome.result(LIMIT_SECONDS)
