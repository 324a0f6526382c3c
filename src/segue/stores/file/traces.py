"""Finding the events of one message in a ledger, without decoding all the others.

Events of one kind have one layout, so a few numbers of each tell whether it may be about the
message, and only such events are decoded. Many are looked at by columns (`trace_columns.py`), if
NumPy is there.
"""

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import field
from typing import Final, NamedTuple, Protocol

from segue.delivery.events import ASIDE, CHECKPOINT, Event, decode
from segue.delivery.message import Key
from segue.errors import OffsetTrimmed
from segue.log import Log
from segue.log.cursor import Cursor
from segue.log.layout import BATCH_ITEMS_MAX, Offset
from segue.log.record import Record
from segue.log.segment import SegmentView
from segue.values import dataclass

FEW_EVENTS: Final = 20_000
"""So many are looked at one by one sooner than NumPy is loaded."""
EVENTS_WITHOUT_NUMPY_MAX: Final = 200_000
"""How many are looked at where there is no NumPy: the newest."""
TRACES_MAX: Final = 20_000
"""How many events of one message are kept: the newest."""

KIND_MASK: Final = 0xFF
LEASED, SETTLED, POPPED, RETURNED, EXTENDED, BURIED, REVIVED, DISCARDED = range(1, 9)
DEFERRED, CARRIED, PASSED, PURGED, REWOUND = range(9, 14)
BOOTED, GROUPED, METERED, PARKED, COUNTED, ENDED = 17, 21, 22, 32, 35, 36


class Layout(NamedTuple):
    """Where an event says which messages it is about: in runs of neighbours behind its head."""

    head_bytes: int
    item_bytes: int
    """From one run to the next; 0 if there is only one."""
    has_size: bool = True
    """Whether a run may be more than one message."""
    text_at: int | None = None
    """Where the length of a text is said that stands between the head and the runs."""
    text_size_bytes: int = 1


LAYOUTS: Final = {
    LEASED: Layout(17, 24, text_at=16),
    SETTLED: Layout(9, 16),
    POPPED: Layout(0, 24),
    RETURNED: Layout(19, 16, text_at=17, text_size_bytes=2),
    EXTENDED: Layout(16, 16),
    BURIED: Layout(0, 0, has_size=False),
    REVIVED: Layout(8, 0, has_size=False),
    CARRIED: Layout(0, 0, has_size=False),
    PASSED: Layout(0, 0),
    PARKED: Layout(0, 0, has_size=False),
}
"""What names messages as lane u32, first offset u64 and, if there may be several, size u32."""
RUN_BYTES: Final = 16
END_BYTES: Final = 12
"""A lane u32 and an offset u64: all of a lane up to there, or from there on."""
GROUPED_HEAD_BYTES: Final = 13
DIGEST_BYTES: Final = 16
DEAD_OFFSET_AT: Final = 12
"""Where a burial says its offset among the dead letters."""
OF_CHECKPOINTS: Final = (BOOTED, COUNTED, ENDED)
"""What says of a checkpoint where it begins and ends, and what had been pushed with a delay."""

_RUN: Final = struct.Struct("<IQI")
_END: Final = struct.Struct("<IQ")
_EXTENT: Final = struct.Struct("<QQ")
_U64: Final = struct.Struct("<Q")


class Trace(NamedTuple):
    """An event that may be about the message."""

    offset: int
    time_us: int
    is_state: bool
    """Whether it is part of a checkpoint: it says how things stood, and nothing happened."""
    event: Event


@dataclass(slots=True)
class Traces:
    """What a ledger says of one message."""

    first: int
    """The oldest event that was looked at."""
    since_us: int | None
    """When that was."""
    found: deque[Trace] = field(default_factory=lambda: deque(maxlen=TRACES_MAX))
    """In the order in which it happened."""
    missed: int = 0
    """How many events could not be read, or were too many to be kept; at least so many."""

    def add(self, record: Record) -> None:
        """Take in an event."""
        event = decode(record.payload, record.attr)
        if event is not None:
            self.missed += len(self.found) == TRACES_MAX
            is_state = bool(record.attr & CHECKPOINT)
            self.found.append(Trace(record.offset, record.time_us, is_state, event))


Sketch = dict[int, tuple[int, int]]
"""What a stretch of the ledger is about: by lane, between which offsets all of it lies."""
LETTERS: Final = -1
"""Stands for the dead letters among the lanes of a sketch."""


class Sieve(Protocol):
    """Lets few events pass: all that are about one message, and hardly any other.

    Of checkpoints the first that is there from its beginning on: the others say nothing new.
    """

    sketch: Sketch | None
    """Of the stretch that was looked at last, if one is made."""

    def needs(self, sketch: Sketch) -> bool:
        """Tell whether there may be something in a stretch that is about the message."""

    def records(self, view: SegmentView, index: int, stop: int) -> Iterator[Record]:
        """Yield those of a checked stretch of the ledger; stretch after stretch, in order."""


def traces_of(log: Log, key: Key, end: Offset, sketches: dict[int, Sketch]) -> Traces:
    """Return what the ledger says of a message up to `end`. Not in a turn. Raises LogClosed.

    `sketches` are those of segments that are full, by where they begin. What is not known of them
    is added, so that the next look passes over most of them.
    """
    end = min(end, log.next_offset)
    first = min(log.first_offset, end)
    for start in list(sketches):  # As it is now: another who looks may add to it meanwhile.
        if start < first:
            sketches.pop(start, None)
    sieve: Sieve = PlainSieve(key)
    if end - first > FEW_EVENTS:
        try:
            from segue.stores.file.trace_columns import ColumnSieve
        except ImportError:
            first = Offset(max(first, end - EVENTS_WITHOUT_NUMPY_MAX))
        else:
            sieve = ColumnSieve(key)
    traces = Traces(first, log.time_of(first))
    # Nothing is pinned: looking keeps nothing from being deleted.
    cursor = Cursor(log._horizon, first, on_damage="skip", ahead_items=BATCH_ITEMS_MAX, pin=False)
    starts = sorted(log._horizon.starts())
    try:
        while cursor.offset < end:
            following = next(iter(starts[bisect_right(starts, cursor.offset) :]), None)
            sketch = sketches.get(cursor.offset)
            if sketch is not None and following is not None and not sieve.needs(sketch):
                cursor.offset = following
                continue
            try:
                span = cursor.span(end)
            except OffsetTrimmed as error:  # Deleted since we began.
                cursor.offset = Offset(error.earliest)
                traces.missed += 1
                continue
            if span is not None:
                view, index, stop = span
                for record in sieve.records(view, index, stop):
                    traces.add(record)
                cursor.offset = Offset(view.first_offset + stop)
                if not index and cursor.offset == following and sieve.sketch is not None:
                    sketches[view.first_offset] = sieve.sketch
    finally:
        cursor.close()
    traces.missed += cursor.skipped
    return traces


class PlainSieve:
    """Looks at one event after the other."""

    def __init__(self, key: Key) -> None:
        self._lane, self._offset = key
        self._letters: list[int] = []
        """Where the message lay among the dead letters."""
        self._has_begun = self._has_ended = False
        """Whether the first checkpoint has."""
        self.sketch: Sketch | None = None

    def needs(self, sketch: Sketch) -> bool:
        """Look at everything."""
        return True

    def records(self, view: SegmentView, index: int, stop: int) -> Iterator[Record]:
        """Yield what may be about the message."""
        for record in view.records(index, stop):
            try:
                passes = self._passes(record.attr, record.payload)
            except struct.error:
                continue  # Too short to be what it says it is.
            if passes:
                yield record

    def _passes(self, attr: int, payload: bytes) -> bool:
        kind = attr & KIND_MASK
        if attr & CHECKPOINT:
            self._has_begun |= kind == BOOTED
            if self._has_ended or not self._has_begun:
                return False
            self._has_ended = kind == ENDED
        layout = LAYOUTS.get(kind)
        if layout is None:
            return self._is_about_many(kind, attr, payload)
        at, text_at = layout.head_bytes, layout.text_at
        if text_at is not None:
            text = payload[text_at : text_at + layout.text_size_bytes]
            at += int.from_bytes(text, "little")
        step = layout.item_bytes or len(payload)
        size = 1
        for place in range(at, len(payload) - END_BYTES + 1, step):
            if layout.has_size:
                lane, first, size = _RUN.unpack_from(payload, place)
            else:
                lane, first = _END.unpack_from(payload, place)
            if lane == self._lane and first <= self._offset < first + size:
                if kind == BURIED:
                    self._letters += _U64.unpack_from(payload, DEAD_OFFSET_AT)
                return True
        return False

    def _is_about_many(self, kind: int, attr: int, payload: bytes) -> bool:
        if kind == GROUPED:
            lane, first = _END.unpack_from(payload)
            size = (len(payload) - GROUPED_HEAD_BYTES) // DIGEST_BYTES
            return lane == self._lane and bool(first <= self._offset < first + size)
        if kind == PURGED:
            return any(
                lane == self._lane and self._offset < upto
                for lane, upto in _END.iter_unpack(payload)
            )
        if kind == REWOUND:
            return bool(_END.unpack_from(payload)[0] == self._lane)
        if kind == DISCARDED:
            first, size = _EXTENT.unpack_from(payload)
            return any(first <= letter < first + size for letter in self._letters)
        if kind == DEFERRED:
            first, stop = _EXTENT.unpack_from(payload)
            return self._lane == ASIDE and bool(first <= self._offset < stop)
        return kind in OF_CHECKPOINTS and bool(attr & CHECKPOINT)
