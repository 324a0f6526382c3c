"""Every command, every snippet and every link in the documentation is true."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.docs_server import ENVIRONMENT, SERVERS, PageServer
from tests.redis_server import LOOPBACK, shared_server

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


class Command(NamedTuple):
    """One line at the prompt, and what the page says it prints."""

    line: str
    prints: str


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


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
    server = PageServer(tmp_path)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
        done = subprocess.run(
            ["bash", "-c", server.for_real(for_real(command.line))],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stdout, command.line
        if command.prints:
            # What curl prints has no newline at its end, where JSON has none.
            found = done.stdout if done.stdout.endswith("\n") else f"{done.stdout}\n"
            said = server.for_real(for_real(command.prints))
            assert found == said or is_so(found, said), (command.line, found, said)
        else:
            assert done.returncode == 0, (command.line, done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run(page: Path, tmp_path: Path, server: PageServer) -> None:
    """Each Python block is a program of its own."""
    for text in blocks(page, "python"):
        if "segue.spark" in text:
            continue
        program = server.for_real(for_real(text))
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_others_is_python(page: Path) -> None:
    """What a page shows in another library's words, as `py`, is not run but can be read."""
    for text in blocks(page, "py"):
        compile(text, page.name, "exec")


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files that exist."""
    targets = LINK.findall(page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """`make docs`: pages are in the menu, links and anchors lead somewhere, all of it is here."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.build_docs", tmp_path / "site"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'site' / 'index.html'}\n")
    assert (tmp_path / "site" / "searchindex.js").exists()
