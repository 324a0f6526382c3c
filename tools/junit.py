"""Results of a test run, read from the XML file that `pytest --junitxml` writes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_MODULE = re.compile(r"(?:\w+\.)*?test_\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of a run."""

    id: str
    seconds: float
    has_failed: bool
    is_skipped: bool = False
    tries: int


def read_cases(path: Path) -> list[Case]:
    """Return the tests of a run, or none if the run ended before it had written its file."""
    try:
        root = ElementTree.parse(path).getroot()
    except (FileNotFoundError, ElementTree.ParseError):
        return []
    return list(_cases(root))


def _cases(root: ElementTree.Element) -> Iterator[Case]:
    for case in root.iter("testcase"):
        recorded = [
            int(each.get("value", "1"))
            for each in case.iter("property")
            if each.get("name") == "tries"
        ]
        yield Case(
            id=_node_id(case),
            seconds=float(case.get("time", "0")),
            has_failed=any(child.tag in {"failure", "error"} for child in case),
            is_skipped=any(child.tag == "skipped" for child in case),
            tries=sum(recorded) or 1,
        )


def _node_id(case: ElementTree.Element) -> str:
    """Return the id by which pytest runs this test: file, class if it has one, name."""
    # Not from the attribute "file": for a state machine that is a file of Hypothesis.
    dotted = case.get("classname") or case.get("name") or ""
    found = _MODULE.match(dotted)
    if found is None:
        return dotted
    names = dotted[found.end() :].strip(".").split(".")
    if case.get("classname"):  # A file that could not be imported has none.
        names.append(case.get("name", ""))
    return "::".join([found[0].replace(".", "/") + ".py", *filter(None, names)])


def minutes(seconds: float) -> str:
    """Format a duration as minutes and seconds: `9:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
