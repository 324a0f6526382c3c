"""Finding the events of one message by columns: as in `traces.py`, for millions of events."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from segue.delivery.events import ASIDE, CHECKPOINT
from segue.delivery.message import Key
from segue.log import slots
from segue.log.layout import Offset
from segue.log.record import Record
from segue.log.segment import SegmentView
from segue.log.slot_table import SLOT_DTYPE
from segue.stores.file.traces import (
    BOOTED,
    BURIED,
    DEAD_OFFSET_AT,
    DEFERRED,
    DIGEST_BYTES,
    DISCARDED,
    END_BYTES,
    ENDED,
    GROUPED,
    GROUPED_HEAD_BYTES,
    LAYOUTS,
    LETTERS,
    OF_CHECKPOINTS,
    PURGED,
    REWOUND,
    RUN_BYTES,
    Layout,
    Sketch,
)

_Ints = npt.NDArray[np.int64]
_Marks = npt.NDArray[np.uint16]

_FIRST_AT: Final = 4
_SIZE_AT: Final = 12
"""Where a run says its first offset, and its size."""
_EXTENT_BYTES: Final = 16
_NO_KIND: Final = 0
_OFFSET_MAX: Final = (1 << 63) - 1


class ColumnSieve:
    """Looks at all events of a stretch at once."""

    def __init__(self, key: Key) -> None:
        self._lane, self._offset = key
        self._letters: list[int] = []
        """Where the message lay among the dead letters."""
        self._has_begun = self._has_ended = False
        """Whether the first checkpoint has."""
        self.sketch: Sketch | None = None

    def needs(self, sketch: Sketch) -> bool:
        """Tell whether there may be something in a stretch that is about the message."""
        return (
            not self._has_ended
            or _is_in(self._offset, sketch.get(self._lane))
            or any(_is_in(letter, sketch.get(LETTERS)) for letter in self._letters)
        )

    def records(self, view: SegmentView, index: int, stop: int) -> Iterator[Record]:
        """Yield what may be about the message."""
        data = view.view
        table = np.frombuffer(
            data[slots.slot_position(index) : slots.slot_position(stop)], dtype=SLOT_DTYPE
        )
        marks = table["attr"].astype(np.uint16)  # What matters of it.
        kinds = marks.astype(np.uint8)
        kinds[(table["link"] & slots.REMOVED) != 0] = _NO_KIND
        self._pass_over_states(kinds, marks)
        start = table["position"].astype(np.int64)
        stops = start + table["length"]
        numbers = _Numbers(data)
        self.sketch = {}
        passing = [np.zeros(0, dtype=np.int64)]
        # In the order of their numbers, by which burials come before what they tell the rest of.
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            rows = np.flatnonzero(kinds == kind)
            if kind in OF_CHECKPOINTS:
                passing.append(rows[(marks[rows] & CHECKPOINT) != 0])
            elif kind in _EXTENTS:
                passing.append(rows[self._pass(kind, start[rows], stops[rows], numbers)])
        first = view.first_offset + index
        for row in np.unique(np.concatenate(passing)).tolist():
            time_us, attr, position, length, *_ = table[row].tolist()
            payload = bytes(data[position : position + length])
            yield Record(Offset(first + row), time_us, attr, payload)

    def _pass_over_states(self, kinds: npt.NDArray[np.uint8], marks: _Marks) -> None:
        """Leave out what checkpoints say, but for the first: it may be most of a ledger."""
        states = np.flatnonzero(marks & CHECKPOINT)
        if not len(states):
            return
        first = stop = 0
        if not self._has_ended:
            begins = np.flatnonzero(marks == BOOTED | CHECKPOINT)
            if not self._has_begun and len(begins):
                self._has_begun, first = True, int(begins[0])
            if self._has_begun:
                ends = np.flatnonzero(marks == ENDED | CHECKPOINT)
                ends = ends[ends > first]
                self._has_ended = bool(len(ends))
                stop = int(ends[0]) + 1 if self._has_ended else len(marks)
        kinds[states[(states < first) | (states >= stop)]] = _NO_KIND

    def _pass(self, kind: int, start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Ints:
        """Return which events of a kind may be about the message, by where their payloads lie."""
        found = _EXTENTS[kind](start, stop, numbers)
        assert self.sketch is not None
        _add_to(self.sketch, found)
        if kind == DISCARDED:
            hits = [found.of[_are_in(letter, found)] for letter in self._letters]
            return np.concatenate([*hits, found.of[:0]])
        of: _Ints = found.of[_are_in(self._offset, found) & (found.lane == self._lane)]
        if kind == BURIED:
            of = of[stop[of] - start[of] >= DEAD_OFFSET_AT + 8]
            self._letters += numbers.u64(start[of] + DEAD_OFFSET_AT).tolist()
        return of


class _Extents(NamedTuple):
    """What events of one kind are about."""

    of: _Ints
    """Which of the events it is."""
    lane: _Ints
    first: _Ints
    stop: _Ints


def _are_in(offset: int, found: _Extents) -> npt.NDArray[np.bool_]:
    return np.asarray((found.first <= offset) & (offset < found.stop))


def _is_in(offset: int, bounds: tuple[int, int] | None) -> bool:
    return bounds is not None and bounds[0] <= offset < bounds[1]


def _add_to(sketch: Sketch, found: _Extents) -> None:
    """Widen what a stretch is about by what some of its events are."""
    if not len(found.of):
        return
    least, most = int(found.lane.min()), int(found.lane.max())
    lanes = [least] if least == most else np.unique(found.lane).tolist()
    for lane in lanes:
        here = slice(None) if least == most else found.lane == lane
        first, stop = int(found.first[here].min()), int(found.stop[here].max())
        known = sketch.get(lane, (first, stop))
        sketch[lane] = (min(first, known[0]), max(stop, known[1]))


def _in_runs(layout: Layout, start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Extents:
    """Return the runs that events name."""
    of, at = _items_of(layout, start, stop, numbers)
    first = numbers.u64(at + _FIRST_AT)
    size = numbers.u32(at + _SIZE_AT) if layout.has_size else 1
    return _Extents(of, numbers.u32(at), first, first + size)


def _items_of(
    layout: Layout, start: _Ints, stop: _Ints, numbers: "_Numbers"
) -> tuple[_Ints, _Ints]:
    """Return of which event each item is, and where it lies."""
    of = np.arange(len(start))
    at = start + layout.head_bytes
    if (stop < at).any():
        of = np.flatnonzero(stop >= at)  # The others are too short to be what they say.
        start, stop, at = start[of], stop[of], at[of]
    if layout.text_at is not None:
        at += numbers.length(start + layout.text_at, layout.text_size_bytes)
    left = stop - at
    if not layout.item_bytes:
        there = np.flatnonzero(left >= (RUN_BYTES if layout.has_size else END_BYTES))
        return of[there], at[there]
    if (left == layout.item_bytes).all():  # As nearly always.
        return of, at
    count = np.maximum(left, 0) // layout.item_bytes
    at = np.repeat(at, count) + _counted(count) * layout.item_bytes
    return np.repeat(of, count), at


def _up_to(start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Extents:
    """Return all of a lane up to its end then, for each lane that was purged."""
    of, at = _items_of(Layout(0, END_BYTES, has_size=False), start, stop, numbers)
    upto = numbers.u64(at + _FIRST_AT)
    return _Extents(of, numbers.u32(at), np.zeros_like(upto), upto)


def _whole_lanes(start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Extents:
    """Return all of a lane: whoever looks closer sees whether it is meant."""
    of = np.flatnonzero(stop - start >= END_BYTES)
    lane = numbers.u32(start[of])
    zeros = np.zeros(len(of), dtype=np.int64)
    return _Extents(of, lane, zeros, zeros + _OFFSET_MAX)


def _grouped(start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Extents:
    of = np.flatnonzero(stop - start >= GROUPED_HEAD_BYTES)
    at = start[of]
    first = numbers.u64(at + _FIRST_AT)
    size = (stop[of] - at - GROUPED_HEAD_BYTES) // DIGEST_BYTES
    return _Extents(of, numbers.u32(at), first, first + size)


def _deferred(start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Extents:
    of = np.flatnonzero(stop - start >= _EXTENT_BYTES)
    first, upto = numbers.u64(start[of]), numbers.u64(start[of] + 8)
    return _Extents(of, np.full(len(of), ASIDE, dtype=np.int64), first, upto)


def _discarded(start: _Ints, stop: _Ints, numbers: "_Numbers") -> _Extents:
    of = np.flatnonzero(stop - start >= _EXTENT_BYTES)
    first, size = numbers.u64(start[of]), numbers.u64(start[of] + 8)
    return _Extents(of, np.full(len(of), LETTERS, dtype=np.int64), first, first + size)


_EXTENTS: Final[dict[int, Callable[[_Ints, _Ints, "_Numbers"], _Extents]]] = {
    **{kind: partial(_in_runs, layout) for kind, layout in LAYOUTS.items()},
    PURGED: _up_to,
    REWOUND: _whole_lanes,
    GROUPED: _grouped,
    DEFERRED: _deferred,
    DISCARDED: _discarded,
}


class _Numbers:
    """Numbers in bytes, wherever they stand."""

    def __init__(self, data: memoryview) -> None:
        self._u8 = np.frombuffer(data, dtype=np.uint8)
        self._u32 = _everywhere(data, "<u4")
        self._u64 = _everywhere(data, "<i8")

    def u32(self, at: _Ints) -> _Ints:
        """Return the numbers of four bytes at these positions."""
        return self._u32[at]  # In less space than it says; what is computed with them is not.

    def u64(self, at: _Ints) -> _Ints:
        """Return the numbers of eight bytes at these positions; offsets are never so large."""
        return self._u64[at]

    def length(self, at: _Ints, size_bytes: int) -> _Ints:
        """Return the numbers of one or two bytes at these positions."""
        low = self._u8[at].astype(np.int64)
        return low if size_bytes == 1 else low + (self._u8[at + 1].astype(np.int64) << 8)


def _everywhere(data: memoryview, kind: str) -> _Ints:
    """Return the numbers that begin at each of the bytes, copying none."""
    size_bytes = np.dtype(kind).itemsize
    count = max(0, len(data) - size_bytes + 1)
    return np.ndarray((count,), dtype=kind, buffer=data, strides=(1,))


def _counted(sizes: _Ints) -> _Ints:
    """Return 0, 1, 2 … for each of the sizes, one behind the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - sizes, sizes)
