"""Tables and columns that a server of ours would not send: found out before they are used."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from msgspec.json import encode
from pyspark.sql.types import StructType

from segue.errors import UnsupportedServer
from segue.spark.decoding import Wanted
from segue.spark.options import Kind, ReadOptions
from segue.spark.servers.http_shelves import open_http_shelf
from segue.stores.http.bulk import Bulk
from segue.stores.http.store import HttpStore
from segue.stores.http.wire.topics import STATE
from segue.stores.message_pages import MESSAGE_SCHEMA, RECORD_SCHEMA
from segue.stores.opening import open_directory
from segue.stores.passing import Passing
from segue.stores.topic_columns import SCHEMA
from tests.http_proxy import Impostor, answer_of
from tests.unit.http.support import ABOUT, asked

Json = dict[str, object]

# Tables ----------------------------------------------------------------------------------------


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table_with(count: int, *, state: bytes = b'{"position":{"0":0}}') -> pa.Table:
    """Return a table as a poll answers it."""
    rows = [{"partition": 0, "offset": number} for number in range(count)]
    return pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata({STATE: state})


def unsound() -> bytes:
    """Return a table whose value ends beyond its bytes."""
    value = pa.array([b"x" * 0x1234], pa.binary())
    data = stream_of(table_with(1).set_column(1, "value", value))
    assert data.count(b"\x34\x12\0\0\0\0\0\0") > 0
    return data.replace(b"\0\0\0\0\x34\x12\0\0", b"\0\0\0\0\xff\xff\xff\x7f")


NO_TEXT: Final = encode(
    {
        "position": {},
        "records": [{"partition": 0, "offset": 0, "timestamp_us": 1, "value": "?"}],
    }
).replace(b"?", b"\xff")
TABLES: Final[dict[str, Callable[[], bytes]]] = {
    "no table": lambda: b"nothing of the kind",
    "half a table": lambda: stream_of(table_with(1))[:-200],
    "a state that is no text": lambda: stream_of(table_with(0, state=NO_TEXT)),
    "a state that is nothing": lambda: stream_of(table_with(0, state=b"[]")),
    "no state": lambda: stream_of(table_with(0).replace_schema_metadata(None)),
    "other columns": lambda: stream_of(table_with(0).drop_columns(["offset"])),
    "columns of another kind": lambda: stream_of(
        table_with(1).set_column(4, "offset", pa.array(["first"]))
    ),
    "more than asked for": lambda: stream_of(table_with(2)),
    "values beyond its bytes": unsound,
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_makes_no_sense_is_refused(case: str) -> None:
    """Arrow checks nothing by itself: what it is handed may lead anywhere."""

    def poll(store: HttpStore) -> object:
        return store.topic("t").reader("r").poll_table(1)

    session = encode({"session": "s", "position": {"0": 0}})
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(poll, session, TABLES[case]())


def test_columns_that_a_later_server_adds_are_passed_over() -> None:
    def poll(store: HttpStore) -> object:
        return store.topic("t").reader("r").poll_table()

    session = encode({"session": "s", "position": {"0": 0}})
    later = table_with(1).append_column("colour", pa.array(["blue"]))
    table = asked(poll, session, stream_of(later))

    assert isinstance(table, pa.Table)
    assert table.schema.equals(SCHEMA)


@pytest.mark.parametrize(
    "table", [table_with(0), table_with(1).set_column(4, SCHEMA.field(4), pa.nulls(1, pa.int64()))]
)
def test_a_page_of_a_table_says_where_it_ends(table: pa.Table) -> None:
    """One without rows, or without offsets, could be read for ever."""

    def read(store: HttpStore) -> object:
        return list(store.topic("t").tables())

    span = encode({"start": {"0": 0}, "stop": {"0": 5}})
    opened = encode({"session": "s", "records": []})
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(read, span, opened, stream_of(table))


@pytest.mark.parametrize("answer", [b'{"partition":"\xff"}', b"[]", b"", b'{"partition":-1}'])
def test_an_adoption_that_makes_no_sense_is_refused(scratch: Path, answer: bytes) -> None:
    with open_directory(scratch / "data", sync="os") as store:
        topic = store.topic("t", partitions=1)
        topic.append(b"x")
        topic.roll()
        segment = scratch / "segment"
        with segment.open("wb") as target:
            topic.send_segment(0, 0, target)
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(lambda store: store.topic("t").adopt(segment, partition=0, key="a"), answer)


# Columns ---------------------------------------------------------------------------------------

WHOLE: Final = {"offset": 0, "time_us": 0, "attr": 0, "payload": b"x"}


def columns_of(schema: pa.Schema, **fields: object) -> bytes:
    """Return one row as it is read in bulk, with the empty batch that ends it."""
    rows = pa.Table.from_pylist([{**WHOLE, **fields}], schema=schema)
    return stream_of(pa.concat_tables([rows, schema.empty_table()]))


@pytest.mark.parametrize("missing", ["offset", "time_us", "attr", "payload"])
def test_a_record_without_its_numbers_is_refused(missing: str) -> None:
    """A number that is missing must not be read as another one."""

    def read(store: HttpStore) -> object:
        bulk = Bulk(store.calls, "topic", "t")
        return list(bulk.stretches(0, 1, Passing(name="t", number="0")))

    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(read, columns_of(RECORD_SCHEMA, **{missing: None}))


def test_a_message_may_lack_words_and_no_numbers() -> None:
    def read(store: HttpStore) -> object:
        bulk = Bulk(store.calls, "queue", "q")
        return [len(each) for each in bulk.stretches(0, 1, Passing(name="q", number="0"))]

    numbers = dict.fromkeys(("lane", "number", "priority", "attempt", "not_before_us"), 0)

    assert asked(read, columns_of(MESSAGE_SCHEMA, **numbers, died_us=0)) == [1]
    with pytest.raises(UnsupportedServer, match="makes no sense"):
        asked(read, columns_of(MESSAGE_SCHEMA, **numbers))


# Strands ---------------------------------------------------------------------------------------

ONE: Final = ("at", "lane", "offset", "priority", "state", "attempt", "not_before_us")


def strand(**fields: object) -> Json:
    return {"number": "0", "first": 0, "end": 3, "extents": [], **fields}


def portrait(**fields: object) -> Json:
    """Return how messages stand, one of which was touched."""
    touched = {**{name: [1] for name in ONE}, "cause": [None], "reason": [None], **fields}
    return {
        "lane": 0,
        "cursor": 0,
        "touched": touched,
        "hidden": [],
        "hidden_state": [],
        "dead": [],
    }


STRANDS: Final[dict[str, tuple[Kind, Json]]] = {
    "a number that is none": ("topic", strand(number="first")),
    "a number of many digits": ("topic", strand(number="9" * 5_000)),
    "a number that only queues have": ("topic", strand(number="later")),
    "an end before the beginning of all": ("topic", strand(end=-1)),
    "an end beyond all numbers": ("topic", strand(end=10**30)),
    "columns of different lengths": ("queue", strand(portrait=portrait(reason=[]))),
    "a column beyond all numbers": ("queue", strand(portrait=portrait(at=[10**30]))),
}


@pytest.mark.parametrize("case", STRANDS)
def test_a_strand_that_makes_no_sense_is_refused(case: str) -> None:
    """Spark plans by what the server tells: it must be what it says."""
    kind, told = STRANDS[case]
    strands = answer_of(200, encode({"strands": [told]}))
    with Impostor(answer_of(200, ABOUT), strands) as server:
        options = ReadOptions(
            url=f"{server.url}?retry=0", kind=kind, name="t", priorities=frozenset({0})
        )
        wanted = Wanted(schema=StructType([]), value_format="binary")
        shelf = open_http_shelf(options, wanted, is_stream=False)
        try:
            with pytest.raises(UnsupportedServer, match="makes no sense"):
                shelf.strands()
        finally:
            shelf.close()
