"""Compaction: which records of a partition later ones have made needless. For every store."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal, Protocol

from segue.delivery.topic_record import HAS_KEY, is_tombstone, key_of
from segue.errors import OffsetTrimmed
from segue.log.record import Record

KEYS_MAX: Final = 1_000_000
"""How many keys compaction has in memory at once; for more it takes several rounds."""


class Removal(Protocol):
    """What removing records did."""

    @property
    def segments(self) -> Sequence[int]: ...

    @property
    def removed_records(self) -> int: ...

    @property
    def freed_bytes(self) -> int: ...


class Compactable(Protocol):
    """A partition's records, and what removes some of them."""

    @property
    def first_offset(self) -> int: ...

    def records(
        self, start: int, /, *, stop: int | None, on_damage: Literal["skip"]
    ) -> Iterator[Record]: ...

    def remove_records(self, keep: Callable[[Record], bool], *, stop: int) -> Removal: ...


class Compaction:
    """One run over one partition."""

    def __init__(
        self, log: Compactable, *, tombstones_before_us: int, keys_max: int = KEYS_MAX
    ) -> None:
        self._log = log
        self._tombstones_before_us = tombstones_before_us
        self._keys_max = keys_max
        self._has_tombstones = False
        self.removed = 0
        self.freed_bytes = 0
        self.segments: set[int] = set()

    def run(self, end: int) -> None:
        """Remove what can go of the records before `end`."""
        start: int = self._log.first_offset
        while start < end:
            newest: dict[bytes, int] = {}
            for record in self._records(start, end):
                key = key_of(record)
                if key is not None:
                    newest[key] = record.offset
                self._has_tombstones |= self._is_old_tombstone(record)
                start = record.offset + 1
                if len(newest) >= self._keys_max:
                    break
            else:
                start = end
            self._remove(partial(_is_newest, newest), end)
        if self._has_tombstones:
            self._remove_tombstones(end)

    def _remove_tombstones(self, end: int) -> None:
        """Remove old tombstones under whose key nothing older is left for them to hide.

        By a look of its own: a segment that could not be compacted may still hold some.
        """
        oldest: dict[bytes, int] = {}
        tombstones: dict[bytes, int] = {}
        for record in self._records(0, end):
            if self._is_old_tombstone(record) and len(tombstones) < self._keys_max:
                key = key_of(record)
                if key is not None:
                    tombstones[key] = record.offset
        if not tombstones:
            return
        for record in self._records(0, end):
            key = key_of(record)
            if key is not None and key in tombstones:
                oldest.setdefault(key, record.offset)
        alone = {offset for key, offset in tombstones.items() if oldest.get(key, offset) == offset}
        if alone:
            self._remove(lambda record: record.offset not in alone, end)

    def _records(self, start: int, end: int) -> Iterator[Record]:
        """Yield what can be read, also if something is cleaned away meanwhile."""
        while start < end:
            start = max(start, self._log.first_offset)
            try:
                for record in self._log.records(start, stop=end, on_damage="skip"):
                    yield record
                    start = record.offset + 1
                return
            except OffsetTrimmed as error:
                start = max(start, error.earliest)

    def _is_old_tombstone(self, record: Record) -> bool:
        return is_tombstone(record) and record.time_us <= self._tombstones_before_us

    def _remove(self, keep: Callable[[Record], bool], end: int) -> None:
        report = self._log.remove_records(keep, stop=end)
        self.removed += report.removed_records
        self.freed_bytes += report.freed_bytes
        self.segments.update(report.segments)


def _is_newest(newest: dict[bytes, int], record: Record) -> bool:
    if not record.attr & HAS_KEY:
        return True
    key = key_of(record)
    return key is None or newest.get(key, record.offset) <= record.offset
