"""Rings and locks on a server do what plain lists and one holder would.

The machines are those of the file store, with a server as their world. A restart of the machine
that clients run on leaves the server's locks as they are.
"""

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from segue.stores.contract import Store
from tests.contract.worlds import RedisWorld
from tests.property.test_lock_model import LockMachine
from tests.property.test_ring_model import (
    HANDLES,
    STEPS,
    TTL_SECONDS,
    RingMachine,
    RingModel,
    Step,
)

ENDINGS = st.sampled_from(["crash", "close"])


class RedisRingMachine(RingMachine):
    """One ring on a server."""

    @initialize(
        segments=st.integers(min_value=1, max_value=3),
        per_segment=st.integers(min_value=1, max_value=4),
    )
    def begin(self, segments: int, per_segment: int) -> None:
        """Take a server in place of a directory."""
        self.world = RedisWorld(Path())  # type: ignore[assignment]
        self.stores = [self.world.open(), self.world.open()]
        self.model = RingModel(capacity=segments * per_segment)
        self.stores[0].ring(
            "bus", capacity=self.model.capacity, entries_per_segment=per_segment, mode="create"
        )

    @rule(handle=HANDLES, how=ENDINGS)
    def open_again(self, handle: int, how: str) -> None:
        """Restart nothing but one client."""
        self._forget(self.stores[handle])
        self.stores[handle] = _opened_again(self, handle, how)

    @rule(
        handle=HANDLES,
        steps=st.lists(STEPS, min_size=1, max_size=6),
        others=st.sampled_from(["enqueue", "transaction", "nobody"]),
        late_steps=st.lists(STEPS, max_size=2),
    )
    def outlast_a_lock(
        self, handle: int, steps: list[Step], others: str, late_steps: list[Step]
    ) -> None:
        """Commit after the lock expired: it counts if nobody came in between. Rare by chance."""
        self.world.clock.advance(seconds=TTL_SECONDS)
        self.start_a_transaction(handle=handle, txn_id="a", steps=steps, commits=False)
        pending = self.pending[-1]
        self.world.clock.advance(seconds=TTL_SECONDS)
        if others == "enqueue":
            self.enqueue(handle=1 - handle, body=b"other", overwrite=True, txn_id=None)
        elif others == "transaction":
            self.start_a_transaction(handle=1 - handle, txn_id="b", steps=steps, commits=False)
        self._make(pending, late_steps)
        self.pending.remove(pending)
        self._commit(pending)


class RedisLockMachine(LockMachine):
    """One lock on a server."""

    @initialize()
    def begin(self) -> None:
        """Take a server in place of a directory."""
        self.world = RedisWorld(Path())  # type: ignore[assignment]
        self.stores = [self.world.open(), self.world.open()]

    @rule(handle=HANDLES, how=ENDINGS)
    def open_again(self, handle: int, how: str) -> None:
        """Restart nothing but one client."""
        store = self.stores[handle]
        self.holds = [hold for hold in self.holds if hold.handle is not store]
        self.stores[handle] = _opened_again(self, handle, how)


def _opened_again(machine: RingMachine | LockMachine, handle: int, how: str) -> Store:
    store = machine.stores[handle]
    if how == "crash":
        machine.world.crash(store)
    else:
        store.close()
    return machine.world.open()


TestRedisRingMachine = RedisRingMachine.TestCase
TestRedisRingMachine.settings = settings(max_examples=settings().max_examples)
TestRedisLockMachine = RedisLockMachine.TestCase
TestRedisLockMachine.settings = settings(max_examples=settings().max_examples)
