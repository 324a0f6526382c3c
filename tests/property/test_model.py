"""A log does what a plain list would, whatever is done to it in whatever order."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from segue import Log, Reader, Record
from segue.errors import (
    BatchTooLarge,
    InvalidArgument,
    OffsetNotWritten,
    OffsetTrimmed,
    RecordTooLarge,
)
from segue.log.disk import Disk
from segue.log.options import SyncName
from tests.property.model import LogModel, ReaderModel
from tests.unit.support import SMALL_SEGMENT_BYTES, ManualClock, RestartedMachine, moment

pytest.importorskip("pyarrow")

START_US = 1_000_000
ATTRS = st.integers(min_value=0, max_value=(1 << 64) - 1)
PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.integers(min_value=0, max_value=4_096).map(lambda size: b"\xa5" * size),
)
NAMES = st.sampled_from(["one", "two", "three"])
PLACES = st.integers(min_value=0, max_value=255)
"""Taken modulo the length of the log, so that ends and edges come up often."""
SYNCS: st.SearchStrategy[SyncName] = st.sampled_from(["os", "interval", "always"])


class LogMachine(RuleBasedStateMachine):
    """One log, sometimes through two handles, against a list."""

    def __init__(self) -> None:
        super().__init__()
        shared_memory = Path("/dev/shm")
        base = shared_memory if shared_memory.is_dir() else None
        self.scratch = Path(tempfile.mkdtemp(prefix="segue-model-", dir=base))
        self.generation = 0
        self.clock = ManualClock(START_US)
        self.model = LogModel(clock_max_us=START_US)
        self.readers: dict[str, Reader] = {}
        self.disk: Disk | None = None

    @property
    def directory(self) -> Path:
        return self.scratch / f"log-{self.generation}"

    # Opening -------------------------------------------------------------------------------

    def open(
        self, *, sync: SyncName, exclusive: bool, items: int | None, pages: int | None
    ) -> None:
        self.exclusive = exclusive
        self.sync: SyncName = sync
        self.log = Log(
            self.directory,
            sync=sync,
            exclusive=exclusive,
            segment_items=items,
            segment_bytes=None if pages is None else pages * 4_096,
            clock=self.clock,
            disk=self.disk,
        )

    @initialize(sync=SYNCS, exclusive=st.booleans())
    def begin(self, sync: SyncName, exclusive: bool) -> None:
        self.open(sync=sync, exclusive=exclusive, items=5, pages=3)

    @rule(
        sync=SYNCS,
        exclusive=st.booleans(),
        items=st.sampled_from([None, 1, 3, 20]),
        pages=st.sampled_from([None, 3, 4]),
    )
    def close_and_reopen(
        self, sync: SyncName, exclusive: bool, items: int | None, pages: int | None
    ) -> None:
        self.drop_readers()
        self.log.close()
        self.open(sync=sync, exclusive=exclusive, items=items, pages=pages)

    @rule(sync=SYNCS, exclusive=st.booleans(), restart=st.booleans())
    def crash_and_reopen(self, sync: SyncName, exclusive: bool, restart: bool) -> None:
        """Go on with a copy made while the log was open: that is what a killed process leaves."""
        before = self.directory
        self.generation += 1
        shutil.copytree(before, self.directory, ignore=shutil.ignore_patterns("wake"))
        self.drop_readers()
        self.log.close()
        shutil.rmtree(before)
        if restart:
            self.disk = None if self.disk is not None else RestartedMachine()
        self.open(sync=sync, exclusive=exclusive, items=None, pages=None)

    def place(self, number: int) -> int:
        """Return an offset in the log or just outside of it."""
        return number % (self.model.next + 3) - 1

    def drop_readers(self) -> None:
        while self.readers:
            name, reader = self.readers.popitem()
            reader.close()
            self.model.readers[name].position = None

    @rule(step_us=st.integers(min_value=-1_000, max_value=1_000))
    def step_the_clock(self, step_us: int) -> None:
        self.clock.now_us = max(0, self.clock.now_us + step_us)
        self.model.clock_max_us = max(self.model.clock_max_us, self.clock.now_us)

    # Appending -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def some_handle(self, second: bool) -> Iterator[Log]:
        """Yield the log, or another handle on it if it may be shared."""
        if not second or self.exclusive:
            yield self.log
            return
        with Log(self.directory, sync=self.sync, clock=self.clock, disk=self.disk) as other:
            yield other

    def take_in(self, log: Log, first: int, payloads: list[bytes], attrs: list[int]) -> None:
        """Check where records went and when, and add them to the model."""
        assert first == self.model.next
        for place, (payload, attr) in enumerate(zip(payloads, attrs, strict=True)):
            time_us = log.read(first + place).time_us
            least_us = max(self.model.last_time_us, self.clock.now_us)
            assert least_us <= time_us <= self.model.clock_max_us
            self.model.add(payload, attr, time_us)

    @rule(payload=PAYLOADS, attr=ATTRS, second=st.booleans())
    def append(self, payload: bytes, attr: int, second: bool) -> None:
        with self.some_handle(second) as log:
            self.take_in(log, log.append(payload, attr=attr), [payload], [attr])

    @rule(
        payloads=st.lists(st.binary(max_size=200), max_size=5),
        attr=st.none() | ATTRS,
        second=st.booleans(),
    )
    def append_many(self, payloads: list[bytes], attr: int | None, second: bool) -> None:
        attrs = None if attr is None else [attr ^ place for place in range(len(payloads))]
        with self.some_handle(second) as log:
            try:
                first = log.append_many(payloads, attrs=attrs)
            except BatchTooLarge:
                note("refused")
                return
            self.take_in(log, first, payloads, attrs or [0] * len(payloads))

    @rule(count=st.integers(min_value=1, max_value=15), step_us=st.integers(0, 3))
    def append_several(self, count: int, step_us: int) -> None:
        """Make the log grow faster than single steps would."""
        for number in range(count):
            self.step_the_clock(step_us)
            payload = b"%d" % number
            self.take_in(self.log, self.log.append(payload, attr=number), [payload], [number])

    @rule(extra=st.integers(min_value=1, max_value=5_000))
    def append_what_cannot_fit(self, extra: int) -> None:
        with pytest.raises(RecordTooLarge):
            self.log.append(bytes(4 * SMALL_SEGMENT_BYTES + extra))
        with pytest.raises(InvalidArgument):
            self.log.append(b"", attr=-extra)

    @rule()
    def roll(self) -> None:
        self.log.roll()
        assert self.log.segments()[-1].count == 0

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def repair_what_is_not_broken(self) -> None:
        assert not self.log.repair().changed

    # Reading -------------------------------------------------------------------------------

    @rule(number=PLACES)
    def read(self, number: int) -> None:
        model, offset = self.model, self.place(number)
        if model.first <= offset < model.next:
            assert self.log.read(offset) == model.records[offset]
            return
        expected = OffsetTrimmed if 0 <= offset < model.first else OffsetNotWritten
        with pytest.raises(expected) as raised:
            self.log.read(offset)
        assert (raised.value.earliest, raised.value.latest) == (model.first, model.next)

    @rule(start=PLACES, stop=st.none() | PLACES, as_columns=st.booleans())
    def read_a_slice(self, start: int, stop: int | None, as_columns: bool) -> None:
        start = min(max(self.place(start), self.model.first), self.model.next)
        stop = None if stop is None else max(0, self.place(stop))
        expected = self.model.kept(start, stop)
        if as_columns:
            assert columns(self.log, start, stop) == expected
        else:
            assert list(self.log.records(start, stop=stop)) == expected

    @rule(back_us=st.integers(min_value=-2_000, max_value=5_000))
    def find_a_time(self, back_us: int) -> None:
        time_us = max(0, self.clock.now_us - back_us)
        assert self.log.offset_at(moment(time_us)) == self.model.offset_at(time_us)

    # Readers -------------------------------------------------------------------------------

    @rule(name=NAMES, start=st.sampled_from(["resume", "earliest", "latest"]) | PLACES)
    def open_a_reader(self, name: str, start: "str | int") -> None:
        model = self.model
        if name in self.readers:
            self.readers.pop(name).close()
        known = model.readers.get(name)
        start = self.place(start) if isinstance(start, int) else start
        wanted = {"earliest": model.first, "latest": model.next}.get(str(start), start)
        if start == "resume":
            wanted = model.first if known is None else known.saved
        assert isinstance(wanted, int)
        if not model.first <= wanted <= model.next:
            with pytest.raises(OffsetTrimmed if 0 <= wanted < model.first else OffsetNotWritten):
                self.log.reader(name, start)  # type: ignore[arg-type]
            if known is not None:
                known.position = None
            return
        self.readers[name] = self.log.reader(name, start)  # type: ignore[arg-type]
        assert self.readers[name].position == wanted
        model.readers[name] = ReaderModel(saved=wanted, position=wanted)

    @precondition(lambda self: bool(self.readers))
    @rule(data=st.data(), count_max=st.integers(min_value=1, max_value=12))
    def read_on(self, data: st.DataObject, count_max: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        reader, known = self.readers[name], self.model.readers[name]
        assert known.position is not None
        if known.position < self.model.first:
            with pytest.raises(OffsetTrimmed):
                reader.read(count_max)
            return
        found = reader.read(count_max)
        expected = self.model.kept(known.position, known.position + count_max)
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        known.position += len(found)
        assert (reader.position, reader.lag) == (known.position, self.model.next - known.position)

    @precondition(lambda self: bool(self.readers))
    @rule(data=st.data(), number=PLACES)
    def seek(self, data: st.DataObject, number: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        place = min(max(self.place(number), self.model.first), self.model.next)
        self.readers[name].seek(place)
        self.model.readers[name].position = place

    @precondition(lambda self: bool(self.readers))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.readers)))
        known = self.model.readers[name]
        assert known.position is not None
        if known.position < self.model.first:
            return  # It has been overtaken and will be told when it reads.
        self.readers[name].commit()
        known.saved = known.position

    @rule(name=NAMES)
    def forget_a_reader(self, name: str) -> None:
        if name in self.readers:
            self.readers.pop(name).close()
        assert self.log.remove_reader(name) == (name in self.model.readers)
        self.model.readers.pop(name, None)

    # Retention -----------------------------------------------------------------------------

    def expect_deleted(self, deleted: list[int], expected: list[int]) -> None:
        """Only a reader that has a segment open may keep it, and with it what follows."""
        note(f"deleted {deleted} of {expected}")
        assert deleted == expected[: len(deleted)]
        if not self.readers:
            assert deleted == expected

    @rule()
    def cleanup(self) -> None:
        segments = self.log.segments()
        expected = self.model.deletable(segments, self.log.readers().values())
        deleted = self.log.cleanup()
        self.expect_deleted(list(deleted), expected)
        self.model.forget(segments, list(deleted))

    @rule(number=PLACES)
    def trim(self, number: int) -> None:
        offset = self.place(number)
        segments = self.log.segments()
        expected = self.model.trimmable(segments, offset)
        deleted = self.log.trim(offset)
        self.expect_deleted(list(deleted), expected)
        self.model.forget(segments, list(deleted))

    # What always holds ---------------------------------------------------------------------

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        log, model = self.log, self.model
        assert (log.first_offset, log.next_offset) == (model.first, model.next)
        assert len(log) == model.next - model.first
        assert list(log.records()) == model.kept(0)

    @invariant()
    def segments_follow_each_other(self) -> None:
        segments = self.log.segments()
        expected = self.model.first
        for before, after in pairwise(segments):
            assert after.id == before.id + 1
        for info in segments:
            assert info.first_offset == expected
            expected += info.count
        assert [info.sealed for info in segments] == [True] * (len(segments) - 1) + [False]

    @invariant()
    def readers_are_where_they_were_saved(self) -> None:
        saved = {name: position.offset for name, position in self.log.readers().items()}
        assert saved == {name: known.saved for name, known in self.model.readers.items()}

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                assert [audit for audit in self.log.verify() if not audit.is_intact] == []
                assert not (self.directory / "quarantine").exists()
                self.drop_readers()
                self.log.close()
                with Log(self.directory, read_only=True) as log:
                    assert list(log.records()) == self.model.kept(0)
        finally:
            shutil.rmtree(self.scratch)


def columns(log: Log, start: int, stop: int | None) -> list[Record]:
    """Read a slice by columns, as records."""
    return [
        Record(*row)
        for stretch in log.columns(start, stop=stop)
        for row in zip(
            stretch.offset.tolist(),
            stretch.time_us.tolist(),
            stretch.attr.tolist(),
            stretch.payload.to_pylist(),
            strict=True,
        )
    ]


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=2 * settings().max_examples)
