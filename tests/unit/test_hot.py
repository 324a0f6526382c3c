"""The two twins of the hot path write the same bytes."""

import importlib
import mmap
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.log import hot_python, slots
from segue.log.live import PUBLISHED, SEGMENT, STATE, WRITTEN
from segue.log.record import Record

if os.environ.get("CI"):
    compiled = importlib.import_module("segue.log._hot")  # There is a compiler: it must be built.
else:
    compiled = pytest.importorskip("segue.log._hot")
SIZE = 64 * 1024
UNSIGNED_64 = st.integers(0, (1 << 64) - 1)
RECORDS = st.lists(
    st.tuples(st.binary(max_size=600), UNSIGNED_64, st.integers(0, 1 << 50)), max_size=30
)


class Bench:
    """One twin at work on a mapping of its own."""

    def __init__(self, twin: object, *, publish_at_once: bool = True) -> None:
        self.mapping = mmap.mmap(-1, SIZE)
        self.page = bytearray(128)
        self.words = memoryview(self.page).cast("Q")
        self.tail = twin.HotTail(self.mapping, self.words, publish_at_once)  # type: ignore[attr-defined]
        self.tail.first_offset = 1_000
        self.tail.segment = 7
        self.tail.position = 8_192
        self.tail.chain = 12_345
        self.tail.key = 0xDEADBEEF
        self.tail.seed = 0xCAFEBABE
        self.tail.slots_ready = 20
        self.tail.payloads_ready = SIZE
        self.words[SEGMENT] = 7
        self.words[WRITTEN] = 1_000

    def state(self) -> tuple[object, ...]:
        tail = self.tail
        return (
            bytes(self.mapping),
            bytes(self.page),
            (tail.index, tail.position, tail.chain, tail.time_us),
        )


@given(RECORDS, st.booleans())
def test_both_twins_store_the_same_bytes(
    records: list[tuple[bytes, int, int]], publish_at_once: bool
) -> None:
    """Also where the space written ahead ends and where the clock steps back."""
    benches = [Bench(twin, publish_at_once=publish_at_once) for twin in (compiled, hot_python)]
    for record in records:
        first, second = (bench.tail.store(*record) for bench in benches)
        assert first == second

    assert benches[0].state() == benches[1].state()


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=50), st.data())
def test_both_twins_encode_the_same_batch(lengths: list[int], data: st.DataObject) -> None:
    """Whatever the lengths and the attrs."""
    attrs = data.draw(
        st.none() | st.lists(UNSIGNED_64, min_size=len(lengths), max_size=len(lengths))
    )
    results = [
        encode(
            lengths,
            attrs,
            time_us=1 << 50,
            position=9_000,
            before=1,
            after=(1 << 32) - 1,
            key=3,
            seed=4,
        )
        for encode in (compiled.encode_batch, slots.encode_batch)
    ]

    assert results[0] == results[1]


@pytest.mark.parametrize("twin", [compiled, hot_python], ids=["compiled", "python"])
@pytest.mark.parametrize(("word", "value"), [(SEGMENT, 8), (WRITTEN, 1_001), (STATE, 1)])
def test_nothing_is_stored_after_another_process_was_here(
    twin: object, word: int, value: int
) -> None:
    """The live words say that the tail must catch up first."""
    bench = Bench(twin)
    bench.words[word] = value
    before = bench.state()

    assert bench.tail.store(b"payload", 0, 1) == hot_python.NO_ROOM
    assert bench.state() == before


@pytest.mark.parametrize("twin", [compiled, hot_python], ids=["compiled", "python"])
@pytest.mark.parametrize("attr", [-1, 1 << 64, "1", 1.5])
def test_an_impossible_attr_stores_nothing(twin: object, attr: object) -> None:
    """The error comes before the first store."""
    bench = Bench(twin)
    before = bench.state()
    with pytest.raises((OverflowError, TypeError, struct.error)):
        bench.tail.store(b"payload", attr, 1)

    assert bench.state() == before


@pytest.mark.parametrize("twin", [compiled, hot_python], ids=["compiled", "python"])
def test_a_detached_tail_refuses(twin: object) -> None:
    """After closing, nothing can reach the mapping."""
    bench = Bench(twin)
    bench.tail.detach()
    with pytest.raises(ValueError, match="closed"):
        bench.tail.store(b"payload", 0, 1)


def test_words_are_published_only_when_asked_for() -> None:
    """With sync "always" a record is stored before it is synced and shown after."""
    bench = Bench(compiled, publish_at_once=False)
    bench.tail.store(b"payload", 0, 1)

    assert (bench.words[WRITTEN], bench.words[PUBLISHED]) == (1_001, 0)


@given(st.lists(st.binary(max_size=400) | st.binary().map(bytearray) | st.text(), max_size=9))
def test_both_twins_measure_the_same(payloads: list[object]) -> None:
    """The lengths of bytes; nothing if anything else is among them."""
    assert compiled.measure_batch(payloads) == hot_python.measure_batch(payloads)


@given(
    st.lists(st.tuples(st.binary(max_size=50), UNSIGNED_64, st.booleans()), max_size=20),
    st.data(),
)
def test_both_twins_read_the_same_records(
    records: list[tuple[bytes, int, bool]], data: st.DataObject
) -> None:
    """Removed ones left out, whatever run is asked for."""
    segment = bytearray(SIZE)
    position = 8_192
    for index, (payload, attr, removed) in enumerate(records):
        segment[position : position + len(payload)] = payload
        link = slots.REMOVED if removed else 0
        body = slots.pack_body(7, attr, position, len(payload), link, 0, 0)
        at = slots.slot_position(index)
        segment[at : at + len(body)] = body
        position += len(payload)
    first = data.draw(st.integers(0, len(records)))
    stop = data.draw(st.integers(first, len(records)))
    found, same = (
        twin.read_records(Record, bytes(segment), first, stop, 1_000)
        for twin in (compiled, hot_python)
    )

    assert found == same
    assert [type(record) for record in found] == [Record] * len(found)
    assert [record.payload for record in found] == [
        payload for payload, _, removed in records[first:stop] if not removed
    ]


@pytest.mark.parametrize(("index", "stop"), [(-1, 1), (2, 1), (0, 1 << 40)])
def test_reading_outside_a_segment_is_refused(index: int, stop: int) -> None:
    """The compiled twin trusts no number it is given."""
    with pytest.raises(ValueError, match="outside"):
        compiled.read_records(Record, bytes(SIZE), index, stop, 0)


def test_a_payload_that_lies_outside_its_segment_is_refused() -> None:
    """The compiled twin trusts no bytes it is given."""
    segment = bytearray(SIZE)
    body = slots.pack_body(7, 0, SIZE - 4, 5, 0, 0, 0)
    segment[slots.slot_position(0) : slots.slot_position(0) + len(body)] = body

    with pytest.raises(ValueError, match="outside"):
        compiled.read_records(Record, bytes(segment), 0, 1, 0)
