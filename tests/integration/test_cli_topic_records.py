"""`segue topic append`, `cat` and `tail`: lines in, records out, and nothing lost in between."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import segue
from segue import Event, TopicRecord
from segue.cli.exits import ExitCode
from segue.cli.payloads import json_line
from segue.cli.topic.events import JsonLines, PlainLines
from segue.cli.topic.records import encoder_from, record_json
from segue.delivery.partitioning import partition_of
from segue.delivery.topic_record import moment_us
from tests.integration.cli_support import Answer, ask, flip_byte

BINARY = bytes(range(256))
MOMENT_US_MIN = -62_135_596_800_000_000
MOMENT_US_MAX = 253_402_300_799_999_999
"""From the year 1 to the year 9999."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a topic "orders" of three partitions."""
    path = tmp_path / "data"
    assert topic(path, "create", "--partitions", "3").code == 0
    return path


def topic(store: Path, verb: str, *words: str, stdin: bytes = b"", name: str = "orders") -> Answer:
    return ask("topic", verb, store, name, *words, stdin=stdin)


def append(store: Path, stdin: bytes, *words: str, name: str = "orders") -> Answer:
    answer = topic(store, "append", *words, "--sync", "os", stdin=stdin, name=name)
    assert (answer.code, answer.err) == (0, "")
    return answer


def events(store: Path, *events: Event) -> None:
    with segue.open(store, sync="os") as opened:
        opened.topic("orders").append_many(events)


def records(store: Path, name: str = "orders") -> list[TopicRecord]:
    with segue.open(store) as opened:
        return list(opened.topic(name).records())


# append --------------------------------------------------------------------------------------


def test_append_says_where_records_went(store: Path) -> None:
    """By partition: the first offset, the last one and how many."""
    first = append(store, b"one\ntwo\n", "-p", "1")
    again = append(store, b"three", "-p", "1", "--json")

    assert first.lines == ["appended\t2", "skipped\t0", "partition\t1\t0\t1\t2"]
    assert again.json == {
        "appended": 1,
        "skipped": 0,
        "partitions": [{"partition": 1, "first_offset": 2, "last_offset": 2, "records": 1}],
    }


def test_append_makes_the_store_and_the_topic(tmp_path: Path) -> None:
    """With one partition, as anybody does who appends first."""
    append(tmp_path / "new", b"one\n", name="events")

    assert topic(tmp_path / "new", "cat", name="events").lines == ["one"]


def test_a_line_may_bring_its_key(store: Path) -> None:
    """Before the first separator; a line without one is a value without a key."""
    append(store, b"ada:1:2\nno key\n:empty key\nada:3\n", "-K", ":")
    found = {(record.key, record.value): record.partition for record in records(store)}

    assert found.keys() == {
        (b"ada", b"1:2"),
        (None, b"no key"),
        (b"", b"empty key"),
        (b"ada", b"3"),
    }
    assert found[b"ada", b"1:2"] == found[b"ada", b"3"] == partition_of(b"ada", 3)


def test_all_lines_may_have_a_key_and_headers(store: Path) -> None:
    """And an empty line may be a tombstone."""
    append(store, b"v\n\n", "-k", "ada", "-H", "a=1", "-H", "b=x=y", "--tombstones")
    append(store, b"\n", "-k", "bob")
    found = {(record.key, record.value): dict(record.headers) for record in records(store)}

    headers = {"a": "1", "b": "x=y"}
    assert found == {(b"ada", b"v"): headers, (b"ada", None): headers, (b"bob", b""): {}}


def test_lines_may_hold_any_bytes(store: Path) -> None:
    """But the separator, which may be NUL."""
    append(store, BINARY.replace(b"\0", b"") + b"\0" + b"second\0", "--null", "-p", "0")
    printed = topic(store, "cat", "--null").out

    assert printed == BINARY.replace(b"\0", b"") + b"\0second\0"


def test_more_than_fits_in_a_segment_is_appended_all_the_same(store: Path) -> None:
    """How large a segment is, is no concern of whoever pipes lines."""
    answer = append(store, b"\n".join([b"x" * 100_000] * 120), "-p", "0")

    assert answer.fields[0] == ["appended", "120"]


def test_json_lines_say_all_of_a_record(store: Path) -> None:
    """Key, value, headers, timestamp and partition; text or Base64."""
    lines = [
        {"key": "ada", "value": "1", "headers": {"a": "b"}, "timestamp": "2026-01-31T08:00:00Z"},
        {"key_base64": "/w==", "value_base64": "AP8=", "partition": 1, "timestamp": 17},
        {"key": "bob", "value": None, "offset": 99, "unknown": []},
        {"value": {"a": [1, "ß"]}, "partition": 2},
    ]
    append(store, "\n".join(map(json.dumps, lines)).encode(), "--format", "json", "-H", "h=1")
    found = {record.key: record for record in records(store)}

    assert found[b"ada"].headers == {"a": "b", "h": "1"}
    assert found[b"ada"].timestamp == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert found[b"\xff"][3:] == (b"\0\xff", {"h": "1"}, 17)
    assert (found[b"\xff"].partition, found[b"bob"].value) == (1, None)
    assert (found[None].value, found[None].partition) == ('{"a": [1, "ß"]}'.encode(), 2)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[1]",
        b'{"key": "a"}',
        b'{"value": "\\ud800"}',
        b'{"value_base64": "?"}',
        b'{"value": "x", "headers": ["a"]}',
        b'{"value": "x", "headers": {"a": 1}}',
        b'{"value": "x", "timestamp": "soon"}',
        b'{"value": "x", "timestamp": 1e400}',
        b'{"value": "x", "timestamp": 9223372036854775808}',
        b'{"value": "x", "partition": "0"}',
        b'{"value": "x", "partition": 7}',
        b'{"value": "x", "partition": true}',
        b"[" * 100_000,
    ],
)
def test_a_bad_line_ends_it_with_its_number(store: Path, line: bytes) -> None:
    """All lines before it are in, none after it."""
    stdin = b'{"value": "1"}\n{"value": "2"}\n' + line + b'\n{"value": "4"}\n'
    answer = topic(store, "append", "--format", "json", stdin=stdin)

    assert (answer.code, answer.fields[0]) == (ExitCode.USAGE, ["appended", "2"])
    assert answer.err.startswith("segue: line 3: ")
    assert answer.err.count("\n") == 1
    assert sorted(topic(store, "cat").lines) == ["1", "2"]


def test_a_line_that_never_fits_is_named(store: Path) -> None:
    """Its neighbours in the batch are in, if they come before it."""
    topic(store, "create", "--segment-bytes", "16KiB", name="small")
    lines = b"one\ntwo\n" + b"x" * 20_000 + b"\nfour\n"
    answer = topic(store, "append", "-p", "0", stdin=lines, name="small")

    assert (answer.code, answer.fields[0]) == (ExitCode.USAGE, ["appended", "2"])
    assert answer.err.startswith("segue: line 3: a record of 20000 bytes does not fit")
    assert topic(store, "cat", name="small").lines == ["one", "two"]


def test_a_producer_appends_only_what_is_missing(store: Path) -> None:
    """The number of a line is its sequence number, also over batches and with keys."""
    lines = [f"key {number % 5}:{number}" for number in range(50)]
    whole = "\n".join(lines).encode()
    words = ("-K", ":", "--producer", "import", "--batch", "7")
    part = append(store, "\n".join(lines[:20]).encode(), *words)
    rest = append(store, whole, *words)
    nothing = append(store, whole, *words)

    assert (part.fields[:2], rest.fields[:2], nothing.fields[:2]) == (
        [["appended", "20"], ["skipped", "0"]],
        [["appended", "30"], ["skipped", "20"]],
        [["appended", "0"], ["skipped", "50"]],
    )
    assert sorted(topic(store, "cat").lines, key=int) == [str(number) for number in range(50)]


def test_a_producer_has_one_user_at_a_time(store: Path) -> None:
    """The other is told, with a code of its own."""
    with segue.open(store) as opened, opened.topic("orders").producer("import"):
        answer = topic(store, "append", "--producer", "import", stdin=b"x\n")

    assert answer.code == ExitCode.LOCKED
    assert "producer import is in use" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["--format", "json", "-k", "a"],
        ["--format", "json", "-K", ":"],
        ["--format", "json", "-Z"],
        ["--format", "csv"],
        ["-K", ""],
        ["-H", "nothing"],
        ["-p", "-1"],
    ],
)
def test_options_that_contradict_each_other_are_refused(store: Path, words: list[str]) -> None:
    """Before anything is appended."""
    answer = topic(store, "append", *words, stdin=b"x\n")

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")


# cat -----------------------------------------------------------------------------------------


def test_cat_merges_partitions_by_time(store: Path) -> None:
    """A partition's own order is never changed."""
    events(
        store,
        *(Event(value=b"%d" % time, timestamp=time, partition=time % 3) for time in range(9)),
    )

    assert topic(store, "cat").lines == [str(number) for number in range(9)]
    assert topic(store, "cat", "-p", "1", "-p", "2").lines == ["1", "2", "4", "5", "7", "8"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--from", "0:2,1:3"], ["2", "13", "20"]),
        (["--from", "1:3", "--until", "0:1"], ["0", "13", "20"]),
        (["--from", "2", "-p", "1"], ["12", "13"]),
        (["--from", "1", "--until", "3", "-p", "1"], ["11", "12"]),
        (["--from", "latest"], []),
        (["--from", "2000-01-01"], ["0", "1", "2", "10", "11", "12", "13", "20"]),
        (["--from", "1h", "--until", "2200-01-01T00:00:00Z", "-p", "2"], ["20"]),
        (["--until", "1h"], []),
        (["--key", "k"], ["20"]),
        (["--limit", "3", "-p", "1"], ["10", "11", "12"]),
        (["-n", "0"], []),
    ],
)
def test_cat_prints_what_lies_between_two_places(
    store: Path, words: list[str], printed: list[str]
) -> None:
    """By offset, by offset and partition, by time, by how long ago; those of a key."""
    append(store, b"0\n1\n2\n", "-p", "0")
    append(store, b"10\n11\n12\n13\n", "-p", "1")
    append(store, b"20\n", "-p", "2", "-k", "k")

    assert topic(store, "cat", *words).lines == printed


@pytest.mark.parametrize(
    "words",
    [
        ["--from", "7"],
        ["--from", "resume"],
        ["--from", "yesterday"],
        ["--from", "9:1"],
        ["--until", "resume"],
        ["--reader", "a", "--group", "b"],
        ["--group", "b", "-p", "0"],
        ["--group", "b", "--until", "1h"],
        ["--format", "xml"],
        ["--format", "%q"],
        ["--format", "%"],
        ["--format", "%s\\q"],
        ["-p", "3"],
    ],
)
def test_what_cannot_be_printed_is_refused(store: Path, words: list[str]) -> None:
    """With one line that says why."""
    answer = topic(store, "cat", *words)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.count("\n") == 1


def test_an_offset_that_is_not_there_is_not_found(store: Path) -> None:
    """The error names the partition, and what is there."""
    answer = topic(store, "cat", "--from", "0:5", "--json")

    assert answer.code == ExitCode.NOT_FOUND
    assert "offset 5 of partition 0" in json.loads(answer.err)["message"]


def test_a_reader_prints_each_record_once(store: Path) -> None:
    """Also over a limit, a key and an end."""
    append(store, b"0\n1\n2\n3\n4\n5\n", "-p", "0")
    words = ("--reader", "audit")
    first = topic(store, "cat", *words, "-n", "2")
    middle = topic(store, "cat", *words, "--until", "0:4")
    nothing = topic(store, "cat", *words, "--until", "0:1")
    rest = topic(store, "cat", *words, "--key", "none")
    end = topic(store, "cat", *words)
    again = topic(store, "cat", *words, "--from", "0:5")

    assert (first.lines, middle.lines, nothing.lines) == (["0", "1"], ["2", "3"], [])
    assert (rest.lines, end.lines, again.lines) == ([], [], ["5"])


def test_a_group_prints_each_record_once(store: Path) -> None:
    """It begins with the earliest record, or where it is told."""
    append(store, b"a:1\nb:2\nc:3\n", "-K", ":")

    assert sorted(topic(store, "cat", "--group", "billing").lines) == ["1", "2", "3"]
    assert topic(store, "cat", "--group", "billing").lines == []
    assert topic(store, "cat", "--group", "late", "--from", "latest").lines == []


@pytest.mark.parametrize("verb", [["cat"], ["tail", "--no-follow"]])
@pytest.mark.parametrize("who", [["--reader", "slow"], ["--group", "slow"]])
def test_who_lost_records_to_retention_is_told(
    store: Path, verb: list[str], who: list[str]
) -> None:
    """An error unless it is to go on past the gap, which takes a warning."""
    append(store, b"0\n1\n", "-p", "0")
    topic(store, "cat", *who, "-n", "1")
    assert topic(store, "clean", "--keep", "0", "--yes", "--roll").code == 0
    append(store, b"2\n", "-p", "0")
    refused = topic(store, *verb, *who)
    passed = topic(store, *verb, *who, "--skip-trimmed")
    after = topic(store, *verb, *who)

    assert refused.code == ExitCode.NOT_FOUND
    assert "has been trimmed: earliest is 2" in refused.err
    assert (passed.code, passed.lines, passed.err.count("warning")) == (0, ["2"], 1)
    assert (after.code, after.lines) == (0, [])


@pytest.mark.parametrize(
    "words", [["cat"], ["cat", "--reader", "r"], ["cat", "--group", "g"], ["tail", "--no-follow"]]
)
def test_damage_ends_it_once_all_before_it_is_printed(store: Path, words: list[str]) -> None:
    """With the file and the offsets, and a code of its own."""
    for line in (b"one\n", b"two\n", b"three\n"):
        append(store, line, "-p", "0")
    flip_byte(store / "topics" / "orders" / "partition_0" / "000000000.q", b"two")
    verb, *others = words
    answer = topic(store, verb, *others)

    assert (answer.code, answer.lines) == (ExitCode.DAMAGE_MET, ["one"])
    assert "offsets 1 to 1; 'segue repair'" in answer.err


# Formats -------------------------------------------------------------------------------------


def test_formats_show_a_record_each_in_its_way(store: Path) -> None:
    """As a value, raw, as JSON or by a template."""
    events(
        store,
        Event(value="v\n", key="k", headers={"a": "1", "b": "2"}, timestamp=1_500, partition=0),
        Event(value=None, key=b"\xff", timestamp=2_000_000, partition=0),
    )
    template = r"%t %p %o %k %K %s %S %h %T %%\t\x41\\\0|"

    assert topic(store, "cat").out == b"v\n\n\n"
    assert topic(store, "cat", "-0").out == b"v\n\0\0"
    assert topic(store, "cat", "--format", "raw").out == b"v\n"
    assert topic(store, "cat", "--format", template).out == (
        b"orders 0 0 k 1 v\n 2 a=1,b=2 1 %\tA\\\0|orders 0 1 \xff 1  -1  2000 %\tA\\\0|"
    )
    assert topic(store, "cat", "--json").out == topic(store, "cat", "--format", "json").out
    first, second = [json.loads(line) for line in topic(store, "cat", "--json").lines]
    assert first == {
        "partition": 0,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:00.001500Z",
        "key": "k",
        "headers": {"a": "1", "b": "2"},
        "value": "v\n",
    }
    assert (second["key_base64"], second["value"]) == ("/w==", None)


def test_a_topic_is_copied_by_a_pipe_of_json_lines(store: Path) -> None:
    """Keys, headers, timestamps, tombstones, partitions and any bytes."""
    events(
        store,
        Event(value=BINARY, key=BINARY, headers={"a": "ß", "": "\n"}, timestamp=-1, partition=0),
        Event(value=None, key="gone", timestamp=253_402_300_799_999_999, partition=1),
        Event(value=b"", key=b"", partition=2),
        Event(value="text"),
    )
    topic(store, "create", "--partitions", "3", name="copy")
    printed = topic(store, "cat", "--json").out
    append(store, printed, "--format", "json", name="copy")
    append(store, printed, "--format", "json", "--repartition", name="single")

    assert records(store, "copy") == records(store)
    assert topic(store, "cat", "--json", name="copy").out == printed
    assert len(records(store, "single")) == 4


def test_keys_and_values_are_copied_by_a_pipe_of_lines(store: Path) -> None:
    """As kcat does it: %k, a separator, %s."""
    append(store, b"a:1\nb:\na:2\n", "-K", ":", "-Z")
    printed = topic(store, "cat", "--format", r"%k=%s\n").out
    append(store, printed, "-K", "=", "-Z", name="copy")

    copied = [(record.key, record.value) for record in records(store, "copy")]
    assert sorted(copied, key=str) == [(b"a", b"1"), (b"a", b"2"), (b"b", None)]


texts = st.text(max_size=8).filter(lambda text: text.isprintable() or not text)


@given(
    key=st.none() | st.binary(max_size=8),
    value=st.none() | st.binary(max_size=8),
    headers=st.dictionaries(texts, texts, max_size=3),
    timestamp_us=st.integers(min_value=MOMENT_US_MIN, max_value=MOMENT_US_MAX),
)
def test_json_lines_are_what_they_were(
    key: bytes | None, value: bytes | None, headers: dict[str, str], timestamp_us: int
) -> None:
    """Whatever a record holds, its line stands for the same event."""
    record = TopicRecord(3, 17, key, value, headers, timestamp_us)
    line = json_line(record_json(record)).rstrip(b"\n")
    event = JsonLines(headers=None, partition=None, repartition=False).event(line)

    assert (event.value, event.key, event.headers or {}) == (value, key, headers)
    assert event.timestamp is not None
    assert moment_us(event.timestamp, name="timestamp") == timestamp_us
    assert event.partition == 3
    assert b"\n" not in line


@given(st.binary(max_size=8).filter(lambda key: b":" not in key), st.binary(max_size=8))
def test_lines_with_a_key_are_what_they_were(key: bytes, value: bytes) -> None:
    """Whatever key and value are, as long as the separator is not in the key."""
    record = TopicRecord(0, 0, key, value, {}, 0)
    line = encoder_from("%k:%s", topic="t", null=False, as_json=False)(record)
    lines = PlainLines(key=None, separator=b":", headers=None, partition=None, tombstones=True)

    event = lines.event(line)
    assert (event.key, event.value) == (key, value or None)


@given(st.text(max_size=12))
def test_a_template_is_understood_or_refused(text: str) -> None:
    """Whatever it says: nothing else happens."""
    record = TopicRecord(0, 0, b"k", b"v", {"a": "b"}, 0)
    try:
        encode = encoder_from(text, topic="t", null=False, as_json=False)
    except typer.BadParameter:
        return

    assert isinstance(encode(record), bytes)


# tail ----------------------------------------------------------------------------------------


def test_tail_begins_with_the_last_records(store: Path) -> None:
    """Of all partitions together, by time."""
    events(
        store,
        *(Event(value=b"%d" % time, timestamp=time, partition=time % 3) for time in range(30)),
    )

    def tail(*words: str) -> list[str]:
        return topic(store, "tail", "--no-follow", *words).lines

    assert tail() == [str(number) for number in range(20, 30)]
    assert tail("-n", "4", "-p", "0") == ["18", "21", "24", "27"]
    assert tail("-n", "0") == []
    assert tail("-n", "99", "--limit", "2") == ["0", "1"]
    assert tail("--from", "0:9,1:9,2:9") == ["27", "28", "29"]
    assert tail("--from", "latest") == []
    assert topic(store, "tail", "--timeout", "0.01", "-n", "1").lines == ["29"]


def test_tail_as_a_reader_goes_on_where_it_was(store: Path) -> None:
    """From the earliest record the first time."""
    append(store, b"0\n1\n2\n", "-p", "0")
    words = ("--no-follow", "--reader", "audit")
    first = topic(store, "tail", *words, "--limit", "1")
    rest = topic(store, "tail", *words)

    assert (first.lines, rest.lines) == (["0"], ["1", "2"])
    assert topic(store, "tail", *words, "-n", "1").code == ExitCode.USAGE
    assert topic(store, "tail", *words, "--from", "resume").lines == []
