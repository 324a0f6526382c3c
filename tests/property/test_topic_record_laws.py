"""A topic's record says what was put into it, one by one or as columns, whatever its bytes are."""

from collections.abc import Mapping
from zlib import crc32

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from segue import Record
from segue.delivery import topic_record as layout
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import (
    Origin,
    TopicRecord,
    adoption_digest,
    adoption_of,
    key_of,
    origin_of,
    pack_headers,
    pack_record,
    unpack_headers,
    unpack_record,
    with_adoption,
    without_origin,
)
from segue.log.columns import Columns
from segue.log.layout import Offset
from segue.stores.topic_columns import SCHEMA, table_of

INT64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
UINT64 = st.integers(min_value=0, max_value=(1 << 64) - 1)
KEYS = st.none() | st.binary(max_size=20)
VALUES = st.none() | st.binary(max_size=60)
HEADERS = st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=4)
ORIGINS = st.none() | st.builds(Origin, UINT64, UINT64)
TIMES = st.none() | INT64
CONTENTS = st.tuples(KEYS, VALUES, HEADERS, TIMES, ORIGINS)
Content = tuple[bytes | None, bytes | None, dict[str, str], int | None, Origin | None]

FLAGS = st.sets(
    st.sampled_from(
        [
            layout.HAS_KEY,
            layout.HAS_NO_VALUE,
            layout.HAS_TIMESTAMP,
            layout.HAS_PRODUCER,
            layout.HAS_ADOPTION,
        ]
    )
).map(sum)
SMALL = st.integers(min_value=0, max_value=30)
ATTRS = (
    st.builds(lambda key, headers, flags: key | headers << 24 | flags, SMALL, SMALL, FLAGS)
    | st.sampled_from([1 << bit for bit in range(64)])
    | UINT64
)
PAYLOADS = st.binary(max_size=80) | st.builds(
    lambda before, headers, after: before + pack_headers(headers) + after,
    st.binary(max_size=12),
    HEADERS,
    st.binary(max_size=12),
)
FOREIGN = st.tuples(ATTRS, PAYLOADS)
"""Attr and payload that anybody may have written."""


def packed(content: Content) -> tuple[bytes, int]:
    key, value, headers, timestamp_us, origin = content
    return pack_record(key, value, headers=headers, timestamp_us=timestamp_us, origin=origin)


def record_of(payload: bytes, attr: int, *, time_us: int = 77) -> Record:
    return Record(Offset(5), time_us, attr, payload)


def same(one: TopicRecord, other: TopicRecord) -> bool:
    return one._replace(headers=dict(one.headers)) == other._replace(headers=dict(other.headers))


# One by one --------------------------------------------------------------------------------


@given(content=CONTENTS)
@example(content=(None, b"", {}, None, None))
@example(content=(b"", None, {}, 0, Origin(0, 0)))
def test_what_was_packed_is_unpacked(content: Content) -> None:
    """Key, value, headers, time and origin; what is not there is not there."""
    key, value, headers, timestamp_us, origin = content
    record = record_of(*packed(content))
    found = unpack_record(3, record)

    assert (found.partition, found.offset) == (3, 5)
    assert (found.key, found.value, dict(found.headers)) == (key, value, headers)
    assert found.timestamp_us == (77 if timestamp_us is None else timestamp_us)
    assert (key_of(record), origin_of(record), adoption_of(record)) == (key, origin, None)


@given(value=st.binary(max_size=60))
def test_a_plain_value_is_its_bytes(value: bytes) -> None:
    """And nothing else: what a log holds is a topic's record as it is."""
    assert pack_record(None, value) == (value, 0)


@given(headers=HEADERS)
def test_headers_come_back(headers: dict[str, str]) -> None:
    """In their order."""
    assert list(unpack_headers(pack_headers(headers)).items()) == list(headers.items())


@given(headers=HEADERS, rest=st.binary(max_size=20), cut=st.integers(min_value=0, max_value=60))
def test_headers_that_break_off_are_those_before(
    headers: dict[str, str], rest: bytes, cut: int
) -> None:
    """Bytes that make no sense say nothing, and hide nothing that comes before them."""
    data = pack_headers(headers)
    shortened = unpack_headers(data[: cut % (len(data) + 1)])
    lengthened = unpack_headers(data + rest)

    assert list(shortened.items()) == list(headers.items())[: len(shortened)]
    assert set(headers) <= set(lengthened)


@given(foreign=FOREIGN)
def test_any_bytes_can_be_unpacked(foreign: tuple[int, bytes]) -> None:
    """Nothing is believed: at worst they are a value without key, with the log's time."""
    attr, payload = foreign
    record = record_of(payload, attr)
    found = unpack_record(0, record)

    assert isinstance(found.headers, Mapping)
    assert found.value is None or found.value in payload
    assert found.key is None or found.key in payload
    if attr > layout.KNOWN_BITS:
        assert (found.key, found.value, found.timestamp_us) == (None, payload, 77)
    origin_of(record)
    adoption_of(record)


@given(foreign=FOREIGN)
@example(foreign=(layout.HAS_KEY | 1 | 9 << 24, b"abc"))
@example(foreign=(layout.HAS_KEY | 1 | 1 << 60, b"abc"))
def test_a_record_has_one_key(foreign: tuple[int, bytes]) -> None:
    """What compaction goes by is what readers see: else it removes records without a key."""
    record = record_of(foreign[1], foreign[0])

    assert key_of(record) == unpack_record(0, record).key


@given(content=CONTENTS, name=st.text(min_size=1, max_size=9), again=st.booleans())
def test_an_adoption_changes_nothing_that_is_read(content: Content, name: str, again: bool) -> None:
    """It is found again, alone: who made the record, and who adopted it before, is gone."""
    payload, attr = packed(content)
    if again:
        payload, attr = with_adoption(*without_origin(payload, attr), adoption_digest("before"))
    bare = without_origin(payload, attr)
    marked = record_of(*with_adoption(*bare, adoption_digest(name)))

    for record in (record_of(*bare), marked):
        assert same(unpack_record(0, record), unpack_record(0, record_of(*packed(content))))
        assert (key_of(record), origin_of(record)) == (content[0], None)
    assert adoption_of(marked) == adoption_digest(name)


@given(key=st.binary(max_size=40), partitions=st.integers(min_value=1, max_value=4096))
def test_a_key_has_one_partition(key: bytes, partitions: int) -> None:
    """By its CRC, whatever else is the matter."""
    assert partition_of(key, partitions) == crc32(key) % partitions < partitions


# As columns --------------------------------------------------------------------------------


def columns_of(foreign: list[tuple[int, bytes]], skip: int) -> Columns:
    """Return what the log would, with a payload array that begins in the middle of another."""
    payloads = [b"x" * 7] * skip + [payload for _, payload in foreign]
    return Columns(
        offset=np.arange(10, 10 + len(foreign), dtype=np.int64),
        time_us=np.arange(len(foreign), dtype=np.int64) * 1_000,
        attr=np.array([attr for attr, _ in foreign], dtype=np.uint64),
        payload=pa.array(payloads, pa.binary()).slice(skip),
    )


def check_table(foreign: list[tuple[int, bytes]], skip: int) -> None:
    table = table_of(2, columns_of(foreign, skip))
    expected = [
        unpack_record(2, Record(Offset(10 + place), place * 1_000, attr, payload))
        for place, (attr, payload) in enumerate(foreign)
    ]

    assert table.schema == SCHEMA
    table.validate(full=True)
    assert table["key"].to_pylist() == [record.key for record in expected]
    assert table["value"].to_pylist() == [record.value for record in expected]
    assert [dict(each) for each in table["headers"].to_pylist()] == [
        dict(record.headers) for record in expected
    ]
    times_us = table["timestamp"].cast(pa.int64()).to_pylist()
    assert times_us == [record.timestamp_us for record in expected]
    assert table["offset"].to_pylist() == [record.offset for record in expected]
    assert table["partition"].to_pylist() == [2] * len(expected)


@given(contents=st.lists(CONTENTS, min_size=1, max_size=8), skip=st.integers(0, 3))
def test_columns_say_what_records_do(contents: list[Content], skip: int) -> None:
    """Those that were packed by us."""
    records = [packed(content) for content in contents]
    check_table([(attr, payload) for payload, attr in records], skip)


@given(foreign=st.lists(FOREIGN, min_size=1, max_size=8), skip=st.integers(0, 3))
@example(foreign=[(layout.HAS_KEY | 1 | 9 << 24, b"abc")], skip=0)
@example(foreign=[(layout.HAS_NO_VALUE, b""), (layout.HAS_NO_VALUE, b"")], skip=0)
@example(foreign=[(6 << 24, b"\x00\x00\xff\xff\xff\xff")], skip=1)
@example(foreign=[(9 << 24, b"\x01\x00\x02\x00\x00\x00\xff\xed\xa0")], skip=0)
def test_columns_say_what_records_do_of_any_bytes(
    foreign: list[tuple[int, bytes]], skip: int
) -> None:
    """Those that anybody may have written."""
    check_table(foreign, skip)
