"""A store that is used on both sides of a fork, from several threads."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from segue.stores.contract import Queue
from tests.waiting import LIMIT_SECONDS

THREADS: Final = 4


def push_around_forks(queue: Queue, count: int) -> list[bytes]:
    """Fork so many times while threads push; return what was pushed, here and in the children."""
    queue.push(b"begin")
    pushed = [b"begin"]
    for fork in range(count):
        with ThreadPoolExecutor(THREADS) as threads:
            bodies = [b"parent %d %d" % (fork, number) for number in range(2 * THREADS)]
            pushing = [threads.submit(queue.push, body) for body in bodies]
            child = os.fork()
            if not child:
                _push_and_exit(queue, fork)
            ids = {each.result(LIMIT_SECONDS) for each in pushing}
        assert len(ids) == len(bodies)
        assert _status_of(child) == 0
        pushed += bodies
        pushed += [b"child %d %d" % (fork, number) for number in range(THREADS)]
    return pushed


def _push_and_exit(queue: Queue, fork: int) -> None:
    """Push from several threads at once, and end the process whatever happens."""
    done: list[str] = []
    try:
        gate = threading.Barrier(THREADS)

        def push(number: int) -> None:
            gate.wait(LIMIT_SECONDS)
            done.append(queue.push(b"child %d %d" % (fork, number)))

        threads = [threading.Thread(target=push, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
    finally:
        os._exit(0 if len(set(done)) == THREADS else 1)


def _status_of(child: int) -> int:
    """Return the exit status of a child. A child that hangs is killed."""
    ended = threading.Timer(2 * LIMIT_SECONDS, os.kill, (child, signal.SIGKILL))
    ended.start()
    try:
        return os.waitpid(child, 0)[1]
    finally:
        ended.cancel()
