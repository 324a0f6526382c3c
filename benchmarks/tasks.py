"""Tasks: sending and doing no-ops, how soon an idle worker picks one up, and what a worker weighs.

Segue and huey's SqliteHuey are embedded; the others, and huey once more, each talk to a Valkey of
their own on the loopback. A turn is one peer alone on the machine: a producer and one worker. The
worker's slots are first held at a gate (`task_apps/marks.py`), all tasks are sent, the gate opens,
and the clock stops when the peer itself says that nothing waits and nothing is unacknowledged. So
starting the worker is in no figure, and sending and doing do not overlap.
"""

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Final

from benchmarks.machine import Minute
from benchmarks.race import ORDER_SEED, Figure, NotRun, not_run
from benchmarks.report import Section
from benchmarks.session import FULL, Session
from benchmarks.task_peers import Peer, Stage, chosen, started

WARM_UP_TASKS: Final = 100
WAYS: Final = {"each": "one by one", "batch": "in the peer's own batches"}
STEPS: Final = ("enqueue", "consume", "end to end")
PICKUP: Final = "pickup"
DURABILITY: Final = {
    False: 'sync="os", appendfsync everysec, SQLite synchronous=OFF',
    True: 'sync="always", appendfsync always, SQLite synchronous=FULL',
}
MEMORY_SLOTS: Final = (1, 8)
SETTLE_SECONDS: Final = 1.0
MINE: Final = "segue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is done."""

    count: int
    rounds: int
    pickups: int
    """Of all rounds together."""
    seconds_max: float
    """For one run of one peer. Who has not finished by then is out."""


FULL_SCALE: Final = Scale(count=20_000, rounds=3, pickups=200, seconds_max=600)
QUICK_SCALE: Final = Scale(count=200, rounds=1, pickups=20, seconds_max=300)


def run(
    session: Session,
    *,
    only: Sequence[str] = (),
    count: int | None = None,
    scale: Scale | None = None,
) -> None:
    """Race the peers called `only`, or all, with and without sync; then weigh their workers."""
    scale = scale or (FULL_SCALE if session.effort is FULL else QUICK_SCALE)
    if count is not None:
        scale = replace(scale, count=count)
    peers = chosen(only)
    for durable in (True, False):
        minute = session.minute()
        scores = _rounds(session, [peer for peer in peers if peer.races], scale, durable=durable)
        for section in _sections(scores, scale, minute, durable=durable):
            session.report.add(section)
    for section in _weighed(session, peers, scale):
        session.report.add(section)


@dataclass(slots=True, kw_only=True)
class _Score:
    """What one peer achieved so far."""

    peer: Peer
    samples: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By way and step, tasks per second; one for each round."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why it has no samples for a way."""
    pickups_us: list[float] = field(default_factory=list)
    failure: str = ""

    def rate(self, way: str, step: str) -> Figure:
        reason = self.failure or self.missing.get(way, "")
        if reason:
            return not_run(self.peer.name, reason)
        samples = tuple(self.samples[way, step])
        return Figure(name=self.peer.name, samples=samples, note=self.peer.note())

    def pickup(self) -> Figure:
        if self.failure:
            return not_run(self.peer.name, self.failure)
        return Figure(
            name=self.peer.name,
            samples=tuple(self.samples[PICKUP, PICKUP]),
            median_us=median(self.pickups_us),
            p99_us=quantiles(self.pickups_us, n=100, method="inclusive")[98],
            note=self.peer.note(),
        )


def _rounds(
    session: Session, peers: Sequence[Peer], scale: Scale, *, durable: bool
) -> list[_Score]:
    """Give everybody a turn in each round, in an order drawn anew; who fails is out."""
    scores = [_Score(peer=peer) for peer in peers]
    order = list(scores)
    draw = random.Random(ORDER_SEED)
    for _ in range(scale.rounds):
        draw.shuffle(order)
        for score in order:
            if score.failure:
                continue
            try:
                _turn(session, score, scale, durable=durable)
            except NotRun as reason:
                score.failure = str(reason)
                print(f"tasks: {score.peer.name} is out: {reason}")
    return scores


def _turn(session: Session, score: _Score, scale: Scale, *, durable: bool) -> None:
    peer = score.peer
    count = max(scale.count // peer.share, 1)
    pickups = max(scale.pickups // scale.rounds, 2)
    with (
        session.place() as place,
        started(
            peer, place, durable=durable, slots=peer.slots, seconds_max=scale.seconds_max
        ) as stage,
    ):
        stage.run(count=min(WARM_UP_TASKS, count), way="each")
        for way in WAYS:
            _race(score, stage, count=count, way=way)
        found = stage.pickups_us(pickups)
    score.pickups_us += found
    score.samples[PICKUP, PICKUP].append(median(found))


def _race(score: _Score, stage: Stage, *, count: int, way: str) -> None:
    if way in score.missing:
        return
    facts = stage.run(count=count, way=way)
    if "not_run" in facts:
        score.missing[way] = str(facts["not_run"])
        return
    enqueue, consume = facts["enqueue_seconds"], facts["consume_seconds"]
    assert isinstance(enqueue, float)
    assert isinstance(consume, float)
    for step, seconds in zip(STEPS, (enqueue, consume, enqueue + consume), strict=True):
        score.samples[way, step].append(count / seconds)


def _sections(
    scores: Sequence[_Score], scale: Scale, minute: Minute, *, durable: bool
) -> list[Section]:
    sections = []
    peers = [score.peer for score in scores]
    rounds = f"{scale.rounds} rounds in turn, each peer alone with one worker"
    for way, title in WAYS.items():
        for step in STEPS:
            figures = [score.rate(way, step) for score in scores]
            sections.append(
                Section(
                    benchmark="tasks",
                    title=f"{step}, {title}, {_sync(durable=durable)}",
                    setting=f"{scale.count:,} no-ops, {DURABILITY[durable]}, {rounds}",
                    minute=minute,
                    figures=figures,
                    unit="tasks/s",
                    baselines=_baselines(peers, figures),
                )
            )
    figures = [score.pickup() for score in scores]
    sections.append(
        Section(
            benchmark="tasks",
            title=f"pickup by an idle worker, {_sync(durable=durable)}",
            setting=(
                f"from before the enqueue to the first line of the task, {scale.pickups} tasks "
                f"with pauses of 20 to 50 ms, {DURABILITY[durable]}, {rounds}; less is better"
            ),
            minute=minute,
            figures=figures,
            unit="µs of a round",
            baselines=_baselines(peers, figures, less=True),
        )
    )
    return sections


def _weighed(session: Session, peers: Sequence[Peer], scale: Scale) -> list[Section]:
    """Measure workers that have used all their slots once and have nothing to do."""
    minute = session.minute()
    one, many = MEMORY_SLOTS
    idle: list[Figure] = []
    further: list[Figure] = []
    for peer in peers:
        name = peer.name
        try:
            small, large = (_weight(session, peer, scale, slots=slots) for slots in MEMORY_SLOTS)
        except NotRun as reason:
            idle.append(not_run(name, reason))
            further.append(not_run(name, reason))
            print(f"tasks: {name} is not weighed: {reason}")
            continue
        slope = (large.mb - small.mb) / (many - one)
        idle.append(Figure(name=name, samples=(small.mb,), note=f"{peer.release()}; {small}"))
        further.append(Figure(name=name, samples=(slope,), note=str(large)))
    setting = (
        "PSS of all processes of the worker, after each slot has worked once; "
        "the server is not counted; less is better"
    )
    return [
        Section(
            benchmark="tasks",
            title=title,
            setting=setting,
            minute=minute,
            figures=figures,
            unit="MB",
            baselines=baselines,
        )
        for title, figures, baselines in (
            ("memory of an idle worker with 1 slot", idle, _baselines(peers, idle, less=True)),
            # No ratios here: where slots are coroutines this is nothing but noise.
            (f"memory of each further slot, ({many} - {one}) / {many - one}", further, []),
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """What a worker with some slots takes up."""

    mb: float
    slots: int
    processes: int

    def __str__(self) -> str:
        count = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return f"{self.mb:.0f} MB in {count} with a concurrency of {self.slots}"


def _weight(session: Session, peer: Peer, scale: Scale, *, slots: int) -> _Weight:
    with (
        session.place() as place,
        started(peer, place, durable=False, slots=slots, seconds_max=scale.seconds_max) as stage,
    ):
        stage.hold()
        stage.open()
        time.sleep(SETTLE_SECONDS)
        sizes_bytes = stage.worker.pss_bytes()
    return _Weight(mb=sum(sizes_bytes) / 1e6, slots=slots, processes=len(sizes_bytes))


def _baselines(
    peers: Sequence[Peer], figures: Sequence[Figure], *, less: bool = False
) -> list[str]:
    """Return the first of ours and the best of the others in this very table."""
    pairs = [pair for pair in zip(peers, figures, strict=True) if pair[1].samples]
    mine = [figure.name for peer, figure in pairs if peer.package == MINE]
    others = [figure for peer, figure in pairs if peer.package != MINE]
    best = sorted(others, key=lambda figure: figure.median, reverse=not less)
    return [*mine[:1], *(figure.name for figure in best[:1])]


def _sync(*, durable: bool) -> str:
    return "durable" if durable else "not synced"
