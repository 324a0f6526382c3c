"""Every command, every snippet and every link in the documentation is true."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name != "spark.md"  # tests/spark runs it, and all that needs Spark, in one session.
]
EVERY_PAGE = [
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


class Command(NamedTuple):
    """One line at the prompt, and what the page says it prints."""

    line: str
    prints: str


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif found:
            found[-1] = found[-1]._replace(prints=f"{found[-1].prints}{line}\n")
    return found


@pytest.mark.timeout(300)  # A page may have a hundred commands, and the machine may be busy.
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """One shell session a page, block after block. `make` runs us, so we do not run it."""
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    for command in [each for text in blocks(page, "console") for each in commands(text)]:
        if command.line.startswith("make "):
            continue
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stdout, command.line
        if command.prints:
            assert done.stdout == command.prints, command.line
        else:
            assert done.returncode == 0, (command.line, done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    """Each Python block is a program of its own."""
    for text in blocks(page, "python"):
        if "segue.spark" in text:
            continue
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.parametrize(
    "example",
    [path for path in sorted((ROOT / "examples").glob("*.py")) if "spark" not in path.name],
    ids=lambda e: e.name,
)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    """From any directory, leaving an exit code of 0."""
    subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, check=True, timeout=60, capture_output=True
    )


def test_the_quickstart_is_the_example() -> None:
    """What the README shows is what an example runs."""
    examples = "".join(path.read_text() for path in (ROOT / "examples").glob("*.py"))

    assert [text for text in blocks(ROOT / "README.md", "python") if text not in examples] == []


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files that exist."""
    targets = LINK.findall(page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []
