"""A small log whose every byte is accounted for, to be damaged and opened again and again.

Its bytes are kept in memory and laid out anew for each try. For every byte of a segment file it is
known whose it is, so a test can say what one flipped bit or a cut may cost: the records of one
batch, and nothing else.
"""

import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from segue import Log, Record
from segue.errors import Damage
from segue.log.disk import Disk
from tests.unit.support import (
    HEADER_BYTES,
    SECOND_HEADER,
    ManualClock,
    RestartedMachine,
    slot_position,
)

State = Literal["closed", "closed, restarted", "crashed", "crashed, restarted"]
STATES: Final[tuple[State, ...]] = (
    "closed",
    "closed, restarted",
    "crashed",
    "crashed, restarted",
)
"""How the log was left, and whether the machine has been started anew since."""

IDENTITY: Final = range(60)
SUMMARY: Final = range(512, 556)
"""What is used of each half of a header page: the identity, and the summary once sealed."""

_SLOT = struct.Struct("<qQIIIIII")
_LINK_POSITION: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some records and the bytes of their segment file that belong to them."""

    offsets: range
    spans: tuple[range, ...]

    @property
    def end(self) -> int:
        """The first byte that may be cut off without a loss; an empty payload has a place, too."""
        return max(span.stop for span in self.spans)


@dataclass(slots=True, kw_only=True)
class Specimen:
    """The files of a log, and what is in them."""

    segment_bytes: int
    segment_items: int
    files: dict[str, bytes] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    batches: dict[str, list[Batch]] = field(default_factory=dict)
    """Per segment file, in order."""

    def lay_out(self, directory: Path) -> None:
        """Make `directory` hold the log as it was."""
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "readers").mkdir(parents=True)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)

    def open(self, directory: Path, state: State) -> Log:
        """Open the log to write, as the next process would."""
        return Log(
            directory,
            segment_bytes=self.segment_bytes,
            segment_items=self.segment_items,
            disk=disk_in(state),
            clock=ManualClock(2_000_000),
        )

    def hit_by(self, name: str, position: int) -> range:
        """Return the offsets that may be lost if one byte of a segment changes."""
        for batch in self.batches[name]:
            if any(position in span for span in batch.spans):
                return batch.offsets
        return range(0)

    def link_positions(self, name: str) -> list[int]:
        """Return the byte of every slot in use that says how many slots of its batch follow."""
        count = sum(len(batch.offsets) for batch in self.batches[name])
        return [slot_position(index) + _LINK_POSITION for index in range(count)]

    def used_positions(self, name: str, *, slots_beyond: int = 2) -> list[int]:
        """Return every byte of a segment file that means something, and some that will."""
        used: set[int] = set()
        for copy in (0, SECOND_HEADER):
            used.update(copy + at for at in (*IDENTITY, *SUMMARY))
        count = sum(len(batch.offsets) for batch in self.batches[name])
        beyond = min(self.segment_items, count + slots_beyond)
        used.update(range(HEADER_BYTES, slot_position(beyond)))
        for batch in self.batches[name]:
            for span in batch.spans:
                used.update(span)
        return sorted(used)

    def last_batch(self) -> range:
        return self.batches[max(self.batches)][-1].offsets

    def is_active(self, name: str) -> bool:
        return name == max(self.batches)


def disk_in(state: State) -> Disk | None:
    return RestartedMachine() if state.endswith("restarted") else None


def make_specimen(
    directory: Path,
    state: State,
    *,
    calls: list[list[bytes]],
    segment_bytes: int,
    segment_items: int,
    roll_after: int | None,
) -> Specimen:
    """Write `calls`, a batch each, rolling after some of them if at all; note where all is."""
    specimen = Specimen(segment_bytes=segment_bytes, segment_items=segment_items)
    clock = ManualClock(1_000_000)
    log = Log(directory, segment_bytes=segment_bytes, segment_items=segment_items, clock=clock)
    for number, call in enumerate(calls):
        clock.advance(us=1 << number % 16)
        attrs = [number << 40 | place for place in range(len(call))]
        if len(call) == 1:
            log.append(call[0], attr=attrs[0])
        else:
            log.append_many(call, attrs=attrs)
        if number + 1 == roll_after:
            log.roll()
    log.reader("reader", 3).close()
    specimen.records = list(log.records())
    if state.startswith("closed"):
        log.close()
    # Of a log that is still open this is what a crash of its process leaves.
    specimen.files = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    log.close()
    names = sorted(name for name in specimen.files if name.endswith(".q"))
    lengths = [len(call) for call in calls]
    parts = [lengths] if roll_after is None else [lengths[:roll_after], lengths[roll_after:]]
    first = 0
    for name, part in zip(names, parts, strict=True):
        specimen.batches[name] = list(_batches(specimen.files[name], part, first))
        first += sum(part)
    return specimen


def _batches(data: bytes, lengths: list[int], first: int) -> Iterator[Batch]:
    index = 0
    for length in lengths:
        spans = [range(slot_position(index), slot_position(index + length))]
        for slot in range(index, index + length):
            _, _, position, size_bytes, *_ = _SLOT.unpack_from(data, slot_position(slot))
            spans.append(range(position, position + size_bytes))
        yield Batch(offsets=range(first + index, first + index + length), spans=tuple(spans))
        index += length


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a log says when it is asked everything; two openings must agree on it."""

    first_offset: int
    next_offset: int
    skipped_to: list[Record]
    read: dict[int, Record | str]
    raised: str | None
    """The error that plain iteration ended with."""
    plain: list[Record]
    intact: bool


def ask(log: Log, upto: int) -> Answer:
    """Read a log in every way there is; only typed errors pass."""
    read: dict[int, Record | str] = {}
    for offset in range(upto):
        try:
            read[offset] = log.read(offset)
        except (Damage, LookupError) as error:
            read[offset] = type(error).__name__
    plain: list[Record] = []
    raised = None
    try:
        plain.extend(log.records())
    except Damage as error:
        raised = type(error).__name__
    return Answer(
        first_offset=log.first_offset,
        next_offset=log.next_offset,
        skipped_to=list(log.records(on_damage="skip")),
        read=read,
        raised=raised,
        plain=plain,
        intact=all(audit.is_intact for audit in log.verify()),
    )


def expect_nothing_wrong(specimen: Specimen, answer: Answer) -> None:
    """Whatever was returned is what was once appended under that offset."""
    wrong = [
        record
        for record in (*answer.skipped_to, *answer.plain, *answer.read.values())
        if isinstance(record, Record) and record != specimen.records[record.offset]
    ]
    assert wrong == []
    assert [record.offset for record in answer.plain] == list(
        range(answer.first_offset, answer.first_offset + len(answer.plain))
    )
