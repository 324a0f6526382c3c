"""Removing records from a log is leaving them out of a list, in whatever order things happen."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue import Log, Record
from segue.errors import RecordRemoved
from segue.log import Offset
from tests.unit.support import ManualClock

pytest.importorskip("pyarrow")

PAYLOADS = st.binary(max_size=40) | st.integers(0, 900).map(lambda size: b"\xa5" * size)
APPEND = st.tuples(st.just("append"), PAYLOADS)
APPEND_MANY = st.tuples(st.just("append_many"), st.lists(PAYLOADS, max_size=4))
REMOVE = st.tuples(
    st.just("remove"), st.integers(1, 7), st.integers(0, 6), st.none() | st.integers(0, 40)
)
OTHERS = st.sampled_from([("roll",), ("reopen",), ("second",)])
STEPS = st.lists(st.one_of(APPEND, APPEND_MANY, APPEND_MANY, REMOVE, OTHERS), max_size=40)


class Listed:
    """A log beside the list of what it holds: None where a record was removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(1_000)
        self.records: list[Record | None] = []
        self.log = self.open()

    def open(self) -> Log:
        return Log(self.path, sync="os", segment_bytes=12_288, segment_items=6, clock=self.clock)

    def play(self, step: tuple[object, ...]) -> None:
        self.clock.advance(us=len(self.records) % 3)
        name, *arguments = step
        getattr(self, str(name))(*arguments)

    def append(self, payload: bytes) -> None:
        self.append_many([payload])

    def append_many(self, payloads: list[bytes]) -> None:
        attrs = [len(self.records) + place for place in range(len(payloads))]
        self.log.append_many(payloads, attrs=attrs)
        self.records += [
            Record(Offset(attr), self.clock(), attr, payload)
            for attr, payload in zip(attrs, payloads, strict=True)
        ]

    def roll(self) -> None:
        self.log.roll()

    def reopen(self) -> None:
        self.log.close()
        self.log = self.open()

    def second(self) -> None:
        """Look through another handle from here on, which has seen what was there before."""
        other = self.open()
        for record in self.kept():
            assert other.read(record.offset) == record
        self.log.close()
        self.log = other

    def remove(self, divisor: int, rest: int, stop: int | None) -> None:
        """Refuse some, by their offsets, and take in what should become of it."""
        expected = []
        for segment in self.log.segments()[:-1]:
            first = segment.first_offset
            assert first is not None
            if stop is None or first + segment.count <= stop:
                expected += [
                    offset
                    for offset in range(first, first + segment.count)
                    if offset % divisor == rest and self.records[offset] is not None
                ]
        report = self.log.remove_records(lambda record: record.offset % divisor != rest, stop=stop)
        assert report.removed_records == len(expected)
        for offset in expected:
            self.records[offset] = None

    def kept(self) -> list[Record]:
        return [record for record in self.records if record is not None]

    def check(self) -> None:
        log, kept = self.log, self.kept()
        assert list(log.records()) == kept
        assert [offset for part in log.columns() for offset in part.offset.tolist()] == [
            record.offset for record in kept
        ]
        assert [payload.as_py() for part in log.columns() for payload in part.payload] == [
            record.payload for record in kept
        ]
        assert log.next_offset == len(self.records)
        audits = list(log.verify())
        assert all(audit.is_intact for audit in audits)
        assert sum(audit.removed for audit in audits) == len(self.records) - len(kept)
        for offset, record in enumerate(self.records):
            if record is None:
                with pytest.raises(RecordRemoved):
                    log.read(offset)
            else:
                assert log.read(offset) == record
            ahead = [other for other in kept if other.offset >= offset]
            assert log.bytes_from(offset) == sum(len(other.payload) for other in ahead)
            assert log.time_of(offset) == (ahead[0].time_us if ahead else None)


@given(STEPS)
def test_a_log_with_records_removed_is_a_list_without_them(
    steps: list[tuple[object, ...]],
) -> None:
    """Whatever was appended, rolled, removed and reopened, by single records and by batches."""
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    scratch = Path(tempfile.mkdtemp(prefix="segue-removing-", dir=base))
    try:
        listed = Listed(scratch / "log")
        try:
            for step in steps:
                listed.play(step)
                listed.check()
            listed.reopen()
            listed.check()
        finally:
            listed.log.close()
    finally:
        shutil.rmtree(scratch)
