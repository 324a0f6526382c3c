"""Records in and out: append, cat and tail."""

import json
from pathlib import Path

import pytest

from segue import Log
from segue.cli.exits import ExitCode
from tests.integration.cli_support import ask, fill, flip_byte, payloads_of

SEGMENT = "000000000.q"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three records."""
    return fill(tmp_path / "log", b"one", b"two", b"three")


# append --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stdin", "payloads"),
    [
        (b"", []),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"last line\nwithout newline", [b"last line", b"without newline"]),
        (b"\n\n", [b"", b""]),
        (b"crlf\r\n", [b"crlf\r"]),
        (b"\x00\xff\xfe\n\x80", [b"\x00\xff\xfe", b"\x80"]),
    ],
)
def test_each_line_is_a_record(tmp_path: Path, stdin: bytes, payloads: list[bytes]) -> None:
    """Lines are bytes, the newline is no part of them, and a last one without it counts."""
    answer = ask("append", tmp_path / "log", stdin=stdin)

    assert answer.code == 0
    assert payloads_of(tmp_path / "log") == payloads


def test_append_prints_the_offsets(log: Path) -> None:
    """A pipe gets first, last and count; JSON names them; nothing appended has no offsets."""
    plain = ask("append", log, stdin=b"a\nb\n")
    as_json = ask("append", log, "--json", stdin=b"c\n")
    nothing = ask("append", log, "--json")

    assert plain.out == b"3\t4\t2\n"
    assert as_json.json == {"path": str(log), "records": 1, "first_offset": 5, "last_offset": 5}
    assert nothing.json["first_offset"] is None


def test_nul_separates_records_that_hold_newlines(tmp_path: Path) -> None:
    """What went in separated by NUL comes out so."""
    path = tmp_path / "log"
    ask("append", path, "--null", stdin=b"a\nb\0c\0")

    assert payloads_of(path) == [b"a\nb", b"c"]
    assert ask("cat", path, "--null").out == b"a\nb\0c\0"


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_lines_are_appended_in_every_sync_mode(tmp_path: Path, sync: str) -> None:
    """The mode changes when records are on the device, never which."""
    answer = ask("append", tmp_path / "log", "--sync", sync, stdin=b"a\nb\n")

    assert answer.code == 0
    assert payloads_of(tmp_path / "log") == [b"a", b"b"]


def test_a_batch_is_what_damage_takes(tmp_path: Path) -> None:
    """`--batch` lines share one checksum: they stand and fall together."""
    path = tmp_path / "log"
    ask("append", path, "--batch", "2", stdin=b"aa\nbb\ncc\ndd\n")
    flip_byte(path / SEGMENT, b"ccdd")
    answer = ask("cat", path, "--skip-damage")

    assert answer.out == b"aa\nbb\n"


def test_batches_are_cut_to_what_a_segment_takes(tmp_path: Path) -> None:
    """Many long lines need no thought about segments."""
    path = tmp_path / "log"
    Log(path, segment_bytes=16 * 1024, segment_items=10).close()
    lines = [b"%d " % number + b"x" * 5_000 for number in range(30)]
    answer = ask("append", path, stdin=b"\n".join(lines))

    assert answer.code == 0
    assert payloads_of(path) == lines


def test_a_line_that_can_never_fit_ends_the_append(tmp_path: Path) -> None:
    """What came before it is kept and its offsets are printed."""
    path = tmp_path / "log"
    Log(path, segment_bytes=16 * 1024, segment_items=10).close()
    answer = ask("append", path, stdin=b"fits\n" + b"x" * 600_000)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"0\t0\t1\n")
    assert "does not fit" in answer.err
    assert payloads_of(path) == [b"fits"]


def test_a_whole_file_is_one_record(tmp_path: Path) -> None:
    """Each `--file` is appended as it is, newlines and all."""
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"")
    answer = ask("append", tmp_path / "log", "--file", tmp_path / "a", "--file", tmp_path / "b")

    assert answer.out == b"0\t1\t2\n"
    assert payloads_of(tmp_path / "log") == [b"1\n2\n", b""]


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    """Nothing of it is appended, and a file without an end does not fill the memory."""
    missing = ask("append", tmp_path / "log", "--file", tmp_path / "missing")
    endless = ask("append", tmp_path / "log", "--file", "/dev/zero")

    assert (missing.code, endless.code) == (ExitCode.NOT_FOUND, ExitCode.USAGE)
    assert str(tmp_path / "missing") in missing.err
    assert payloads_of(tmp_path / "log") == []


# cat -----------------------------------------------------------------------------------------


def test_cat_prints_payloads_as_they_are(tmp_path: Path) -> None:
    """No byte is changed on the way to a pipe."""
    path = fill(tmp_path / "log", b"\x00\xff", b"", "grüße".encode())

    assert ask("cat", path).out == b"\x00\xff\n\n" + "grüße\n".encode()


@pytest.mark.parametrize(
    ("words", "payloads"),
    [
        (["--from", "earliest"], "a b c d e"),
        (["--from", "latest"], ""),
        (["--from", "3"], "d e"),
        (["--from", "5"], ""),
        (["--to", "2"], "a b"),
        (["--from", "1", "--to", "3"], "b c"),
        (["--from", "3", "--to", "1"], ""),
        (["--to", "99"], "a b c d e"),
        (["--limit", "2"], "a b"),
        (["--limit", "0"], ""),
        (["--from", "1", "--limit", "99"], "b c d e"),
        (["--from", "2000-01-01"], "a b c d e"),
        (["--from", "2100-01-01T00:00:00Z"], ""),
    ],
)
def test_cat_prints_the_stretch_asked_for(tmp_path: Path, words: list[str], payloads: str) -> None:
    """`--from` is the first one printed, `--to` the first one not."""
    path = fill(tmp_path / "log", *b"a b c d e".split())

    assert ask("cat", path, *words).out.split() == payloads.encode().split()


def test_cat_begins_at_a_time(log: Path) -> None:
    """The time a record has as JSON finds it again."""
    records = [json.loads(line) for line in ask("cat", log, "--json").lines]
    answer = ask("cat", log, "--from", records[2]["time"])

    assert answer.lines[-1] == "three"


def test_cat_as_json_tells_text_from_bytes(tmp_path: Path) -> None:
    """A payload that is no UTF-8 is under another key, never garbled."""
    path = tmp_path / "log"
    with Log(path) as log:
        log.append("grün\n".encode(), attr=7)
        log.append(b"\xff")
    text, data = (json.loads(line) for line in ask("cat", path, "--json").lines)

    assert (text["offset"], text["attr"], text["payload"]) == (0, 7, "grün\n")
    assert list(text) == ["offset", "time", "attr", "payload"]
    assert (data["payload_base64"], "payload" in data) == ("/w==", False)


def test_offsets_are_printed_on_request(log: Path) -> None:
    """A tab parts the offset from the payload."""
    assert ask("cat", log, "--offsets", "--from", "1").out == b"1\ttwo\n2\tthree\n"


def test_cat_prints_what_lies_before_damage_and_says_where_it_is(log: Path) -> None:
    """Good records come out, then one line of error, and the exit code is its own."""
    flip_byte(log / SEGMENT, b"two")
    answer = ask("cat", log)

    assert (answer.code, answer.out) == (ExitCode.DAMAGE_MET, b"one\n")
    assert answer.err.count("\n") == 1
    assert "offsets 1 to 1" in answer.err


def test_cat_passes_over_damage_on_request(log: Path) -> None:
    """The rest comes out, and a warning says what is missing."""
    flip_byte(log / SEGMENT, b"two")
    answer = ask("cat", log, "--skip-damage")

    assert (answer.code, answer.out) == (0, b"one\nthree\n")
    assert answer.err.startswith("segue: warning: skipped damage from=1 to=2")


# tail ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "payloads"), [("0", []), ("2", ["two", "three"]), ("9", ["one", "two", "three"])]
)
def test_tail_begins_with_the_last_records(log: Path, count: str, payloads: list[str]) -> None:
    """`-n` says how many, as far as there are so many."""
    answer = ask("tail", log, "-n", count, "--no-follow")

    assert (answer.code, answer.lines) == (0, payloads)


def test_tail_ends_when_nothing_comes_for_the_timeout(log: Path) -> None:
    """A silent log ends it with success."""
    answer = ask("tail", log, "-n", "1", "--timeout", "0.01")

    assert (answer.code, answer.lines) == (0, ["three"])


def test_a_named_reader_goes_on_where_it_stopped(log: Path) -> None:
    """What was printed is committed, and nothing else."""
    first = ask("tail", log, "--reader", "worker", "--limit", "2")
    second = ask("tail", log, "--reader", "worker", "--no-follow")
    third = ask("tail", log, "--reader", "worker", "--no-follow")

    assert [answer.lines for answer in (first, second, third)] == [["one", "two"], ["three"], []]
    assert {answer.code for answer in (first, second, third)} == {0}


def test_a_reader_has_its_own_beginning(log: Path) -> None:
    """`-n` together with `--reader` is a contradiction, said before anything happens."""
    answer = ask("tail", log, "--reader", "worker", "-n", "1")

    assert answer.code == ExitCode.USAGE
    assert not (log / "readers").exists()
