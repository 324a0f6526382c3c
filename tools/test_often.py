"""Run `make test` many times, idle and under load, and report what failed and what was slow.

    python -m tools.test_often --idle 3 --loaded 3

A series belongs to a commit. Started again for the same commit, it makes the runs that are still
missing; `--new` begins a new series, and so do uncommitted changes. Logs and results are in
build/test-often.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tools.junit import Case, minutes, read_cases

DIRECTORY: Final = Path("build/test-often")
SLOWEST: Final = 15
REPORT_COLUMNS: Final = 140
BUSY_LOOP: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished `make test`."""

    number: int
    is_loaded: bool
    seconds: float
    exit_code: int

    @property
    def log(self) -> Path:
        return DIRECTORY / f"run-{self.number:02d}.log"

    @property
    def results(self) -> Path:
        return DIRECTORY / f"run-{self.number:02d}.xml"

    def cases(self) -> list[Case]:
        return read_cases(self.results)

    @property
    def is_green(self) -> bool:
        """Whether tests ran and all passed. A skipped test makes a run red."""
        cases = self.cases()
        return self.exit_code == 0 and bool(cases) and not any(case.is_skipped for case in cases)


@dataclass(slots=True, kw_only=True)
class Series:
    """The runs of one commit that have ended so far."""

    commit: str
    runs: list[Run] = field(default_factory=list)

    def save(self) -> None:
        """Write the series to disk, so that it can be continued."""
        temporary = DIRECTORY / "series.json.new"
        temporary.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        temporary.replace(DIRECTORY / "series.json")


def main(arguments: list[str] | None = None) -> int:
    """Run or continue a series; return 0 if every run was green."""
    parser = argparse.ArgumentParser(prog="tools.test_often", description=__doc__.split("\n")[0])
    parser.add_argument("--idle", type=int, default=3, help="Runs on an idle machine (default 3).")
    parser.add_argument("--loaded", type=int, default=3, help="Runs beside a load (default 3).")
    parser.add_argument("--new", action="store_true", help="Begin a new series.")
    parser.add_argument("--report", action="store_true", help="Only print the tables.")
    parser.add_argument("--pytest-args", default="", help="Arguments for pytest.")
    options = parser.parse_args(arguments)

    console = Console(markup=False, highlight=False, width=REPORT_COLUMNS)
    stored = _stored_series()
    if options.report and stored is None:
        parser.error(f"there is no series in {DIRECTORY}")
    series = stored if options.report and stored else _open_series(stored, is_new=options.new)
    missing = _missing(series, idle=options.idle, loaded=options.loaded)
    for is_loaded in [] if options.report else missing:
        number = len(series.runs) + 1
        console.print(f"run {number}, {_load_name(is_loaded)}, {series.commit}")
        series.runs.append(_run(number, is_loaded, options.pytest_args))
        series.save()
        console.print(f"  {_result(series.runs[-1])} in {minutes(series.runs[-1].seconds)}")
    _report(series, console)
    for is_loaded in _missing(series, idle=options.idle, loaded=options.loaded):
        console.print(f"not run yet: one run, {_load_name(is_loaded)}")
    is_complete = not _missing(series, idle=options.idle, loaded=options.loaded)
    return int(not is_complete or not all(run.is_green for run in series.runs))


def _missing(series: Series, *, idle: int, loaded: int) -> list[bool]:
    """Return the runs that the series still lacks, idle ones first: whether each has a load."""
    done = [run.is_loaded for run in series.runs]
    return [False] * (idle - done.count(False)) + [True] * (loaded - done.count(True))


def _stored_series() -> Series | None:
    """Return the series on disk, of whatever commit, or None if there is none."""
    file = DIRECTORY / "series.json"
    if not file.exists():
        return None
    stored = json.loads(file.read_text(encoding="utf-8"))
    return Series(commit=stored["commit"], runs=[Run(**run) for run in stored["runs"]])


def _open_series(stored: Series | None, *, is_new: bool) -> Series:
    """Return the stored series if it belongs to the checked-out commit, else begin a new one."""
    commit = _commit()
    is_current = stored is not None and stored.commit == commit and not commit.endswith("-dirty")
    if stored is not None and is_current and not is_new:
        return stored
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    return Series(commit=commit)


def _commit() -> str:
    described = ["git", "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]
    return subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()


def _run(number: int, is_loaded: bool, pytest_args: str) -> Run:
    """Run `make test` once, its output in a file."""
    run = Run(number=number, is_loaded=is_loaded, seconds=0.0, exit_code=0)
    run.results.unlink(missing_ok=True)
    started = time.monotonic()
    with run.log.open("wb") as log, _load(is_loaded):
        words = f"PYTEST_ARGS=-q --junitxml={run.results} {pytest_args}"
        done = subprocess.run(
            ["make", "--no-print-directory", "test", words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    seconds = time.monotonic() - started
    return Run(number=number, is_loaded=is_loaded, seconds=seconds, exit_code=done.returncode)


@contextmanager
def _load(is_loaded: bool) -> Iterator[None]:
    """Keep every core busy, at normal priority."""
    count = (os.cpu_count() or 1) if is_loaded else 0
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _report(series: Series, console: Console) -> None:
    """Print the runs, the failures by test and the slowest tests."""
    columns = ("run", "load", "result", "tests", "failed", "skipped", "time")
    runs = Table(*columns, title=series.commit)
    failures: dict[str, list[int]] = defaultdict(list)
    durations: dict[str, list[float]] = defaultdict(list)
    for run in series.runs:
        cases = run.cases()
        failed = [case.id for case in cases if case.has_failed]
        for id_ in failed:
            failures[id_].append(run.number)
        for case in cases:
            durations[case.id].append(case.seconds)
        runs.add_row(
            str(run.number),
            _load_name(run.is_loaded),
            _result(run),
            str(len({case.id for case in cases})),
            str(len(failed)),
            str(sum(case.is_skipped for case in cases)),
            minutes(run.seconds),
        )
    console.print(runs)

    if failures:
        table = Table("failed test", "in runs")
        for id_, numbers in sorted(failures.items(), key=lambda each: -len(each[1])):
            table.add_row(id_, ", ".join(map(str, numbers)))
        console.print(table)
    medians = {id_: statistics.median(each) for id_, each in durations.items()}
    table = Table("slowest tests", "median s", "max s")
    for id_ in sorted(medians, key=lambda id_: -medians[id_])[:SLOWEST]:
        table.add_row(id_, f"{medians[id_]:.1f}", f"{max(durations[id_]):.1f}")
    console.print(table)


def _load_name(is_loaded: bool) -> str:
    return "loaded" if is_loaded else "idle"


def _result(run: Run) -> str:
    return "green" if run.is_green else f"RED, see {run.log}"


if __name__ == "__main__":
    sys.exit(main())
