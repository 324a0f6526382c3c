"""What the tests of the queue share."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from segue.delivery.priority import Priority
from segue.stores.contract import Queue
from tests.waiting import LIMIT_SECONDS, wait_until

T = TypeVar("T")


def push_all(queue: Queue, count: int, *, priority: Priority = 0, first: int = 0) -> list[bytes]:
    """Push `count` messages one by one that tell each other apart; return their bodies."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    for body in bodies:
        queue.push(body, priority=priority)
    return bodies


def drain(queue: Queue) -> list[bytes]:
    """Take all that can be had, one by one."""
    bodies = []
    while (message := queue.pop()) is not None:
        bodies.append(message.body)
    return bodies


@contextmanager
def meanwhile(call: Callable[[], T]) -> Iterator[Future[T]]:
    """Run `call` in another thread, which must come to its end after the block has."""
    with ThreadPoolExecutor(1) as threads:
        begun = threading.Event()

        def run() -> T:
            begun.set()
            return call()

        outcome = threads.submit(run)
        begun.wait()
        yield outcome
        outcome.result(LIMIT_SECONDS)


def eventually(holds: Callable[[], bool]) -> bool:
    """Wait until `holds()`, and return true. For tests that have not moved to `wait_until`."""
    wait_until(holds)
    return True
