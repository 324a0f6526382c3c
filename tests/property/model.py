"""What a log is, as a plain list: the model that the real one is held against."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

from segue import Record
from segue.log import Offset, SegmentInfo
from segue.log.positions import SavedPosition


@dataclass(slots=True)
class ReaderModel:
    """Where a named reader was saved, and where it stands if somebody has it open."""

    saved: int
    position: int | None = None


@dataclass(slots=True)
class LogModel:
    """Every record ever appended; those before `first` are trimmed."""

    records: list[Record] = field(default_factory=list)
    first: int = 0
    readers: dict[str, ReaderModel] = field(default_factory=dict)
    clock_max_us: int = 0

    @property
    def next(self) -> int:
        return len(self.records)

    @property
    def last_time_us(self) -> int:
        return self.records[-1].time_us if self.records else 0

    def kept(self, start: int, stop: int | None = None) -> list[Record]:
        """Return what iterating from `start` up to `stop` must yield."""
        return self.records[max(start, self.first) : stop]

    def add(self, payload: bytes, attr: int, time_us: int) -> None:
        self.records.append(Record(Offset(self.next), time_us, attr, payload))

    def offset_at(self, time_us: int) -> int:
        """Return the first offset that is not older, or the end."""
        for record in self.records[self.first :]:
            if record.time_us >= time_us:
                return record.offset
        return self.next

    def deletable(self, segments: list[SegmentInfo], saved: Collection[SavedPosition]) -> list[int]:
        """Return the sealed segments that every reader has left: what retention may delete.

        Who is at the very end of one has left it.
        """

        def is_left(info: SegmentInfo) -> bool:
            end = (info.id, (info.first_offset or 0) + info.count)
            return all(end <= (position.segment, position.offset) for position in saved)

        sealed = [info for info in segments if info.sealed]
        return [info.id for info in takewhile(is_left, sealed)] if saved else []

    def trimmable(self, segments: list[SegmentInfo], offset: int) -> list[int]:
        """Return the sealed segments that end at or before `offset`."""
        return [
            info.id
            for info in segments
            if info.sealed
            and info.first_offset is not None
            and info.first_offset + info.count <= offset
        ]

    def forget(self, segments: list[SegmentInfo], deleted: list[int]) -> None:
        """Take in that segments are gone."""
        left = [info for info in segments if info.id not in deleted]
        first = left[0].first_offset
        assert first is not None
        self.first = first
