"""`segue ring`: bounded buffers from the shell."""

import json
from pathlib import Path

import pytest

from segue.cli.exits import ExitCode
from tests.integration.cli_support import Answer, ask


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a ring "bus" for four entries."""
    path = tmp_path / "data"
    made = ask("ring", "create", path, "bus", "--capacity", "4", "--entries-per-segment", "2")
    assert made.lines == ["ring\tbus", "capacity\t4", "entries_per_segment\t2"]
    return path


def enqueue(store: Path, *words: str) -> Answer:
    return ask("ring", "enqueue", store, "bus", *words)


def test_entries_come_out_in_the_order_they_went_in(store: Path) -> None:
    """Each enqueue prints the offset, each dequeue the entry."""
    offsets = enqueue(store, "one").lines + enqueue(store, "two", "three").lines
    one = ask("ring", "dequeue", store, "bus")
    rest = ask("ring", "dequeue", store, "bus", "-n", "5", "--offsets")
    empty = ask("ring", "dequeue", store, "bus")

    assert offsets == ["0", "1", "2"]
    assert (one.lines, rest.lines) == (["one"], ["1\ttwo", "2\tthree"])
    assert (empty.code, empty.out) == (ExitCode.EMPTY, b"")


def test_a_full_ring_refuses_or_lets_the_oldest_make_way(store: Path) -> None:
    """Several entries at once are all in or none."""
    enqueue(store, "a", "b", "c")
    full = enqueue(store, "d", "e")
    count = ask("ring", "info", store, "bus", "--json").json["count"]
    overwritten = enqueue(store, "d", "e", "--overwrite-if-full")

    assert (full.code, count) == (ExitCode.FULL, 3)
    assert overwritten.lines == ["3", "4"]
    assert ask("ring", "get", store, "bus", "0").code == ExitCode.NOT_FOUND
    assert ask("ring", "get", store, "bus", "1").lines == ["b"]


def test_info_speaks_both_spellings(store: Path) -> None:
    """Ours, and the ancestor's."""
    enqueue(store, "a")
    info = ask("ring", "info", store, "bus", "--json").json

    assert info["head_offset"] == info["head-offset"] == 0
    assert info["tail_offset"] == info["tail-offset"] == 1
    assert info["capacity"] == info["max-size"] == 4
    assert info["groups"] == [{"group": "default", "head_offset": 0, "waiting": 1}]


def test_the_outcome_of_a_transaction_can_be_looked_up(store: Path) -> None:
    """Which offsets it added and took; 3 if it is not known to have committed."""
    enqueue(store, "a", "b", "--txn", "t1")
    ask("ring", "dequeue", store, "bus", "--txn", "t2")
    added = ask("ring", "outcome", store, "bus", "t1")
    taken = ask("ring", "outcome", store, "bus", "t2", "--json").json

    assert ["enqueued", "-", "0", "1"] in added.fields
    assert taken["dequeued"] == [{"group": "default", "first_offset": 0, "last_offset": 0}]
    assert ask("ring", "outcome", store, "bus", "t3").code == ExitCode.NOT_FOUND


def test_groups_take_each_on_their_own(store: Path) -> None:
    """One that begins at the tail sees only what comes."""
    enqueue(store, "a")
    added = ask("ring", "groups", store, "bus", "--add", "audit", "--from", "tail")
    enqueue(store, "b")
    audited = ask("ring", "dequeue", store, "bus", "--group", "audit")
    removed = ask("ring", "groups", store, "bus", "--remove", "audit")

    assert added.fields == [["group", "audit", "1", "0"], ["group", "default", "0", "1"]]
    assert audited.lines == ["b"]
    assert removed.fields == [["group", "default", "0", "2"]]
    assert ask("ring", "groups", store, "bus", "--remove", "x").code == ExitCode.NOT_FOUND


def test_a_ring_is_made_once_and_never_by_mistake(store: Path) -> None:
    """Making it again is an error unless that is meant."""
    again: list[str | Path] = [
        "ring",
        "create",
        store,
        "bus",
        "--capacity",
        "4",
        "--entries-per-segment",
        "2",
    ]

    assert ask(*again).code == ExitCode.USAGE
    assert ask(*again, "--exist-ok").code == 0
    assert ask("ring", "create", store, "x", "--capacity", "0").code == ExitCode.USAGE
    for words in (
        ["enqueue", "a"],
        ["dequeue"],
        ["get", "0"],
        ["info"],
        ["outcome", "1"],
        ["groups"],
    ):
        verb, *others = words
        missing = ask("ring", verb, store, "typo", *others)
        assert (missing.code, missing.err) == (ExitCode.NOT_FOUND, "segue: there is no ring typo\n")
    assert [line[0] for line in ask("ring", "ls", store).fields] == ["bus"]


def test_entries_may_be_any_bytes(store: Path) -> None:
    """From standard input, to a pipe or as JSON."""
    body = b"\xff\n"
    ask("ring", "enqueue", store, "bus", "-", stdin=body)
    shown = ask("ring", "get", store, "bus", "0", "--json")

    assert ask("ring", "get", store, "bus", "0", "--null").out == body + b"\0"
    assert json.loads(shown.out)["body_base64"] == "/wo="
