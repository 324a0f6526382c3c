"""What Spark writes aside is what anybody else would have appended or pushed, row by row."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import segue
from segue import Event, Item, TopicRecord
from segue.delivery.events import ASIDE
from segue.delivery.message import unpack_prefix
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import MOMENT_US_MAX, MOMENT_US_MIN, pack_record
from segue.errors import Damage, InvalidArgument, UnsupportedFormat
from segue.log.disk import Disk
from segue.log.staging import Batch, read_staged, write_staged
from segue.spark.options import WriteOptions
from segue.spark.sink.commit import Committer
from segue.spark.sink.rows import TopicRows, key_hashes, message_batches
from segue.spark.sink.staging import Stage
from segue.stores.file.adopting import _letter
from segue.stores.file.pushing import Letter
from segue.stores.file.writes import KEYED, WriteId

PARTITIONS = 3
NOW_US = 1_800_000_000_000_000
UINT64 = st.integers(min_value=0, max_value=(1 << 64) - 1)
KEYS = st.none() | st.binary(max_size=12)
HEADERS = st.none() | st.dictionaries(st.text(max_size=6), st.text(max_size=9), max_size=3)
TIMES = st.none() | st.integers(min_value=MOMENT_US_MIN, max_value=MOMENT_US_MAX)
RECORDS = st.lists(st.tuples(UINT64, st.binary(max_size=40)), min_size=1, max_size=12)


@contextmanager
def somewhere() -> Iterator[Path]:
    """Give an empty directory, in memory where there is such a thing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


# Segments ------------------------------------------------------------------------------------


def batch_of(records: Sequence[tuple[int, bytes]]) -> Batch:
    """Return records as a batch."""
    return Batch(
        lengths=np.array([len(payload) for _, payload in records], dtype=np.uint32),
        attrs=np.array([attr for attr, _ in records], dtype=np.uint64),
        data=memoryview(b"".join(payload for _, payload in records)),
    )


def records_of(batch: Batch) -> list[tuple[int, bytes]]:
    """Return what `batch_of` was given."""
    ends = np.cumsum(batch.lengths, dtype=np.int64)
    return [
        (int(attr), bytes(batch.data[int(end - length) : int(end)]))
        for attr, length, end in zip(batch.attrs, batch.lengths, ends, strict=True)
    ]


@given(st.lists(RECORDS, min_size=1, max_size=5))
@example([[(0, b"")]])
def test_what_is_written_aside_is_read_back_batch_by_batch(
    batches: list[list[tuple[int, bytes]]],
) -> None:
    """Each record, its attr, and which of them belong together."""
    with somewhere() as directory:
        path = directory / "staged.q"
        write_staged(
            path, [batch_of(records) for records in batches], Disk(), time_us=NOW_US, sync=False
        )
        with read_staged(path, Disk()) as staged:
            assert [records_of(batch) for batch in staged.batches] == batches
            assert staged.count == sum(map(len, batches))


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_a_segment_that_was_changed_is_refused_or_says_the_same(
    batches: list[list[tuple[int, bytes]]], data: st.DataObject
) -> None:
    """One byte or the end of it; unused space may be anything."""
    with somewhere() as directory:
        path = directory / "staged.q"
        write_staged(
            path, [batch_of(records) for records in batches], Disk(), time_us=NOW_US, sync=False
        )
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            del content[place:]
        else:
            content[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        try:
            with read_staged(path, Disk()) as staged:
                assert [records_of(batch) for batch in staged.batches] == batches
        except (Damage, InvalidArgument, UnsupportedFormat):
            return


# Rows of a topic -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row for a topic."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str] | None
    time_us: int | None
    partition: int | None


ROWS = st.lists(
    st.builds(
        Row,
        key=KEYS,
        value=st.none() | st.binary(max_size=30),
        headers=HEADERS,
        time_us=TIMES,
        partition=st.none() | st.integers(0, PARTITIONS - 1),
    ),
    min_size=1,
    max_size=12,
)
SLICES = st.tuples(st.integers(0, 3), st.integers(0, 3))
"""How many other rows lie before and after in memory, as where Spark cuts a batch."""


def sliced(array: pa.Array, before: int, after: int) -> pa.Array:
    """Return an array that is a part of a longer one."""
    around = pa.concat_arrays([array[:1]] * before + [array] + [array[:1]] * after)
    return around.slice(before, len(array))


def header_array(rows: Sequence[Mapping[str, str] | None], *, is_map: bool) -> pa.Array:
    """Return headers in one of the two shapes that Spark may have them in."""
    if is_map:
        pairs = [None if headers is None else list(headers.items()) for headers in rows]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))
    structs = [
        None
        if headers is None
        else [{"key": name, "value": value.encode()} for name, value in headers.items()]
        for headers in rows
    ]
    return pa.array(structs, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def topic_rows(rows: Sequence[Row], cut: tuple[int, int], *, is_map: bool) -> pa.RecordBatch:
    """Return rows as Spark hands them over."""
    columns = {
        "key": pa.array([row.key for row in rows], pa.binary()),
        "value": pa.array([row.value for row in rows], pa.binary()),
        "headers": header_array([row.headers for row in rows], is_map=is_map),
        "timestamp": pa.array([row.time_us for row in rows], pa.timestamp("us", tz="UTC")),
        "partition": pa.array([row.partition for row in rows], pa.int32()),
    }
    return pa.record_batch({name: sliced(column, *cut) for name, column in columns.items()})


@given(st.lists(KEYS, max_size=20), SLICES)
def test_all_keys_at_once_have_the_checksum_that_each_has(
    keys: list[bytes | None], cut: tuple[int, int]
) -> None:
    """Else a key would have two partitions, one for Spark and one for everybody else."""
    hashes = key_hashes(sliced(pa.array(keys, pa.binary()), *cut))

    for key, hashed in zip(keys, hashes.tolist(), strict=True):
        if key is not None:
            assert hashed == crc32(key)


@given(ROWS, SLICES, st.booleans(), st.integers(0, 10))
def test_a_row_is_laid_out_as_the_record_that_it_is(
    rows: list[Row], cut: tuple[int, int], is_map: bool, turn: int
) -> None:
    """Byte by byte, and in the partition of its key; those without key are in one of them."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for number, batch in TopicRows(partitions=PARTITIONS, turn=turn).batches(
        topic_rows(rows, cut, is_map=is_map)
    ):
        found.setdefault(number, []).extend(records_of(batch))
    expected: dict[int, list[tuple[int, bytes]]] = {}
    for row in rows:
        partition = turn % PARTITIONS
        if row.partition is not None:
            partition = row.partition
        elif row.key is not None:
            partition = partition_of(row.key, PARTITIONS)
        payload, attr = pack_record(
            row.key, row.value, headers=row.headers, timestamp_us=row.time_us
        )
        expected.setdefault(partition, []).append((attr, payload))

    assert found == expected


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(ROWS, st.booleans())
def test_a_topic_holds_the_same_whether_spark_wrote_it_or_somebody_appended(
    rows: list[Row], is_map: bool
) -> None:
    """All that a reader is told of a record, but the time of one that has none of its own."""
    with somewhere() as directory:
        with segue.open(directory, sync="os") as store:
            store.topic("written", partitions=PARTITIONS)
            appended = store.topic("appended", partitions=PARTITIONS)
            appended.append_many(
                [
                    Event(
                        value=row.value,
                        key=row.key,
                        headers=row.headers,
                        timestamp=row.time_us,
                        partition=row.partition,
                    )
                    for row in rows
                ]
            )
        options = WriteOptions(url=str(directory), kind="topic", name="written", sync="os")
        write = WriteId(query="query", batch=0)
        files = Stage(options, write, PARTITIONS).write([topic_rows(rows, (0, 0), is_map=is_map)])
        Committer(options).commit(write, files)
        with segue.open(directory, sync="os") as store:
            written = [*store.topic("written").records()]
            expected = [*store.topic("appended").records()]

    assert placed(written, rows) == placed(expected, rows)
    assert sorted(map(said, written), key=repr) == sorted(map(said, expected), key=repr)


def said(record: TopicRecord) -> tuple[bytes | None, bytes | None, dict[str, str]]:
    """Return what a record says, wherever it is."""
    return record.key, record.value, dict(record.headers)


def placed(records: Sequence[TopicRecord], rows: Sequence[Row]) -> dict[int, list[object]]:
    """Return what is in each partition, of the records whose place is not chance."""
    loose = {
        (row.key, row.value, tuple(sorted((row.headers or {}).items())))
        for row in rows
        if row.key is None and row.partition is None
    }
    times = {row.time_us for row in rows if row.time_us is not None}
    found: dict[int, list[object]] = {}
    for record in records:
        key = (record.key, record.value, tuple(sorted(record.headers.items())))
        if key not in loose:
            time_us = record.timestamp_us if record.timestamp_us in times else None
            found.setdefault(record.partition, []).append((*said(record), time_us))
    return found


# Rows of a queue -----------------------------------------------------------------------------


ITEMS = st.lists(
    st.builds(
        Item,
        body=st.binary(max_size=30),
        priority=st.integers(0, 3),
        delay=st.none() | st.integers(0, 10_000_000).map(lambda each: each / 1_000),
        headers=HEADERS,
        key=st.none() | st.text(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=12,
)


@given(ITEMS, SLICES, st.booleans())
def test_a_row_becomes_the_message_that_somebody_would_have_pushed(
    items: list[Item], cut: tuple[int, int], is_map: bool
) -> None:
    """In the same lane, with the same to be said of it, in the same order."""
    columns = {
        "value": pa.array([item.body for item in items], pa.binary()),
        "priority": pa.array([item.priority for item in items], pa.int64()),
        "delay": pa.array([item.delay for item in items], pa.float64()),
        "headers": header_array([item.headers for item in items], is_map=is_map),
        "key": pa.array([item.key for item in items], pa.string()),
    }
    rows = pa.record_batch({name: sliced(column, *cut) for name, column in columns.items()})
    found: dict[tuple[int, bytes | None], list[object]] = {}
    for number, batch in message_batches(rows, now_us=NOW_US):
        for attr, payload in records_of(batch):
            letter = _letter(payload, attr) if number == KEYED else Letter(number, payload, attr)
            note(found, letter)
    expected: dict[tuple[int, bytes | None], list[object]] = {}
    for item in items:
        note(expected, Letter.of(item, NOW_US))

    assert found == expected
    assert all(lane == ASIDE or lane <= 3 for lane, _ in found)


def note(letters: dict[tuple[int, bytes | None], list[object]], letter: Letter) -> None:
    """Note a letter with those of its lane; those with keys apart, for they go one by one."""
    prefix, body = unpack_prefix(letter.payload, letter.attr)
    letters.setdefault((letter.lane, letter.digest), []).append(
        (dict(prefix), body, letter.attr >> 24)
    )
