"""Values as what the user wants them: bytes, text, or what their JSON says.

JSON is parsed a batch at a time by Arrow, into the user's schema. A value that is no object of that
schema becomes null, as `from_json` has it, and costs no other value anything.
"""

import json
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from segue.errors import InvalidArgument
from segue.spark.options import ValueFormat

_BLOCK_SLACK_BYTES: Final = 1 << 16
_OPEN_BRACE: Final = ord("{")
_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
ROWS_ALONE: Final = 1

_Mask = npt.NDArray[np.bool_]


def decode_values(values: pa.BinaryArray, format_: ValueFormat, type_: pa.DataType) -> pa.Array:
    """Return values as `type_`, which fits the format."""
    if format_ == "binary":
        return values
    if format_ == "string":
        return text_of(values)
    return parse_json(values, type_)


def text_of(values: pa.BinaryArray) -> pa.StringArray:
    """Return values as text; what is not UTF-8 is shown as far as it is."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if each is None else each.decode(errors="replace")
                for each in values.to_pylist()
            ],
            pa.string(),
        )


def check_json_type(schema: pa.Schema) -> None:
    """Raise InvalidArgument for a type that cannot be parsed from JSON."""
    for field in schema:
        try:
            _read_json(pa.py_buffer(b"{}\n"), pa.schema([field]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgument(f"{field.name} cannot be read from JSON: {error}") from None


def parse_json(values: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    """Return what each value says; null where it is null or no object of that type."""
    fields = pa.schema([type_.field(index) for index in range(type_.num_fields)])
    usable = _is_one_line(values)
    if not usable.all():
        values = _in_one_line(values, usable)
        usable = _is_one_line(values)
    if usable.all():
        return _parsed(values, fields, type_)
    return _spread(_parsed(values.filter(pa.array(usable)), fields, type_), usable)


def _is_one_line(values: pa.BinaryArray) -> _Mask:
    """Tell which values begin as an object does and stay on one line.

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
    return np.asarray(usable)


def _in_one_line(values: pa.BinaryArray, usable: _Mask) -> pa.BinaryArray:
    """Return values with those written anew that are objects laid out in another way."""
    mended = values.to_pylist()
    for row in np.flatnonzero(~usable):
        if mended[row] is not None:
            mended[row] = _relaid(mended[row])
    return pa.array(mended, pa.binary())


def _relaid(value: bytes) -> bytes | None:
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return json.dumps(said).encode() if isinstance(said, dict) else None


def _parsed(values: pa.BinaryArray, fields: pa.Schema, type_: pa.StructType) -> pa.StructArray:
    """Return what objects say, each of which is on a line of its own."""
    if not len(values):
        return pa.array([], type_)
    lines = pc.binary_join_element_wise(values, b"", b"\n")
    bounds = np.frombuffer(lines.buffers()[1], dtype=np.int32)[lines.offset :]
    text = lines.buffers()[2].slice(int(bounds[0]), int(bounds[len(lines)] - bounds[0]))
    try:
        table = _read_json(text, fields)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        table = None
    if table is not None and len(table) == len(values):
        return _struct(table, type_)
    if len(values) == ROWS_ALONE:
        return pa.nulls(1, type_)
    fits = np.array([_says(each, type_) for each in values.to_pylist()])
    if not fits.all():
        return _spread(_parsed(values.filter(pa.array(fits)), fields, type_), fits)
    # Arrow is stricter than that in some way. Halving finds where, and spares the others.
    middle = len(values) // 2
    halves = [_parsed(half, fields, type_) for half in (values[:middle], values[middle:])]
    return pa.concat_arrays(halves)


def _says(value: bytes, type_: pa.StructType) -> bool:
    """Tell whether a value is an object with fields of these types."""
    try:
        return _fits(json.loads(value), type_)
    except (ValueError, RecursionError):
        return False


def _fits(said: object, type_: pa.DataType) -> bool:
    """Tell whether what JSON says can be of a type; where only Arrow knows, it may be."""
    if said is None:
        return True
    if pa.types.is_struct(type_):
        return isinstance(said, dict) and all(
            _fits(said.get(field.name), field.type) for field in type_
        )
    if pa.types.is_list(type_):
        return isinstance(said, list) and all(_fits(each, type_.value_type) for each in said)
    if pa.types.is_boolean(type_):
        return isinstance(said, bool)
    if pa.types.is_integer(type_):
        most = 1 << type_.bit_width - 1
        return type(said) is int and -most <= said < most
    if pa.types.is_floating(type_):
        return type(said) in {int, float}
    if pa.types.is_string(type_):
        return isinstance(said, str)
    return True


def _spread(parsed: pa.StructArray, rows: _Mask) -> pa.StructArray:
    """Return what was parsed of some rows as all rows, null where the others are."""
    place = np.zeros(len(rows), dtype=np.int64)
    place[rows] = np.arange(len(parsed))
    return parsed.take(pa.array(place, mask=~rows))


def _read_json(text: pa.Buffer, fields: pa.Schema) -> pa.Table:
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


def _struct(table: pa.Table, type_: pa.StructType) -> pa.StructArray:
    columns = []
    for index in range(type_.num_fields):
        column = table.column(type_.field(index).name)
        columns.append(
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        )
    fields = [type_.field(index) for index in range(type_.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields)
