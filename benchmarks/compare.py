"""Two commits side by side: `python -m benchmarks.compare --before A.json … --after B.json …`.

Takes what `--json` saved. Give several runs of each, made in turn; README.md shows how. The peers
are in the table as well: they did not change, so their ratio is what the machine did.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.report import number


@dataclass(slots=True)
class Runs:
    """All samples of one figure."""

    samples: list[float] = field(default_factory=list)
    p99s_us: list[float] = field(default_factory=list)


Key = tuple[str, str, str]


def load(paths: Sequence[Path]) -> dict[Key, Runs]:
    """Return the samples of all figures in the files, by benchmark, section and name."""
    runs: dict[Key, Runs] = defaultdict(Runs)
    for path in paths:
        for section in json.loads(path.read_text())["sections"]:
            for figure in section["figures"]:
                run = runs[section["benchmark"], section["title"], figure["name"]]
                run.samples += figure["samples"]
                if figure["p99_us"] is not None:
                    run.p99s_us.append(figure["p99_us"])
    return runs


def main() -> None:
    """Print the medians of both sides, figure by figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("--before", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--after", nargs="+", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    before, after = load(arguments.before), load(arguments.after)
    print(f"{_commits(arguments.before)} -> {_commits(arguments.after)}")
    heading = ("", "")
    for key in before:
        if key not in after or not before[key].samples or not after[key].samples:
            continue
        if key[:2] != heading:
            heading = key[:2]
            print(f"\n{': '.join(heading)}")
        print(f"   {_line(key[2], before[key], after[key])}")


def _line(name: str, before: Runs, after: Runs) -> str:
    was, now = median(before.samples), median(after.samples)
    text = (
        f"{name:32}  median {number(was):>12} -> {number(now):>12}"
        f"  x {now / was if was else 1:.3f}"
        f"  n={len(before.samples)}/{len(after.samples)}"
    )
    if before.p99s_us and after.p99s_us:
        text += f"  p99 {median(before.p99s_us):,.1f} -> {median(after.p99s_us):,.1f} µs"
    return text


def _commits(paths: Sequence[Path]) -> str:
    conditions = [json.loads(path.read_text())["conditions"] for path in paths]
    return ", ".join(dict.fromkeys(f"{each['commit']} ({each['segue']})" for each in conditions))


if __name__ == "__main__":
    main()
