"""What workers did, as their reports say: in all, and between two looks.

Workers count from their start on. Percentiles of what happened of late are those of the difference
between two such counts, worker by worker: so one that comes or goes changes nothing for the others.
Tasks are an extra: nothing of them is loaded before somebody looks.
"""

from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import TYPE_CHECKING, Final

import msgspec

from segue.errors import InvalidArgument
from segue.server.task_desk import ExtraMissing, require_tasks
from segue.stores.contract import Store
from segue.stores.topic_contract import Topic
from segue.values import dataclass

if TYPE_CHECKING:
    from segue.tasks.metrics import Percentiles, SeriesSnapshot
    from segue.tasks.worker.reports import WorkerReport

BOUND_US_MIN: Final = 100
BOUND_GROWTH: Final = 1.1
"""Percentiles between two looks are true to a tenth."""
BOUND_US_MAX: Final = 30 * 86_400 * 1_000_000
WORKERS_MAX: Final = 500
"""Of how many workers the durations are put together, those that come first by name."""

_GROWING: Final = (round(BOUND_US_MIN * BOUND_GROWTH**step) for step in count())
BOUNDS_US: Final = (*takewhile(lambda bound_us: bound_us < BOUND_US_MAX, _GROWING), BOUND_US_MAX)
"""What durations are sorted into, by how long they were at most."""

Spread = tuple[float, float]
"""What half of something took at most, and what all but a hundredth of it took, in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labour:
    """What one worker did since it was started."""

    mark: bytes
    """By which it is known whether the worker did anything since."""
    total: "SeriesSnapshot"
    waits: Sequence[int]
    """How many tasks waited no longer than each of the bounds."""
    runs: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What several workers did, as if it were one."""

    wait: "Percentiles"
    run: "Percentiles"
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The workers that are there."""

    reports: Sequence["WorkerReport"]
    labours: Mapping[str, Labour]
    """By worker; those are missing whose report cannot be understood."""
    sum: Sum
    """Of all of them."""
    topic: Topic | None = None
    """Where they report, held so that it stays open; None if nobody ever did."""

    def sum_of(self, reports: Sequence["WorkerReport"]) -> Sum:
        """Return what some of them did."""
        if len(reports) == len(self.reports):
            return self.sum
        return sum_of(
            [self.labours[each.worker] for each in reports if each.worker in self.labours]
        )


def crew_of(store: Store, now_us: int, before: Crew | None) -> Crew | None:
    """Return the workers that report; None where the extra `tasks` is not installed.

    What is known from `before` of a worker that did nothing since is not made out again.
    """
    try:
        require_tasks()
    except ExtraMissing:
        return None
    from segue.tasks.worker.reports import WORKERS_TOPIC, read_reports

    topic = None if before is None else before.topic
    if topic is None and WORKERS_TOPIC in store.topics():
        topic = store.topic(WORKERS_TOPIC)
    reports = [] if topic is None else read_reports(store, now_us)
    known = {} if before is None else before.labours
    labours: dict[str, Labour] = {}
    for report in reports[:WORKERS_MAX]:
        labour = _labour(report, known.get(report.worker))
        if labour is not None:
            labours[report.worker] = labour
    is_same = before is not None and labours == before.labours
    done = before.sum if before is not None and is_same else sum_of(list(labours.values()))
    return Crew(reports=reports, labours=labours, sum=done, topic=topic)


def _labour(report: "WorkerReport", known: Labour | None) -> Labour | None:
    from segue.tasks.metrics import MetricsSnapshot

    mark = msgspec.json.encode((report.started_us, report.metrics.get("total")))
    if known is not None and known.mark == mark:
        return known
    try:
        total = MetricsSnapshot.from_dict(report.metrics).total
    except InvalidArgument:
        return known  # Written by a worker of another version, or before its first metrics.
    return Labour(
        mark=mark,
        total=total,
        waits=total.wait.counts_up_to(BOUNDS_US),
        runs=total.run.counts_up_to(BOUNDS_US),
    )


def sum_of(labours: Sequence[Labour]) -> Sum:
    """Return what several workers did."""
    from segue.tasks.metrics import SeriesSnapshot

    total = SeriesSnapshot.merge("", "", [labour.total for labour in labours])
    return Sum(
        wait=total.wait.percentiles(),
        run=total.run.percentiles(),
        counts={str(name): number for name, number in total.counts.items()},
    )


def spreads_between(before: Crew | None, now: Crew | None) -> tuple[Spread | None, Spread | None]:
    """Return how long tasks waited and ran that ended between two looks; None if none did."""
    if before is None or now is None:
        return None, None
    pairs = [
        (before.labours[name], labour)
        for name, labour in now.labours.items()
        if name in before.labours
    ]
    return (
        _spread([(old.waits, new.waits) for old, new in pairs]),
        _spread([(old.runs, new.runs) for old, new in pairs]),
    )


def _spread(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Spread | None:
    counts = [0] * len(BOUNDS_US)
    for old, new in pairs:
        if old is new or new[-1] < old[-1]:  # It did nothing, or was started anew.
            continue
        counts = [sum_ + late - early for sum_, early, late in zip(counts, old, new, strict=True)]
    if counts[-1] <= 0:
        return None
    return _ranked_ms(counts, 50), _ranked_ms(counts, 99)


def _ranked_ms(counts: Sequence[int], percent: int) -> float:
    rank = max(1, -(-percent * counts[-1] // 100))
    place = next(place for place, sum_ in enumerate(counts) if sum_ >= rank)
    return BOUNDS_US[place] / 1000
