"""Whoever leaves the demo early leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.screen import Screen
from examples.demo.stage import SIGNALS, Stage, is_running
from examples.demo.story import SHORT, DemoFailed, Story
from tests.waiting import LIMIT_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
STORE = "  the store is "
MOMENTS = {"as it begins": "A store in", "as workers start": STORE, "amid orders": "Orders come in"}


def processes_of(directory: Path) -> dict[int, str]:
    """Return the command lines of all that were started for a directory and still run."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{directory}/segue-demo-".encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_text().replace("\0", " ")
                found[int(process.name)] = command
        except OSError:
            continue  # It ended meanwhile.
    return found


def demo_that_says(text: str, temporary: Path) -> subprocess.Popen[str]:
    """Start the demo and return it once it has said something."""
    page = str(temporary / "page.html")
    demo = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--short", "--report", page],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    said = ""
    while text not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    return demo


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("amid orders", signal.SIGINT),
        *(
            pytest.param(moment, number, marks=pytest.mark.long)
            for number in (signal.SIGINT, signal.SIGTERM)
            for moment in MOMENTS
            if (moment, number) != ("amid orders", signal.SIGINT)
        ),
    ],
)
def test_whoever_interrupts_it_finds_nothing_left(
    moment: str, number: signal.Signals, tmp_path: Path
) -> None:
    """No process, no file, and the exit code of Ctrl-C."""
    demo = demo_that_says(MOMENTS[moment], tmp_path)
    demo.send_signal(number)
    rest, errors = demo.communicate(timeout=LIMIT_SECONDS)

    assert demo.returncode == 130, (rest, errors)
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_whoever_dies_by_itself_is_named(tmp_path: Path) -> None:
    """Not those who fail because of that; and the demo ends, with all others."""
    demo = demo_that_says(MOMENTS["amid orders"], tmp_path)
    server = next(pid for pid, line in processes_of(tmp_path).items() if "segue serve" in line)
    os.kill(server, signal.SIGKILL)
    rest, errors = demo.communicate(timeout=LIMIT_SECONDS)

    assert (demo.returncode, errors) == (1, "")
    assert "server ended with -9" in rest
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stage_is_left_in_order_at_any_signal(number: signal.Signals) -> None:
    """As by Ctrl-C: its children end, and its directory is removed."""
    before = {each: signal.getsignal(each) for each in (*SIGNALS, number)}
    signal.signal(number, lambda *_: None)  # Else a stage that ignores it would end the test run.
    stage = Stage()

    def interrupted() -> None:
        with stage:
            children.append(stage.start("child", "http.server", "0"))
            signal.raise_signal(number)

    children: list[subprocess.Popen[str]] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

    assert [child.returncode is None for child in children] == [False]
    assert not stage.directory.exists()


def test_a_server_that_died_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the producer that fails because of that."""
    monkeypatch.setattr("examples.demo.stage.SIGNALS", ())
    with Stage() as stage:
        story = Story(stage, Screen(to_stderr=True), SHORT)
        story._server = stage.start("server", "no_such_module")
        producer = stage.start("producer", "no_such_module")
        wait_until(lambda: not is_running(story._server) and not is_running(producer))

        with pytest.raises(DemoFailed, match="server ended with 1"):
            story._require_well({"http": producer})


def test_it_takes_no_store_that_is_there(tmp_path: Path) -> None:
    """What somebody has is not mixed with what the demo makes."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--keep", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path} is there already" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_whatever_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also what is in a process group of its own, as the workers of Spark are."""
    program = tmp_path / "parent_of_others.py"
    program.write_text(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setpgid(0, 0)\n"
        "    print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        patch.setattr("examples.demo.stage.SIGNALS", ())
        with Stage() as stage:
            child = stage.start("child", "parent_of_others", is_heard=True)
            assert child.stdout is not None
            other = int(child.stdout.readline())
            stage.kill(child)
            wait_until(lambda: not is_alive(other))

    assert not stage.directory.exists()


def is_alive(pid: int) -> bool:
    """Tell whether a process is more than a name that nobody has asked after yet."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
