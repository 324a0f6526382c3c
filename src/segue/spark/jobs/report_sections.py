"""What the page of a report says, made of its tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from segue.spark.jobs.report_page import Bars, Lines, Note, Section, Table, page

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by the names of columns, by the names of tables."""

PATTERNS_MAX: Final = 20
STATES: Final = ("ready", "delayed", "leased", "dead")
_TIMES: Final = ("p50", "p90", "p99", "max")

_Part = Table | Lines | Bars | Note


def page_of(
    tables: Tables,
    *,
    store: str,
    period: str,
    width_seconds: int,
    queues: Sequence[str],
    since: Mapping[str, datetime],
) -> str:
    """Return the page."""
    rows = tables["throughput"]
    periods = sorted({row["period"] for row in rows})
    facts = [
        ("store", store),
        ("records", f"{sum(row['records'] for row in rows):,}"),
        ("from", _told(periods[0]) if periods else "-"),
        ("to", _told(periods[-1] + width_seconds) if periods else "-"),
        ("times are in", "UTC"),
    ]
    sections = [Section(title="Throughput", parts=_throughput(rows, period, width_seconds))]
    for name in queues:
        mine = {
            table: [row for row in listed if row.get("queue") == name]
            for table, listed in tables.items()
        }
        parts = [
            *_depth(mine["depth"]),
            *_times(mine, since.get(name)),
            *_attempts(mine, period),
            *_deaths(mine["deaths"], period, width_seconds),
        ]
        sections.append(Section(title=f"Queue {name}", parts=parts))
    return page("Segue report", facts, sections)


def _throughput(rows: Sequence[Mapping[str, Any]], period: str, width_seconds: int) -> list[_Part]:
    if not rows:
        return [Note(text="There are no records.")]
    series = _series(rows, lambda row: f"{row['kind']} {row['name']}", "records")
    totals = [
        (name, sum(int(value) for _, value in points), _told(points[0][0]), _told(points[-1][0]))
        for name, points in series.items()
    ]
    return [
        Lines(title=f"Records by {period}", series=_with_zeros(series, width_seconds)),
        Table(columns=("what", "records", f"first {period}", f"last {period}"), rows=totals),
    ]


def _depth(rows: Sequence[Mapping[str, Any]]) -> list[_Part]:
    if not rows:
        return [Note(text="Nothing waits, is leased or is dead.")]
    counts = {(row["priority"], row["state"]): row["messages"] for row in rows}
    priorities = sorted({priority for priority, _ in counts})
    table = Table(
        columns=("priority", *STATES),
        rows=[
            (str(priority), *(counts.get((priority, state), 0) for state in STATES))
            for priority in priorities
        ],
    )
    return [Note(text="Messages by priority and state:"), table]


def _times(mine: Tables, since: datetime | None) -> list[_Part]:
    """Return waits and runs, and how far back they are known."""
    known = "never" if since is None else _told(int(since.timestamp()))
    if not mine["times"]:
        return [
            Note(
                text="The ledger of this queue tells of no delivery whose wait or run is known "
                f"(it goes back to: {known})."
            )
        ]
    parts: list[_Part] = [
        Note(
            text="Seconds from push to first delivery (wait) and from lease to its end (run), "
            f"known since {known}: a ledger forgets what was before its last checkpoints, and the "
            "wait of a message whose record is deleted is not known."
        ),
        Table(
            columns=("seconds", "count", *_TIMES),
            rows=[
                (row["what"], row["count"], *(float(row[name]) for name in _TIMES))
                for row in mine["times"]
            ],
        ),
    ]
    for what, title in (("wait", "Waits, in seconds"), ("run", "Runs, in seconds")):
        rows = [row for row in mine["times_by_period"] if row["what"] == what]
        series = {name: [(row["period"], float(row[name])) for row in rows] for name in _TIMES[:3]}
        parts.append(Lines(title=title, series=series))
    return parts


def _attempts(mine: Tables, period: str) -> list[_Part]:
    if not mine["attempts"]:
        return []
    rows = sorted(mine["attempts"], key=lambda row: int(row["attempt"]))
    return [
        Bars(
            title="Deliveries by attempt",
            values=[(str(row["attempt"]), row["deliveries"]) for row in rows],
        ),
        Lines(
            title=f"How deliveries ended, by {period}",
            series=_series(mine["outcomes"], lambda row: str(row["outcome"]), "messages"),
        ),
    ]


def _deaths(rows: Sequence[Mapping[str, Any]], period: str, width_seconds: int) -> list[_Part]:
    if not rows:
        return [Note(text="There are no dead letters.")]
    series = _series(rows, lambda row: str(row["cause"]), "letters")
    by_pattern: dict[tuple[str, str], int] = {}
    for row in rows:
        pair = (str(row["cause"]), str(row["pattern"]))
        by_pattern[pair] = by_pattern.get(pair, 0) + int(row["letters"])
    largest = sorted(by_pattern.items(), key=lambda each: (-each[1], each[0]))[:PATTERNS_MAX]
    return [
        Lines(title=f"Dead letters by {period}", series=_with_zeros(series, width_seconds)),
        Table(
            columns=("reason", "cause", "letters"),
            rows=[(pattern or "-", cause, count) for (cause, pattern), count in largest],
        ),
    ]


def _series(
    rows: Iterable[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str], value: str
) -> dict[str, list[tuple[int, float]]]:
    """Return the values of each name over time, summed up within a period."""
    sums: dict[str, dict[int, float]] = {}
    for row in rows:
        of_name = sums.setdefault(name(row), {})
        of_name[row["period"]] = of_name.get(row["period"], 0.0) + float(row[value])
    return {each: sorted(points.items()) for each, points in sums.items()}


def _with_zeros(
    series: Mapping[str, list[tuple[int, float]]], width_seconds: int
) -> dict[str, list[tuple[int, float]]]:
    """Return the same with a zero on both sides of every hole: nothing came there."""
    filled = {}
    for name, points in series.items():
        line = points[:1]
        for moment, value in points[1:]:
            before = line[-1][0]
            if moment - before > width_seconds:
                line += [(before + width_seconds, 0.0), (moment - width_seconds, 0.0)]
            line.append((moment, value))
        filled[name] = line
    return filled


def _told(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
