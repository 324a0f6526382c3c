"""Options and schemas of the Spark connector: looked at before anything is opened."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from pathlib import Path

import pytest
from pyspark.sql.types import DataType, StructField, StructType

from segue.errors import InvalidArgument, InvalidName
from segue.spark.options import (
    BATCH_OPTIONS,
    STREAM_OPTIONS,
    WRITE_OPTIONS,
    Kind,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)
from segue.spark.schema import COLUMNS, arrow_schema, check_schema, default_schema
from tests.unit.support import failing_cases

TOPIC = {"url": "data", "topic": "orders"}
QUEUE = {"url": "data", "queue": "jobs"}
STREAM = {**TOPIC, "reader": "copy"}


def batch(given: Mapping[str, str] = TOPIC, /, **more: str) -> ReadOptions:
    return read_options({**given, **more}, is_stream=False)


def stream(given: Mapping[str, str] = STREAM, /, **more: str) -> ReadOptions:
    return read_options({**given, **more}, is_stream=True)


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


def ddl(text: str) -> StructType:
    """Return a schema given as Spark's users write it. Needs no session, unlike Spark's own."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        DoubleType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "string": StringType(),
        "binary": BinaryType(),
        "int": IntegerType(),
        "long": LongType(),
        "double": DoubleType(),
        "boolean": BooleanType(),
        "timestamp": TimestampType(),
        "map": MapType(StringType(), StringType()),
        "array": ArrayType(LongType()),
        "object": struct(id=LongType(), name=StringType()),
        "object_with_map": struct(extra=MapType(StringType(), StringType())),
        "empty": StructType([]),
    }
    fields = [field.split() for field in text.split(",")]
    return StructType([StructField(name, types[type_]) for name, type_ in fields])


class TestWhat:
    def test_the_store_and_a_topic_are_enough(self) -> None:
        """Everything else has what is usual."""
        options = batch()

        assert (options.kind, options.name) == ("topic", "orders")
        assert (options.start, options.end, options.min_partitions) == (None, "latest", 1)
        assert options.fails_on_data_loss
        assert not options.includes_headers
        assert options.value_format == "binary"
        assert options.trigger_delay_max == timedelta(minutes=15)

    @pytest.mark.parametrize("kind", ["topic", "queue", "dead_letters", "ring"])
    def test_each_kind_of_table_is_named_by_its_own_option(self, kind: Kind) -> None:
        """One of them, and its name."""
        options = read_options({"url": "data", kind: "a-name"}, is_stream=False)

        assert (options.kind, options.name, options.is_pattern) == (kind, "a-name", False)

    def test_topics_are_a_regular_expression(self) -> None:
        """It is tried before anything is opened."""
        options = read_options({"url": "data", "topics": "shop-.*"}, is_stream=False)

        assert (options.kind, options.name, options.is_pattern) == ("topic", "shop-.*", True)
        with pytest.raises(InvalidArgument, match="no regular expression"):
            read_options({"url": "data", "topics": "shop-("}, is_stream=False)

    @pytest.mark.parametrize(
        "more", [{}, {"topic": "a", "queue": "b"}, {"topics": "a", "ring": "b"}]
    )
    def test_exactly_one_thing_is_read(self, more: dict[str, str]) -> None:
        """None, or two, is a mistake, and the error lists what there could be."""
        with pytest.raises(
            InvalidArgument, match="exactly one of topic, topics, queue, dead_letters, ring"
        ):
            read_options({"url": "data", **more}, is_stream=False)

    @pytest.mark.parametrize("name", ["../orders", "a/b", ".hidden"])
    def test_a_name_that_leaves_its_directory_is_refused(self, name: str) -> None:
        """An option is no way out of the store."""
        with pytest.raises(InvalidName):
            batch(topic=name)
        with pytest.raises(InvalidName):
            write_options({"url": "data", "queue": name})
        with pytest.raises(InvalidName):
            stream(reader=name)

    def test_where_the_store_is_must_be_said_once(self) -> None:
        """As url, or as the path that `load` was given."""
        found = Path(read_options({"path": "data", "topic": "a"}, is_stream=False).url)

        assert found == Path.cwd() / "data", "tasks may run in another directory"
        with pytest.raises(InvalidArgument, match="where is the store"):
            read_options({"topic": "a"}, is_stream=False)
        with pytest.raises(InvalidArgument, match="url or path"):
            batch(path="elsewhere")

    def test_names_of_options_have_no_case(self) -> None:
        """As everywhere in Spark."""
        options = read_options(
            {"URL": "data", "Topic": "orders", "STARTINGOFFSETS": "Earliest", "minpartitions": "3"},
            is_stream=False,
        )

        assert (options.name, options.start, options.min_partitions) == ("orders", "earliest", 3)

    @pytest.mark.parametrize(
        ("given", "is_stream", "valid"),
        [(TOPIC, False, BATCH_OPTIONS), (STREAM, True, STREAM_OPTIONS)],
    )
    def test_an_unknown_option_is_an_error_that_lists_all(
        self, given: dict[str, str], is_stream: bool, valid: tuple[str, ...]
    ) -> None:
        """A typing mistake never reads the wrong rows."""
        with pytest.raises(InvalidArgument, match=r"(?i): startingOffset;") as caught:
            read_options({**given, "startingOffset": "earliest"}, is_stream=is_stream)

        listed = str(caught.value).split("there are ")[1].split(", ")
        assert listed == sorted(valid)

    def test_an_unknown_option_of_a_sink_is_an_error_that_lists_all(self) -> None:
        """The same for writing."""
        with pytest.raises(InvalidArgument, match="no option of a sink: mode") as caught:
            write_options({**TOPIC, "mode": "append"})

        listed = str(caught.value).split("there are ")[1].split(", ")
        assert listed == sorted(set(WRITE_OPTIONS) - {"checkpointLocation", "queryName"})

    def test_an_empty_option_is_an_error(self) -> None:
        """Whoever gives an option means something by it."""

        def check(name: str) -> None:
            what = {} if name in {*COLUMNS, "topics"} else {"topic": "a"}
            if name == "priority":
                what = {"queue": "a"}
            if name == "maxTriggerDelay":
                what["minOffsetsPerTrigger"] = "1"
            place = {} if name == "path" else {"url": "data"}
            with pytest.raises(InvalidArgument, match="empty"):
                read_options({**place, **what, name: " "}, is_stream=None)

        assert failing_cases(check, sorted({*BATCH_OPTIONS, *STREAM_OPTIONS} - {"url"})) == []


class TestWhatGoesTogether:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("startingOffsets", "startingTimestamp"),
            ("endingOffsets", "endingTimestamp"),
        ],
    )
    def test_two_ways_to_say_the_same_are_refused(self, one: str, other: str) -> None:
        """It would not be clear which of them counts."""
        with pytest.raises(InvalidArgument, match=f"{one} or {other}, not both"):
            batch({**TOPIC, one: "earliest", other: "0"})

    @pytest.mark.parametrize("kind", ["queue", "dead_letters", "ring"])
    @pytest.mark.parametrize("name", ["partitions", "reader"])
    def test_what_only_topics_have_is_refused_elsewhere(self, kind: str, name: str) -> None:
        """An option that does nothing is a mistake of whoever gives it."""
        with pytest.raises(InvalidArgument, match=f"option {name} means nothing for a {kind}"):
            read_options({"url": "data", kind: "a", name: "0"}, is_stream=None)

    @pytest.mark.parametrize("kind", ["topic", "topics", "ring"])
    def test_what_only_queues_have_is_refused_elsewhere(self, kind: str) -> None:
        """Topics and rings know no priority."""
        with pytest.raises(InvalidArgument, match="option priority means nothing"):
            read_options({"url": "data", kind: "a", "priority": "1"}, is_stream=None)

    @pytest.mark.parametrize("kind", ["queue", "dead_letters"])
    def test_queues_are_read_by_priority(self, kind: str) -> None:
        """Dead letters, too."""
        options = read_options({"url": "data", kind: "a", "priority": "0,2-4"}, is_stream=False)

        assert options.priorities == frozenset({0, 2, 3, 4})

    @pytest.mark.parametrize(
        "name",
        ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"],
    )
    def test_the_pace_of_a_stream_means_nothing_to_a_batch(self, name: str) -> None:
        """The error says what a batch takes."""
        with pytest.raises(InvalidArgument, match=f"(?i)no option here: {name}"):
            batch({**TOPIC, name: "5"})

    @pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
    def test_a_stream_has_no_end(self, name: str) -> None:
        """So there is no option for it."""
        with pytest.raises(InvalidArgument, match=f"(?i)no option of a stream: {name}"):
            stream({**STREAM, name: "5"})

    def test_a_stream_over_a_topic_needs_a_name(self) -> None:
        """By it retention knows what the stream still needs; queues and rings have no readers."""
        with pytest.raises(InvalidArgument, match="needs a name"):
            stream(TOPIC)

        assert stream(QUEUE).reader is None
        assert stream().reader == "copy"

    @pytest.mark.parametrize("name", ["startingOffsets", "startingTimestamp"])
    def test_a_batch_that_begins_where_a_reader_stands_begins_nowhere_else(self, name: str) -> None:
        """A stream takes both: its reader may be new."""
        with pytest.raises(InvalidArgument, match=f"{name} contradicts reader"):
            batch({**STREAM, name: "0" if name == "startingTimestamp" else "earliest"})

        assert batch(STREAM).reader == "copy"
        assert stream(startingOffsets="earliest").start == "earliest"

    def test_a_longest_delay_needs_a_least_count(self) -> None:
        """Without one nothing is ever delayed."""
        with pytest.raises(InvalidArgument, match="without minOffsetsPerTrigger"):
            stream(maxTriggerDelay="5s")

        options = stream(minOffsetsPerTrigger="10", maxTriggerDelay="1.5s")
        assert options.offsets_per_trigger_min == 10
        assert options.trigger_delay_max == timedelta(seconds=1.5)

    def test_a_sink_is_a_topic_or_a_queue(self) -> None:
        """Rings are written by transactions, dead letters by failing."""
        assert write_options({**TOPIC, "writeId": "w1", "sync": "os"}) == WriteOptions(
            url=str(Path.cwd() / "data"), kind="topic", name="orders", sync="os", write_id="w1"
        )
        assert write_options(QUEUE).kind == "queue"
        for kind in ("ring", "dead_letters", "topics"):
            with pytest.raises(InvalidArgument):
                write_options({"url": "data", kind: "a"})
        with pytest.raises(InvalidArgument, match="exactly one of topic, queue"):
            write_options({**TOPIC, "queue": "jobs"})


class TestValues:
    def test_counts_are_positive_whole_numbers(self) -> None:
        """Anything else is named in the error."""

        def check(name: str, value: str) -> None:
            with pytest.raises(InvalidArgument, match=name):
                read_options({**STREAM, name: value}, is_stream=None)

        failing = failing_cases(
            check,
            product(
                ["minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger"],
                ["0", "-1", "1.5", "many", "1e3", "²", "٣"],
            ),
        )
        assert failing == []

    def test_counts_are_taken_as_they_are(self) -> None:
        """Each goes to its own limit."""
        options = stream(
            minPartitions="2",
            maxRecordsPerPartition="3",
            maxOffsetsPerTrigger="4",
            maxBytesPerTrigger="5",
            minOffsetsPerTrigger="6",
        )

        assert (options.min_partitions, options.records_max) == (2, 3)
        assert (options.offsets_per_trigger_max, options.bytes_per_trigger_max) == (4, 5)
        assert options.offsets_per_trigger_min == 6

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("500ms", 0.5), ("30s", 30), (" 15 m ", 900), ("1h", 3600), ("0.25m", 15)],
    )
    def test_delays_have_a_unit(self, value: str, expected: float) -> None:
        """As Kafka's connector has them."""
        options = stream(minOffsetsPerTrigger="1", maxTriggerDelay=value)

        assert options.trigger_delay_max.total_seconds() == expected

    @pytest.mark.parametrize("value", ["5", "s", "-5s", "5 days", "1h30m"])
    def test_a_delay_without_a_unit_is_refused(self, value: str) -> None:
        """Nobody has to guess whether 5 is seconds."""
        with pytest.raises(InvalidArgument, match="maxTriggerDelay is a time"):
            stream(minOffsetsPerTrigger="1", maxTriggerDelay=value)

    @pytest.mark.parametrize(
        ("value", "expected"), [("true", True), ("FALSE", False), ("True", True)]
    )
    def test_flags_are_true_or_false(self, value: str, expected: bool) -> None:
        """In any case."""
        options = batch(failOnDataLoss=value, includeHeaders=value, allowNetwork=value)

        assert options.fails_on_data_loss is expected
        assert options.includes_headers is expected
        assert options.allows_network is expected

    @pytest.mark.parametrize("value", ["yes", "1", "no", "0"])
    def test_other_flags_are_refused(self, value: str) -> None:
        """Each is named."""
        for name in ("failOnDataLoss", "includeHeaders", "allowNetwork"):
            with pytest.raises(InvalidArgument, match=f"{name} must be true or false"):
                batch({**TOPIC, name: value})

    @pytest.mark.parametrize("value", ["binary", "string", "JSON"])
    def test_formats_of_values(self, value: str) -> None:
        """In any case."""
        assert batch(valueFormat=value).value_format == value.lower()

    @pytest.mark.parametrize(
        ("name", "value"), [("valueFormat", "avro"), ("sync", "never"), ("partitions", "a-b")]
    )
    def test_a_choice_that_is_none_is_refused(self, name: str, value: str) -> None:
        """The error shows what was given."""
        with pytest.raises(InvalidArgument, match=value):
            batch({**TOPIC, name: value})

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("0", {0}), ("3,1", {1, 3}), ("0-2, 5", {0, 1, 2, 5}), (" 4 - 6 ", {4, 5, 6})],
    )
    def test_partitions_are_numbers_and_ranges(self, value: str, expected: set[int]) -> None:
        """As pages of a printer."""
        assert batch(partitions=value).partitions == frozenset(expected)

    @pytest.mark.parametrize("value", ["-1", "1,,2", "1-", "a", "1.5", "1;2"])
    def test_partitions_that_are_no_numbers_are_refused(self, value: str) -> None:
        """Before a single one is opened."""
        with pytest.raises(InvalidArgument, match="numbers and ranges"):
            batch(partitions=value)


class TestWhere:
    @pytest.mark.parametrize("which", ["startingOffsets", "endingOffsets"])
    @pytest.mark.parametrize("value", ["earliest", "latest", " Latest "])
    def test_ends_are_named(self, which: str, value: str) -> None:
        """In any case."""
        options = batch({**TOPIC, which: value})

        found = options.start if which == "startingOffsets" else options.end
        assert found == value.strip().lower()

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ('{"0": 17, "1": 4}', {"": {"0": 17, "1": 4}}),
            ('{"orders": {"0": 17, "1": -2}}', {"orders": {"0": 17, "1": -2}}),
            ('{"0": -1}', {"": {"0": -1}}),
            ('{"a": {"0": 1}, "b": {"0": 2}}', {"a": {"0": 1}, "b": {"0": 2}}),
            ('{"later": 0, "dead": -2}', {"": {"later": 0, "dead": -2}}),
        ],
    )
    def test_offsets_are_json_by_partition_or_by_name_and_partition(
        self, value: str, expected: dict[str, dict[str, int]]
    ) -> None:
        """-2 and -1 are the ends, as Kafka's connector has them."""
        assert batch(startingOffsets=value).start == expected
        assert batch(endingOffsets=value).end == expected

    @pytest.mark.parametrize(
        "value",
        [
            "5",
            "{}",
            "[]",
            "null",
            "newest",
            "{",
            '{"0": -3}',
            '{"0": "5"}',
            '{"0": 1.5}',
            '{"0": true}',
            '{"0": null}',
            '{"orders": {}}',
            '{"orders": {"0": 1}, "1": 2}',
            '{"orders": {"0": {"x": 1}}}',
        ],
    )
    def test_offsets_that_make_no_sense_are_refused_with_an_example(self, value: str) -> None:
        """The error shows how offsets are written."""
        with pytest.raises(InvalidArgument, match=r'"orders": \{"0": 17'):
            batch(startingOffsets=value)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
            (
                "2026-01-31T12:00:00.25+02:00",
                datetime(2026, 1, 31, 12, 0, 0, 250_000, timezone(timedelta(hours=2))),
            ),
            ("1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)),
            ("0", datetime(1970, 1, 1, tzinfo=UTC)),
            ("253402300799999", datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ],
    )
    def test_times_are_iso_or_milliseconds(self, value: str, expected: datetime) -> None:
        """Milliseconds since 1970, as Kafka's connector has them."""
        options = batch(startingTimestamp=value, endingTimestamp=value)

        assert options.start == expected
        assert options.end == expected

    @pytest.mark.parametrize("value", ["yesterday", "1.5", "-1", "253402300800000", "2026-13-01"])
    def test_a_time_that_is_none_is_refused(self, value: str) -> None:
        """The error shows how times are written."""
        with pytest.raises(InvalidArgument, match="2026-01-31T12:00:00Z"):
            batch(startingTimestamp=value)

    def test_a_time_needs_a_zone(self) -> None:
        """The same option means the same on every machine."""
        with pytest.raises(InvalidArgument, match="needs a time zone"):
            batch(endingTimestamp="2026-01-31T12:00:00")


class TestSchema:
    @pytest.mark.parametrize("kind", ["topic", "queue", "dead_letters", "ring"])
    def test_who_asks_for_no_columns_gets_all_but_headers(self, kind: Kind) -> None:
        """Headers cost more than the rest, so they are asked for."""
        plain = ReadOptions(url="data", kind=kind, name="a")
        with_headers = ReadOptions(url="data", kind=kind, name="a", includes_headers=True)

        assert default_schema(plain).names == [name for name in COLUMNS[kind] if name != "headers"]
        assert default_schema(with_headers).names == list(COLUMNS[kind])
        check_schema(default_schema(with_headers), with_headers)

    def test_a_value_is_of_the_type_of_its_format(self) -> None:
        """Bytes, text, or a struct."""
        options = batch(valueFormat="string")

        assert default_schema(options)["value"].dataType.simpleString() == "string"
        check_schema(ddl("value string"), options)
        check_schema(ddl("value binary"), batch())
        check_schema(ddl("value object"), batch(valueFormat="json"))

    @pytest.mark.parametrize(
        ("format_", "type_"),
        [
            ("binary", "string"),
            ("binary", "object"),
            ("string", "binary"),
            ("json", "string"),
            ("json", "map"),
        ],
    )
    def test_a_value_of_another_type_is_refused(self, format_: str, type_: str) -> None:
        """The error names the format, which is what must change."""
        with pytest.raises(InvalidArgument, match=f"with valueFormat {format_} the column value"):
            check_schema(ddl(f"value {type_}"), batch(valueFormat=format_))

    def test_json_needs_a_schema(self) -> None:
        """Nobody guesses what is in the values, and the error shows how to say it."""
        with pytest.raises(InvalidArgument, match=r"\.schema\("):
            default_schema(batch(valueFormat="json"))

    def test_what_json_cannot_hold_is_refused(self) -> None:
        """Before the read begins, by the name of the field."""
        with pytest.raises(InvalidArgument, match="extra cannot be read from JSON"):
            check_schema(ddl("value object_with_map"), batch(valueFormat="json"))

    def test_an_unknown_column_is_an_error_that_lists_all(self) -> None:
        """By kind: a topic has no priority, a queue no partition."""
        with pytest.raises(InvalidArgument, match="no column priority; there are key, value"):
            check_schema(ddl("offset long, priority int"), batch())
        with pytest.raises(InvalidArgument, match="no column partition"):
            check_schema(ddl("partition int"), batch(QUEUE))

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            ("offset int", "offset is bigint, not int"),
            ("key string", "key is binary, not string"),
            ("timestamp long", "timestamp is timestamp, not bigint"),
            ("headers map", "headers is array<"),
        ],
    )
    def test_a_column_of_another_type_is_refused(self, schema: str, said: str) -> None:
        """Nothing is cast behind the user's back."""
        with pytest.raises(InvalidArgument, match=said):
            check_schema(ddl(schema), batch())

    def test_a_column_named_twice_is_refused(self) -> None:
        """Spark would not know which is meant."""
        with pytest.raises(InvalidArgument, match="named twice"):
            check_schema(ddl("offset long, key binary, offset long"), batch())

    def test_columns_keep_the_order_of_the_schema(self) -> None:
        """And nothing else crosses to the JVM."""
        schema = ddl("timestamp timestamp, offset long")
        check_schema(schema, batch())

        assert arrow_schema(schema).names == ["timestamp", "offset"]
