"""A lock does what one holder and one deadline would, whatever is done to it in whatever order."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from segue.delivery import lock as rules
from segue.errors import LockBusy, LockLost
from segue.log.options import SyncName
from segue.stores.contract import HeldLock, Lock, Store
from tests.contract.worlds import FileWorld

HANDLES = st.integers(min_value=0, max_value=1)
OWNERS = st.sampled_from(["ann", "bob"])
PICKS = st.integers(min_value=0, max_value=7)
TTLS_MS = st.sampled_from([1, 500, 1_000])


@dataclass(kw_only=True)
class Hold:
    """An acquisition that somebody still believes in, rightly or not."""

    held: HeldLock
    handle: Store
    ttl_us: int


class LockMachine(RuleBasedStateMachine):
    """One lock through two handles, which crash."""

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")
        base = shared_memory if shared_memory.is_dir() else None
        self.scratch = Path(tempfile.mkdtemp(prefix="segue-lock-", dir=base))
        self.holds: list[Hold] = []
        self.token = 0
        """Given last."""
        self.holder: tuple[str, int, int] | None = None
        """Owner, token and deadline in ticks of who was given it last and has not released it."""

    @initialize(sync=st.sampled_from(["os", "always"]))
    def begin(self, sync: SyncName) -> None:
        self.world = FileWorld(self.scratch / "data", sync=sync)
        self.stores: list[Store] = [self.world.open(), self.world.open()]

    def lock(self, handle: int, *, ttl_ms: int = 1_000) -> Lock:
        return self.stores[handle].lock("leader", ttl=ttl_ms / 1_000)

    def now_us(self) -> int:
        return self.world.clock.ticks()

    def is_held(self) -> bool:
        return self.holder is not None and self.now_us() < self.holder[2]

    # Time and processes ----------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 1, 400, 700, 1_000]), step_seconds=st.sampled_from([0, -99, 99]))
    def let_time_pass(self, ms: int, step_seconds: int) -> None:
        self.world.clock.advance(ms=ms)
        self.world.clock.step(seconds=step_seconds)

    @rule(handle=HANDLES, how=st.sampled_from(["crash", "crash", "close", "close", "restart"]))
    def open_again(self, handle: int, how: str) -> None:
        store = self.stores[handle]
        if how == "restart":
            self.holds = []
            self.holder = None
            self.world.restart()
            self.stores = [self.world.open(), self.world.open()]
            return
        self.holds = [hold for hold in self.holds if hold.handle is not store]
        if how == "crash":
            self.world.crash(store)
        else:
            store.close()
        self.stores[handle] = self.world.open()

    # Steps -----------------------------------------------------------------------------------

    @rule(handle=HANDLES, owner=OWNERS, ttl_ms=TTLS_MS)
    def acquire(self, handle: int, owner: str, ttl_ms: int) -> None:
        lock = self.lock(handle, ttl_ms=ttl_ms)
        if self.is_held():
            assert self.holder is not None
            with pytest.raises(LockBusy) as refusal:
                lock.acquire(wait=0, owner=owner)
            assert refusal.value.owner == self.holder[0]
            return
        held = lock.acquire(wait=0, owner=owner)
        assert held.token > self.token
        self.token = held.token
        ttl_us = ttl_ms * 1_000
        self.holder = (owner, held.token, self.now_us() + ttl_us)
        self.holds.append(Hold(held=held, handle=self.stores[handle], ttl_us=ttl_us))

    def pick(self, number: int) -> tuple[Hold, bool]:
        """Return an acquisition, the newest most of the time, and whether it still counts."""
        hold = self.holds[-1 if number > 2 else number % len(self.holds)]
        is_ours = self.is_held() and self.holder is not None and self.holder[1] == hold.held.token
        return hold, is_ours

    @precondition(lambda self: self.holds)
    @rule(number=PICKS, ttl_ms=st.none() | TTLS_MS)
    def renew(self, number: int, ttl_ms: int | None) -> None:
        hold, is_ours = self.pick(number)
        ttl = None if ttl_ms is None else ttl_ms / 1_000
        if not is_ours:
            with pytest.raises(LockLost):
                hold.held.renew(ttl=ttl)
            assert not hold.held.is_held
            return
        hold.held.renew(ttl=ttl)
        assert self.holder is not None
        ttl_us = hold.ttl_us if ttl_ms is None else ttl_ms * 1_000
        self.holder = (self.holder[0], self.holder[1], self.now_us() + ttl_us)
        assert hold.held.is_held

    @precondition(lambda self: self.holds)
    @rule(number=PICKS)
    def release(self, number: int) -> None:
        hold, is_ours = self.pick(number)
        if not is_ours:
            with pytest.raises(LockLost):
                hold.held.release()
        else:
            hold.held.release()
            self.holder = None
        assert not hold.held.is_held

    # What always holds -----------------------------------------------------------------------

    @invariant()
    def every_handle_sees_the_same_holder(self) -> None:
        if not hasattr(self, "world"):
            return
        expected = None
        if self.holder is not None and self.is_held():
            owner, token, deadline_us = self.holder
            expected = (owner, token, (deadline_us - self.now_us()) / 1_000_000)
        assert [self.lock(handle).holder() for handle in (0, 1)] == [expected, expected]

    @invariant()
    def at_most_one_believes_to_hold_it(self) -> None:
        """By now every handle has looked, so nobody can be mistaken."""
        believers = [hold.held.token for hold in self.holds if hold.held.is_held]
        assert believers in (
            [],
            [] if self.holder is None else [self.holder[1]],
        )
        assert not believers or self.is_held()

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.world.end()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)


@pytest.fixture(autouse=True)
def often_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and deletions after every few steps instead of every thousand."""
    monkeypatch.setattr(rules, "UNSAVED_RECORDS_MAX", 4)


TestLockMachine = LockMachine.TestCase
TestLockMachine.settings = settings(max_examples=settings().max_examples)
