"""Tasks on a server: sending and doing no-ops one by one, beside the task queues made for Redis.

A turn is as in `tasks.py`: one worker and one producer, the worker held at a gate while all is
sent. But here everybody, Segue as well, talks to the one server of the run, emptied between turns.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.race import ORDER_SEED, Figure, NotRun, not_run
from benchmarks.redis_bench import EVERYSEC, SEGUE, Bench
from benchmarks.report import Section, Target
from benchmarks.task_peers import PRODUCER_SECONDS_MAX, Peer, Process, Stage, chosen
from benchmarks.tasks import STEPS, WARM_UP_TASKS, Scale

MINE_KEY: Final = "segue-thread"
PEERS_ASKED: Final = frozenset({"rq", "dramatiq", "celery", "taskiq"})
"""Whom Segue must be ahead of; the others are there to be seen."""


def run(bench: Bench) -> None:
    """Race Segue and the peers that are asked for, all of them by default."""
    minute = bench.session.minute()
    scores = _rounds(bench, [_mine(), *_others(bench.only)], bench.scale.tasks)
    for step in STEPS:
        figures = [score.rate(step) for score in scores]
        section = Section(
            benchmark="redis_tasks",
            title=f"{step}, one by one",
            setting=f"{bench.scale.tasks.count:,} no-ops, one server over TCP on the loopback, "
            f"{EVERYSEC}, {bench.scale.tasks.rounds} rounds in turn, each peer alone "
            "with one worker",
            minute=minute,
            figures=figures,
            unit="tasks/s",
            baselines=_baselines(figures),
        )
        bench.session.report.add(section.aiming_at(_targets(section, scores)))


def _mine() -> Peer:
    (embedded,) = chosen([MINE_KEY])
    how = "thread; lease and late ack, results recorded"
    return replace(embedded, name=SEGUE, how=how, server=True)


def _others(only: Sequence[str]) -> list[Peer]:
    return [peer for peer in chosen(only) if peer.server and peer.races]


@dataclass(slots=True, kw_only=True)
class _Score:
    """What one peer achieved so far."""

    peer: Peer
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By step, tasks per second; one for each round."""
    failure: str = ""

    def rate(self, step: str) -> Figure:
        if self.failure:
            return not_run(self.peer.name, self.failure)
        samples = tuple(self.samples[step])
        return Figure(name=self.peer.name, samples=samples, note=self.peer.note())


def _rounds(bench: Bench, peers: Sequence[Peer], scale: Scale) -> list[_Score]:
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
                _turn(bench, score, scale)
            except NotRun as reason:
                score.failure = str(reason)
                print(f"redis_tasks: {score.peer.name} is out: {reason}")
    return scores


def _turn(bench: Bench, score: _Score, scale: Scale) -> None:
    count = max(scale.count // score.peer.share, 1)
    bench.server.clean()
    with (
        bench.session.place() as place,
        _started(score.peer, place, url=bench.server.url, scale=scale) as stage,
    ):
        stage.run(count=min(WARM_UP_TASKS, count), way="each")
        facts = stage.run(count=count, way="each")
    enqueue, consume = facts["enqueue_seconds"], facts["consume_seconds"]
    assert isinstance(enqueue, float)
    assert isinstance(consume, float)
    for step, seconds in zip(STEPS, (enqueue, consume, enqueue + consume), strict=True):
        score.samples[step].append(count / seconds)


@contextmanager
def _started(peer: Peer, place: Path, *, url: str, scale: Scale) -> Iterator[Stage]:
    """Start a worker and a producer on the server at `url`. Raises NotRun."""
    if not peer.release().partition(" ")[2]:
        raise NotRun(f"{peer.package} is not installed")
    settings = {
        "BENCH_STORE": url,
        "BENCH_SYNC": "os",
        "BENCH_KIND": peer.kind,
        "BENCH_MARKS": str(place.absolute()),
    }
    with ExitStack() as stack:
        command = peer.worker(peer.slots)
        worker = Process(command, place / "worker.log", settings=settings, talks=False)
        stack.callback(worker.stop)
        command = ("-m", "benchmarks.task_producer", peer.module)
        producer = Process(command, place / "producer.log", settings=settings, talks=True)
        stack.callback(producer.stop)
        producer.hear(seconds_max=PRODUCER_SECONDS_MAX, beside=worker)
        yield Stage(
            peer=peer,
            slots=peer.slots,
            worker=worker,
            producer=producer,
            seconds_max=scale.seconds_max,
        )


def _baselines(figures: Sequence[Figure]) -> list[str]:
    """Return ours and the best of the others."""
    present = [figure for figure in figures if figure.samples]
    others = [figure for figure in present if figure.name != SEGUE]
    mine = [figure.name for figure in present if figure.name == SEGUE]
    return mine + [figure.name for figure in others if figure is _best(others)]


def _best(figures: Sequence[Figure]) -> Figure:
    return max(figures, key=lambda figure: figure.median)


def _targets(section: Section, scores: Sequence[_Score]) -> list[Target]:
    mine = section.figure(SEGUE)
    if mine is None:
        return []
    return [
        Target(
            what=f"redis: tasks, {section.title}: against {score.peer.name}",
            measured=mine.ratio(figure),
            required=1,
        )
        for score in scores
        if score.peer.package in PEERS_ASKED
        and (figure := section.figure(score.peer.name)) is not None
    ]
