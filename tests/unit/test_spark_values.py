"""Values as Spark gets them: bytes, text, or what their JSON says, each in its own row."""

from decimal import Decimal

import pyarrow as pa
import pytest

from segue.errors import InvalidArgument
from segue.spark.values import check_json_type, decode_values, parse_json
from segue.stores.topic_columns import text_of

TYPE = pa.struct([("id", pa.int64()), ("name", pa.string())])


def parse(*values: bytes | None, type_: pa.StructType = TYPE) -> list[dict[str, object] | None]:
    found: list[dict[str, object] | None] = parse_json(
        pa.array(values, pa.binary()), type_
    ).to_pylist()
    return found


def one(value: bytes, type_: pa.DataType) -> object:
    """Return what a field of a type is read as; the whole row is null if it does not fit."""
    row = parse(b'{"field":%s}' % value, type_=pa.struct([("field", type_)]))[0]
    return None if row is None else row["field"]


class TestBytesAndText:
    def test_bytes_stay_as_they_are(self) -> None:
        """Not even copied."""
        values = pa.array([b"a", None, b"\xff"], pa.binary())

        assert decode_values(values, "binary", pa.binary()) is values

    def test_text_is_utf8(self) -> None:
        """A tombstone has none, and an empty value is empty text."""
        values = pa.array(["grün".encode(), None, b""], pa.binary())

        assert decode_values(values, "string", pa.string()).to_pylist() == ["grün", None, ""]

    def test_bytes_that_are_no_text_are_shown_as_far_as_they_are(self) -> None:
        """One bad value costs no other anything."""
        values = pa.array([b"good", b"b\xffd", None, "ü".encode()], pa.binary())

        found = text_of(values)

        assert found.to_pylist() == ["good", "b\N{REPLACEMENT CHARACTER}d", None, "ü"]
        found.validate(full=True)


class TestJson:
    def test_each_value_is_a_row(self) -> None:
        """What it does not say is null, what nobody asked for is left out."""
        assert parse(b'{"id":1,"name":"a"}', b'{"other":[1,{"x":2}],"id":2}', b"{}") == [
            {"id": 1, "name": "a"},
            {"id": 2, "name": None},
            {"id": None, "name": None},
        ]

    def test_what_is_no_object_is_null_in_its_own_row(self) -> None:
        """The rows before and after it stay where they are."""
        bad = [
            b"",
            None,
            b"null",
            b"17",
            b'"text"',
            b"[1]",
            b"}",
            b"{",
            b"text",
            b"\xff\xfe",
            b"\n",
        ]
        values: list[bytes | None] = []
        for number, each in enumerate(bad):
            values += [each, b'{"id":%d}' % number]

        assert parse(*values) == [
            row for number in range(len(bad)) for row in (None, {"id": number, "name": None})
        ]

    @pytest.mark.parametrize(
        "value",
        [
            b'{"id":1}{"id":2}',
            b'{"id":1} {"id":2}',
            b'{"id":1}\n{"id":2}',
            b'{"id":1},',
            b'{"id":1} rest',
            b'{"id":1,}',
            b"{'id':1}",
            b"{id:1}",
            b'{"id":1}//note',
            b'{"id":"1"}',
            b'{"id":1.5}',
            b'{"id":true}',
            b'{"id":[1]}',
            b'{"name":1}',
            b'{"id":9223372036854775808}',
            b'{"id":123456789012345678901234567890}',
            b'{"name":"a\x00b"}',
        ],
    )
    def test_what_does_not_fit_is_null(self, value: bytes) -> None:
        """Two objects in one value, an object and a rest, other types, numbers too large."""
        assert parse(b'{"id":7}', value, b'{"id":8}') == [
            {"id": 7, "name": None},
            None,
            {"id": 8, "name": None},
        ]

    @pytest.mark.parametrize(
        "value",
        [
            b'{\n  "id": 1,\n  "name": "a"\n}',
            b'{\r\n"id":1,\r"name":"a"}\r\n',
            b' {"id":1,"name":"a"}',
            b'\n\n{"id":1,"name":"a"}\n',
            b'{"id":1,"name":"a"}   ',
        ],
    )
    def test_how_an_object_is_laid_out_does_not_matter(self, value: bytes) -> None:
        """On one line or many, with spaces or without."""
        row = {"id": 1, "name": "a"}

        assert parse(value) == [row]
        assert parse(b'{"id":7}', value, b"", value) == [{"id": 7, "name": None}, row, None, row]

    def test_text_in_values_may_hold_anything(self) -> None:
        """Newlines, quotes and characters of every plane, escaped as JSON has it."""
        values = [b'{"name":"a\\nb\\"c\\u0000"}', '{"name":"\N{GRINNING FACE} ü"}'.encode()]

        assert parse(*values) == [
            {"id": None, "name": 'a\nb"c\x00'},
            {"id": None, "name": "\N{GRINNING FACE} ü"},
        ]

    @pytest.mark.parametrize("depth", [10, 1_000, 100_000])
    @pytest.mark.parametrize("before", [b"", b" "])
    def test_deep_nesting_harms_nobody(self, depth: int, before: bytes) -> None:
        """It may be more than can be read; the others are read all the same."""
        deep = before + b'{"other":' + b"[" * depth + b"]" * depth + b',"id":1}'

        found = parse(b'{"id":7}', deep, b'{"id":8}')

        assert found[1] in (None, {"id": 1, "name": None})
        assert [found[0], found[2]] == [{"id": 7, "name": None}, {"id": 8, "name": None}]

    def test_a_part_of_an_array_is_parsed_as_it_stands(self) -> None:
        """Batches are cut from larger ones without copying them."""
        values = pa.array([b"{", b'{"id":1}', None, b'\n{"id":2}', b"{"], pa.binary())

        assert parse_json(values[1:4], TYPE).to_pylist() == [
            {"id": 1, "name": None},
            None,
            {"id": 2, "name": None},
        ]

    @pytest.mark.parametrize("values", [[], [None, None], [b"", b""], [b"x"]])
    def test_batches_without_any_object(self, values: list[bytes | None]) -> None:
        """As many rows as values, and the right type."""
        found = parse_json(pa.array(values, pa.binary()), TYPE)

        assert found.type == TYPE
        assert found.to_pylist() == [None] * len(values)

    def test_what_was_filtered_away_is_not_parsed(self) -> None:
        """An array of no rows may still have memory behind it."""
        values = pa.array([b"{", b'{"id":1}'], pa.binary()).filter(pa.array([False, False]))

        assert len(parse_json(values, TYPE)) == 0

    def test_fields_have_the_types_of_the_schema(self) -> None:
        """Numbers, truth, lists, objects, decimals and times."""
        assert one(b"3", pa.float64()) == 3.0
        assert one(b"2147483647", pa.int32()) == 2_147_483_647
        assert one(b"2147483648", pa.int32()) is None
        assert one(b"false", pa.bool_()) is False
        assert one(b'["a",null]', pa.list_(pa.string())) == ["a", None]
        assert one(b'{"x":1,"y":2}', pa.struct([("x", pa.int32())])) == {"x": 1}
        assert one(b'"1.50"', pa.decimal128(10, 2)) == Decimal("1.50")
        assert one(b"1e400", pa.float64()) is None
        times = pa.array([0, 7_200_000_000], pa.timestamp("us", tz="UTC")).to_pylist()
        assert one(b'"1970-01-01T00:00:00Z"', pa.timestamp("us", tz="UTC")) == times[0]
        assert one(b'"1970-01-01T04:00:00+02:00"', pa.timestamp("us", tz="UTC")) == times[1]

    def test_a_type_that_json_cannot_hold_is_named(self) -> None:
        """Before anything is read."""
        fine = [pa.field("id", pa.int64()), pa.field("tags", pa.list_(pa.string()))]
        check_json_type(pa.struct(fine))
        for type_ in (pa.map_(pa.string(), pa.string()), pa.date32(), pa.struct([])):
            with pytest.raises(InvalidArgument, match=r"value\.extra"):
                check_json_type(pa.struct([*fine, pa.field("extra", type_)]))
