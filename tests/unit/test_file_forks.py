"""A store in a directory, on both sides of a fork."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from segue.errors import SegueError
from segue.stores.file.store import QUEUES, FileStore
from segue.stores.opening import open_directory
from tests.waiting import LIMIT_SECONDS


def ends_well(in_child: Callable[[], bool]) -> bool:
    """Tell whether a forked child says yes; one that hangs is ended by its alarm."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(round(LIMIT_SECONDS))
            code = 0 if in_child() else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def use(store: FileStore) -> bool:
    """Use what was open before the fork, which is refused, and what was not."""
    for name in ("jobs", "others"):
        queue = None
        try:
            queue = store.queue(name)
            queue.push(b"from the child")
        except SegueError:
            if name == "others":
                return False
    store.lock("lock").acquire(wait=0).release()
    store.topic("topic")
    store.close()
    return True


# That it forks while threads run is what is tested; newer Pythons warn of it.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_what_another_thread_was_at_does_not_keep_a_child_waiting(scratch: Path) -> None:
    """Whoever opens a queue, which may take long, is not there in a child to come to an end."""
    with open_directory(scratch, sync="os") as store:
        store.queue("jobs").push(b"a")
        is_at_it, may_go = threading.Event(), threading.Event()

        def be_at_it() -> None:
            with store._turn_of(QUEUES, "jobs"), store._turn_of(QUEUES, "others"), store._lock:
                is_at_it.set()
                may_go.wait(2 * LIMIT_SECONDS)

        thread = threading.Thread(target=be_at_it)
        thread.start()
        is_at_it.wait(LIMIT_SECONDS)
        is_well = ends_well(lambda: use(store))
        may_go.set()
        thread.join()

        assert is_well


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_leases_are_kept_alive_in_a_child_whose_parent_had_some(scratch: Path) -> None:
    """The thread that renews them is not in the child: it has to have one of its own."""
    with open_directory(scratch, sync="os") as store:
        queue = store.queue("jobs")
        queue.push(b"a")
        with queue.lease():

            def is_renewed() -> bool:
                beat = threading.Event()
                store.heartbeat.start(beat.set, 0.03)
                return beat.wait(LIMIT_SECONDS / 2)

            assert ends_well(is_renewed)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_closes_the_store_leaves_the_parent_what_wakes_it(scratch: Path) -> None:
    """Pipes stay open for the next wait; without one it would be noticed a quarter second late."""
    with open_directory(scratch, sync="os") as store:
        queue = store.queue("jobs")
        while not (pipes := list(scratch.rglob("wake/*"))):  # A busy machine waits without one.
            assert not queue.wait(0.01)

        def close() -> bool:
            store.close()
            return True

        assert ends_well(close)
        assert list(scratch.rglob("wake/*")) == pipes
