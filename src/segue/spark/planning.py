"""Which task reads what: offsets become ranges, ranges become tasks of even size.

Only headers of segments are read. A task has one range or more; ranges begin and end with segments
wherever that keeps tasks even.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from segue.errors import InvalidArgument, OffsetNotWritten, OffsetTrimmed
from segue.spark.decoding import Decoder
from segue.spark.options import EARLIEST, LATEST, ReadOptions, Where
from segue.spark.strands import AnyStrand, Label, Source
from segue.values import dataclass

logger = logging.getLogger(__name__)

TASK_COST_BYTES: Final = 64 << 20
TASKS_WELL: Final = 16
TASK_COST_BYTES_MOST: Final = 256 << 20
"""A task costs some 20 ms however little it reads. So there are as many as keep a few cores busy,
and from then on they become larger, up to the last figure, rather than more."""
RECORD_COST_BYTES: Final = 64
"""What a record costs besides its bytes, in bytes."""
SPLIT_SLACK: Final = 1.25
"""A segment is parted only if a task would be so many times larger than the others."""

Offsets = dict[Label, int]
Ends = Mapping[Label, tuple[int, int]]
_Ranges = list[tuple[Label, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets of one strand, and how to read them."""

    label: Label
    source: Source
    start: int
    stop: int
    decoder: Decoder


class Task(InputPartition):
    """What one task reads, in order."""

    def __init__(
        self,
        ranges: list[Range],
        *,
        passes_deleted: bool,
        passes_damage: bool,
        allows_network: bool,
    ) -> None:
        self.ranges = ranges
        self.passes_deleted = passes_deleted
        """Whether what was deleted since the read was planned is nobody's loss."""
        self.passes_damage = passes_damage
        self.allows_network = allows_network

    def __repr__(self) -> str:
        parts = [
            f"{each.label.name}/{each.label.number} {each.start}-{each.stop}"
            for each in self.ranges
        ]
        return f"Task({', '.join(parts)})"


# Offsets ---------------------------------------------------------------------------------------


def resolve(where: Where, strands: Mapping[Label, AnyStrand], *, missing: int) -> Offsets:
    """Return the offset that `where` stands for in each strand; `missing` if it says nothing.

    Raises InvalidArgument for strands that are not there.
    """
    if isinstance(where, Mapping):
        return _given(where, strands, missing=missing)
    return {label: _one(where, strand) for label, strand in strands.items()}


def _one(where: Where, strand: AnyStrand) -> int:
    if isinstance(where, datetime):
        return strand.offset_at(where)
    return strand.first if where == "earliest" else strand.end


def _given(
    where: Mapping[str, Mapping[str, int]], strands: Mapping[Label, AnyStrand], *, missing: int
) -> Offsets:
    names = {label.name for label in strands}
    by_label = {}
    for name, numbers in where.items():
        if not name and len(names) != 1:
            raise InvalidArgument(f"offsets of several topics need their names: {dict(where)}")
        for number, offset in numbers.items():
            label = Label(name or next(iter(names)), number)
            if label not in strands:
                there = ", ".join(f"{each.name}/{each.number}" for each in strands)
                raise InvalidArgument(
                    f"there is no {label.name}/{label.number}; there are {there or 'none'}"
                )
            by_label[label] = offset
    resolved = {}
    for label, strand in strands.items():
        offset = by_label.get(label, missing)
        if offset in {EARLIEST, LATEST}:
            offset = strand.first if offset == EARLIEST else strand.end
        resolved[label] = offset
    return resolved


def batch_offsets(options: ReadOptions, strands: Mapping[Label, AnyStrand]) -> Ends:
    """Return from where to where a batch reads. Raises InvalidArgument, OffsetOutOfRange."""
    if options.reader is None:
        starts = resolve(options.start or "earliest", strands, missing=EARLIEST)
    else:
        starts = _places_of(options.reader, strands)
    stops = resolve(options.end, strands, missing=LATEST)
    for label, stop in stops.items():
        strand = strands[label]
        if stop > strand.end:
            raise OffsetNotWritten(offset=stop, earliest=strand.first, latest=strand.end)
    return {
        label: (start, stops[label])
        for label, start in checked_starts(options, strands, starts).items()
    }


def _places_of(reader: str, strands: Mapping[Label, AnyStrand]) -> Offsets:
    """Return where a named reader stands; the beginning of what it has never been to."""
    saved = {label: strand.place_of(reader) for label, strand in strands.items()}
    if strands and all(place is None for place in saved.values()):
        raise InvalidArgument(f"there is no reader {reader}")
    return {
        label: strands[label].first if place is None else int(place)
        for label, place in saved.items()
    }


def checked_starts(
    options: ReadOptions,
    strands: Mapping[Label, AnyStrand],
    starts: Offsets,
    *,
    is_end: bool = False,
) -> Offsets:
    """Return where to begin, past what is gone if that is allowed; or where to end.

    Raises OffsetTrimmed, OffsetNotWritten.
    """
    checked = dict(starts)
    for label, start in starts.items():
        strand = strands[label]
        partition = int(label.number) if label.number.isdecimal() else None
        if start > strand.end:
            if options.fails_on_data_loss:
                raise OffsetNotWritten(
                    offset=start, earliest=strand.first, latest=strand.end, partition=partition
                )
            logger.warning("records are lost name=%s number=%s from=%d", *label, strand.end)
            checked[label] = strand.end
        elif start < strand.first and not is_end:
            if options.fails_on_data_loss:
                raise OffsetTrimmed(
                    offset=start, earliest=strand.first, latest=strand.end, partition=partition
                )
            logger.warning(
                "records are gone name=%s number=%s from=%d to=%d", *label, start, strand.first
            )
            checked[label] = strand.first
    return checked


# Tasks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Atom:
    """A part of a segment that one task reads."""

    label: Label
    start: int
    stop: int
    cost: float

    @property
    def count(self) -> int:
        return self.stop - self.start


def plan(
    options: ReadOptions,
    strands: Mapping[Label, AnyStrand],
    ends: Ends,
    *,
    is_snapshot: bool = True,
) -> list[Task]:
    """Return the tasks that read from start to stop in each strand.

    A snapshot of a queue or a ring is of something that moves on: what is deleted while it is read
    was settled or overwritten meanwhile.
    """
    atoms = [
        atom
        for label, (start, stop) in ends.items()
        if start < stop
        for atom in _atoms(strands[label], start, stop)
    ]
    if not atoms:
        return []
    total = sum(atom.cost for atom in atoms)
    count = min(
        -(-int(total) // TASK_COST_BYTES), max(TASKS_WELL, -(-int(total) // TASK_COST_BYTES_MOST))
    )
    count = max(options.min_partitions, count)
    target = max(total / count, 1.0)
    small = [piece for atom in atoms for piece in _split(atom, target, options.records_max)]
    return [
        Task(
            [_range(strands[label], start, stop) for label, start, stop in ranges],
            passes_deleted=not options.fails_on_data_loss
            or (is_snapshot and options.kind != "topic"),
            passes_damage=not options.fails_on_data_loss,
            allows_network=options.allows_network,
        )
        for ranges in _at_least(options.min_partitions, _packed(small, target, options.records_max))
    ]


def _atoms(strand: AnyStrand, start: int, stop: int) -> Iterator[_Atom]:
    """Yield a range cut at the ends of segments, with what each part costs."""
    for extent in strand.extents(start, stop):
        yield _Atom(
            label=strand.label,
            start=extent.start,
            stop=extent.stop,
            cost=(extent.stop - extent.start) * RECORD_COST_BYTES + extent.size_bytes,
        )


def _split(atom: _Atom, target: float, records_max: int | None) -> Iterator[_Atom]:
    """Yield a part of a segment in as many parts as keep tasks even."""
    parts = 1 if atom.cost <= target * SPLIT_SLACK else -(-int(atom.cost) // max(1, int(target)))
    if records_max is not None:
        parts = max(parts, -(-atom.count // records_max))
    parts = min(parts, atom.count)
    borders = [atom.start + atom.count * part // parts for part in range(parts + 1)]
    for low, high in pairwise(borders):
        yield _Atom(
            label=atom.label, start=low, stop=high, cost=atom.cost * (high - low) / atom.count
        )


def _packed(atoms: Iterable[_Atom], target: float, records_max: int | None) -> list[_Ranges]:
    """Return tasks as lists of ranges: neighbours are joined until a task is large enough."""
    tasks: list[_Ranges] = []
    cost, count = 0.0, 0
    for atom in atoms:
        is_full = cost + atom.cost / 2 > target or (
            records_max is not None and count + atom.count > records_max
        )
        if not tasks or is_full:
            tasks.append([])
            cost, count = 0.0, 0
        ranges = tasks[-1]
        if ranges and ranges[-1][0] == atom.label and ranges[-1][2] == atom.start:
            ranges[-1] = (atom.label, ranges[-1][1], atom.stop)
        else:
            ranges.append((atom.label, atom.start, atom.stop))
        cost += atom.cost
        count += atom.count
    return tasks


def _at_least(count: int, tasks: list[_Ranges]) -> list[_Ranges]:
    """Return so many tasks, if there are as many records: the largest are parted."""
    while len(tasks) < count:
        largest = max(range(len(tasks)), key=lambda place: _count(tasks[place]))
        if _count(tasks[largest]) < 2:  # noqa: PLR2004 - one record cannot be parted
            break
        tasks[largest : largest + 1] = _halves(tasks[largest])
    return tasks


def _count(ranges: _Ranges) -> int:
    return sum(stop - start for _, start, stop in ranges)


def _halves(ranges: _Ranges) -> tuple[_Ranges, _Ranges]:
    """Return the first half of the records of a task, and the second."""
    left = _count(ranges) // 2
    first: _Ranges = []
    for place, (label, start, stop) in enumerate(ranges):
        if stop - start > left:
            first += [(label, start, start + left)] if left else []
            return first, [(label, start + left, stop), *ranges[place + 1 :]]
        first.append((label, start, stop))
        left -= stop - start
    return first, []


def _range(strand: AnyStrand, start: int, stop: int) -> Range:
    return Range(
        label=strand.label,
        source=strand.source,
        start=start,
        stop=stop,
        decoder=strand.decoder.within(start, stop),
    )
