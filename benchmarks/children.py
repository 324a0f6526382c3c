"""Other processes, as seen from the one that measures. `child.py` is what they run."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.race import Job
from benchmarks.stores import SegueLog

_ROOT: Final = Path(__file__).resolve().parent.parent
"""From where `benchmarks` can be imported."""


class Child:
    """A process that answers in lines of JSON."""

    def __init__(self, command: str, directory: Path, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.child", command, str(directory.absolute())),
                *map(str, arguments),
            ],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: object) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, float]:
        """Return the next answer. Raises RuntimeError if the process is gone."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"child ended with code {self._process.wait()}")
        facts: dict[str, float] = json.loads(line)
        return facts

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, in the middle of whatever it does."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Let it end by itself."""
        self._process.communicate()


class SegueProcesses:
    """Several processes appending to one shared log at once; the rate is that of all together."""

    def __init__(self, path: Path, *, processes: int, payload_bytes: int) -> None:
        self._path = path
        self._log = SegueLog(path, exclusive=False)
        self._children = [Child("append", path, payload_bytes) for _ in range(processes)]
        for child in self._children:
            child.hear()

    def preload(self, batch: list[bytes], count: int) -> None:
        self._log.preload(batch, count)

    def singles(self, payloads: Sequence[bytes]) -> Job:
        """Share out the count; the children have payloads of the same kind themselves."""
        for number, child in enumerate(self._children):
            child.tell(len(payloads[number :: len(self._children)]))
        for child in self._children:
            child.hear()

        def job() -> None:
            for child in self._children:
                child.tell("go")
            for child in self._children:
                child.hear()

        return job

    def note(self) -> str:
        return self._log.note()

    def close(self) -> None:
        for child in self._children:
            child.close()
        self._log.close()
