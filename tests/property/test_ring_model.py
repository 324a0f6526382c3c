"""A ring does what a plain list with heads would, whatever is done to it in whatever order."""

import shutil
import tempfile
from dataclasses import dataclass, field
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

from segue.delivery import ring as rules
from segue.errors import InvalidArgument, LockBusy, RingFull, TransactionAborted
from segue.log.options import SyncName
from segue.stores.contract import Ring, Store, Transaction
from tests.contract.worlds import FileWorld

NAMES = st.sampled_from(["default", "audit", "slow"])
BODIES = st.binary(max_size=12)
HANDLES = st.integers(min_value=0, max_value=1)
TXN_IDS = st.sampled_from(["a", "b", "c"])
PICKS = st.integers(min_value=0, max_value=7)
Step = str | tuple[bytes, bool]
"""A group to dequeue for, or a body to enqueue and whether to overwrite."""
STEPS: st.SearchStrategy[Step] = st.one_of(NAMES, st.tuples(BODIES, st.booleans()))
TTL_SECONDS = 1.0


@dataclass(kw_only=True)
class RingModel:
    """A ring, or one on paper that a transaction may make true."""

    capacity: int
    entries: list[bytes] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=lambda: {"default": 0})

    def copy(self) -> "RingModel":
        return RingModel(capacity=self.capacity, entries=list(self.entries), heads=dict(self.heads))

    @property
    def head(self) -> int:
        return min(self.heads.values())

    def enqueue(self, body: bytes, *, overwrite: bool) -> int | None:
        """Return the offset, or None if the ring is full."""
        if len(self.entries) - self.head == self.capacity:
            if not overwrite:
                return None
            least = self.head + 1
            self.heads = {name: max(head, least) for name, head in self.heads.items()}
        self.entries.append(body)
        return len(self.entries) - 1

    def dequeue(self, group: str) -> tuple[int, bytes] | None:
        head = self.heads[group]
        if head == len(self.entries):
            return None
        self.heads[group] += 1
        return head, self.entries[head]


@dataclass(kw_only=True)
class Pending:
    """A transaction and what it has done on paper."""

    transaction: Transaction
    handle: Store
    paper: RingModel
    taken_for: set[str] = field(default_factory=set)
    is_broken: bool = False
    group_change: bool = False
    """Whether groups came or went since: then it may be refused."""


class RingMachine(RuleBasedStateMachine):
    """One ring through two handles, which crash, against a list."""

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")
        base = shared_memory if shared_memory.is_dir() else None
        self.scratch = Path(tempfile.mkdtemp(prefix="segue-ring-", dir=base))
        self.pending: list[Pending] = []
        self.outcomes: dict[str, tuple[range, dict[str, range]]] = {}
        self.tokens = [0]

    @initialize(
        sync=st.sampled_from(["os", "always"]),
        segments=st.integers(min_value=1, max_value=3),
        per_segment=st.integers(min_value=1, max_value=4),
    )
    def begin(self, sync: SyncName, segments: int, per_segment: int) -> None:
        self.world = FileWorld(self.scratch / "data", sync=sync)
        self.stores: list[Store] = [self.world.open(), self.world.open()]
        self.model = RingModel(capacity=segments * per_segment)
        self.stores[0].ring(
            "bus", capacity=self.model.capacity, entries_per_segment=per_segment, mode="create"
        )

    def ring(self, handle: int) -> Ring:
        return self.stores[handle].ring("bus", mode="open")

    # Time and processes ----------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 1, 400, 700, 1_000]), step_seconds=st.sampled_from([0, -99, 99]))
    def let_time_pass(self, ms: int, step_seconds: int) -> None:
        self.world.clock.advance(ms=ms)
        self.world.clock.step(seconds=step_seconds)

    @rule(handle=HANDLES, how=st.sampled_from(["crash", "crash", "close", "close", "restart"]))
    def open_again(self, handle: int, how: str) -> None:
        store = self.stores[handle]
        self._forget(store)
        if how == "restart":
            self._forget(self.stores[1 - handle])
            self.world.restart()
            self.holder = None
            self.stores = [self.world.open(), self.world.open()]
            return
        if how == "crash":
            self.world.crash(store)
        else:
            store.close()
        self.stores[handle] = self.world.open()

    def _forget(self, store: Store) -> None:
        """Drop the transactions of a process; its lock stays until it expires."""
        self.pending = [pending for pending in self.pending if pending.handle is not store]

    # The lock --------------------------------------------------------------------------------

    holder: tuple[str, int] | None = None
    """Who took the lock last, and until when, unless that is known to be over."""

    def is_held(self) -> bool:
        return self.holder is not None and self.world.clock.ticks() < self.holder[1]

    def take_over(self) -> None:
        """Whatever commits or locks from here on breaks every transaction there was."""
        self.holder = None
        for pending in self.pending:
            pending.is_broken = True

    @rule(
        handle=HANDLES,
        txn_id=TXN_IDS,
        steps=st.lists(STEPS, max_size=6),
        commits=st.booleans(),
    )
    def start_a_transaction(
        self, handle: int, txn_id: str, steps: list[Step], commits: bool
    ) -> None:
        ring = self.ring(handle)
        if self.is_held():
            with pytest.raises(LockBusy):
                ring.transaction(txn_id, ttl=TTL_SECONDS, wait=0)
            return
        transaction = ring.transaction(txn_id, ttl=TTL_SECONDS, wait=0)
        self.take_over()
        deadline_us = self.world.clock.ticks() + 1_000_000
        self.holder = (txn_id, deadline_us)
        self.tokens.append(transaction.token)
        pending = Pending(
            transaction=transaction, handle=self.stores[handle], paper=self.model.copy()
        )
        self._make(pending, steps)
        if commits:
            self._commit(pending)
        else:
            self.pending.append(pending)

    def pick(self, number: int) -> Pending:
        """Return the newest transaction most of the time, an older one at others."""
        return self.pending[-1 if number > 2 else number % len(self.pending)]

    @precondition(lambda self: self.pending)
    @rule(number=PICKS, steps=st.lists(STEPS, min_size=1, max_size=6))
    def step_in_a_transaction(self, number: int, steps: list[Step]) -> None:
        self._make(self.pick(number), steps)

    def _make(self, pending: Pending, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, str):
                self._dequeue_in(pending, step)
            else:
                self._enqueue_in(pending, *step)

    def _enqueue_in(self, pending: Pending, body: bytes, overwrite: bool) -> None:
        if pending.is_broken:
            with pytest.raises(TransactionAborted):
                pending.transaction.enqueue(body)
            return
        expected = pending.paper.enqueue(body, overwrite=overwrite)
        if expected is None:
            with pytest.raises(RingFull):
                pending.transaction.enqueue(body, overwrite_if_full=overwrite)
        else:
            offset = pending.transaction.enqueue(body, overwrite_if_full=overwrite)
            assert offset == expected

    def _dequeue_in(self, pending: Pending, group: str) -> None:
        if pending.is_broken:
            with pytest.raises(TransactionAborted):
                pending.transaction.dequeue()
        elif group not in pending.paper.heads:
            with pytest.raises(InvalidArgument):
                pending.transaction.dequeue(group=group)
        else:
            entry = pending.transaction.dequeue(group=group)
            expected = pending.paper.dequeue(group)
            assert (entry and (entry.offset, entry.body)) == expected
            if expected is not None:
                pending.taken_for.add(group)

    @precondition(lambda self: self.pending)
    @rule(number=PICKS, succeeds=st.sampled_from([True, True, True, False]))
    def end_a_transaction(self, number: int, succeeds: bool) -> None:
        pending = self.pick(number)
        self.pending.remove(pending)
        if succeeds:
            self._commit(pending)
            return
        pending.transaction.abort()
        if not pending.is_broken:
            self._released()

    def _commit(self, pending: Pending) -> None:
        try:
            pending.transaction.commit()
        except TransactionAborted:
            assert pending.is_broken or pending.group_change
            if not pending.is_broken:
                pending.transaction.abort()  # It was refused, and holds the ring all the same.
                self._released()
            return
        assert not pending.is_broken
        self._adopt(pending)
        self.take_over()

    def _adopt(self, pending: Pending) -> None:
        first = len(self.model.entries)
        paper = pending.paper
        self.model.entries = paper.entries
        least = len(paper.entries) - self.model.capacity
        for name, head in self.model.heads.items():
            # Another group of the same name may stand where one did that it did not touch.
            moved = paper.heads[name] if name in pending.taken_for else head
            self.model.heads[name] = max(moved, least)
        outcome = self.ring(0).outcome(pending.transaction.txn_id)
        assert outcome is not None
        assert outcome.token == pending.transaction.token
        assert list(outcome.enqueued) == list(range(first, len(paper.entries)))
        self.outcomes[outcome.txn_id] = (outcome.enqueued, dict(outcome.dequeued))

    def _released(self) -> None:
        assert self.holder is not None
        self.holder = None

    # Single steps ----------------------------------------------------------------------------

    @rule(handle=HANDLES, body=BODIES, overwrite=st.booleans(), txn_id=st.none() | TXN_IDS)
    def enqueue(self, handle: int, body: bytes, overwrite: bool, txn_id: str | None) -> None:
        ring = self.ring(handle)
        if self.is_held():
            with pytest.raises(LockBusy):
                ring.enqueue(body, txn_id, overwrite_if_full=overwrite, wait=0)
            return
        expected = self.model.enqueue(body, overwrite=overwrite)
        if expected is None:
            with pytest.raises(RingFull):
                ring.enqueue(body, txn_id, overwrite_if_full=overwrite, wait=0)
            return
        assert ring.enqueue(body, txn_id, overwrite_if_full=overwrite, wait=0) == expected
        self.take_over()
        if txn_id is not None:
            self.outcomes[txn_id] = (range(expected, expected + 1), {})

    @rule(handle=HANDLES, group=NAMES, txn_id=st.none() | TXN_IDS)
    def dequeue(self, handle: int, group: str, txn_id: str | None) -> None:
        ring = self.ring(handle)
        if self.is_held():
            with pytest.raises(LockBusy):
                ring.dequeue(txn_id, group=group, wait=0)
            return
        if group not in self.model.heads:
            with pytest.raises(InvalidArgument):
                ring.dequeue(txn_id, group=group, wait=0)
            return
        expected = self.model.dequeue(group)
        entry = ring.dequeue(txn_id, group=group, wait=0)
        assert (entry and (entry.offset, entry.body)) == expected
        if expected is not None:
            self.take_over()
            if txn_id is not None:
                taken = {group: range(expected[0], expected[0] + 1)}
                self.outcomes[txn_id] = (range(0), taken)

    @rule(handle=HANDLES, group=NAMES, at_tail=st.booleans())
    def add_group(self, handle: int, group: str, at_tail: bool) -> None:
        self.ring(handle).add_group(group, start="tail" if at_tail else "head")
        if group not in self.model.heads:
            self.model.heads[group] = len(self.model.entries) if at_tail else self.model.head
            self._groups_changed()

    @rule(handle=HANDLES, group=st.sampled_from(["audit", "slow"]))
    def remove_group(self, handle: int, group: str) -> None:
        was_there = self.model.heads.pop(group, None) is not None
        assert self.ring(handle).remove_group(group) == was_there
        self._groups_changed()

    def _groups_changed(self) -> None:
        for pending in self.pending:
            pending.group_change = True

    # What always holds -----------------------------------------------------------------------

    @invariant()
    def every_handle_sees_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        infos = [self.ring(handle).info() for handle in (0, 1)]
        assert infos[0] == infos[1]
        info = infos[0]
        assert dict(info.groups) == self.model.heads
        assert (info.head_offset, info.tail_offset) == (self.model.head, len(self.model.entries))
        assert (info.locked_by is not None) == self.is_held()
        if self.holder is not None and self.is_held():
            assert info.locked_by == self.holder[0]

    @invariant()
    def tokens_only_grow(self) -> None:
        if not hasattr(self, "model"):
            return
        self.tokens.append(self.ring(0).info().token)
        assert self.tokens == sorted(self.tokens)
        self.tokens = self.tokens[-1:]

    @rule(handle=HANDLES, number=st.integers(min_value=-1, max_value=60))
    def get(self, handle: int, number: int) -> None:
        entry = self.ring(handle).get(number)
        if self.model.head <= number < len(self.model.entries):
            assert entry is not None
            assert (entry.offset, entry.body) == (number, self.model.entries[number])
        else:
            assert entry is None

    @rule(handle=HANDLES, txn_id=TXN_IDS)
    def look_up_an_outcome(self, handle: int, txn_id: str) -> None:
        outcome = self.ring(handle).outcome(txn_id)
        known = outcome and (outcome.enqueued, dict(outcome.dequeued))
        assert known == self.outcomes.get(txn_id)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.world.end()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)


@pytest.fixture(autouse=True)
def often_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and deletions after every few steps instead of every thousand."""
    monkeypatch.setattr(rules, "UNSAVED_RECORDS_MAX", 7)


TestRingMachine = RingMachine.TestCase
TestRingMachine.settings = settings(max_examples=settings().max_examples)
