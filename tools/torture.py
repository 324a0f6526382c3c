"""Run every test at its full length, part by part, and report what was tried and what failed.

    python -m tools.torture                     all parts, about an hour on two cores
    python -m tools.torture crash-queue spark   only these
    python -m tools.torture --list

Each part has a seed that fixes the random choices of its tests. For each failure the report ends
with the command that repeats it. Logs and results are in build/torture.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tools.junit import Case, minutes, read_cases

DIRECTORY: Final = Path("build/torture")
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "rules": ("tests/property/*", "tests/golden/*"),
    "contract": ("tests/contract/*", "tests/unit/*"),
    "crash-queue": ("tests/crash/test_queue_*", "tests/crash/test_redis_*"),
    "crash-topic": ("tests/crash/test_topic_*",),
    "crash-service": ("tests/crash/test_task_*", "tests/crash/test_server_*"),
    "crash-log": ("tests/crash/*",),
    "server": ("tests/integration/*",),
    "browser": ("tests/browser/*",),
    "release": ("tests/release/*",),
    "spark": ("tests/spark/*",),
}
"""Patterns of the files of each part. A file belongs to the first part that matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one part did."""

    part: str
    seed: int
    seconds: float
    exit_code: int
    cases: list[Case]

    @property
    def failed(self) -> list[Case]:
        return [case for case in self.cases if case.has_failed]


def main(arguments: list[str] | None = None) -> int:
    """Run the parts; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="tools.torture", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="Parts to run (default: all).")
    parser.add_argument("--list", action="store_true", help="List the parts and their files.")
    parser.add_argument("--seed", type=int, help="Seed for all parts (default: a new one each).")
    parser.add_argument("--workers", type=int, default=(os.cpu_count() or 1) + 1)
    options = parser.parse_args(arguments)
    console = Console(markup=False, highlight=False)
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}; parts: {', '.join(PARTS)}")
    if options.list:
        for part in PARTS:
            console.print(f"{part}: {' '.join(map(str, files_of(part)))}", soft_wrap=True)
        return 0

    DIRECTORY.mkdir(parents=True, exist_ok=True)
    outcomes = []
    parts = options.parts or list(PARTS)
    try:
        for number, part in enumerate(parts, start=1):
            fresh = random.SystemRandom().randrange(1 << 31)
            seed = fresh if options.seed is None else options.seed
            console.print(f"part {number} of {len(parts)}: {part}, seed {seed}")
            outcomes.append(_run(part, seed, options.workers))
    finally:  # After Ctrl-C, the parts that have ended still count.
        _report(outcomes, console)
    return int(any(outcome.exit_code for outcome in outcomes))


def files_of(part: str) -> list[Path]:
    """Return the test files of a part."""
    return [path for path in sorted(Path("tests").rglob("test_*.py")) if _part_of(path) == part]


def _part_of(path: Path) -> str:
    for part, patterns in PARTS.items():
        if any(fnmatch(str(path), pattern) for pattern in patterns):
            return part
    raise LookupError(f"{path} is in no part: add it to PARTS in {__file__}")


def _run(part: str, seed: int, workers: int) -> Outcome:
    """Run one part. pytest's own output shows the progress."""
    results = DIRECTORY / f"{part}.xml"
    results.unlink(missing_ok=True)
    started = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", f"-n{workers}"),
            *(f"--hypothesis-seed={seed}", f"--junitxml={results}"),
            *map(str, files_of(part)),
        ],
        env={**os.environ, "SEGUE_TORTURE": "1", "SEGUE_SEED": str(seed)},
        check=False,
    )
    return Outcome(
        part=part,
        seed=seed,
        seconds=time.monotonic() - started,
        exit_code=done.returncode,
        cases=read_cases(results),
    )


def _report(outcomes: list[Outcome], console: Console) -> None:
    """Print a line per part, then the commands that repeat a red part and each failure."""
    table = Table("part", "tests", "skipped", "tries", "violations", "seed", "time")
    for each in outcomes:
        violations = str(len(each.failed)) if each.cases else f"exit code {each.exit_code}"
        tries = sum(case.tries for case in each.cases)
        table.add_row(
            each.part,
            f"{len(each.cases):,}",
            str(sum(case.is_skipped for case in each.cases)),
            f"{tries:,}",
            violations,
            str(each.seed),
            minutes(each.seconds),
        )
    console.print(table)
    console.print(f"total {minutes(sum(each.seconds for each in outcomes))}")
    for each in outcomes:
        if each.exit_code:
            console.print(f"repeat: make torture TORTURE_ARGS='{each.part} --seed {each.seed}'")
        for case in each.failed:
            console.print(
                f"repeat: SEGUE_TORTURE=1 SEGUE_SEED={each.seed} .venv/bin/python -m pytest "
                f"--hypothesis-seed={each.seed} {shlex.quote(case.id)}",
                soft_wrap=True,
            )


if __name__ == "__main__":
    sys.exit(main())
