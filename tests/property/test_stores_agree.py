"""Two stores given the same steps by one clock say the same: a directory and a server.

Once the server is Redis, and once one of ours, before another directory.

Left out, because both are right and differ for a reason:

- Tokens: leases are compared by message. Receipts of one lease are kept side by side.
- How much one call delivers: a directory stops where something was in the way, a server goes on.
  Both are asked until they have given as much as was wanted, or nothing.
- The order of dead letters that died in one step: leases that ended at the same time have none.
- History and replay: a directory keeps settled messages by the segment, a server one by one.
- In which segment `state` shows what came back where groups are used: a directory looks further
  ahead for them.
- When a message was pushed, or died, once the clock was set back: times in a log never go back.
- The ids of what is pushed with a delay after a directory has carried messages out of old
  segments: they take such ids. Here it carries none.
- What `ack_many` says of two receipts of one message.
- Whether a queue is there that nothing was ever pushed to.
- What a queue takes up, and totals that count nothing.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segue import Item, QueueRules
from segue.delivery.message import DeadLetter, Message, MessageId
from segue.delivery.rules import OnExpiry, OnFull
from segue.errors import LeaseLost, QueueFull, QueueLocked, SegueError, StoreClosed
from segue.stores.contract import MessageState, MessageStatus, Outcome, Queue, Store
from segue.stores.file import upkeep
from segue.stores.job import Job
from segue.testing import ManualClock
from tests.contract.worlds import FileWorld, HttpWorld, RedisWorld, World
from tests.property.test_queue_model import scratch_directory

T = TypeVar("T")

HANDLES = st.integers(min_value=0, max_value=1)
NUMBERS = st.integers(min_value=0, max_value=255)
PRIORITIES = st.sampled_from([0, 0, 0, 1, 5, 2**31 - 1])
SECONDS = st.sampled_from([0.000001, 0.3, 1, 2, 5, 9, 10, 21])
GROUPS = st.none() | st.sampled_from("xy")
COUNTS = st.integers(min_value=1, max_value=5)
OUTCOMES = st.sampled_from(["release", "fail", "fail", "dead"])
STATES: st.SearchStrategy[MessageState | None] = st.sampled_from(
    [None, "ready", "delayed", "leased", "dead"]
)
ITEMS = st.builds(
    Item,
    body=st.sampled_from([b"", b"1", "text", b"\xff", b"{}"]),
    priority=PRIORITIES,
    delay=st.none() | st.none() | st.sampled_from([0, 1, 5, 9]),
    ttl=st.none() | st.none() | st.sampled_from([0.000001, 1, 5, 9]),
    key=st.none() | st.sampled_from("ab"),
    headers=st.none() | st.none() | st.just({"name": "value"}),
    group=GROUPS,
)
ON_FULL: st.SearchStrategy[OnFull] = st.sampled_from(["refuse", "drop_oldest", "block"])
ON_EXPIRY: st.SearchStrategy[OnExpiry] = st.sampled_from(["dead", "drop"])
RULES = st.builds(
    QueueRules,
    lease_ttl=st.just(10),
    max_leases=st.none() | st.none() | st.sampled_from([1, 2, 4]),
    max_deliveries=st.sampled_from([None, 1, 2, 3]),
    backoff_base=st.sampled_from([0, 1, 0.3]),
    backoff_cap=st.sampled_from([2.5, 300]),
    backoff_jitter=st.just(0),
    capacity=st.none() | st.none() | st.integers(min_value=1, max_value=8),
    on_full=ON_FULL,
    on_expiry=ON_EXPIRY,
    dedup_window=st.sampled_from([0, 3, 20]),
    keep_seconds=st.none() | st.none() | st.sampled_from([0, 5]),
    segment_items=st.none() | st.integers(min_value=1, max_value=5),
    group_concurrency=st.sampled_from([1, 1, 2, 3]),
    rate=st.none() | st.none() | st.sampled_from([1, 0.3, 3, 7]),
    rate_burst=st.sampled_from([1, 1, 2, 3]),
)


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease, as each store names it."""

    id: str
    jobs: tuple[Job, ...]


def said(error: SegueError) -> object:
    """Return what an error says but for tokens."""
    name = type(error).__name__
    if isinstance(error, LeaseLost):
        lost = [receipt.rpartition("/")[0] for receipt in error.lost]
        return name, error.receipt.rpartition("/")[0], error.reason, lost
    if isinstance(error, QueueLocked):
        return name, error.queue, error.leases_max, error.seconds_left
    if isinstance(error, QueueFull):
        return name, error.queue, error.capacity
    return (name,) if isinstance(error, StoreClosed) else (name, str(error))


def in_any_order(statuses: Iterable[MessageStatus]) -> list[MessageStatus]:
    """Return what `browse` does, the dead sorted by something both stores know."""
    found = list(statuses)
    alive = [each for each in found if each.state != "dead"]
    dead = [each for each in found if each.state == "dead"]
    return alive + sorted(dead, key=lambda each: each.message.id)


class TwinMachine(RuleBasedStateMachine):
    """One queue in each of two stores, through two handles each."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = scratch_directory()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(upkeep, "PINNED_SEGMENTS_MAX", 1 << 30)
        files = FileWorld(self.scratch / "data", sync="os")
        server = self.server_world(self.scratch / "served")
        self.worlds: tuple[World, World] = (files, server)
        self.clock: ManualClock = server.clock
        files.clock = self.clock
        self.stores: list[list[Store]] = [[world.open(), world.open()] for world in self.worlds]
        self.queues: list[list[Queue]] = [
            [store.queue("jobs") for store in stores] for stores in self.stores
        ]
        self.known_rules = QueueRules()
        self.leases: list[Lease] = []
        """All that were ever taken."""
        self.ids: list[MessageId] = []
        self.was_pushed = False
        self.has_groups = False
        self.was_set_back = False
        self.steps = 0
        self.edges: set[int] = set()
        """Times at which something happens by the clock alone."""

    def server_world(self, root: Path) -> World:
        """Return where the other store is."""
        return RedisWorld(root)

    @initialize(rules=st.none() | RULES)
    def begin(self, rules: QueueRules | None) -> None:
        """Let the queue have rules before there is anything in it, or none."""
        if rules is not None:
            self.configure(0, rules)

    def places(self) -> list[tuple[World, list[Store]]]:
        """Return both worlds, each with its handles."""
        return list(zip(self.worlds, self.stores, strict=True))

    # Twice ---------------------------------------------------------------------------------

    def twice(self, handle: int, call: Callable[[Queue], T]) -> tuple[T, ...]:
        """Do something in both stores, and require that they say the same of it."""
        return self.both(handle, lambda queue, _: call(queue))

    def both(self, handle: int, call: Callable[[Queue, int], T]) -> tuple[T, ...]:
        """Do the same with the number of the store; return what both said, if not an error."""
        answers: list[T] = []
        errors: list[object] = []
        for place, queues in enumerate(self.queues):
            try:
                answers.append(call(queues[handle], place))
            except SegueError as error:
                errors.append(said(error))
        note(f"said {answers or errors}")
        assert not answers or not errors, (answers, errors)
        if errors:
            assert errors[0] == errors[1]
            return ()
        return tuple(answers)

    def plain(self, message: Message) -> Message:
        """Return a message as both stores see it."""
        return replace(message, pushed_us=0) if self.was_set_back else message

    def plain_letter(self, letter: DeadLetter) -> tuple[object, ...]:
        """Return a dead letter but for its place among the others."""
        message = self.plain(letter.message)
        died_us = 0 if self.was_set_back else letter.died_us
        return (message.id, message, letter.cause, letter.reason, died_us, letter.tries)

    def plain_status(self, status: MessageStatus | None) -> MessageStatus | None:
        return status and replace(status, message=self.plain(status.message))

    def same(self, handle: int, call: Callable[[Queue], object]) -> None:
        """Do something in both stores, and require that it comes to the same."""
        answers = self.twice(handle, call)
        if answers:
            assert answers[0] == answers[1]

    # Pushing -------------------------------------------------------------------------------

    def pushed(self, handle: int, items: list[Item], call: Callable[[Queue], object]) -> None:
        self.has_groups |= any(item.group for item in items)
        if any(item.key for item in items):
            self.edges.add(self.clock() + round(self.known_rules.dedup_window * 1_000_000))
        self.same(handle, call)
        self.was_pushed |= bool(items)

    @rule(handle=HANDLES, item=ITEMS)
    def push(self, handle: int, item: Item) -> None:
        def call(queue: Queue) -> MessageId:
            return queue.push(
                item.body,
                priority=item.priority,
                delay=item.delay,
                ttl=item.ttl,
                key=item.key,
                headers=item.headers,
                group=item.group,
                wait=0,
            )

        self.pushed(handle, [item], call)

    @rule(handle=HANDLES, items=st.lists(ITEMS, max_size=6))
    def push_many(self, handle: int, items: list[Item]) -> None:
        self.pushed(handle, items, lambda queue: queue.push_many(items, wait=0))

    @rule(handle=HANDLES, count=st.integers(1, 12), priority=PRIORITIES, group=GROUPS)
    def push_several(self, handle: int, count: int, priority: int, group: str | None) -> None:
        items = [Item(body=b"%d" % n, priority=priority, group=group) for n in range(count)]
        self.pushed(handle, items, lambda queue: queue.push_many(items, wait=0))

    # Delivering ----------------------------------------------------------------------------

    @rule(handle=HANDLES, count=COUNTS)
    def pop_many(self, handle: int, count: int) -> None:
        self.same(handle, lambda queue: [*map(self.plain, until_enough(count, queue.pop_many))])

    @rule(handle=HANDLES, count=COUNTS, ttl=st.none() | SECONDS)
    def lease_many(self, handle: int, count: int, ttl: float | None) -> None:
        taken = self.twice(
            handle,
            lambda queue: until_enough(
                count, lambda most: queue.lease_many(most, ttl=ttl, owner="me")
            ),
        )
        if taken:
            file, server = taken
            assert [self.plain(job.message) for job in file] == [
                self.plain(job.message) for job in server
            ]
            for jobs in zip(file, server, strict=True):
                assert jobs[0].tries == jobs[1].tries
                self.leases.append(Lease(jobs[0].id, jobs))

    @rule(handle=HANDLES)
    def lease_one(self, handle: int) -> None:
        taken = self.twice(handle, lambda queue: queue.lease())
        if taken:
            assert self.plain(taken[0].message) == self.plain(taken[1].message)
            self.leases.append(Lease(taken[0].id, taken))

    @rule(handle=HANDLES)
    def wait(self, handle: int) -> None:
        self.same(handle, lambda queue: queue.wait(0))

    # Settling ------------------------------------------------------------------------------

    def lease_at(self, number: int) -> Lease:
        """Return a lease, more likely one of the last, which may still hold."""
        return self.leases[-1 - number % min(len(self.leases), 12)]

    @precondition(lambda self: self.leases)
    @rule(handle=HANDLES, number=NUMBERS)
    def ack(self, handle: int, number: int) -> None:
        lease = self.lease_at(number)
        self.both(handle, lambda queue, place: queue.ack(lease.jobs[place].receipt))

    @precondition(lambda self: self.leases)
    @rule(handle=HANDLES, numbers=st.lists(NUMBERS, max_size=6))
    def ack_many(self, handle: int, numbers: list[int]) -> None:
        leases = list({each.id: each for each in map(self.lease_at, numbers)}.values())
        self.both(
            handle,
            lambda queue, place: queue.ack_many([each.jobs[place].receipt for each in leases]),
        )

    @precondition(lambda self: self.leases)
    @rule(
        handle=HANDLES,
        number=NUMBERS,
        outcome=OUTCOMES,
        delay=st.none() | st.sampled_from([0, 0.3, 1, 9]),
        reason=st.sampled_from(["", "because"]),
    )
    def nack(
        self, handle: int, number: int, outcome: Outcome, delay: float | None, reason: str
    ) -> None:
        lease = self.lease_at(number)
        if delay is None and self.known_rules.backoff_jitter:
            delay = 1  # By chance they would not agree.
        self.both(
            handle,
            lambda queue, place: queue.nack(
                lease.jobs[place].receipt, outcome=outcome, delay=delay, reason=reason
            ),
        )

    @precondition(lambda self: self.leases)
    @rule(handle=HANDLES, number=NUMBERS, ttl=st.none() | SECONDS, by_job=st.booleans())
    def extend(self, handle: int, number: int, ttl: float | None, by_job: bool) -> None:
        lease = self.lease_at(number)
        self.both(
            handle,
            lambda queue, place: queue.extend(
                lease.jobs[place] if by_job else lease.jobs[place].receipt, ttl=ttl
            ),
        )

    # Operating -----------------------------------------------------------------------------

    @rule(handle=HANDLES, rules=RULES)
    def configure(self, handle: int, rules: QueueRules) -> None:
        self.known_rules = rules
        self.same(handle, lambda queue: queue.configure(rules))
        self.same(1 - handle, lambda queue: queue.rules)

    @rule(handle=HANDLES, places=st.sampled_from([1, 2, 3]), capacity=st.sampled_from([None, 3, 9]))
    def configure_a_little(self, handle: int, places: int, capacity: int | None) -> None:
        self.configure(
            handle, replace(self.known_rules, group_concurrency=places, capacity=capacity)
        )

    @rule(handle=HANDLES, is_paused=st.booleans())
    def pause(self, handle: int, is_paused: bool) -> None:
        self.same(handle, lambda queue: queue.pause() if is_paused else queue.resume())

    @rule(handle=HANDLES)
    def resume(self, handle: int) -> None:
        self.same(handle, lambda queue: queue.resume())

    @precondition(lambda self: self.steps % 4 == 0)
    @rule(handle=HANDLES)
    def purge(self, handle: int) -> None:
        self.same(handle, lambda queue: queue.purge())

    @rule(handle=HANDLES, wanted=st.sets(NUMBERS, max_size=4), dry_run=st.booleans())
    def redrive(self, handle: int, wanted: set[int], dry_run: bool) -> None:
        def is_wanted(letter: DeadLetter) -> bool:
            return hash(letter.message.id[-1:]) % 4 in {number % 4 for number in wanted}

        self.same(handle, lambda queue: queue.redrive(where=is_wanted, dry_run=dry_run))

    @rule(handle=HANDLES)
    def redrive_all(self, handle: int) -> None:
        self.same(handle, lambda queue: queue.redrive())

    @rule(handle=HANDLES, letter=st.none() | st.sampled_from("0123"))
    def discard(self, handle: int, letter: str | None) -> None:
        def is_wanted(dead: DeadLetter) -> bool:
            return dead.message.id[-1] == letter

        where = None if letter is None else is_wanted
        self.same(handle, lambda queue: queue.discard(where=where))

    @precondition(lambda self: self.steps % 8 == 0)
    @rule(handle=HANDLES)
    def remove(self, handle: int) -> None:
        """Remove the queue: the handle it was removed by is of no use, and there is a new one."""
        self.clock.advance(ms=1)
        for world, stores in self.places():
            world.crash(stores[1 - handle])
        answers = [stores[handle].remove_queue("jobs") for stores in self.stores]
        assert answers[0] == answers[1] or not self.was_pushed
        self.was_pushed = False
        self.same(handle, lambda queue: queue.count())
        for world, stores in self.places():
            stores[1 - handle] = world.open()
        self.known_rules = QueueRules()
        self.queues = [[store.queue("jobs") for store in stores] for stores in self.stores]

    # Time and processes --------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)

    @rule(seconds=st.integers(min_value=-100_000, max_value=100_000))
    def set_the_clock(self, seconds: int) -> None:
        """Nothing may lie between: each process that uses a directory notices in its own time."""
        now_us = self.clock()
        low_us, high_us = sorted((now_us, now_us + seconds * 1_000_000))
        if not any(low_us <= edge_us <= high_us for edge_us in self.edges):
            self.clock.step(seconds=seconds)
            self.was_set_back |= seconds < 0

    @rule(handle=HANDLES, crash=st.booleans())
    def reopen(self, handle: int, crash: bool) -> None:
        for (world, stores), queues in zip(self.places(), self.queues, strict=True):
            if crash:
                world.crash(stores[handle])
            else:
                stores[handle].close()
            stores[handle] = world.open()
            queues[handle] = stores[handle].queue("jobs")

    # Looking -------------------------------------------------------------------------------

    @rule(handle=HANDLES, number=NUMBERS, limit=COUNTS, state=STATES)
    def browse_a_page(
        self, handle: int, number: int, limit: int, state: MessageState | None
    ) -> None:
        after = self.ids[number % len(self.ids)] if self.ids else None

        # Which of the dead are shown depends on their order.
        def page(queue: Queue) -> object:
            found = queue.browse(limit=limit, after=after, state=state)
            return [None if each.state == "dead" else self.plain_status(each) for each in found]

        self.same(handle, page)

    @rule(handle=HANDLES, lane=st.sampled_from(["0", "1", "5", "7", "later"]), offset=COUNTS)
    def look_up_anything(self, handle: int, lane: str, offset: int) -> None:
        self.same(
            handle,
            lambda queue: self.plain_status(queue.look_up(MessageId(f"{lane}-{offset - 1}"))),
        )

    @invariant()
    def all_that_can_be_seen_is_the_same(self) -> None:
        self.steps += 1
        handle = self.steps % 2
        self.same(handle, lambda queue: queue.count())
        self.same(handle, lambda queue: [*map(self.plain, queue.peek(1000))])
        self.same(handle, self.plain_page)
        self.same(handle, lambda queue: sorted(map(self.plain_letter, queue.dead_letters())))
        self.same(handle, self.plain_stats)
        self.same(handle, self.plain_state)
        found = self.queues[1][handle].browse(limit=1000)
        self.edges.update(each.due_us for each in found if each.due_us is not None)
        expiring = (each.message.expires_us for each in found)
        self.edges.update(edge_us for edge_us in expiring if edge_us is not None)
        self.ids = [
            *(each.message.id for each in found),
            *(lease.jobs[0].id for lease in self.leases[-5:]),
        ]
        self.same(
            handle, lambda queue: [*map(self.plain_status, map(queue.look_up, self.ids[-8:]))]
        )

    def plain_page(self, queue: Queue) -> object:
        return [*map(self.plain_status, in_any_order(queue.browse(limit=1000)))]

    def plain_stats(self, queue: Queue) -> object:
        stats = queue.stats()
        # In a directory what was redriven waits since it died.
        is_older = self.was_set_back or stats.totals.get("redriven", 0) > 0
        return (
            stats.name,
            stats.counts,
            dict(stats.ready_by_priority),
            stats.paused,
            None if is_older else stats.oldest_ready_seconds,
            {name: count for name, count in stats.totals.items() if count},
            sorted((e.message_id, e.owner, e.attempt, e.seconds_left) for e in stats.leases),
        )

    def plain_state(self, queue: Queue) -> object:
        state = queue.state()
        for key, found in state.items():
            assert queue.state(key) == {key: found}
        if not self.has_groups:
            return state
        segments = [items for name, items in state.items() if "_seg_" in name]
        return Counter(repr(item) for items in segments for item in cast("list[object]", items))

    def teardown(self) -> None:
        try:
            for world in self.worlds:
                world.end()
        finally:
            self.patch.undo()
            shutil.rmtree(self.scratch)


def until_enough(count: int, call: Callable[[int], list[T]]) -> list[T]:
    """Return what several calls give that ask for `count` together."""
    found = call(count)
    while found and len(found) < count:
        try:
            more = call(count - len(found))
        except QueueLocked:
            break
        if not more:
            break
        found += more
    return found


TestStoresAgree = TwinMachine.TestCase
TestStoresAgree.settings = settings(max_examples=max(20, settings().max_examples // 3))


class ServedMachine(TwinMachine):
    """The same with a directory behind a server, which loses nothing on the way."""

    def server_world(self, root: Path) -> World:
        """Return where the other store is."""
        return HttpWorld(root)


TestServerAgrees = ServedMachine.TestCase
TestServerAgrees.settings = TestStoresAgree.settings
