"""A life of a queue, step by step, and what each step means for every message it touches.

The same story is killed, loses power and meets a full disk. Whatever happens, each message must be
found in a state it had after the last step that returned, or gets by the step under way; where
less is promised, in an earlier one. `examine` finds out, by draining the queue.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest

import segue
from segue import Counts, Item, Job, Log, Queue, QueueRules, Store
from segue.errors import LeaseLost
from segue.log.disk import Disk
from segue.log.options import SyncName
from segue.stores.file import journal, upkeep
from segue.testing import ManualClock

QUEUE: Final = "jobs"
DELIVERIES_MAX: Final = 3
RULES: Final = QueueRules(
    segment_items=4, max_deliveries=DELIVERIES_MAX, backoff_base=5, backoff_jitter=0
)
HOLD_SECONDS: Final = 3_600
DAY_SECONDS: Final = 86_400
CHECKPOINT_EVENTS: Final = 12
LEDGER_KEPT_BYTES: Final = 100_000
TIDY_EVERY_ITEMS: Final = 6
"""Small, all of them, so that a short story has many checkpoints, carries and deletions."""
PRIORITIES: Final = (0, 1)
FILLERS: Final = 32
GROUP: Final = ("p", "q", "r")
"""Messages of one group, in the order of their pushes."""
START_US: Final = 1_800_000_000_000_000
"""In 2027: a clock that says less than tokens know of would be a machine without a battery."""
RESTART_SECONDS: Final = 90
"""How long a machine is away when its power fails."""


class State(NamedTuple):
    """Where a message stands, after so many deliveries."""

    kind: Literal["nowhere", "waiting", "leased", "dead"]
    deliveries: int = 0

    def found(self) -> "Found":
        """Return what draining finds, once every lease has ended."""
        if self.kind == "waiting":
            return self.deliveries + 1
        if self.kind == "leased":
            return "dead" if self.deliveries == DELIVERIES_MAX else self.deliveries + 1
        return "dead" if self.kind == "dead" else None


Found = int | Literal["dead"] | None
"""How a message is found: delivered with that attempt, as a dead letter, or not at all."""
NOWHERE: Final = State("nowhere")
DEAD: Final = State("dead")

Held = dict[str, Job]
Act = Callable[[Queue, Held], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call, and the states it brings messages into."""

    name: str
    act: Act
    effects: dict[str, State]
    durable: bool = False
    """Whether its effects outlast a power cut."""


@dataclass(slots=True)
class Plan:
    """Steps in the making."""

    steps: list[Step] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)

    def add(self, name: str, act: Act, effects: dict[str, State], *, durable: bool = False) -> None:
        self.steps.append(Step(name=name, act=act, effects=effects, durable=durable))
        self.states.update(effects)

    def push(self, body: str, priority: int = 0, **options: float | str) -> None:
        item = Item(body=body, priority=priority, **options)  # type: ignore[arg-type]

        def act(queue: Queue, _: Held) -> None:
            queue.push(
                item.body,
                priority=item.priority,
                delay=item.delay,
                key=item.key,
                ttl=item.ttl,
                group=item.group,
            )

        self.add(f"push {body}", act, {body: State("waiting")}, durable=True)

    def push_many(self, bodies: Sequence[str], priorities: Sequence[int]) -> None:
        items = [
            Item(body=body, priority=priority)
            for body, priority in zip(bodies, priorities, strict=True)
        ]

        def act(queue: Queue, _: Held) -> None:
            queue.push_many(items)

        self.add(
            f"push {', '.join(bodies)}", act, dict.fromkeys(bodies, State("waiting")), durable=True
        )

    def lease(self, *bodies: str) -> None:
        def act(queue: Queue, held: Held) -> None:
            jobs = queue.lease_many(len(bodies), ttl=HOLD_SECONDS)
            assert [job.text for job in jobs] == list(bodies), jobs
            held.update({job.text: job for job in jobs})

        effects = {body: State("leased", self.states[body].deliveries + 1) for body in bodies}
        self.add(f"lease {', '.join(bodies)}", act, effects)

    def ack(self, *bodies: str) -> None:
        def act(queue: Queue, held: Held) -> None:
            if len(bodies) == 1:
                queue.ack(held[bodies[0]])
            else:
                queue.ack_many([held[body] for body in bodies])

        self.add(f"ack {', '.join(bodies)}", act, dict.fromkeys(bodies, NOWHERE))

    def nack(self, body: str, outcome: Literal["release", "fail", "dead"]) -> None:
        deliveries = self.states[body].deliveries

        def act(queue: Queue, held: Held) -> None:
            queue.nack(held[body], outcome=outcome)

        after = State("waiting", deliveries if outcome == "fail" else deliveries - 1)
        if outcome == "dead" or (outcome == "fail" and deliveries == DELIVERIES_MAX):
            after = DEAD
        self.add(f"{outcome} {body}", act, {body: after})

    def pop(self, *bodies: str) -> None:
        def act(queue: Queue, _: Held) -> None:
            assert [message.text for message in queue.pop_many(len(bodies))] == list(bodies)

        self.add(f"pop {', '.join(bodies)}", act, dict.fromkeys(bodies, NOWHERE), durable=True)

    def call(self, name: str, act: Callable[[Queue], object], effects: dict[str, State]) -> None:
        def wrapped(queue: Queue, _: Held) -> None:
            act(queue)

        self.add(name, wrapped, effects)


def new_story() -> list[Step]:
    """Return a story in which a queue does everything it can."""
    plan = Plan()
    plan.call("configure", lambda queue: queue.configure(RULES), {})
    plan.push("a")
    plan.push_many(["b", "c", "d", "e"], [0, 1, 0, 1])
    plan.push("f", delay=60)
    plan.push("g", key="once")
    plan.call("push g again", lambda queue: queue.push("g twin", key="once"), {})
    plan.lease("a")
    plan.ack("a")
    plan.lease("b", "d")
    plan.nack("b", "fail")
    plan.nack("d", "dead")
    plan.lease("g")
    plan.call("extend", lambda _: None, {})
    plan.nack("g", "release")
    plan.call("redrive", lambda queue: queue.redrive(), {"d": State("waiting", 1)})
    plan.lease("d")
    plan.call("pause", lambda queue: queue.pause(), {})
    plan.nack("d", "dead")
    plan.call("resume", lambda queue: queue.resume(), {})
    plan.call("discard", lambda queue: queue.discard(), {"d": NOWHERE})
    plan.pop("g")
    plan.lease("c")
    plan.nack("c", "dead")
    _wait_for_a_group(plan)
    _grow_and_shrink(plan)
    waiting = [body for body, state in plan.states.items() if state.kind == "waiting"]
    plan.call("purge", lambda queue: queue.purge(), dict.fromkeys(waiting, NOWHERE))
    plan.push("z")
    plan.push_many(["y", "x"], [1, 0])
    plan.lease("z", "x", "y")
    plan.ack("y", "z")
    return plan.steps


def _wait_for_a_group(plan: Plan) -> None:
    """Leave a group behind whose first message is to be tried again: the others wait for it."""
    for body in GROUP:
        plan.push(body, group="g")
    plan.push("s", delay=60, group="g")
    plan.lease("p")
    plan.nack("p", "fail")
    plan.lease("e")
    plan.nack("e", "release")


def _grow_and_shrink(plan: Plan) -> None:
    """Fill many segments, hold the first message, settle the others: it must be carried."""
    fillers = [f"m{number}" for number in range(FILLERS)]
    for place in range(0, FILLERS, 4):
        plan.push_many(fillers[place : place + 4], [0] * 4)
    plan.lease("m0")
    for place in range(1, FILLERS - 4, 3):
        batch = fillers[place : place + 3]
        plan.lease(*batch)
        plan.ack(*reversed(batch))
    plan.pop(*fillers[FILLERS - 4 : FILLERS - 2])


STORY: Final = new_story()


def make_small() -> None:
    """Have checkpoints, carries and deletions often, in this process."""
    vars(journal)["CHECKPOINT_EVENTS"] = CHECKPOINT_EVENTS
    vars(journal)["LEDGER_KEPT_BYTES"] = LEDGER_KEPT_BYTES
    vars(upkeep)["TIDY_EVERY_ITEMS"] = TIDY_EVERY_ITEMS


def open_store(
    root: Path,
    sync: SyncName,
    *,
    disk: Disk | None = None,
    clock: ManualClock | None = None,
    interval_ms: int = 60_000,
) -> Store:
    """Open the store of a story; by default at the time when all stories begin."""
    clock = clock or ManualClock(START_US)
    return segue.open(
        root, sync=sync, sync_interval_ms=interval_ms, disk=disk, clock=clock, ticks=clock.ticks
    )


def play(queue: Queue, told: Callable[[int, Held], None]) -> None:
    """Play the story and say before each step, and after the last, how many are done."""
    held: Held = {}
    for place, step in enumerate(STORY):
        told(place, held)
        step.act(queue, held)
    told(len(STORY), held)


# What must be found ------------------------------------------------------------------------------


def allowed(done: int, *, under_way: bool, forgetful: bool) -> dict[str, set[Found]]:
    """Return how each message may be found after `done` steps.

    `under_way`: the next one had begun. `forgetful`: what is not durable may be forgotten.
    """
    states: dict[str, list[State]] = {}
    for place, step in enumerate(STORY[: done + under_way]):
        for body, state in step.effects.items():
            known = states.setdefault(body, [NOWHERE])
            if place < done and (step.durable or not forgetful):
                known.clear()
            known.append(state)
    return {body: {state.found() for state in known} for body, known in states.items()}


def stays_paused(done: int) -> bool:
    """Tell whether the queue is paused after `done` steps, as far as is certain."""
    names = [step.name for step in STORY[:done]]
    return "pause" in names and "resume" not in names


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a queue says of itself, to compare two of them."""

    counts: Counts
    waiting: list[tuple[str, str, int]]
    leases: list[tuple[str, int]]
    letters: list[tuple[int, str]]
    rules: QueueRules
    paused: bool


def snapshot_of(queue: Queue) -> Snapshot:
    """Return what `queue` says of itself."""
    stats = queue.stats()
    return Snapshot(
        counts=queue.count(),
        waiting=[
            (each.message.id, each.message.text, each.message.attempt)
            for each in queue.browse(state="ready", limit=1_000)
        ],
        leases=sorted((lease.receipt, lease.attempt) for lease in stats.leases),
        letters=[(letter.number, letter.message.text) for letter in queue.dead_letters()],
        rules=queue.rules,
        paused=stats.paused,
    )


def examine(
    reopen: Callable[[ManualClock], Store],
    expected: dict[str, set[Found]],
    receipts: Sequence[str],
    *,
    exact: bool = True,
    after_restart: bool = False,
) -> Snapshot:
    """Open the store twice, then drain its queue; hold what is found to what is `expected`.

    Return how the queue was found. Not `exact`: it may count what turns out to be lost, and
    deliver once more what is a dead letter.
    """
    clock = ManualClock(START_US + RESTART_SECONDS * 1_000_000 * after_restart)
    with reopen(clock) as store:
        found = snapshot_of(store.queue(QUEUE))
    with reopen(clock) as store:
        queue = store.queue(QUEUE)
        again = snapshot_of(queue)
        if not exact:
            again = replace(again, counts=found.counts)
        assert again == found, "opening twice gives different answers"
        if exact:
            assert found.counts.ready == len(found.waiting)
            assert found.counts.leased == len(found.leases)
            assert found.counts.dead == len(found.letters)
        check_drained(queue, clock, expected, receipts, exact=exact)
    return found


def check_drained(
    queue: Queue,
    clock: ManualClock,
    expected: dict[str, set[Found]],
    receipts: Sequence[str],
    *,
    exact: bool = True,
) -> None:
    """Let all leases end, drain the queue, hold each message to what is expected; then go on.

    Not `exact`: the dead letter may be kept while the event that made it one is lost.
    """
    clock.advance(seconds=DAY_SECONDS)
    queue.resume()
    drained = list(drain(queue))
    group = [job.text for job in drained if job.text in GROUP]
    assert group == sorted(group), "a group out of order"
    letters = list(queue.dead_letters())
    actual: dict[str, Found] = {job.text: job.attempt for job in drained}
    assert len(actual) == len(drained), f"delivered twice: {sorted(job.text for job in drained)}"
    for letter in letters:
        assert not exact or letter.message.text not in actual, f"both: {letter.message.text}"
        actual[letter.message.text] = "dead"
    assert set(actual) <= set(expected), f"never pushed: {set(actual) - set(expected)}"
    for body, possible in expected.items():
        assert actual.get(body) in possible, f"{body} is {actual.get(body)}, not in {possible}"
    old = [int(receipt.rpartition("/")[2]) for receipt in receipts]
    assert all(job.token > max(old, default=-1) for job in drained), "a token came again"
    for receipt in receipts:
        with pytest.raises(LeaseLost):
            queue.ack(receipt)
    _check_goes_on(queue, clock)


def drain(queue: Queue) -> Iterator[Job]:
    """Lease and ack all there is."""
    while jobs := queue.lease_many(3, ttl=HOLD_SECONDS):
        queue.ack_many(jobs)
        yield from jobs


def _check_goes_on(queue: Queue, clock: ManualClock) -> None:
    """Assert that what is pushed from now on is delivered, and that nothing is left over."""
    queue.discard()
    for priority in PRIORITIES:
        queue.push(f"new {priority}", priority=priority)
    queue.push("new later", delay=10)
    counts = queue.count()
    assert counts == Counts(ready=2, delayed=1, leased=0, dead=0), counts
    bodies = [job.text for job in drain(queue)]
    assert bodies == ["new 0", "new 1"], bodies
    clock.advance(seconds=11)
    later = [(job.text, job.attempt) for job in drain(queue)]
    assert later == [("new later", 1)], later
    counts = queue.count()
    assert counts == Counts(ready=0, delayed=0, leased=0, dead=0), counts


def check_logs(root: Path, *, disk: Disk | None = None) -> None:
    """Assert that every log of the store is intact."""
    for path in sorted(
        {path.parent for path in root.rglob("*.q") if "quarantine" not in str(path)}
    ):
        with Log(path, read_only=True, disk=disk) as log:
            assert [audit for audit in log.verify() if not audit.is_intact] == [], path
