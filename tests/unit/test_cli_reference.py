"""The pages on the command line say what the code has."""

import re
from typing import Final

from segue.cli.exits import ExitCode
from tools import generate_cli_reference

DOCS: Final = generate_cli_reference.TARGET.parent
OPTIONS: Final = generate_cli_reference.options_by_verb()
SYNOPSIS: Final = re.compile(r"^    (segue .*(?:\n     +.*)*)", re.MULTILINE)
TOLD_ELSEWHERE: Final = "segue spark "
"""docs/spark.md has these."""


def synopses() -> list[str]:
    """Return what pages show of verbs before the generated one: `segue queue pop STORE …`."""
    pages = [path for path in sorted(DOCS.glob("cli*.md")) if path != generate_cli_reference.TARGET]
    return [each for path in pages for each in SYNOPSIS.findall(path.read_text())]


def verbs_of(synopsis: str) -> list[str]:
    """Return the verbs that a synopsis shows: `segue queue pause|resume` are two."""
    first, second, third, *_ = [*synopsis.split(), ""]
    found = [f"{first} {second} {verb}" for verb in third.split("|")]
    return [each for each in found if each in OPTIONS] or [f"{first} {second}"]


def test_the_reference_is_what_the_code_says() -> None:
    """`make generate` writes it."""
    assert generate_cli_reference.TARGET.read_text() == generate_cli_reference.generated()


def test_every_verb_is_shown_beside_the_reference_with_options_it_has() -> None:
    """Whatever is said twice drifts, unless it is looked at."""
    shown = [(verb, text) for text in synopses() for verb in verbs_of(text)]

    assert {verb for verb in OPTIONS if not verb.startswith(TOLD_ELSEWHERE)} <= {
        verb for verb, _ in shown
    }
    for verb, text in shown:
        said = set(re.findall(r"(?<!\w)-{1,2}[a-z][a-z-]*", text.partition(" -- ")[0]))
        assert verb == "segue spark" or said <= OPTIONS[verb], verb


def test_every_exit_code_is_told_of() -> None:
    """On the page for people, beside the generated one."""
    table = (DOCS / "cli.md").read_text().partition("| code |")[2].partition("\n\n")[0]
    told = {
        int(number)
        for row in table.splitlines()
        for number in re.findall(r"^\| ([\d, ]+) \|", row)
        for number in re.findall(r"\d+", number)
    }

    assert told == set(ExitCode)
