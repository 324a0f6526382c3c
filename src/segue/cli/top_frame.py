"""A frame of `segue top`: what two looks at a store tell, as tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from segue.cli.output import Column, Facts, Kind, Rows, Section, Value
from segue.cli.places import without_passwords
from segue.cli.top import Look
from segue.errors import InvalidArgument
from segue.server.flow import Flow, standing_of

if TYPE_CHECKING:
    from segue.stores.contract import QueueStats
    from segue.tasks.metrics import MetricsSnapshot
    from segue.tasks.worker.reports import WorkerReport

RUNNING_SHOWN_MAX: Final = 20
"""Of the tasks that run now, how many are shown: those that have run longest."""

DECISIONS_SHOWN_MAX: Final = 5
"""Of the decisions of autoscalers, how many people are shown: the latest."""

_QUEUE_COLUMNS: Final = (
    Column("queue"),
    Column("ready", Kind.COUNT),
    Column("delayed", Kind.COUNT),
    Column("leased", Kind.COUNT),
    Column("dead", Kind.COUNT),
    Column("in_per_second", Kind.COUNT),
    Column("out_per_second", Kind.COUNT),
    Column("oldest_seconds", Kind.SECONDS),
    Column("paused"),
    Column("problem"),
)
_WORKER_COLUMNS: Final = (
    Column("worker"),
    Column("state"),
    Column("kind"),
    Column("size", Kind.COUNT),
    Column("min", Kind.COUNT),
    Column("max", Kind.COUNT),
    Column("busy", Kind.COUNT),
    Column("per_second", Kind.COUNT),
    Column("heartbeat_seconds", Kind.SECONDS),
    Column("safe_to_stop"),
    Column("queues"),
    Column("running"),
    Column("decision"),
    Column("decided", Kind.TIME),
)
_RUNNING_COLUMNS: Final = (
    Column("id"),
    Column("task"),
    Column("worker"),
    Column("running_seconds", Kind.SECONDS),
)
_TASK_COLUMNS: Final = (
    Column("task"),
    Column("queue"),
    Column("completed", Kind.COUNT),
    Column("retried", Kind.COUNT),
    Column("dead", Kind.COUNT),
    Column("per_second", Kind.COUNT),
    Column("wait_p50_ms", Kind.COUNT),
    Column("wait_p99_ms", Kind.COUNT),
    Column("run_p50_ms", Kind.COUNT),
    Column("run_p99_ms", Kind.COUNT),
)
_DECISION_COLUMNS: Final = (
    Column("worker"),
    Column("at", Kind.TIME),
    Column("before", Kind.COUNT),
    Column("after", Kind.COUNT),
    Column("reason"),
)
_BRIEF: Final = {
    "queues": _QUEUE_COLUMNS,
    "workers": tuple(
        column
        for column in _WORKER_COLUMNS
        if column.key not in {"kind", "queues", "running", "decision", "decided"}
    ),
    "running": _RUNNING_COLUMNS,
    "tasks": tuple(
        column for column in _TASK_COLUMNS if column.key not in {"retried", "per_second"}
    ),
    "decisions": tuple(
        column for column in _DECISION_COLUMNS if column.key not in {"before", "after"}
    ),
}
"""The columns that a terminal has room for."""
_SHORT: Final = {
    "in_per_second": "in/s",
    "out_per_second": "out/s",
    "per_second": "done/s",
    "heartbeat_seconds": "heard_seconds",
    "safe_to_stop": "safe",
    "completed": "done",
    "wait_p50_ms": "wait p50",
    "wait_p99_ms": "wait p99",
    "run_p50_ms": "run p50",
    "run_p99_ms": "run p99",
}
"""What they are called there, where that is shorter."""


def sections(url: str | Path, before: Look, now: Look) -> list[Section]:
    """Return a frame: what two looks tell."""
    running = _running(now)
    safe = {report.worker: is_safe_to_stop(report, now) for report in now.workers}
    leased = sum(stats.counts.leased for stats in now.queues.values())
    return [
        Facts(
            items=(
                (Column("store"), without_passwords(str(url))),
                (Column("at", Kind.TIME), now.clock_us),
                # A lease may be that of a worker that does not get around to reporting.
                (Column("safe_to_stop"), not leased and all(safe.values())),
                (Column("ready", Kind.COUNT), sum(q.counts.ready for q in now.queues.values())),
                (Column("leased", Kind.COUNT), leased),
                (Column("slots", Kind.COUNT), sum(report.size for report in now.workers)),
                (Column("busy", Kind.COUNT), sum(report.busy for report in now.workers)),
                (Column("per_second", Kind.COUNT), _round(sum(w.per_second for w in now.workers))),
            )
        ),
        Rows(
            name="queues",
            mark="queue",
            columns=_QUEUE_COLUMNS,
            rows=[
                *(_queue_row(stats, before, now) for stats in now.queues.values()),
                *(
                    (name, *[None] * (len(_QUEUE_COLUMNS) - 2), problem)
                    for name, problem in now.problems.items()
                ),
            ],
        ),
        Rows(
            name="workers",
            mark="worker",
            columns=_WORKER_COLUMNS,
            rows=[_worker_row(each, now, safe=safe[each.worker]) for each in now.workers],
        ),
        Rows(
            name="running",
            mark="running",
            columns=_RUNNING_COLUMNS,
            rows=running[:RUNNING_SHOWN_MAX],
        ),
        Rows(name="tasks", mark="task", columns=_TASK_COLUMNS, rows=_task_rows(now)),
        Rows(
            name="decisions", mark="decision", columns=_DECISION_COLUMNS, rows=_decision_rows(now)
        ),
    ]


def brief(frame: list[Section]) -> list[Section]:
    """Return of a frame what fits on a terminal."""
    return [_brief_rows(each) if isinstance(each, Rows) else each for each in frame]


def _brief_rows(section: Rows) -> Rows:
    kept = _BRIEF[section.name]
    places = [place for place, column in enumerate(section.columns) if column in kept]
    rows = section.rows[:DECISIONS_SHOWN_MAX] if section.name == "decisions" else section.rows
    return Rows(
        name=section.name,
        columns=[Column(_SHORT.get(column.key, column.key), column.kind) for column in kept],
        rows=[[row[place] for place in places] for row in rows],
    )


def is_safe_to_stop(report: "WorkerReport", now: Look) -> bool:
    """Tell whether a worker says so, and nothing has come since that speaks against it."""
    stats = [now.queues[name] for name in report.queues if name in now.queues]
    return (
        report.is_safe_to_stop
        and not any(each.counts.ready for each in stats)
        and not any(lease.owner == report.worker for each in stats for lease in each.leases)
    )


def _queue_row(stats: "QueueStats", before: Look, now: Look) -> tuple[Value, ...]:
    counts = stats.counts
    in_rate = out_rate = None
    earlier = before.queues.get(stats.name)
    seconds = (now.ticks_us - before.ticks_us) / 1_000_000
    if earlier is not None and seconds > 0:
        flow = Flow.between(standing_of(earlier), standing_of(stats))
        in_rate, out_rate = _round(flow.came / seconds), _round(flow.went / seconds)
    return (
        stats.name,
        counts.ready,
        counts.delayed,
        counts.leased,
        counts.dead,
        in_rate,
        out_rate,
        stats.oldest_ready_seconds,
        stats.paused,
        None,
    )


def _worker_row(report: "WorkerReport", now: Look, *, safe: bool) -> tuple[Value, ...]:
    last = report.decisions[-1] if report.decisions else None
    return (
        report.worker,
        report.state,
        report.kind,
        report.size,
        report.min,
        report.max,
        report.busy,
        _round(report.per_second),
        _age(report, now),
        safe,
        ",".join(report.queues),
        ", ".join(slot.task for slot in report.slots if slot.id) or None,
        last.reason if last is not None else report.standing or None,
        last.at_us if last is not None else None,
    )


def _running(now: Look) -> list[tuple[Value, ...]]:
    """Return the tasks that run, as far as workers have said it, the longest first."""
    found = [
        (slot.seconds + _age(report, now), slot, report)
        for report in now.workers
        for slot in report.slots
        if slot.id
    ]
    found.sort(key=lambda each: -each[0])
    return [(slot.id, slot.task, report.worker, _round(age)) for age, slot, report in found]


def _task_rows(now: Look) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    for series in _metrics(now).series:
        wait, run = series.wait.percentiles(), series.run.percentiles()
        rows.append(
            (
                series.task,
                series.queue,
                series.counts["completed"],
                series.counts["retried"] + series.counts["failed"] + series.counts["timeout"],
                series.counts["dead"],
                _round(series.per_second),
                wait.p50_ms,
                wait.p99_ms,
                run.p50_ms,
                run.p99_ms,
            )
        )
    return rows


def _decision_rows(now: Look) -> list[tuple[Value, ...]]:
    """Return what autoscalers did, the latest first."""
    found = [(each, report.worker) for report in now.workers for each in report.decisions]
    found.sort(key=lambda pair: -pair[0].at_us)
    return [(name, each.at_us, each.before, each.after, each.reason) for each, name in found]


def _metrics(now: Look) -> "MetricsSnapshot":
    from segue.tasks.metrics import MetricsSnapshot

    snapshots: list[MetricsSnapshot] = []
    for report in now.workers:
        try:
            snapshots.append(MetricsSnapshot.from_dict(report.metrics))
        except InvalidArgument:
            continue  # Written by a worker of another version.
    return MetricsSnapshot.merge(snapshots)


def _age(report: "WorkerReport", now: Look) -> float:
    return _round(max(0, now.clock_us - report.at_us) / 1_000_000)


def _round(value: float) -> float:
    return round(value, 3)
