"""Laws of values: the JSON of a batch says what it says value by value."""

import json
import math
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from segue.spark.values import parse_json
from segue.stores.topic_columns import text_of

TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("done", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32())])),
    ]
)
MISFIT = object()
"""Stands for a value that is not of the type it should be."""


# What is expected --------------------------------------------------------------------------


def expected(value: bytes | None) -> object:
    """Return the row that a value should become, by way of `json.loads`."""
    if value is None:
        return None
    try:
        said = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    row = fitted(said, TYPE)
    return None if row is MISFIT else row


def fitted(said: object, type_: pa.DataType) -> object:
    """Return what was said as a type has it."""
    if said is None:
        return None
    if pa.types.is_struct(type_):
        if not isinstance(said, dict):
            return MISFIT
        fields = [type_.field(index) for index in range(type_.num_fields)]
        row = {field.name: fitted(said.get(field.name), field.type) for field in fields}
        return MISFIT if any(each is MISFIT for each in row.values()) else row
    if pa.types.is_list(type_):
        if not isinstance(said, list):
            return MISFIT
        items = [fitted(each, type_.value_type) for each in said]
        return MISFIT if any(each is MISFIT for each in items) else items
    return _SCALARS[str(type_)](said)


def _whole(bits: int) -> Callable[[object], object]:
    limit = 1 << (bits - 1)
    return lambda said: said if type(said) is int and -limit <= said < limit else MISFIT


_SCALARS: dict[str, Callable[[object], object]] = {
    "int64": _whole(64),
    "int32": _whole(32),
    "string": lambda said: said if isinstance(said, str) else MISFIT,
    "bool": lambda said: said if isinstance(said, bool) else MISFIT,
    "double": lambda said: float(said) if type(said) in {int, float} else MISFIT,  # type: ignore[arg-type]
}


# What is given -----------------------------------------------------------------------------

numbers = st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "name": st.none() | st.text(max_size=8),
        "amount": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "done": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "place": st.none() | st.fixed_dictionaries({}, optional={"x": st.integers(-9, 9)}),
        "other": anything,
    },
)
misfitting = st.dictionaries(st.sampled_from([*[each.name for each in TYPE], "other"]), anything)


@st.composite
def laid_out(draw: st.DrawFn) -> bytes:
    """Draw an object, written in one of the ways there are."""
    said = draw(fitting | misfitting)
    text = json.dumps(
        said,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 1])),
        separators=draw(st.sampled_from([None, (",", ":")])),
    )
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    space = st.sampled_from(["", "", " ", "\n", "\t", "\r"])
    return (draw(space) + text + draw(space)).encode()


garbage = st.sampled_from(
    [b"", b"null", b"1", b'"x"', b"[{}]", b"{", b"}", b"{}{}", b'{"id":1}{"id":2}', b"{},", b"{]"]
) | st.binary(max_size=8)


@st.composite
def cut_short(draw: st.DrawFn) -> bytes:
    """Draw a part of an object, or an object and a part of another."""
    whole = draw(laid_out()) + draw(st.just(b"") | laid_out())
    start = draw(st.just(0) | st.integers(0, len(whole)))
    return whole[start : draw(st.integers(start, len(whole)))]


values_given = st.lists(st.none() | laid_out() | laid_out() | garbage | cut_short(), max_size=12)


# Laws --------------------------------------------------------------------------------------


@given(values_given)
@example([b'{"id":1}', b"", b'{"id":2}'])
@example([b'{"id":1}{"id":2}', b'{"id":3}'])
@example([b'\n{"id":1}', b'{"id":2}'])
@example([b'{"id":7,"z":[', b'{"id":1}]}', b'{"id":3}{"id":2}', b'{"id":9}'])
@example([b'{"name":"\xff"}', b'{"id":3}'])
def test_a_batch_of_json_says_what_each_value_says(values: list[bytes | None]) -> None:
    """Row by row it is what `json.loads` gives, made to fit; what does not fit is null."""
    found = parse_json(pa.array(values, pa.binary()), TYPE)

    assert found.to_pylist() == [expected(value) for value in values]
    found.validate(full=True)


@given(values_given, st.data())
def test_how_values_are_cut_into_batches_does_not_matter(
    values: list[bytes | None], data: st.DataObject
) -> None:
    """Two batches say what the whole one does, also as parts of its memory."""
    whole = pa.array(values, pa.binary())
    cut = data.draw(st.integers(0, len(values)))
    parts = [parse_json(whole[:cut], TYPE), parse_json(whole[cut:], TYPE)]

    assert pa.concat_arrays(parts).to_pylist() == parse_json(whole, TYPE).to_pylist()


@given(st.lists(st.none() | st.binary(max_size=8) | st.text(max_size=8).map(str.encode)))
def test_text_is_what_python_makes_of_the_bytes(values: list[bytes | None]) -> None:
    """Whatever is no UTF-8 is replaced, in its own row."""
    found = text_of(pa.array(values, pa.binary()))

    assert found.to_pylist() == [
        None if value is None else value.decode(errors="replace") for value in values
    ]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_keep_every_bit(numbers: list[float]) -> None:
    """A double that was written as JSON is read as the same double."""
    values = pa.array([json.dumps({"amount": each}).encode() for each in numbers], pa.binary())

    found = pc.struct_field(parse_json(values, TYPE), "amount").to_pylist()

    assert [(each, math.copysign(1, each)) for each in found] == [
        (each, math.copysign(1, each)) for each in numbers
    ]
