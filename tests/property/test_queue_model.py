"""A queue does what plain lists would, whoever does what to it in whatever order."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from segue import Item, QueueRules
from segue.errors import LeaseLost, QueueEmpty
from segue.stores.contract import Outcome, Queue, Store
from segue.stores.file import core, delivering, journal, upkeep
from tests.contract.worlds import FileWorld, World
from tests.property.queue_model import MessageModel, QueueModel

DELIVERIES_MAX = 3
WINDOW_SECONDS = 20
HANDLES = st.integers(min_value=0, max_value=2)
NUMBERS = st.integers(min_value=0, max_value=255)
PRIORITIES = st.sampled_from([0, 0, 0, 1, 5])
TTLS = st.none() | st.integers(min_value=1, max_value=30)
DELAYS = st.none() | st.integers(min_value=1, max_value=15)
KEYS = st.none() | st.sampled_from("ab")
GROUPS = st.none() | st.sampled_from("xyz")
LIMITS = st.sampled_from([(0, 1), (0, 1), (0, 1), (1, 2), (2, 1), (5, 3)])
"""Seconds between deliveries, and how many may come at once."""
COUNTS = st.integers(min_value=1, max_value=5)
Action = Literal["ack", "extend", "release", "fail", "dead"]
ACTIONS: st.SearchStrategy[tuple[Action, int | None]] = st.tuples(
    st.sampled_from(["ack", "extend", "release", "fail", "fail", "dead"]),
    st.none() | st.integers(min_value=0, max_value=9),
)
RULES = QueueRules(
    max_deliveries=DELIVERIES_MAX,
    backoff_jitter=0,
    dedup_window=WINDOW_SECONDS,
    segment_items=3,
)
ITEMS = st.builds(
    lambda priority, delay, ttl, key, group: Item(
        body=b"", priority=priority, delay=delay, ttl=ttl, key=key, group=group
    ),
    PRIORITIES,
    DELAYS,
    TTLS,
    KEYS,
    GROUPS,
)
SMALL = [
    (journal, "CHECKPOINT_EVENTS", 12),
    (journal, "CHECKPOINT_BATCH", 5),
    (journal, "LEDGER_KEPT_BYTES", 100_000),
    (journal, "FETCH_EVENTS", 3),
    (core, "ABSORB_ITEMS", 2),
    (delivering, "GROUPED_ITEMS_MAX", 2),
    (upkeep, "TIDY_EVERY_ITEMS", 4),
    (upkeep, "PINNED_SEGMENTS_MAX", 1),
    (upkeep, "CARRY_SEGMENTS_MAX", 2),
]
"""Limits that are large in life, and so small here that they are met all the time."""


def scratch_directory() -> Path:
    """Return an empty directory, in memory if there is some."""
    shared_memory = Path("/dev/shm")
    base = shared_memory if shared_memory.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="segue-queue-", dir=base))


class QueueMachine(RuleBasedStateMachine):
    """One queue through three handles, each as another process would have it, against a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = scratch_directory()
        self.patch = pytest.MonkeyPatch()
        self.world = self.make_world()
        self.clock = self.world.clock
        self.stores: list[Store] = [self.world.open() for _ in range(3)]
        self.handles = [store.queue("jobs", RULES) for store in self.stores]
        self.model = QueueModel(deliveries_max=DELIVERIES_MAX, window_us=WINDOW_SECONDS * 1_000_000)
        self.pushed = 0
        self.steps = 0
        self.edges: set[int] = set()
        """Times at which something happens by the clock alone."""

    def make_world(self) -> World:
        """Return where the queue is to be, with limits that are met all the time."""
        for module, name, value in SMALL:
            self.patch.setattr(module, name, value)
        return FileWorld(self.scratch / "data", sync="os")

    def look(self, handle: int) -> Queue:
        """Return a handle; whatever it does first, it notices what has ended."""
        self.model.expire(self.clock.ticks())
        return self.handles[handle]

    # Pushing -------------------------------------------------------------------------------

    def expect(self, item: Item, id_: str) -> None:
        """Check what a push returned and take it in."""
        now_us = self.clock()
        holder = self.model.key_holder(item.key, now_us)
        if holder is not None:
            assert id_ == holder
            return
        assert isinstance(item.body, bytes)
        assert isinstance(item.priority, int)
        message = MessageModel(
            id=id_,
            body=item.body,
            priority=item.priority,
            expires_us=self.moment(item.ttl),
            not_before_us=self.moment(item.delay) or 0,
            group=item.group,
        )
        assert message.is_aside == (item.delay is not None)
        self.model.push(message, item.key, now_us)
        if item.key is not None:
            self.edges.add(now_us + self.model.window_us)

    def moment(self, seconds: object) -> int | None:
        if seconds is None:
            return None
        assert isinstance(seconds, int)
        moment_us = self.clock() + seconds * 1_000_000
        self.edges.add(moment_us)
        return moment_us

    def numbered(self, item: Item) -> Item:
        self.pushed += 1
        return Item(
            body=b"%d" % self.pushed,
            priority=item.priority,
            delay=item.delay,
            ttl=item.ttl,
            key=item.key,
            group=item.group,
        )

    @rule(handle=HANDLES, item=ITEMS)
    def push(self, handle: int, item: Item) -> None:
        item = self.numbered(item)
        id_ = self.look(handle).push(
            item.body,
            priority=item.priority,
            delay=item.delay,
            ttl=item.ttl,
            key=item.key,
            group=item.group,
        )
        self.expect(item, id_)

    @rule(handle=HANDLES, items=st.lists(ITEMS, max_size=6))
    def push_many(self, handle: int, items: list[Item]) -> None:
        items = [self.numbered(item) for item in items]
        for item, id_ in zip(items, self.look(handle).push_many(items), strict=True):
            self.expect(item, id_)

    @rule(handle=HANDLES, count=st.integers(1, 12), priority=PRIORITIES, group=GROUPS)
    def push_several(self, handle: int, count: int, priority: int, group: str | None) -> None:
        """Make the queue grow faster than single steps would."""
        for _ in range(count):
            self.push(handle, Item(body=b"", priority=priority, group=group))

    # Delivering ----------------------------------------------------------------------------

    def next_delivery(
        self, count: int, *, settles: bool
    ) -> tuple[list[MessageModel], list[MessageModel]]:
        """Return what comes next if `count` are asked for, and what is outlived before that."""
        allowed = self.model.allowed(self.clock.ticks(), count)
        if self.model.paused or not allowed:
            return [], []
        return self.model.delivery(self.clock(), allowed, settles=settles)

    def expect_delivery(
        self, found: list[tuple[str, bytes, int, int]], count: int, *, settles: bool = False
    ) -> None:
        """Check that these come next, and take in what was found outlived on the way."""
        now_us = self.clock()
        model = self.model
        deliverable, gone = self.next_delivery(count, settles=settles)
        note(f"delivered {found}")
        assert len(found) <= len(deliverable)
        assert bool(found) == bool(deliverable)
        if found:
            # It may be less than was asked for: what lies behind that was not looked at.
            deliverable, gone = model.delivery(now_us, len(found), settles=settles)
        expected = [
            (message.id, message.body, message.priority, message.deliveries + 1)
            for message in deliverable
        ]
        assert self.in_order(found) == self.in_order(expected)
        in_turn = list(model.in_turn(now_us, settles=settles, gone=[each.id for each in gone]))
        for message in gone:
            model.outlive(message)
        dead = {letter.message.id for letter in self.handles[0].dead_letters()}
        for message in in_turn:
            # Met behind those that came, and dealt with or not.
            if message.is_outlived(now_us) and message.id in dead:
                model.outlive(message)
        model.saved_us -= len(found) * model.interval_us

    def in_order(self, found: list[tuple[str, bytes, int, int]]) -> object:
        """Return what of a delivery must be as the model says."""
        return found

    @rule(handle=HANDLES, count=COUNTS, seconds=st.integers(min_value=1, max_value=20))
    def lease(self, handle: int, count: int, seconds: int) -> None:
        jobs = self.look(handle).lease_many(count, ttl=seconds)
        self.expect_delivery([(j.id, j.body, j.priority, j.attempt) for j in jobs], count)
        for job in jobs:
            assert job.token > self.model.token
            deadline_us = self.clock.ticks() + seconds * 1_000_000
            self.model.lease(self.model.messages[job.id], job.token, deadline_us)
        self.model.token = max([self.model.token, *[job.token for job in jobs]])

    @rule(handle=HANDLES)
    def wait(self, handle: int) -> None:
        """Ask whether there is something, and take nothing."""
        queue = self.look(handle)
        expected, gone = self.next_delivery(1, settles=False)
        assert queue.wait(0) == bool(expected)
        for message in gone:
            self.model.outlive(message)

    @rule(handle=HANDLES)
    def lease_one(self, handle: int) -> None:
        queue = self.look(handle)
        if self.next_delivery(1, settles=False)[0]:
            job = queue.lease(ttl=10)
            self.expect_delivery([(job.id, job.body, job.priority, job.attempt)], 1)
            assert job.token > self.model.token
            self.model.token = job.token
            self.model.lease(
                self.model.messages[job.id], job.token, self.clock.ticks() + 10_000_000
            )
        else:
            with pytest.raises(QueueEmpty):
                queue.lease(ttl=10)
            self.expect_delivery([], 1)

    @rule(handle=HANDLES, count=COUNTS)
    def pop(self, handle: int, count: int) -> None:
        messages = self.look(handle).pop_many(count)
        found = [(str(m.id), m.body, m.priority, m.attempt) for m in messages]
        self.expect_delivery(found, count, settles=True)
        for message in messages:
            self.model.messages[message.id].state = "done"

    # Settling ------------------------------------------------------------------------------

    @precondition(lambda self: self.model.of("leased"))
    @rule(steps=st.lists(st.tuples(HANDLES, NUMBERS, ACTIONS), min_size=1, max_size=8))
    def settle(self, steps: list[tuple[int, int, tuple[Action, int | None]]]) -> None:
        for handle, number, (action, seconds) in steps:
            held = self.model.of("leased")
            if not held:
                return
            message = held[number % len(held)]
            queue = self.look(handle)
            if message.state != "leased":
                with pytest.raises(LeaseLost):
                    queue.ack(self.model.receipt(message))
            elif action == "ack":
                queue.ack(self.model.receipt(message))
                self.model.end_lease(message, "done")
            elif action == "extend":
                queue.extend(self.model.receipt(message), ttl=seconds or 1)
                message.deadline_us = self.clock.ticks() + (seconds or 1) * 1_000_000
            else:
                queue.nack(self.model.receipt(message), outcome=action, delay=seconds)
                self.give_back(message, action, seconds)

    def give_back(self, message: MessageModel, outcome: Outcome, delay: int | None) -> None:
        """Take in how a lease ended without success."""
        if outcome == "dead" or (outcome == "fail" and self.model.is_last(message)):
            self.model.end_lease(message, "dead")
            return
        if outcome == "release":
            seconds = delay or 0
            message.deliveries -= 1
        else:
            failures = message.deliveries - message.forgiven - 1
            seconds = 2**failures if delay is None else delay
        self.model.end_lease(message, "waiting", (self.moment(seconds) or 0) if seconds else 0)

    @rule(handle=HANDLES, numbers=st.lists(NUMBERS, max_size=8))
    def ack_many(self, handle: int, numbers: list[int]) -> None:
        """Settle some that are held and some that are not any more."""
        queue = self.look(handle)
        held = self.model.of("leased")
        chosen = {held[number % len(held)].id for number in numbers if held}
        messages = [self.model.messages[id_] for id_ in sorted(chosen)]
        stale = self.model.stale
        lost = {stale[number % len(stale)] for number in numbers if stale and number % 3 == 0}
        receipts = [*map(self.model.receipt, messages), *sorted(lost)]
        if lost:
            with pytest.raises(LeaseLost) as raised:
                queue.ack_many(receipts)
            assert set(raised.value.lost) == lost
        else:
            queue.ack_many(receipts)
        for message in messages:
            self.model.end_lease(message, "done")

    @precondition(lambda self: self.model.stale)
    @rule(handle=HANDLES, number=NUMBERS, way=st.integers(min_value=0, max_value=2))
    def settle_what_is_lost(self, handle: int, number: int, way: int) -> None:
        queue = self.look(handle)
        receipt = self.model.stale[number % len(self.model.stale)]
        with pytest.raises(LeaseLost):
            (queue.ack, queue.nack, queue.extend)[way](receipt)

    @rule(handle=HANDLES, count=st.integers(1, 9), number=NUMBERS)
    def work_off(self, handle: int, count: int, number: int) -> None:
        """Settle much and leave one behind, as a slow worker does."""
        self.lease(handle, count, 9)
        held = self.model.of("leased")
        if held:
            held.pop(number % len(held))
        self.look(handle).ack_many([self.model.receipt(message) for message in held])
        for message in held:
            self.model.end_lease(message, "done")

    # Operating -----------------------------------------------------------------------------

    @rule(handle=HANDLES, limit=LIMITS, places=st.sampled_from([1, 1, 2, 3]))
    def configure(self, handle: int, limit: tuple[int, int], places: int) -> None:
        seconds, burst = limit
        rate = 1 / seconds if seconds else None
        rules = replace(RULES, rate=rate, rate_burst=burst, group_concurrency=places)
        self.look(handle).configure(rules)
        self.model.places = places
        self.model.set_rate(seconds * 1_000_000, burst)

    @rule(handle=HANDLES, other=HANDLES)
    def pause_and_resume(self, handle: int, other: int) -> None:
        self.look(handle).pause()
        self.model.paused = True
        self.pop(other, 3)
        self.what_comes_next_is_what_would_come_next()
        self.look(other).resume()
        self.model.paused = False

    @precondition(lambda self: len(self.model.of("waiting")) > 15)
    @rule(handle=HANDLES)
    def purge(self, handle: int) -> None:
        queue = self.look(handle)
        waiting = self.model.of("waiting")
        assert queue.purge() == len(waiting)
        for message in waiting:
            message.state = "done"

    @precondition(lambda self: self.model.dead)
    @rule(handle=HANDLES, limit=st.none() | st.integers(min_value=0, max_value=3))
    def redrive(self, handle: int, limit: int | None) -> None:
        queue = self.look(handle)
        chosen = [letter.message.id for letter in queue.dead_letters(limit=limit)]
        report = queue.redrive(limit=limit)
        assert (report.matched, report.redriven) == (len(chosen), len(chosen))
        for id_ in chosen:
            self.model.revive(id_)

    @precondition(lambda self: len(self.model.dead) > 2)
    @rule(handle=HANDLES, limit=st.none() | st.integers(min_value=0, max_value=3))
    def discard(self, handle: int, limit: int | None) -> None:
        queue = self.look(handle)
        chosen = [letter.message.id for letter in queue.dead_letters(limit=limit)]
        assert queue.discard(limit=limit) == len(chosen)
        for id_ in chosen:
            self.model.dead.remove(id_)
            self.model.messages[id_].state = "done"

    # Time and processes --------------------------------------------------------------------

    @rule(seconds=st.integers(min_value=1, max_value=25))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)

    @rule(seconds=st.integers(min_value=-100_000, max_value=100_000))
    def set_the_clock(self, seconds: int) -> None:
        """Leases do not care. What goes by the clock would; so nothing may lie between."""
        now_us = self.clock()
        then_us = now_us + seconds * 1_000_000
        low_us, high_us = sorted((now_us, then_us))
        if not any(low_us <= edge_us <= high_us for edge_us in self.edges):
            self.clock.step(seconds=seconds)

    @rule(handle=HANDLES, crash=st.booleans())
    def reopen(self, handle: int, crash: bool) -> None:
        if crash:
            self.world.crash(self.stores[handle])
        else:
            self.stores[handle].close()
        self.open(handle)

    @rule()
    def restart(self) -> None:
        """Start the machine anew: nobody holds anything any more."""
        self.world.restart()
        for handle in range(3):
            self.open(handle)
        self.model.end_all_leases()
        self.model.fill()

    def open(self, handle: int) -> None:
        self.stores[handle] = self.world.open()
        self.model.expire(self.clock.ticks())
        self.handles[handle] = self.stores[handle].queue("jobs")

    # What always holds ---------------------------------------------------------------------

    @invariant()
    def everybody_counts_the_same(self) -> None:
        self.steps += 1
        counts = self.look(self.steps % 3).count()
        found = (counts.ready, counts.delayed, counts.leased, counts.dead)
        assert found == self.model.counts(self.clock())

    @invariant()
    def what_comes_next_is_what_would_come_next(self) -> None:
        expected = [
            (message.id, message.body, message.deliveries + 1)
            for message in self.model.deliverable(self.clock())
        ]
        shown = self.look((self.steps + 1) % 3).peek(10_000)
        found = [(message.id, message.body, message.attempt) for message in shown]
        assert found == ([] if self.model.paused else expected)

    @invariant()
    def everybody_is_listed(self) -> None:
        now_us = self.clock()
        queue = self.look((self.steps + 1) % 3)
        found = [(each.message.id, each.state) for each in queue.browse(limit=10_000)]
        alive = [*self.model.of("leased"), *self.model.of("waiting")]
        alive.sort(key=lambda each: (each.is_aside, each.id.split("-")[0], each.offset))
        dead = [(letter.message.id, "dead") for letter in queue.dead_letters()]
        assert found == [(each.id, each.state_now(now_us)) for each in alive] + dead

    @invariant()
    def the_dead_are_dead(self) -> None:
        letters = list(self.look((self.steps + 2) % 3).dead_letters())
        assert sorted(letter.message.id for letter in letters) == sorted(self.model.dead)
        for letter in letters:
            message = self.model.messages[letter.message.id]
            assert (letter.message.body, letter.message.priority, letter.deliveries) == (
                message.body,
                message.priority,
                message.deliveries,
            )

    def teardown(self) -> None:
        try:
            self.world.end()
        finally:
            self.patch.undo()
            shutil.rmtree(self.scratch)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=max(20, settings().max_examples // 3))
