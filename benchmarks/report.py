"""What was measured, as tables: plain ones as they come, Markdown and JSON at the end."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.machine import Minute
from benchmarks.race import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A promise and what became of it."""

    what: str
    measured: float
    required: float
    at_most: bool = False
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether the promise was kept."""
        if self.at_most:
            return self.measured <= self.required
        return self.measured >= self.required

    @property
    def verdict(self) -> str:
        """`met`, or by how much it was missed."""
        if self.met:
            return "met"
        return f"missed by {abs(self.measured / self.required - 1):.0%}"

    def row(self) -> list[str]:
        """Return the cells of the table of targets."""
        bound = "at most" if self.at_most else "at least"
        return [
            self.what,
            f"{bound} {number(self.required)} {self.unit}",
            f"{number(self.measured)} {self.unit}",
            self.verdict,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One race or one measurement."""

    benchmark: str
    title: str
    setting: str
    """What was done, how often: the conditions that belong to this section alone."""
    minute: Minute
    figures: Sequence[Figure]
    unit: str = "records/s"
    baselines: Sequence[str] = ()
    """Names of figures that the others are divided by."""
    targets: Sequence[Target] = ()
    conclusion: str = ""

    def aiming_at(self, targets: Sequence[Target]) -> "Section":
        """Return the same with targets, which are worked out from its figures."""
        return replace(self, targets=targets)

    def figure(self, name: str) -> Figure | None:
        """Return the figure called `name`, unless it did not run."""
        found = [figure for figure in self.figures if figure.name == name and figure.samples]
        return found[0] if found else None


@dataclass(slots=True, kw_only=True)
class Report:
    """Collects sections and prints them."""

    conditions: dict[str, str]
    sections: list[Section] = field(default_factory=list)

    def begin(self) -> None:
        """Print the conditions of the run."""
        for name, value in self.conditions.items():
            print(f"{name + ':':13}{value}")

    def add(self, section: Section) -> None:
        """Keep a section and print it."""
        self.sections.append(section)
        print(
            f"\n== {section.benchmark}: {section.title}\n   {section.setting}; {section.minute}\n"
        )
        print(_plain(_table(section)))
        if section.conclusion:
            print(f"   {section.conclusion}")
        for target in section.targets:
            what, required, measured, verdict = target.row()
            print(f"   {verdict}: {what}: {measured}, target {required}")

    def finish(self) -> None:
        """Print all targets, and everything once more as Markdown."""
        rows = [target.row() for section in self.sections for target in section.targets]
        if rows:
            effort = self.conditions["effort"]
            print(f"\n== targets ({effort})\n\n{_plain([_TARGET_HEADER, *rows])}")
        print(f"\n== the same as Markdown\n\n{self.markdown()}")

    def markdown(self) -> str:
        """Return everything as Markdown."""
        parts = ["\n".join(f"- {name}: {value}" for name, value in self.conditions.items())]
        for section in self.sections:
            parts.append(f"### {section.benchmark}: {section.title}")
            parts.append(f"{section.setting}; {section.minute}.")
            parts.append(_markdown(_table(section)))
            if section.conclusion:
                parts.append(f"{section.conclusion}.")
        rows = [target.row() for section in self.sections for target in section.targets]
        if rows:
            parts += ["### Targets", _markdown([_TARGET_HEADER, *rows])]
        return "\n\n".join(parts)

    def write_json(self, path: Path) -> None:
        """Save everything, each sample included, for `benchmarks.compare`."""
        sections = [
            asdict(section)
            | {
                "targets": [
                    asdict(target) | {"verdict": target.verdict} for target in section.targets
                ]
            }
            for section in self.sections
        ]
        document = {"conditions": self.conditions, "sections": sections}
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


_TARGET_HEADER = ["target", "required", "measured", "verdict"]


def _table(section: Section) -> list[list[str]]:
    """Return header and rows. A ratio's baseline is named in its heading."""
    baselines = [
        figure for name in section.baselines if (figure := section.figure(name)) is not None
    ]
    timed = any(figure.p99_us is not None for figure in section.figures)
    header = ["", f"median {section.unit}", "lowest to highest round", "n"]
    header += ["median µs", "p99 µs"] if timed else []
    header += [f"x {baseline.name}" for baseline in baselines]
    rows = [_row(figure, baselines, timed=timed) for figure in section.figures]
    return [[*header, "note"], *rows]


def _row(figure: Figure, baselines: Iterable[Figure], *, timed: bool) -> list[str]:
    baselines = list(baselines)
    if not figure.samples:
        blanks = [""] * (3 + 2 * timed + len(baselines))
        return [figure.name, *blanks, figure.note]
    cells = [
        figure.name,
        number(figure.median),
        f"{number(min(figure.samples))} to {number(max(figure.samples))}",
        str(len(figure.samples)),
    ]
    if timed:
        cells += [
            "" if value is None else number(value) for value in (figure.median_us, figure.p99_us)
        ]
    cells += [f"{figure.ratio(baseline):.2f}" for baseline in baselines]
    return [*cells, figure.note]


def number(value: float) -> str:
    """Return a figure with as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _plain(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        first, *middle = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        *numbers, _ = middle
        lines.append("   " + "  ".join([first, *numbers, row[-1]]).rstrip())
    return "\n".join(lines)


def _markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = table
    lines = [header, ["---", *(["---:"] * (len(header) - 2)), "---"], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
