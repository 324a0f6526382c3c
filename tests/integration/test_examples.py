"""The examples run, check what they promise, and say so. Those for Spark are in tests/spark."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.docs_server import ENVIRONMENT, PageServer
from tests.integration.test_docs import require_curl
from tests.redis_cluster import LASTING, RedisCluster
from tests.waiting import LIMIT_SECONDS

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PRINTED: Final[dict[str, list[str]]] = {
    "asyncio_queue.py": [
        r"(ann|ben) 0-0 to: ada",
        r"(ann|ben) 0-3 to: barbara",
        r"leader \d+",
    ],
    "cron.py": [
        r"(?P<n>\d+) seconds passed, (?P=n) fired, \d+ ran and \d+ wait",
        r"clean_up comes next at 0[12]:00 UTC",
    ],
    "embedded_queue.py": [
        r"(\d+) of \d+ files done by 2 workers",
        r"given up after 2 tries: FileNotFoundError",
        r"brought back: 1",
        r"(?P<n>\d+) checksums of (?P=n) files, left to do: 0",
    ],
    "exactly_once.py": [
        r"a consumer was killed before the commit, \d+ payments are left",
        r"a consumer was killed after the commit, \d+ payments are left",
        r"  message 0-\d+ came again: booked now",
        r"  message 0-\d+ came again: booked before",
        r"120 of 120 payments booked: \{'ada': 4780, 'edsger': 4780, 'grace': 4780\}",
    ],
    "http_client.py": [
        r"0-0 1 to: ada",
        r"3-0 1 stop",
        r"0-0/\d+ the message is settled, dead or was never leased",
        r"0 0 b'ada' b'2 apples'",
    ],
    "log.py": [r"0 .* b'created'", r"2 .* b'shipped'"],
    "ordered_keys.py": [
        r"without-groups: \d of 8 balances right, .*",
        r"with-groups: 8 of 8 balances right, up to [2-4] workers for each",
    ],
    "quickstart.py": [r"1-0 1 b'to: ada'", r"\d+"],
    "tasks.py": [r"a\.png at 100 State\.COMPLETED"],
    "topic_groups.py": [
        r"three share: .*",
        r"cyd was killed:  \{'ann': \[\d, \d, \d\], 'ben': \[\d, \d, \d\]\}",
        r"ben has left:    \{'ann': \[0, 1, 2, 3, 4, 5\]\}",
        r"dan wakes up:    partitions lost .*; token \d+ is refused, ann has \d+",
        r"600 of 600 orders are billed",
    ],
    "topics.py": [
        r"0 0 b'ada' b'2 apples'",
        r"appended 9 then 0",
        r"removed 2 and left \[\(2, b'ada', b'Park Ave'\), \(3, b'bob', None\)\]",
    ],
    "web_app.py": [
        r"105 is the product of \[3, 5, 7\], says task default/2-0",
        r"9998000099 is the product of \[99989, 99991\], says task default/2-1",
    ],
}
"""What stands among the lines of each."""
ELSEWHERE: Final = {"redis_cluster.py"}
SLOW: Final = {"cron.py", "exactly_once.py", "http_client.py", "ordered_keys.py", "topic_groups.py"}
"""Examples that take seconds run only in the long run."""


@pytest.fixture
def server(scratch: Path) -> Iterator[PageServer]:
    """What an example means by `localhost:8000`."""
    server = PageServer(scratch)
    yield server
    server.end()


def run(*command: str, cwd: Path) -> str:
    """Run an example and return what it prints; it leaves nothing where temporary files go."""
    temporary = cwd / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert list(temporary.iterdir()) == []
    return done.stdout


def missing(lines: list[str], printed: str) -> list[str]:
    """Return what should stand among the lines that were printed, and does not."""
    return [line for line in lines if re.search(rf"^{line}$", printed, re.MULTILINE) is None]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in PRINTED]
)
def test_an_example_prints_what_it_promises(name: str, scratch: Path, server: PageServer) -> None:
    """From any directory, with an exit code of 0 and its result for everybody to see."""
    program = server.for_real((EXAMPLES / name).read_text())
    example = EXAMPLES / name
    if program != example.read_text():
        example = scratch / name
        example.write_text(program)

    printed = run(sys.executable, str(example), cwd=scratch)

    assert missing(PRINTED[name], printed) == [], printed


@pytest.mark.long
def test_the_example_on_a_cluster_uses_all_its_nodes(scratch: Path) -> None:
    """Given the URL of a cluster whose masters have a replica each."""
    with RedisCluster(scratch / "cluster", LASTING) as cluster:
        url = f"{cluster.url}?replicas=1"
        printed = run(sys.executable, str(EXAMPLES / "redis_cluster.py"), url, cwd=scratch)

        expected = [
            r"queues by port of their node: \{\d+: \d, \d+: \d, \d+: \d\}",
            r"300 bills for 300 orders, 0 left",
        ]
        assert missing(expected, printed) == [], printed


@pytest.mark.long
def test_the_example_for_any_language_settles_what_it_pushed(
    scratch: Path, server: PageServer
) -> None:
    """With the URL of a server."""
    script = EXAMPLES / "curl.sh"
    require_curl(script.read_text())
    printed = run("bash", str(script), server.for_real("http://localhost:8000"), cwd=scratch)

    assert printed.count("working on ") == 2


def test_every_example_is_run() -> None:
    """None is left out, here or in tests/spark."""
    programs = {path.name for path in EXAMPLES.glob("*.py") if "spark" not in path.name}

    assert programs == PRINTED.keys() | ELSEWHERE


def test_every_example_stands_in_the_table() -> None:
    """A row for each, with a link and how to run it."""
    rows = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if "](" in line]
    there = {path.name for path in EXAMPLES.iterdir() if path.name[0] not in "_R"}
    linked = {name: line for line in rows for name in re.findall(r"\]\(([\w.]+)/?\)", line)}

    assert linked.keys() == there
    assert [name for name, line in linked.items() if line.count("`") < 2] == []
