"""A topic without any disk: lists of records, and where everybody stands."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from segue import TopicRecord

SETTLING_ROUNDS: Final = 3
"""After how many polls of everybody every partition of a group is somebody's."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was appended."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    timestamp_us: int
    appended_us: int


@dataclass
class PartitionModel:
    """One partition: all that was ever appended to it, and what is left."""

    rows: list[Row] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    """By compaction."""
    first: int = 0
    starts: list[int] = field(default_factory=lambda: [0])
    """Where segments begin; the last one takes records. Those before `first` are gone."""

    @property
    def end(self) -> int:
        return len(self.rows)

    def append(self, row: Row) -> int:
        self.rows.append(row)
        return len(self.rows) - 1

    def roll(self) -> None:
        if self.starts[-1] != self.end:
            self.starts.append(self.end)

    def left(self, start: int = 0) -> Iterator[int]:
        """Yield the offsets of the records that are left."""
        for offset in range(max(start, self.first), self.end):
            if offset not in self.removed:
                yield offset

    def compact(self, tombstones_before_us: int) -> int:
        """Remove what a later record replaced, and tombstones that are old; return how many."""
        newest = {self.rows[offset].key: offset for offset in self.left()}
        gone = set()
        for offset in self.left():
            row = self.rows[offset]
            if offset >= self.starts[-1] or row.key is None:
                continue
            is_old = row.value is None and row.appended_us <= tombstones_before_us
            if newest[row.key] != offset or is_old:
                gone.add(offset)
        self.removed |= gone
        return len(gone)

    def delete(self, segments: list[int]) -> None:
        """Take in that segments were deleted: from the oldest on, never the last."""
        assert segments == list(range(segments[0], segments[-1] + 1))
        assert self.starts[segments[0]] == self.first
        assert segments[-1] + 1 < len(self.starts)
        self.first = self.starts[segments[-1] + 1]

    def oldest_segment(self) -> int:
        return self.starts.index(self.first)

    def deletable(self, offset: int) -> list[int]:
        """Return the segments that lie before `offset` as a whole."""
        return [
            segment
            for segment in range(self.oldest_segment(), len(self.starts) - 1)
            if self.starts[segment + 1] <= offset
        ]


class TopicModel:
    """All partitions, and the readers and producers of the topic."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [PartitionModel() for _ in range(partitions)]
        self.committed: dict[str, dict[int, int]] = {}
        """By reader and partition."""
        self.sequences: dict[tuple[str, int], int] = {}
        """The last one of a producer in a partition."""
        self.routes: dict[str, list[tuple[int, int]]] = {}
        """From which sequence number on a producer had how many partitions."""

    def partition_of(self, key: bytes) -> int:
        return crc32(key) % len(self.partitions)

    def note_route(self, name: str, sequence: int) -> None:
        """Take in that a producer knows how many partitions there are before it appends."""
        routes = self.routes.setdefault(name, [])
        if not routes or routes[-1][1] != len(self.partitions):
            routes.append((sequence if routes else 0, len(self.partitions)))

    def partitions_at(self, name: str, sequence: int) -> int:
        """Return how many partitions there were for a sequence number."""
        return [count for first, count in self.routes[name] if first <= sequence][-1]

    def grow(self) -> None:
        self.partitions.append(PartitionModel())
        for places in self.committed.values():
            places[len(self.partitions) - 1] = 0

    def wanted_from(self, partition: int) -> int | None:
        """Return the place of the reader that stands furthest back, None without readers."""
        return min((places[partition] for places in self.committed.values()), default=None)

    def expected(self, partition: int) -> list[tuple[int, Row]]:
        """Return what is left of a partition."""
        model = self.partitions[partition]
        return [(offset, model.rows[offset]) for offset in model.left()]

    def check(self, record: TopicRecord) -> None:
        """Fail unless a record is what was appended there."""
        row = self.partitions[record.partition].rows[record.offset]
        found = Row(
            key=record.key,
            value=record.value,
            headers=dict(record.headers),
            timestamp_us=record.timestamp_us,
            appended_us=row.appended_us,
        )
        assert found == row
