"""Commands, snippets and links of the documentation work, and print what the pages say."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.docs_processes import fast_environment
from tests.integration.docs_server import ENVIRONMENT, SERVERS, PageServer
from tests.redis_server import LOOPBACK, shared_server
from tests.waiting import LIMIT_SECONDS, wait_until

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
REDIS = "localhost:6379"
DOCS_NAMESPACES = (b"segue:", b"shop:")
ANYTHING = "…"
"""What stands in a page for what is different each time: the rest of a word, or of a line."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
PAUSE = re.compile(r"^sleep \d+; ")
TIMED = re.compile(r"^sleep \d+; |--max-time \d+ ")
"""Marks a line that only reads, and prints what the page says once some time has passed."""


class Command(NamedTuple):
    """One line at the prompt, and what the page says it prints."""

    line: str
    prints: str


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def for_real(text: str) -> str:
    """Return `text` with the address of a real, empty server where a page says the usual one."""
    if REDIS not in text:
        return text
    server = shared_server()
    return text.replace(REDIS, f"{LOOPBACK}:{server.port}")


@pytest.fixture(autouse=True)
def _empty_server() -> Iterator[None]:
    """What a page leaves behind on the server is gone when the next one begins."""
    yield
    if shared_server.cache_info().currsize:
        with shared_server().client() as client:
            for key in client.scan_iter(count=10_000):
                if key.startswith(DOCS_NAMESPACES):
                    client.unlink(key)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    """What a page means by `localhost:8000`, or `8010`."""
    server = PageServer(tmp_path, fast_environment())
    yield server
    server.end()


def commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif found:
            found[-1] = found[-1]._replace(prints=f"{found[-1].prints}{line}\n")
    return found


def is_so(found: str, said: str) -> bool:
    """Tell whether a command printed what a page says."""
    pattern = "[^\n]*".join(map(re.escape, said.split(ANYTHING)))
    return re.fullmatch(pattern, found) is not None


def require_curl(text: str) -> None:
    """Skip what is done with curl on a machine without it, but not in CI."""
    if "curl " in text and shutil.which("curl", path=ENVIRONMENT["PATH"]) is None:
        assert not os.environ.get("CI"), "curl is missing"
        pytest.skip("curl is missing")


def shell(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell. Its standard output and standard error are one stream."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=fast_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def check(line: str, said: str, directory: Path) -> bool:
    """Run a line and assert that it prints what the page says, or succeeds if that is nothing."""
    done = shell(line, directory)
    assert "Traceback" not in done.stdout, line
    if said:
        # What curl prints has no newline at its end, where JSON has none.
        found = done.stdout if done.stdout.endswith("\n") else f"{done.stdout}\n"
        assert found == said or is_so(found, said), (line, found, said)
    else:
        assert done.returncode == 0, (line, done.stdout)
    return True


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=name_of)
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path, server: PageServer) -> None:
    """One shell session a page, block after block. `make` runs us, so we do not run it."""
    require_curl(page.read_text())
    if " examples/" in page.read_text():
        (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in [each for text in blocks(page, "console") for each in commands(text)]:
        if command.line.startswith("make "):
            continue
        if command.line.startswith(SERVERS):
            said = server.start(command.line)
            assert said == server.for_real(command.prints), command.line
            continue
        line, said = (server.for_real(for_real(text)) for text in command)
        if TIMED.search(line) is None:
            check(line, said, tmp_path)
        else:
            # However busy the machine is: the line runs again until the time was enough.
            wait_until(
                partial(check, PAUSE.sub("", line), said, tmp_path),
                f"{line} prints {said}",
                ignoring=(AssertionError,),
            )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_snippets_run(page: Path, tmp_path: Path, server: PageServer) -> None:
    """Each Python block is a program of its own."""
    for text in blocks(page, "python"):
        if "segue.spark" in text:
            continue
        run_program(server.for_real(for_real(text)), tmp_path)


def run_program(text: str, directory: Path) -> str:
    """Run a Python program, assert that it succeeds, and return its standard output."""
    return subprocess.run(
        ["python", "-c", text],
        cwd=directory,
        env=fast_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    ).stdout


def test_the_quickstart_is_the_example() -> None:
    """What the README shows is what an example runs, with fewer empty lines."""
    examples = "".join(path.read_text() for path in (ROOT / "examples").glob("*.py"))
    dense = re.sub("\n+", "\n", examples)

    assert [
        text
        for text in blocks(ROOT / "README.md", "python")
        if re.sub("\n+", "\n", text) not in dense
    ] == []


def test_a_quickstart_is_short() -> None:
    """A stranger reads twelve lines."""
    page = ROOT / "README.md"

    assert all(len(text.splitlines()) <= 12 for text in blocks(page, "python"))
    assert all(len(text.splitlines()) <= 12 for text in blocks(page, "console"))


def test_code_of_others_is_python() -> None:
    """What a page shows in another library's words, as `py`, is not run but can be read."""
    for page in PAGES:
        for text in blocks(page, "py"):
            compile(text, name_of(page), "exec")


def test_links_lead_somewhere() -> None:
    """Relative links name files that exist."""
    assert [
        f"{name_of(page)}: {target}"
        for page in EVERY_PAGE
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ] == []


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that the headings of a page have on GitHub, and on our site."""
    text = BLOCK.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    # A link in a heading counts by its words.
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.strip()).replace(" ", "-") for heading in plain}


def test_anchors_of_links_are_headings() -> None:
    """What a link says behind the # is a heading of the page that it leads to."""
    assert [
        f"{name_of(page)}: {target}#{anchor}"
        for page in EVERY_PAGE
        for target, anchor in ANCHOR.findall(page.read_text())
        if anchor not in anchors_of(page.parent / target if target else page)
    ] == []


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """`make docs`: pages are in the menu, links and anchors lead somewhere, all of it is here."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.build_docs", tmp_path / "site"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'site' / 'index.html'}\n")
    assert (tmp_path / "site" / "searchindex.js").exists()
