"""Topics, queues and rings of a directory by columns, as whoever reads its logs sees them."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from segue.clock import Clock
from segue.delivery.events import ASIDE
from segue.errors import InvalidArgument, LogNotFound, TopicNotFound
from segue.log import Log
from segue.log.columns import Columns
from segue.server.bulk import DEAD, LATER, Kind, Look, in_few, partition_from
from segue.stores.column_pieces import pieces
from segue.stores.file.core import QueueCore
from segue.stores.file.portrait import LogPortrait, portrait_of
from segue.stores.file.store import RINGS, TOPICS, FileStore
from segue.stores.file.stretches import stretches
from segue.stores.file.topics import marks
from segue.stores.file.topics.manifest import read_manifest
from segue.stores.http.wire.bulk import BehindJson, PortraitJson, StrandJson, TouchedJson
from segue.stores.http.wire.numbers import whole_number
from segue.stores.passing import Passing

_RING: Final = "0"


class FileTables:
    """Reads a store in a directory. Safe from any thread."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._root = store.place.root

    def _log(self, path: Path) -> Log:
        return Log(path, read_only=True, allow_network=self._store.place.allow_network)

    # What there is -------------------------------------------------------------------------

    def strands(self, kind: Kind, name: str, look: Look) -> list[StrandJson]:
        """Return what there is to read. Raises TopicNotFound, RingNotFound, InvalidArgument."""
        if kind == "topic":
            count = self._partitions(name)
            return [self._partition(name, each, look.reader) for each in range(count)]
        if kind == "ring":
            return [self._ring(name)]
        found = []
        for portrait in portrait_of(self._core(name)):
            number = _number(portrait, kind, is_stream=look.is_stream)
            if number is not None:
                found.append(self._messages(number, portrait))
        return found

    def _partitions(self, name: str) -> int:
        manifest = read_manifest(self._root / TOPICS / name, self._store.place.disk)
        if manifest is None:
            raise TopicNotFound(name=name)
        return manifest.partitions

    def _partition_path(self, name: str, number: int) -> Path:
        return self._root / TOPICS / name / f"partition_{number}"

    def _partition(self, name: str, number: int, reader: str | None) -> StrandJson:
        with suppress(LogNotFound), self._log(self._partition_path(name, number)) as log:
            end = int(log.next_offset)
            first = min(int(log.first_offset), end)
            return StrandJson(
                number=str(number),
                first=first,
                end=end,
                extents=in_few(log.extents(first, end)),
                place=None if reader is None else marks.saved(log, reader),
            )
        return StrandJson(number=str(number), first=0, end=0, extents=[])  # Nobody has used it.

    def _ring_path(self, name: str) -> Path:
        return self._root / RINGS / name / "entries"

    def _ring(self, name: str) -> StrandJson:
        info = self._store.ring(name, mode="open").info()
        with self._log(self._ring_path(name)) as log:
            first = max(int(log.first_offset), info.head_offset)
            return StrandJson(
                number=_RING,
                first=first,
                end=info.tail_offset,
                extents=in_few(log.extents(first, info.tail_offset)),
            )

    def _core(self, name: str) -> QueueCore:
        if name not in self._store.queues():
            raise InvalidArgument(f"there is no queue {name}")
        self._store.queue(name)
        return self._store._queue_core(name)

    def _messages(self, number: str, portrait: LogPortrait) -> StrandJson:
        with self._log(portrait.path) as log:
            return StrandJson(
                number=number,
                first=portrait.first,
                end=portrait.end,
                extents=in_few(log.extents(portrait.first, portrait.end)),
                portrait=_portrait_json(portrait),
            )

    # Places --------------------------------------------------------------------------------

    def places_at(self, kind: Kind, name: str, moment: datetime) -> dict[str, int]:
        """Return the first offset of each strand at `moment` or later."""
        places = {}
        for number in self._numbers(kind, name):
            with suppress(LogNotFound), self._log(self._path(kind, name, number)) as log:
                places[number] = int(log.offset_at(moment))
        return places

    def _numbers(self, kind: Kind, name: str) -> list[str]:
        if kind == "topic":
            return [str(each) for each in range(self._partitions(name))]
        if kind == "ring":
            return [_RING]
        found = (
            _number(portrait, kind, is_stream=False) for portrait in portrait_of(self._core(name))
        )
        return [each for each in found if each is not None]

    def _path(self, kind: Kind, name: str, number: str) -> Path:
        """Return where a strand is. Raises InvalidArgument."""
        if kind == "topic":
            return self._partition_path(name, partition_from(number, self._partitions(name)))
        if kind == "ring":
            self._store.ring(name, mode="open")
            return self._ring_path(name)
        core = self._core(name)
        with core.turn():
            if number == DEAD and core.lanes.has_dead:
                return core.lanes.dead.log.path
            if number == LATER and core.ledger.has_aside:
                return core.lanes.aside.log.path
            lane = whole_number(number, what="a strand")
            if lane in core.ledger.order:
                return core.lane_in_turn(lane).log.path
        raise InvalidArgument(f"queue {name} has no strand {number!r}")

    def behind(self, name: str, offsets: dict[int, int], clock: Clock) -> Iterator[BehindJson]:
        """Yield what lies beyond offsets of a topic, in the partitions there are."""
        count = self._partitions(name)
        for number, offset in offsets.items():
            if not 0 <= number < count:
                continue
            with suppress(LogNotFound), self._log(self._partition_path(name, number)) as log:
                records = max(0, int(log.next_offset) - offset)
                time_us = log.time_of(offset) if records else None
                yield BehindJson(
                    partition=number,
                    offset=offset,
                    records=records,
                    size_bytes=log.bytes_from(offset) if records else 0,
                    seconds=0.0 if time_us is None else max(0, clock() - time_us) / 1_000_000,
                )

    # Rows ----------------------------------------------------------------------------------

    def stretches(self, kind: Kind, start: int, stop: int, passing: Passing) -> Iterator[Columns]:
        """Yield what lies between two offsets of a strand."""
        path = self._path(kind, passing.name, passing.number)
        with self._log(path) as log:
            for columns in stretches(log, start, stop, passing):
                yield from pieces(columns)


def _number(portrait: LogPortrait, kind: Kind, *, is_stream: bool) -> str | None:
    """Return what the strand of a log is called; None if it is not of this kind.

    A stream of a queue is what is pushed to it: a message that dies is not told a second time.
    """
    is_letters = kind == "dead_letters"
    if portrait.lane is None:
        return DEAD if is_letters or not is_stream else None
    if is_letters:
        return None
    return LATER if portrait.lane == ASIDE else str(portrait.lane)


def _portrait_json(portrait: LogPortrait) -> PortraitJson:
    touched = portrait.touched
    return PortraitJson(
        lane=portrait.lane,
        cursor=portrait.cursor,
        touched=TouchedJson(
            at=touched.at.tolist(),
            lane=touched.lane.tolist(),
            offset=touched.offset.tolist(),
            priority=touched.priority.tolist(),
            state=touched.state.tolist(),
            attempt=touched.attempt.tolist(),
            not_before_us=touched.not_before_us.tolist(),
            cause=touched.cause,
            reason=touched.reason,
        ),
        hidden=portrait.hidden.tolist(),
        hidden_state=portrait.hidden_state.tolist(),
        dead=portrait.dead,
    )
