"""A temporary directory and the processes in it: whatever happens, none of them outlives the demo.

Children are in sessions of their own, so Ctrl-C reaches the demo alone, which ends them in order.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from examples.demo.evidence import RUNS_VARIABLE
from examples.demo.shop import STORE_VARIABLE

ROOT: Final = Path(__file__).parents[2]
END_SECONDS_MAX: Final = 10
LOOK_SECONDS: Final = 0.02
LAST_WORDS: Final = 40
"""How many lines of a log are shown when its process failed."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Child = subprocess.Popen[str]


class Stage:
    """Where the demo plays. A context: leaving it ends every child and removes the directory."""

    def __init__(self, keep: Path | None = None) -> None:
        """Use a temporary directory; with `keep`, that one for the store, which then stays."""
        self._keep = keep
        self._children: list[Child] = []
        self._is_starting = False
        self._was_interrupted = False
        self._is_over = False

    def __enter__(self) -> Self:
        self._is_starting = True  # Nobody would remove what is made here if this were left early.
        for number in SIGNALS:
            signal.signal(number, self._interrupt)
        self.directory = Path(tempfile.mkdtemp(prefix="segue-demo-"))
        self.store = self._keep or self.directory / "store"
        self.runs = self.directory / "runs.jsonl"
        (self.directory / "tmp").mkdir()
        self._is_starting = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        for child in self._children:
            _signal(child, signal.SIGTERM)
        for child in list(self._children):
            self.end(child)
        self._remove_directory()

    def start(self, name: str, *arguments: str, is_heard: bool = False) -> Child:
        """Run `python -m` with arguments; what it prints is for us, or goes to its log."""
        with self.log(name).open("a") as log:
            self._is_starting = True
            try:
                child = subprocess.Popen(
                    [sys.executable, "-m", *arguments],
                    cwd=self.directory,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if is_heard else log,
                    stderr=log,
                    start_new_session=True,
                    text=True,
                )
                self._children.append(child)
            finally:
                self._is_starting = False
        if self._was_interrupted:
            raise KeyboardInterrupt
        return child

    def end(self, child: Child) -> None:
        """Have a child end in order; if it takes too long, at once."""
        _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS_MAX
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self.kill(child)

    def kill(self, child: Child) -> None:
        """SIGKILL a child and all it has started."""
        _signal(child, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        if child in self._children:
            self._children.remove(child)

    def log(self, name: str) -> Path:
        """Return where a child's words are."""
        return self.directory / f"{name}.log"

    def last_words(self, name: str) -> Sequence[str]:
        """Return the end of a child's log."""
        log = self.log(name)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return lines[-LAST_WORDS:]

    def _remove_directory(self) -> None:
        """Remove the directory, in which the last of Spark's processes may still end."""
        deadline = time.monotonic() + END_SECONDS_MAX
        while self.directory.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.directory, ignore_errors=True)
            time.sleep(LOOK_SECONDS)

    def _environment(self) -> dict[str, str]:
        # Spark and its JVM leave files behind when they are killed: here they go with the rest.
        scratch = str(self.directory / "tmp")
        java = [f'"-Djava.io.tmpdir={scratch}"', "-XX:-UsePerfData"]
        return {
            **os.environ,
            STORE_VARIABLE: str(self.store),
            RUNS_VARIABLE: str(self.runs),
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "SPARK_LOCAL_DIRS": scratch,
            "TMPDIR": scratch,
            "JAVA_TOOL_OPTIONS": " ".join([os.environ.get("JAVA_TOOL_OPTIONS", ""), *java]).strip(),
        }

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Leave the stage, but not before what is being made or started is known."""
        if self._is_over or self._was_interrupted:
            return  # It is being left; that takes seconds at most.
        self._was_interrupted = True
        if not self._is_starting:
            raise KeyboardInterrupt


def is_running(child: Child) -> bool:
    """Tell whether a child has not ended. One that has keeps its number until `kill` is done."""
    if child.returncode is not None:
        return False
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _signal(child: Child, number: signal.Signals) -> None:
    """Send a signal to a child; SIGKILL to all it has started, too."""
    if child.returncode is not None:
        return  # The number may be another's by now.
    os.kill(child.pid, number)
    if number == signal.SIGKILL:
        for pid in _session_of(child):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _session_of(child: Child) -> Sequence[int]:
    """Return all processes of a child's session. Workers of Spark have groups of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getsid(int(path.name)) == child.pid:
                found.append(int(path.name))
    return found
