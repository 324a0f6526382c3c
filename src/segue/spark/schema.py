"""The columns of each kind of table, and whether a user's schema fits them.

A user's schema is the column pruning: only what it names is made and crosses to the JVM. Spark's
API for Python sources has no other.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from segue.errors import InvalidArgument
from segue.spark.options import Kind, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

VALUE: Final = "value"
HEADERS: Final = "headers"

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_MESSAGE: Final[dict[str, DataType]] = {
    "key": StringType(),
    VALUE: BinaryType(),
    "queue": StringType(),
    "priority": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    HEADERS: _HEADERS,
    "message_id": StringType(),
    "state": StringType(),
    "attempt": IntegerType(),
    "not_before": TimestampType(),
    "expires": TimestampType(),
    "cause": StringType(),
    "reason": StringType(),
    "died": TimestampType(),
}
COLUMNS: Final[dict[Kind, dict[str, DataType]]] = {
    "topic": {
        "key": BinaryType(),
        VALUE: BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        HEADERS: _HEADERS,
    },
    "queue": _MESSAGE,
    "dead_letters": _MESSAGE,
    "ring": {
        VALUE: BinaryType(),
        "ring": StringType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
    },
}


def default_schema(options: ReadOptions) -> StructType:
    """Return the schema of who asks for none. Raises InvalidArgument."""
    if options.value_format == "json":
        raise InvalidArgument(
            "valueFormat json needs a schema that says what is in the value, as "
            '.schema("value STRUCT<id: BIGINT, name: STRING>, offset BIGINT")'
        )
    columns = dict(COLUMNS[options.kind])
    if options.value_format == "string":
        columns[VALUE] = StringType()
    if not options.includes_headers:
        columns.pop(HEADERS, None)
    return StructType([StructField(name, type_) for name, type_ in columns.items()])


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raise InvalidArgument unless every field is a column, and of its type."""
    columns = COLUMNS[options.kind]
    for field in schema.fields:
        known = columns.get(field.name)
        if known is None:
            raise InvalidArgument(
                f"there is no column {field.name}; there are {', '.join(columns)}"
            )
        if field.name == VALUE:
            _check_value(field.dataType, options)
        elif field.dataType != known:
            raise InvalidArgument(
                f"column {field.name} is {known.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    if len(set(schema.names)) != len(schema.names):
        raise InvalidArgument(f"a column is named twice: {', '.join(schema.names)}")


def _check_value(type_: DataType, options: ReadOptions) -> None:
    kinds: dict[str, type[DataType]] = {
        "binary": BinaryType,
        "string": StringType,
        "json": StructType,
    }
    expected = kinds[options.value_format]
    if not isinstance(type_, expected):
        raise InvalidArgument(
            f"with valueFormat {options.value_format} the column value is "
            f"{expected.typeName()}, not {type_.simpleString()}"
        )
    if isinstance(type_, StructType):
        from segue.spark.values import check_json_type

        check_json_type(arrow_schema(StructType([StructField(VALUE, type_)])).field(0).type)


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Return the Arrow schema that Spark expects of rows with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
