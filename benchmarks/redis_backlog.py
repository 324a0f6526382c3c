"""Whether a queue on a server cares how much is waiting: single calls, beside longer backlogs.

Queues of all lengths are in one server at the same time and take turns, so that a ratio is formed
within a round. The empty one is also measured before the others are filled. A turn pushes one
message, leases one and releases it, leases that again and acks it: the backlog stays as it is.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, quantiles
from typing import Final

import psutil

import segue
from benchmarks.race import CALLS_MIN_P99, ORDER_SEED, Figure, not_run
from benchmarks.redis_bench import EVERYSEC, PAYLOAD_BYTES, WHERE, Bench
from benchmarks.report import Section
from benchmarks.stores import Payloads

FILL_MESSAGES: Final = 1000
MESSAGE_BYTES_MAX: Final = 200
"""What a message may take up in memory, and again in the file."""
MEMORY_RESERVE_BYTES: Final = 1024**3
CALLS: Final = ("push", "lease", "release", "lease of what was released", "ack")
ALONE: Final = "0 waiting, server empty"


@dataclass(slots=True, kw_only=True)
class _Score:
    """How long calls on one queue took."""

    name: str
    queue: "segue.Queue"
    calls_us: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))
    """By call, a list for each round."""

    def figure(self, call: str) -> Figure:
        rounds = self.calls_us[call]
        all_us = [each for one in rounds for each in one]
        return Figure(
            name=self.name,
            samples=tuple(median(one) for one in rounds),
            median_us=median(all_us),
            p99_us=(
                quantiles(all_us, n=100, method="inclusive")[98]
                if len(all_us) >= CALLS_MIN_P99
                else None
            ),
        )


def run(bench: Bench) -> None:
    """Measure the empty queue alone, then all of them in turn."""
    bench.server.clean()
    minute = bench.session.minute()
    payloads = Payloads(PAYLOAD_BYTES)
    absent: list[Figure] = []
    with segue.open(bench.server.url) as store:
        alone = _Score(name=ALONE, queue=store.queue("alone"))
        _measure(bench, [alone], payloads.batch[0])
        scores: list[_Score] = []
        for backlog in bench.scale.backlogs:
            name = f"{backlog:,} waiting"
            reason = _shortage(bench, backlog)
            if reason is not None:
                print(f"redis_backlog: {name} is left out: {reason}")
                absent.append(not_run(name, reason))
                continue
            score = _Score(name=name, queue=store.queue(f"backlog-{backlog}"))
            for first in range(0, backlog, FILL_MESSAGES):
                score.queue.push_many(payloads.take(min(FILL_MESSAGES, backlog - first)))
            scores.append(score)
        _measure(bench, scores, payloads.batch[0])
    for call in CALLS:
        figures = [score.figure(call) for score in (alone, *scores)]
        section = Section(
            benchmark="redis_backlog",
            title=call,
            setting=f"{WHERE}, {EVERYSEC}, one client process, call by call, "
            f"{bench.scale.backlog_rounds} rounds of {bench.scale.backlog_turns} in turn; "
            "less is better",
            minute=minute,
            figures=[*figures, *absent],
            unit="µs of a round",
            baselines=[figures[1].name],
        )
        bench.session.report.add(section)
    bench.server.clean()


def _shortage(bench: Bench, backlog: int) -> str | None:
    """Return why a backlog should not be filled, or None if memory and disk have room for it."""
    wanted_bytes = backlog * MESSAGE_BYTES_MAX
    free_bytes = psutil.virtual_memory().available
    if free_bytes < wanted_bytes + MEMORY_RESERVE_BYTES:
        return f"{free_bytes / 1e9:.1f} GB of memory available, {wanted_bytes / 1e9:.1f} GB needed"
    return bench.session.shortage(wanted_bytes)


def _measure(bench: Bench, scores: Sequence[_Score], body: bytes) -> None:
    draw = random.Random(ORDER_SEED)
    order = list(scores)
    for score in order:
        for _ in range(bench.scale.backlog_turns):  # The warm-up.
            _turn(score.queue, body)
    for _ in range(bench.scale.backlog_rounds):
        for score in order:
            for call in CALLS:
                score.calls_us[call].append([])
        for _ in range(bench.scale.backlog_turns):
            draw.shuffle(order)
            for score in order:
                for call, seconds in zip(CALLS, _turn(score.queue, body), strict=True):
                    score.calls_us[call][-1].append(seconds * 1e6)


def _turn(queue: "segue.Queue", body: bytes) -> list[float]:
    """Return the seconds of each call, in their order."""
    clock: Callable[[], float] = time.perf_counter
    times = [clock()]
    queue.push(body)
    times.append(clock())
    job = queue.lease()
    times.append(clock())
    queue.nack(job, outcome="release")
    times.append(clock())
    job = queue.lease()
    times.append(clock())
    queue.ack(job)
    times.append(clock())
    return [end - begin for begin, end in pairwise(times)]
