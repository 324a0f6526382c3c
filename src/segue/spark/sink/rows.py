"""Rows as records of a topic or messages of a queue, a batch at a time."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    FractionalType,
    IntegerType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from segue.delivery import topic_record as layout
from segue.delivery.events import ASIDE
from segue.delivery.message import (
    HEADERS_BYTES_MAX,
    Prefix,
    headers_from,
    key_from,
    pack_message,
)
from segue.delivery.priority import PRIORITY_MAX
from segue.errors import InvalidArgument
from segue.log.staging import Batch
from segue.stores.arguments import duration_us
from segue.stores.file.writes import KEYED
from segue.values import dataclass

_Ints = npt.NDArray[np.int64]

COLUMNS: Final = {
    "topic": ("value", "key", "headers", "partition", "timestamp"),
    "queue": ("value", "key", "headers", "priority", "delay"),
}


def check_columns(schema: StructType, kind: Literal["topic", "queue"]) -> None:
    """Raise InvalidArgument unless rows with this schema can be written."""
    valid = COLUMNS[kind]
    for field in schema.fields:
        if field.name not in valid:
            raise InvalidArgument(
                f"a {kind} takes the columns {', '.join(valid)}, not {field.name}; "
                "what is more belongs in the value: to_json(struct(*)) AS value"
            )
        if not _is_fit(field.name, field.dataType, kind):
            raise InvalidArgument(
                f"column {field.name} of a {kind} cannot be {field.dataType.simpleString()}: "
                f"{_EXPECTED[field.name]}"
            )
    if "value" not in schema.names:
        raise InvalidArgument("there must be a column value: to_json(struct(*)) AS value")


_EXPECTED: Final = {
    "value": "it is binary or string, as to_json(struct(*)) AS value gives",
    "key": "a topic's is binary or string, a queue's is string",
    "headers": "they are map<string,string> or array<struct<key:string,value:binary>>",
    "partition": "it is int",
    "priority": "it is a whole number",
    "timestamp": "it is timestamp",
    "delay": "it is a number of seconds",
}


def _is_fit(name: str, type_: DataType, kind: str) -> bool:
    if name == "headers":
        return _are_headers(type_)
    if name == "key" and kind == "queue":
        return isinstance(type_, StringType)
    types: dict[str, type[DataType] | tuple[type[DataType], ...]] = {
        "value": (BinaryType, StringType),
        "key": (BinaryType, StringType),
        "partition": IntegerType,
        "priority": IntegralType,
        "timestamp": TimestampType,
        "delay": (IntegralType, FractionalType, DecimalType),
    }
    return isinstance(type_, types[name])


def _are_headers(type_: DataType) -> bool:
    if isinstance(type_, MapType):
        return isinstance(type_.keyType, StringType) and isinstance(type_.valueType, StringType)
    if not isinstance(type_, ArrayType) or not isinstance(type_.elementType, StructType):
        return False
    pair = type_.elementType
    return (
        pair.names == ["key", "value"]
        and isinstance(pair[0].dataType, StringType)
        and isinstance(pair[1].dataType, (StringType, BinaryType))
    )


# Topics ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class TopicRows:
    """Lays rows out for the partitions of a topic."""

    partitions: int
    turn: int = 0
    """Where the next rows without key go."""

    def batches(self, rows: pa.RecordBatch) -> Iterator[tuple[int, Batch]]:
        """Yield records, each batch for one partition. Raises InvalidArgument."""
        if not rows.num_rows:
            return
        keys = _binary(rows, "key")
        _check_keys(keys)
        payloads, attrs = _records(rows, keys)
        numbers = self._numbers(rows, keys)
        self.turn += 1
        for number, part in _by_number(numbers):
            chosen = payloads if part is None else payloads.take(pa.array(part))
            yield number, _batch(chosen, attrs if part is None else attrs[part])

    def _numbers(self, rows: pa.RecordBatch, keys: pa.BinaryArray | None) -> _Ints:
        """Return each row's partition: its own, that of its key, or the one whose turn it is."""
        numbers = np.full(rows.num_rows, self.turn % self.partitions, dtype=np.int64)
        if keys is not None and keys.null_count < len(keys):
            has_key = np.asarray(keys.is_valid())
            hashed = key_hashes(keys).astype(np.int64) % self.partitions
            numbers = np.where(has_key, hashed, numbers)
        given = _column(rows, "partition")
        if given is not None and given.null_count < len(given):
            said = np.asarray(given.fill_null(-1)).astype(np.int64)
            is_said = np.asarray(given.is_valid())
            wrong = said[is_said & ((said < 0) | (said >= self.partitions))]
            if len(wrong):
                raise InvalidArgument(
                    f"there is no partition {int(wrong[0])}, only {self.partitions}"
                )
            numbers = np.where(is_said, said, numbers)
        return numbers


def _records(
    rows: pa.RecordBatch, keys: pa.BinaryArray | None
) -> tuple[pa.BinaryArray, npt.NDArray[np.uint64]]:
    """Return the payload and attr of each row, as `topic_record` lays them out."""
    values = _binary(rows, "value")
    assert values is not None
    attrs = np.zeros(rows.num_rows, dtype=np.uint64)
    pieces: list[pa.BinaryArray] = []
    times = _column(rows, "timestamp")
    if times is not None and times.null_count < len(times):
        has_time = np.asarray(times.is_valid())
        attrs[has_time] |= np.uint64(layout.HAS_TIMESTAMP)
        micros = np.asarray(times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(0))
        if int(micros.min()) < layout.MOMENT_US_MIN or int(micros.max()) > layout.MOMENT_US_MAX:
            raise InvalidArgument("a timestamp must lie between the years 1 and 9999")
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(layout.TIMESTAMP_BYTES), len(micros), [None, pa.py_buffer(micros)]
        )
        pieces.append(pc.if_else(pa.array(has_time), fixed.cast(pa.binary()), b""))
    if keys is not None and keys.null_count < len(keys):
        has_key = np.asarray(keys.is_valid())
        keys = keys.fill_null(b"")
        attrs |= _lengths(keys).astype(np.uint64)
        attrs[has_key] |= np.uint64(layout.HAS_KEY)
        pieces.append(keys)
    headers = _packed_headers(_column(rows, "headers"))
    if headers is not None:
        attrs |= _lengths(headers).astype(np.uint64) << np.uint64(layout.HEADERS_SHIFT)
        pieces.append(headers)
    if values.null_count:
        attrs[np.asarray(values.is_null())] |= np.uint64(layout.HAS_NO_VALUE)
        values = values.fill_null(b"")
    if not pieces:
        return values, attrs
    return pc.binary_join_element_wise(*pieces, values, b""), attrs


def _check_keys(keys: pa.BinaryArray | None) -> None:
    if keys is not None and len(keys):
        longest = int(_lengths(keys.fill_null(b"")).max())
        if longest > layout.KEY_BYTES_MAX:
            raise InvalidArgument(f"a key of {longest} bytes; at most {layout.KEY_BYTES_MAX} fit")


def _packed_headers(headers: pa.Array | None) -> pa.BinaryArray | None:
    """Return headers as they are stored; None if no row has any."""
    if headers is None or headers.null_count == len(headers):
        return None
    if pa.types.is_map(headers.type):
        names, values = headers.keys, headers.items
    else:
        names, values = headers.values.field("key"), headers.values.field("value")
    if not len(names):
        return None
    if names.null_count:
        raise InvalidArgument("a header must have a name")
    names = names.cast(pa.binary())
    values = values.cast(pa.binary()).fill_null(b"")
    name_bytes, value_bytes = _lengths(names), _lengths(values)
    if int(name_bytes.max()) > layout.HEADER_NAME_BYTES_MAX:
        raise InvalidArgument("the name of a header is too long")
    fixed = np.empty(len(names), dtype=[("name", "<u2"), ("value", "<u4")])
    fixed["name"], fixed["value"] = name_bytes, value_bytes
    sizes = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(fixed.itemsize), len(names), [None, pa.py_buffer(fixed)]
    )
    packed = pc.binary_join_element_wise(sizes.cast(pa.binary()), names, values, b"")
    lists = pa.ListArray.from_arrays(headers.offsets, packed)
    joined = pc.binary_join(lists, b"").fill_null(b"")
    if headers.null_count:
        joined = pc.if_else(headers.is_valid(), joined, b"")
    longest = int(_lengths(joined).max())
    if longest > HEADERS_BYTES_MAX:
        raise InvalidArgument(f"headers of {longest} bytes; at most {HEADERS_BYTES_MAX} fit")
    return joined


def key_hashes(keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of each key, all at once: a step for each byte of the longest."""
    bounds = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset :][: len(keys) + 1]
    starts, lengths = bounds[:-1].astype(np.int64), np.diff(bounds)
    data = np.frombuffer(keys.buffers()[2] or b"", dtype=np.uint8)
    hashes = np.full(len(keys), 0xFFFFFFFF, dtype=np.uint32)
    rows = np.arange(len(keys))
    for place in range(int(lengths.max(initial=0))):
        rows = rows[lengths[rows] > place]
        byte = data[starts[rows] + place]
        before = hashes[rows]
        hashes[rows] = _CRC_TABLE[(before ^ byte) & 0xFF] ^ (before >> np.uint32(8))
    return hashes ^ np.uint32(0xFFFFFFFF)


def _crc_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        half = table >> np.uint32(1)
        table = np.where(table & 1, half ^ np.uint32(0xEDB88320), half).astype(np.uint32)
    return table


_CRC_TABLE: Final = _crc_table()


# Queues ----------------------------------------------------------------------------------------


def message_batches(rows: pa.RecordBatch, *, now_us: int) -> Iterator[tuple[int, Batch]]:
    """Yield messages, each batch for one lane, or to be pushed one by one because of their keys.

    Raises InvalidArgument.
    """
    if not rows.num_rows:
        return
    values = _binary(rows, "value")
    assert values is not None
    if values.null_count:
        raise InvalidArgument("a message must have a value")
    priorities = _priorities(rows)
    lanes = priorities.copy()
    attrs = np.zeros(rows.num_rows, dtype=np.uint64)
    prefixed = list(_prefixes(rows, priorities, now_us=now_us))
    if prefixed:
        payloads = values.to_pylist()
        for row, prefix in prefixed:
            if "k" in prefix:
                lanes[row] = KEYED
                prefix["p"] = int(priorities[row])
            elif "n" in prefix:
                lanes[row] = ASIDE
            payloads[row], attrs[row] = pack_message(payloads[row], prefix)
        values = pa.array(payloads, pa.binary())
    for number, part in _by_number(lanes):
        chosen = values if part is None else values.take(pa.array(part))
        yield number, _batch(chosen, attrs if part is None else attrs[part])


def _priorities(rows: pa.RecordBatch) -> _Ints:
    given = _column(rows, "priority")
    if given is None:
        return np.zeros(rows.num_rows, dtype=np.int64)
    numbers = np.array(given.fill_null(0), dtype=np.int64)
    if ((numbers < 0) | (numbers > PRIORITY_MAX)).any():
        raise InvalidArgument(f"a priority is a whole number from 0 to {PRIORITY_MAX}")
    return numbers


def _prefixes(rows: pa.RecordBatch, lanes: _Ints, *, now_us: int) -> Iterator[tuple[int, Prefix]]:
    """Yield the rows that have more to say than their value, and what."""
    columns = {name: _column(rows, name) for name in ("key", "headers", "delay")}
    said = [column for column in columns.values() if column is not None]
    if not said:
        return
    is_plain = np.logical_and.reduce([np.asarray(column.is_null()) for column in said])
    for row in np.flatnonzero(~is_plain).tolist():
        prefix: Prefix = {}
        headers = _value(columns["headers"], row)
        if headers:
            prefix["h"] = headers_from(_header_mapping(headers)) or {}
        delay = _value(columns["delay"], row)
        if delay is not None:
            delay_us = duration_us(float(delay), name="delay")  # type: ignore[arg-type]
            if delay_us:
                prefix["n"] = now_us + delay_us
                prefix["p"] = int(lanes[row])
        key = _value(columns["key"], row)
        if key is not None:
            prefix["k"] = key_from(str(key)) or ""
        if prefix:
            yield row, prefix


def _value(column: pa.Array | None, row: int) -> object:
    return None if column is None else column[row].as_py()


def _header_mapping(headers: object) -> dict[str, str]:
    assert isinstance(headers, list)
    pairs = [(each["key"], each["value"]) if isinstance(each, dict) else each for each in headers]
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value or ""
        for name, value in pairs
    }


# What both need --------------------------------------------------------------------------------


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    index = rows.schema.get_field_index(name)
    return None if index < 0 else rows.column(index)


def _binary(rows: pa.RecordBatch, name: str) -> pa.BinaryArray | None:
    column = _column(rows, name)
    return None if column is None else column.cast(pa.binary())


def _lengths(array: pa.BinaryArray) -> _Ints:
    bounds = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset :][: len(array) + 1]
    return np.diff(bounds).astype(np.int64)


def _batch(payloads: pa.BinaryArray, attrs: npt.NDArray[np.uint64]) -> Batch:
    bounds = np.frombuffer(payloads.buffers()[1], dtype=np.int32)[payloads.offset :]
    bounds = bounds[: len(payloads) + 1]
    data = payloads.buffers()[2]
    whole = memoryview(b"") if data is None else memoryview(data).cast("B")
    return Batch(
        lengths=np.diff(bounds).astype(np.uint32),
        attrs=attrs,
        data=whole[int(bounds[0]) : int(bounds[-1])],
    )


def _by_number(numbers: _Ints) -> Iterator[tuple[int, _Ints | None]]:
    """Yield each number there is and the rows that have it, in order; None is all rows."""
    if (numbers == numbers[0]).all():
        yield int(numbers[0]), None
        return
    order = np.argsort(numbers, kind="stable")
    found = numbers[order]
    borders = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
    for start, stop in pairwise(borders):
        yield int(found[start]), order[start:stop]
