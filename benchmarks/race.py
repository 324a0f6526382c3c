"""Timing contestants against each other: in turns, in short slices, so all meet the same minute.

A *slice* is a number of operations in a row, timed as a whole. In a *round* everyone has the same
number of slices, in an order drawn anew each turn, so nobody always runs after the same neighbour.
A round gives one rate per contestant. Rates are compared within their round and only then reduced
to a median: what slows the machine down slows both sides of a ratio.
"""

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

Job = Callable[[], object]
"""The part of the work that is timed; everything it needs is prepared."""

ORDER_SEED: Final = 20
CALIBRATION_GROWTH: Final = 4
COUNT_MAX: Final = 10_000_000
CALLS_MIN_P99: Final = 100
"""With fewer calls than this the slowest per cent is less than one call."""


class NotRun(Exception):
    """A contestant cannot take part; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """Something to time."""

    name: str
    prepare: Callable[[int], Job]
    """Gets a number of operations and returns the job that does as many."""
    records_per_operation: int = 1
    count_min: int = 1
    """The fewest operations a slice may have, where a few would not be the same work."""
    count_max: int = COUNT_MAX
    renew: Callable[[], object] | None = None
    """Called before each round."""
    note: Callable[[], str] = str
    """Asked when the race is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one contestant achieved."""

    name: str
    samples: tuple[float, ...] = ()
    """One for each round, of a race in records per second; empty if it did not run."""
    median_us: float | None = None
    """Of a single operation, where those were timed one by one."""
    p99_us: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return median(self.samples)

    def ratio(self, baseline: "Figure") -> float:
        """Return how many times faster this was: the median of the ratios within each round."""
        pairs = zip(self.samples, baseline.samples, strict=True)
        return median(mine / theirs for mine, theirs in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a race takes."""

    rounds: int
    slice_seconds: float
    turns_min: int
    """Calls per round where each call is timed, at least; enough for a roll or two."""
    turns_max: int
    round_seconds: float
    """How long such a round should take."""


def not_run(name: str, reason: object) -> Figure:
    """Return the figure of a contestant that could not take part."""
    return Figure(name=name, note=f"not run: {reason}")


def race(contestants: Sequence[Contestant], pace: Pace) -> list[Figure]:
    """Time slices of about `slice_seconds` each, after a warm-up that finds how many fit in."""
    counts = [_calibrate(contestant, pace.slice_seconds) for contestant in contestants]
    return _run(contestants, counts, rounds=pace.rounds, turns=1)


def race_call_by_call(contestants: Sequence[Contestant], pace: Pace) -> list[Figure]:
    """Time every single operation, everyone's in turn; for what takes many microseconds."""
    ones = [1] * len(contestants)
    begin = time.perf_counter()
    _run(contestants, ones, rounds=1, turns=pace.turns_min)  # The warm-up.
    turn_seconds = (time.perf_counter() - begin) / pace.turns_min
    turns = max(pace.turns_min, min(int(pace.round_seconds / turn_seconds), pace.turns_max))
    return _run(contestants, ones, rounds=pace.rounds, turns=turns)


def race_stretches(
    contestants: Sequence[Contestant], *, count: int, rounds: int, turns: int
) -> list[Figure]:
    """Time `turns` slices of `count` operations per round: the same amount of work for all."""
    counts = [count] * len(contestants)
    _run(contestants, counts, rounds=1, turns=1)  # The warm-up.
    return _run(contestants, counts, rounds=rounds, turns=turns)


def _calibrate(contestant: Contestant, slice_seconds: float) -> int:
    if contestant.renew is not None:
        contestant.renew()
    count = min(contestant.count_min, contestant.count_max)
    while True:
        # The better of two: a first call may load libraries, and one hiccup must not decide.
        took_seconds = min(_time(contestant.prepare(count)) for _ in range(2))
        if took_seconds >= slice_seconds / CALIBRATION_GROWTH or count == contestant.count_max:
            fitting = int(count * slice_seconds / max(took_seconds, 1e-9))
            return min(max(fitting, contestant.count_min), contestant.count_max)
        count = min(count * CALIBRATION_GROWTH, contestant.count_max)


def _run(
    contestants: Sequence[Contestant], counts: Sequence[int], *, rounds: int, turns: int
) -> list[Figure]:
    order = list(range(len(contestants)))
    draw = random.Random(ORDER_SEED)
    rates: list[list[float]] = [[] for _ in order]
    calls_us: list[list[float]] = [[] for _ in order]
    gc.collect()
    gc.freeze()  # What was set up is not looked at again; the collector stays on, as for users.
    try:
        for _ in range(rounds):
            _renew(contestants)
            spent_seconds = [0.0] * len(order)
            for _ in range(turns):
                draw.shuffle(order)
                for place in order:
                    took_seconds = _time(contestants[place].prepare(counts[place]))
                    spent_seconds[place] += took_seconds
                    calls_us[place].append(took_seconds * 1e6)
            for place, contestant in enumerate(contestants):
                records = counts[place] * turns * contestant.records_per_operation
                rates[place].append(records / spent_seconds[place])
    finally:
        gc.unfreeze()
    return [
        _figure(contestant, rates[place], calls_us[place] if counts[place] == 1 else [])
        for place, contestant in enumerate(contestants)
    ]


def _renew(contestants: Sequence[Contestant]) -> None:
    for contestant in contestants:
        if contestant.renew is not None:
            contestant.renew()


def _time(job: Job) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin


def _figure(contestant: Contestant, rates: list[float], calls_us: list[float]) -> Figure:
    return Figure(
        name=contestant.name,
        samples=tuple(rates),
        median_us=median(calls_us) if calls_us else None,
        p99_us=(
            quantiles(calls_us, n=100, method="inclusive")[98]
            if len(calls_us) >= CALLS_MIN_P99
            else None
        ),
        note=contestant.note(),
    )
