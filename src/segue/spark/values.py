"""Values as what the user wants them: bytes, text, or what their JSON says.

JSON is parsed a batch at a time by Arrow, into the user's schema. A value that is no object of that
schema becomes null and costs no other value anything.
"""

import json
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segue.errors import InvalidArgument
from segue.spark.options import ValueFormat
from segue.stores.file.json_columns import are_one_line, read_objects, read_text
from segue.stores.file.topics.columns import text_of

ROWS_ALONE: Final = 1

_Mask = npt.NDArray[np.bool_]


def decode_values(values: pa.BinaryArray, format_: ValueFormat, type_: pa.DataType) -> pa.Array:
    """Return values as `type_`, which fits the format."""
    if format_ == "binary":
        return values
    if format_ == "string":
        return text_of(values)
    return parse_json(values, type_)


def check_json_type(schema: pa.Schema) -> None:
    """Raise InvalidArgument for a type that cannot be parsed from JSON."""
    for field in schema:
        try:
            read_text(pa.py_buffer(b"{}\n"), pa.schema([field]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgument(f"{field.name} cannot be read from JSON: {error}") from None


def parse_json(values: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    """Return what each value says; null where it is null or no object of that type."""
    fields = pa.schema([type_.field(index) for index in range(type_.num_fields)])
    usable = are_one_line(values)
    if not usable.all():
        values = _in_one_line(values, usable)
        usable = are_one_line(values)
    if usable.all():
        return _parsed(values, fields, type_)
    return _spread(_parsed(values.filter(pa.array(usable)), fields, type_), usable)


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
    table = read_objects(values, fields)
    if table is not None:
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


def _struct(table: pa.Table, type_: pa.StructType) -> pa.StructArray:
    columns = []
    for index in range(type_.num_fields):
        column = table.column(type_.field(index).name)
        columns.append(
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        )
    fields = [type_.field(index) for index in range(type_.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields)
