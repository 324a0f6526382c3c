"""What locks of a directory hold open and in memory, however many names there are."""

import errno
import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segue.errors import LockBusy, LockLost, LogClosed
from segue.stores.file import lock_core
from segue.stores.file.store import FileStore
from segue.stores.opening import open_directory
from segue.testing import FaultyDisk
from tests.unit.support import no_descriptor_left_open
from tests.waiting import LIMIT_SECONDS, wait_until

OPEN_MAX = 4
EACH = 8
"""How many descriptors a lock takes whose files are open."""


@pytest.fixture
def store(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileStore]:
    """A store that keeps few locks open."""
    monkeypatch.setattr("segue.stores.file.store.OPEN_MAX", OPEN_MAX)
    monkeypatch.setattr(lock_core, "AWAITED_MAX", 2 * OPEN_MAX)
    with no_descriptor_left_open(), open_directory(scratch, sync="os") as store:
        yield store


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def use_others(store: FileStore, count: int = 2 * OPEN_MAX) -> None:
    """Use so many other locks that those used before are the ones used longest ago."""
    for number in range(count):
        store.lock(f"other-{number}").acquire(wait=0).release()


# Descriptors ---------------------------------------------------------------------------------


def test_a_lock_for_each_order_takes_no_more_descriptors_than_a_few(store: FileStore) -> None:
    """A process that never ends uses ever new names, and must not run out of them."""
    before = descriptors()
    for number in range(10 * OPEN_MAX):
        store.lock(f"order-{number}").acquire(wait=0).release()

    assert descriptors() - before <= OPEN_MAX * EACH
    assert len(store.locks()) == 10 * OPEN_MAX


def test_a_lock_goes_on_after_its_files_were_closed(store: FileStore) -> None:
    """Whoever has it may renew and release it, whoever has not is kept out."""
    lock = store.lock("leader", ttl=60)
    held = lock.acquire(owner="ann")
    use_others(store)
    was_held = held.is_held
    with pytest.raises(LockBusy):
        lock.acquire(wait=0)
    use_others(store)
    held.renew()
    use_others(store)
    holder = lock.holder()
    held.release()

    assert was_held
    assert holder is not None
    assert holder[:2] == ("ann", held.token)
    assert not held.is_held
    assert lock.acquire(wait=0).token == held.token + 1


def test_what_was_lost_while_the_files_were_closed_is_lost(scratch: Path, store: FileStore) -> None:
    """Another process may have released it by its token, and somebody else have it now."""
    held = store.lock("leader", ttl=60).acquire()
    use_others(store)
    with open_directory(scratch, sync="os") as other:
        other.lock("leader").held(held.token).release()
        now = other.lock("leader", ttl=60).acquire(wait=0)
        with pytest.raises(LockLost):
            held.renew()

        assert not held.is_held
        assert now.is_held


def test_a_with_block_keeps_the_files_open(store: FileStore) -> None:
    """It renews the lock again and again: to open them each time costs more than they do."""
    with store.lock("leader", ttl=60) as held:
        use_others(store)
        core = store._locks["leader"]
        is_open = core._log is not None
        held.renew()
    use_others(store)

    assert is_open
    assert core._log is None


def test_who_waits_keeps_the_files_open_and_gets_the_lock(store: FileStore) -> None:
    """Also if many others are used meanwhile."""
    held = store.lock("leader", ttl=60).acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.lock("leader", ttl=60).acquire, wait=LIMIT_SECONDS)
        core = store._locks["leader"]
        wait_until(lambda: not core.is_idle)
        use_others(store)
        is_open = core._log is not None
        held.release()
        token = waiting.result(LIMIT_SECONDS).token

    assert is_open
    assert token == held.token + 1


def test_locks_that_are_asked_for_again_and_again_stay_open_up_to_a_limit(store: FileStore) -> None:
    """A server asks for those that clients wait for, many times a second."""
    before = descriptors()
    names = [f"busy-{number}" for number in range(4 * OPEN_MAX)]
    for name in names:
        store.lock(name, ttl=60).acquire()
    for name in names:
        with pytest.raises(LockBusy):
            store.lock(name).acquire(wait=0)
    taken = descriptors() - before

    assert OPEN_MAX * EACH < taken <= 2 * OPEN_MAX * EACH


def test_many_threads_and_many_names_get_on_together(store: FileStore) -> None:
    """Files are closed while others begin to use them: never two holders, and no token twice."""
    inside = {number: threading.Lock() for number in range(3 * OPEN_MAX)}
    tokens: dict[int, list[int]] = {number: [] for number in inside}

    def work(seed: int) -> None:
        for step in range(40):
            number = (seed * 7 + step * 5) % len(inside)
            lock = store.lock(f"order-{number}", ttl=60)
            held = lock.acquire(wait=LIMIT_SECONDS)
            assert inside[number].acquire(blocking=False)
            tokens[number].append(held.token)
            inside[number].release()
            held.release()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))

    assert sum(map(len, tokens.values())) == 6 * 40
    assert all(found == sorted(set(found)) for found in tokens.values())


def test_an_exclusive_store_keeps_its_locks_to_itself(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose files are closed others could have: that promise is worth the descriptors."""
    monkeypatch.setattr("segue.stores.file.store.OPEN_MAX", 1)
    with open_directory(scratch, sync="os", exclusive=True) as store:
        held = [store.lock(name, ttl=60).acquire() for name in ("a", "b", "c")]

        assert [store._locks[each.name]._log is not None for each in held] == [True] * 3


def test_files_that_cannot_be_closed_in_order_disturb_nobody(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever used another lock has nothing to do with it."""
    monkeypatch.setattr("segue.stores.file.store.OPEN_MAX", 1)
    disk = FaultyDisk()
    with open_directory(scratch, sync="os", disk=disk) as store:
        store.lock("one", ttl=60).acquire()
        two = store.lock("two", ttl=60)
        two.acquire().release()
        core = store._locks["two"]
        disk.fail(operation="sync_data", error=errno.EIO)
        core.let_go()
        disk.heal()

        assert core._log is None
        assert two.acquire(wait=0).is_held


# Memory and disk -----------------------------------------------------------------------------


def test_names_that_were_only_asked_for_are_forgotten(store: FileStore) -> None:
    """Everybody may ask a server for any name."""
    for number in range(100):
        store.lock(f"nobody-{number}").holder()
        store.topic(f"nobody-{number}").partitions  # noqa: B018 - Looking is all there is to it.
    gc.collect()

    assert len(store._locks) == 0
    assert len(store._topics) == 0
    assert [path.name for path in store.place.root.iterdir()] == ["segue.toml"]


def test_a_topic_that_was_used_stays_open(store: FileStore) -> None:
    """Nobody has to keep a handle for its files not to be opened again and again."""
    store.topic("orders", partitions=1).append(b"a")
    core = store._topics["orders"]
    log = core.log(0)
    del core
    gc.collect()
    store.topic("orders").append(b"b")

    assert store._topics["orders"].log(0) is log
    assert [record.value for record in store.topic("orders").records()] == [b"a", b"b"]


@pytest.mark.parametrize("step", ["renew", "release"])
def test_a_lock_that_was_never_taken_is_not_made_by_its_token(store: FileStore, step: str) -> None:
    """A typo, or a client that guesses names, leaves nothing on disk."""
    held = store.lock("nobody").held(7)
    with pytest.raises(LockLost):
        getattr(held, step)()

    assert [path.name for path in store.place.root.iterdir()] == ["segue.toml"]


def test_a_lock_of_the_parent_says_so_in_a_child_whether_its_files_are_open_or_not(
    store: FileStore,
) -> None:
    """In a child nobody frees what other threads of the parent held; it opens a store of its own.

    One that was never used is nobody's, and works.
    """
    gone, here = store.lock("gone", ttl=60), store.lock("here", ttl=60)
    gone.acquire().release()
    use_others(store)
    here.acquire().release()
    child = os.fork()
    if not child:
        code = 1
        try:
            for lock in (gone, here):
                with pytest.raises(LogClosed):
                    lock.acquire(wait=0)
            store.lock("new", ttl=60).acquire(wait=0).release()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert gone.acquire(wait=0).is_held
    assert here.acquire(wait=0).is_held
