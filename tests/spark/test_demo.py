"""`make demo` as a new user runs it: the short form, with all that it claims."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.test_demo import demo_that_says, processes_of
from tests.spark.processes import SPARK_LIMIT_SECONDS
from tests.waiting import LIMIT_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
DEMO_LIMIT_SECONDS = 2 * SPARK_LIMIT_SECONDS
"""The demo starts Spark twice, as its first driver is killed."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(0),  # Every wait has a limit.
    pytest.mark.xdist_group("demo"),  # One run is enough for all tests.
]
INSTALLED = ".venv/.installed"
"""A test installs nothing, however old this is."""
ELSEWHERE = re.compile(r"""(?:src|href)=|url\(|@import|<script""")


class Played(NamedTuple):
    """One run of the demo."""

    totals: dict[str, object]
    shown: str
    page: str
    left: list[Path]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The one run that all tests here look at.

    Where temporary files go there are spaces, and no room for the name of a socket.
    """
    scratch = tmp_path_factory.mktemp("demo")
    page = scratch / "pages" / "report.html"
    temporary = scratch / "a directory whose name is long enough"
    temporary.mkdir()
    arguments = f"--short --json --report {shlex.quote(str(page))}"
    done = subprocess.run(
        ["make", "--silent", f"--old-file={INSTALLED}", "demo", f"DEMO_ARGS={arguments}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_LIMIT_SECONDS,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    totals = json.loads(done.stdout)
    return Played(totals, done.stderr, page.read_text(), list(temporary.iterdir()))


def test_nothing_is_lost_and_every_duplicate_is_explained(played: Played) -> None:
    """Through a killed worker and a killed Spark driver."""
    totals = played.totals

    assert totals["wrong"] == []
    assert (totals["sent"], totals["lost"]) == (604, 0)
    assert totals["done"] == 604 - int(str(totals["dead"]))
    assert totals["driver_kills"] == 1
    assert "unexplained" not in str(totals["duplicates"])
    assert "its worker was killed" in str(totals["duplicates"])


def test_spark_has_every_order_once(played: Played) -> None:
    """In the topic and in Parquet; and what is archived may go."""
    totals = played.totals

    assert totals["clean"] == totals["in_parquet"] == 600
    assert int(str(totals["archived"])) > 600
    assert int(str(totals["segments_freed"])) > 0


def test_the_page_stands_alone_and_has_plots(played: Played) -> None:
    assert ELSEWHERE.search(played.page) is None
    assert played.page.count("<svg") >= 3
    assert "WRONG" not in played.page


def test_it_ends_with_three_commands_that_run(played: Played, tmp_path: Path) -> None:
    """The last of them shows a store until it is told to stop: that it begins is enough here."""
    _, _, after = played.shown.partition("Three commands to try next\n")
    commands = [line.strip() for line in after.splitlines() if line.strip()]

    assert len(commands) == 3
    for command in commands[:2]:
        name, *arguments = shlex.split(command)
        subprocess.run(
            [ROOT / name, *(str(ROOT / each) if "/" in each else each for each in arguments)],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
    assert commands[2].endswith("segue dash data")
    assert (tmp_path / "data").is_dir()


def test_whoever_interrupts_it_amid_spark_finds_nothing_left(tmp_path: Path) -> None:
    """Neither the driver nor its JVM, of which nobody has heard yet."""
    demo = demo_that_says("Spark: clean", tmp_path)
    wait_until(
        lambda: (
            any("/bin/java " in line for line in processes_of(tmp_path).values())
            or demo.poll() is not None
        ),
        "Java of the demo",
    )
    assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    rest, errors = demo.communicate(timeout=SPARK_LIMIT_SECONDS)

    assert demo.returncode == 130, (rest, errors)
    assert "Traceback" not in errors
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_it_leaves_nothing_behind(played: Played) -> None:
    """Neither its store nor what Spark, which was killed, had in its hands."""
    assert played.left == []
