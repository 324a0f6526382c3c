"""`segue topic` as the shell runs it: pipes, signals, terminals and several processes."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import segue
from segue.cli.exits import ExitCode
from tests.integration.cli_support import (
    COMMAND,
    ask,
    on_a_terminal,
    pipe,
    started,
)
from tests.waiting import LIMIT_SECONDS, wait_until

BINARY = bytes(range(256))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a topic "orders" of four partitions."""
    path = tmp_path / "data"
    assert ask("topic", "create", path, "orders", "--partitions", "4").code == 0
    return path


def append(store: Path, stdin: bytes, *words: str) -> None:
    assert ask("topic", "append", store, "orders", *words, stdin=stdin).code == 0


def test_a_topic_is_copied_by_a_pipeline(store: Path) -> None:
    """Any bytes, keys, headers and tombstones, from one process to another."""
    with segue.open(store) as opened:
        topic = opened.topic("orders")
        for number in range(100):
            topic.append(BINARY, key=b"%d\xff" % number, headers={"n": "\n"}, timestamp=number)
            topic.append(None, key=b"%d\xff" % number)
    shell = (
        '"$0" -m segue topic cat "$1" orders --json'
        ' | "$0" -m segue topic append "$1" copy --format json --repartition'
    )
    copied = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell, sys.executable, store],
        check=False,
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )

    assert (copied.returncode, copied.stderr) == (0, b"")
    with segue.open(store) as opened:
        copies = [record[2:] for record in opened.topic("copy").records()]
        originals = [record[2:] for record in opened.topic("orders").records()]
    assert sorted(copies, key=str) == sorted(originals, key=str)


def test_tail_follows_producers_in_other_processes(store: Path) -> None:
    """Records come out as they are appended elsewhere, whatever their partition."""
    append(store, b"before\n")
    with started("topic", "tail", store, "orders", "-f", "--limit", "5") as tail:
        first = pipe(tail.stdout).readline()
        append(store, b"a:1\nb:2\n", "-K", ":")
        two = sorted([pipe(tail.stdout).readline(), pipe(tail.stdout).readline()])
        append(store, b"3\n4\n5\n", "-p", "0")
        rest, err = tail.communicate(timeout=LIMIT_SECONDS)

    assert (first, two, rest, err) == (b"before\n", [b"1\n", b"2\n"], b"3\n4\n", b"")
    assert tail.returncode == 0


def test_tail_follows_partitions_that_are_added(store: Path) -> None:
    """Nobody has to start again."""
    with started("topic", "tail", store, "orders", "--limit", "2") as tail:
        append(store, b"one\n", "-p", "0")
        assert pipe(tail.stdout).readline() == b"one\n"
        grown = ask("topic", "create", store, "orders", "--partitions", "6", "--grow")
        append(store, b"two\n", "-p", "5")
        rest, err = tail.communicate(timeout=LIMIT_SECONDS)

    assert (grown.code, rest, err) == (0, b"two\n", b"")


@pytest.mark.parametrize("words", [[], ["--reader", "audit"], ["--group", "billing"]])
def test_ctrl_c_ends_tail_quietly_and_nothing_is_lost(store: Path, words: list[str]) -> None:
    """What was printed is committed, what was not comes the next time."""
    append(store, b"one\n", "-p", "0")
    with started("topic", "tail", store, "orders", *words) as tail:
        printed = pipe(tail.stdout).readline()
        _wait_for_commit(store, words)
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=LIMIT_SECONDS)
    append(store, b"two\n", "-p", "0")
    again = ask("topic", "tail", store, "orders", "--no-follow", *words)

    assert (printed, out, err, tail.returncode) == (b"one\n", b"", b"", ExitCode.INTERRUPTED)
    assert again.lines == (["two"] if words else ["one", "two"])
    assert ask("topic", "groups", store, "orders", "--json").json["members"] == []


def _wait_for_commit(store: Path, words: list[str]) -> None:
    if words:
        wait_until(lambda: ask("topic", "lag", store, "orders", "--max-records", "0").code == 0)


@pytest.mark.parametrize("verb", ["cat", "tail"])
def test_a_closed_pipe_ends_it_quietly(store: Path, verb: str) -> None:
    """`| head -1` leaves no traceback, no complaint, and does not linger."""
    append(store, b"x\n" * 50_000)
    with started("topic", verb, store, "orders") as process:
        stdout = pipe(process.stdout)
        line = stdout.readline()
        stdout.close()
        err = pipe(process.stderr).read()
        code = process.wait(LIMIT_SECONDS)

    assert (line, err, code) == (b"x\n", b"", ExitCode.PIPE_CLOSED)


def test_ctrl_c_during_append_still_tells_what_was_appended(store: Path) -> None:
    """What is printed is there, and stays."""
    with started("topic", "append", store, "orders", "-p", "1") as process:
        stdin = pipe(process.stdin)
        stdin.write(b"one\n")
        stdin.flush()
        with segue.open(store) as opened:
            assert next(opened.topic("orders").follow("earliest", timeout=LIMIT_SECONDS))
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_SECONDS)  # Its input stays open: the end of it must not overtake Ctrl-C.
        out, err = process.communicate(timeout=LIMIT_SECONDS)

    assert (out, err) == (b"appended\t1\nskipped\t0\npartition\t1\t0\t0\t1\n", b"")
    assert process.returncode == ExitCode.INTERRUPTED


def test_two_tails_of_a_group_share_the_partitions(store: Path) -> None:
    """Each record is printed by one of them; when one ends, the other has all."""
    words = ("topic", "tail", store, "orders", "--group", "billing", "--json")
    with started(*words) as one, started(*words) as two:
        _wait_for_shares(store, [2, 2])
        append(store, b"".join(b"%d\n" % number for number in range(4)), "-p", "0")
        append(store, b"".join(b"%d\n" % number for number in range(4)), "-p", "3")
        _wait_for_commit(store, ["all"])
        one.send_signal(signal.SIGINT)
        first, _ = one.communicate(timeout=LIMIT_SECONDS)
        _wait_for_shares(store, [4])
        append(store, b"last\n", "-p", "0")
        append(store, b"last\n", "-p", "3")
        _wait_for_commit(store, ["all"])
        two.send_signal(signal.SIGINT)
        second, _ = two.communicate(timeout=LIMIT_SECONDS)

    printed = [_places(out) for out in (first, second)]
    assert len(printed[0]) == 4
    assert not printed[0] & printed[1]
    assert printed[0] | printed[1] == {(part, offset) for part in (0, 3) for offset in range(5)}


def _places(out: bytes) -> set[tuple[int, int]]:
    return {(record["partition"], record["offset"]) for record in map(json.loads, out.splitlines())}


def _wait_for_shares(store: Path, sizes: list[int]) -> None:
    def is_shared() -> bool:
        members = ask("topic", "groups", store, "orders", "--json").json_rows["members"]
        found = [str(member["partitions"]).count(",") + 1 for member in members]
        return sorted(found) == sizes and all(member["partitions"] for member in members)

    wait_until(is_shared, f"partitions are shared as {sizes}")


def test_an_import_that_was_killed_is_finished_by_running_it_again(
    store: Path,
) -> None:
    """With --producer, at whatever line it was, nothing is missing and nothing is there twice."""
    lines = [b"key %d:%d" % (number % 50, number) for number in range(4_000)]
    words = ("topic", "append", store, "orders", "-K", ":", "--producer", "import")
    process = subprocess.Popen(
        [*COMMAND, *words, "--batch", "100"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    with process, segue.open(store) as opened:
        stdin = pipe(process.stdin)
        stdin.write(b"\n".join(lines[:2_000]))
        stdin.flush()
        next(opened.topic("orders").follow("earliest", timeout=LIMIT_SECONDS))
        process.kill()
    again = ask(*words, "--sync", "os", stdin=b"\n".join(lines))
    printed = ask("topic", "cat", store, "orders").lines

    assert again.code == 0
    assert 0 < int(again.fields[1][1]) < len(lines)
    assert sorted(map(int, printed)) == list(range(len(lines)))


def test_long_work_shows_how_far_it_is(store: Path, tmp_path: Path) -> None:
    """On standard error, if that is a terminal."""
    (tmp_path / "lines").write_bytes(b"k:v\n" * 1000)
    shown = on_a_terminal("topic", "compact", store, "orders", "--roll")
    terminal, process_side = pty.openpty()
    with (tmp_path / "lines").open("rb") as stdin:
        subprocess.run(
            [*COMMAND, "topic", "append", store, "orders", "-K", ":"],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=process_side,
            env={**os.environ, "TERM": "xterm-256color"},
            check=True,
            timeout=LIMIT_SECONDS,
        )
    os.close(process_side)
    bar = os.read(terminal, 65536)
    os.close(terminal)

    assert "compacting orders" in shown
    assert b"appending" in bar
