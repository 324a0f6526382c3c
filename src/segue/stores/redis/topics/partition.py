"""One partition on the server: each method is one call, and its answer checked."""

import struct
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from segue.errors import (
    CorruptManifest,
    InvalidArgument,
    OffsetNotWritten,
    OffsetOutOfRange,
    OffsetTrimmed,
    SegueError,
)
from segue.log.record import microseconds
from segue.stores.redis.calls import Calls, Refusal, Word
from segue.stores.redis.libraries import library
from segue.stores.redis.topics.answers import (
    bytes_of,
    nonsense,
    number_of,
    numbers_of,
    pairs_of,
    text_of,
    words_of,
)
from segue.stores.redis.topics.room import Room
from segue.stores.redis.topics.stretch import SLOT_BYTES, Stretch, stretch_from
from segue.stores.topic_reading import OneStart
from segue.values import dataclass

KIND: Final = "partition"
_FACTS = struct.Struct(">7Q")


class ManifestChanged(SegueError):
    """The topic was changed since we looked: look again, and try again. Never leaves the store."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the topic is at version {version}")
        self.version = version


class Fenced(SegueError):
    """The producer's name was claimed anew since. Never leaves the store."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the name was claimed {epoch} times")
        self.epoch = epoch


class Origin(NamedTuple):
    """Who appends, so that nothing is appended twice."""

    producer: int
    epoch: int
    before: str
    """The last sequence number as the producer believes it, 19 digits; empty if there is none."""
    after: str


NOBODY: Final = Origin(-1, 0, "", "")


class Batch(NamedTuple):
    """Records to be appended together."""

    slots: bytes
    payload: bytes

    @property
    def records(self) -> int:
        return len(self.slots) // SLOT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What there is at an offset: a stretch, if anything."""

    first_offset: int
    next_offset: int
    version: int
    stretch: Stretch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A segment as its partition describes it."""

    id: int
    first_offset: int
    count: int
    first_us: int
    last_us: int
    payload_bytes: int
    overhead_bytes: int
    rewrites: int

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count

    @property
    def size_bytes(self) -> int:
        return self.overhead_bytes + self.payload_bytes if self.count else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A partition at one moment."""

    now_us: int
    first_offset: int
    next_offset: int
    back: int
    oldest_us: int | None
    sealed: Sequence[Facts]
    active: Facts
    places: dict[str, int]

    @property
    def size_bytes(self) -> int:
        return self.active.size_bytes + sum(facts.size_bytes for facts in self.sealed)

    def segment_of(self, offset: int) -> int:
        """Return the segment with `offset`, the active one at the end."""
        for facts in self.sealed:
            if offset < facts.end_offset:
                return facts.id
        return self.active.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far one place is behind."""

    mark: str
    committed: int
    size_bytes: int
    time_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """How far all places of a partition are behind, at one moment."""

    now_us: int
    first_offset: int
    next_offset: int
    places: Sequence[Standing]


class Partition:
    """The door to one partition. Safe from any thread."""

    def __init__(self, calls: Calls, base: str, number: int) -> None:
        self.base = base
        self.number = number
        self.version_seen = 0
        """Of the topic's manifest, as far as the partition had heard of it when we last looked."""
        self._calls = calls
        self._library = library(KIND)

    def _change(self, function: str, *words: Word) -> object:
        try:
            return self._calls.change(self._library, function, self.base, *words)
        except Refusal as refusal:
            if refusal.code == "MANIFEST":
                raise ManifestChanged(number_of(refusal.words[0].encode())) from None
            if refusal.code == "FENCED":
                raise Fenced(number_of(refusal.words[0].encode())) from None
            raise

    def _look(self, function: str, *words: Word) -> object:
        return self._calls.look(self._library, function, self.base, *words)

    # Appending -----------------------------------------------------------------------------

    def append(
        self,
        batch: Batch,
        *,
        version: int,
        room: Room,
        origin: Origin = NOBODY,
        adoption: str = "",
    ) -> tuple[int, object]:
        """Append a batch; return its first offset and whether a segment began.

        Or -1 and the last sequence number if that is not what the producer believes, or -2 and
        the first offset if it was adopted before. Raises ManifestChanged, Fenced.
        """
        producer = "" if origin.producer < 0 else origin.producer
        answer = self._change(
            "append",
            *(version, room.items_max, room.bytes_max),
            *(room.overhead_bytes(batch.records), room.age_us_max),
            *(batch.slots, batch.payload),
            *(producer, origin.epoch, origin.before, origin.after, adoption),
        )
        first, rest = words_of(answer, 2)[:2]
        return number_of(first), rest

    def meet(self, producer: int, epoch: int) -> str:
        """Return a producer's last sequence number, empty without one; refuse earlier epochs."""
        return text_of(self._change("meet", producer, epoch))

    def roll(self) -> bool:
        """Begin a new segment, unless the last one is empty; tell whether it was done."""
        return number_of(self._change("roll")) > 0

    def note_version(self, version: int) -> None:
        """Have those who know only an older manifest look again."""
        self._change("note_version", version)

    def stage(self, name: str, batch: Batch, *, kept_ms: int) -> None:
        """Keep a batch aside for a while."""
        self._change("stage", name, kept_ms, batch.slots, batch.payload)

    def adopt(
        self, name: str, overheads: Sequence[int], *, version: int, adoption: str
    ) -> tuple[int, int]:
        """Append what was staged in one step: 1 and its first offset; -2 if it was done before.

        0 if something of it is gone. Raises ManifestChanged.
        """
        answer = self._change("adopt", version, adoption, name, len(overheads), *overheads)
        found = numbers_of(answer, 1)
        return found[0], found[-1]

    # Reading -------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        waiter: str = "",
        wait_us: int = 0,
    ) -> Found:
        """Return what there is at `offset`, of one segment. `waiter` is woken if it is the end.

        Raises OffsetTrimmed, OffsetNotWritten, CorruptSegment.
        """
        answer = words_of(self._look("read", offset, records_max, bytes_max, waiter, wait_us), 3)
        first, latest, version = (number_of(word) for word in answer[:3])
        stretch = None
        if not first <= offset <= latest:
            raise self._out_of_range(offset, first, latest)
        if len(answer) > 3:  # noqa: PLR2004 - there is a stretch.
            stretch = stretch_from(self.base, words_of(answer[3:], 5))
            if not stretch.first_offset <= offset < stretch.stop:
                raise nonsense([stretch.first_offset, offset, stretch.stop])
        return Found(first_offset=first, next_offset=latest, version=version, stretch=stretch)

    def _out_of_range(self, offset: int, first: int, latest: int) -> OffsetOutOfRange:
        error = OffsetTrimmed if 0 <= offset < first else OffsetNotWritten
        return error(offset=offset, earliest=first, latest=latest, partition=self.number)

    def resolve(self, start: OneStart) -> int:
        """Return the offset that `start` stands for. Raises OffsetTrimmed, OffsetNotWritten."""
        answer = numbers_of(self._look("resolve", *words_for(start)), 4)
        offset, first, latest, self.version_seen = answer
        if not first <= offset <= latest:
            given = start if isinstance(start, int) else offset
            raise self._out_of_range(given, first, latest)
        return offset

    # Places --------------------------------------------------------------------------------

    def marks(self) -> list[str]:
        """Return the names of all places."""
        return [text_of(mark) for mark in words_of(self._look("marks"))]

    def register(
        self, mark: str, start: OneStart, *, keeps: bool = False, token: str = ""
    ) -> int | None:
        """Save the place that `start` stands for, and return it; None if `token` is outdated.

        With `keeps` one that was saved before stays. Raises OffsetTrimmed, OffsetNotWritten.
        """
        answer = self._change("register", mark, *words_for(start), int(keeps), token)
        done, *rest = numbers_of(answer, 1)
        if done < 0:
            return None
        if not done:
            assert isinstance(start, int), "only an offset can be out of range"
            raise self._out_of_range(start, *rest)
        return rest[0]

    def save(self, mark: str, offset: int, *, token: str = "") -> bool:
        """Save a place; tell whether `token` allows it. Raises OffsetTrimmed, OffsetNotWritten."""
        done, *rest = numbers_of(self._change("save", mark, offset, token), 1)
        if not done:
            raise self._out_of_range(offset, *rest)
        return done > 0

    def hold(self, mark: str, token: int) -> tuple[bool, int]:
        """Let only `token` commit from here on: True and the place; or False and a newer token."""
        done, found = numbers_of(self._change("hold", mark, token), 2)[:2]
        return done > 0, found

    def forget(self, mark: str, *, token: str = "") -> bool:
        """Forget a place; tell whether there was one."""
        return number_of(self._change("forget", mark, token)) > 0

    def standings(self, mark: str = "") -> Standings:
        """Return how far one place is behind, or all."""
        answer = words_of(self._look("lags", mark), 4)
        now_us, first, latest, _ = (number_of(word) for word in answer[:4])
        rows = answer[4:]
        places = []
        for name, *numbers in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
            committed, size_bytes, time_us = map(number_of, numbers)
            places.append(
                Standing(
                    mark=text_of(name),
                    committed=committed,
                    size_bytes=size_bytes,
                    time_us=None if time_us < 0 else time_us,
                )
            )
        return Standings(now_us=now_us, first_offset=first, next_offset=latest, places=places)

    # Keeping -------------------------------------------------------------------------------

    def survey(self) -> Survey:
        """Return what there is, segment by segment."""
        sealed: list[Facts] = []
        start = 0
        while True:
            now_us, *answer = words_of(self._look("survey", start), 9)
            first, latest, oldest, active, back, oldest_us = map(number_of, answer[:6])
            if sealed and oldest > sealed[0].id:
                sealed = [facts for facts in sealed if facts.id >= oldest]
            at = max(start, oldest)
            found = answer[8:]
            sealed += [self._facts(at + place, data) for place, data in enumerate(found)]
            start = at + len(found)
            if start >= active or not found:
                break
        return Survey(
            now_us=number_of(now_us),
            first_offset=first,
            next_offset=latest,
            back=back,
            oldest_us=None if oldest_us < 0 else oldest_us,
            sealed=sealed,
            active=self._facts(active, answer[6]),
            places=dict(pairs_of(answer[7])),
        )

    def _facts(self, id_: int, data: object) -> Facts:
        packed = bytes_of(data)
        if len(packed) != _FACTS.size:
            path = Path(f"{self.base}:segments")
            raise CorruptManifest(path=path, reason=f"what it says of segment {id_} is cut short")
        first, count, first_us, last_us, payload_bytes, overhead, rewrites = _FACTS.unpack(packed)
        return Facts(
            id=id_,
            first_offset=first,
            count=count,
            first_us=first_us,
            last_us=last_us,
            payload_bytes=payload_bytes,
            overhead_bytes=overhead,
            rewrites=rewrites,
        )

    def drop(self, last: int, *, back: int) -> range:
        """Delete sealed segments up to `last`; return those that went, perhaps not all yet.

        None if a place was set back since the survey that said `back`.
        """
        first, stop = numbers_of(self._change("drop", last, back), 2)[:2]
        return range(first, stop)

    def rewrite(self, facts: Facts, *, slots: bytes, batches: bytes, payload: bytes) -> bool:
        """Put what is left of a sealed segment in its place, unless it changed since."""
        answer = self._change("rewrite", facts.id, facts.rewrites, slots, batches, payload)
        return number_of(answer) > 0


def words_for(start: OneStart) -> tuple[str, int]:
    """Return a start as the server's functions take it. Raises InvalidArgument."""
    if start in ("earliest", "latest"):
        return str(start), 0
    if isinstance(start, datetime):
        try:
            return "time", microseconds(start)
        except (ValueError, OverflowError, OSError) as error:
            raise InvalidArgument(f"{start!r} is no time that can be found: {error}") from error
    assert isinstance(start, int)
    return "offset", start
