"""Tools that run the tests often or at length: what they read, and what they report."""

import json
from pathlib import Path

import pytest

from tools import test_often as often
from tools import torture
from tools.junit import Case, read_cases

RESULTS = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite>
<testcase file="hypothesis/stateful.py" classname="tests.test_a.TestMachine" name="runTest"
          time="2.5">
  <properties><property name="tries" value="62"/></properties>
</testcase>
<testcase file="tests/test_a.py" classname="tests.test_a" name="test_kill[1.5]" time="1.5">
  <properties><property name="tries" value="300"/></properties>
  <failure message="lost">trace</failure>
</testcase>
<testcase file="tests/test_a.py" classname="tests.test_a" name="test_plain" time="0.1"/>
<testcase classname="" name="tests.test_broken" time="0.0"><error message="no module"/></testcase>
</testsuite></testsuites>
"""


def test_results_have_failures_times_and_tries(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(RESULTS, encoding="utf-8")

    assert read_cases(results) == [
        Case(id="tests/test_a.py::TestMachine::runTest", seconds=2.5, has_failed=False, tries=62),
        Case(id="tests/test_a.py::test_kill[1.5]", seconds=1.5, has_failed=True, tries=300),
        Case(id="tests/test_a.py::test_plain", seconds=0.1, has_failed=False, tries=1),
        Case(id="tests/test_broken.py", seconds=0.0, has_failed=True, tries=1),
    ]


def test_results_that_were_not_written_to_their_end_have_no_tests(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(RESULTS[:200], encoding="utf-8")

    assert read_cases(results) == []
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
    assert "364" in shown  # 62 + 300 + 1 + 1 tries.
    assert (
        "repeat: SEGUE_TORTURE=1 SEGUE_SEED=77 .venv/bin/python -m pytest "
        "--hypothesis-seed=77 'tests/test_a.py::test_kill[1.5]'"
    ) in shown
    assert "repeat: make torture TORTURE_ARGS='rules --seed 77'" in shown


@pytest.fixture
def series_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the series of a commit without local changes."""
    monkeypatch.setattr(often, "DIRECTORY", tmp_path / "often")
    monkeypatch.setattr(often, "_commit", lambda: "0123456789")
    return tmp_path / "often"


def test_an_interrupted_series_continues_after_its_last_run(
    series_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    stored = json.loads((series_path / "series.json").read_text())
    assert [each["number"] for each in stored["runs"]] == [1, 2]
    begun.clear()

    assert often.main(["--idle", "2", "--loaded", "1"]) == 0
    assert begun == [(3, True)]
    shown = capsys.readouterr().out
    assert "test_kill[1.5]" in shown
    assert "1, 2, 3" in shown


@pytest.mark.usefixtures("series_path")
def test_series_is_not_complete_without_its_loaded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(number: int, is_loaded: bool, pytest_args: str) -> often.Run:
        made = often.Run(number=number, is_loaded=is_loaded, seconds=1.0, exit_code=0)
        made.results.write_text(RESULTS, encoding="utf-8")
        return made

    monkeypatch.setattr(often, "_run", run)

    assert often.main(["--idle", "2", "--loaded", "0"]) == 0
    assert often.main(["--idle", "2", "--loaded", "1", "--report"]) == 1
    assert often.main(["--idle", "2", "--loaded", "1"]) == 0


def test_report_keeps_the_series_of_another_commit(
    series_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    series_path.mkdir()
    run = often.Run(number=1, is_loaded=False, seconds=60.0, exit_code=0)
    run.results.write_text(RESULTS, encoding="utf-8")
    often.Series(commit="older", runs=[run]).save()
    monkeypatch.setattr(often, "_commit", lambda: "newer-dirty")

    assert often.main(["--idle", "1", "--loaded", "0", "--report"]) == 0
    assert run.results.exists()
    assert "older" in capsys.readouterr().out


def test_report_of_no_series_is_refused(
    series_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        often.main(["--report"])

    assert f"there is no series in {series_path}" in capsys.readouterr().err


def test_skipped_test_makes_a_run_red(series_path: Path) -> None:
    series_path.mkdir()
    run = often.Run(number=1, is_loaded=False, seconds=1.0, exit_code=0)
    skipped = RESULTS.replace('<failure message="lost">trace</failure>', "<skipped/>")
    run.results.write_text(skipped, encoding="utf-8")

    assert not run.is_green
