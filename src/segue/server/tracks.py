"""What is known over time, at several resolutions: points in rings of a fixed size. Pure.

Time is cut into steps, and each has one point, which is put together from all that is said of spans
that reach into it: of numbers the last one, of times and percentiles the most, of rates the mean
over what is known of the step. A step of which nothing is known has no point.
"""

from array import array
from collections.abc import Sequence
from math import isnan, nan
from typing import Final

from segue.values import dataclass

RESOLUTIONS: Final = ((10, 360), (120, 360), (1_800, 336))
"""Seconds of a step and how many of them are kept: an hour, twelve hours, seven days."""
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many numbers a point has, by how they are put together."""

    lasts: int
    mosts: int
    means: int


@dataclass(slots=True)
class Reading:
    """What is known of a span of time. What is not known is NaN."""

    lasts: "array[float]"
    """What stands at its end."""
    oldest_since_us: float
    """Since when what has waited longest has: it gets older within the span."""
    counts: Sequence[float] = ()
    """How often something happened, of which the rate counts."""
    mosts: Sequence[float] = ()
    """Others of which the most counts; how long the oldest has waited is the first of them."""


class Track:
    """Points at one resolution, the newest that fit."""

    def __init__(self, step_seconds: int, points: int, shape: Shape) -> None:
        self.step_us = step_seconds * _SECOND_US
        self.span_us = self.step_us * points
        self._points = points
        self._lasts = shape.lasts
        self._plain = shape.lasts + shape.mosts
        # Means have a sum, and seconds that it is over.
        self._width = self._plain + 2 * shape.means
        self._numbers = array("q", [-1]) * points
        """Of which step each point is."""
        self._rows = array("d", [nan]) * (points * self._width)
        self._blank = array("d", [nan] * self._plain + [0.0] * (2 * shape.means))

    def add(self, start_us: int | None, end_us: int, reading: Reading) -> None:
        """Take in what is known from `start_us` on, or only of the moment `end_us`."""
        step_us = self.step_us
        ended = end_us // step_us
        begun = ended if start_us is None else start_us // step_us
        if begun == ended:
            self._put_last(ended, end_us, reading)
            if start_us is not None:
                self._put_rates(ended, reading.counts, 1.0, (end_us - start_us) / _SECOND_US)
            return
        assert start_us is not None
        for number in range(max(begun, ended - self._points + 1), ended + 1):
            first_us, last_us = number * step_us, (number + 1) * step_us
            if number > begun:  # What is known at the end says nothing of where it began.
                self._put_last(number, min(end_us, last_us), reading)
            part_us = min(end_us, last_us) - max(start_us, first_us)
            share = part_us / (end_us - start_us)
            self._put_rates(number, reading.counts, share, part_us / _SECOND_US)

    def _put_last(self, number: int, moment_us: int, reading: Reading) -> None:
        rows, place = self._rows, self._place(number)
        behind = place + self._lasts
        rows[place:behind] = reading.lasts
        oldest = (moment_us - reading.oldest_since_us) / _SECOND_US
        if not rows[behind] >= oldest and not isnan(oldest):  # Also where nothing is known yet.
            rows[behind] = max(0.0, oldest)
        for index, value in enumerate(reading.mosts, behind + 1):
            if not rows[index] >= value and not isnan(value):
                rows[index] = value

    def _put_rates(
        self, number: int, counts: Sequence[float], share: float, seconds: float
    ) -> None:
        rows, index = self._rows, self._place(number) + self._plain
        for count in counts:
            if not isnan(count):
                rows[index] += count * share
                rows[index + 1] += seconds
            index += 2

    def _place(self, number: int) -> int:
        """Return where the point of a step lies; it is blank if there was none."""
        slot = number % self._points
        place = slot * self._width
        if self._numbers[slot] != number:
            self._numbers[slot] = number
            self._rows[place : place + self._width] = self._blank
        return place

    def columns(self, *, first: int, count: int) -> list[Sequence[float]]:
        """Return what is known of consecutive steps, number by number; NaN is not known."""
        cells, width = self._cells(first, count), self._width
        lasts_and_mosts: list[Sequence[float]] = [
            cells[place::width] for place in range(self._plain)
        ]
        means = [
            [
                total / seconds if seconds > 0 else nan
                for total, seconds in zip(
                    cells[place::width], cells[place + 1 :: width], strict=True
                )
            ]
            for place in range(self._plain, width, 2)
        ]
        return [*lasts_and_mosts, *means]

    def _cells(self, first: int, count: int) -> "array[float]":
        """Return what is kept of consecutive steps, blank where that is of other ones."""
        width, begun = self._width, first % self._points
        behind = max(0, begun + count - self._points)
        cells = self._rows[begun * width : (begun + count) * width] + self._rows[: behind * width]
        steps = self._numbers[begun : begun + count] + self._numbers[:behind]
        for place, step in enumerate(steps):
            if step != first + place:
                cells[place * width : (place + 1) * width] = self._blank
        return cells


def track_for(tracks: Sequence[Track], seconds: float) -> Track:
    """Return the finest track that reaches so far back."""
    for track in tracks:
        if track.span_us >= seconds * _SECOND_US:
            return track
    return tracks[-1]
