"""Results of a test run, read from the XML file that `pytest --junitxml` writes."""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_EXAMPLES = re.compile(r"(\d+) passing, (\d+) failing")
_STATISTICS = "hypothesis-statistics-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of a run."""

    id: str
    seconds: float
    has_failed: bool
    tries: int


def read_cases(path: Path) -> list[Case]:
    """Return the tests of a run, or none if the run ended before it wrote its file."""
    if not path.exists():
        return []
    root = ElementTree.parse(path).getroot()
    examples = _examples(root)
    return list(_cases(root, examples))


def _cases(root: ElementTree.Element, examples: dict[str, int]) -> Iterator[Case]:
    for case in root.iter("testcase"):
        id_ = f"{case.get('file')}::{case.get('name')}"
        recorded = [
            int(each.get("value", "1"))
            for each in case.iter("property")
            if each.get("name") == "tries"
        ]
        yield Case(
            id=id_,
            seconds=float(case.get("time", "0")),
            has_failed=any(child.tag in {"failure", "error"} for child in case),
            tries=sum(recorded) or examples.get(id_, 1),
        )


def _examples(root: ElementTree.Element) -> dict[str, int]:
    """Return how many examples Hypothesis tried, by test."""
    counts: dict[str, int] = {}
    for each in root.iter("property"):
        name = each.get("name", "")
        if name.startswith(_STATISTICS):
            text = base64.b64decode(each.get("value", "")).decode()
            found = _EXAMPLES.findall(text)
            counts[name.removeprefix(_STATISTICS)] = sum(int(a) + int(b) for a, b in found)
    return counts


def minutes(seconds: float) -> str:
    """Format a duration as minutes and seconds: `9:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
