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
from segue.stores.json_columns import are_text, read_objects
from segue.stores.topic_columns import text_of

_Mask = npt.NDArray[np.bool_]


def decode_values(values: pa.BinaryArray, format_: ValueFormat, type_: pa.DataType) -> pa.Array:
    """Return values as `type_`, which fits the format."""
    if format_ == "binary":
        return values
    if format_ == "string":
        return text_of(values)
    return parse_json(values, type_)


def check_json_type(type_: pa.DataType, name: str = "value") -> None:
    """Raise InvalidArgument for a type that cannot be parsed from JSON."""
    if pa.types.is_struct(type_):
        if not type_.num_fields:
            raise InvalidArgument(f"{name} has no fields")
        for field in type_:
            check_json_type(field.type, f"{name}.{field.name}")
    elif pa.types.is_list(type_):
        check_json_type(type_.value_type, f"{name}[]")
    elif not any(is_fit(type_) for is_fit in _FROM_JSON):
        raise InvalidArgument(f"{name} cannot be read from JSON as {type_}; take it as a string")


_FROM_JSON: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


def parse_json(values: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    """Return what each value says; null where it is null or no object of that type."""
    usable = are_text(values)
    if usable.all():
        return _parsed(values, type_)
    return _spread(_parsed(values.filter(pa.array(usable)), type_), usable)


def _parsed(values: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    """Return what values say that are text."""
    parsed = read_objects(values, type_)
    if parsed is not None:
        return parsed
    if len(values) == 1:
        return pa.nulls(1, type_)
    fits = np.array([_says(each, type_) for each in values.to_pylist()])
    if not fits.all():
        return _spread(_parsed(values.filter(pa.array(fits)), type_), fits)
    # Arrow is stricter than that in some way. Halving finds where, and spares the others.
    middle = len(values) // 2
    return pa.concat_arrays([_parsed(values[:middle], type_), _parsed(values[middle:], type_)])


def _says(value: bytes, type_: pa.StructType) -> bool:
    """Tell whether a value is an object with fields of these types."""
    try:
        said = json.loads(value)
        return said is not None and _fits(said, type_)
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
