"""Tools that run the tests often or at length: what they read, and what they report."""

import json
from pathlib import Path

import pytest

from tools import test_often as often
from tools import torture
from tools.junit import Case, read_cases

RESULTS = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite>
<properties>
  <property name="hypothesis-statistics-tests/a.py::test_law"
            value="LSA2MCBwYXNzaW5nLCAyIGZhaWxpbmcsIGFuZCAwIGludmFsaWQgdGVzdCBjYXNlcw==" />
</properties>
<testcase file="tests/a.py" name="test_law" time="2.5"/>
<testcase file="tests/a.py" name="test_kill[os]" time="1.5">
  <properties><property name="tries" value="300"/></properties>
  <failure message="lost">trace</failure>
</testcase>
<testcase file="tests/a.py" name="test_plain" time="0.1"/>
</testsuite></testsuites>
"""


def test_results_have_failures_times_and_tries(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(RESULTS, encoding="utf-8")

    assert read_cases(results) == [
        Case(id="tests/a.py::test_law", seconds=2.5, has_failed=False, tries=62),
        Case(id="tests/a.py::test_kill[os]", seconds=1.5, has_failed=True, tries=300),
        Case(id="tests/a.py::test_plain", seconds=0.1, has_failed=False, tries=1),
    ]
    assert read_cases(tmp_path / "missing.xml") == []


def test_every_test_file_is_in_one_part_of_the_torture() -> None:
    files = [file for part in torture.PARTS for file in torture.files_of(part)]

    assert sorted(files) == sorted(Path("tests").rglob("test_*.py"))
    assert all(torture.files_of(part) for part in torture.PARTS)


def test_torture_prints_the_command_that_repeats_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = tmp_path / "failing.xml"
    failing.write_text(RESULTS, encoding="utf-8")
    outcome = torture.Outcome(
        part="rules", seed=77, seconds=61, exit_code=1, cases=read_cases(failing)
    )
    monkeypatch.setattr(torture, "_run", lambda part, seed, workers: outcome)
    monkeypatch.setattr(torture, "DIRECTORY", tmp_path)

    assert torture.main(["rules", "--seed", "77"]) == 1
    shown = capsys.readouterr().out
    assert "363" in shown  # 62 + 300 + 1 tries.
    assert (
        "repeat: SEGUE_TORTURE=1 SEGUE_SEED=77 .venv/bin/python -m pytest "
        "--hypothesis-seed=77 'tests/a.py::test_kill[os]'"
    ) in shown


def test_an_interrupted_series_continues_after_its_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(often, "DIRECTORY", tmp_path / "often")
    begun: list[tuple[int, bool]] = []

    def run(number: int, is_loaded: bool, pytest_args: str) -> often.Run:
        if len(begun) == 2:
            raise KeyboardInterrupt
        begun.append((number, is_loaded))
        made = often.Run(number=number, is_loaded=is_loaded, seconds=60.0, exit_code=0)
        made.results.write_text(RESULTS, encoding="utf-8")
        return made

    monkeypatch.setattr(often, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        often.main(["--idle", "2", "--loaded", "1"])
    stored = json.loads((tmp_path / "often" / "series.json").read_text())
    assert [each["number"] for each in stored["runs"]] == [1, 2]
    begun.clear()

    assert often.main(["--idle", "2", "--loaded", "1"]) == 0
    assert begun == [(3, True)]
    shown = capsys.readouterr().out
    assert "test_kill[os]" in shown
    assert "1, 2, 3" in shown
