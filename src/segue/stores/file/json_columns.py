"""Many small JSON objects parsed at once, into columns of given types."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

_BLOCK_SLACK_BYTES: Final = 1 << 16
"""How much larger than the text a block of it is, so that there is only one."""
_OPEN_BRACE: Final = ord("{")
_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")


def are_one_line(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Tell which values begin as an object does, stay on one line and are UTF-8.

    Then each line that is parsed gives at least one row, and as many rows as lines means one each.
    """
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)
    ends = np.frombuffer(values.buffers()[1], dtype=np.int32)[values.offset :][: len(values) + 1]
    usable = np.asarray(values.is_valid()) & (ends[:-1] < ends[1:])
    if len(data):
        first = data[np.minimum(ends[:-1], len(data) - 1)]
        usable &= first == _OPEN_BRACE
        part = data[ends[0] : ends[-1]]
        breaks = np.flatnonzero((part == _NEWLINE) | (part == _RETURN)) + ends[0]
        if len(breaks):
            usable[np.searchsorted(ends, breaks, side="right") - 1] = False
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        usable &= np.array([each is not None and _is_text(each) for each in values.to_pylist()])
    return np.asarray(usable)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_objects(values: pa.BinaryArray, fields: pa.Schema) -> pa.Table | None:
    """Return what objects say, a row each; None if one of them is not what it should be.

    Each value must be one that `are_one_line` says yes to.
    """
    lines = pc.binary_join_element_wise(values, b"", b"\n")
    bounds = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset :]
    text = lines.buffers()[2].slice(int(bounds[0]), int(bounds[len(lines)] - bounds[0]))
    try:
        table = read_text(text, fields)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return table if len(table) == len(values) else None


def read_text(text: pa.Buffer, fields: pa.Schema) -> pa.Table:
    """Return what lines of JSON say. Raises ArrowInvalid, ArrowNotImplementedError."""
    return pyarrow.json.read_json(
        pa.BufferReader(text),
        # One block: what spans two would be parsed twice as slowly.
        read_options=pyarrow.json.ReadOptions(
            use_threads=False, block_size=text.size + _BLOCK_SLACK_BYTES
        ),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=fields, unexpected_field_behavior="ignore"
        ),
    )
