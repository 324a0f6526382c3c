"""Stretches of records as Arrow batches of the columns that are asked for. No work per record.

A decoder is made where the read is planned, and travels to where the records are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from segue.delivery.events import ASIDE
from segue.delivery.ring_events import PREFIX_MASK as COMMIT_MASK
from segue.log.columns import Columns
from segue.spark.options import ValueFormat
from segue.spark.schema import arrow_schema
from segue.spark.values import decode_values
from segue.stores.column_pieces import part_of, pieces
from segue.stores.file.portrait import DEAD, DELAYED, HIDDEN, STATES, LogPortrait, found_in
from segue.stores.message_columns import MessageColumns
from segue.stores.topic_columns import Parts, text_of
from segue.values import dataclass

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_LATER: Final = "later"
_Ints = npt.NDArray[np.int64]


class Decoder(Protocol):
    """Makes rows of records."""

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a stretch."""

    def within(self, start: int, stop: int) -> "Decoder":
        """Return a decoder for a part of the log, which knows no more than it needs to."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns a user wants, and how values are to be read."""

    schema: StructType
    value_format: ValueFormat

    @cached_property
    def arrow(self) -> pa.Schema:
        return arrow_schema(self.schema)

    def batch(self, columns: dict[str, Callable[[], pa.Array]]) -> pa.RecordBatch:
        """Return the wanted columns, made by the functions that are called for them."""
        arrays = []
        for field in self.arrow:
            array = columns[field.name]()
            if field.name == "value":
                array = decode_values(array, self.value_format, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def __getstate__(self) -> dict[str, object]:
        return {"schema": self.schema, "value_format": self.value_format}


@dataclass(frozen=True, kw_only=True)
class TopicDecoder:
    """Rows of one partition of a topic."""

    wanted: Wanted
    topic: str
    partition: int

    def within(self, start: int, stop: int) -> "TopicDecoder":
        return self

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        for part in pieces(columns):
            # What was adopted has something to say in its first record alone: then the others
            # need not be taken apart for it.
            first = 1 if len(part) > 1 and part.attr[0] and not part.attr[1:].any() else 0
            if first:
                yield self._batch(part_of(part, 0, first))
            yield self._batch(part_of(part, first, len(part)) if first else part)

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        count = len(columns)
        parts = _LazyParts(columns)
        return self.wanted.batch(
            {
                "key": parts.keys,
                "value": parts.values,
                "topic": lambda: pa.repeat(pa.scalar(self.topic), count),
                "partition": lambda: pa.array(np.full(count, self.partition, dtype=np.int32)),
                "offset": lambda: pa.array(columns.offset),
                "timestamp": lambda: pa.array(parts.timestamps()).cast(_TIMESTAMP),
                "headers": parts.headers,
            }
        )


class _LazyParts:
    """The parts of records, looked for once somebody wants one."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    @cached_property
    def _parts(self) -> Parts | None:
        """None if all records are a value and nothing else."""
        return Parts(self._columns) if self._columns.attr.any() else None

    def keys(self) -> pa.BinaryArray:
        parts = self._parts
        return pa.nulls(len(self._columns), pa.binary()) if parts is None else parts.keys()

    def values(self) -> pa.BinaryArray:
        return self._columns.payload if self._parts is None else self._parts.values()

    def timestamps(self) -> _Ints:
        times = self._columns.time_us
        return times if self._parts is None else self._parts.timestamps(times)

    def headers(self) -> pa.ListArray:
        """Return headers as Kafka's connector has them: a list of names and bytes."""
        pairs = None if self._parts is None else self._parts.header_pairs()
        if pairs is None:
            nowhere = pa.array(np.zeros(len(self._columns) + 1, dtype=np.int32))
            return pa.ListArray.from_arrays(nowhere, pa.array([], _HEADERS.value_type))
        starts, names, values = pairs
        both = pa.StructArray.from_arrays([text_of(names), values], names=["key", "value"])
        return pa.ListArray.from_arrays(starts, both)


@dataclass(frozen=True, kw_only=True)
class MessageDecoder:
    """Rows of one log of a queue."""

    wanted: Wanted
    queue: str
    portrait: LogPortrait
    is_letters: bool = False
    """Whether offsets are those among the dead letters."""
    is_stream: bool = False
    """Whether each message is told where it was pushed, and nowhere else."""
    priorities: frozenset[int] | None = None

    def within(self, start: int, stop: int) -> "MessageDecoder":
        return replace(self, portrait=self.portrait.within(start, stop))

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        for part in pieces(columns):
            batch = self._batch(part)
            if batch.num_rows:
                yield batch

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        rows = _MessageRows(columns, self.portrait, reveal=self.is_stream)
        shown = rows.states != HIDDEN
        if self.portrait.lane == ASIDE:
            is_moved = rows.messages.is_carried
            shown &= ~is_moved if self.is_stream else ~is_moved | rows.is_touched
        if self.priorities is not None:
            shown &= np.isin(rows.priority, list(self.priorities))
        if not shown.all():
            rows = _MessageRows(_chosen(columns, shown), self.portrait, reveal=self.is_stream)
        count = len(rows.states)
        messages = rows.messages
        return self.wanted.batch(
            {
                "key": lambda: messages.texts("k"),
                "value": messages.bodies,
                "queue": lambda: pa.repeat(pa.scalar(self.queue), count),
                "priority": lambda: pa.array(rows.priority),
                "offset": lambda: pa.array(rows.columns.offset if self.is_letters else rows.offset),
                "timestamp": lambda: moments(messages.numbers("t", rows.columns.time_us)),
                "headers": lambda: message_headers(messages),
                "message_id": lambda: message_ids(rows.lane, rows.offset),
                "state": lambda: _state_names(rows.states),
                "attempt": lambda: pa.array(rows.attempt),
                "not_before": lambda: moments(rows.not_before_us, null=0),
                "expires": lambda: moments(messages.numbers("x"), null=0),
                "cause": lambda: rows.told("c", self.portrait.touched.cause),
                "reason": lambda: rows.told("r", self.portrait.touched.reason),
                "died": lambda: moments(
                    np.where(rows.states == DEAD, rows.columns.time_us, 0), null=0
                ),
            }
        )


class _MessageRows:
    """What is known of a stretch of messages, by what they say and by what was done to them."""

    def __init__(self, columns: Columns, portrait: LogPortrait, *, reveal: bool) -> None:
        self.columns = columns
        self._reveal = reveal
        self.messages = MessageColumns(columns)
        self._portrait = portrait
        self._touched = portrait.touched
        self._place, self.is_touched = found_in(portrait.touched.at, columns.offset)

    @cached_property
    def states(self) -> _Ints:
        return self._portrait.states(self.columns.offset, reveal=self._reveal)

    def _known(self, untouched: _Ints, touched: _Ints) -> _Ints:
        if not self.is_touched.any():
            return untouched
        known = untouched.copy()
        known[self.is_touched] = touched[self._place[self.is_touched]]
        return known

    @cached_property
    def lane(self) -> _Ints:
        lane = self._portrait.lane
        if lane is None:
            return self._known(self.messages.numbers("f"), self._touched.lane)
        return self._known(np.full(len(self.columns), lane, dtype=np.int64), self._touched.lane)

    @cached_property
    def offset(self) -> _Ints:
        if self._portrait.lane is None:
            return self._known(self.messages.numbers("o"), self._touched.offset)
        return self._known(self.columns.offset, self._touched.offset)

    @cached_property
    def priority(self) -> _Ints:
        if self._portrait.lane in {None, ASIDE}:
            return self._known(self.messages.numbers("p"), self._touched.priority)
        return self._known(self.lane, self._touched.priority)

    @cached_property
    def attempt(self) -> _Ints:
        before = self.messages.numbers("a")
        if self._portrait.lane is None:
            before = before + np.where(self.is_touched, 0, self.messages.numbers("d"))
        return before + self._known(
            np.zeros(len(self.columns), dtype=np.int64), self._touched.attempt
        )

    @cached_property
    def not_before_us(self) -> _Ints:
        said = np.where(self.states == DELAYED, self.messages.numbers("n"), 0)
        return self._known(said, self._touched.not_before_us)

    def told(self, name: str, touched: list[str | None]) -> pa.StringArray:
        """Return a text that a dead letter says itself, and that is known of what was touched."""
        said = self.messages.texts(name)
        if not self.is_touched.any():
            return said
        known = pa.array(touched, pa.string()).take(pa.array(self._place))
        return pc.if_else(pa.array(self.is_touched), known, said)


@dataclass(frozen=True, kw_only=True)
class RingDecoder:
    """Rows of a ring."""

    wanted: Wanted
    ring: str

    def within(self, start: int, stop: int) -> "RingDecoder":
        return self

    def batches(self, columns: Columns) -> Iterator[pa.RecordBatch]:
        for part in pieces(columns):
            yield self._batch(part)

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        return self.wanted.batch(
            {
                "value": lambda: _without_commit(columns),
                "ring": lambda: pa.repeat(pa.scalar(self.ring), len(columns)),
                "offset": lambda: pa.array(columns.offset),
                "timestamp": lambda: moments(columns.time_us),
            }
        )


def _chosen(columns: Columns, chosen: npt.NDArray[np.bool_]) -> Columns:
    return Columns(
        offset=columns.offset[chosen],
        time_us=columns.time_us[chosen],
        attr=columns.attr[chosen],
        payload=columns.payload.filter(pa.array(chosen)),
    )


def moments(times_us: _Ints, *, null: int | None = None) -> pa.Array:
    """Return times as timestamps; `null` stands for none."""
    mask = None if null is None else times_us == null
    return pa.array(np.ascontiguousarray(times_us), mask=mask).cast(_TIMESTAMP)


_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def message_headers(messages: MessageColumns) -> pa.Array:
    """Return headers of messages as those of records are."""
    return pa.array(
        [
            [{"key": name, "value": value.encode()} for name, value in prefix.get("h", {}).items()]
            for prefix in messages.prefixes()
        ],
        _HEADERS,
    )


def message_ids(lanes: _Ints, offsets: _Ints) -> pa.StringArray:
    """Return what messages are called, by where they were pushed."""
    lane = pc.if_else(pa.array(lanes == ASIDE), _LATER, pa.array(lanes).cast(pa.string()))
    return pc.binary_join_element_wise(lane, pa.array(offsets).cast(pa.string()), "-")


def _state_names(states: _Ints) -> pa.StringArray:
    return pa.array([state.value for state in STATES]).take(pa.array(states))


def _without_commit(columns: Columns) -> pa.BinaryArray:
    """Return the bodies of a ring's entries, without what stands before the first of a commit."""
    lengths = (columns.attr & np.uint64(COMMIT_MASK)).astype(np.int32)
    if not lengths.any():
        return columns.payload
    payload = columns.payload
    bounds = np.frombuffer(payload.buffers()[1], dtype=np.int32)[payload.offset :]
    bounds = bounds[: len(payload) + 1]
    halves = np.empty(2 * len(payload) + 1, dtype=np.int32)
    halves[0::2] = bounds
    halves[1::2] = np.minimum(bounds[:-1] + lengths, bounds[1:])
    cut = pa.BinaryArray.from_buffers(
        pa.binary(), len(halves) - 1, [None, pa.py_buffer(halves), payload.buffers()[2]]
    )
    return cut.take(pa.array(np.arange(len(payload), dtype=np.int64) * 2 + 1))
