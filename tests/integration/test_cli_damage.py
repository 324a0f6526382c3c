"""Verify and repair, on logs whose bytes were changed behind Segue's back."""

from pathlib import Path

import pytest

from segue import Log
from segue.cli.exits import ExitCode
from tests.integration.cli_support import ask, fill, flip_byte, snapshot

SEGMENT = "000000000.q"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log of three records whose second one is damaged."""
    path = fill(tmp_path / "log", b"one", b"two", b"three")
    flip_byte(path / SEGMENT, b"two")
    return path


def test_verify_counts_what_is_intact(tmp_path: Path) -> None:
    """Several logs are checked at once; each has its line."""
    one = fill(tmp_path / "one", b"a")
    two = fill(tmp_path / "two", b"bb", b"cc")
    answer = ask("verify", one, two)

    assert answer.code == 0
    assert answer.fields == [
        ["log", str(one), "intact", "1", "0", "1", "0", "1"],
        ["log", str(two), "intact", "2", "0", "1", "0", "4"],
    ]


def test_verify_finds_one_flipped_byte(tmp_path: Path, damaged: Path) -> None:
    """It says in which file, which offsets are lost, and exits with 1; other logs stay intact."""
    intact = fill(tmp_path / "intact", b"x")
    answer = ask("verify", intact, damaged)

    assert answer.code == ExitCode.DAMAGE_FOUND
    assert [line[2] for line in answer.fields[:2]] == ["intact", "damaged"]
    assert answer.fields[2][:4] == ["damage", str(damaged / SEGMENT), "1", "1"]


def test_verify_as_json_has_the_same_findings(damaged: Path) -> None:
    """Programs get what people get, with names."""
    answer = ask("verify", damaged, "--json")

    [log] = answer.json_rows["logs"]
    [damage] = answer.json_rows["damage"]
    assert (log["state"], log["records"]) == ("damaged", 2)
    assert (damage["first_offset"], damage["last_offset"]) == (1, 1)


def test_verify_finds_every_damaged_reader(tmp_path: Path) -> None:
    """Positions are checked one by one: a damaged one hides no other."""
    path = fill(tmp_path / "log", b"x")
    for name in ("a", "b", "c"):
        ask("tail", path, "--reader", name, "--no-follow")
    for name in ("a", "c"):
        (path / "readers" / f"{name}.meta").write_bytes(b"?")
    answer = ask("verify", path)

    found = [Path(line[1]).name for line in answer.fields if line[0] == "damage"]
    assert (answer.code, found) == (ExitCode.DAMAGE_FOUND, ["a.meta", "c.meta"])


def test_verify_finds_a_segment_without_a_header(tmp_path: Path) -> None:
    """Damage that costs a whole segment is reported like any other."""
    path = _three_segments(tmp_path / "log")
    (path / "000000001.q").write_bytes(b"\0" * 8192)
    answer = ask("verify", path)

    problems = [line[-1] for line in answer.fields if line[0] == "damage"]
    assert answer.code == ExitCode.DAMAGE_FOUND
    assert "no valid segment header" in problems


def test_verify_checks_nothing_if_one_log_is_missing(tmp_path: Path) -> None:
    """A misspelt name is not found out after an hour of checking."""
    path = fill(tmp_path / "log", b"x")
    answer = ask("verify", path, tmp_path / "missing")

    assert (answer.code, answer.out) == (ExitCode.NOT_FOUND, b"")


def test_repair_without_a_terminal_needs_a_yes(damaged: Path) -> None:
    """Nothing is changed that nobody agreed to."""
    before = snapshot(damaged)
    answer = ask("repair", damaged, stdin=b"y\n")

    assert (answer.code, answer.out) == (ExitCode.USAGE, b"")
    assert "--yes" in answer.err
    assert snapshot(damaged) == before


def test_a_dry_run_shows_what_would_be_done(damaged: Path) -> None:
    """It says what is damaged and what would become of it, and does nothing."""
    before = snapshot(damaged)
    answer = ask("repair", damaged, "--dry-run", "--yes")

    assert answer.code == ExitCode.DAMAGE_FOUND
    assert answer.fields[0][:4] == ["damage", str(damaged / SEGMENT), "1", "1"]
    assert answer.fields[-1] == ["state", "damaged"]
    assert snapshot(damaged) == before


def test_a_repaired_log_reads_past_what_was_damaged(damaged: Path) -> None:
    """Intact records keep their offsets, and the damaged file is kept where the answer says."""
    answer = ask("repair", damaged, "--yes")

    assert answer.code == 0
    assert ["removed_records", "1"] in answer.fields
    assert answer.fields[-1] == ["state", "intact"]
    [kept] = [Path(line[1]) for line in answer.fields if line[0] == "quarantined"]
    assert kept.is_file()
    assert ask("cat", damaged, "--offsets").out == b"0\tone\n2\tthree\n"
    assert ask("verify", damaged).code == 0
    assert [str(kept)] in [line[1:2] for line in ask("info", damaged).fields]


def test_repair_as_json_tells_everything_in_one_object(damaged: Path) -> None:
    """Findings, deeds and outcome, in that order of happening."""
    (damaged / "readers").mkdir()
    (damaged / "readers" / "worker.meta").write_bytes(b"?")
    answer = ask("repair", damaged, "--yes", "--json")

    assert (answer.code, answer.json["state"], answer.json["removed_records"]) == (0, "intact", 1)
    assert len(answer.json_rows["damage"]) == 2
    assert len(answer.json_rows["quarantined"]) == 2
    assert answer.json_rows["readers"] == [{"name": "worker"}]


def test_a_missing_segment_becomes_removed_records(tmp_path: Path) -> None:
    """Reading goes on past a segment that cannot be read at all."""
    path = _three_segments(tmp_path / "log")
    (path / "000000001.q").write_bytes(b"\0" * 8192)
    answer = ask("repair", path, "--yes")

    assert answer.code == 0
    assert ask("cat", path, "--offsets").out == b"0\ta\n2\tc\n"


def test_repair_leaves_an_intact_log_alone(tmp_path: Path) -> None:
    """Nothing is rolled, rewritten or set aside without a reason."""
    path = fill(tmp_path / "log", b"x")
    before = snapshot(path)
    answer = ask("repair", path, "--yes")

    assert (answer.code, answer.out) == (0, b"state\tintact\n")
    assert snapshot(path) == before


def _three_segments(path: Path) -> Path:
    with Log(path) as log:
        for payload in (b"a", b"b", b"c"):
            log.append(payload)
            log.roll()
    return path
