"""What a lock promises on every store."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from segue.delivery import lock as lock_state
from segue.errors import InvalidArgument, LockBusy, LockLost, StoreClosed
from segue.stores.contract import HeldLock, Lock, Store
from segue.testing import ManualClock
from tests.contract.worlds import World
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture
def lock(store: Store) -> Lock:
    return store.lock("leader", ttl=10)


@pytest.fixture
def there(lock: Lock, other: Store) -> Lock:
    """The same lock in another process."""
    return other.lock("leader", ttl=10)


# Taking it ---------------------------------------------------------------------------------


def test_a_lock_is_held_by_one(lock: Lock, there: Lock) -> None:
    held = lock.acquire(owner="ann")
    with pytest.raises(LockBusy) as refusal:
        there.acquire(wait=0)

    assert held.is_held
    assert (refusal.value.name, refusal.value.owner) == ("leader", "ann")
    assert refusal.value.seconds_left == 10.0


def test_the_holder_does_not_get_it_twice(lock: Lock, store: Store) -> None:
    """It is not reentrant, through whichever object it is asked for."""
    lock.acquire()

    for again in (lock, store.lock("leader")):
        with pytest.raises(LockBusy):
            again.acquire(wait=0)


def test_a_lock_that_was_released_can_be_had(lock: Lock, there: Lock) -> None:
    lock.acquire().release()

    assert there.acquire(wait=0).is_held


def test_locks_of_other_names_are_other_locks(lock: Lock, store: Store) -> None:
    lock.acquire()

    assert store.lock("follower").acquire(wait=0).is_held


def test_a_lock_that_expired_can_be_had(lock: Lock, there: Lock, clock: ManualClock) -> None:
    lock.acquire()
    clock.advance(seconds=9.999)
    with pytest.raises(LockBusy):
        there.acquire(wait=0)
    clock.advance(ms=1)

    assert there.acquire(wait=0).is_held


def test_tokens_grow_with_every_acquisition(
    lock: Lock, there: Lock, store: Store, world: World
) -> None:
    """For ever: over releases, expiries, processes, kills and restarts of the machine."""
    tokens = []
    for turn in range(4):
        held = (lock, there)[turn % 2].acquire(wait=0)
        tokens.append(held.token)
        held.release()
    tokens.append(lock.acquire(wait=0).token)
    world.clock.advance(seconds=10)
    tokens.append(there.acquire(wait=0).token)
    world.clock.advance(seconds=10)
    world.crash(store)
    tokens.append(world.open().lock("leader").acquire(wait=0).token)
    world.restart(leases_last=30)
    tokens.append(world.open().lock("leader").acquire(wait=0).token)

    assert tokens[0] > 0
    assert tokens == sorted(set(tokens))


def test_tokens_grow_however_often_a_lock_is_taken(
    lock: Lock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lock takes up is bounded, and nothing is forgotten with what is deleted."""
    monkeypatch.setattr(lock_state, "UNSAVED_RECORDS_MAX", 100)
    tokens = []
    for _ in range(120):
        held = lock.acquire(wait=0)
        tokens.append(held.token)
        held.release()
    last = lock.acquire(wait=0)
    late = world.open().lock("leader")

    assert tokens == sorted(set(tokens))
    assert (late.holder() or ("", 0, 0.0))[1] == last.token > tokens[-1]


def test_a_call_gives_up_after_the_wait_it_was_given(lock: Lock, there: Lock) -> None:
    lock.acquire()

    with pytest.raises(LockBusy):
        there.acquire(wait=0.02)
    with pytest.raises(TimeoutError):
        there.acquire(wait=timedelta(milliseconds=20))


def test_who_waits_gets_it_when_it_is_released(lock: Lock, there: Lock) -> None:
    held = lock.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(there.acquire, wait=LIMIT_SECONDS)
        held.release()
        token = waiting.result(LIMIT_SECONDS).token

    assert token > held.token


def test_who_waits_gets_it_when_it_expires(lock: Lock, there: Lock, clock: ManualClock) -> None:
    held = lock.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(there.acquire)
        clock.advance(seconds=10)
        token = waiting.result(LIMIT_SECONDS).token

    assert token > held.token


def test_many_who_want_it_get_it_one_after_the_other(store: Store, other: Store) -> None:
    """Never two holders, in threads that share a handle and in processes that do not."""
    locks = [store.lock("busy", ttl=60), store.lock("busy", ttl=60), other.lock("busy", ttl=60)]
    inside = threading.Lock()
    tokens: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            held = locks[number % 3].acquire(wait=LIMIT_SECONDS)
            assert inside.acquire(blocking=False)
            tokens.append(held.token)
            inside.release()
            held.release()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))

    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("ttl", [0, -1, 0.0009, 8 * 86_400, "1", True, None, float("inf")])
def test_a_lock_lasts_a_millisecond_to_a_week(store: Store, lock: Lock, ttl: float) -> None:
    held = lock.acquire()
    with pytest.raises(InvalidArgument):
        store.lock("odd", ttl=ttl)
    if ttl is not None:
        with pytest.raises(InvalidArgument):
            held.renew(ttl=ttl)

    assert store.locks() == ["leader"]


@pytest.mark.parametrize("wait", [-1, "1", float("nan"), True])
def test_a_wait_that_makes_no_sense_is_refused(lock: Lock, store: Store, wait: float) -> None:
    with pytest.raises(InvalidArgument):
        lock.acquire(wait=wait)

    assert store.locks() == []


@pytest.mark.parametrize("owner", ["", "x" * 201, 7, b"ann"])
def test_an_owner_that_makes_no_sense_is_refused(lock: Lock, store: Store, owner: str) -> None:
    with pytest.raises(InvalidArgument):
        lock.acquire(owner=owner)

    assert store.locks() == []


def test_a_lock_needs_a_plain_name(store: Store) -> None:
    with pytest.raises(InvalidArgument):
        store.lock("../leader")


# By its token ------------------------------------------------------------------------------


def test_a_lock_goes_on_by_its_token(lock: Lock, there: Lock, clock: ManualClock) -> None:
    """Whoever has the token holds the lock: another process, or one that was started anew."""
    token = lock.acquire().token
    held = there.held(token)
    clock.advance(seconds=9)
    held.renew()
    clock.advance(seconds=9)
    with pytest.raises(LockBusy):
        lock.acquire(wait=0)

    assert (held.name, held.token, held.is_held) == ("leader", token, True)
    held.release()
    assert not held.is_held
    assert lock.acquire(wait=0).token > token


def test_a_token_that_holds_nothing_is_lost(lock: Lock, there: Lock, clock: ManualClock) -> None:
    """Of a lock that expired, was released, or was never acquired like that."""
    expired = lock.acquire().token
    clock.advance(seconds=10)
    now = lock.acquire(wait=0)
    for token in (expired, now.token + 1):
        late = there.held(token)
        for step in (late.renew, late.release):
            with pytest.raises(LockLost) as loss:
                step()
            assert (loss.value.name, loss.value.token) == ("leader", token)
        assert not late.is_held

    assert now.is_held


def test_asking_by_a_token_touches_nothing(lock: Lock, store: Store) -> None:
    lock.held(7)

    assert store.locks() == []


def test_a_lock_that_was_never_taken_is_lost_and_not_made(lock: Lock, store: Store) -> None:
    """Whoever has a token of another store, or guesses one, changes nothing."""
    held = lock.held(7)
    for step in (held.renew, held.release):
        with pytest.raises(LockLost) as loss:
            step()
        assert (loss.value.name, loss.value.token) == ("leader", 7)

    assert not held.is_held
    assert lock.holder() is None
    assert store.locks() == []


@pytest.mark.parametrize("token", [0, -1, 1 << 53, "1", True, None, 1.0])
def test_a_token_that_makes_no_sense_is_refused(lock: Lock, token: int) -> None:
    with pytest.raises(InvalidArgument):
        lock.held(token)


# Who holds it ------------------------------------------------------------------------------


def test_anybody_can_ask_who_holds_it(lock: Lock, there: Lock, clock: ManualClock) -> None:
    held = lock.acquire(owner="ann")
    clock.advance(seconds=4)

    assert there.holder() == lock.holder() == ("ann", held.token, 6.0)


def test_nobody_holds_what_is_free(lock: Lock, there: Lock, clock: ManualClock) -> None:
    assert lock.holder() is None
    lock.acquire().release()
    assert there.holder() is None
    there.acquire()
    clock.advance(seconds=10)
    assert lock.holder() is None


def test_an_owner_is_named_by_host_process_and_thread(lock: Lock) -> None:
    lock.acquire()
    holder = lock.holder()

    assert holder is not None
    assert holder[0].endswith(f":{threading.current_thread().name}")
    assert holder[0].count(":") >= 2


def test_a_lock_exists_once_it_was_taken(lock: Lock, store: Store, other: Store) -> None:
    """Asking for it makes nothing, and releasing it forgets nothing."""
    store.lock("never").holder()
    assert store.locks() == []
    lock.acquire().release()

    assert store.locks() == other.locks() == ["leader"]


# Keeping it and losing it ------------------------------------------------------------------


def test_renewing_holds_it_from_now_on(lock: Lock, there: Lock, clock: ManualClock) -> None:
    held = lock.acquire()
    clock.advance(seconds=9)
    held.renew()
    clock.advance(seconds=9)

    assert held.is_held
    assert (there.holder() or ("", 0, 0.0))[2] == 1.0


def test_renewing_may_ask_for_another_time(lock: Lock, there: Lock, clock: ManualClock) -> None:
    held = lock.acquire()
    held.renew(ttl=timedelta(minutes=1))
    clock.advance(seconds=59)
    with pytest.raises(LockBusy):
        there.acquire(wait=0)
    held.renew(ttl=0.5)
    clock.advance(ms=500)

    assert there.acquire(wait=0).is_held


def test_an_expired_lock_is_lost_even_if_nobody_took_it(lock: Lock, clock: ManualClock) -> None:
    held = lock.acquire()
    clock.advance(seconds=10)

    assert not held.is_held
    for step in (held.renew, held.release):
        with pytest.raises(LockLost) as loss:
            step()
        assert (loss.value.name, loss.value.token) == ("leader", held.token)


def test_a_lock_that_was_taken_over_is_lost(lock: Lock, there: Lock, clock: ManualClock) -> None:
    """The token tells the two apart; the late one disturbs nobody."""
    late = lock.acquire()
    clock.advance(seconds=10)
    held = there.acquire(wait=0)
    for step in (late.renew, late.release):
        with pytest.raises(LockLost):
            step()

    assert not late.is_held
    assert held.is_held
    assert (lock.holder() or ("", 0, 0.0))[1] == held.token


def test_what_was_released_is_not_ours(lock: Lock) -> None:
    held = lock.acquire()
    held.release()

    assert not held.is_held
    for step in (held.renew, held.release):
        with pytest.raises(LockLost):
            step()


def test_setting_the_wall_clock_changes_nothing(
    lock: Lock, there: Lock, clock: ManualClock
) -> None:
    held = lock.acquire()
    clock.step(seconds=86_400)
    with pytest.raises(LockBusy):
        there.acquire(wait=0)
    clock.step(seconds=-10 * 86_400)
    held.renew()
    clock.advance(seconds=10)

    assert there.acquire(wait=0).is_held


def test_a_dead_process_holds_it_until_it_expires(
    lock: Lock, there: Lock, store: Store, world: World
) -> None:
    lock.acquire()
    world.crash(store)
    with pytest.raises(LockBusy):
        there.acquire(wait=0)
    world.clock.advance(seconds=10)

    assert there.acquire(wait=0).is_held


def test_closing_the_store_lets_go_of_nothing(
    lock: Lock, there: Lock, store: Store, clock: ManualClock
) -> None:
    held = lock.acquire()
    store.close()

    assert not held.is_held
    with pytest.raises(LockBusy):
        there.acquire(wait=0)
    clock.advance(seconds=10)
    assert there.acquire(wait=0).is_held


def test_a_lock_does_not_outlast_the_machine(lock: Lock, world: World) -> None:
    """Ticks start over with the machine, so a deadline from before says nothing."""
    world.clock.advance(seconds=100)
    before = lock.acquire()
    world.restart(leases_last=30)
    after = world.open().lock("leader")

    assert after.holder() is None
    assert after.acquire(wait=0).token > before.token


# With --------------------------------------------------------------------------------------


def test_a_with_block_holds_the_lock_and_releases_it(lock: Lock, there: Lock) -> None:
    with lock as held:
        assert held.is_held
        assert (there.holder() or ("", 0, 0.0))[1] == held.token

    assert not held.is_held
    assert there.acquire(wait=0).is_held


def test_an_exception_releases_the_lock(lock: Lock, there: Lock) -> None:
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError

    assert there.acquire(wait=0).is_held


def test_a_with_block_keeps_the_lock_alive(store: Store, clock: ManualClock) -> None:
    """The heart beats in real time; each beat holds the lock from the clock's now on."""
    lock = store.lock("brief", ttl=0.03)
    with lock as held:
        first = lock.holder()
        clock.advance(ms=20)
        wait_until(lambda: (lock.holder() or ("", 0, 0.0))[2] >= 0.02)
        clock.advance(ms=20)
        wait_until(lambda: held.is_held)  # A server may know of a beat before we do.

    assert first is not None
    assert first[2] == 0.03


def test_a_block_that_lost_its_lock_says_so(lock: Lock, there: Lock, clock: ManualClock) -> None:
    """Whoever relied on the lock must not go on as if nothing had happened."""

    def lose_it() -> None:
        with lock:
            clock.advance(seconds=10)
            there.acquire(wait=0)

    with pytest.raises(LockLost):
        lose_it()


def test_an_exception_is_not_hidden_by_the_loss_of_the_lock(lock: Lock, clock: ManualClock) -> None:
    def lose_it_and_fail() -> None:
        with lock:
            clock.advance(seconds=10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lose_it_and_fail()


def test_threads_may_share_the_object(store: Store) -> None:
    """Each `with` block releases what it acquired itself."""
    lock = store.lock("shared", ttl=60)
    inside = threading.Lock()
    tokens: list[int] = []

    def work(_: int) -> None:
        for _ in range(5):
            with lock as held:
                assert inside.acquire(blocking=False)
                tokens.append(held.token)
                inside.release()
            assert not held.is_held

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))

    assert len(tokens) == 20
    assert tokens == sorted(set(tokens))


def test_a_closed_store_has_no_lock(lock: Lock, store: Store) -> None:
    held: HeldLock = lock.acquire()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: lock.acquire(wait=0),
        lock.holder,
        held.renew,
        held.release,
        lambda: store.lock("leader"),
        store.locks,
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()
