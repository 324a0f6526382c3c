"""Messages and what is known of each, by columns: as a server tells them, and as they travel."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segue.log.columns import Columns
from segue.values import dataclass

_Ints = npt.NDArray[np.int64]

RECORD_SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("time_us", pa.int64()),
        ("attr", pa.uint64()),
        ("payload", pa.binary()),
    ]
)
_NUMBERS: Final = ("lane", "number", "priority", "attempt", "not_before_us", "died_us")
_TEXTS: Final = ("state", "cause", "reason")
MESSAGE_SCHEMA: Final = pa.schema(
    [
        *RECORD_SCHEMA,
        *((name, pa.int64()) for name in _NUMBERS),
        *((name, pa.string()) for name in _TEXTS),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage(Columns):
    """Messages, and what is known of each."""

    lane: _Ints
    number: _Ints
    """Its place among the dead letters; -1 if it is none."""
    priority: _Ints
    attempt: _Ints
    not_before_us: _Ints
    died_us: _Ints
    state: pa.StringArray
    cause: pa.StringArray
    reason: pa.StringArray


def batch_of(columns: Columns) -> pa.RecordBatch:
    """Return a stretch as it travels: with `MESSAGE_SCHEMA` if it is of messages."""
    arrays = [pa.array(columns.offset), pa.array(columns.time_us), pa.array(columns.attr)]
    arrays.append(columns.payload)
    if not isinstance(columns, MessagePage):
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
    arrays += [pa.array(getattr(columns, name)) for name in _NUMBERS]
    arrays += [getattr(columns, name) for name in _TEXTS]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE_SCHEMA)


def columns_of_batch(batch: pa.RecordBatch) -> Columns:
    """Return the stretch that `batch_of` was given."""

    def numbers(name: str) -> _Ints:
        return np.asarray(batch.column(name), dtype=np.int64)

    offset, time_us = numbers("offset"), numbers("time_us")
    attr = np.asarray(batch.column("attr"), dtype=np.uint64)
    payload = batch.column("payload")
    if batch.schema == RECORD_SCHEMA:
        return Columns(offset=offset, time_us=time_us, attr=attr, payload=payload)
    return MessagePage(
        offset=offset,
        time_us=time_us,
        attr=attr,
        payload=payload,
        lane=numbers("lane"),
        number=numbers("number"),
        priority=numbers("priority"),
        attempt=numbers("attempt"),
        not_before_us=numbers("not_before_us"),
        died_us=numbers("died_us"),
        state=batch.column("state"),
        cause=batch.column("cause"),
        reason=batch.column("reason"),
    )
