"""How a store stood over time, put together from samples: in all, and for each of its queues.

Between two samples of one server nothing is left open: a queue that is not in one stood as it had
before. A server that was down leaves a gap. If that is no longer than GAP_SECONDS, rates are the
mean over it; else there are no points in it, and what came and went meanwhile counts for none.
A number that goes back (a queue was removed and made anew) is a rate of 0, never less.
"""

import threading
from array import array
from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Final

from segue.server.samples import QUEUES_SAMPLED_MAX, QueueSample, Sample
from segue.server.tracks import RESOLUTIONS, Reading, Shape, Track, track_for
from segue.values import dataclass

SERIES_MAX: Final = 200
"""How many queues have a history of their own. All count in that of the store."""
KNOWN_MAX: Final = 2 * QUEUES_SAMPLED_MAX
"""How many queues are known at once: twice as many as a sample has, of which some may change."""
GAP_SECONDS: Final = 30.0
"""How long a server may say nothing and it is no gap."""
_SECOND_US: Final = 1_000_000

_QUEUE: Final = Shape(lasts=5, mosts=1, means=3)
_STORE: Final = Shape(lasts=6, mosts=5, means=4)
_COLUMNS: Final = (
    *("ready", "delayed", "leased", "dead", "size_bytes", "oldest_seconds"),
    *("in_per_second", "out_per_second", "failed_per_second"),
)
_STORE_COLUMNS: Final = (
    *("ready", "delayed", "leased", "dead", "size_bytes", "free_bytes", "oldest_seconds"),
    *("wait_p50_ms", "wait_p99_ms", "run_p50_ms", "run_p99_ms"),
    *("in_per_second", "out_per_second", "failed_per_second", "syncs_per_second"),
)
WHOLE_NUMBERS: Final = frozenset({"ready", "delayed", "leased", "dead", "size_bytes", "free_bytes"})
_TOPMOST: Final = frozenset({"oldest_seconds"})
"""Columns of which several queues have the most, and not the sum."""

_NOTHING_HAPPENS: Final = (0.0, 0.0, 0.0)
"""Of what comes, goes and fails; how often the store syncs is known from samples alone."""
_UNKNOWN: Final = (nan, nan, nan)
_ABSENT: Final = QueueSample(0, 0, 0, 0, 0, 0, 0, 0)

Number = float | None
"""What a point has; None is not known."""
Columns = dict[str, list[Number]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """What is known of some steps in a row."""

    step_seconds: float
    at_us: list[int]
    """When each step begins."""
    columns: Columns


class _Series:
    """One queue, or the store. Changed by who holds the history's lock."""

    def __init__(self, shape: Shape) -> None:
        self.tracks = [Track(*resolution, shape) for resolution in RESOLUTIONS]
        self.known_us: int | None = None
        """Until when the last reading holds; None if nothing is known of now."""
        self._last = Reading(array("d"), nan)

    def add(self, start_us: int | None, end_us: int, reading: Reading, floor_us: int) -> None:
        """Take in a reading, which holds from `start_us` on; until then the one before did."""
        known_us = self.known_us
        if known_us is None or start_us is None:
            known_us = start_us = None
        for track in self.tracks:
            if end_us < floor_us - track.span_us:
                continue
            if known_us is None or start_us is None:
                track.add(None, end_us, reading)
            elif known_us >= start_us:
                track.add(start_us, end_us, reading)
            elif known_us // track.step_us == end_us // track.step_us:
                track.add(known_us, end_us, reading)  # All of it is one point.
            else:
                track.add(known_us, start_us, self._last)
                track.add(start_us, end_us, reading)
        self.known_us = end_us
        self._last = Reading(reading.lasts, reading.oldest_since_us, _NOTHING_HAPPENS)

    def hold(self, until_us: int, floor_us: int) -> None:
        """Have the last reading hold until then, with nothing happening."""
        if self.known_us is None or self.known_us >= until_us:
            return
        for track in self.tracks:
            if until_us >= floor_us - track.span_us:
                track.add(self.known_us, until_us, self._last)
        self.known_us = until_us

    def end(self) -> None:
        """Know nothing from here on."""
        self.known_us = None


class History:
    """What is known of a store over time. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store = _Series(_STORE)
        self._series: dict[str, _Series] = {}
        self._known: dict[str, QueueSample] = {}
        self._oldest_since_us: dict[str, float] = {}
        self._sums = [0] * 5
        self._is_whole = False
        """Whether all queues are known since the last gap."""
        self._last_us = 0
        self._floor_us = 0

    @property
    def last_us(self) -> int:
        """Of the last sample that was taken in; 0 if there is none."""
        return self._last_us

    @property
    def queues(self) -> list[str]:
        """Those that have a history of their own."""
        with self._lock:
            return list(self._series)

    # Taking in -----------------------------------------------------------------------------

    def begin_from(self, now_us: int) -> None:
        """Have samples matter as far as they do now: those that are too old are not worked in."""
        self._floor_us = now_us

    def apply(self, sample: Sample, *, is_own: bool = False) -> None:
        """Take in a sample, if it is newer than the last one.

        Our own also is if the clock was set back since: there is none beside it.
        """
        with self._lock:
            if sample.at_us <= self._last_us and not (is_own and self._is_far_ahead(sample)):
                return
            held_us = self._held_us(sample)
            if held_us is None:
                self._break_off()
            elif sample.is_whole:
                gone = [name for name in self._known if name not in sample.queues]
                self._forget(gone, held_us)
            self._forget(sample.gone, held_us)
            self._is_whole = self._is_whole or sample.is_whole
            happened = self._take_in(sample, held_us)
            if self._is_whole:
                self._take_in_all(sample, held_us, happened)
            self._last_us = sample.at_us

    def _is_far_ahead(self, sample: Sample) -> bool:
        return self._last_us - sample.at_us > GAP_SECONDS * _SECOND_US

    def _held_us(self, sample: Sample) -> int | None:
        """Return until when what was known before held; None if there is a gap before a sample."""
        since_us, last_us = sample.since_us, self._last_us
        if since_us is not None and last_us <= since_us <= sample.at_us and last_us:
            return since_us
        if 0 < sample.at_us - last_us <= GAP_SECONDS * _SECOND_US:
            return last_us
        return None

    def _break_off(self) -> None:
        for series in (self._store, *self._series.values()):
            series.hold(self._last_us, self._floor_us)
            series.end()
        self._known.clear()
        self._oldest_since_us.clear()
        self._sums = [0] * 5
        self._is_whole = False

    def _forget(self, names: list[str], held_us: int | None) -> None:
        for name in names:
            numbers = self._known.pop(name, None)
            self._oldest_since_us.pop(name, None)
            self._count(numbers, None)
            series = self._series.get(name)
            if series is not None:
                if held_us is not None:
                    series.hold(held_us, self._floor_us)
                series.end()

    def _take_in(self, sample: Sample, held_us: int | None) -> tuple[float, float, float]:
        """Take in the queues of a sample; return what happened to all of them."""
        came = went = failed = 0.0
        for name, numbers in sample.queues.items():
            before = self._known.get(name)
            if before is not None and numbers.is_like(before):
                continue  # It stands as before.
            if before is None and len(self._known) >= KNOWN_MAX:
                continue  # Nobody has so many: it is made up.
            counts = _UNKNOWN
            if before is not None:
                counts = _grown(before, numbers)
                came, went, failed = came + counts[0], went + counts[1], failed + counts[2]
            self._count(before, numbers)
            self._known[name] = numbers
            since_us = _oldest_since_us(numbers, sample.at_us)
            if isnan(since_us):
                self._oldest_since_us.pop(name, None)
            else:
                self._oldest_since_us[name] = since_us
            series = self._series_of(name)
            if series is not None:
                start_us = None if before is None else held_us
                reading = Reading(_lasts(numbers), since_us, counts)
                series.add(start_us, sample.at_us, reading, self._floor_us)
        return came, went, failed

    def _take_in_all(
        self, sample: Sample, held_us: int | None, happened: tuple[float, float, float]
    ) -> None:
        seconds = 0.0 if held_us is None else (sample.at_us - held_us) / _SECOND_US
        syncs = _or_nan(sample.syncs_per_second) * seconds
        reading = Reading(
            array("d", (*self._sums, _or_nan(sample.free_bytes))),
            min(self._oldest_since_us.values(), default=nan),
            (*happened, syncs),
            (*(sample.wait_ms or (nan, nan)), *(sample.run_ms or (nan, nan))),
        )
        self._store.add(held_us, sample.at_us, reading, self._floor_us)

    def _count(self, before: QueueSample | None, now: QueueSample | None) -> None:
        """Have one queue count as it does now in all of them together."""
        old, new = (_ABSENT if before is None else before), (_ABSENT if now is None else now)
        sums = self._sums
        sums[0] += new.ready - old.ready
        sums[1] += new.delayed - old.delayed
        sums[2] += new.leased - old.leased
        sums[3] += new.dead - old.dead
        sums[4] += new.size_bytes - old.size_bytes

    def _series_of(self, name: str) -> _Series | None:
        """Return where the history of a queue is kept; None if there is no room for another."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= SERIES_MAX:
                # One that is gone makes way: the one that has been there for longest.
                gone = next((each for each in self._series if each not in self._known), None)
                if gone is None:
                    return None
                del self._series[gone]
            series = self._series[name] = _Series(_QUEUE)
        return series

    # Looking -------------------------------------------------------------------------------

    def of_store(self, seconds: float, now_us: int) -> Points:
        """Return how the whole store stood."""
        return self._points([self._store], _STORE_COLUMNS, seconds, now_us)

    def of_queue(self, name: str, seconds: float, now_us: int) -> Points:
        """Return how one queue stood; nothing is known of one without a history of its own."""
        return self.of_queues(lambda each: each == name, seconds, now_us)

    def of_queues(self, is_meant: Callable[[str], bool], seconds: float, now_us: int) -> Points:
        """Return how some queues stood together, as far as they have a history of their own."""
        with self._lock:
            meant = [series for name, series in self._series.items() if is_meant(name)]
        return self._points(meant or [_Series(_QUEUE)], _COLUMNS, seconds, now_us)

    def _points(
        self, meant: list[_Series], names: tuple[str, ...], seconds: float, now_us: int
    ) -> Points:
        with self._lock:
            for series in meant:
                series.hold(self._last_us, self._floor_us)
            tracks = [track_for(series.tracks, seconds) for series in meant]
            is_current = 0 <= now_us - self._last_us <= GAP_SECONDS * _SECOND_US
            step_us = tracks[0].step_us
            last = (self._last_us if is_current else now_us) // step_us
            count = min(last + 1, -(-int(seconds * _SECOND_US) // step_us))
            first = last - count + 1
            found = [track.columns(first=first, count=count) for track in tracks]
        return Points(
            step_seconds=step_us / _SECOND_US,
            at_us=[number * step_us for number in range(first, last + 1)],
            columns={
                name: _together(columns, max if name in _TOPMOST else sum)
                for name, *columns in zip(names, *found, strict=True)
            },
        )


def _grown(before: QueueSample, now: QueueSample) -> tuple[float, float, float]:
    return (
        max(0, now.came - before.came),
        max(0, now.went - before.went),
        max(0, now.failed - before.failed),
    )


def _lasts(numbers: QueueSample) -> "array[float]":
    counts = numbers.ready, numbers.delayed, numbers.leased, numbers.dead
    return array("d", (*counts, numbers.size_bytes))


def _oldest_since_us(numbers: QueueSample, at_us: int) -> float:
    if numbers.oldest_seconds is None:
        return nan
    return at_us - numbers.oldest_seconds * _SECOND_US


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _together(
    columns: Sequence[Sequence[float]], put_together: Callable[[list[float]], float]
) -> list[Number]:
    """Return each point of several series; what is not known of one is left out."""
    if len(columns) == 1:
        return [None if isnan(value) else round(value, 3) for value in columns[0]]
    found: list[Number] = []
    for values in zip(*columns, strict=True):
        known = [value for value in values if not isnan(value)]
        found.append(round(put_together(known), 3) if known else None)
    return found
