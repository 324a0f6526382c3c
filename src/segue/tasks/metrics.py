"""What tasks came to, and how long they waited and ran: per task and queue, and in all.

Pure: durations and ticks are passed in. Snapshots carry their histograms, so those of many
processes merge into the percentiles of all their tasks, not into a mean of percentiles.
"""

import threading
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from itertools import accumulate
from typing import Final, Literal, get_args

from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram

from segue.errors import InvalidArgument
from segue.values import dataclass

Outcome = Literal["completed", "failed", "retried", "dead", "cancelled", "timeout"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

DURATION_US_MAX: Final = 30 * 86_400 * 1_000_000
"""Longer ones count as this long."""
DIGITS_KEPT: Final = 2
"""Percentiles are true to a hundredth; a histogram is 36 KiB for it."""
RECENT_KEPT: Final = 1_000
THROUGHPUTS_KEPT: Final = 300
SERIES_MAX: Final = 500
"""Pairs of task and queue. What comes after them is counted together, as OTHER."""
OTHER: Final = "(other)"

_BITS_KEPT: Final = 8
"""What such a histogram tells apart: the rest of a number makes no difference to it."""
_PENDING_MAX: Final = 64
"""How many records are only noted before one of them counts them all."""
_PERCENTILES: Final = (50, 90, 99)
_UNREADABLE = (HdrCookieException, HdrLengthException, zlib.error, LookupError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """The spread of some durations, in milliseconds; all 0 if there are none."""

    count: int = 0
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0

    @classmethod
    def of(cls, durations_us: Iterable[int]) -> "Percentiles":
        """Return the nearest-rank percentiles: each is one of the durations."""
        ordered = sorted(durations_us)
        if not ordered:
            return cls()
        ranked_us = [ordered[_rank(percent, len(ordered)) - 1] for percent in _PERCENTILES]
        return _percentiles(len(ordered), sum(ordered), ordered[-1], ranked_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long something took, all of it: a histogram that travels and merges."""

    sum_us: int = 0
    max_us: int = 0
    histogram: str = ""
    """An HdrHistogram of microseconds in its own text form; empty if there is nothing in it."""

    def percentiles(self) -> Percentiles:
        """Return the nearest-rank percentiles, true to a hundredth; mean and max are exact."""
        decoded = self._decode()
        totals = _totals(decoded)
        if not totals or not totals[-1]:
            return Percentiles()
        ranked_us = []
        for percent in _PERCENTILES:
            index = bisect_left(totals, _rank(percent, totals[-1]))
            value_us = decoded.get_highest_equivalent_value(decoded.get_value_from_index(index))
            ranked_us.append(min(value_us, self.max_us))
        return _percentiles(totals[-1], self.sum_us, self.max_us, ranked_us)

    def counts_up_to(self, bounds_us: Sequence[int]) -> list[int]:
        """Return, for each bound, how many took no longer; the bounds are true to a hundredth."""
        decoded = self._decode()
        totals = _totals(decoded)
        return [
            totals[min(decoded.get_counts_array_index(bound_us), len(totals) - 1)]
            for bound_us in bounds_us
        ]

    @classmethod
    def merge(cls, parts: Sequence["Durations"]) -> "Durations":
        """Return all that the parts hold, as if it had been recorded in one."""
        merged = _new_histogram()
        for part in parts:
            if part.histogram:
                merged.decode_and_add(part.histogram.encode())
        return cls(
            sum_us=sum(part.sum_us for part in parts),
            max_us=max((part.max_us for part in parts), default=0),
            histogram=_encoded(merged),
        )

    def _decode(self) -> HdrHistogram:
        decoded = _new_histogram()
        if self.histogram:
            decoded.decode_and_add(self.histogram.encode())
        return decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSnapshot:
    """One task on one queue, or everything under two empty names."""

    task: str
    queue: str
    counts: Mapping[Outcome, int]
    wait: Durations
    run: Durations
    per_second: float
    """How many were completed, by the last two samples."""

    @classmethod
    def merge(cls, task: str, queue: str, parts: Sequence["SeriesSnapshot"]) -> "SeriesSnapshot":
        """Return all that the parts hold, under these names."""
        return cls(
            task=task,
            queue=queue,
            counts={name: sum(part.counts.get(name, 0) for part in parts) for name in OUTCOMES},
            wait=Durations.merge([part.wait for part in parts]),
            run=Durations.merge([part.run for part in parts]),
            per_second=sum(part.per_second for part in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """Everything that was recorded up to a moment, by one process or by many."""

    series: tuple[SeriesSnapshot, ...] = ()
    """By task, then queue."""

    @property
    def total(self) -> SeriesSnapshot:
        """All series in one."""
        return SeriesSnapshot.merge("", "", self.series)

    @classmethod
    def merge(cls, snapshots: Iterable["MetricsSnapshot"]) -> "MetricsSnapshot":
        """Return what one process would have that had recorded all of it."""
        parts: dict[tuple[str, str], list[SeriesSnapshot]] = {}
        for snapshot in snapshots:
            for series in snapshot.series:
                parts.setdefault((series.task, series.queue), []).append(series)
        return cls(series=tuple(SeriesSnapshot.merge(*key, parts[key]) for key in sorted(parts)))

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain values, fit for JSON: for people, and for `from_dict`."""
        return {
            "total": _plain(self.total),
            "series": [_plain(series, with_histogram=True) for series in self.series],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "MetricsSnapshot":
        """Return the snapshot that `to_dict` wrote. Raises InvalidArgument if it did not."""
        try:
            series = values["series"]
            if not isinstance(series, list):
                raise TypeError("series must be a list")
            return cls(series=tuple(_from_plain(each) for each in series))
        except (*_UNREADABLE, AttributeError, TypeError) as error:
            raise InvalidArgument(f"no snapshot of metrics: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How fast tasks were completed between two samples."""

    ticks_us: int
    interval_us: int
    completed: int
    per_second: float


class Metrics:
    """Counts and durations of tasks. Any number of threads may record and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[tuple[str, str, Outcome, int | None, int | None]] = []
        self._series: dict[tuple[str, str], _Series] = {}
        self._recent: deque[int] = deque(maxlen=RECENT_KEPT)
        self._throughputs: deque[Throughput] = deque(maxlen=THROUGHPUTS_KEPT)
        self._sampled_us: int | None = None

    def record(
        self,
        task: str,
        queue: str,
        outcome: Outcome,
        wait_us: int | None,
        run_us: int | None,
        *,
        is_timeout: bool = False,
    ) -> None:
        """Count one end of one attempt. None for a duration means there was none to measure.

        What is retried or dead has failed, and is counted as that, too.

        Never waits for another thread. Raises InvalidArgument for an unknown outcome.
        """
        if outcome not in OUTCOMES:
            raise InvalidArgument(f"outcome must be one of {', '.join(OUTCOMES)}: {outcome!r}")
        # No lock: to append to a list is one step, and threads that end tasks never wait here.
        self._pending.append((task, queue, outcome, wait_us, run_us))
        if is_timeout:
            self._pending.append((task, queue, "timeout", None, None))
        if len(self._pending) >= _PENDING_MAX and self._lock.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._lock.release()

    def sample(self, ticks_us: int) -> Throughput:
        """Return how many were completed per second since the sample before; 0 without one.

        A sample of the same moment changes nothing; one of an earlier moment starts anew.
        """
        with self._lock:
            self._count()
            interval_us = 0 if self._sampled_us is None else ticks_us - self._sampled_us
            if self._sampled_us is not None and interval_us == 0:
                return Throughput(ticks_us=ticks_us, interval_us=0, completed=0, per_second=0.0)
            self._sampled_us = ticks_us
            interval_us = max(0, interval_us)
            completed = sum(series.sample(interval_us) for series in self._series.values())
            self._throughputs.append(
                Throughput(
                    ticks_us=ticks_us,
                    interval_us=interval_us,
                    completed=completed if interval_us else 0,
                    per_second=_per_second(completed, interval_us),
                )
            )
            return self._throughputs[-1]

    @property
    def count(self) -> int:
        """How many tasks there are, each for every queue it came from."""
        return len(self._series)

    @property
    def throughputs(self) -> tuple[Throughput, ...]:
        """The last THROUGHPUTS_KEPT samples, oldest first."""
        with self._lock:
            return tuple(self._throughputs)

    def recent(self) -> Percentiles:
        """Return the spread of the last RECENT_KEPT runs, whatever their task."""
        with self._lock:
            self._count()
            durations_us = list(self._recent)
        return Percentiles.of(durations_us)

    def snapshot(self) -> MetricsSnapshot:
        """Return everything recorded up to now."""
        with self._lock:
            self._count()
            return MetricsSnapshot(
                series=tuple(self._series[key].snapshot(*key) for key in sorted(self._series))
            )

    def _count(self) -> None:
        """Count what is only noted so far. The caller holds the lock."""
        noted = self._pending[:]
        del self._pending[: len(noted)]
        for task, queue, outcome, wait_us, run_us in noted:
            series = self._series.get((task, queue)) or self._new_series(task, queue)
            series.counts[outcome] += 1
            if outcome in _FAILURES:
                series.counts["failed"] += 1
            if wait_us is not None:
                series.wait.add(wait_us)
            if run_us is not None:
                series.run.add(run_us)
                self._recent.append(run_us)

    def _new_series(self, task: str, queue: str) -> "_Series":
        key = (task, queue) if len(self._series) < SERIES_MAX else (OTHER, OTHER)
        if key not in self._series:
            self._series[key] = _Series()
        return self._series[key]


_FAILURES: Final = frozenset({"retried", "dead"})


class _Tally:
    """Durations, as they come in."""

    __slots__ = ("fresh", "histogram", "max_us", "sum_us")

    def __init__(self) -> None:
        self.histogram = _new_histogram()
        self.fresh: dict[int, int] = {}
        self.sum_us = 0
        self.max_us = 0

    def add(self, duration_us: int) -> None:
        # A clock that was set back makes a wait negative; it counts as none.
        duration_us = min(max(duration_us, 0), DURATION_US_MAX)
        self.sum_us += duration_us
        self.max_us = max(self.max_us, duration_us)
        # As the histogram rounds, at a fifth of its price; so these are never more than its steps.
        shift = max(duration_us.bit_length() - _BITS_KEPT, 0)
        rounded_us = duration_us >> shift << shift
        self.fresh[rounded_us] = self.fresh.get(rounded_us, 0) + 1

    def snapshot(self) -> Durations:
        for rounded_us, count in self.fresh.items():
            self.histogram.record_value(rounded_us, count)
        self.fresh.clear()
        return Durations(sum_us=self.sum_us, max_us=self.max_us, histogram=_encoded(self.histogram))


@dataclass(slots=True)
class _Series:
    """One task on one queue, as it comes in."""

    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    wait: _Tally = field(default_factory=_Tally)
    run: _Tally = field(default_factory=_Tally)
    completed_before: int = 0
    per_second: float = 0.0

    def sample(self, interval_us: int) -> int:
        completed = self.counts["completed"] - self.completed_before
        self.completed_before += completed
        self.per_second = _per_second(completed, interval_us)
        return completed

    def snapshot(self, task: str, queue: str) -> SeriesSnapshot:
        return SeriesSnapshot(
            task=task,
            queue=queue,
            counts=dict(self.counts),
            wait=self.wait.snapshot(),
            run=self.run.snapshot(),
            per_second=self.per_second,
        )


def _new_histogram() -> HdrHistogram:
    return HdrHistogram(1, DURATION_US_MAX, DIGITS_KEPT)


def _encoded(histogram: HdrHistogram) -> str:
    if not histogram.get_total_count():
        return ""
    text: bytes = histogram.encode()
    return text.decode()


def _totals(histogram: HdrHistogram) -> list[int]:
    """Return, for each step of the histogram, how many are in it and those below."""
    # A slice copies the C array at once; to iterate over it takes ten times as long.
    return list(accumulate(histogram.counts[:]))


def _percentiles(count: int, sum_us: int, max_us: int, ranked_us: list[int]) -> Percentiles:
    p50_ms, p90_ms, p99_ms = (value_us / 1000 for value_us in ranked_us)
    mean_ms, max_ms = sum_us / count / 1000, max_us / 1000
    return Percentiles(
        count=count, mean_ms=mean_ms, p50_ms=p50_ms, p90_ms=p90_ms, p99_ms=p99_ms, max_ms=max_ms
    )


def _rank(percent: int, count: int) -> int:
    """Return which of `count` ordered values is the percentile, from 1 on."""
    return max(1, -(-percent * count // 100))


def _per_second(completed: int, interval_us: int) -> float:
    return completed * 1_000_000 / interval_us if interval_us else 0.0


def _plain(series: SeriesSnapshot, *, with_histogram: bool = False) -> dict[str, object]:
    def plain(durations: Durations) -> dict[str, object]:
        carried = asdict(durations) if with_histogram else {}
        return asdict(durations.percentiles()) | carried

    return {
        "task": series.task,
        "queue": series.queue,
        "counts": dict(series.counts),
        "per_second": series.per_second,
        "wait": plain(series.wait),
        "run": plain(series.run),
    }


def _from_plain(values: Mapping[str, Mapping[str, object]]) -> SeriesSnapshot:
    def durations(name: str) -> Durations:
        kept = {key: values[name][key] for key in ("sum_us", "max_us", "histogram")}
        return Durations.merge([Durations(**kept)])  # type: ignore[arg-type]

    counts = values["counts"]
    return SeriesSnapshot(
        task=str(values["task"]),
        queue=str(values["queue"]),
        counts={name: int(str(counts.get(name, 0))) for name in OUTCOMES},
        wait=durations("wait"),
        run=durations("run"),
        per_second=float(str(values["per_second"])),
    )
