"""What was asked of a log and when, and what must and may be left of it after a power cut.

A `Writer` plays steps on a log whose disk is recorded and notes each in a `Story`. The story then
says for any moment what a log opened after it is held to, and `examine` holds it to that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from segue import Log, Reader
from segue.errors import CorruptPosition, Damage, OffsetTrimmed
from segue.log.options import SyncName
from segue.testing import ManualClock, RecordingDisk

READERS: Final = ("ann", "bob")
NEVER: Final = 1 << 60
"""When a call returned that raised: whether it did anything is not known."""
WEIGHTS: Final = {
    "append": 8,
    "append_many": 4,
    "roll": 2,
    "flush": 1,
    "commit": 3,
    "cleanup": 1,
    "trim": 1,
    "reopen": 1,
}

T = TypeVar("T")
Content = tuple[bytes, int]
"""Payload and attr of a record. No two attempts have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One append of one or more records, and between which moments it ran."""

    first: int
    contents: list[Content]
    started: int
    returned: int

    @property
    def end(self) -> int:
        return self.first + len(self.contents)

    def at(self, offset: int) -> Content | None:
        return self.contents[offset - self.first] if self.first <= offset < self.end else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Anything else that was asked: `value` holds from some moment between the two on."""

    value: int
    started: int
    returned: int


@dataclass(slots=True, kw_only=True)
class Expected:
    """What a log must and may hold when it is opened after a power cut."""

    certain: dict[int, Content] = field(default_factory=dict)
    possible: list[Attempt] = field(default_factory=list)
    first_min: int = 0
    first_max: int = 0
    registered: set[str] = field(default_factory=set)
    positions: dict[str, set[int]] = field(default_factory=dict)

    @property
    def promises_nothing(self) -> bool:
        return all(offset < self.first_max for offset in self.certain)

    @property
    def certain_end(self) -> int:
        return max(self.certain, default=self.first_min - 1) + 1


@dataclass(slots=True, kw_only=True)
class Found:
    """What a log turned out to hold."""

    first: int
    next: int
    records: dict[int, Content]
    positions: dict[str, int]


class Story:
    """All that was asked of one log on one disk, and when."""

    def __init__(self, sync: SyncName, before: Expected | None = None) -> None:
        self.sync = sync
        self.before = before or Expected()
        self.openings: list[tuple[int, Found]] = []
        self.attempts: list[Attempt] = []
        self.flushes: list[Change] = []
        self.trims: list[Change] = []
        self.commits: dict[str, list[Change]] = {name: [] for name in READERS}

    def opened(self, moment: int, found: Found) -> None:
        """Note that the log was opened and what it held: from here on that is certain."""
        self.openings.append((moment, found))

    def expected(self, moment: int) -> Expected:
        """Return what must and may be there if the power fails at `moment`."""
        openings = [opening for opening in self.openings if opening[0] <= moment]
        if not openings:
            return self.before
        since, found = openings[-1]
        expected = Expected(
            certain=dict(found.records), first_min=found.first, first_max=found.first
        )
        flushed = max((each.value for each in self.flushes if each.returned <= moment), default=0)
        for attempt in self.attempts:
            if not since <= attempt.started <= moment:
                continue
            if attempt.returned <= moment and (self.sync == "always" or attempt.end <= flushed):
                expected.certain.update(enumerate(attempt.contents, attempt.first))
            else:
                expected.possible.append(attempt)
        for trim in self.trims:
            if since <= trim.started <= moment:
                expected.first_max = trim.value
                if trim.returned <= moment and self.sync != "os":
                    expected.first_min = trim.value
        for name in READERS:
            self._expect_reader(expected, name, moment, found.positions.get(name))
        return expected

    def _expect_reader(
        self, expected: Expected, name: str, moment: int, before: int | None
    ) -> None:
        # A commit may be lost: its file is synced, the name it was given is not.
        commits = [each for each in self.commits[name] if each.started <= moment]
        expected.positions[name] = {each.value for each in commits}
        if before is not None:
            expected.positions[name].add(before)
        if before is not None or any(each.returned <= moment for each in commits):
            expected.registered.add(name)


class Writer:
    """Plays steps on a log and notes them in its story."""

    def __init__(self, root: Path, disk: RecordingDisk, story: Story, random: Random) -> None:
        self._root = root
        self._disk = disk
        self._story = story
        self._random = random
        self._clock = ManualClock()
        self._resume: dict[str, int] = {}
        self.open()

    def open(self) -> None:
        """Open the log, hold it to the story so far and take what it has as given."""
        self.log = self._opened()
        found = examine(self.log, self._story.expected(self._disk.moment), self._story.sync)
        self._resume = dict(found.positions)
        self._story.opened(self._disk.moment, found)

    def _opened(self) -> Log:
        return Log(
            self._root / "log",
            disk=self._disk,
            sync=self._story.sync,
            sync_interval_ms=60_000,  # Never by itself: a script must replay.
            exclusive=self._random.random() < 0.5,
            segment_bytes=self._random.choice((12_288, 16_384)),
            segment_items=self._random.choice((4, 4, 20, 100)),
            lock_timeout=0.0,
            clock=self._clock,
        )

    def play_random(self, steps: int) -> None:
        self.play(self._random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps))

    def play(self, steps: Iterable[str]) -> None:
        """Do what each step names: a method, or "commit ann" for a reader and its latest place."""
        for step in steps:
            self._clock.advance(ms=self._random.randrange(3))
            name, *arguments = step.split()
            getattr(self, name)(*arguments)

    # Steps -----------------------------------------------------------------------------------

    def append(self) -> None:
        payload, attr = self._content()
        self._appending([(payload, attr)], lambda: self.log.append(payload, attr=attr))

    def append_many(self) -> None:
        contents = [self._content() for _ in range(self._random.randint(1, 4))]
        payloads, attrs = zip(*contents, strict=True)
        self._appending(contents, lambda: self.log.append_many(payloads, attrs=attrs))

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self._flushing(self.log.flush)

    def close(self) -> None:
        self._flushing(self.log.close)

    def reopen(self) -> None:
        self.close()
        self.log = self._opened()

    def commit(self, name: str | None = None) -> None:
        """Let a reader go on to the end, or to anywhere if it is not named."""
        reader_name = name or self._random.choice(READERS)
        with self._reader(reader_name) as reader:
            end = self.log.next_offset
            offset = end if name else self._random.randint(reader.position, end)
            self._committing(reader_name, offset, lambda: reader.commit(offset))

    def _reader(self, name: str) -> Reader:
        """Open a reader, which commits where it begins if it is new."""
        place = self._resume.get(name, self.log.first_offset)
        try:
            reader = self._committing(name, place, lambda: self.log.reader(name))
        except (CorruptPosition, OffsetTrimmed):
            if self._story.sync != "os":
                raise
            place = self.log.first_offset
            reader = self._committing(name, place, lambda: self.log.reader(name, "earliest"))
        assert reader.position == place, f"{name} was sent from {place} to {reader.position}"
        return reader

    def cleanup(self) -> None:
        self._trimming(self.log.cleanup)

    def trim(self) -> None:
        # Never beyond a reader: who asks for that is told OffsetTrimmed, and rightly so.
        position = min(self._resume.values(), default=0)
        self._trimming(lambda: self.log.trim(position))

    # Noting them -----------------------------------------------------------------------------

    def _content(self) -> Content:
        number = self._random.getrandbits(48)
        size_bytes = self._random.choice((0, 1, 30, 200, 600, 1_000))
        return (b"%d " % number * size_bytes)[:size_bytes], number

    def _appending(self, contents: list[Content], act: Callable[[], int]) -> None:
        first, started, returned = self.log.next_offset, self._disk.moment, NEVER
        try:
            offset = act()
            returned = self._disk.moment
        finally:
            self._story.attempts.append(
                Attempt(first=first, contents=contents, started=started, returned=returned)
            )
        assert offset == first, f"{offset} was given, {first} was next"

    def _flushing(self, act: Callable[[], None]) -> None:
        end, started = self.log.next_offset, self._disk.moment
        act()
        self._story.flushes.append(Change(value=end, started=started, returned=self._disk.moment))

    def _committing(self, name: str, offset: int, act: Callable[[], T]) -> T:
        started, returned = self._disk.moment, NEVER
        try:
            result = act()
            returned = self._disk.moment
            self._resume[name] = offset
            return result
        finally:
            self._story.commits[name].append(
                Change(value=offset, started=started, returned=returned)
            )

    def _trimming(self, act: Callable[[], Sequence[int]]) -> None:
        started, returned = self._disk.moment, NEVER
        try:
            if act():  # Who deleted nothing promises nothing, also not for a failed try before.
                returned = self._disk.moment
        finally:
            self._story.trims.append(
                Change(value=self.log.first_offset, started=started, returned=returned)
            )


def examine(log: Log, expected: Expected, sync: SyncName) -> Found:
    """Return what is in `log`, having held it to what must and may be there.

    Except in mode "os" no damage may be seen: what the power tore was never promised to anyone.
    """
    strict = sync != "os"
    first, end = log.first_offset, log.next_offset
    records: dict[int, Content] = {}
    for offset in range(first, end):
        try:
            record = log.read(offset)
        except Damage:
            if strict:
                raise
            continue
        assert record.offset == offset, f"asked for {offset}, got {record.offset}"
        records[offset] = record.payload, record.attr
    read_on = {
        record.offset: (record.payload, record.attr) for record in log.records(on_damage="skip")
    }
    assert read_on == records, "reading on and reading by offset differ"
    _check_contents(records, expected)
    lost = [
        offset
        for offset in expected.certain
        if offset not in records and not (offset < first and offset < expected.first_max)
    ]
    assert lost == [], f"promised and lost: {lost}"
    if strict:
        ends = {expected.certain_end} | {attempt.end for attempt in expected.possible}
        assert end in ends, f"ends at {end}, none of {ends}"
        bounds = expected.first_min, expected.first_max
        assert bounds[0] <= first <= bounds[1], f"begins at {first}, not between {bounds}"
        damage = [audit for audit in log.verify() if not audit.is_intact]
        assert damage == [], f"verify reports damage: {damage}"
        unsealed = [segment.id for segment in log.segments()[:-1] if not segment.sealed]
        assert unsealed == [], f"never sealed: {unsealed}"
    positions = _check_readers(log, expected, strict=strict)
    return Found(first=first, next=end, records=records, positions=positions)


def _check_contents(records: dict[int, Content], expected: Expected) -> None:
    for offset, content in records.items():
        if offset in expected.certain:
            assert content == expected.certain[offset], f"wrong record at offset {offset}"
            continue
        batches = [each for each in expected.possible if each.at(offset) == content]
        assert batches, f"phantom {content[1]} at offset {offset}"
        present = [records.get(place) for place in range(batches[0].first, batches[0].end)]
        assert present == batches[0].contents, f"half a batch at offset {batches[0].first}"


def _check_readers(log: Log, expected: Expected, *, strict: bool) -> dict[str, int]:
    """Return where readers resume: at a place they committed, and never behind a trim."""
    positions: dict[str, int] = {}
    for name in READERS:
        try:
            saved = log._positions.load(name)
            if saved is None:
                assert not strict or name not in expected.registered, f"reader {name} is lost"
                continue
            with log.reader(name) as reader:
                positions[name] = reader.position
        except (CorruptPosition, OffsetTrimmed):
            if strict:
                raise
            continue
        allowed = {min(each, log.next_offset) for each in expected.positions[name]}
        assert positions[name] in allowed, f"{name} stands at {positions[name]}, not in {allowed}"
    return positions
