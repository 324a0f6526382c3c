"""Whoever leaves the demo early leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli_support import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
STORE = "  the store is "
MOMENTS = {"as it begins": "A store in", "as workers start": STORE, "amid orders": "Orders come in"}


def processes_of(directory: str) -> list[str]:
    """Return the command lines of all that were started for a directory and still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if directory.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # It ended meanwhile.
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_whoever_interrupts_it_finds_nothing_left(
    moment: str, number: signal.Signals, tmp_path: Path
) -> None:
    """No process, no file, and the exit code of Ctrl-C."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--short", "--report", str(tmp_path / "page.html")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    said = ""
    while MOMENTS[moment] not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    demo.send_signal(number)
    rest, errors = demo.communicate(timeout=PATIENCE_SECONDS)

    assert demo.returncode == 130, (said, rest, errors)
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert processes_of(str(tmp_path / "segue-demo-")) == []
    assert list(tmp_path.iterdir()) == []


def test_it_takes_no_store_that_is_there(tmp_path: Path) -> None:
    """What somebody has is not mixed with what the demo makes."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--keep", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path} is there already" in done.stderr
    assert list(tmp_path.iterdir()) == []
