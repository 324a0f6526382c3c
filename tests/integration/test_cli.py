"""The command line as a whole, and the verbs that look: what they print and how they end."""

import json
from functools import partial
from pathlib import Path

import pytest

from segue import Log, __version__, errors
from segue.cli.exits import MEANINGS, ExitCode, exit_code_of
from tests.integration.cli_support import ask, fill, snapshot

SEGMENT = "000000000.q"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three records."""
    return fill(tmp_path / "log", b"one", b"two", b"three")


# ls ------------------------------------------------------------------------------------------


def test_ls_finds_the_logs_below_a_directory(tmp_path: Path) -> None:
    """Every directory with segments is a log, wherever it lies; nothing else is one."""
    fill(tmp_path / "b" / "deep", b"x")
    fill(tmp_path / "a", b"x", b"y")
    (tmp_path / "no log").mkdir()
    answer = ask("ls", tmp_path)

    assert answer.code == 0
    assert [line[:4] for line in answer.fields] == [
        [str(tmp_path / "a"), "2", "2", "1"],
        [str(tmp_path / "b" / "deep"), "1", "1", "1"],
    ]


def test_ls_counts_readers_also_damaged_ones(log: Path) -> None:
    """A damaged position is no reason not to list a log."""
    assert ask("tail", log, "--reader", "worker", "--no-follow").code == 0
    (log / "readers" / "worker.meta").write_bytes(b"not a position")
    answer = ask("ls", log, "--json")

    [row] = answer.json_rows["logs"]
    assert (answer.code, row["readers"], row["records"]) == (0, 1, 3)


def test_ls_lists_a_log_it_cannot_open_with_its_problem(tmp_path: Path) -> None:
    """One log with a problem hides none of the others, and the exit code tells."""
    fill(tmp_path / "good", b"x")
    newer = fill(tmp_path / "newer", b"x")
    (newer / "live").unlink()
    _make_newer(newer / SEGMENT)
    answer = ask("ls", tmp_path)

    assert answer.code == ExitCode.STORAGE
    assert [line[0] for line in answer.fields] == [str(tmp_path / "good"), str(newer)]
    assert "newer Segue" in answer.fields[1][-1]


def test_ls_of_a_directory_without_logs_prints_nothing(tmp_path: Path) -> None:
    """No logs is an answer, no such directory an error."""
    empty = ask("ls", tmp_path)
    missing = ask("ls", tmp_path / "nothing")

    assert (empty.code, empty.out) == (0, b"")
    assert (missing.code, missing.out) == (ExitCode.NOT_FOUND, b"")


# info ----------------------------------------------------------------------------------------


def test_info_shows_segments_and_readers_with_their_lag(tmp_path: Path) -> None:
    """What a reader has not committed yet is its lag."""
    path = tmp_path / "log"
    with Log(path) as log:
        log.append_many([b"a", b"b"])
        log.roll()
        log.append(b"c")
        log.reader("slow").commit(1)
    answer = ask("info", path)

    lines = answer.fields
    assert ["records", "3"] in lines
    assert [line[1:5] for line in lines if line[0] == "segment"] == [
        ["0", "0", "2", "yes"],
        ["1", "2", "1", "no"],
    ]
    assert [line for line in lines if line[0] == "reader"] == [["reader", "slow", "1", "2", "-"]]


def test_info_as_json_is_exact(log: Path) -> None:
    """Programs get bytes and times in full."""
    document = ask("info", log, "--json").json
    with Log(log, read_only=True) as opened:
        size_bytes, newest = opened.size_bytes, opened.read(2).time

    assert document["size_bytes"] == size_bytes
    assert document["newest"] == newest.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert document["segment_bytes_max"] == 8 * 1024 * 1024
    assert document["quarantine"] == []


def test_info_of_an_empty_log_has_no_times(tmp_path: Path) -> None:
    """What there is not is shown as such."""
    Log(tmp_path / "log").close()
    answer = ask("info", tmp_path / "log")

    assert answer.code == 0
    assert ["oldest", "-"] in answer.fields


# The frame -----------------------------------------------------------------------------------


def test_looking_changes_nothing(log: Path) -> None:
    """Verbs that read make no file, change none and need no permission to write."""
    ask("tail", log, "--reader", "worker", "--limit", "1")
    before = snapshot(log)
    codes = [
        ask("ls", log).code,
        ask("info", log).code,
        ask("cat", log).code,
        ask("tail", log, "--timeout", "0.01").code,
        ask("verify", log).code,
        ask("repair", log, "--dry-run").code,
    ]

    assert codes == [0] * 6
    assert snapshot(log) == before


def test_looking_needs_no_traces_of_a_writer(log: Path) -> None:
    """A copy of the segments alone can be read, and stays as it is."""
    for path in log.iterdir():
        if path.suffix != ".q":
            path.unlink()
    before = snapshot(log)

    assert ask("cat", log).lines == ["one", "two", "three"]
    assert ask("info", log).code == 0
    assert snapshot(log) == before


@pytest.mark.parametrize("verb", ["info", "cat", "tail", "verify", "repair"])
def test_no_verb_but_append_makes_a_log(tmp_path: Path, verb: str) -> None:
    """A misspelt path is an error with a code of its own, not a new log."""
    words = ["--yes"] if verb == "repair" else []
    answer = ask(verb, tmp_path / "missing", *words)

    assert answer.code == ExitCode.NOT_FOUND
    assert answer.err == f"segue: there is no log at {tmp_path / 'missing'}\n"
    assert list(tmp_path.iterdir()) == []


def test_errors_are_json_for_those_who_asked_for_json(log: Path) -> None:
    """The class of the error is named, so that a program can act on it."""
    library = ask("cat", log, "--from", "99", "--json")
    usage = ask("cat", log, "--from", "yesterday", "--json")

    assert (library.code, library.out) == (ExitCode.NOT_FOUND, b"")
    assert json.loads(library.err)["error"] == "OffsetNotWritten"
    assert usage.code == ExitCode.USAGE
    assert "yesterday" in json.loads(usage.err)["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["frobnicate"],
        ["cat"],
        ["cat", "log", "--frob"],
        ["cat", "log", "--limit", "-1"],
        ["cat", "log", "--from", "0000-01-01"],
        ["append", "log", "--batch", "0"],
        ["append", "log", "--sync", "never"],
        ["tail", "log", "--timeout", "soon"],
        ["bench", "--payload-bytes", "0"],
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(words: list[str]) -> None:
    """Usage errors are told apart from all others."""
    answer = ask(*words)

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert answer.err.startswith("segue: ")
    assert answer.err.count("\n") == 1


def test_a_log_with_an_exclusive_owner_is_locked(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds the log taken can tell that from every other error."""
    monkeypatch.setattr("segue.cli.append.Log", partial(Log, lock_timeout=0.01))
    with Log(log, exclusive=True):
        answer = ask("append", log, stdin=b"x\n")

    assert answer.code == ExitCode.LOCKED


def test_the_system_refusing_is_a_storage_error(tmp_path: Path) -> None:
    """What is no directory cannot be a log, and that is no traceback."""
    (tmp_path / "file").write_bytes(b"")
    answer = ask("append", tmp_path / "file", stdin=b"x\n")

    assert answer.code == ExitCode.STORAGE
    assert answer.err.count("\n") == 1


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    """A name with a newline, tab or escape in it is spelled out."""
    fill(tmp_path / "a\tb\n\x1b[2J", b"x")
    answer = ask("ls", tmp_path)

    assert len(answer.lines) == 1
    assert answer.fields[0][0] == f"{tmp_path}/a\\tb\\n\\x1b[2J"


def test_every_error_has_an_exit_code() -> None:
    """Whatever Segue raises is no success, no damage found by verify, and has a meaning."""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.SegueError)
    ]
    codes = {class_: exit_code_of(class_.__new__(class_)) for class_ in classes}

    assert set(codes.values()) <= set(MEANINGS) - {ExitCode.OK, ExitCode.DAMAGE_FOUND}
    assert codes[errors.RecordTooLarge] is ExitCode.USAGE
    assert codes[errors.OffsetTrimmed] is ExitCode.NOT_FOUND
    assert codes[errors.CorruptSegment] is ExitCode.DAMAGE_MET
    assert codes[errors.StorageFull] is ExitCode.STORAGE


def test_help_names_every_exit_code_and_shows_examples() -> None:
    """Help is complete without the documentation at hand."""
    general = ask("--help").out.decode()

    assert all(f"{code:>5}  {meaning}" in general for code, meaning in MEANINGS.items())
    assert ask().out.decode() == general
    for verb in ("ls", "info", "append", "cat", "tail", "verify", "repair", "bench"):
        answer = ask(verb, "--help").out.decode()
        assert f"\n    segue {verb} " in answer or f"| segue {verb} " in answer
        assert "--json" in answer


def test_version_is_that_of_the_package() -> None:
    """`--version` and `segue.__version__` agree."""
    assert ask("--version").out == f"segue {__version__}\n".encode()


def _make_newer(path: Path) -> None:
    """Turn a segment into one of a format that does not exist yet, checksums and all."""
    from zlib import crc32

    with path.open("r+b") as file:
        for position in (0, 2048):
            file.seek(position)
            body = bytearray(file.read(56))
            body[8] += 1
            file.seek(position)
            file.write(body + crc32(body).to_bytes(4, "little"))
