"""Records of a topic as Arrow columns, found by arithmetic on attr: no loop over records."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segue.delivery import topic_record as layout
from segue.log.columns import Columns

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("offset", pa.int64()),
        ("partition", pa.int32()),
    ]
)

_Ints = npt.NDArray[np.int64]


def table_of(partition: int, columns: Columns) -> pa.Table:
    """Return records as a table with the columns of `SCHEMA`."""
    count = len(columns)
    where = np.full(count, partition, dtype=np.int32)
    if not columns.attr.any():
        return pa.Table.from_arrays(
            [
                pa.nulls(count, pa.binary()),
                columns.payload,
                _no_headers(count),
                pa.array(columns.time_us).cast(SCHEMA.field("timestamp").type),
                pa.array(columns.offset),
                pa.array(where),
            ],
            schema=SCHEMA,
        )
    parts = Parts(columns)
    return pa.Table.from_arrays(
        [
            parts.keys(),
            parts.values(),
            parts.headers(),
            pa.array(parts.timestamps(columns.time_us)).cast(SCHEMA.field("timestamp").type),
            pa.array(columns.offset),
            pa.array(where),
        ],
        schema=SCHEMA,
    )


def rows_within(columns: Columns, bytes_max: int | None, *, at_least_one: bool) -> tuple[int, int]:
    """Return how many of the first rows have no more than so many bytes, and how many they have."""
    count = len(columns)
    if count == 0:
        return 0, 0
    bounds = np.frombuffer(columns.payload.buffers()[1], dtype=np.int32)
    sizes = bounds[columns.payload.offset :][: count + 1].astype(np.int64)
    sizes -= sizes[0]
    if bytes_max is None:
        return count, int(sizes[-1])
    rows = int(np.searchsorted(sizes, bytes_max, side="right")) - 1
    rows = max(rows, 1 if at_least_one else 0)
    return rows, int(sizes[rows])


class Parts:
    """Where keys, headers and values begin and end among the payloads of a stretch."""

    def __init__(self, columns: Columns) -> None:
        payload = columns.payload
        _, ends, data = payload.buffers()
        bounds = np.frombuffer(ends, dtype=np.int32)[payload.offset :][: len(payload) + 1]
        bounds = bounds.astype(np.int64)
        self._data = data
        self._start, self._stop = bounds[:-1], bounds[1:]
        attr = columns.attr
        prefix, key, headers = lengths_in(attr)
        # Bytes that make no sense are a value without key, as `unpack_record` has it.
        senseless = (prefix + key + headers > self._stop - self._start) | (attr > layout.KNOWN_BITS)
        if senseless.any():
            attr = np.where(senseless, np.uint64(0), attr)
            prefix, key, headers = lengths_in(attr)
        self._attr = attr
        self._key = self._start + prefix
        self._headers = self._key + key
        self._value = self._headers + headers

    def _has(self, bit: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self._attr & np.uint64(bit)) != 0
        return found

    def keys(self) -> pa.BinaryArray:
        """Return the key of each record; null where it has none."""
        has_key = self._has(layout.HAS_KEY)
        if not has_key.any():
            return pa.nulls(len(has_key), pa.binary())
        return self._pieces().take(self._places(1, has_key))

    def values(self) -> pa.BinaryArray:
        """Return the value of each record; null in a tombstone."""
        return self._pieces().take(self._places(3, ~self._has(layout.HAS_NO_VALUE)))

    def _pieces(self) -> pa.BinaryArray:
        """Return all payloads cut into prefix, key, headers and value, without copying any."""
        bounds = np.empty(4 * len(self._start) + 1, dtype=np.int32)
        bounds[0:-1:4] = self._start
        bounds[1::4] = self._key
        bounds[2::4] = self._headers
        bounds[3::4] = self._value
        bounds[-1] = self._stop[-1]
        return _binary(bounds, self._data)

    def _places(self, which: int, is_there: npt.NDArray[np.bool_]) -> pa.Array:
        return pa.array(np.arange(len(is_there), dtype=np.int64) * 4 + which, mask=~is_there)

    def timestamps(self, appended_us: _Ints) -> _Ints:
        """Return when each record happened, given when it was appended."""
        has_own = self._has(layout.HAS_TIMESTAMP)
        if not has_own.any():
            return appended_us
        bytes_ = np.frombuffer(self._data, dtype=np.uint8)
        own = bytes_[self._start[has_own][:, None] + np.arange(8)].view("<i8").ravel()
        timestamps = appended_us.copy()
        timestamps[has_own] = own
        return timestamps

    def headers(self) -> pa.MapArray:
        """Return the headers of each record."""
        pairs = self.header_pairs()
        if pairs is None:
            return _no_headers(len(self._start))
        starts, names, values = pairs
        return pa.MapArray.from_arrays(starts, text_of(names), text_of(values))

    def header_pairs(self) -> tuple[pa.Array, pa.BinaryArray, pa.BinaryArray] | None:
        """Return where the headers of each record begin, all names and all values.

        None if no record has any.
        """
        count = len(self._start)
        if not (self._value > self._headers).any():
            return None
        owner, name, middle, end = self._header_bounds()
        starts = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(np.bincount(owner, minlength=count), out=starts[1:])
        bounds = np.empty(3 * len(owner) + 1, dtype=np.int32)
        bounds[0:-1:3] = name
        bounds[1::3] = middle
        bounds[2::3] = end
        bounds[-1] = end[-1] if len(end) else 0
        pieces = _binary(bounds, self._data)
        every_third = np.arange(len(owner), dtype=np.int64) * 3
        return (
            pa.array(starts),
            pieces.take(pa.array(every_third)),
            pieces.take(pa.array(every_third + 1)),
        )

    def _header_bounds(self) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        """Return, for every header: its record, where its name begins and ends, its value ends.

        One round per header of the record that has most.
        """
        bytes_ = np.frombuffer(self._data, dtype=np.uint8)
        rounds = []
        owner = np.flatnonzero(self._value > self._headers)
        position = self._headers[owner]
        while True:
            fits = position + 6 <= self._value[owner]
            owner, position = owner[fits], position[fits]
            if not len(owner):
                break
            fixed = bytes_[position[:, None] + np.arange(6)].astype(np.int64)
            name_bytes = fixed[:, 0] | fixed[:, 1] << 8
            value_bytes = fixed[:, 2] | fixed[:, 3] << 8 | fixed[:, 4] << 16 | fixed[:, 5] << 24
            name = position + 6
            middle = name + name_bytes
            end = middle + value_bytes
            whole = end <= self._value[owner]
            owner, name, middle, end = owner[whole], name[whole], middle[whole], end[whole]
            rounds.append((owner, name, middle, end))
            position = end
        columns = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
        if not columns:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, empty, empty
        order = np.argsort(columns[0], kind="stable")
        owner, name, middle, end = (column[order] for column in columns)
        return owner, name, middle, end


def lengths_in(attr: npt.NDArray[np.uint64]) -> tuple[_Ints, _Ints, _Ints]:
    """Return how long prefix, key and headers are."""

    def sized(bit: int, size_bytes: int) -> _Ints:
        has_it = (attr & np.uint64(bit)) != 0
        return np.where(has_it, size_bytes, 0).astype(np.int64)

    prefix = (
        sized(layout.HAS_TIMESTAMP, layout.TIMESTAMP_BYTES)
        + sized(layout.HAS_PRODUCER, layout.PRODUCER_BYTES)
        + sized(layout.HAS_ADOPTION, layout.ADOPTION_BYTES)
    )
    mask = np.uint64(layout.LENGTH_MASK)
    key = (attr & mask).astype(np.int64)
    headers = (attr >> np.uint64(layout.HEADERS_SHIFT) & mask).astype(np.int64)
    return prefix, key, headers


def _binary(bounds: npt.NDArray[np.int32], data: pa.Buffer) -> pa.BinaryArray:
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data]
    )


def text_of(array: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as text; what is not UTF-8 is shown as far as it is."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in array.to_pylist()],
            pa.string(),
        )


def _no_headers(count: int) -> pa.MapArray:
    return pa.MapArray.from_arrays(
        pa.array(np.zeros(count + 1, dtype=np.int32)),
        pa.array([], pa.string()),
        pa.array([], pa.string()),
    )
