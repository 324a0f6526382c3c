"""Messages of a queue as Arrow columns: bodies by arithmetic on attr, prefixes by one JSON pass."""

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segue.delivery.message import CARRIED, PREFIX_MASK, Prefix, unpack_prefix
from segue.log.columns import Columns
from segue.stores.json_columns import are_text, read_objects

_NUMBERS: Final = ("n", "x", "p", "a", "t", "f", "o", "d")
_TEXTS: Final = ("k", "c", "r")
_SCHEMA: Final = pa.schema(
    [(name, pa.int64()) for name in _NUMBERS] + [(name, pa.string()) for name in _TEXTS]
)


class MessageColumns:
    """A stretch of messages, column by column. What is not asked for is not made."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        payload = columns.payload
        _, ends, self._data = payload.buffers()
        bounds = np.frombuffer(ends, dtype=np.int32)[payload.offset :][: len(payload) + 1]
        self._start, self._stop = bounds[:-1], bounds[1:]

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def _prefix_bytes(self) -> npt.NDArray[np.int32]:
        """How long each prefix is; 0 where attr says more than there is, as nobody believes it."""
        lengths = (self.columns.attr & np.uint64(PREFIX_MASK)).astype(np.int32)
        return np.where(lengths > self._stop - self._start, 0, lengths).astype(np.int32)

    @cached_property
    def is_carried(self) -> npt.NDArray[np.bool_]:
        """Which were brought here from another log."""
        return np.asarray((self.columns.attr & np.uint64(CARRIED)) != 0)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        """The messages that have a prefix."""
        return np.flatnonzero(self._prefix_bytes)

    @cached_property
    def _halves(self) -> pa.BinaryArray:
        """All payloads cut into prefix and body, without copying any."""
        bounds = np.empty(2 * len(self) + 1, dtype=np.int32)
        bounds[0:-1:2] = self._start
        bounds[1::2] = self._start + self._prefix_bytes
        bounds[-1] = self._stop[-1]
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), self._data]
        )

    def bodies(self) -> pa.BinaryArray:
        """Return the body of each message."""
        if not len(self._rows):
            return self.columns.payload
        return self._halves.take(pa.array(np.arange(len(self), dtype=np.int64) * 2 + 1))

    def prefixes(self) -> list[Prefix]:
        """Return what stands before each body, one by one."""
        found: list[Prefix] = [{} for _ in range(len(self))]
        attr = self.columns.attr
        for row in self._rows:
            found[row] = unpack_prefix(self.columns.payload[row].as_py(), int(attr[row]))[0]
        return found

    @cached_property
    def _parsed(self) -> pa.Table:
        """What the prefixes say, a row for each message that has one."""
        texts = self._halves.take(pa.array(self._rows * 2))
        if are_text(texts).all():
            said = read_objects(texts, pa.struct(list(_SCHEMA)))
            if said is not None and not said.null_count:
                return pa.Table.from_arrays(said.flatten(), schema=_SCHEMA)
        # Somebody else wrote it: taken as far as it makes sense, as `unpack_prefix` has it.
        every = self.prefixes()
        return pa.Table.from_pylist(
            [{name: every[row].get(name) for name in _SCHEMA.names} for row in self._rows],
            schema=_SCHEMA,
        )

    def numbers(self, name: str, default: npt.ArrayLike = 0) -> npt.NDArray[np.int64]:
        """Return a number of each prefix; the default where it says none."""
        found = np.empty(len(self), dtype=np.int64)
        found[:] = default
        if len(self._rows):
            column = self._parsed[name].combine_chunks()
            there = np.asarray(column.is_valid())
            found[self._rows[there]] = np.asarray(column.drop_null())
        return found

    def texts(self, name: str) -> pa.StringArray:
        """Return a text of each prefix; null where it says none."""
        if not len(self._rows):
            return pa.nulls(len(self), pa.string())
        column = self._parsed[name].combine_chunks()
        if len(self._rows) == len(self):
            return column
        place = np.zeros(len(self), dtype=np.int64)
        place[self._rows] = np.arange(len(self._rows))
        has_prefix = np.zeros(len(self), dtype=bool)
        has_prefix[self._rows] = True
        return column.take(pa.array(place, mask=~has_prefix))
