"""The command line as the shell runs it: pipes, signals, terminals and other processes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segue import Log
from segue.cli.exits import ExitCode
from tests.integration.cli_support import (
    COMMAND,
    ask,
    fill,
    flip_byte,
    on_a_terminal,
    pipe,
    started,
)
from tests.waiting import LIMIT_SECONDS


def test_a_pipeline_of_appends_and_cats_copies_a_log(tmp_path: Path) -> None:
    """Any bytes but the separator go through a pipe unchanged."""
    payloads = [bytes(range(1, 256)), b"", b"line\nline", "ß".encode() * 1000]
    source = fill(tmp_path / "source", *payloads)
    shell = '"$0" -m segue cat "$1" --null | "$0" -m segue append "$2" --null'
    copied = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell, sys.executable, source, tmp_path / "target"],
        check=False,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )

    assert (copied.returncode, copied.stderr) == (0, b"")
    with Log(tmp_path / "target", read_only=True) as log:
        assert [record.payload for record in log.records()] == payloads


def test_lines_of_a_slow_producer_arrive_while_it_pauses(tmp_path: Path) -> None:
    """A line is readable although its batch is not full and the pipe stays open."""
    path = tmp_path / "log"
    Log(path).close()
    with started("append", path) as append, Log(path, read_only=True) as log:
        arriving = log.follow("earliest", timeout=LIMIT_SECONDS)
        stdin = pipe(append.stdin)
        seen = []
        for line in (b"one\n", b"two\nthr", b"ee\n"):
            stdin.write(line)
            stdin.flush()
            seen.append(next(arriving).payload)
        out, _ = append.communicate(b"last", timeout=LIMIT_SECONDS)

        assert seen == [b"one", b"two", b"three"]
        assert (append.returncode, out) == (0, b"0\t3\t4\n")


def test_tail_follows_an_appender_in_another_process(tmp_path: Path) -> None:
    """Records come out as they are appended elsewhere, until the limit."""
    path = fill(tmp_path / "log", b"before")
    with started("tail", path, "--limit", "3") as tail:
        first = pipe(tail.stdout).readline()
        assert ask("append", path, stdin=b"one\ntwo\nthree\n").code == 0
        rest, err = tail.communicate(timeout=LIMIT_SECONDS)

    assert (first, rest, err) == (b"before\n", b"one\ntwo\n", b"")
    assert tail.returncode == 0


def test_a_closed_pipe_ends_cat_quietly(tmp_path: Path) -> None:
    """`segue cat | head` leaves no traceback and no complaint."""
    path = tmp_path / "log"
    with Log(path, sync="os") as log:
        log.append_many([b"x" * 100] * 20_000)
    with started("cat", path) as cat:
        stdout = pipe(cat.stdout)
        line = stdout.readline()
        stdout.close()
        err = pipe(cat.stderr).read()
        code = cat.wait(LIMIT_SECONDS)

    assert (line, err, code) == (b"x" * 100 + b"\n", b"", ExitCode.PIPE_CLOSED)


def test_a_closed_pipe_ends_tail_although_nothing_comes(tmp_path: Path) -> None:
    """`segue tail | head -1` does not linger until the next record."""
    with started("tail", fill(tmp_path / "log", b"only")) as tail:
        stdout = pipe(tail.stdout)
        line = stdout.readline()
        stdout.close()
        err = pipe(tail.stderr).read()
        code = tail.wait(LIMIT_SECONDS)

    assert (line, err, code) == (b"only\n", b"", ExitCode.PIPE_CLOSED)


def test_ctrl_c_ends_tail_quietly(tmp_path: Path) -> None:
    """Interrupting is the usual end of a tail: no traceback, exit code 130."""
    with started("tail", fill(tmp_path / "log", b"only")) as tail:
        pipe(tail.stdout).readline()
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=LIMIT_SECONDS)

    assert (out, err, tail.returncode) == (b"", b"", ExitCode.INTERRUPTED)


def test_ctrl_c_during_append_still_tells_what_was_appended(tmp_path: Path) -> None:
    """The offsets printed are those of records that stay."""
    path = tmp_path / "log"
    Log(path).close()
    with started("append", path) as append, Log(path, read_only=True) as log:
        stdin = pipe(append.stdin)
        stdin.write(b"one\n")
        stdin.flush()
        assert log.wait(0, timeout=LIMIT_SECONDS)
        append.send_signal(signal.SIGINT)
        append.wait(LIMIT_SECONDS)  # Its input stays open: the end of it must not overtake Ctrl-C.
        out, err = append.communicate()

    assert (out, err, append.returncode) == (b"0\t0\t1\n", b"", ExitCode.INTERRUPTED)


def test_output_that_cannot_be_written_is_one_line_of_error(tmp_path: Path) -> None:
    """A full disk on the other side is an error, not a traceback at exit."""
    path = fill(tmp_path / "log", b"x")
    with Path("/dev/full").open("wb") as full:
        cat = subprocess.run(
            [*COMMAND, "cat", path], check=False, stdout=full, stderr=subprocess.PIPE
        )

    assert cat.returncode == ExitCode.STORAGE
    assert cat.stderr == b"segue: No space left on device\n"


def test_streams_that_were_closed_before_are_no_traceback(tmp_path: Path) -> None:
    """No input is empty input; no output is an error, before anything is committed to it."""
    path = fill(tmp_path / "log", b"x")
    shell = '"$0" -m segue {} "$1" {}'

    def run(verb: str, closed: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", "-c", shell.format(verb, closed), sys.executable, path],
            check=False,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )

    append, cat, missing = run("append", "<&-"), run("cat", ">&-"), run("cat", "x 2>&-")

    assert (append.returncode, append.stdout, append.stderr) == (0, b"", b"")
    assert (cat.returncode, cat.stderr) == (ExitCode.STORAGE, b"segue: standard output is closed\n")
    assert (missing.returncode, missing.stdout) == (ExitCode.USAGE, b"")


def test_a_terminal_gets_a_table(tmp_path: Path) -> None:
    """People see headings and rounded sizes, not tabs and bytes."""
    shown = on_a_terminal("ls", fill(tmp_path / "log", b"x" * 5_000))

    assert "next offset" in shown
    assert "KiB" in shown
    assert "\t" not in shown
    assert "\x1b[" in shown


def test_a_narrow_terminal_cuts_nothing(tmp_path: Path) -> None:
    """Long names are folded, never shortened."""
    path = fill(tmp_path / ("long-name-" * 12), b"x")
    shown = on_a_terminal("ls", path)

    assert "…" not in shown
    squeezed = "".join(line.split(" ")[1] for line in shown.splitlines() if line.startswith(" "))
    assert "long-name-" * 12 in squeezed


def test_verifyon_a_terminal_shows_damage_and_its_progress(tmp_path: Path) -> None:
    """The bar goes to standard error and the findings stay."""
    path = fill(tmp_path / "log", b"one", b"two")
    flip_byte(path / "000000000.q", b"two")
    shown = on_a_terminal("verify", path)

    assert "checking" in shown
    assert "checksum" in shown
    assert "damaged" in shown


@pytest.mark.parametrize(("said", "state"), [("y", "intact"), ("n", "damaged")])
def test_repair_askson_a_terminal(tmp_path: Path, said: str, state: str) -> None:
    """Only a yes changes anything."""
    path = fill(tmp_path / "log", b"one", b"two")
    flip_byte(path / "000000000.q", b"two")
    shown = on_a_terminal("repair", path, typed=said + "\n")

    assert "Repair? [y/N]" in shown
    assert ask("verify", path).fields[0][2] == state


def test_bench_measures_and_cleans_up(tmp_path: Path) -> None:
    """Every mode has its rows, the conditions are named and nothing is left behind."""
    answer = ask("bench", tmp_path, "--seconds", "0.01", "--payload-bytes", "100")

    assert answer.code == 0
    results = [line[1:3] for line in answer.fields if line[0] == "result"]
    assert results[:6] == [
        [what, sync] for sync in ("always", "interval", "os") for what in ("append", "batch")
    ]
    assert ["read", "-"] in results
    conditions = {line[0]: line[1] for line in answer.fields}
    assert conditions["payload_bytes"] == "100"
    assert {"python", "file_system", "cpu_count", "fdatasync_per_s"} <= set(conditions)
    assert list(tmp_path.iterdir()) == []


def test_the_library_does_not_load_the_command_line(tmp_path: Path) -> None:
    """`import segue` stays light, and plain output does without rich."""
    script = """
import sys
import segue
assert not {"typer", "rich", "numpy"} & set(sys.modules)
from segue.cli import main
assert main(["ls", sys.argv[1]]) == 0
assert "rich" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, timeout=LIMIT_SECONDS)
